"""Chooses the size of a prompt's chunks, and how many steps a device drafts while it waits for a verdict (HAT, sections 3.2, 3.3, 3.5).

A split server computes the middle layers of a prompt's rows while the device sends the next chunk. Small chunks begin sooner, and large
chunks cost less per row. Equation 3 chooses the size at which sending a chunk takes as long as computing it.

The equation has no solution if, at every size, a row is sent faster than it is computed, as with servers without a GPU. Then computing is
the bottleneck, and the best size is the smallest at which a row costs hardly more than in any larger chunk. With several pipeline stages,
every size may solve the equation, so the size has a lower limit.

The equation also has large solutions, up to the whole prompt, if sending a row takes hardly more time than computing it. The work on such
large chunks overlaps with nothing. So ``fastest_chunk_size`` compares the predicted times of many ways to cut a prompt, and of the whole
prompt.
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
"""Number of rows in the smallest chunk."""

FLAT = 1.05
"""A row may cost this many times as much as the cheapest row if equation 3 has no solution."""

NEARLY = 1.03
"""Larger chunks, which need fewer batches, are chosen if a prompt then takes at most this many times as long as with the best chunks."""

_FEW_PARTS = (1, 4, 16, 64)  # compared if the load leaves less room in a batch than the smallest chunk, so that a prompt takes many batches
_MOST_UNEVEN = 8  # chunks; with more of them, the last one matters little

MEMORY = 0.8
"""Weight of past values in the moving averages (alpha in equations 1 and 2)."""


class ServerLoad:
    """A server's current load: moving averages over its batches (equations 1 and 2).

    Args:
        costs: seconds that a batch takes by its number of rows, measured without load.
        memory: weight of past values, from 0 to below 1.
    """

    def __init__(self, costs: RowCosts, *, memory: float = MEMORY) -> None:
        if not 0 <= memory < 1:
            raise ValueError(f"memory: expected 0 to below 1, got {memory}")
        self._memory = memory
        self._costs = {rows: costs.seconds(rows) for rows in costs.rows}
        self.rows = 0.0
        """Average number of rows in a batch (mu in equation 1)."""
        self.steady_rows = 0.0
        """The same average without rows of prompts, which soon end. Otherwise a device's prompt would count as load on its next prompt."""

    def record(self, rows: int, seconds: float, *, prompt_rows: int = 0) -> None:
        """Count a batch, of which ``prompt_rows`` rows belong to prompts. Its time updates the measured size that is nearest in ratio."""
        self.rows = self._memory * self.rows + (1 - self._memory) * rows
        self.steady_rows = self._memory * self.steady_rows + (1 - self._memory) * (rows - prompt_rows)
        size = min(self._costs, key=lambda known: max(known / rows, rows / known))
        costs = self.costs()
        scaled = seconds * costs.seconds(size) / costs.seconds(rows)
        self._costs[size] = self._memory * self._costs[size] + (1 - self._memory) * scaled

    def costs(self) -> RowCosts:
        """Return how many seconds batches now take, by number of rows."""
        return RowCosts(self._costs)


class PromptPlan(Struct, frozen=True):
    """How a prompt is sent in chunks.

    Args:
        size: number of rows in a chunk, at least 1. The last chunk may be smaller.
        max_unanswered: maximum number of unanswered chunks, at least 1.
    """

    size: int
    max_unanswered: int = 2


ChunkingRule = Literal["fastest", "balanced", "whole"]
"""How a prompt is cut: for the shortest predicted time ("fastest"), by equation 3 ("balanced"), or not at all ("whole")."""

Chunking = ChunkingRule | int
"""A rule for cutting a prompt, or a fixed number of rows in a chunk."""


def check_chunking(chunking: object) -> None:
    """Check that a value is a valid ``Chunking``.

    Raises:
        ConfigError: the value is neither a rule nor a whole number above 0.
    """
    is_number = isinstance(chunking, int) and not isinstance(chunking, bool) and chunking >= 1
    if not is_number and chunking not in get_args(ChunkingRule):
        rules = ", ".join(f'"{rule}"' for rule in get_args(ChunkingRule))
        raise ConfigError(f"chunking: expected {rules} or a number above 0, got {chunking!r}")


