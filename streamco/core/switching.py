"""How soon each endpoint goes on with an answer and how fast it writes, learned from what it has done (t_m of DiSCo equation 6).

A change of endpoints must be covered nearly always, not on average, so times are learned with what seldom exceeds them: for a device the
line of its times (``DeviceFit``) scaled by the worst ratio in the window, for a server, whose time hardly depends on length (DiSCo
section 3), the 99th percentile of the product-limit estimate, races it lost included as censored. Few samples say little about a tail, so
they are scaled up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from streamco.core.estimators import DeviceFit, ProductLimit, is_burst
from streamco.core.legs import Leg, LegState
from streamco.policies.migration import UNKNOWN_SERVER_SETUP

__all__ = ["Pace", "SwitchLearner"]

_WINDOW = 128
_TAIL = 0.99
_INEXPERIENCE = 3.0  # samples: n of them are scaled by 1 + 3 / n
_LEAST_SETUP = 0.05  # seconds; a line through few points may say zero


class Pace:
    """One endpoint's times.

    Args:
        grows: they grow with what is to be read, as a device's do.
    """

    def __init__(self, *, grows: bool) -> None:
        self._grows = grows
        self._fit = DeviceFit(_WINDOW)
        self._ratios: deque[tuple[int, float]] = deque(maxlen=_WINDOW)
        self._times = ProductLimit(_WINDOW, 0.0)
        self._rates: deque[float] = deque(maxlen=_WINDOW)

    def observe_start(self, tokens: int, seconds: float, *, is_censored: bool = False) -> None:
        """It read ``tokens`` and had its first token after ``seconds``; censored: it had not when it was stopped."""
        if not self._grows:
            self._times.observe(seconds, is_censored=is_censored)
        elif not is_censored and tokens > 0:
            self._fit.observe(tokens, seconds)
            self._ratios.append((tokens, seconds))

    def observe_rate(self, tokens_per_second: float) -> None:
        """It wrote so fast."""
        self._rates.append(tokens_per_second)

    @property
    def rate(self) -> float | None:
        """Tokens per second it reached three times in four; None: not known."""
        return sorted(self._rates)[len(self._rates) // 4] if self._rates else None

    @property
    def start(self) -> tuple[float, float] | None:
        """Seconds to the first token and seconds more a token to be read, seldom exceeded; None: not known."""
        if not self._grows:
            estimate = self._times.estimate()
            if estimate is None:
                return UNKNOWN_SERVER_SETUP, 0.0
            return estimate.quantile(_TAIL) * (1.0 + _INEXPERIENCE / len(self._times)), 0.0
        speed = self._fit.estimate()
        if speed is None:
            return None
        worst = max(seconds / max(1e-6, speed.seconds_per_token * tokens + speed.overhead) for tokens, seconds in self._ratios)
        scale = max(1.0, worst) * (1.0 + _INEXPERIENCE / len(self._ratios))
        return max(_LEAST_SETUP, speed.overhead * scale), speed.seconds_per_token * scale


class SwitchLearner:
    """Every endpoint's pace, by name."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def pace(self, name: str, *, grows: bool) -> Pace:
        """What is known of an endpoint."""
        if name not in self._paces:
            self._paces[name] = Pace(grows=grows)
        return self._paces[name]

    def learn(self, legs: Iterable[Leg], devices: frozenset[str], prompt_tokens: int) -> None:
        """Take what the legs of an answer that is over have shown; ``devices``: names of the endpoints that are devices."""
        for leg in legs:
            if leg.opened is not None and leg.error is None:
                self._learn(leg, self.pace(leg.source, grows=leg.source in devices), prompt_tokens)

    def _learn(self, leg: Leg, pace: Pace, prompt_tokens: int) -> None:
        assert leg.opened is not None, "only legs that were opened show something"
        if leg.is_ahead:
            if leg.state is LegState.PREPARED and leg.stopped is not None:
                pace.observe_start(leg.reads, leg.stopped - leg.opened)
            return
        if leg.ttft is None:
            if leg.stopped is not None:
                pace.observe_start(0, leg.stopped - leg.opened, is_censored=True)
            return
        spread = 0.0 if leg.stopped is None or leg.first_token is None else leg.stopped - leg.first_token
        if leg.state is LegState.ENDED and is_burst(leg.tokens, leg.ttft, spread):
            return
        pace.observe_start(_read(leg, prompt_tokens), leg.ttft)
        if leg.rate is not None:
            pace.observe_rate(leg.rate)


def _read(leg: Leg, prompt_tokens: int) -> int:
    """Tokens a leg had to read before its first one: what its cache had is not among them."""
    details = leg.usage.prompt_tokens_details if leg.usage else None
    if leg.usage and details and details.cached_tokens is not None:
        return max(1, leg.usage.prompt_tokens - details.cached_tokens)
    if leg.takes_over_at is None:
        return prompt_tokens
    return max(1, leg.takes_over_at - leg.kept) if leg.kept is not None else prompt_tokens + leg.takes_over_at
