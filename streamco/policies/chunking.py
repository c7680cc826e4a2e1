"""The size of a prompt's chunks, and how many steps a device drafts while a verdict is out (HAT, sections 3.2, 3.3 and 3.5).

A split server computes the middle layers of a prompt's rows while the device sends the next chunk. Small chunks begin sooner, and large
ones cost less a row. Equation 3 takes the size at which sending a chunk lasts as long as computing one.

The equation has no solution if a row is sent faster than it is computed, at every size. That is so for servers without a GPU. Then
computing is the bottleneck, and the smallest size serves at which a row costs hardly more than in any larger chunk. With several pipeline
stages every size may solve it. So there is a smallest size.

The equation also has large solutions, up to the whole prompt, if a row is sent in hardly more time than it is computed. Such a chunk
overlaps with nothing. ``fastest_chunk_size`` therefore compares the predicted times of many ways to cut a prompt, and of the whole.
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
"""How much more than the cheapest a row may cost, if equation 3 has no solution."""

NEARLY = 1.03
"""How much later than with the best chunks a prompt may be read, if larger chunks then do: fewer batches, which other devices share."""

_FEW_PARTS = (1, 4, 16, 64)  # are compared if the load leaves less than the smallest chunk of a batch: then a prompt takes many batches
_MOST_UNEVEN = 8  # chunks; with more of them the last one matters little

MEMORY = 0.8
"""Weight of the past in the moving averages: alpha in equations 1 and 2."""


class ServerLoad:
    """What a server computes at present: moving averages of its batches (equations 1 and 2).

    Args:
        costs: seconds by rows as measured before there was load.
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
        """Rows of a batch without those of prompts, which soon end. A device's own prompt is otherwise counted as load on its next one."""

    def record(self, rows: int, seconds: float, *, prompt_rows: int = 0) -> None:
        """Count a batch, ``prompt_rows`` of which are of prompts. Its time goes to the measured size that is nearest in proportion."""
        self.rows = self._memory * self.rows + (1 - self._memory) * rows
        self.steady_rows = self._memory * self.steady_rows + (1 - self._memory) * (rows - prompt_rows)
        size = min(self._costs, key=lambda known: max(known / rows, rows / known))
        costs = self.costs()
        scaled = seconds * costs.seconds(size) / costs.seconds(rows)
        self._costs[size] = self._memory * self._costs[size] + (1 - self._memory) * scaled

    def costs(self) -> RowCosts:
        """Return the seconds by rows as they are at present."""
        return RowCosts(self._costs)


class PromptPlan(Struct, frozen=True):
    """How a prompt is sent.

    Args:
        size: rows of a chunk, at least 1; the last one may be smaller.
        max_unanswered: most chunks that are sent and not answered, at least 1.
    """

    size: int
    max_unanswered: int = 2


ChunkingRule = Literal["fastest", "balanced", "whole"]
"""How a prompt is cut: for the shortest predicted time, by equation 3, or in one piece."""

Chunking = ChunkingRule | int
"""A rule, or in chunks of so many rows."""


def check_chunking(chunking: object) -> None:
    """Check that a prompt can be cut so.

    Raises:
        ConfigError: it is neither a rule nor a whole number above 0.
    """
    is_number = isinstance(chunking, int) and not isinstance(chunking, bool) and chunking >= 1
    if not is_number and chunking not in get_args(ChunkingRule):
        rules = ", ".join(f'"{rule}"' for rule in get_args(ChunkingRule))
        raise ConfigError(f"chunking: expected {rules} or a number above 0, got {chunking!r}")


