"""Distributions of time to first token, prompt length and remaining answer length."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

__all__ = ["LengthDistribution", "RemainingLength", "TTFTDistribution"]

_TIE = 1e-12  # probabilities closer than this are equal; rounding errors in sums of a million 1/n are smaller

_MANY = 4096  # samples; from this number on, selecting two quantiles is faster than sorting

_RADIX_SHIFT = 48  # bits to drop from a double; the exponent and 4 bits of the fraction remain, so each octave has 16 buckets


class TTFTDistribution:
    """A distribution of the time to first token: a step function that falls at ``times``.

    Samples, a product-limit curve and published quantiles can all be put in this form. If the curve ends above zero, that share of requests
    is never answered, and their time is infinite.

    Args:
        times: the times in seconds, ascending, at least one.
        survival: for each time, the probability that the first token comes later; non-increasing, within 0..1.

    Raises:
        ConfigError: the values don't form such a curve.
    """

    __slots__ = ("_area", "_radix", "_samples", "_steps", "_survival", "_times", "_upto")

    def __init__(self, times: Iterable[float], survival: Iterable[float]) -> None:
        self._times: Floats = np.array(times if isinstance(times, np.ndarray) else list(times), dtype=np.float64)
        self._survival: Floats = np.array(survival if isinstance(survival, np.ndarray) else list(survival), dtype=np.float64)
        _check_curve(self._times, self._survival)
        self._samples: Floats | None = None
        self._radix: tuple[Integers, NDArray[np.intp]] | None = None
        self._upto: Floats | None = None
        self._steps: Floats | None = None
        self._area: Floats | None = None

    @classmethod
    def from_samples(cls, samples: Sequence[float] | Floats) -> TTFTDistribution:
        """Return the distribution that gives each sample (seconds) the same probability.

        Raises:
            ConfigError: there are no samples, or one is negative or not finite.
        """
        values = np.asarray(samples, dtype=np.float64) + 0.0  # a copy, and -0.0 becomes 0.0
        if values.ndim != 1 or not values.size or not (values.min() >= 0 and math.isfinite(values.max())):  # with a nan, both are nan
            raise ConfigError(f"time to first token: expected one or more finite samples >= 0 s, got {_shown(values)}")
        made = cls.__new__(cls)
        made._samples = values
        made._times = made._survival = np.empty(0)  # until they are sorted
        made._radix = made._upto = made._steps = made._area = None
        return made

    @property
    def times(self) -> Floats:
        """Times at which the curve falls, in seconds, ascending."""
        self._sort()
        return self._times

    @property
    def survival(self) -> Floats:
        """For each of ``times``, the probability that the first token comes later."""
        self._sort()
        return self._survival

    def _sort(self) -> None:
        if self._samples is not None:
            self._times, self._samples, self._radix = np.sort(self._samples), None, None
            self._survival = np.arange(self._times.size - 1, -1, -1) / self._times.size

    def survival_at(self, time: float) -> float:
        """Return the probability that the first token comes later than ``time`` seconds."""
        if self._samples is not None and self._samples.size >= _MANY:
            return float(np.count_nonzero(self._samples > time)) / self._samples.size
        index = int(np.searchsorted(self.times, time, "right"))
        return float(self.survival[index - 1]) if index else 1.0

    def cdf(self, time: float) -> float:
        """Return the probability that the first token comes within ``time`` seconds."""
        return 1.0 - self.survival_at(time)

    def quantile(self, share: float) -> float:
        """Return the time (seconds) within which ``share`` of the requests get their first token: 0 for a share of 0, inf if never."""
        if share <= _TIE:
            return 0.0
        if self._samples is not None and self._samples.size >= _MANY and share <= 1.0:
            return self._select(self._samples, max(0, math.ceil((share - _TIE) * self._samples.size) - 1))
        index = int(np.searchsorted(-self.survival, share - 1.0 - _TIE, "left"))
        return float(self.times[index]) if index < self.times.size else math.inf

    def _select(self, samples: Floats, rank: int) -> float:
        """Return the sample of this rank. It is found by radix, because positive floats are ordered like their bits."""
        if self._radix is None:
            buckets = samples.view(np.int64) >> _RADIX_SHIFT
            self._radix = buckets, np.cumsum(np.bincount(buckets))
        buckets, upto = self._radix
        bucket = int(np.searchsorted(upto, rank, "right"))
        members = samples[buckets == bucket]
        position = rank - (int(upto[bucket - 1]) if bucket else 0)
        return float(np.partition(members, position)[position])

    @property
    def mean(self) -> float:
        """Mean time in seconds; inf if some requests are never answered."""
        return math.inf if self.survival[-1] > _TIE else float(self.mean_within(self.times[-1]))

    def mean_within(self, limit: float | Floats) -> Floats:
        """Return E[min(T, limit)] in seconds for one limit or an array of them: the area below the survival curve."""
        if self._upto is None or self._steps is None or self._area is None:
            self._upto = np.concatenate(([0.0], self.times))
            self._steps = np.concatenate(([1.0], self.survival))
            self._area = np.concatenate(([0.0], np.cumsum(np.diff(self._upto) * self._steps[:-1])))
        limits = np.maximum(np.asarray(limit, dtype=np.float64), 0.0)
        if self._steps[-1] <= 0:  # there is no area beyond the last step; avoids infinity times zero
            limits = np.minimum(limits, self._upto[-1])
        index = np.searchsorted(self._upto, limits, "right") - 1
        area: Floats = self._area[index] + self._steps[index] * (limits - self._upto[index])
        return area

    def compress(self, points: int = 256) -> TTFTDistribution:
        """Return an approximation with at most ``points`` steps: neighbours are merged at their mean time, which keeps the mean."""
        if self.times.size <= points:
            return self
        ends = np.unique(np.linspace(0, self.times.size, points + 1).round().astype(np.int64))[1:]
        starts = np.concatenate(([0], ends[:-1]))
        mass = -np.diff(np.concatenate(([1.0], self.survival))) + 1e-300  # a step of height 0 still has a time
        times = np.add.reduceat(mass * self.times, starts) / np.add.reduceat(mass, starts)
        return TTFTDistribution(np.maximum.accumulate(times), self.survival[ends - 1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TTFTDistribution):
            return NotImplemented
        return np.array_equal(self.times, other.times) and np.array_equal(self.survival, other.survival)

    __hash__ = None  # type: ignore[assignment]  # arrays can change

    def __repr__(self) -> str:
        return f"TTFTDistribution({self.times.size} steps, median {self.quantile(0.5):.3g} s, p99 {self.quantile(0.99):.3g} s)"


class LengthDistribution:
    """A distribution of prompt lengths.

    Args:
        lengths: different lengths in tokens, ascending, each at least 1.
        counts: number of prompts of each length, or any other weight above zero.

    Raises:
        ConfigError: the values don't form such a table.
    """

    __slots__ = ("counts", "lengths")

    def __init__(self, lengths: Iterable[int], counts: Iterable[float]) -> None:
        self.lengths: Integers = np.array(lengths if isinstance(lengths, np.ndarray) else list(lengths), dtype=np.int64)
        self.counts: Floats = np.array(counts if isinstance(counts, np.ndarray) else list(counts), dtype=np.float64)
        if self.lengths.ndim != 1 or not self.lengths.size or self.lengths[0] < 1 or (np.diff(self.lengths) < 1).any():
            raise ConfigError(f"prompt lengths: expected ascending whole numbers >= 1, got {_shown(self.lengths)}")
        if self.counts.shape != self.lengths.shape or not (np.isfinite(self.counts).all() and (self.counts > 0).all()):
            raise ConfigError(f"prompt length counts: expected {self.lengths.size} finite numbers > 0, got {_shown(self.counts)}")

    @classmethod
    def from_samples(cls, samples: Sequence[int] | Integers) -> LengthDistribution:
        """Return the distribution of sampled prompt lengths (tokens).

        Raises:
            ConfigError: there are no samples, or one is below 1.
        """
        values = np.asarray(samples, dtype=np.int64)
        if values.ndim != 1 or not values.size or int(values.min()) < 1:
            raise ConfigError(f"prompt lengths: expected one or more whole numbers >= 1, got {_shown(values)}")
        if int(values.max()) > 1 << 20:  # a table of a million counts takes longer than sorting
            lengths, counts = np.unique(values, return_counts=True)
        else:
            table = np.bincount(values)
            lengths = np.flatnonzero(table)
            counts = table[lengths]
        made = cls.__new__(cls)
        made.lengths, made.counts = lengths.astype(np.int64), counts.astype(np.float64)
        return made

    @property
    def probabilities(self) -> Floats:
        """Probability of each of ``lengths``: p(l)."""
        shares: Floats = self.counts / self.counts.sum()
        return shares

    @property
    def token_shares(self) -> Floats:
        """Share of all prompt tokens in the prompts of each length: p(l) l / E[l]."""
        tokens = self.counts * self.lengths
        shares: Floats = tokens / tokens.sum()
        return shares

    @property
    def mean(self) -> float:
        """Mean length in tokens: E[l]."""
        return float((self.counts * self.lengths).sum() / self.counts.sum())

    def group(self, groups: int) -> LengthDistribution:
        """Return an approximation with at most ``groups`` lengths: neighbours are replaced with the longest of them."""
        if self.lengths.size <= groups:
            return self
        ends = np.unique(np.linspace(0, self.lengths.size, groups + 1).round().astype(np.int64))
        return LengthDistribution(self.lengths[ends[1:] - 1], np.add.reduceat(self.counts, ends[:-1]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LengthDistribution):
            return NotImplemented
        return np.array_equal(self.lengths, other.lengths) and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]  # arrays can change

    def __repr__(self) -> str:
        return f"LengthDistribution({self.lengths.size} lengths, mean {self.mean:.1f} tokens, longest {self.lengths[-1]})"


class RemainingLength(Struct, frozen=True, dict=True):
    """A survival curve of answer lengths, which predicts how many more tokens an answer will have.

    Beyond the last step the curve continues as a Pareto tail of index 2, even if it ends at zero. An answer that is longer than all others
    is expected to become twice as long, so the expectation is always finite.

    Args:
        lengths: different lengths in tokens at which the curve falls, ascending, at least one.
        survival: for each length, the probability that an answer is longer; non-increasing, within 0..1, zero only at the end.

    Raises:
        ConfigError: the values don't form such a curve.
    """

    lengths: tuple[int, ...]
    survival: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths, survival = self.lengths, self.survival
        if not lengths or not (lengths[0] >= 0 and math.isfinite(lengths[-1]) and all(map(operator.lt, lengths, lengths[1:]))):
            raise ConfigError(f"answer lengths: expected one or more ascending whole numbers >= 0, got {_shown(np.array(lengths))}")
        falls = len(survival) == len(lengths) and all(map(operator.ge, survival, survival[1:]))
        if not (falls and survival[0] <= 1 and survival[-1] >= 0 and all(share > 0 for share in survival[:-1])):
            got = _shown(np.array(survival))
            raise ConfigError(f"answer lengths: expected {len(lengths)} probabilities that never rise, only the last one zero, got {got}")

    def expected(self, position: float, limit: float | None = None) -> float:
        """Return the expected number of tokens still to come, E[L - position | L > position]; takes a microsecond.

        Args:
            position: number of tokens in the answer so far.
            limit: maximum length of the answer (``max_tokens``); if given, the result is E[min(L, limit) - position | L > position].
        """
        if limit is not None and limit <= position:
            return 0.0
        if position >= self.lengths[-1]:
            return position if limit is None else position * (1.0 - position / limit)
        at = bisect_right(self.lengths, position)
        left = self._beyond(position) - (0.0 if limit is None else self._beyond(limit))
        return max(0.0, left / (self.survival[at - 1] if at else 1.0))

    def compress(self, points: int = 256) -> RemainingLength:
        """Return an approximation with at most ``points`` steps. Each has the curve's average height there, so the mean stays the same."""
        if len(self.lengths) <= points:
            return self
        kept = np.unique(np.linspace(0, len(self.lengths) - 1, points).round().astype(np.int64))
        lengths, areas = np.array(self.lengths)[kept], np.array(self._areas)[kept]
        survival = np.append(-np.diff(areas) / np.diff(lengths), self.survival[-1])
        return RemainingLength(tuple(lengths.tolist()), tuple(np.minimum.accumulate(np.minimum(survival, 1.0)).tolist()))

    @cached_property
    def _areas(self) -> tuple[float, ...]:
        """For each of ``lengths``, the area below the curve from there on."""
        steps = map(operator.mul, map(operator.sub, self.lengths[1:], self.lengths), self.survival)
        tail = self.survival[-1] * self.lengths[-1]
        return tuple(accumulate((*steps, tail)[::-1]))[::-1]

    def _beyond(self, position: float) -> float:
        """Return the area below the curve beyond ``position``."""
        last = self.lengths[-1]
        if position >= last:
            return self.survival[-1] * last * last / position if position else 0.0
        at = bisect_right(self.lengths, position)
        return self._areas[at] + (self.lengths[at] - position) * (self.survival[at - 1] if at else 1.0)


def _check_curve(times: Floats, survival: Floats) -> None:
    if times.ndim != 1 or not times.size or not (np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) >= 0).all()):
        raise ConfigError(f"time to first token: expected one or more ascending times >= 0 s, got {_shown(times)}")
    falls = survival.shape == times.shape and bool((np.diff(survival) <= 0).all())
    if not (falls and survival[-1] >= 0 and survival[0] <= 1):
        raise ConfigError(f"time to first token: expected {times.size} probabilities that never rise, got {_shown(survival)}")


def _shown(values: NDArray[Any]) -> str:
    head = ", ".join(f"{value:g}" for value in values.ravel()[:5])
    return f"[{head}{', ...' if values.size > 5 else ''}]"
