"""Decides when an answer moves to a cheaper endpoint (DiSCo 4.3). Costs and the buffer are computed in ``policies.migration``.

::

    looking ──▶ reading ahead ⟲ ──▶ waiting for the buffer ──▶ switch
       ▲             │                       │
       └─────────────┴── the target failed, or migrating does not pay any more

The controller returns the next step, and the race machine takes it. The machine calls the controller whenever tokens have arrived from the
writing endpoint, or the target has reported something. No deadline is needed, because the buffer only grows when tokens arrive.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from streamco.core.race.attempt import Attempt, AttemptState
from streamco.policies.migration import (
    UNKNOWN_RATE,
    Terms,
    TransferRule,
    buffer_needed,
    keeps_up,
    net_saving,
    pre_copy_pays,
    tokens_until_buffered,
    tokens_until_covered,
)
from streamco.profiles import RemainingLength

__all__ = ["MigrationPlan", "MigrationController", "Prepare", "Release", "MigrationState", "Switch"]

_STEP = 8  # an answer that needn't migrate is considered again when it is an eighth longer
_MAX_ROUNDS = 8  # of reading in advance; the tokens that are unread after them are accepted as the rest
_CAUTION = 1.5  # factor on a time that was measured once
_MEASURED_SETUP = 0.15  # seconds, if only the time per token was measured
# The share of the expected tokens to count on: answers to prompts of one kind may be this much shorter than average, and then a migration
# that hardly pays costs money.
_COUNTED_ON = 2 / 3
_PATIENCE = 3.0  # reading in advance may take this many times its estimate before the source is stopped without it


class MigrationPlan(Struct, frozen=True, kw_only=True):
    """The inputs for deciding about an answer's migrations, known when the answer begins.

    Args:
        terms: costs and times by endpoint; an endpoint that is missing neither hands over nor takes over.
        lengths: distribution of answer lengths.
        prompt_tokens: length of the prompt, in tokens.
        reader_rate: how many tokens per second the reader reads (r_c).
        capacity: how many tokens the source may be ahead of the reader; a larger buffer never fills.
        rule: how the hand-over is made.
        max_migrations: maximum number of migrations of one answer.
        constrained: endpoints of the side that the budget limits. A migration never starts that side, so they take over only in answers
            for which one of them was opened anyway.
        max_tokens: maximum length of the answer in tokens; None if there is none.
        barred: (source, target) pairs between which no move may happen, because the target's model is not good enough. A source here is
            any endpoint that has written a part of the answer, not only the last one, so pairs that would save nothing are listed too.
    """

    terms: Mapping[str, Terms]
    lengths: RemainingLength
    prompt_tokens: int
    reader_rate: float
    capacity: int
    rule: TransferRule = "pre-copy"
    max_migrations: int = 1
    constrained: frozenset[str] = frozenset()
    max_tokens: int | None = None
    barred: frozenset[tuple[str, str]] = frozenset()


class MigrationState(Struct, frozen=True):
    """The state of an answer in progress, as the controller sees it.

    Args:
        source: the attempt that writes.
        attempts: all attempts, by endpoint.
        position: tokens generated so far.
        buffered: number of these tokens that the reader has not reached.
        now: the current time in seconds since the request.
    """

    source: Attempt
    attempts: Mapping[str, Attempt]
    position: int
    buffered: float
    now: float


class Prepare(Struct, frozen=True):
    """Make this endpoint read the prompt and the answer so far in advance."""

    target: str


class Release(Struct, frozen=True):
    """Cancel the lost attempt of this endpoint, because the endpoint is wanted as the target."""

    target: str


class Switch(Struct, frozen=True):
    """Stop the source and let this endpoint continue. If ``waits`` is True, it first finishes what it is reading in advance."""

    target: str
    waits: bool = False


class MigrationController:
    """Decides about the migrations of one answer. The answer's hand-over owns it.

    Args:
        plan: costs, times and limits, as known when the answer begins.
    """

    def __init__(self, plan: MigrationPlan) -> None:
        self._plan = plan
        self._terms = dict(plan.terms)
        self._target: str | None = None
        self._next_position = 1  # the answer is not considered before this position
        self._rounds = 0
        self._moves = 0
        self._writers: set[str] = set()
        self._reading: tuple[float, int] | None = None  # when reading in advance began, in seconds; tokens to be read

    @property
    def is_done(self) -> bool:
        """True if there will be no further migration."""
        return self._moves >= self._plan.max_migrations or len(self._terms) < 2

    def consider(self, state: MigrationState) -> Prepare | Release | Switch | None:
        """Return the step to take now, or None if there is nothing to do."""
        self._writers.add(state.source.source)
        if self.is_done or state.source.source not in self._terms:
            return None
        if self._target is None:
            if state.position < self._next_position:
                return None
            self._next_position = state.position + max(1, state.position // _STEP)
            self._target = self._choose(state)
            if self._target is None:
                return None
        return self._advance(state, state.attempts[self._target])

    def record_copied(self, target: str, *, kept: int, seconds: float, tokens: int) -> None:
        """Record that the target took ``seconds`` to read ``tokens`` tokens in advance, up to the ``kept``-th token of the answer."""
        terms = self._terms[target]
        if terms.setup is None and tokens and terms.pre_copy == "append":
            self._terms[target] = replace(terms, setup=_MEASURED_SETUP, per_token=_CAUTION * seconds / tokens)
        self._reading = None

    def record_migration(self) -> None:
        """Record a planned hand-over."""
        self._moves += 1
        self.reset()

    def record_failover(self, failed: str) -> None:
        """Record that an endpoint failed and was replaced after it had written a part of the answer."""
        self._writers.add(failed)
        self.reset()

    def reset(self) -> None:
        """Forget the target, because the writing endpoint has changed or migrating does not pay any more."""
        self._target, self._rounds, self._reading = None, 0, None

    def unread(self, target: Attempt, position: int) -> int:
        """Return how many tokens of the prompt and the answer a target has not read yet."""
        return position - target.kept if target.kept is not None else self._plan.prompt_tokens + position

    # Looking

    def _choose(self, state: MigrationState) -> str | None:
        """Return the target that saves the most, or None if none saves anything."""
        savings = {}
        for name in self._terms:
            attempt = state.attempts.get(name)
            if attempt is None or attempt is state.source or not attempt.can_take_over or not self._may_start(state, name):
                continue
            saving = self._saving(state, attempt)
            if saving > 0:
                savings[name] = saving
        return max(savings, key=lambda name: savings[name], default=None)

    def _may_start(self, state: MigrationState, name: str) -> bool:
        """Return True if the target's model is good enough, and the budget lets it take over."""
        if any((writer, name) in self._plan.barred for writer in self._writers):
            return False
        constrained = self._plan.constrained
        return name not in constrained or any(
            attempt.opened is not None for attempt in state.attempts.values() if attempt.source in constrained
        )

    def _saving(self, state: MigrationState, target: Attempt) -> float:
        """Return how many US dollars a migration to this target saves. If it saves nothing, the result is 0 or less."""
        plan, terms = self._plan, self._terms[target.source]
        if not keeps_up(terms, plan.reader_rate):
            return 0.0
        source_tokens = self._tokens_until_covered(state, target)
        if source_tokens is None:
            return 0.0
        length = plan.prompt_tokens + state.position
        source = self._terms[state.source.source]
        return net_saving(
            source,
            terms,
            remaining=_COUNTED_ON * plan.lengths.expected(state.position, plan.max_tokens),
            until_change=source_tokens,
            length=length,
            kept=length - self.unread(target, state.position),
            overrun=source.stops * self._source_rate(state),
        )

    def _tokens_until_covered(self, state: MigrationState, target: Attempt) -> float | None:
        """Return how many tokens the source generates before the buffer covers the hand-over, or None if the target's time is not known."""
        plan, terms = self._plan, self._terms[target.source]
        source_rate, reader_rate, buffered = self._source_rate(state), plan.reader_rate, state.buffered
        seconds = terms.seconds_to_first_token(self.unread(target, state.position))
        is_reading_ahead = plan.rule == "pre-copy" and terms.pre_copy == "append"
        if seconds is None:
            missing = buffer_needed(_MEASURED_SETUP, reader_rate) - buffered  # reading in advance will measure it
            return tokens_until_buffered(missing, source_rate, reader_rate) if is_reading_ahead else None
        missing = buffer_needed(seconds, reader_rate) - buffered
        if not is_reading_ahead:
            return tokens_until_buffered(missing, source_rate, reader_rate, terms.per_token)
        while_reading = tokens_until_covered(missing, reader_rate, terms.per_token)
        made = source_rate * seconds
        if while_reading <= made:
            return while_reading
        rest = terms.seconds_to_first_token(max(1.0, made))
        assert rest is not None, "its setup is known"
        left_over = max(0.0, buffered + made - reader_rate * seconds)
        return made + tokens_until_buffered(buffer_needed(rest, reader_rate) - left_over, source_rate, reader_rate, terms.per_token)

    def _source_rate(self, state: MigrationState) -> float:
        return state.source.rate or self._terms[state.source.source].rate or UNKNOWN_RATE

    # Migrating

    def _advance(self, state: MigrationState, target: Attempt) -> Prepare | Release | Switch | None:
        if not target.can_take_over:
            self._terms.pop(target.source)
            self.reset()
            return None
        if target.is_exploring:
            return Release(target.source)
        is_covered = self._is_covered(state, target)
        if target.is_live and not (is_covered and self._is_overdue(state.now, self._terms[target.source])):
            return self._switch_early(state, target)
        if not is_covered and not self._reads_ahead(state, target):
            return None
        if self._saving(state, target) <= 0:  # it no longer pays
            self.reset()
            return None
        if is_covered:
            return Switch(target.source)
        self._rounds += 1
        self._reading = state.now, self.unread(target, state.position)
        return Prepare(target.source)

    def _is_covered(self, state: MigrationState, target: Attempt) -> bool:
        """Return True if the buffer covers the time that the target takes to continue."""
        seconds = self._terms[target.source].seconds_to_first_token(self.unread(target, state.position))
        return seconds is not None and state.buffered >= buffer_needed(seconds, self._plan.reader_rate)

    def _switch_early(self, state: MigrationState, target: Attempt) -> Switch | None:
        """Return a switch that lets the target finish its reading first, or None if the buffer doesn't cover that or it doesn't pay."""
        terms = self._terms[target.source]
        if (
            self._reading is None
            or target.read_ahead is None
            or target.state is not AttemptState.PREPARING
            or target.is_stopping
            or terms.pre_copy != "append"
        ):
            return None
        since, tokens = self._reading
        estimate, rest = terms.seconds_to_first_token(tokens), terms.seconds_to_first_token(state.position - target.read_ahead.position)
        if estimate is None or rest is None or state.now - since > estimate:  # how long it still takes is not known
            return None
        seconds = since + estimate - state.now + rest
        if state.buffered < buffer_needed(seconds, self._plan.reader_rate) or self._saving(state, target) <= 0:
            return None
        return Switch(target.source, waits=True)

    def _is_overdue(self, now: float, terms: Terms) -> bool:
        if self._reading is None:
            return False
        since, tokens = self._reading
        estimate = terms.seconds_to_first_token(tokens)
        return estimate is not None and now - since > _PATIENCE * estimate

    def _reads_ahead(self, state: MigrationState, target: Attempt) -> bool:
        """Return True if the target should read in advance, or read more, while the source writes."""
        plan, terms, has_read = self._plan, self._terms[target.source], target.kept is not None
        if plan.rule != "pre-copy" or self._rounds >= _MAX_ROUNDS or (has_read and terms.pre_copy == "warm"):
            return False
        seconds, min_seconds = terms.seconds_to_first_token(self.unread(target, state.position)), terms.seconds_to_first_token(1)
        if seconds is None or min_seconds is None:
            return terms.pre_copy == "append" and not has_read
        needed, min_needed = buffer_needed(seconds, plan.reader_rate), buffer_needed(min_seconds, plan.reader_rate)
        if has_read and state.buffered < min_needed:  # the buffer is what is missing, not the reading
            return False
        return pre_copy_pays(
            self._terms[state.source.source],
            terms,
            length=plan.prompt_tokens + state.position,
            saved=needed - min_needed,
            saving=self._saving(state, target),
            is_possible_without=needed <= plan.capacity or min_needed > plan.capacity,
        )
