"""Estimators of times and lengths over sliding windows of one user's requests.

A server's time to first token is *right-censored* whenever the device won and the server was cancelled: all that is known is that it
would have taken longer. If those samples were dropped, or counted as complete, the server would look faster than it is. So the
distribution is estimated by the product-limit method (Kaplan and Meier 1958). The method needs censoring that is independent of the time
itself. This is the case here: the device's time depends on the prompt's length, and the server's hardly does (DiSCo section 3).

A device's times lie on a line, with noise and outliers (such as when another program took the CPU, or the model was being loaded). The
line's slope is the median of the slopes between all pairs of samples (Theil 1950, Sen 1968). Even 29 % of outliers can't move it far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from streamco.core.quantiles import equally_likely
from streamco.lazy_numpy import np
from streamco.profiles import DeviceSpeed, LengthDistribution, TTFTDistribution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "DeviceFit",
    "LengthWindow",
    "ProductLimit",
    "RecentSpeed",
    "RecentTimes",
    "has_changed",
    "is_burst",
    "product_limit",
    "theil_sen",
]

_TAIL_STEPS = 8
_SPREAD = 1.5  # a line needs at least this ratio of longest to shortest prompt
_CHANGED, _CHANGE, _BEFORE = 4, 2.0, 8  # samples in a row that differ, each by this factor; samples before them
_OWN_EVENTS = 20  # after this many samples of our own, the times that a server reports no longer count
_BURST_TOKENS = 16  # fewer tokens may come in one network read
_BURST_SHARE = 0.02  # of the time before them; a server that really decodes takes a larger share for its answer


class ProductLimit:
    """Estimates the distribution of a server's time to first token from its latest samples, including censored ones.

    Up to the last uncensored sample the curve is the product-limit estimate. Nothing is known beyond it, so the remaining probability
    follows the prior's tail, scaled to meet the curve. Without a prior it follows a Pareto tail of index 2 from the longest time waited.
    Below the tail, the prior counts as a number of samples.

    Times that the server itself reports count as uncensored samples, until measured ones replace them: of ten reported times, one is
    dropped for every two measured ones.

    Args:
        window: number of samples kept.
        prior_weight: number of samples that the prior counts as.
    """

    def __init__(self, window: int = 1000, prior_weight: float = 20.0) -> None:
        self._seconds: deque[float] = deque(maxlen=window)
        self._is_censored: deque[bool] = deque(maxlen=window)
        self._prior_weight = prior_weight
        self._told: Sequence[float] = ()
        self.events = 0  # samples in the window that are not censored

    def __len__(self) -> int:
        return len(self._seconds)

    def observe(self, seconds: float, *, is_censored: bool = False) -> None:
        """Add a sample: the time to the first token or, if censored, a time after which it had still not arrived."""
        if len(self._seconds) == self._seconds.maxlen:
            self.events -= not self._is_censored[0]
        self._seconds.append(seconds)
        self._is_censored.append(is_censored)
        self.events += not is_censored

    def tell(self, seconds: Sequence[float]) -> None:
        """Use these times, which the server itself reports, instead of the times it reported before."""
        self._told = sorted(seconds)

    @property
    def told(self) -> Sequence[float]:
        """The reported times that still count, fewer and fewer as measured ones come in."""
        count = -(-len(self._told) * max(0, _OWN_EVENTS - self.events) // _OWN_EVENTS)
        return equally_likely(self._told, count)

    def estimate(self, prior: TTFTDistribution | None = None, *, with_told: bool = True) -> TTFTDistribution | None:
        """Return the current distribution, or ``prior`` (which may be None) if there is no uncensored sample.

        Times that the server has reported count only if ``with_told`` is True; measured times always count.
        """
        told = self.told if with_told else ()
        if not self.events and not told:
            return prior
        seconds, was_censored = np.array([*self._seconds, *told]), np.array([*self._is_censored, *(False for _ in told)])
        times, survival = product_limit(seconds, was_censored)
        times, survival = _add_tail(times, survival, float(seconds.max()), prior)
        if prior is None or not self._prior_weight:
            return TTFTDistribution(times, survival)
        return _blend(times, survival, seconds.size, prior, self._prior_weight)


def has_changed(samples: Sequence[float]) -> bool:
    """Return True if the last four samples differ from the earlier ones.

    They must be more than twice or less than half the earlier median, and beyond nine tenths of the earlier samples. If nothing has
    changed, at most one sample in 10,000 looks as if it had.
    """
    before, latest = sorted(samples[:-_CHANGED]), samples[-_CHANGED:]
    if len(before) < _BEFORE:
        return False
    tenth, middle = len(before) // 10, before[len(before) // 2]
    is_slower = min(latest) > max(before[-1 - tenth], _CHANGE * middle)
    return is_slower or max(latest) < min(before[tenth], middle / _CHANGE)


class RecentTimes:
    """Estimates a server's current time to first token from few samples, and after a change only from the most recent ones.

    Forecasts that are compared with each other use it. If there are no other samples, the times of answers that a proxy held back count
    too, because readers have to wait for those answers.

    Args:
        window: number of samples kept.
        prior_weight: number of samples that a prior counts as.
    """

    def __init__(self, window: int = 64, prior_weight: float = 20.0) -> None:
        self._samples: deque[tuple[float, bool]] = deque(maxlen=window)  # seconds, censored
        self._new: deque[tuple[float, bool]] = deque(maxlen=window)  # not looked at until an estimate is requested
        self._bursts: deque[float] = deque(maxlen=window)
        self._prior_weight = prior_weight
        self._has_changed = False

    def observe(self, seconds: float, *, is_censored: bool = False, is_burst: bool = False) -> None:
        """Add a sample; see ``ServerTTFT``."""
        if is_burst:
            self._bursts.append(seconds)
        else:
            self._new.append((seconds, is_censored))

    def _take(self, seconds: float, is_censored: bool) -> None:
        self._samples.append((seconds, is_censored))
        known = [each for each, is_open in self._samples if not is_open]
        if not is_censored and has_changed(known):
            self._samples = deque(((each, False) for each in known[-_CHANGED:]), maxlen=self._samples.maxlen)
            self._has_changed = True

    def estimate(self, prior: TTFTDistribution | None, told: Sequence[float]) -> TTFTDistribution | None:
        """Return the current distribution, or None if nothing is known.

        Args:
            prior: the distribution to begin with, used until the times have changed; may be None.
            told: times that the server has reported.
        """
        while self._new:
            self._take(*self._new.popleft())
        found = ProductLimit(self._samples.maxlen or 1, self._prior_weight)
        found.tell(told)
        for seconds, is_censored in self._samples:
            found.observe(seconds, is_censored=is_censored)
        known = found.estimate(None if self._has_changed else prior)
        return TTFTDistribution.from_samples(list(self._bursts)) if known is None and self._bursts else known


class RecentSpeed:
    """Estimates a device's current speed for the same forecasts as ``RecentTimes``, and after a change only from the latest samples.

    Args:
        window: number of samples kept.
    """

    def __init__(self, window: int = 64) -> None:
        self._samples: deque[tuple[int, float]] = deque(maxlen=window)  # tokens, seconds
        self._new: deque[tuple[int, float]] = deque(maxlen=window)  # not looked at until an estimate is requested
        self._has_changed = False

    def observe(self, tokens: int, seconds: float) -> None:
        """Add the time to first token of a prompt, of which ``tokens`` tokens had to be prefilled."""
        self._new.append((max(1, tokens), seconds))

    def _take(self, tokens: int, seconds: float) -> None:
        self._samples.append((tokens, seconds))
        line = self._fit(list(self._samples)[:-_CHANGED]).estimate()
        if line is None:
            return
        ratios = [each / max(1e-6, line.ttft(length)) for length, each in self._samples]
        if has_changed(ratios):
            self._samples = deque(list(self._samples)[-_CHANGED:], maxlen=self._samples.maxlen)
            self._has_changed = True

    def estimate(self, prior: DeviceSpeed | None) -> DeviceSpeed | None:
        """Return the current line, or None if nothing is known. After a change, only the decode rate of ``prior`` still counts."""
        while self._new:
            self._take(*self._new.popleft())
        found = self._fit(self._samples).estimate(None if self._has_changed else prior)
        rate = None if prior is None else prior.decode_tokens_per_s
        return found if found is None or not self._has_changed else replace(found, decode_tokens_per_s=rate)

    def _fit(self, samples: Iterable[tuple[int, float]]) -> DeviceFit:
        fit = DeviceFit(self._samples.maxlen or 1)
        for tokens, seconds in samples:
            fit.observe(tokens, seconds)
        return fit


class DeviceFit:
    """Fits a line, k l + c, to the device's latest times to first token.

    Fewer than ``min_samples`` samples, or samples of about one length, don't determine two numbers. Then the prior's line is scaled by the
    median ratio of measured to expected time. If there is no prior, the line goes through the origin.

    Args:
        window: number of samples kept; the time for a fit is quadratic in it (0.3 ms for 128).
        min_samples: how many samples a line needs without the prior.
    """

    def __init__(self, window: int = 128, min_samples: int = 8) -> None:
        self._tokens: deque[int] = deque(maxlen=window)
        self._seconds: deque[float] = deque(maxlen=window)
        self._min_samples = min_samples

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def is_spread(self) -> bool:
        """True if there are enough samples for a line without a prior, and their lengths differ enough."""
        return len(self._tokens) >= self._min_samples and max(self._tokens) >= _SPREAD * min(self._tokens)

    def observe(self, tokens: int, seconds: float) -> None:
        """Add the time to first token of a prompt, of which ``tokens`` tokens had to be prefilled (cached ones don't count)."""
        self._tokens.append(max(1, tokens))
        self._seconds.append(seconds)

    def estimate(self, prior: DeviceSpeed | None = None) -> DeviceSpeed | None:
        """Return the current line with the jitter of the samples around it, or ``prior`` (which may be None) if there are no samples."""
        if not self._tokens:
            return prior
        tokens, seconds = np.array(self._tokens, dtype=np.float64), np.array(self._seconds)
        slope, offset = self._line(tokens, seconds, prior)
        rate = None if prior is None else prior.decode_tokens_per_s
        return DeviceSpeed(
            seconds_per_token=slope, overhead=offset, decode_tokens_per_s=rate, jitter=_jitter(seconds, slope * tokens + offset)
        )

    def _line(self, tokens: Floats, seconds: Floats, prior: DeviceSpeed | None) -> tuple[float, float]:
        if not self.is_spread:
            if prior is None:
                return float(np.median(seconds / tokens)), 0.0
            expected = prior.seconds_per_token * tokens + prior.overhead
            if not (expected > 0).all():
                return float(np.median(seconds / tokens)), 0.0
            scale = float(np.median(seconds / expected))
            return prior.seconds_per_token * scale, prior.overhead * scale
        return theil_sen(tokens, seconds)


class LengthWindow:
    """The lengths of the latest prompts, in tokens."""

    def __init__(self, window: int = 2000) -> None:
        self._lengths: deque[int] = deque(maxlen=window)

    def __len__(self) -> int:
        return len(self._lengths)

    def observe(self, tokens: int) -> None:
        """Add the length of a prompt."""
        self._lengths.append(max(1, tokens))

    def estimate(self, prior: LengthDistribution | None = None, prior_weight: float = 20.0) -> LengthDistribution | None:
        """Return the current distribution, in which the prior counts as ``prior_weight`` prompts, or the prior if there are no prompts."""
        if not self._lengths:
            return prior
        seen = LengthDistribution.from_samples(np.array(self._lengths))
        if prior is None or not prior_weight:
            return seen
        lengths = np.concatenate((seen.lengths, prior.lengths))
        unique, index = np.unique(lengths, return_inverse=True)
        return LengthDistribution(unique, np.bincount(index, np.concatenate((seen.counts, prior.probabilities * prior_weight))))


def is_burst(tokens: int, ttft: float, spread: float) -> bool:
    """Return True if a proxy held an answer back and sent it in one piece, so that its times don't show the server's speed.

    Args:
        tokens: length of the answer.
        ttft: seconds to its first token.
        spread: seconds from its first to its last token.
    """
    return tokens >= _BURST_TOKENS and spread < _BURST_SHARE * ttft


def product_limit(values: Floats, was_censored: NDArray[np.bool_], weights: Floats | None = None) -> tuple[Floats, Floats]:
    """Compute the Kaplan-Meier estimate, and return the distinct uncensored values, ascending, with the survival after each.

    Args:
        values: one value for each sample.
        was_censored: True for each sample that would have had a larger value.
        weights: weight of each sample; None to weigh each as 1.
    """
    steps, index = np.unique(values, return_inverse=True)
    counts = np.ones(values.size) if weights is None else weights
    events = np.bincount(index, counts * ~was_censored).astype(np.float64)
    at_risk = np.bincount(index, counts).astype(np.float64)[::-1].cumsum()[::-1]  # a censored sample is at risk at its own value
    survival = np.cumprod(1.0 - events / at_risk)
    is_event = events > 0
    return steps[is_event], survival[is_event]


def _add_tail(times: Floats, survival: Floats, longest: float, prior: TTFTDistribution | None) -> tuple[Floats, Floats]:
    """Return the curve continued to zero beyond its last event; ``longest`` is the longest time waited."""
    left = float(survival[-1])
    if left <= 1e-12:
        return times, np.append(survival[:-1], 0.0)
    last = float(times[-1])
    if prior is not None and prior.survival_at(last) > 0 and prior.survival[-1] <= 1e-12:
        is_later = prior.times > last
        return np.append(times, prior.times[is_later]), np.append(survival, prior.survival[is_later] * (left / prior.survival_at(last)))
    steps = np.arange(_TAIL_STEPS)
    later = max(last, longest) / np.sqrt(1.0 - (steps + 0.5) / _TAIL_STEPS)
    return np.append(times, later), np.append(survival, left * (1.0 - (steps + 1) / _TAIL_STEPS))


def _blend(times: Floats, survival: Floats, samples: int, prior: TTFTDistribution, weight: float) -> TTFTDistribution:
    """Mix a curve that counts as ``samples`` samples with a prior that counts as ``weight`` samples."""
    merged = np.union1d(times, prior.times)

    def at(step_times: Floats, steps: Floats) -> Floats:
        found = np.searchsorted(step_times, merged, "right")
        return np.concatenate(([1.0], steps))[found]

    mixed = (samples * at(times, survival) + weight * at(prior.times, prior.survival)) / (samples + weight)
    return TTFTDistribution(merged, np.minimum.accumulate(np.clip(mixed, 0.0, 1.0)))


def theil_sen(tokens: Floats, seconds: Floats) -> tuple[float, float]:
    """Return the slope and the offset of a robust line, neither below zero. ``tokens`` must contain at least two different values."""
    first, second = np.triu_indices(tokens.size, 1)
    runs = tokens[second] - tokens[first]
    is_apart = runs != 0
    slope = float(np.median((seconds[second] - seconds[first])[is_apart] / runs[is_apart]))
    offset = float(np.median(seconds - slope * tokens))
    if slope < 0:
        return 0.0, float(np.median(seconds))
    if offset < 0:
        return float(np.median(seconds / tokens)), 0.0
    return slope, offset


def _jitter(seconds: Floats, expected: Floats) -> tuple[float, ...]:
    """Return nine equally likely ratios of measured to expected time, or only 1 for fewer than 20 samples."""
    if seconds.size < 20 or not (expected > 0).all():
        return (1.0,)
    ratios = np.quantile(seconds / expected, (np.arange(9) + 0.5) / 9)
    return tuple(float(ratio) for ratio in np.maximum(ratios, 1e-3))
