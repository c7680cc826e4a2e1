"""Budget control: keeps the constrained side's actual share of all prompt tokens within the budget b (DiSCo section 4.1).

A plan spends the budget on average over the distributions from which it was made. Later prompts and servers differ, and the paper has no
solution for that. So each start of the constrained side is also checked against the earlier starts:

- *first*: at any time, the constrained side may have processed a share of budget + 0.01 of all prompt tokens, plus one mean prompt. The
  additional prompt lets a client's first answer be raced, too.
- *total*: after 500 requests, it may have processed a share of budget + 0.01.
- *window*: of the tokens in any 500 consecutive requests, it may process a share of budget + 0.05.

A start now is part of windows that aren't complete yet, so the check adds the tokens that later requests will bring. For the total, it
adds one token for each request, which is certain. For the windows, one token would be certain too, but then a prompt of more than about
500 x budget tokens could never be started, because 499 prompts of one token might follow it. So by default the check uses a low estimate
from the last 500 prompts. For each request this is the higher of

- 4/5 of the mean length without the longest tenth
- the mean length less 2.5 standard errors of such a forecast, so that rare long prompts count if they keep coming

As soon as the last 16 prompts are shorter, only their mean counts. ``floor=1`` makes the window rule certain as well.

*Credit*: a start that is especially worthwhile may exceed each of these bounds by up to ``burst`` tokens, but by at most 32 mean prompts,
so that a crowd of short prompts doesn't use the server for long. Borrowed tokens are paid back automatically, because starts without
credit wait until the bounds hold again. So the debt never exceeds the burst, and under lasting load the budget holds.

Requests may overlap. A request that may start the constrained side gets a reservation, which counts as spent until it is settled. A
request's tokens raise the allowance only after it is settled. So the rules hold whatever happens to the requests in flight. Requests
are ordered by arrival. Requests that only one side could serve are exempt, and are reported separately.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections import deque
from collections.abc import Sequence

from streamco.config import check_share
from streamco.errors import ConfigError, UsageError
from streamco.policies.dispatch import Decision, Side, one_side

__all__ = ["BURST", "BudgetSteering", "Reservation", "check_burst", "steer"]

BURST = 4096
"""Number of prompt tokens that may be borrowed by default: about a dozen prompts of usual length, but at most 32 short ones."""

_MOST_BORROWED = 32  # mean prompts; usually fewer people ask one client at once
_TOTAL_SLACK = 0.01
_WINDOW_SLACK = 0.05
_MARGIN = 0.01  # share of the budget kept back while later traffic is only estimated
_TIE = 1e-6  # tokens; rounding in a sum of a million floats is less than this
_CAUTION = 0.8  # of the mean without the longest tenth
_ERRORS = 2.5  # standard errors of the forecast
_RECENT = 16  # prompts that show a change of traffic
_REFRESH = 32  # requests between two estimates


def check_burst(burst: int) -> None:
    """Check that a burst, the number of tokens that may be borrowed, is valid.

    Raises:
        ConfigError: the burst isn't a whole number of 0 or more.
    """
    if isinstance(burst, bool) or not isinstance(burst, int) or burst < 0:
        raise ConfigError(f"burst: expected a number of tokens of 0 or more, got {burst!r}")


class Reservation:
    """One request's reservation, which only the budget control changes.

    Args:
        tokens: number of the request's prompt tokens.
        is_allowed: True if the constrained side may be started for the request.
        is_borrowed: True if that start uses credit.
        position: the request's position in the order of arrival, without exempt requests.
    """

    __slots__ = ("is_allowed", "is_borrowed", "is_settled", "position", "tokens")

    def __init__(self, *, tokens: int, is_allowed: bool, position: int, is_borrowed: bool = False) -> None:
        self.tokens = tokens
        self.is_allowed = is_allowed
        self.is_borrowed = is_borrowed
        self.is_settled = False
        self.position = position


class BudgetSteering:
    """Counts the constrained side's tokens and decides whether it may be started again.

    Args:
        budget: b, share of prompt tokens that the constrained side may process, 0..1 (0 for never, 1 for always).
        burst: number of tokens that may be borrowed, 0 or more.
        window: length of a window in requests.
        floor: minimum number of tokens that each later request brings, 1 or more. None estimates it from the traffic.

    Attributes:
        requests, tokens: number of settled requests and number of their prompt tokens, without exempt requests.
        spent_tokens: number of those tokens that the constrained side processed.
        denied_requests: number of requests that should have started the constrained side but were not allowed to.
        exempt_requests, exempt_tokens, exempt_spent_tokens: the same numbers for exempt requests.

    Raises:
        ConfigError: the budget is outside 0..1, the burst below 0, or the window or floor below 1.
    """

    def __init__(self, budget: float, *, burst: int = 0, window: int = 500, floor: float | None = None) -> None:
        check_share("budget", budget)
        check_burst(burst)
        if window < 1 or (floor is not None and floor < 1):
            raise ConfigError(f"budget steering: expected window >= 1 and floor >= 1, got {window!r} and {floor!r}")
        self.budget = budget
        self.burst = burst
        self.window = window
        self.requests = self.tokens = self.spent_tokens = 0
        self.denied_requests = 0
        self.exempt_requests = self.exempt_tokens = self.exempt_spent_tokens = 0
        self._reserved = 0  # tokens
        self._pending: set[Reservation] = set()
        rate = budget + _WINDOW_SLACK - (_MARGIN if floor is None else 0.0)
        self._excess = _Excess(rate, window)
        self._traffic = _Traffic(rate, window, floor)

    @property
    def share(self) -> float:
        """The constrained side's actual share of all prompt tokens, 0..1, without exempt requests."""
        return self.spent_tokens / self.tokens if self.tokens else 0.0

    def allows(self, tokens: int, *, on_credit: bool = False) -> bool:
        """Return True if the constrained side may be started now for a prompt. This reserves nothing.

        Args:
            tokens: number of tokens in the prompt.
            on_credit: True to allow a debt of up to ``burst`` tokens, but no more than 32 prompts of mean length, or this prompt if it is
                longer.
        """
        if self.budget <= 0.0 or self.budget >= 1.0:
            return self.budget >= 1.0
        credit = min(self.burst, max(tokens, round(_MOST_BORROWED * self._traffic.recent_mean(tokens)))) if on_credit else 0
        spent = self.spent_tokens + self._reserved + tokens
        seen = self.tokens + tokens
        rate = self.budget + _TOTAL_SLACK
        at_least = seen + max(0, self.window - self.requests - 1)
        if rate < 1.0 and spent - credit > min(rate * at_least - _TIE, rate * seen + seen / (self.requests + 1)):
            return False
        return self._excess.allows(tokens, self._traffic, len(self._pending), credit=credit)

    def reserve(self, tokens: int, *, wanted: bool = True, on_credit: bool = False) -> Reservation:
        """Count a new request, and decide whether the constrained side may be started for it.

        Args:
            tokens: number of the request's prompt tokens. At least 1 is counted.
            wanted: True if the decision would start the constrained side.
            on_credit: True if the request is worth borrowing for.

        Returns:
            The reservation to pass to ``settle``, whatever happens to the request.
        """
        tokens = max(1, tokens)
        is_covered = wanted and self.allows(tokens)
        is_borrowed = wanted and not is_covered and on_credit and self.burst > 0 and self.allows(tokens, on_credit=True)
        is_allowed = is_covered or is_borrowed
        position = self._excess.append(tokens if is_allowed else 0)
        reservation = Reservation(tokens=tokens, is_allowed=is_allowed, position=position, is_borrowed=is_borrowed)
        self._traffic.record(tokens)
        self._pending.add(reservation)
        self._reserved += tokens if is_allowed else 0
        self.denied_requests += wanted and not is_allowed
        return reservation

    def settle(self, reservation: Reservation, *, started: bool, exempt: bool = False) -> None:
        """Record the outcome of a request.

        Args:
            reservation: the request's reservation, from ``reserve``.
            started: True if the constrained side was started.
            exempt: True if only one side could serve the request, because the other one failed or wasn't eligible.

        Raises:
            UsageError: the reservation has already been settled.
        """
        if reservation.is_settled:
            raise UsageError("reservation: already settled")
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
    """Prefix sums of spent - rate * tokens over requests in the order of arrival.

    The difference of two sums says by how much the requests between them exceed the window rule's rate, so one list covers every window.
    """

    def __init__(self, rate: float, window: int) -> None:
        self._rate = rate
        self._window = window
        self._sums = [0.0]  # the last is the sum of everything so far
        self._first = 0  # position of the first entry

    def allows(self, tokens: int, traffic: _Traffic, pending: int, *, credit: int) -> bool:
        """Return True if every window that includes a new request can still keep the rule.

        Args:
            tokens: number of the request's tokens, which are all spent if it is allowed.
            traffic: estimates the minimum number of tokens that later requests will bring.
            pending: number of requests that might still be removed, so that windows would reach back further.
            credit: number of tokens by which a window may exceed the rule.
        """
        if self._rate >= 1.0:
            return True
        least = self._sums[-1] + tokens - self._rate * tokens + _TIE - credit
        reach = min(len(self._sums), self._window + pending)
        ahead = min(reach, self._window)  # windows that continue after this request, by 0 to ``ahead - 1`` fewer than the longest
        over = self._sums[len(self._sums) - reach : len(self._sums) - ahead]
        if over and min(over) < least:
            return False
        to_come = traffic.allowance(tokens, self._window - ahead)
        lowest: float = min(map(operator.add, self._sums[len(self._sums) - ahead :], to_come))
        return lowest >= least

    def append(self, reserved: int) -> int:
        """Add a request, and return its position."""
        if len(self._sums) == 4 * self._window + 64:
            self._forget()
        self._sums.append(self._sums[-1] + reserved)
        return self._first + len(self._sums) - 2

    def settle(self, position: int, tokens: int, further: int) -> None:
        """Count a request's tokens, and how many more it spent than it had reserved (``further``, negative if fewer)."""
        change = further - self._rate * tokens
        at = max(0, position - self._first + 1)
        self._sums[at:] = [each + change for each in self._sums[at:]]

    def remove(self, position: int, reserved: int) -> None:
        """Remove a request as if it had never come."""
        at = position - self._first
        if at < 0:
            self._first -= 1
            return
        self._sums[at + 1 :] = [each - reserved for each in self._sums[at + 2 :]]

    def _forget(self) -> None:
        """Drop all sums except those of the last two windows. Only differences matter, so the first sum kept becomes zero."""
        kept = self._sums[-(2 * self._window + 32) :]
        self._first += len(self._sums) - len(kept)
        self._sums = [each - kept[0] for each in kept]