class SplitPath(Struct, frozen=True, kw_only=True):
    """What a device knows of a split server and of the way to it.

    Args:
        costs: seconds that the server computes, by rows.
        row_bytes: bytes of a state on the wire.
        upload_rate: bytes per second from the device to the server.
        download_rate: bytes per second of the states that come back, if those of all rows do; inf: one row comes back.
        input_costs: seconds of the device's own layers, by rows; None: not known.
        round_trip: seconds on the way besides those of the bytes.
        load_rows, steady_rows: rows of the server's batches at present, with and without those of prompts (``ServerLoad``).
        stages: the server's pipeline stages.
        room: most rows of a batch.
        max_rows: most rows of a frame.
        max_rounds: most frames that may be unanswered.
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
    """Return True if a row of a prompt takes longer on the link than at the server, whose batches are as full as they can be.

    Then the link is what a prompt waits for, and states of fewer bytes bring its first token sooner. Not in the paper, whose states always
    have 16 bits.
    """
    rows = max(1, path.room - ceil(path.steady_rows))
    row_seconds = path.costs.seconds(path.steady_rows + rows) / rows / path.stages
    return path.row_bytes / path.upload_rate > row_seconds


class ChunkPlan(Struct, frozen=True):
    """How a prompt is cut.

    Args:
        size: rows of a chunk, at least 1; the last one may be smaller.
        is_balanced: sending a chunk takes as long as computing one (equation 3); False: computing is the bottleneck at every size.
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
        costs: seconds that the server computes, by rows.
        row_bytes: bytes of a state on the wire (A).
        upload_rate: bytes per second from the device to the server (beta).
        load_rows: rows of the batches that the server computes anyway (mu).
        stages: the server's pipeline stages (P), at least 1.
        smallest: rows of the smallest chunk.
        largest: rows of the largest chunk; None: the prompt.

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
    """Return the chunks by which a prompt is read soonest, with enough of them in flight (``chunks_in_flight``); not in the paper.

    Device, link and server each take chunk after chunk, so one computes while another sends. If several sizes are nearly as fast, the
    largest is returned. Not all sizes are compared: if costs are a line, the best of all sizes is at most a tenth sooner than the returned
    one.

    Args:
        prompt: rows of the prompt, at least 1.
        times: times of its rows.
        smallest: rows of the smallest chunk, at least 1.
        largest: rows of the largest chunk; None: the prompt.
        computed: number of first rows that the device has computed already.

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

    They cut the prompt evenly, or into up to eight chunks and a quarter, a half or three quarters of one. A short last chunk is computed
    soon after it has come, which matters most between few chunks.
    """
    even = (ceil(prompt / parts) for parts in range(1, prompt // first + 1))
    uneven = (ceil(4 * prompt / quarters) for quarters in range(4, 4 * _MOST_UNEVEN + 1))
    return sorted({size for size in (*even, *uneven) if first <= size <= last} | {first, last})


def plan_prompt(prompt: int, chunking: Chunking, path: SplitPath, *, computed: int = 0) -> PromptPlan:
    """Return how a prompt is cut, and how many chunks are on the way, so that neither device nor link waits for an answer.

    ``fastest`` is never predicted to be later than one piece, as far as that fits a frame.

    Args:
        prompt: rows of the prompt, at least 1.
        chunking: how it is cut.
        path: the server and the way to it. It must compute the chunks that have come together.
        computed: number of first rows that the device has computed already.
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
    """Return how many chunks may be sent and not answered, at least 2, so that neither device nor link waits for an answer.

    The paper doesn't say. A device that waits for the answer of the chunk before the last sends two chunks in the time of one answer. Small
    chunks, which equation 3 gives for servers with several stages, then take longer than the whole prompt in one piece. A server that
    merges chunks answers them later, because its batches are larger. There is one more than the prediction needs, for a link that is faster
    than expected. What else the device sends waits for these chunks.

    Args:
        prompt: rows of the prompt, at least 1.
        size: rows of a chunk, at least 1.
        times: times of its rows.
        computed: number of first rows that the device has computed already.
        round_trip: seconds on the way besides those of the bytes.

    Raises:
        ValueError: an argument is out of range.
    """
    _check(prompt, size)
    late = round_trip + times.batch_seconds(0)  # the first chunk may come when a batch of the load has just begun
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
        round_trip: seconds on the way besides those of the bytes; the paper has none.

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
