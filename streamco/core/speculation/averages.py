"""Estimators of single figures: averages that forget, so that they follow a changing device, link or server.

Each takes its data through ``record`` and can be asked at any time. The units are seconds and tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamco.profiles.row_costs import RowCosts

__all__ = ["DecayedRatio", "Ewma", "HitRate", "RemoteStepTime", "RoundTrip", "DraftStepTimes"]

DECAY = 0.98  # the weight of a draft token or a round after the next one
WEIGHT = 0.15  # of a new time
_MOST_LEFT_OUT = 16  # times taken during other work that are left out in a row; after that, other times don't seem to come
_MOST_LEFT_OUT_OF_STREAMS = 48  # the same for a stream's times, each of which is one token
_CLEARLY_LESS = 0.8  # of a known time: what takes less than this during other work has become faster
_ALONE = 0.7  # of a draft step's time during a stream that it may take without one: 17 ms against 23 to 26 where both share two cores
_UNKNOWN_REMOTE_STEP = 0.05  # seconds, until it is measured
_PACE_TOKENS = 32  # of a stream that count; a token that takes twice its time changes the mean by only 3 %
_PRIOR_TOKENS = 7  # as which a stream's prior counts
_SAMPLE = 15  # tokens of a stream after its first that are enough to measure its pace again; then earlier times weigh no more
_STALE_PER_TOKEN, _MAX_STALE = 64, 2048  # drafted tokens after which a pace is stale: per measured stream token; and at most


class DecayedRatio:
    """A mean in which older events count less: sum of values / number of events, both decayed by each new event.

    Args:
        decay: factor on the weight of earlier events for each new event, 0..1.
        prior: the value believed at first.
        prior_events: number of events that the prior counts for; they decay like others.

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
        """Return (total, events) with a prior that doesn't decay, for ratios that follow a model until they are measured."""
        return prior_events * prior + self.total, prior_events + self.events


class Ewma:
    """An exponentially weighted moving average.

    Args:
        value: the value believed at first.
        weight: weight of a new value, 0..1.
        first_weight: weight of the first one; None for the same as the others. With 1, the first value replaces what was believed.

    Attributes:
        value: the average.
        is_measured: a value was recorded.
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
    """Seconds of the draft model's step, by the number of sequences in its batch.

    A draft during a stream may take longer than others: where device and server share memory, both read their weights from it at the
    same time. Until a draft that will be verified has been timed, a time longer than the prior counts as the prior, or as 0.7 of itself
    if that is more. If that is too optimistic, only one round is wasted, while too pessimistic a forecast would stop the device drafting.

    Once such a draft has been timed, times during a stream count fully if they are clearly shorter. They also count after many in a row,
    because a device may have become faster or slower.

    Args:
        prior: seconds that a step on 1, 2, ... sequences takes, until they are measured.
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
        """Seconds of a step on 1, 2, ... sequences."""
        return self._times

    @property
    def is_measured(self) -> bool:
        """True once any step was measured."""
        return bool(self._measured)

    def record(self, sequences: int, tokens: int, seconds: float, *, is_beside_stream: bool = False) -> None:
        """Record that ``tokens`` steps on ``sequences`` took ``seconds``; impossible figures are ignored.

        The prior and the first times have equal weights; later ones are weighted as in a moving average.
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
                known = -1  # it takes the place of those
        self._measured[sequences] = known + 1
        self._times[sequences - 1] += max(WEIGHT, 1.0 / (known + 2)) * (seconds / tokens - self._times[sequences - 1])
        for position in range(len(self._times)):
            if position + 1 not in self._measured:
                self._times[position] = self._estimate(position + 1)

    def _estimate(self, sequences: int) -> float:
        """Return the time for a size that was never measured, estimated from the nearest measured sizes.

        Two measured sizes give a line. A single one scales the prior.
        """
        near = sorted(self._measured, key=lambda number: abs(number - sequences))[:2]
        known = self._times[near[0] - 1]
        if len(near) == 1:
            return known * self._prior[sequences - 1] / self._prior[near[0] - 1]
        slope = (self._times[near[1] - 1] - known) / (near[1] - near[0])
        return max(known / 2.0, known + slope * (sequences - near[0]))


class HitRate:
    """The share of rounds that begin with a pre-drafted branch, in proportion to the acceptance rate.

    Both rise and fall with the text: a real pair of models has 0.82 to 0.85 hits at an acceptance of 0.87 on code, and 0.54 to 0.58 at 0.57
    on prose. So if the acceptance rate changes while drafts are only compared with a stream, the expected hit rate changes, too.

    Args:
        prior: the share believed at first; None for the acceptance rate.
        acceptance: the acceptance rate that the prior goes with.
        prior_events: number of rounds that a prior counts for.
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
        """True once a round was recorded, or if a prior was given."""
        return self._hits.events > 0.0

    def at(self, acceptance: float) -> float:
        """Return the share that is expected at this acceptance rate, 0..1."""
        believed = max(0.0, self._prior_events - self._hits.events) * acceptance
        expected = self._acceptance.total + believed
        return min(1.0, acceptance * (self._hits.total + believed) / expected) if expected else 0.0


