"""Row costs of a loaded model: batches of 1 to 32 rows are timed once, and the seconds are kept in the user's cache.

They hold for one machine, one build of llama.cpp, one model file, one number of threads and one layout of the weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from streamco.engines.llamacpp.cache_dir import cache_folder, write_whole

__all__ = ["ROW_SIZES", "MeasuredCosts", "kept_costs", "least_seconds", "measured_costs"]

logger = logging.getLogger("streamco.engine")

ROW_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 32)
"""Sizes that are timed. Kernels work in tiles of 4, 8 or 16 rows, so a stair ends at a multiple of 4; sizes between are on lines."""

_SMALL = 8  # rows; sizes up to this decide about windows, so each is timed at least twice
_REPEATS = 3
_SECONDS = 2.0  # until which sizes are timed again
_PATIENCE = 4.0  # seconds after which sizes above ``_SMALL`` aren't timed any more: the model is slow

_STEADY = 1.25  # ratio of the longest to the shortest time of one size up to which they are kept, the median of the small sizes

Seconds = Annotated[float, Meta(gt=0, lt=3600)]
Rows = Annotated[int, Meta(ge=1, le=1 << 16)]


class MeasuredCosts(NamedTuple):
    """What was measured.

    Args:
        seconds: seconds of a batch by rows; {}: it was stopped.
        spread: how much longer the longest time of one size is than the shortest, as a ratio: the median of several sizes.
    """

    seconds: dict[int, float]
    spread: float


class _Kept(Struct, frozen=True):
    """The file in the cache. ``key`` says what it is about, also if the file was renamed."""

    key: str
    seconds: Annotated[dict[Rows, Seconds], Meta(min_length=1)]
    version: Annotated[int, Meta(ge=1, le=1)] = 1


def least_seconds(compute: Callable[[], float], *, repeats: int = _REPEATS) -> float:
    """Return the least seconds of several computations, which other processes disturb least; above 0."""
    return max(1e-6, min(compute() for _ in range(repeats)))


def measured_costs(
    compute: Callable[[int], float | None], sizes: Sequence[int] = ROW_SIZES, *, clock: Callable[[], float] = perf_counter
) -> MeasuredCosts:
    """Return the seconds of a batch by rows, the least of one to three.

    Args:
        compute: computes a batch of so many rows and returns its seconds; None: it was stopped.
        sizes: ascending numbers of rows.
        clock: seconds.
    """
    costs: dict[int, float] = {}
    most: dict[int, float] = {}
    started = clock()
    for turn in range(_REPEATS):
        for rows in sizes:
            spent = clock() - started
            if rows > _SMALL and spent > (_SECONDS if turn else _PATIENCE):
                break
            if turn > 1 and spent > _SECONDS:
                break
            seconds = compute(rows)
            if seconds is None:
                return MeasuredCosts({}, 1.0)
            costs[rows] = max(1e-6, min(seconds, costs.get(rows, seconds)))
            most[rows] = max(seconds, most.get(rows, seconds))
    return MeasuredCosts(costs, median(most[rows] / costs[rows] for rows in sizes if rows <= _SMALL) if costs else 1.0)


def kept_costs(key: str, measure: Callable[[], MeasuredCosts]) -> Mapping[int, float]:
    """Return the costs of this key from the cache, or measure and keep them.

    A file that is damaged, or about something else, is ignored and replaced; the log says so.

    Args:
        key: ``machine_key`` of the model, threads included.
        measure: measures the costs. They aren't kept if other programs disturbed that: the next process measures again.
    """
    found = _read(key)
    if found is not None:
        return found
    costs, spread = measure()
    if spread > _STEADY:
        logger.info(
            "row costs: the machine is busy (times differ by %.0f %%): they are measured again at the next start", 100 * (spread - 1)
        )
    elif costs:
        try:
            write_whole(cache_folder("rows") / f"{key}.json", msgspec.json.encode(_Kept(key, costs)))
        except OSError as error:
            logger.info("row costs: can't be kept, so each process measures them: %s", error)
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
