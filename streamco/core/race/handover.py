"""The hand-over of one answer: what it consists of so far, who may go on with it, and what has been handed over (DiSCo 4.3).

A hand-over that nobody planned (an endpoint died) and one that saves money differ in who decides and in what becomes of the source;
what the target gets and how it is counted are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamco.core.race.attempt import Attempt, AttemptState
from streamco.core.race.migration import MigrationController, MigrationState, Prepare, Release, Switch
from streamco.core.race.transcript import Transcript
from streamco.core.report import HandOver
from streamco.openai_types import ChatCompletionChunk
from streamco.partial import Partial

__all__ = ["Handover"]


class Handover:
    """Keeps the answer in a form that can be handed over.

    Args:
        mover: plans moves; None: there are none.
        fails_over: an endpoint that fails is replaced.
        begins_anew: if need be by one that can't go on with the answer.
    """

    def __init__(self, mover: MigrationController | None, *, fails_over: bool, restarts: bool = False) -> None:
        self.transcript = Transcript()
        self.hand_overs: list[HandOver] = []
        self._migration = mover
        self._fails_over = fails_over
        self._restarts = restarts

    @property
    def may_migrate(self) -> bool:
        """True if a planned move may come."""
        return self._migration is not None and not self._migration.is_done

    def add(self, chunks: list[ChatCompletionChunk], tokens: int, vocabulary: str | None) -> None:
        """The answer goes on."""
        self.transcript.add(chunks, tokens, vocabulary)

    def find_successor(self, attempts: Mapping[str, Attempt]) -> Attempt | None:
        """Who can go on after a failure: who has read ahead, then the racing attempts, then the stand-ins, in their order; nobody twice.

        Then those that failed to read ahead: an answer is not lost for what was to make it cheaper. At last, with the caller's consent,
        those that can't go on with an answer and have to make it anew.
        """
        if not self._fails_over or self.transcript.has_calls:
            return None
        able = [attempt for attempt in attempts.values() if attempt.can_take_over or attempt.is_last_resort]
        if not able and self._restarts:
            able = [attempt for attempt in attempts.values() if attempt.can_restart]
        return min(
            able,
            key=lambda attempt: (attempt.is_last_resort, attempt.state is not AttemptState.PREPARED, attempt.wait is None),
            default=None,
        )

    def consider_migration(
        self, source: Attempt, attempts: Mapping[str, Attempt], *, buffered: float, now: float
    ) -> Prepare | Release | Switch | None:
        """Return what the mover wants; nothing while there is no text to be handed over, or a tool call."""
        if self._migration is None or not self.transcript.ends_in_text:
            return None
        return self._migration.consider(MigrationState(source, attempts, self.transcript.tokens, buffered, now))

    def record_copied(self, attempt: Attempt, *, tokens: int, seconds: float) -> None:
        """An attempt has read ahead."""
        if self._migration is not None and attempt.kept is not None:
            self._migration.record_copied(attempt.source, kept=attempt.kept, tokens=tokens, seconds=seconds)

    def unread(self, attempt: Attempt, position: int) -> int:
        """Tokens of prompt and answer that an attempt would have to read to go on at ``position``."""
        return 0 if self._migration is None else self._migration.to_read(attempt, position)

    def record_migration(self, source: Attempt, target: Attempt, *, at: float, buffered: float) -> None:
        """A planned move is made."""
        if self._migration is None:
            raise AssertionError("only a mover plans moves")
        self._migration.record_migration()
        self._record(source, target, at=at, buffered=buffered, reason="cheaper", is_planned=True)

    def record_failover(self, source: Attempt, target: Attempt, *, at: float, buffered: float) -> None:
        """A failed attempt is replaced."""
        if self._migration is not None:
            self._migration.reset()
        self._record(source, target, at=at, buffered=buffered, reason=type(source.error).__name__, is_planned=False)

    def _record(self, source: Attempt, target: Attempt, *, at: float, buffered: float, reason: str, is_planned: bool) -> None:
        self.transcript.settle()
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
        """Return what the target gets."""
        return self.transcript.partial()
