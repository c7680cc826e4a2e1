"""Learns from each endpoint's attempts how long it takes to continue an answer, and how fast it writes (t_m of DiSCo equation 6).

The buffer must cover a hand-over nearly always, not just on average. So the learned time is one that is seldom exceeded: a line over the
tokens to read, moved up until nearly all samples lie below it. A device's line is scaled by the worst ratio in the window. A server's time
hardly depends on length (DiSCo section 3), so its line is flat until many different lengths show otherwise. The line is raised by the 99th
percentile of the times above it. This percentile is a product-limit estimate, because races that the server lost are censored. Few samples
show little of the tail, so the result is scaled up if there are few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from streamco.core.race.attempt import Attempt, AttemptState
from streamco.core.race.estimators import DeviceFit, ProductLimit, is_burst, theil_sen
from streamco.lazy_numpy import np
from streamco.policies.migration import UNKNOWN_SERVER_SETUP

__all__ = ["EndpointTiming", "SwitchLearner"]

_WINDOW = 128
_TAIL = 0.99
_INEXPERIENCE = 3.0  # samples: n of them are scaled by 1 + 3 / n
_MIN_SETUP = 0.05  # seconds; a line through few points may give zero
_MIN_FOR_SLOPE = 16  # samples of a server
_MIN_SPREAD = 4.0  # ratio of the longest to the shortest
_SHARE_NEW = 16  # a line is fitted again when a sixteenth of its samples are new, because a fit takes up to a millisecond


class EndpointTiming:
    """Learns one endpoint's time to first token and its rate. The switch learner owns it.

    Args:
        is_device: True if its times are proportional to the number of tokens to be read.
    """

    def __init__(self, *, is_device: bool) -> None:
        self._is_device = is_device
        self._samples: deque[tuple[int, float, bool]] = deque(maxlen=_WINDOW)  # tokens, seconds, censored
        self._rates: deque[float] = deque(maxlen=_WINDOW)
        self._line: tuple[float, float] | None = None
        self._is_stale = False  # the line is fitted only when it is needed, which it never is with a single endpoint
        self._new = 0

    def observe_start(self, tokens: int, seconds: float, *, is_censored: bool = False) -> None:
        """Add a start that had to read ``tokens`` tokens. Its first token took ``seconds`` or, if ``is_censored``, longer."""
        if self._is_device and (is_censored or tokens < 1):
            return
        self._samples.append((tokens, seconds, is_censored))
        self._new += 1
        self._is_stale = self._is_stale or self._line is None or self._new * _SHARE_NEW >= len(self._samples)

    def observe_rate(self, tokens_per_second: float) -> None:
        """Add the rate of one attempt."""
        self._rates.append(tokens_per_second)

    @property
    def rate(self) -> float | None:
        """The rate in tokens per second that three quarters of the attempts reached; None if not known."""
        return sorted(self._rates)[len(self._rates) // 4] if self._rates else None

    @property
    def start(self) -> tuple[float, float] | None:
        """Seconds to the first token, and the seconds to add for each token to be read. They are seldom exceeded. None if not known."""
        if self._is_stale:
            self._is_stale, self._new = False, 0
            self._line = self._device_line() if self._is_device else self._server_line()
        return (UNKNOWN_SERVER_SETUP, 0.0) if self._line is None and not self._is_device else self._line

    def _device_line(self) -> tuple[float, float]:
        fit = DeviceFit(_WINDOW)
        for tokens, seconds, _ in self._samples:
            fit.observe(tokens, seconds)
        speed = fit.estimate()
        assert speed is not None, "it has samples"
        worst = max(seconds / max(1e-6, speed.seconds_per_token * tokens + speed.overhead) for tokens, seconds, _ in self._samples)
        scale = max(1.0, worst) * self._caution
        return max(_MIN_SETUP, speed.overhead * scale), speed.seconds_per_token * scale

    def _server_line(self) -> tuple[float, float] | None:
        slope = self._server_slope()
        rests = ProductLimit(_WINDOW, 0.0)
        for tokens, seconds, is_censored in self._samples:
            rests.observe(max(0.0, seconds - slope * tokens), is_censored=is_censored)
        rest = rests.estimate()
        return None if rest is None else (rest.quantile(_TAIL) * self._caution, slope * self._caution)

    def _server_slope(self) -> float:
        seen = [(tokens, seconds) for tokens, seconds, is_censored in self._samples if not is_censored]
        lengths = [tokens for tokens, _ in seen]
        if len(seen) < _MIN_FOR_SLOPE or max(lengths) < _MIN_SPREAD * max(1, min(lengths)):
            return 0.0
        tokens, seconds = np.array(seen, dtype=np.float64).T
        return theil_sen(tokens, seconds)[0]

    @property
    def _caution(self) -> float:
        return 1.0 + _INEXPERIENCE / len(self._samples)


class SwitchLearner:
    """Keeps the timing of every endpoint by name. The client's migration planner owns it."""

    def __init__(self) -> None:
        self._timings: dict[str, EndpointTiming] = {}

    def timing(self, name: str, *, is_device: bool) -> EndpointTiming:
        """Return the timing of an endpoint, creating it if the name is new."""
        if name not in self._timings:
            self._timings[name] = EndpointTiming(is_device=is_device)
        return self._timings[name]

    def record(self, attempts: Iterable[Attempt], devices: frozenset[str], prompt_tokens: int) -> None:
        """Record the attempts of an answer that is over. ``devices`` are the names of the endpoints that are devices."""
        for attempt in attempts:
            if attempt.opened is not None and attempt.error is None:
                self._record(attempt, self.timing(attempt.source, is_device=attempt.source in devices), prompt_tokens)

    def _record(self, attempt: Attempt, timing: EndpointTiming, prompt_tokens: int) -> None:
        assert attempt.opened is not None, "only attempts that were opened have times"
        if attempt.read_ahead is not None:
            if attempt.state is AttemptState.PREPARED and attempt.stopped is not None:
                timing.observe_start(attempt.read_ahead.unread, attempt.stopped - attempt.opened)
            return
        if attempt.ttft is None:
            if attempt.stopped is not None:
                timing.observe_start(_read(attempt, prompt_tokens), attempt.stopped - attempt.opened, is_censored=True)
            return
        spread = 0.0 if attempt.stopped is None or attempt.first_token is None else attempt.stopped - attempt.first_token
        if attempt.state is AttemptState.ENDED and is_burst(attempt.tokens, attempt.ttft, spread):
            return
        timing.observe_start(_read(attempt, prompt_tokens), attempt.ttft)
        if attempt.rate is not None:
            timing.observe_rate(attempt.rate)


def _read(attempt: Attempt, prompt_tokens: int) -> int:
    """Return how many tokens an attempt had to read before its first token, without cached ones."""
    details = attempt.usage.prompt_tokens_details if attempt.usage else None
    if attempt.usage and attempt.usage.prompt_tokens and details and details.cached_tokens is not None:
        return max(1, attempt.usage.prompt_tokens - details.cached_tokens)
    if attempt.takeover_position is None or attempt.is_restart:
        return prompt_tokens
    return max(1, attempt.takeover_position - attempt.kept) if attempt.kept is not None else prompt_tokens + attempt.takeover_position
