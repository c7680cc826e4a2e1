"""The size of a prompt's chunks, and how many steps a device drafts while a verdict is out (HAT, sections 3.2, 3.3 and 3.5).

A split server computes the middle layers of a prompt's rows while the device sends the next chunk. Small chunks begin sooner, and large
ones cost less per row. Equation 3 takes the size at which sending a chunk lasts as long as computing one.

The equation has no solution if at every size a row is sent faster than it is computed, as with servers without a GPU. Then computing is the
bottleneck, and the best size is the smallest at which a row costs hardly more than in any larger chunk. With several pipeline stages every
size may solve it. So there is a smallest size.

The equation also has large solutions, up to the whole prompt, if sending a row takes hardly more time than computing it. Such a chunk
overlaps with nothing. ``fastest_chunk_size`` therefore compares the predicted times of many ways to cut a prompt, and of the whole prompt.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Literal, get_args

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.profiles.chunk_times import ChunkTimes, check_rates
from streamco.profiles.row_costs import RowCosts

__all__ = [
    "ChunkPlan",
    "Chunking",
    "ChunkingRule",
    "PromptPlan",
    "ServerLoad",
    "SplitPath",
    "check_chunking",
    "chunk_size",
    "chunks_in_flight",
    "fastest_chunk_size",
    "is_link_slower",
    "parallel_steps",
    "plan_prompt",
]

SMALLEST = 16
"""Rows of the smallest chunk."""

FLAT = 1.05
"""How many times as much as the cheapest a row may cost if equation 3 has no solution."""

NEARLY = 1.03
"""How many times as long as with the best chunks reading a prompt may take for the sake of larger ones, which need fewer batches."""

_FEW_PARTS = (1, 4, 16, 64)  # to compare if the load leaves less than the smallest chunk of a batch: a prompt then takes many
_MOST_UNEVEN = 8  # chunks; with more, the last one matters little

MEMORY = 0.8
"""Weight of the past in the moving averages (alpha in equations 1 and 2)."""


class ServerLoad:
    """A server's current load: moving averages of its batches (equations 1 and 2).

    Args:
        costs: seconds by number of rows, as measured without load.
        memory: weight of the past, from 0 to below 1.
    """

    def __init__(self, costs: RowCosts, *, memory: float = MEMORY) -> None:
        if not 0 <= memory < 1:
            raise ValueError(f"memory: expected 0 to below 1, got {memory}")
        self._memory = memory
        self._costs = {rows: costs.seconds(rows) for rows in costs.rows}
        self.rows = 0.0
        """Rows of a batch (mu in equation 1)."""
        self.steady_rows = 0.0
        """Rows of a batch without prompts' rows, which soon end. Otherwise a device's prompt would be counted as load on its next one."""

    def record(self, rows: int, seconds: float, *, prompt_rows: int = 0) -> None:
        """Count a batch with ``prompt_rows`` rows of prompts. Its time goes to the measured size that is nearest in proportion."""
        self.rows = self._memory * self.rows + (1 - self._memory) * rows
        self.steady_rows = self._memory * self.steady_rows + (1 - self._memory) * (rows - prompt_rows)
        size = min(self._costs, key=lambda known: max(known / rows, rows / known))
        costs = self.costs()
        scaled = seconds * costs.seconds(size) / costs.seconds(rows)
        self._costs[size] = self._memory * self._costs[size] + (1 - self._memory) * scaled

    def costs(self) -> RowCosts:
        """Return the current seconds by number of rows."""
        return RowCosts(self._costs)


class PromptPlan(Struct, frozen=True):
    """How a prompt is sent.

    Args:
        size: rows of a chunk, at least 1; the last one may be smaller.
        max_unanswered: maximum number of unanswered chunks, at least 1.
    """

    size: int
    max_unanswered: int = 2


ChunkingRule = Literal["fastest", "balanced", "whole"]
"""How a prompt is cut: for the shortest predicted time, by equation 3, or not at all."""

Chunking = ChunkingRule | int
"""A rule, or the number of rows in a chunk."""


def check_chunking(chunking: object) -> None:
    """Check that a prompt can be cut this way.

    Raises:
        ConfigError: it is neither a rule nor a whole number above 0.
    """
    is_number = isinstance(chunking, int) and not isinstance(chunking, bool) and chunking >= 1
    if not is_number and chunking not in get_args(ChunkingRule):
        rules = ", ".join(f'"{rule}"' for rule in get_args(ChunkingRule))
        raise ConfigError(f"chunking: expected {rules} or a number above 0, got {chunking!r}")


class SplitPath(Struct, frozen=True, kw_only=True):
    """What a device knows about a split server and the way to it.

    Args:
        costs: seconds that the server computes, by number of rows.
        row_bytes: bytes of a state on the wire.
        upload_rate: bytes per second from the device to the server.
        download_rate: bytes per second at which states come back, if all rows do; inf if only one row comes back.
        input_costs: seconds that the device's own layers take, by number of rows; None if not known.
        round_trip: seconds on the way in addition to the bytes' time.
        load_rows, steady_rows: rows of the server's current batches, with and without prompts' rows (``ServerLoad``).
        stages: the server's pipeline stages.
        room: maximum number of rows in a batch.
        max_rows: maximum number of rows in a frame.
        max_rounds: maximum number of unanswered frames.
    """

    costs: RowCosts
    row_bytes: float
    upload_rate: float
    download_rate: float = inf
    input_costs: RowCosts | None = None
    round_trip: float = 0.0
    load_rows: float = 0.0
    steady_rows: float = 0.0
    stages: int = 1
    room: int
    max_rows: int
    max_rounds: int


def is_link_slower(path: SplitPath) -> bool:
    """Return True if a row of a prompt takes longer on the link than at the server when batches are as full as possible.

    Then a prompt waits for the link, and smaller states bring its first token sooner. Not in the paper, whose states always have 16 bits.
    """
    rows = max(1, path.room - ceil(path.steady_rows))
    row_seconds = path.costs.seconds(path.steady_rows + rows) / rows / path.stages
    return path.row_bytes / path.upload_rate > row_seconds


class ChunkPlan(Struct, frozen=True):
    """How a prompt is cut.

    Args:
        size: rows of a chunk, at least 1; the last one may be smaller.
        is_balanced: sending a chunk takes as long as computing one (equation 3); False if computing is the bottleneck at every size.
    """

    size: int
    is_balanced: bool


def chunk_size(
    prompt: int,
    *,
    costs: RowCosts,
    row_bytes: float,
    upload_rate: float,
    load_rows: float = 0.0,
    stages: int = 1,
    smallest: int = SMALLEST,
    largest: int | None = None,
) -> ChunkPlan:
    """Return the size of a prompt's chunks (equation 3).

    Args:
        prompt: rows of the prompt, at least 1.
        costs: seconds that the server computes, by number of rows.
        row_bytes: bytes of a state on the wire (A).
        upload_rate: bytes per second from the device to the server (beta).
        load_rows: rows of the batches that the server is computing anyway (mu).
        stages: the server's pipeline stages (P), at least 1.
        smallest: rows of the smallest chunk.
        largest: rows of the largest chunk; None for the prompt.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(prompt, smallest)
    check_rates(stages, row_bytes, upload_rate)
    last = max(1, min(prompt, largest or prompt))
    first = min(smallest, last)
    waiting = costs.seconds(load_rows)
    for rows in range(first, last + 1):
        if rows * row_bytes / upload_rate >= (waiting + costs.seconds(load_rows + rows)) / stages:
            return ChunkPlan(rows, is_balanced=True)
    cheapest = min(costs.row_seconds(rows) for rows in range(first, last + 1))
    size = next(rows for rows in range(first, last + 1) if costs.row_seconds(rows) <= FLAT * cheapest)
    return ChunkPlan(size, is_balanced=False)


