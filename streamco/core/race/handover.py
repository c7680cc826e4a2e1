"""Keeps the text of an answer that may be handed over, chooses the endpoint that continues it, and records hand-overs (DiSCo 4.3).

A failover and a planned migration start for different reasons and treat the source differently. But the target gets the same text, and
the hand-over is reported in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from streamco.core.race.attempt import Attempt, AttemptState
from streamco.core.race.migration import MigrationController, MigrationPlan, MigrationState, Prepare, Release, Switch
from streamco.core.race.transcript import Transcript
from streamco.core.report_parts import HandOver
from streamco.events import Partial, TextRepeated
from streamco.openai_types import ChatCompletionChunk

__all__ = ["Handover", "OnFailure", "make_handover"]

OnFailure = Literal["migrate", "restart", "raise"]


class Handover:
    """An answer in a form that can be handed over. The race machine owns it.

    Args:
        controller: plans migrations; None for no migrations.
        fails_over: whether an endpoint that fails is replaced.
        restarts: whether an endpoint may generate the whole answer again if no endpoint can continue it.
    """

    __slots__ = ("_controller", "_restarts", "fails_over", "hand_overs", "transcript")

    def __init__(self, controller: MigrationController | None, *, fails_over: bool, restarts: bool = False) -> None:
        self.transcript = Transcript()
        self.hand_overs: list[HandOver] = []
        self._controller = controller
        self.fails_over = fails_over
        self._restarts = restarts

    @property
    def may_migrate(self) -> bool:
        """True if a migration is still possible."""
        return self._controller is not None and not self._controller.is_done

    def add(self, chunks: list[ChatCompletionChunk] | TextRepeated, tokens: int, vocabulary: str | None) -> None:
        """Append the text that an endpoint with this vocabulary generated."""
        self.transcript.add(chunks, tokens, vocabulary)

    def must_wait(self, attempts: Mapping[str, Attempt]) -> bool:
        """Return True if, after a failure, no attempt is known to be able to continue, but one may still turn out to be."""
        if not self.fails_over or not self.transcript.is_text_alone:
            return False
        left = attempts.values()
        return any(each.may_take_over for each in left) and not any(each.can_take_over or each.is_last_resort for each in left)

    def find_successor(self, attempts: Mapping[str, Attempt]) -> Attempt | None:
        """Return the attempt that should continue after a failure, or None if there is none.

        Attempts that have read in advance come first, then attempts of the race, then attempts that start only after a failure. Attempts
        that failed to read in advance come last, because reading in advance should only make an answer cheaper and must not lose it. If
        none is left and restarts are allowed, an endpoint that can't continue an answer is chosen. No endpoint takes over twice.
        """
        if not self.fails_over or not self.transcript.is_text_alone:
            return None
        able = [attempt for attempt in attempts.values() if attempt.can_take_over or attempt.is_last_resort]
        if not able and self._restarts:
            able = [attempt for attempt in attempts.values() if attempt.can_restart]
        return min(
            able,
            key=lambda attempt: (attempt.is_last_resort, attempt.state is not AttemptState.PREPARED, attempt.plan.wait is None),
            default=None,
        )

    def consider_migration(
        self, source: Attempt, attempts: Mapping[str, Attempt], *, buffered: float, now: float
    ) -> Prepare | Release | Switch | None:
        """Return the next step of a migration, or None if there is none or if the answer can't be handed over at this point."""
        if self._controller is None or not self.transcript.ends_in_text:
            return None
        return self._controller.consider(MigrationState(source, attempts, self.transcript.tokens, buffered, now))

    def record_copied(self, attempt: Attempt, *, tokens: int, seconds: float) -> None:
        """Record that an attempt took ``seconds`` to read ``tokens`` tokens in advance."""
        if self._controller is not None and attempt.kept is not None:
            self._controller.record_copied(attempt.source, kept=attempt.kept, tokens=tokens, seconds=seconds)

    def unread(self, attempt: Attempt, position: int) -> int:
        """Return how many tokens an attempt's endpoint would still have to read to continue the answer at ``position``."""
        return 0 if self._controller is None else self._controller.unread(attempt, position)

    def record_migration(self, source: Attempt, target: Attempt, *, at: float, buffered: float) -> None:
        """Record a planned hand-over ``at`` seconds after the request, when there were ``buffered`` tokens the reader hadn't reached."""
        if self._controller is None:
            raise AssertionError("only a controller plans migrations")
        self._controller.record_migration()
        self._record(source, target, at=at, buffered=buffered, reason="cheaper", is_planned=True)

    def record_failover(self, source: Attempt, target: Attempt, *, at: float, buffered: float) -> None:
        """Record that a failed attempt was replaced. The arguments are the same as for ``record_migration``."""
        if self._controller is not None:
            self._controller.record_failover(source.source)
        self._record(source, target, at=at, buffered=buffered, reason=type(source.error).__name__, is_planned=False)

    def _record(self, source: Attempt, target: Attempt, *, at: float, buffered: float, reason: str, is_planned: bool) -> None:
        self.transcript.drop_incomplete()
        self.hand_overs.append(
            HandOver(
                source=source.source,
                target=target.source,
                position=self.transcript.tokens,
                at=at,
                reason=reason,
                is_planned=is_planned,
                buffered=round(buffered),
            )
        )

    def partial(self) -> Partial:
        """Return the beginning of the answer in the form that is given to the target."""
        return self.transcript.partial()


def make_handover(migration: MigrationPlan | None, *, on_failure: OnFailure) -> Handover | None:
    """Return the hand-over of an answer with more than one attempt, or None if it may not be handed over."""
    fails_over = on_failure != "raise"
    if not fails_over and migration is None:
        return None
    controller = MigrationController(migration) if migration is not None else None
    return Handover(controller, fails_over=fails_over, restarts=on_failure == "restart")
