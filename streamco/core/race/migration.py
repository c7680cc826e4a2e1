"""Planned migration: when an answer moves to a cheaper endpoint (DiSCo 4.3; what pays and what covers is in ``policies.migration``).

::

    looking ──▶ reading ahead ⟲ ──▶ waiting for the buffer ──▶ switch
       ▲             │                       │
       └─────────────┴── the target failed, or moving does not pay any more

The mover only says what should be done; the session does it. It is asked whenever tokens have come from the writing endpoint or the
target has something to tell, so it needs no deadline of its own: a buffer grows by tokens.
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

_STEP = 8  # an answer that need not move is looked at again when it is an eighth longer
_ROUNDS = 8  # of reading ahead, after which what is left to read is taken as it is
_CAUTION = 1.5  # on a time that was measured once
_MEASURED_SETUP = 0.15  # seconds, beside the time a token, where only that was measured
_SURE = (
    2 / 3
)  # of the tokens expected: prompts of one kind have answers this much shorter than all, and a move that hardly pays may well not
_PATIENCE = 3.0  # times its estimate that a reading ahead may take before the source is stopped without it


class MigrationPlan(Struct, frozen=True, kw_only=True):
    """What is known when an answer begins.

    Args:
        terms: by endpoint; who isn't here neither hands over nor takes over.
        lengths: how long answers are.
        prompt_tokens: length of the prompt.
        reader_rate: tokens per second the reader takes (r_c).
        capacity: tokens the source may be ahead of the reader; a larger buffer never fills.
        rule: how the change is made.
        max_migrations: moves an answer.
        constrained: endpoints of the side that the budget limits. A migration never starts that side, so they take over only in answers
            for which one of them was opened anyway.
        max_tokens: of the answer's length, tokens; None: none.
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


class MigrationState(Struct, frozen=True):
    """An answer under way.

    Args:
        source: the attempt that writes.
        attempts: all attempts, by endpoint.
        position: tokens made.
        buffered: of those, tokens the reader has not come to.
        now: seconds since the request.
    """

    source: Attempt
    attempts: Mapping[str, Attempt]
    position: int
    buffered: float
    now: float


class Prepare(Struct, frozen=True):
    """Let this endpoint read ahead."""

    target: str


class Release(Struct, frozen=True):
    """End what this endpoint does for the race that it has lost: it is wanted as the target."""

    target: str


class Switch(Struct, frozen=True):
    """Stop the source, let this endpoint go on; ``waits``: once it has read what it is reading."""

    target: str
    waits: bool = False


