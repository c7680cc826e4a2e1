"""Row costs of a loaded model: batches of 1 to 32 rows are timed for two seconds, once, and the times are kept in the user's cache.

They are valid for one machine, one build of llama.cpp, one model file, one number of threads and one layout of the weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter, thread_time
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from streamco.engines.llamacpp.cache_dir import cache_folder, write_whole

__all__ = ["ROW_SIZES", "MeasuredCosts", "kept_costs", "least_seconds", "measured_costs"]

logger = logging.getLogger("streamco.engine")

_FIRST = (1, 8, 16, 4, 2, 3, 6, 5, 7, 32)  # timed before others, in this order, if there is no time for all
_LATER = (12, 9, 13, 17, 24)
ROW_SIZES = tuple(sorted(_FIRST + _LATER))
"""Batch sizes that are timed. Kernels work in tiles of 4, 8 or 16 rows, so costs jump after a multiple of 4; others are interpolated."""

_SMALL = 8  # rows; sizes up to this decide about windows, so they are timed again first
_REPEATS = 3
_SECONDS = 2.0  # for timing the sizes
_PATIENCE = 4.0  # seconds that the second size may take; without it nothing is known about rows

_STEADY = 1.25  # greatest ratio of a size's longest to shortest time (median of the small sizes) at which times are kept
_CPU_SHARE = 0.9  # least share of the time in which the thread had a core; under a constant load it is less, although times are steady

Seconds = Annotated[float, Meta(gt=0, lt=3600)]
Rows = Annotated[int, Meta(ge=1, le=1 << 16)]


class MeasuredCosts(NamedTuple):
    """The result of a measurement.

    Args:
        seconds: seconds that a batch takes, by number of rows; {} if it was stopped, or the model is too slow.
        spread: ratio of a size's longest time to its shortest, the median over several sizes.
        cpu_share: share of the time in which the computing thread had a core, 0..1; 1 if that isn't known.
    """

    seconds: dict[int, float]
    spread: float = 1.0
    cpu_share: float = 1.0

    @property
    def trouble(self) -> str:
        """How other programs disturbed the times, or "" if they hardly did."""
        if self.spread > _STEADY:
            return f"times differ by {100 * (self.spread - 1):.0f} %"
        return f"other programs took {100 * (1 - self.cpu_share):.0f} % of the time" if self.cpu_share < _CPU_SHARE else ""


class _Kept(Struct, frozen=True):
    """The contents of a file in the cache. ``key`` says which machine and model it is for, even if the file was renamed."""

    key: str
    seconds: Annotated[dict[Rows, Seconds], Meta(min_length=1)]
    version: Annotated[int, Meta(ge=1, le=1)] = 1


def least_seconds(compute: Callable[[], float], *, repeats: int = _REPEATS) -> float:
    """Return the shortest time of several computations in seconds, the one that other processes disturbed least; above 0."""
    return max(1e-6, min(compute() for _ in range(repeats)))


def measured_costs(
    compute: Callable[[int], float | None],
    sizes: Sequence[int] = ROW_SIZES,
    *,
    clock: Callable[[], float] = perf_counter,
    cpu_clock: Callable[[], float] | None = thread_time,
) -> MeasuredCosts:
    """Return how many seconds a batch takes, by number of rows: the shortest of up to three times.

    If the model is slow, fewer sizes are timed, and the ones between are interpolated. Above the largest timed size, each further row is
    assumed to cost the average of the rows up to there.

    Args:
        compute: computes a batch of this many rows and returns its seconds, or None if it was stopped.
        sizes: numbers of rows, from ``ROW_SIZES``.
        clock: returns the time in seconds.
        cpu_clock: returns for how many seconds this thread has had a core; None if another device computes, such as a GPU.
    """
    times: dict[int, list[float]] = {}
    costs: dict[int, float] = {}
    started, cpu_started = clock(), cpu_clock() if cpu_clock is not None else 0.0
    for rows in _turns(sizes):
        is_slope_known = len(costs) > 1
        if clock() - started + _expected(costs, rows) > (_SECONDS if is_slope_known else _PATIENCE) or (
            rows in costs and not is_slope_known
        ):
            continue
        seconds = compute(rows)
        if seconds is None:
            return MeasuredCosts({})
        times.setdefault(rows, []).append(max(1e-6, seconds))
        costs[rows] = min(times[rows])
    if len(costs) < 2:
        return MeasuredCosts({})
    spent = clock() - started
    share = 1.0 if cpu_clock is None or spent <= 0.0 else min(1.0, (cpu_clock() - cpu_started) / spent)
    ratios = [max(each) / min(each) for rows, each in times.items() if rows <= _SMALL and len(each) > 1]
    return MeasuredCosts(_with_largest(costs, max(sizes)), median(ratios) if ratios else 1.0, share)


def _turns(sizes: Sequence[int]) -> list[int]:
    """Return the sizes in the order in which they are timed, most of them several times."""
    small = [rows for rows in _FIRST if rows <= _SMALL]
    large = [rows for rows in (*_FIRST, *_LATER) if rows > _SMALL]
    turns = (*_FIRST, *small, *_LATER, *_FIRST, *_LATER, *large)  # three times each
    return [rows for rows in turns if rows in sizes]


def _expected(costs: Mapping[int, float], rows: int) -> float:
    """Return the seconds that a batch of ``rows`` is expected to take, judging by the times measured so far; 0 if there are none."""
    if len(costs) < 2:
        return max((rows * seconds / known for known, seconds in costs.items()), default=0.0)
    if rows > max(costs):
        return _with_largest(costs, rows)[rows]
    above = [known for known in costs if known >= rows]
    return costs[min(above)]


def _with_largest(costs: Mapping[int, float], largest: int) -> dict[int, float]:
    """Return costs that include the size ``largest``, whose cost is extrapolated from the smallest and largest if not measured."""
    first, last = min(costs), max(costs)
    if largest <= last:
        return dict(costs)
    slope = max(0.0, costs[last] - costs[first]) / (last - first)
    return {**costs, largest: costs[last] + slope * (largest - last)}


def kept_costs(key: str, measure: Callable[[], MeasuredCosts]) -> Mapping[int, float]:
    """Return the costs for this key from the cache, or measure and keep them.

    A file that is damaged, or has a different key, is ignored and replaced; the log says so.

    Args:
        key: ``machine_key`` of the model, including the threads.
        measure: measures the costs. If other programs disturb it, the costs aren't kept, and the next process measures again.
    """
    found = _read(key)
    if found is not None:
        return found
    measured = measure()
    costs = measured.seconds
    if trouble := measured.trouble:
        logger.info("row costs: the machine is busy (%s), so these are used in this process only; the next one measures again", trouble)
    elif costs:
        try:
            write_whole(cache_folder("rows") / f"{key}.json", msgspec.json.encode(_Kept(key, costs)))
        except OSError as error:
            logger.info("row costs: can't be saved, so each process measures them: %s", error)
    return costs


def _read(key: str) -> Mapping[int, float] | None:
    try:
        file = cache_folder("rows") / f"{key}.json"
        data = file.read_bytes()
    except OSError:
        return None  # not measured yet, or no cache
    try:
        kept = msgspec.json.decode(data, type=_Kept)
    except ValueError as error:
        logger.warning("row costs: %s is damaged and is measured again: %s", file, error)
        return None
    if kept.key != key:
        logger.warning("row costs: %s is about another machine, build or model and is measured again", file)
        return None
    return kept.seconds