class SplitPath(Struct, frozen=True, kw_only=True):
    """A device's knowledge of a split server and the link to it.

    Args:
        costs: seconds that the server computes, by number of rows.
        row_bytes: size of a state when it is sent, in bytes.
        upload_rate: bytes per second from the device to the server.
        download_rate: bytes per second at which states come back, or inf if only one row comes back.
        input_costs: seconds that the device's own layers take, by number of rows, or None if not known.
        round_trip: seconds of latency, in addition to the time for the bytes.
        load_rows, steady_rows: average rows in the server's batches, with and without rows of prompts (``ServerLoad``).
        stages: number of the server's pipeline stages.
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
    """Return True if sending a prompt's row takes longer than computing it at the server, with batches as full as possible.

    Then a prompt waits for the link, and smaller states bring its first token sooner. This is not in the paper, where states always have
    16 bits.
    """
    rows = max(1, path.room - ceil(path.steady_rows))
    row_seconds = path.costs.seconds(path.steady_rows + rows) / rows / path.stages
    return path.row_bytes / path.upload_rate > row_seconds


class ChunkPlan(Struct, frozen=True):
    """How a prompt is cut into chunks.

    Args:
        size: number of rows in a chunk, at least 1. The last chunk may be smaller.
        is_balanced: True if sending a chunk takes at least as long as computing one (equation 3), False if computing is the bottleneck.
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
    """Choose the size of a prompt's chunks by equation 3.

    Args:
        prompt: number of rows in the prompt, at least 1.
        costs: seconds that the server computes, by number of rows.
        row_bytes: size of a state when it is sent, in bytes (A).
        upload_rate: bytes per second from the device to the server (beta).
        load_rows: number of rows in the batches that the server computes for others (mu).
        stages: number of the server's pipeline stages (P), at least 1.
        smallest: number of rows in the smallest chunk.
        largest: number of rows in the largest chunk. None allows the whole prompt.

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
    """Choose the chunk size with which a prompt is read soonest. This is not in the paper.

    As many chunks are sent ahead as ``chunks_in_flight`` returns. The device, the link and the server work in parallel, each on one chunk
    after another. If several sizes are nearly as fast, the largest is chosen. Not all sizes are compared, but if costs are linear, the best
    of all sizes is at most a tenth faster than the chosen size.

    Args:
        prompt: number of rows in the prompt, at least 1.
        times: how long the prompt's rows take on the device, the link and the server.
        smallest: number of rows in the smallest chunk, at least 1.
        largest: number of rows in the largest chunk. None allows the whole prompt.
        computed: number of rows at the prompt's start that the device has already computed.

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
    """Return the chunk sizes from ``first`` to ``last`` that are worth comparing.

    They cut the prompt evenly, or into up to eight chunks and a quarter, a half or three quarters of a chunk. A short last chunk is
    computed soon after it arrives, which matters most with few chunks.
    """
    even = (ceil(prompt / parts) for parts in range(1, prompt // first + 1))
    uneven = (ceil(4 * prompt / quarters) for quarters in range(4, 4 * _MOST_UNEVEN + 1))
    return sorted({size for size in (*even, *uneven) if first <= size <= last} | {first, last})


def plan_prompt(prompt: int, chunking: Chunking, path: SplitPath, *, computed: int = 0) -> PromptPlan:
    """Decide how a prompt is cut and how many chunks may be unanswered, so that neither device nor link waits for an answer.

    ``fastest`` is never predicted to take longer than the whole prompt in one piece, if that fits into a frame.

    Args:
        prompt: number of rows in the prompt, at least 1.
        chunking: the rule, or the number of rows in a chunk.
        path: the server and the link to it. The server must merge the chunks that have arrived into one batch.
        computed: number of rows at the prompt's start that the device has already computed.
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

    The paper doesn't say how many. With only two, a device sends two chunks in the time of one answer. Small chunks, which equation 3 gives
    for servers with several stages, then take longer than the whole prompt in one piece. A server that merges chunks answers them later,
    because its batches are larger. The result is one more than the prediction needs, in case the link is faster than expected. Everything
    else that the device sends has to wait for these chunks.

    Args:
        prompt: number of rows in the prompt, at least 1.
        size: number of rows in a chunk, at least 1.
        times: how long the prompt's rows take on the device, the link and the server.
        computed: number of rows at the prompt's start that the device has already computed.
        round_trip: seconds of latency, in addition to the time for the bytes.

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
        drafted: number of rows in the draft that is being verified.
        row_bytes: size of a state when it is sent, in bytes.
        upload_rate, download_rate: bytes per second in each direction.
        server_seconds: seconds that the server takes for the rows.
        step_seconds: seconds that one draft step takes on the device.
        round_trip: seconds of latency, in addition to the time for the bytes. Not in the paper.

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
