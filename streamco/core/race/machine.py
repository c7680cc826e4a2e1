"""One answer from several endpoints: who starts when, who wins, what the reader gets (DiSCo 4.2, section "Race").

The first *content* token wins: role deltas, empty choices and usage don't count, but the winner's are delivered in their place. An attempt
that fails before anybody won lets the next one start at once, whatever its wait. When nobody is left the reader gets the error, after all
text that came. An answer whose endpoint fails in the middle, or writes at too high a price, goes on at another (``core.handover``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from streamco.config import READING
from streamco.core.delivery import Delivery
from streamco.core.race.attempt import Attempt, AttemptPlan, AttemptState
from streamco.core.race.commands import CancelStream, Command, ContinueStream, FailDelivery, FinishDelivery, OpenStream, PrepareStream
from streamco.core.race.handover import Handover
from streamco.core.race.migration import MigrationController, MigrationPlan, Prepare, Release, Switch
from streamco.core.race.restart import Diverged
from streamco.core.report import HandOver
from streamco.errors import AllEndpointsFailed, EndpointError, EndpointProtocolError, StreamcoError
from streamco.events import Event, ReaderLeft, StreamCancelled, StreamEnded, StreamFailed, TokensReceived
from streamco.openai_types import ChatCompletionChunk

__all__ = ["OnFailure", "RaceMachine", "RacePlan"]

OnFailure = Literal["migrate", "restart", "raise"]


class RacePlan(Struct, frozen=True, kw_only=True):
    """Everything a session is told at its beginning; with the events it reproduces the session.

    Args:
        attempts: the attempts; those without a wait stand in for failed ones, in this order. pace: tokens per second at the reader, None:
        deliver at once. explore: let a losing attempt run to its first token, to learn how long that takes. reader_rate: tokens per second
        of the virtual reader that quality is measured with; None: the pace, or the reading speed. on_failure: what becomes of an answer
        whose endpoint fails in the middle: another attempt that can goes on with it, or the error is raised; "restart": if none can, one
        makes it anew. max_tokens: limit of the answer's length; an attempt that takes over gets what is left of it. missing: endpoints that
        could take no part, with their errors; told to the reader when those that could fail too. migration: what planned moves rest on;
        None: there are none.
    """

    attempts: tuple[AttemptPlan, ...]
    pace: float | None = None
    explore: bool = False
    reader_rate: float | None = None
    on_failure: OnFailure = "raise"
    max_tokens: int | None = None
    missing: tuple[tuple[str, EndpointError], ...] = ()
    migration: MigrationPlan | None = None


class RaceMachine:
    """The race and the delivery of one answer.

    Args:
        plan: what was decided before it starts.
    """

    def __init__(self, plan: RacePlan) -> None:
        if not plan.attempts:
            raise AssertionError("a session needs an attempt")
        self.plan = plan
        self.attempts = {start.source: Attempt(start) for start in plan.attempts}
        self.past_attempts: list[Attempt] = []  # earlier parts of endpoints that have taken over since
        self._delivery = Delivery(plan.pace, plan.reader_rate or plan.pace or READING)
        self.meter = self._delivery.meter
        self.winner: str | None = None
        self.began = 0.0
        self.finished: float | None = None
        self.error: StreamcoError | None = None
        self.finish_reason: str | None = None
        self.dropped = 0  # tokens that were held for the reader's pace when the reader left
        self._writer: Attempt | None = None
        self._commands: list[Command] = []
        self._handover = _make_handover(plan)
        self._successor: Attempt | None = None  # goes on as soon as its earlier work is cancelled
        self._is_complete = False  # the winner ended; what is buffered is still to be delivered

    # The machine protocol

    def start(self, *, now: float) -> None:
        """Open the attempts that wait for nothing."""
        self.began = now
        self._start_due(now)
        if not any(attempt.wait is not None for attempt in self.attempts.values()):
            self._start_next(now)

    def receive(self, event: Event, *, now: float) -> None:
        """Take note of what an endpoint or the reader did; late news from attempts that are out is only counted."""
        match event:
            case TokensReceived():
                self._receive_tokens(event, now)
            case StreamEnded():
                self._receive_end(event, now)
            case StreamFailed():
                self._receive_failure(event, now)
            case StreamCancelled():
                self._receive_cancelled(event, now)
            case ReaderLeft():
                self._receive_reader_left(now)

    def pass_on(self, event: TokensReceived, *, now: float) -> bool:
        """Return the short way for most tokens: counts the event and says that its chunks go to the reader as they are, now.

        True where ``receive`` would have commanded just that and asked for no deadline; False: nothing was done, use ``receive``.
        """
        attempt = self._writer
        if attempt is None or attempt.source != event.source or attempt.state is not AttemptState.WON or attempt.first_token is None:
            return False
        if (
            self._delivery.is_paced
            or self.finished is not None
            or attempt.is_new
            or attempt.restart_filter is not None
            or self._may_migrate
        ):
            return False
        tokens = event.tokens
        attempt.tokens += tokens
        if self._handover is not None:
            self._handover.add(event.chunks, tokens, attempt.vocabulary)
        if tokens:
            self.meter.record(tokens, now=now)
        return True

    def take_commands(self) -> list[Command]:
        """Return what to do, in order."""
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float | None:
        """Return the next attempt's start or the next token's release, whichever comes first."""
        deadline = self._delivery.next_due()
        if self.winner is None and self.finished is None:
            for attempt in self.attempts.values():
                if attempt.state is AttemptState.WAITING and attempt.wait is not None:
                    deadline = self.began + attempt.wait if deadline is None else min(deadline, self.began + attempt.wait)
        return deadline

    def handle_deadline(self, *, now: float) -> None:
        """Start the attempts whose wait is over and release the tokens that are due."""
        if self.finished is not None:
            return
        if self.winner is None:
            self._start_due(now)
        self._release(now)

    # What drivers and reports ask

    @property
    def buffered(self) -> int:
        """Tokens held back for the reader's pace."""
        return self._delivery.buffered

    @property
    def writer(self) -> str | None:
        """Whose tokens the reader gets: the winner, or who took over from it."""
        return self._writer.source if self._writer is not None else None

    @property
    def hand_overs(self) -> Sequence[HandOver]:
        """How the answer changed endpoints, in order."""
        return self._handover.hand_overs if self._handover is not None else ()

    @property
    def is_direct(self) -> bool:
        """True if all that can happen now is that the winner goes on: nothing is timed and nobody else works."""
        winning = self._writer
        if self._delivery.is_paced or winning is None or winning.state is not AttemptState.WON or self._may_migrate:
            return False
        return not any(attempt.is_live for attempt in self.attempts.values() if attempt is not winning)

    @property
    def is_over(self) -> bool:
        """True if the reader has everything and nobody works any more."""
        return self.finished is not None and not any(attempt.is_live for attempt in self.attempts.values())

    @property
    def _may_migrate(self) -> bool:
        return self._handover is not None and self._handover.may_migrate

    # Tokens

    def _receive_tokens(self, event: TokensReceived, now: float) -> None:
        attempt = self._writer
        if attempt is not None and event.source == attempt.source:
            if event.tokens:
                attempt.count(event.tokens, now - self.began)
            if attempt.state is AttemptState.WON and self.finished is None:
                self._receive_answer(attempt, event, now)
            else:
                attempt.late += event.tokens
            return
        attempt = self.attempts[event.source]
        if event.tokens and attempt.opened is not None:
            attempt.count(event.tokens, now - self.began)
        if attempt.state is AttemptState.LOST:
            attempt.late += event.tokens
            if event.tokens and self.plan.explore:
                self._stop(attempt, "explored")
        elif attempt.state is AttemptState.OPEN:
            attempt.held += event.chunks
            if event.tokens and self.finished is None:
                self._win(attempt, event.tokens, now)

    def _receive_answer(self, attempt: Attempt, event: TokensReceived, now: float) -> None:
        """The answer goes on; whoever makes it anew first makes what the reader has."""
        new: TokensReceived | Diverged | None = event
        if attempt.restart_filter is not None:
            new = attempt.restart_filter.feed(event)
            attempt.late += event.tokens - (new.tokens if isinstance(new, TokensReceived) else 0)
            if not attempt.restart_filter.is_open:
                attempt.restart_filter = None
        if isinstance(new, Diverged):
            self._stop(attempt, "departed")
            self._diverge(attempt, new, now)
        elif new is not None:
            self._deliver(new.source, new.chunks, new.tokens, now)
            self._consider_migration(now)

    def _diverge(self, attempt: Attempt, diverged: Diverged, now: float) -> None:
        """An attempt that makes the answer anew makes another one: it is of no use."""
        error = EndpointProtocolError(str(diverged), endpoint=attempt.source)
        attempt.state, attempt.stopped, attempt.error = AttemptState.FAILED, now - self.began, error
        self._fail_over(attempt, error, now)

    def _win(self, attempt: Attempt, tokens: int, now: float) -> None:
        self.winner, self._writer, attempt.state, attempt.has_won = attempt.source, attempt, AttemptState.WON, True
        for other in self.attempts.values():
            if other.state is AttemptState.WAITING:
                other.state = AttemptState.SPARED
            elif other.state is AttemptState.OPEN:
                other.state = AttemptState.LOST
                if not self.plan.explore:
                    self._stop(other, "lost")
        held, attempt.held = attempt.held, []
        self._deliver(attempt.source, held, tokens, now)
        self._consider_migration(now)

    def _deliver(self, source: str, chunks: list[ChatCompletionChunk], tokens: int, now: float) -> None:
        if self._handover is not None:
            self._handover.add(chunks, tokens, self.attempts[source].vocabulary)
        self._commands += self._delivery.take(source, chunks, tokens, now=now)
        self._finish_if_empty(now)

    def _release(self, now: float) -> None:
        self._commands += self._delivery.release(now=now)
        self._finish_if_empty(now)

    # Ends

    def _receive_end(self, event: StreamEnded, now: float) -> None:
        attempt = self.attempts[event.source]
        if not attempt.is_live:
            return
        was, attempt.state, attempt.stopped = attempt.state, AttemptState.ENDED, now - self.began
        attempt.usage, attempt.finish_reason = event.usage, event.finish_reason
        if was is AttemptState.WON:
            diverged = attempt.restart_filter.end() if attempt.restart_filter is not None else None
            if diverged is not None:
                self._diverge(attempt, diverged, now)
            else:
                self._complete(attempt, now)
        elif was is AttemptState.PREPARING:
            self._receive_prepared(attempt, now)
        elif was is AttemptState.OPEN:
            self._settle_without_winner(now)

    def _complete(self, attempt: Attempt, now: float) -> None:
        self.finish_reason = attempt.finish_reason
        self._is_complete = True
        self._stop_preparing()
        self._finish_if_empty(now)

    def _finish_if_empty(self, now: float) -> None:
        """When nothing more is made the reader is finished as soon as nothing is held."""
        if self._is_complete and self._delivery.is_empty:
            self._finish(now)

    def _finish(self, now: float) -> None:
        if self.finished is None:
            self.finished = now
            self._commands.append(FinishDelivery())

    def _receive_failure(self, event: StreamFailed, now: float) -> None:
        attempt = self.attempts[event.source]
        if not attempt.is_live:
            return
        was, attempt.state, attempt.stopped, attempt.error = attempt.state, AttemptState.FAILED, now - self.began, event.error
        if was is AttemptState.WON:
            self._fail_over(attempt, event.error, now)
        elif was is AttemptState.PREPARING:
            self._go_on_after_reading(attempt, now)
        elif was is AttemptState.OPEN:
            self._start_next(now)
            self._settle_without_winner(now)

    def _fail(self, error: StreamcoError, now: float) -> None:
        if self.finished is not None:
            return
        self._commands += self._delivery.flush(now=now)
        self._stop_preparing()
        self.finished, self.error = now, error
        self._commands.append(FailDelivery(error))

    def _receive_cancelled(self, event: StreamCancelled, now: float) -> None:
        attempt = self.attempts[event.source]
        attempt.is_stopping = False
        if attempt.is_live:
            attempt.state, attempt.stopped = AttemptState.CANCELLED, now - self.began
        if attempt is self._successor:
            self._take_over(attempt, now)
        else:
            self._consider_migration(now)

    def _receive_reader_left(self, now: float) -> None:
        if self.finished is None:
            self.finished = now
        for attempt in self.attempts.values():
            if attempt.state is AttemptState.WAITING:
                attempt.state = AttemptState.SPARED
            elif attempt.is_live:
                self._stop(attempt, "reader left")
        self.dropped += self._delivery.drop()

    def _stop(self, attempt: Attempt, reason: str) -> None:
        """Have an attempt cancelled, once: further reasons change nothing."""
        if not attempt.is_stopping:
            attempt.is_stopping = True
            self._commands.append(CancelStream(attempt.source, reason))

    # Hand-over

    def _fail_over(self, failed: Attempt, error: EndpointError, now: float) -> None:
        """The attempt that was writing is out: let another go on from the last good token, or tell the reader."""
        successor = self._handover.find_successor(self.attempts) if self._handover is not None else None
        if successor is None or self._handover is None or self.finished is not None:
            self._fail(self._combine_mid_errors(error), now)
            return
        self._handover.record_failover(failed, successor, at=now - self.began, buffered=self._delivery.ahead(now=now))
        self._pass_to(successor, now)

    def _pass_to(self, successor: Attempt, now: float, *, waits: bool = False) -> None:
        """From now on the heir writes; what it did before is cancelled first, or, where that is worth it, awaited."""
        self._writer = successor
        self._stop_preparing(but=successor)
        if successor.is_live:
            self._successor = successor
            if not waits:
                self._stop(successor, "takes over")
        else:
            self._take_over(successor, now)

    def _take_over(self, attempt: Attempt, now: float) -> None:
        assert self._handover is not None, "only handed-over answers have heirs"
        self._successor = None
        if self.finished is not None:
            return
        partial = self._handover.partial()
        limit = self.plan.max_tokens
        if limit is not None and partial.tokens >= limit:
            self.finish_reason, self._is_complete = "length", True
            self._finish_if_empty(now)
            return
        if attempt.continues:
            self._writer = self._replace(attempt, attempt.succeed(partial.tokens, now - self.began))
            self._commands.append(ContinueStream(attempt.source, partial))
        else:
            self._writer = self._replace(attempt, attempt.restart(partial, now - self.began))
            self._commands.append(OpenStream(attempt.source))

    def _replace(self, attempt: Attempt, new: Attempt) -> Attempt:
        """Return an endpoint's next part; the one before is kept for the report."""
        if attempt.opened is not None:
            self.past_attempts.append(attempt)
        self.attempts[attempt.source] = new
        return new

    def _combine_mid_errors(self, last: EndpointError) -> StreamcoError:
        """Return one endpoint's own error, or all of them where several have tried."""
        if self._handover is None or not self._handover.hand_overs:
            return last
        errors = {attempt.source: attempt.error for attempt in self.attempts.values() if attempt.error is not None}
        return AllEndpointsFailed(errors, partial=self._handover.transcript.text)

    # Planned moves

    def _consider_migration(self, now: float) -> None:
        """Let the mover look at the answer as it is now."""
        source = self._writer
        if self._handover is None or source is None or source.state is not AttemptState.WON or self.finished is not None:
            return
        match self._handover.consider_migration(source, self.attempts, buffered=self._delivery.ahead(now=now), now=now - self.began):
            case Release(target):
                self._stop(self.attempts[target], "wanted")
            case Prepare(target):
                self._prepare(self.attempts[target], now)
            case Switch(target, waits):
                self._move(source, self.attempts[target], now, waits=waits)

    def _prepare(self, attempt: Attempt, now: float) -> None:
        """Let an attempt read ahead; its next round is the same attempt's."""
        assert self._handover is not None, "only a mover prepares"
        partial = self._handover.partial()
        new = self._replace(attempt, attempt.prepare(now - self.began))
        new.reads = self._handover.unread(new, partial.tokens)
        new.copies = partial.tokens
        self._commands.append(PrepareStream(attempt.source, partial))

    def _receive_prepared(self, attempt: Attempt, now: float) -> None:
        assert self._handover is not None, "only a mover prepares"
        attempt.state, attempt.kept = AttemptState.PREPARED, attempt.copies
        if attempt.opened is not None and attempt.stopped is not None:
            self._handover.record_copied(attempt, tokens=attempt.reads, seconds=attempt.stopped - attempt.opened)
        self._go_on_after_reading(attempt, now)

    def _go_on_after_reading(self, attempt: Attempt, now: float) -> None:
        """A reading ahead is over: who was awaited takes over, whether it could read or not, for nobody writes any more."""
        if attempt is not self._successor:
            self._consider_migration(now)
        elif not attempt.is_stopping:
            self._take_over(attempt, now)

    def _move(self, source: Attempt, target: Attempt, now: float, *, waits: bool) -> None:
        """The target goes on, the source stops; what it makes until then nobody reads."""
        assert self._handover is not None, "only a mover moves"
        self._handover.record_migration(source, target, at=now - self.began, buffered=self._delivery.ahead(now=now))
        source.state = AttemptState.LOST
        self._pass_to(target, now, waits=waits)
        self._stop(source, "handed over")

    def _stop_preparing(self, but: Attempt | None = None) -> None:
        for attempt in self.attempts.values():
            if attempt.state is AttemptState.PREPARING and attempt is not but:
                self._stop(attempt, "not needed")

    # Starts

    def _start_due(self, now: float) -> None:
        for attempt in self.attempts.values():
            if attempt.state is AttemptState.WAITING and attempt.wait is not None and self.began + attempt.wait <= now:
                self._open(attempt, now)

    def _start_next(self, now: float) -> None:
        """Somebody failed: open whoever has not been tried, first those that only wait, then the stand-ins, one at a time."""
        waiting = [attempt for attempt in self.attempts.values() if attempt.state is AttemptState.WAITING]
        if waiting:
            self._open(min(waiting, key=lambda attempt: (attempt.wait is None, attempt.wait or 0.0)), now)

    def _open(self, attempt: Attempt, now: float) -> None:
        attempt.state, attempt.opened = AttemptState.OPEN, now - self.began
        self._commands.append(OpenStream(attempt.source))

    def _settle_without_winner(self, now: float) -> None:
        """Nobody has won and an attempt is out: wait for the others, or take an empty answer, or give up."""
        attempts = self.attempts.values()
        if self.finished is not None or any(attempt.state is AttemptState.OPEN for attempt in attempts):
            return
        empty = next((attempt for attempt in attempts if attempt.state is AttemptState.ENDED), None)
        if empty is not None:
            for attempt in attempts:
                if attempt.state is AttemptState.WAITING:
                    attempt.state = AttemptState.SPARED
            self.winner, self._writer, empty.has_won = empty.source, empty, True
            if empty.held:
                self._deliver(empty.source, empty.held, 0, now)
            self._complete(empty, now)
            return
        self._fail(self._combine_errors(list(attempts)), now)

    def _combine_errors(self, attempts: Sequence[Attempt]) -> StreamcoError:
        failed = {attempt.source: attempt.error for attempt in attempts if attempt.error is not None}
        if not failed:
            return EndpointProtocolError("expected an answer or an error, got neither")
        errors = {**dict(self.plan.missing), **failed}
        return AllEndpointsFailed(errors) if len(errors) > 1 else next(iter(failed.values()))


def _make_handover(plan: RacePlan) -> Handover | None:
    """Return what hands the answer over, where that may happen at all."""
    fails_over = plan.on_failure != "raise"
    if len(plan.attempts) < 2 or not (fails_over or plan.migration is not None):
        return None
    mover = MigrationController(plan.migration) if plan.migration is not None else None
    return Handover(mover, fails_over=fails_over, restarts=plan.on_failure == "restart")