class _Traffic:
    """A low estimate of the number of tokens that the next requests will bring."""

    def __init__(self, rate: float, window: int, floor: float | None) -> None:
        self._rate = rate
        self._window = window
        self._floor = floor
        self._lengths: deque[int] = deque(maxlen=window)
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._recent_sum = 0
        self._typical = floor or 1.0
        self._mean = self._error = 0.0  # of the lengths; known once there are ``_REFRESH`` lengths
        self._counted = 0  # number of lengths on which the forecast is based
        self._allowance: list[float] = []  # for the last counts up to the window
        self._stale = 0

    def record(self, tokens: int) -> None:
        """Record the prompt of a request."""
        if len(self._recent) == _RECENT:
            self._recent_sum -= self._recent[0]
        self._recent.append(tokens)
        self._recent_sum += tokens
        if self._floor is not None:
            return
        self._lengths.append(tokens)
        self._stale += 1
        if self._stale >= _REFRESH or len(self._lengths) < _REFRESH:
            self._refresh()

    def recent_mean(self, tokens: int) -> float:
        """Return the mean of the last 16 prompts, or ``tokens`` before the first one."""
        return self._recent_sum / len(self._recent) if self._recent else tokens

    def allowance(self, tokens: int, least: int) -> Sequence[float]:
        """Return the rate's share of the tokens that the next n requests will bring, for each n from ``least`` up to the window."""
        recent = (self._recent_sum + tokens) / (len(self._recent) + 1)
        if self._floor is None and recent < self._typical:
            each = self._rate * max(1.0, recent)
            return [count * each for count in range(least, self._window)]
        if len(self._allowance) < self._window - least:
            self._allowance = [self._rate * self._forecast(count) for count in range(least, self._window)]
        return self._allowance[len(self._allowance) - (self._window - least) :]

    def _forecast(self, count: int) -> float:
        if self._counted < _REFRESH:
            return count * self._typical
        spread = math.sqrt(count + count**2 / self._counted)  # of a later sum, and of the mean that predicts it
        return max(count * self._typical, self._mean * count - self._error * spread)

    def _refresh(self) -> None:
        self._stale = 0
        lengths = sorted(self._lengths)
        short = lengths[: len(lengths) - -(-len(lengths) // 10)]
        self._typical = max(1.0, _CAUTION * statistics.fmean(short)) if short else 1.0
        self._allowance = []
        self._counted = len(lengths)
        if len(lengths) >= _REFRESH:
            self._mean = mean = statistics.fmean(lengths)
            self._error = _ERRORS * math.sqrt(sum((length - mean) ** 2 for length in lengths) / len(lengths))


def steer(decision: Decision, constrained: Side, *, is_allowed: bool) -> Decision:
    """Remove the constrained side from a decision if its start isn't allowed. It stays the fallback in case the other side fails."""
    if is_allowed or decision.wait(constrained) is None:
        return decision
    return one_side(decision, "server" if constrained == "device" else "device", f"no room in the budget: {constrained} not started")