class MigrationController:
    """Decides about one answer's planned moves.

    Args:
        plan: what is known when it begins.
    """

    def __init__(self, plan: MigrationPlan) -> None:
        self._plan = plan
        self._terms = dict(plan.terms)
        self._target: str | None = None
        self._look_at = 1  # position
        self._rounds = 0
        self._moves = 0
        self._reading: tuple[float, int] | None = None  # since when the target reads ahead, and how much

    @property
    def is_done(self) -> bool:
        """True if no move will come any more."""
        return self._moves >= self._plan.max_migrations or len(self._terms) < 2

    def consider(self, situation: MigrationState) -> Prepare | Release | Switch | None:
        """Return what should be done now."""
        if self.is_done or situation.source.source not in self._terms:
            return None
        if self._target is None:
            if situation.position < self._look_at:
                return None
            self._look_at = situation.position + max(1, situation.position // _STEP)
            self._target = self._choose(situation)
            if self._target is None:
                return None
        return self._advance(situation, situation.attempts[self._target])

    def record_copied(self, target: str, *, kept: int, seconds: float, tokens: int) -> None:
        """The target has read ``tokens`` ahead in ``seconds``, up to the ``kept``-th of the answer."""
        terms = self._terms[target]
        if terms.setup is None and tokens and terms.pre_copy == "append":
            self._terms[target] = replace(terms, setup=_MEASURED_SETUP, per_token=_CAUTION * seconds / tokens)
        self._reading = None

    def record_migration(self) -> None:
        """The answer changed endpoints, as planned."""
        self._moves += 1
        self.reset()

    def reset(self) -> None:
        """Whoever writes now was not foreseen: look anew."""
        self._target, self._rounds, self._reading = None, 0, None

    def to_read(self, target: Attempt, position: int) -> int:
        """Tokens of prompt and answer that a target has not read yet."""
        return position - target.kept if target.kept is not None else self._plan.prompt_tokens + position

    # Looking

    def _choose(self, situation: MigrationState) -> str | None:
        """Return the target that saves most, if any does."""
        savings = {}
        for name in self._terms:
            attempt = situation.attempts.get(name)
            if attempt is None or attempt is situation.source or not attempt.can_take_over or not self._may_start(situation, name):
                continue
            saving = self._saving(situation, attempt)
            if saving > 0:
                savings[name] = saving
        return max(savings, key=lambda name: savings[name], default=None)

    def _may_start(self, situation: MigrationState, name: str) -> bool:
        constrained = self._plan.constrained
        return name not in constrained or any(
            attempt.opened is not None for attempt in situation.attempts.values() if attempt.source in constrained
        )

    def _saving(self, situation: MigrationState, target: Attempt) -> float:
        """US dollars that moving there saves."""
        plan, terms = self._plan, self._terms[target.source]
        if not keeps_up(terms, plan.reader_rate):
            return 0.0
        behind = self._behind(situation, target)
        if behind is None:
            return 0.0
        length = plan.prompt_tokens + situation.position
        source = self._terms[situation.source.source]
        return net_saving(
            source,
            terms,
            remaining=_SURE * plan.lengths.expected(situation.position, plan.max_tokens),
            until_change=behind,
            length=length,
            kept=length - self.to_read(target, situation.position),
            overrun=source.stops * self._source_rate(situation),
        )

    def _behind(self, situation: MigrationState, target: Attempt) -> float | None:
        """Tokens the source makes until the buffer covers the change; None: it is not known how long the target takes."""
        plan, terms = self._plan, self._terms[target.source]
        source_rate, reader_rate, buffered = self._source_rate(situation), plan.reader_rate, situation.buffered
        seconds = terms.seconds_to_first_token(self.to_read(target, situation.position))
        is_reading_ahead = plan.rule == "pre-copy" and terms.pre_copy == "append"
        if seconds is None:
            missing = buffer_needed(_MEASURED_SETUP, reader_rate) - buffered  # the reading ahead will tell
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

    def _source_rate(self, situation: MigrationState) -> float:
        return situation.source.rate or self._terms[situation.source.source].rate or UNKNOWN_RATE

    # Moving

    def _advance(self, situation: MigrationState, target: Attempt) -> Prepare | Release | Switch | None:
        if not target.can_take_over:
            self._terms.pop(target.source)
            self.reset()
            return None
        if target.is_exploring:
            return Release(target.source)
        is_covered = self._is_covered(situation, target)
        if target.is_live and not (is_covered and self._is_overdue(situation.now, self._terms[target.source])):
            return self._switch_early(situation, target)
        if not is_covered and not self._reads_ahead(situation, target):
            return None
        if self._saving(situation, target) <= 0:  # not any more
            self.reset()
            return None
        if is_covered:
            return Switch(target.source)
        self._rounds += 1
        self._reading = situation.now, self.to_read(target, situation.position)
        return Prepare(target.source)

    def _is_covered(self, situation: MigrationState, target: Attempt) -> bool:
        """Return True if the target could go on now without the reader's notice."""
        seconds = self._terms[target.source].seconds_to_first_token(self.to_read(target, situation.position))
        return seconds is not None and situation.buffered >= buffer_needed(seconds, self._plan.reader_rate)

    def _switch_early(self, situation: MigrationState, target: Attempt) -> Switch | None:
        """Stop the source while the target still reads, where the buffer covers the rest of that and the reading of what came since."""
        terms = self._terms[target.source]
        if self._reading is None or target.state is not AttemptState.PREPARING or target.is_stopping or terms.pre_copy != "append":
            return None
        since, tokens = self._reading
        estimate, rest = terms.seconds_to_first_token(tokens), terms.seconds_to_first_token(situation.position - target.copies)
        if estimate is None or rest is None or situation.now - since > estimate:  # nobody knows how long it still takes
            return None
        seconds = since + estimate - situation.now + rest
        if situation.buffered < buffer_needed(seconds, self._plan.reader_rate) or self._saving(situation, target) <= 0:
            return None
        return Switch(target.source, waits=True)

    def _is_overdue(self, now: float, terms: Terms) -> bool:
        if self._reading is None:
            return False
        since, tokens = self._reading
        estimate = terms.seconds_to_first_token(tokens)
        return estimate is not None and now - since > _PATIENCE * estimate

    def _reads_ahead(self, situation: MigrationState, target: Attempt) -> bool:
        """Return True if the target should read (on) while the source goes on."""
        plan, terms, has_read = self._plan, self._terms[target.source], target.kept is not None
        if plan.rule != "pre-copy" or self._rounds >= _ROUNDS or (has_read and terms.pre_copy == "warm"):
            return False
        seconds, least = terms.seconds_to_first_token(self.to_read(target, situation.position)), terms.seconds_to_first_token(1)
        if seconds is None or least is None:
            return terms.pre_copy == "append" and not has_read
        needed, needed_least = buffer_needed(seconds, plan.reader_rate), buffer_needed(least, plan.reader_rate)
        if has_read and situation.buffered < needed_least:  # the buffer is what is missing, not the reading
            return False
        return pre_copy_pays(
            self._terms[situation.source.source],
            terms,
            length=plan.prompt_tokens + situation.position,
            saved=needed - needed_least,
            saving=self._saving(situation, target),
            is_possible_without=needed <= plan.capacity or needed_least > plan.capacity,
        )