def fastest_chunk_size(
    prompt: int, times: ChunkTimes, *, smallest: int = SMALLEST, largest: int | None = None, computed: int = 0
) -> ChunkPlan:
    """Return the chunks with which a prompt is read soonest, with enough of them in flight (``chunks_in_flight``); not in the paper.

    Device, link and server each take chunk after chunk, so one computes while another sends. If several sizes are nearly as fast, the
    largest is returned. Not all sizes are compared: if costs are linear, the best of all sizes is at most a tenth sooner than the
    returned one.

    Args:
        prompt: rows of the prompt, at least 1.
        times: times of its rows.
        smallest: rows of the smallest chunk, at least 1.
        largest: rows of the largest chunk; None for the prompt.
        computed: number of first rows that the device has already computed.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(prompt, smallest)
    last = max(1, min(prompt, largest or prompt))
    first = min(smallest, last)
    sizes = _sizes(prompt, first, last) if times.room >= first else {max(first, last // parts) for parts in _FEW_PARTS}
    seconds = {size: times.batches(times.chunks(prompt, size, computed))[-1].returns for size in sizes}
    limit = NEARLY * min(seconds.values())
    size = max(size for size, taken in seconds.items() if taken <= limit)
    return ChunkPlan(size, is_balanced=times.upload_seconds * size >= times.batch_seconds(size) / times.stages)


def _sizes(prompt: int, first: int, last: int) -> list[int]:
    """Return the sizes from ``first`` to ``last`` that are worth comparing.

    They cut the prompt evenly, or into up to eight chunks plus a quarter, a half or three quarters of one. A short last chunk is computed
    soon after it has come, which matters most with few chunks.
    """
    even = (ceil(prompt / parts) for parts in range(1, prompt // first + 1))
    uneven = (ceil(4 * prompt / quarters) for quarters in range(4, 4 * _MOST_UNEVEN + 1))
    return sorted({size for size in (*even, *uneven) if first <= size <= last} | {first, last})


def plan_prompt(prompt: int, chunking: Chunking, path: SplitPath, *, computed: int = 0) -> PromptPlan:
    """Return how a prompt is cut, and how many chunks are on the way, so that neither device nor link waits for an answer.

    ``fastest`` is never predicted to take longer than one piece, if that fits into a frame.

    Args:
        prompt: rows of the prompt, at least 1.
        chunking: how it is cut.
        path: the server and the way to it. The server must merge the chunks that have arrived into one batch.
        computed: number of first rows that the device has already computed.
    """
    load = path.load_rows if chunking == "balanced" else path.steady_rows
    times = ChunkTimes.from_costs(
        costs=path.costs,
        row_bytes=path.row_bytes,
        upload_rate=path.upload_rate,
        load_rows=load,
        stages=path.stages,
        room=path.room,
        is_merged=True,
        input_costs=path.input_costs,
        download_rate=path.download_rate,
    )
    match chunking:
        case "whole":
            size = min(prompt, path.max_rows)
        case "balanced":
            size = chunk_size(
                prompt,
                costs=path.costs,
                row_bytes=path.row_bytes,
                upload_rate=path.upload_rate,
                load_rows=load,
                stages=path.stages,
                largest=min(path.room, path.max_rows),
            ).size
        case "fastest":
            size = fastest_chunk_size(prompt, times, largest=path.max_rows, computed=computed).size
        case _:
            size = min(prompt, path.max_rows, chunking)
    unanswered = chunks_in_flight(prompt, size, times, computed=computed, round_trip=path.round_trip)
    return PromptPlan(size, max(1, min(path.max_rounds, unanswered)))


def chunks_in_flight(prompt: int, size: int, times: ChunkTimes, *, computed: int = 0, round_trip: float = 0.0) -> int:
    """Return how many chunks may be unanswered, at least 2, so that neither device nor link waits for an answer.

    The paper doesn't say. A device that waits for the answer of the chunk before the last sends two chunks in the time of one answer. Small
    chunks, which equation 3 gives for servers with several stages, then take longer than the whole prompt in one piece. A server that
    merges chunks answers them later, because its batches are larger. There is one more than the prediction needs, for a link that is faster
    than expected. Whatever else the device sends has to wait for these chunks.

    Args:
        prompt: rows of the prompt, at least 1.
        size: rows of a chunk, at least 1.
        times: times of its rows.
        computed: number of first rows that the device has already computed.
        round_trip: seconds on the way in addition to the bytes' time.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(prompt, size)
    late = round_trip + times.batch_seconds(0)  # the first chunk may come just after a batch of the load has begun
    return 1 + times.most_unanswered(times.chunks(prompt, size, computed), late)


def parallel_steps(
    drafted: int,
    *,
    row_bytes: float,
    upload_rate: float,
    download_rate: float,
    server_seconds: float,
    step_seconds: float,
    round_trip: float = 0.0,
) -> int:
    """Return how many draft steps fit into the wait for a verdict (equation 6).

    Args:
        drafted: rows of the draft that is being verified.
        row_bytes: bytes of a state on the wire.
        upload_rate, download_rate: bytes per second.
        server_seconds: time that the server takes for the rows.
        step_seconds: time of one draft step on the device.
        round_trip: seconds on the way in addition to the bytes' time; not in the paper.

    Raises:
        ValueError: a rate or ``step_seconds`` is not above 0.
    """
    if not upload_rate > 0 or not download_rate > 0 or not step_seconds > 0:
        raise ValueError(f"parallel steps: expected rates and a step above 0, got {upload_rate}, {download_rate} and {step_seconds}")
    wait = drafted * row_bytes * (1 / upload_rate + 1 / download_rate) + server_seconds + round_trip
    return int(wait / step_seconds)


def _check(prompt: int, size: int) -> None:
    if prompt < 1 or size < 1:
        raise ValueError(f"chunk size: expected a prompt and sizes of at least 1 row, got {prompt} and {size}")