class RoundTrip:
    """Seconds from sending a draft to its verdict, and the link's part of them.

    Args:
        prior_wait: the wait to assume until a verdict is measured, seconds.

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
        self._fixed = Ewma(0.0, first_weight=1.0)  # a wait without its computing

    def expect_costs(self, costs: RowCosts | None) -> None:
        """Set what the verifier's rounds cost by their number of rows, as it reported, or None if it didn't report it."""
        self._costs = costs

    def expect_rtt(self, seconds: float) -> None:
        """Set the link's round trip in seconds. It is used only until the first verdict is measured."""
        self._expected_rtt = seconds

    def record(
        self, seconds: float, *, queue_depth: float, server_seconds: float, computed: tuple[int, float] | None = None, read: int = 0
    ) -> None:
        """Record that a verdict took ``seconds``, of which ``server_seconds`` at the server.

        Args:
            seconds, server_seconds: the two times.
            queue_depth: utilisation of the verifier's queue, 0..1.
            computed: rows of the round, and the seconds of its batch; None if not known.
            read: tokens that the batch read besides those rows. Their time isn't in the list, so it counts as queueing.
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
        """Record that no verdict came within ``seconds``. That is how long a wait takes, whatever the verifier reports about row costs."""
        self.record(seconds, queue_depth=self.queue_depth, server_seconds=0.0)
        if self._costs is not None:
            self._fixed.record(seconds)

    @property
    def prices(self) -> tuple[float, RowCosts] | None:
        """The seconds of a wait that don't depend on the round (link and queue), and its costs by number of rows; None if not known.

        The costs follow the measured ones: a verifier under load takes longer than it reported.
        """
        costs, fixed = self._costs, self._fixed_wait
        return None if costs is None or fixed is None else (fixed, costs.scaled(self._scale.value))

    @property
    def _fixed_wait(self) -> float | None:
        """Seconds of a wait that don't depend on the round; before the first verdict the link's round trip. None if unknown."""
        return self._fixed.value if self._fixed.is_measured else self._expected_rtt

    def wait(self, target_step: float, rows: int = 2) -> float:
        """Return the seconds from a draft to its verdict. Before the first verdict that is the round trip and one target step, if known.

        If the verifier's costs are known, it is the wait of a round with this many rows.
        """
        if self._costs is not None and (fixed := self._fixed_wait) is not None:
            return fixed + self._scale.value * self._costs.seconds(rows)
        return self._wait.value if self._wait.is_measured or self._expected_rtt is None else self._expected_rtt + target_step

    @property
    def rtt(self) -> float:
        """Mean round trip of the link, seconds. Before the first verdict it is the expected one, or 0 if not known."""
        return self._rtt.value if self._wait.is_measured else self._expected_rtt or 0.0


class _RecentPace:
    """Mean seconds for a token over the last ``_PACE_TOKENS`` tokens."""

    def __init__(self) -> None:
        self._times: deque[tuple[int, float]] = deque()  # tokens that came together, and the seconds that they took
        self._tokens = 0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Mean seconds for a token; there must be one."""
        return self._seconds / self._tokens

    def record(self, tokens: int, seconds: float) -> None:
        """Record that ``tokens`` took ``seconds``."""
        self._times.append((tokens, seconds))
        self._tokens += tokens
        self._seconds += seconds
        self.forget(_PACE_TOKENS)

    def forget(self, kept: int) -> None:
        """Forget all but the last ``kept`` tokens. A part of the tokens that came together may stay."""
        while self._tokens > kept:
            tokens, seconds = self._times.popleft()
            surplus = min(tokens, self._tokens - kept)
            if surplus < tokens:
                self._times.appendleft((tokens - surplus, seconds * (1.0 - surplus / tokens)))
            self._tokens -= surplus
            self._seconds -= seconds * surplus / tokens


class RemoteStepTime:
    """Seconds between two tokens of the remote stream, and whether they should be measured again.

    Where device and server share memory, a stream is slower while the device drafts. So times during a draft only count until others
    are known, and again after many without others.

    Args:
        prior: seconds; None if not known, and then it is measured before anything is drafted.

    Attributes:
        seconds: the mean of the last ones.
        is_known: it was measured or given.
        since_verdict: tokens that streams gave since a draft was last compared or verified.
    """

    def __init__(self, prior: float | None) -> None:
        self.since_verdict = 0
        self.seconds = _UNKNOWN_REMOTE_STEP if prior is None else prior
        self.is_known = prior is not None
        self._pace = _RecentPace()
        if prior is not None:
            self._pace.record(_PRIOR_TOKENS, _PRIOR_TOKENS * prior)
        self._is_beside_draft = prior is None  # no other time is known, or has come recently
        self._left_out = _RecentPace()  # times during a draft
        self._left_out_events = 0  # of those, since the last one that counted
        self._streamed = _MAX_STALE if self.is_known else 0  # measured tokens of streams
        self._sampled = 0  # of those, since the pace was last known well
        self._drafted = 0  # tokens that drafts gave since then

    def record(self, tokens: int, seconds: float, *, is_beside_draft: bool = False) -> None:
        """Record that ``tokens`` of a stream came in ``seconds``. ``is_beside_draft`` tells if the device drafted meanwhile."""
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
        """Record a time during a draft. After many it is assumed that there are no others."""
        self._left_out.record(tokens, seconds)
        self._left_out_events += 1
        if self._left_out_events > _MOST_LEFT_OUT_OF_STREAMS:
            self._is_beside_draft, self._pace = True, self._left_out
            self.seconds = self._pace.seconds
            self._left_out = _RecentPace()

    def record_drafted(self, tokens: int) -> None:
        """Record that drafts gave ``tokens``, during which the stream's pace can't be measured."""
        if self._drafted >= self._lifetime:  # other answers draft during the measurement
            return
        self._sampled = 0
        self._drafted += tokens
        if self._drafted >= self._lifetime:
            self._pace.forget(_SAMPLE)

    @property
    def is_stale(self) -> bool:
        """True if the pace should be measured again with some tokens of a stream, sooner if few tokens have been measured."""
        return self._drafted >= self._lifetime

    @property
    def _lifetime(self) -> int:
        """Drafted tokens after which the pace is stale."""
        return min(_STALE_PER_TOKEN * self._streamed, _MAX_STALE)
