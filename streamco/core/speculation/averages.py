"""Averages that forget old values, so that they follow a changing device, link or server.

Each gets its data through ``record`` and can be read at any time. The units are seconds and tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamco.profiles.row_costs import RowCosts

__all__ = ["DecayedRatio", "Ewma", "HitRate", "RemoteStepTime", "RoundTrip", "DraftStepTimes"]

DECAY = 0.98  # the weight of a draft token or a round after the next one
WEIGHT = 0.15  # of a new time
_MOST_LEFT_OUT = 16  # times measured during other work that are left out in a row; after that, better times don't seem to come
_MOST_LEFT_OUT_OF_STREAMS = 48  # the same for a stream's times, each for one token
_CLEARLY_LESS = 0.8  # of a known time: a step that takes less than this during other work has become faster
_ALONE = 0.7  # of a draft step's time during a stream, which it may take without one: 17 ms against 23 to 26 when sharing two cores
_UNKNOWN_REMOTE_STEP = 0.05  # seconds, until it is measured
_PACE_TOKENS = 32  # how many of a stream's last tokens count; a token that takes twice its time changes the mean by only 3 %
_PRIOR_TOKENS = 7  # how many tokens a stream's prior counts as
_SAMPLE = 15  # tokens of a stream after its first that are enough to measure its pace again; then earlier times no longer count
_STALE_PER_TOKEN, _MAX_STALE = 64, 2048  # drafted tokens after which a pace is stale, per measured stream token and at most


class DecayedRatio:
    """A mean in which older events count less: sum of values / number of events, both decayed by each new event.

    Args:
        decay: factor by which each new event reduces the weight of earlier ones, 0..1.
        prior: the value to begin with.
        prior_events: number of events that the prior counts as; they decay like others.

    Attributes:
        total: decayed sum of the values.
        events: decayed number of events.
    """

    def __init__(self, decay: float, prior: float = 0.0, prior_events: float = 0.0) -> None:
        self._decay = decay
        self.total = prior_events * prior
        self.events = prior_events

    def record(self, value: float) -> None:
        """Record an event; True counts as 1."""
        self.events = self.events * self._decay + 1.0
        self.total = self.total * self._decay + value

    @property
    def value(self) -> float:
        """Mean of the values; there must be events or a prior."""
        return self.total / self.events

    def with_prior(self, prior: float, prior_events: float) -> tuple[float, float]:
        """Return (total, events) with a prior that doesn't decay. This suits ratios that follow a model until they are measured."""
        return prior_events * prior + self.total, prior_events + self.events


class Ewma:
    """An exponentially weighted moving average.

    Args:
        value: the value to begin with.
        weight: weight of a new value, 0..1.
        first_weight: weight of the first recorded value; None for the same weight as the others. With 1, it replaces the initial value.

    Attributes:
        value: the average.
        is_measured: True once a value has been recorded.
    """

    def __init__(self, value: float, weight: float = WEIGHT, *, first_weight: float | None = None) -> None:
        self.value = value
        self.is_measured = False
        self._weight = weight
        self._first_weight = weight if first_weight is None else first_weight

    def record(self, value: float) -> None:
        """Record a value."""
        weight = self._weight if self.is_measured else self._first_weight
        self.is_measured = True
        self.value += weight * (value - self.value)


