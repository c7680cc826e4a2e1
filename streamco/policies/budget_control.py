"""The budget holds for what really happens, not only in the plan.

A plan spends the budget on average over the distributions it was made from. Tomorrow's prompts and tomorrow's server differ, so each start
of the constrained side is also checked against what was started before:

- *total*: from the 500th request on, the share of prompt tokens that the constrained side processed is at most budget + 0.01;
- *window*: of the tokens of any 500 consecutive requests, at most budget + 0.05.

A start now is part of windows that aren't complete yet, so the check adds the tokens that the requests still to come will bring. For the
total that is one token a request, which is certain; until the 500th request it leaves room for a small burst, about 500 budget tokens.
For the windows one token a request would be certain too, but then a prompt of more than some 500 budget tokens could never be started
(499 prompts of one token might follow it). So by default it is a low estimate from the last 500 prompts, the higher of

- 4/5 of their mean without the longest tenth, for each;
- their mean less 2.5 errors of such a forecast, which lets rare long prompts count where they keep coming;

and, as soon as the last 16 prompts show shorter traffic, only the mean of those. ``floor=1`` makes the window rule certain as well.

Requests may overlap. Whoever is allowed to start holds a reservation that counts as spent until it is settled, while a request's tokens
count for the budget only once it is settled: whatever the others turn out to be, the rules hold. Requests are ordered by arrival.
Requests that only one side could serve are left out of all this and reported apart.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from streamco.config import check_share
from streamco.errors import ConfigError, UsageError
from streamco.policies.dispatch import Decision, Side, one_side

__all__ = ["BudgetSteering", "Reservation", "steer"]

_TOTAL_SLACK = 0.01
_WINDOW_SLACK = 0.05
_MARGIN = 0.01  # kept back of it where the traffic to come is only estimated
_TIE = 1e-6  # tokens; sums of a million floats stray by less
_CAUTION = 0.8  # of the mean without the longest tenth
_ERRORS = 2.5  # standard errors of the forecast
_RECENT = 16  # prompts that show a change of traffic
_REFRESH = 32  # requests between two estimates


class Reservation:
    """One request's place in the count.

    Args:
        tokens: of its prompt.
        is_allowed: whether the constrained side may be started for it.
        place: in the order of arrival, exempt requests taken out.
    """

    __slots__ = ("is_allowed", "is_settled", "position", "tokens")

    def __init__(self, *, tokens: int, is_allowed: bool, position: int) -> None:
        self.tokens = tokens
        self.is_allowed = is_allowed
        self.is_settled = False
        self.position = position


class BudgetSteering:
    """Counts the constrained side's tokens and says who may still be started.

    Args:
        budget: share of prompt tokens the constrained side may process, 0..1. 0: never; 1: always.
        window: requests.
        floor: tokens that each request to come brings at least; None: estimated from the traffic.

    Attributes:
        requests, tokens: settled so far, exempt ones not counted.
        spent_tokens: of those, what the constrained side processed.
        denied_requests: wanted the constrained side and were not allowed it.
        exempt_requests, exempt_tokens, exempt_spent_tokens: the same of the exempt ones.

    Raises:
        ConfigError: a budget outside 0..1, a window or floor below 1.
    """

    def __init__(self, budget: float, *, window: int = 500, floor: float | None = None) -> None:
        check_share("budget", budget)
        if window < 1 or (floor is not None and floor < 1):
            raise ConfigError(f"budget steering: expected window >= 1 and floor >= 1, got {window!r} and {floor!r}")
        self.budget = budget
        self.window = window
        self.requests = self.tokens = self.spent_tokens = 0
        self.denied_requests = 0
        self.exempt_requests = self.exempt_tokens = self.exempt_spent_tokens = 0
        self._reserved = 0  # tokens
        self._pending: set[Reservation] = set()
        self._excess = _Excess(budget + _WINDOW_SLACK - (_MARGIN if floor is None else 0.0), window)
        self._traffic = _Traffic(window, floor)

    @property
    def share(self) -> float:
        """Realised share of the constrained side in all prompt tokens, 0..1; exempt requests left out."""
        return self.spent_tokens / self.tokens if self.tokens else 0.0

    def allows(self, tokens: int) -> bool:
        """Return True if the constrained side might be started now for a prompt of ``tokens``; reserves nothing."""
        if self.budget <= 0.0 or self.budget >= 1.0:
            return self.budget >= 1.0
        spent = self.spent_tokens + self._reserved + tokens
        at_least = self.tokens + tokens + max(0, self.window - self.requests - 1)
        if spent > (self.budget + _TOTAL_SLACK) * at_least - _TIE and self.budget + _TOTAL_SLACK < 1.0:
            return False
        return self._excess.has_room(tokens, self._traffic.to_come(tokens), len(self._pending))

    def reserve(self, tokens: int, *, wanted: bool = True) -> Reservation:
        """Count a request that begins, and find out whether the constrained side may be started for it.

        Args:
            tokens: of its prompt, at least 1 is counted.
            wanted: whether the decision would start the constrained side at all.

        Returns:
            What ``settle`` must be called with, whatever becomes of the request.
        """
        tokens = max(1, tokens)
        is_allowed = wanted and self.allows(tokens)
        reservation = Reservation(tokens=tokens, is_allowed=is_allowed, position=self._excess.append(tokens if is_allowed else 0))
        self._traffic.record(tokens)
        self._pending.add(reservation)
        self._reserved += tokens if is_allowed else 0
        self.denied_requests += wanted and not is_allowed
        return reservation

    def settle(self, reservation: Reservation, *, started: bool, exempt: bool = False) -> None:
        """Say what became of a request.

        Args:
            reservation: from ``reserve``.
            started: whether the constrained side was started.
            exempt: only one side could serve it (the other failed, or was not eligible).

        Raises:
            UsageError: it was settled before.
        """
        if reservation.is_settled:
            raise UsageError("reservation: expected to be settled once, got a second settlement")
        reservation.is_settled = True
        self._pending.discard(reservation)
        tokens = reservation.tokens
        held = tokens if reservation.is_allowed else 0
        spent = tokens if started else 0
        self._reserved -= held
        if exempt:
            self._excess.remove(reservation.position, held)
            for other in self._pending:
                other.position -= other.position > reservation.position
            self.exempt_requests += 1
            self.exempt_tokens += tokens
            self.exempt_spent_tokens += spent
        else:
            self._excess.settle(reservation.position, tokens, spent - held)
            self.requests += 1
            self.tokens += tokens
            self.spent_tokens += spent


class _Excess:
    """By how much the spending exceeds the window rule's rate, summed from the beginning up to each request.

    The sum between two requests is spent - rate * tokens of those between them, so one array answers for every window.
    """

    def __init__(self, rate: float, window: int) -> None:
        self._rate = rate
        self._window = window
        self._sums: NDArray[np.float64] = np.zeros(4 * window + 64)
        self._first = 0  # place of the first entry
        self._size = 1  # entries; the last is the sum of everything so far

    def has_room(self, tokens: int, to_come: NDArray[np.float64], pending: int) -> bool:
        """Return True if every window that a request now would be part of can still keep the rule.

        Args:
            tokens: of the request, spent if it may.
            to_come: [n]: tokens that n more requests bring at least; beyond the window's length not asked for.
            pending: requests that might still be taken out, so that windows reach back that much further.
        """
        if self._rate >= 1.0:
            return True
        reach = min(self._size, self._window + pending)
        sums = self._sums[self._size - reach : self._size]
        room = sums.copy()
        ahead = min(reach, self._window)  # windows that go on after this request, by 0 to ``ahead - 1`` fewer than the longest
        room[reach - ahead :] += self._rate * to_come[self._window - ahead : self._window]
        return float(room.min()) >= float(sums[-1]) + tokens - self._rate * tokens + _TIE

    def append(self, reserved: int) -> int:
        """Add a request; gives its place."""
        if self._size == self._sums.size:
            self._forget()
        self._sums[self._size] = self._sums[self._size - 1] + reserved
        self._size += 1
        return self._first + self._size - 2

    def settle(self, position: int, tokens: int, further: int) -> None:
        """Count a request's tokens, and ``further`` spent ones (below zero: fewer than reserved)."""
        self._sums[max(0, position - self._first + 1) : self._size] += further - self._rate * tokens

    def remove(self, position: int, reserved: int) -> None:
        """Take a request out as though it had never come."""
        at = position - self._first
        if at < 0:
            self._first -= 1
            return
        self._sums[at + 1 : self._size - 1] = self._sums[at + 2 : self._size] - reserved
        self._size -= 1

    def _forget(self) -> None:
        """Keep the last two windows; only differences matter, so the first sum kept becomes zero."""
        kept = 2 * self._window + 32
        dropped = self._size - kept
        self._sums[:kept] = self._sums[dropped : self._size] - self._sums[dropped]
        self._first += dropped
        self._size = kept