class DraftStepTimes:
    """Estimates how many seconds a step of the draft model takes, by the number of sequences in its batch.

    A draft during a stream may take longer than others: if device and server share memory, both read their weights from it at the same
    time. So until a draft without a stream has been timed, a time longer than the prior counts as the prior, or as 0.7 of itself if that is
    more. If this is too optimistic, only one round is wasted, but if it were too pessimistic, the device would stop drafting.

    After that, times measured during a stream count only if they are clearly shorter than the known one, or if there are many in a row,
    because the device may have become faster or slower.

    Args:
        prior: how many seconds a step on 1, 2, ... sequences takes, until this is measured.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        self._prior = tuple(prior)
        self._times = list(prior)
        self._measured: dict[int, int] = {}  # number of measured drafts, by number of sequences
        self._beside_stream: set[int] = set()  # numbers of sequences that were only measured during a stream
        self._known_alone: set[int] = set()  # numbers of sequences that were ever measured without one
        self._left_out = 0  # times since the last one that counted

    @property
    def times(self) -> Sequence[float]:
        """How many seconds a step on 1, 2, ... sequences takes."""
        return self._times

    @property
    def is_measured(self) -> bool:
        """True once any step has been measured."""
        return bool(self._measured)

    def record(self, sequences: int, tokens: int, seconds: float, *, is_beside_stream: bool = False) -> None:
        """Record that ``tokens`` steps on ``sequences`` sequences took ``seconds``. Impossible figures are ignored.

        The prior and the first times have equal weights. Later times are weighted as in a moving average.
        """
        if not tokens or seconds <= 0.0 or not 1 <= sequences <= len(self._times):
            return
        known = self._measured.get(sequences, 0)
        is_left_out = is_beside_stream and sequences in self._measured and sequences not in self._beside_stream
        if is_left_out and seconds / tokens > _CLEARLY_LESS * self._times[sequences - 1]:
            self._left_out += 1
            if self._left_out <= _MOST_LEFT_OUT:
                return
        if is_beside_stream:
            if sequences not in self._known_alone:
                seconds = min(seconds, max(_ALONE * seconds, tokens * self._prior[sequences - 1]))
            self._beside_stream.add(sequences)
        else:
            self._left_out = 0
            self._known_alone.add(sequences)
            if sequences in self._beside_stream:
                self._beside_stream.remove(sequences)
                known = -1  # this time replaces the ones measured during a stream
        self._measured[sequences] = known + 1
        self._times[sequences - 1] += max(WEIGHT, 1.0 / (known + 2)) * (seconds / tokens - self._times[sequences - 1])
        for position in range(len(self._times)):
            if position + 1 not in self._measured:
                self._times[position] = self._estimate(position + 1)

    def _estimate(self, sequences: int) -> float:
        """Estimate the time for a number of sequences that was never measured, from the nearest numbers that were.

        Two measured numbers give a line. A single one scales the prior.
        """
        near = sorted(self._measured, key=lambda number: abs(number - sequences))[:2]
        known = self._times[near[0] - 1]
        if len(near) == 1:
            return known * self._prior[sequences - 1] / self._prior[near[0] - 1]
        slope = (self._times[near[1] - 1] - known) / (near[1] - near[0])
        return max(known / 2.0, known + slope * (sequences - near[0]))


class HitRate:
    """Estimates the share of rounds that begin with a pre-drafted branch, in proportion to the acceptance rate.

    Both depend on the text: a real pair of models had a hit rate of 0.82 to 0.85 at an acceptance of 0.87 on code, and 0.54 to 0.58 at an
    acceptance of 0.57 on prose. So if the acceptance rate changes while drafts are only compared with a stream, the expected hit rate
    changes, too.

    Args:
        prior: the share to begin with; None for the acceptance rate.
        acceptance: the acceptance rate to which the prior belongs.
        prior_events: number of rounds that a prior counts as.
    """

    def __init__(self, prior: float | None, acceptance: float, prior_events: float) -> None:
        events = prior_events if prior is not None and acceptance > 0.0 else 0.0  # at an acceptance of 0 no proportion is known
        self._prior_events = prior_events
        self._hits = DecayedRatio(DECAY, prior or 0.0, events)
        self._acceptance = DecayedRatio(DECAY, acceptance, events)

    def record(self, is_hit: bool, acceptance: float) -> None:
        """Record whether a round began with an adopted branch, and the acceptance rate that was expected for it."""
        self._hits.record(is_hit)
        self._acceptance.record(acceptance)

    @property
    def is_measured(self) -> bool:
        """True if a round has been recorded, or if a prior was given."""
        return self._hits.events > 0.0

    def at(self, acceptance: float) -> float:
        """Return the expected share of rounds at this acceptance rate, 0..1."""
        believed = max(0.0, self._prior_events - self._hits.events) * acceptance
        expected = self._acceptance.total + believed
        return min(1.0, acceptance * (self._hits.total + believed) / expected) if expected else 0.0


class RoundTrip:
    """Estimates the time from sending a draft to its verdict, and how much of it is spent on the link.

    Args:
        prior_wait: the wait to assume until a verdict is measured, in seconds.

    Attributes:
        queue_depth: utilisation of the verifier's queue at the last verdict, 0..1.
    """

    def __init__(self, prior_wait: float) -> None:
        self.queue_depth = 0.0
        self._wait = Ewma(prior_wait, first_weight=1.0)
        self._rtt = Ewma(0.0, first_weight=1.0)
        self._expected_rtt: float | None = None
        self._costs: RowCosts | None = None
        self._scale = Ewma(1.0, first_weight=1.0)  # measured / reported costs
        self._fixed = Ewma(0.0, first_weight=1.0)  # a wait without the time for computing

    def expect_costs(self, costs: RowCosts | None) -> None:
        """Set how long the verifier's rounds take by their number of rows, as it reported, or None if it didn't report that."""
        self._costs = costs

    def expect_rtt(self, seconds: float) -> None:
        """Set the link's round trip in seconds. It is used only until the first verdict is measured."""
        self._expected_rtt = seconds

    def record(
        self, seconds: float, *, queue_depth: float, server_seconds: float, computed: tuple[int, float] | None = None, read: int = 0
    ) -> None:
        """Record that a verdict took ``seconds``, of which ``server_seconds`` were spent at the server.

        Args:
            seconds, server_seconds: the two times.
            queue_depth: utilisation of the verifier's queue, 0..1.
            computed: number of rows in the round, and the seconds that its batch took; None if not known.
            read: how many other tokens the batch read. The row costs don't include their time, so it counts as queueing.
        """
        if self._costs is not None and computed is not None and computed[1] > 0.0:
            rows, spent = computed
            listed = self._costs.seconds(rows)
            if not read:
                self._scale.record(spent / listed)
            self._fixed.record(max(0.0, seconds - (min(spent, self._scale.value * listed) if read else spent)))
        self._wait.record(max(seconds, 1e-6))
        self._rtt.record(max(0.0, seconds - server_seconds))
        self.queue_depth = queue_depth

    def record_lost(self, seconds: float) -> None:
        """Record that no verdict arrived within ``seconds``. This counts as the wait, whatever the verifier reports about row costs."""
        self.record(seconds, queue_depth=self.queue_depth, server_seconds=0.0)
        if self._costs is not None:
            self._fixed.record(seconds)

    @property
    def prices(self) -> tuple[float, RowCosts] | None:
        """The fixed part of a wait in seconds (link and queue), and the time for computing by number of rows; None if not known.

        The reported times are scaled to match the measured ones, because a verifier under load takes longer than it reported.
        """
        costs, fixed = self._costs, self._fixed_wait
        return None if costs is None or fixed is None else (fixed, costs.scaled(self._scale.value))

    @property
    def _fixed_wait(self) -> float | None:
        """The fixed part of a wait in seconds. Before the first verdict, this is the link's round trip. None if not known."""
        return self._fixed.value if self._fixed.is_measured else self._expected_rtt

    def wait(self, target_step: float, rows: int = 2) -> float:
        """Return the seconds from sending a draft to its verdict. If the verifier's row costs are known, this is for ``rows`` rows.

        If not, the expected round trip and one target step are assumed until the first verdict, or the prior if no round trip is expected.
        """
        if self._costs is not None and (fixed := self._fixed_wait) is not None:
            return fixed + self._scale.value * self._costs.seconds(rows)
        return self._wait.value if self._wait.is_measured or self._expected_rtt is None else self._expected_rtt + target_step

    @property
    def rtt(self) -> float:
        """Mean round trip of the link in seconds. Before the first verdict, this is the expected one, or 0 if none is expected."""
        return self._rtt.value if self._wait.is_measured else self._expected_rtt or 0.0