class _Traffic:
    """A low estimate of the tokens that the next requests bring."""

    def __init__(self, window: int, floor: float | None) -> None:
        self._counts = np.arange(window, dtype=np.float64)
        self._floor = floor
        self._lengths: deque[int] = deque(maxlen=window)
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._recent_sum = 0
        self._typical = 1.0
        self._estimate = self._counts * (floor or 1.0)
        self._stale = 0

    def record(self, tokens: int) -> None:
        """A request came."""
        if self._floor is not None:
            return
        self._lengths.append(tokens)
        if len(self._recent) == _RECENT:
            self._recent_sum -= self._recent[0]
        self._recent.append(tokens)
        self._recent_sum += tokens
        self._stale += 1
        if self._stale >= _REFRESH or len(self._lengths) < _REFRESH:
            self._refresh()

    def to_come(self, tokens: int) -> NDArray[np.float64]:
        """[n]: tokens that n more requests will bring after this one of ``tokens``."""
        recent = (self._recent_sum + tokens) / (len(self._recent) + 1)
        if self._floor is None and recent < self._typical:
            return self._counts * max(1.0, recent)
        return self._estimate

    def _refresh(self) -> None:
        self._stale = 0
        lengths = np.sort(np.array(self._lengths, dtype=np.float64))
        short = lengths[: lengths.size - -(-lengths.size // 10)]
        self._typical = max(1.0, _CAUTION * float(short.mean())) if short.size else 1.0
        self._estimate = self._counts * self._typical
        if lengths.size >= _REFRESH:
            spread = np.sqrt(self._counts + self._counts**2 / lengths.size)  # of a sum to come, and of the mean it is told from
            errors = _ERRORS * float(lengths.std()) * spread
            self._estimate = np.maximum(self._estimate, float(lengths.mean()) * self._counts - errors)


def steer(decision: Decision, constrained: Side, *, is_allowed: bool) -> Decision:
    """Return the decision without the constrained side where it isn't allowed; it then still stands in when the other fails."""
    if is_allowed or decision.wait(constrained) is None:
        return decision
    return one_side(decision, "server" if constrained == "device" else "device", f"budget spent: {constrained} not started")