class _RecentPace:
    """The mean time per token over the last ``_PACE_TOKENS`` tokens."""

    def __init__(self) -> None:
        self._times: deque[tuple[int, float]] = deque()  # tokens that arrived together, and the seconds that they took
        self._tokens = 0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Mean number of seconds per token. At least one token must have been recorded."""
        return self._seconds / self._tokens

    def record(self, tokens: int, seconds: float) -> None:
        """Record that ``tokens`` tokens took ``seconds``."""
        self._times.append((tokens, seconds))
        self._tokens += tokens
        self._seconds += seconds
        self.forget(_PACE_TOKENS)

    def forget(self, kept: int) -> None:
        """Forget all but the last ``kept`` tokens. This may cut through a group of tokens that arrived together."""
        while self._tokens > kept:
            tokens, seconds = self._times.popleft()
            surplus = min(tokens, self._tokens - kept)
            if surplus < tokens:
                self._times.appendleft((tokens - surplus, seconds * (1.0 - surplus / tokens)))
            self._tokens -= surplus
            self._seconds -= seconds * surplus / tokens


class RemoteStepTime:
    """Estimates the time between two tokens of the remote stream, and says when it should be measured again.

    If device and server share memory, a stream is slower while the device drafts. So times measured during a draft count only until
    better ones are known, and again after many in a row without a better one.

    Args:
        prior: the time to begin with, in seconds. If None, it is measured before anything is drafted.

    Attributes:
        seconds: mean of the latest times.
        is_known: True if the time was measured or given.
        since_verdict: how many tokens streams have produced since a draft was last compared or verified.
    """

    def __init__(self, prior: float | None) -> None:
        self.since_verdict = 0
        self.seconds = _UNKNOWN_REMOTE_STEP if prior is None else prior
        self.is_known = prior is not None
        self._pace = _RecentPace()
        if prior is not None:
            self._pace.record(_PRIOR_TOKENS, _PRIOR_TOKENS * prior)
        self._is_beside_draft = prior is None  # only times during a draft are known, or there were no others recently
        self._left_out = _RecentPace()  # times during a draft
        self._left_out_events = 0  # how many of them there were since the last time that counted
        self._streamed = _MAX_STALE if self.is_known else 0  # measured tokens of streams
        self._sampled = 0  # how many of them there were since the pace was last known well
        self._drafted = 0  # drafted tokens since then

    def record(self, tokens: int, seconds: float, *, is_beside_draft: bool = False) -> None:
        """Record that a stream produced ``tokens`` tokens in ``seconds``. ``is_beside_draft`` says whether the device drafted meanwhile."""
        if not tokens or seconds <= 0.0:
            return
        if is_beside_draft and not self._is_beside_draft:
            self._leave_out(tokens, seconds)
            return
        if not is_beside_draft:
            if self._is_beside_draft:
                self._is_beside_draft, self._pace = False, _RecentPace()
            self._left_out, self._left_out_events = _RecentPace(), 0
        self._pace.record(tokens, seconds)
        self.seconds, self.is_known = self._pace.seconds, True
        self._streamed += tokens
        self._sampled += tokens
        if self._sampled >= _SAMPLE:
            self._drafted = self._sampled = 0

    def _leave_out(self, tokens: int, seconds: float) -> None:
        """Record a time measured during a draft. After many of them in a row, they count, because better ones don't seem to come."""
        self._left_out.record(tokens, seconds)
        self._left_out_events += 1
        if self._left_out_events > _MOST_LEFT_OUT_OF_STREAMS:
            self._is_beside_draft, self._pace = True, self._left_out
            self.seconds = self._pace.seconds
            self._left_out = _RecentPace()

    def record_drafted(self, tokens: int) -> None:
        """Record that ``tokens`` tokens were drafted, so that the last measurement of the stream's pace is older."""
        if self._drafted >= self._lifetime:  # other answers draft during the measurement
            return
        self._sampled = 0
        self._drafted += tokens
        if self._drafted >= self._lifetime:
            self._pace.forget(_SAMPLE)

    @property
    def is_stale(self) -> bool:
        """True if so much has been drafted that the pace should be measured again. If few tokens were measured, this is sooner."""
        return self._drafted >= self._lifetime

    @property
    def _lifetime(self) -> int:
        """How many tokens may be drafted before the pace is stale."""
        return min(_STALE_PER_TOKEN * self._streamed, _MAX_STALE)
