"""Runs one answer's race between endpoints: when each one starts, which one wins, and what the reader gets (DiSCo 4.2, section "Race").

The first *content* token wins. Role deltas, empty choices and usage don't count, but the winner's are delivered in order. Output
without tokens (media, encrypted reasoning) wins only if no other endpoint is about to answer. If an attempt fails before the race is
decided, the next one starts at once, whatever its wait. If no attempt is left, the reader gets all the text there is, and then the error.
If the endpoint fails in the middle, or has become too expensive, another one continues the answer (``core.race.handover``). With a quality
gate, the device's first tokens are not enough to win (``core.race.gate``).

The file is longer than others, because all transitions of the race's state are easier to read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from streamco.config import READING, ReaderPace, fixed_rate
from streamco.core.delivery import Delivery
from streamco.core.race.attempt import Attempt, AttemptPlan, AttemptState, ReadAhead
from streamco.core.race.commands import (
    LATE,
    CancelStream,
    Command,
    ContinueStream,
    FailDelivery,
    FinishDelivery,
    OpenStream,
    PauseStream,
    PrepareStream,
    ResumeStream,
)
from streamco.core.race.gate import GatePlan, HeldBeginning
from streamco.core.race.handover import OnFailure, make_handover
from streamco.core.race.migration import MigrationPlan, Prepare, Release, Switch
from streamco.core.race.restart import Diverged
from streamco.core.report_parts import HandOver
from streamco.errors import AllEndpointsFailed, EndpointError, EndpointProtocolError, StreamcoError, is_out_of_time, is_refusal
from streamco.events import (
    AbilitiesFound,
    Event,
    ReaderLeft,
    StreamCancelled,
    StreamEnded,
    StreamFailed,
    StreamRetrying,
    TextRepeated,
    TokensReceived,
)
from streamco.openai_types import ChatCompletionChunk

__all__ = ["Fatal", "OnFailure", "RaceMachine", "RacePlan"]

_EPSILON = 1e-6  # seconds; sums of floats differ
_PATIENCE = 1.0  # seconds that a hand-over waits until it is known what the remaining endpoints can do

Fatal = Literal["none", "refusals", "all"]


class RacePlan(Struct, frozen=True, kw_only=True):
    """Everything that is decided before an answer begins. Together with the events, it reproduces the answer.

    Args:
        attempts: attempts that may be opened. Attempts without a wait only replace failed ones, in this order.
        pace: tokens per second at the reader; "smooth" for an even flow at the rate at which they arrive; None to deliver at once.
        explore: let a losing attempt run until its first token, to measure how long that takes.
        reader_rate: reading speed of the virtual reader, by which quality is measured, in tokens per second. If None, this is the pace
            or, without a fixed pace, the usual reading speed.
        on_failure: what happens if the endpoint fails in the middle. With "migrate", another attempt continues the answer if it can.
            With "restart", one generates it again if none can continue it. With "raise", the reader gets the error.
        max_tokens: maximum length of the whole answer. An attempt that takes over may write only the rest of it.
        missing: endpoints that could not take part, with their errors; reported to the reader if all others fail too.
        migration: inputs of planned migrations; None if the answer doesn't migrate.
        fatal: which failures of one endpoint fail the whole answer, if they happen before it has begun: "none", "refusals" (401, 403 and
            404, which mean wrong configuration) or "all".
        hedges: whether two endpoints may be asked at once; False if the tool calls that they make may have side effects.
        is_timed: True if the request limits the time of the whole answer, so that no endpoint continues it after a timeout.
        gate: the rules for whether the device's answer is good enough; if None, whichever endpoint is first wins.
    """

    attempts: tuple[AttemptPlan, ...]
    pace: ReaderPace = None
    explore: bool = False
    reader_rate: float | None = None
    on_failure: OnFailure = "raise"
    max_tokens: int | None = None
    missing: tuple[tuple[str, EndpointError], ...] = ()
    migration: MigrationPlan | None = None
    fatal: Fatal = "none"
    hedges: bool = True
    is_timed: bool = False
    gate: GatePlan | None = None


class RaceMachine:
    """Runs the race and the delivery of one answer. A driver owns it.

    Args:
        plan: the decisions made before the answer began.
    """

    __slots__ = (
        "_commands",
        "_delivery",
        "_handover",
        "_is_complete",
        "_orphaned",
        "_patience_ends",
        "_successor",
        "_writer",
        "attempts",
        "began",
        "dropped",
        "error",
        "finish_reason",
        "finished",
        "gate",
        "meter",
        "past_attempts",
        "plan",
        "winner",
    )

    def __init__(self, plan: RacePlan) -> None:
        if not plan.attempts:
            raise AssertionError("a race needs an attempt")
        self.plan = plan
        self.attempts = {each.source: Attempt(each) for each in plan.attempts}
        self.past_attempts: list[Attempt] = []  # earlier attempts of endpoints that have since taken over or read in advance
        self._delivery = Delivery(plan.pace, plan.reader_rate or fixed_rate(plan.pace) or READING)
        self.meter = self._delivery.meter
        self.winner: str | None = None
        self.began = 0.0
        self.finished: float | None = None
        self.error: StreamcoError | None = None
        self.finish_reason: str | None = None
        self.dropped = 0  # tokens held back for the reader's pace when the reader left
        self._writer: Attempt | None = None  # the winner, or the attempt that took over from it
        self._commands: list[Command] = []
        self._handover = make_handover(plan.migration, on_failure=plan.on_failure) if len(plan.attempts) > 1 else None
        self._successor: Attempt | None = None  # takes over as soon as its earlier work is cancelled
        self._is_complete = False  # the writer has ended, and only buffered tokens remain to be delivered
        self._orphaned: tuple[Attempt, EndpointError] | None = None  # the failed writer, until it is known who can continue
        self._patience_ends = 0.0
        self.gate = None if plan.gate is None or len(plan.attempts) < 2 else HeldBeginning(plan.gate)

    # The machine protocol

    def start(self, *, now: float) -> None:
        """Open the attempts that don't have to wait."""
        self.began = now
        self._start_due(now)
        if not any(attempt.plan.wait is not None for attempt in self.attempts.values()):
            self._start_next(now)

    def receive(self, event: Event, *, now: float) -> None:
        """Handle an event from an endpoint or the reader. Late events of attempts that are out of the race are only counted."""
        match event:
            case TokensReceived():
                self._receive_tokens(event, now)
            case StreamEnded():
                self._receive_end(event, now)
            case StreamFailed():
                self._receive_failure(event, now)
            case StreamRetrying():
                self._receive_retrying(event, now)
            case StreamCancelled():
                self._receive_cancelled(event, now)
            case ReaderLeft():
                self._receive_reader_left(now)
            case AbilitiesFound():
                self._receive_abilities(event, now)

    def pass_on(self, event: TokensReceived | TextRepeated, *, now: float) -> bool:
        """Count an event, and return True if its chunks can go to the reader unchanged and at once. Most tokens take this fast path.

        If it returns False, it has done nothing, because the event needs more than delivery. Call ``receive`` then.
        """
        attempt, handover = self._writer, self._handover
        if attempt is None or attempt.source != event.source or attempt.state is not AttemptState.WON or attempt.first_token is None:
            return False
        if self._delivery.is_paced or self.finished is not None or attempt.restart_filter is not None:
            return False
        if handover is not None and handover.may_migrate:
            return False
        tokens = event.tokens
        if attempt.is_new:
            if tokens:
                attempt.count(tokens, now - self.began, event.confidences)
        else:
            attempt.tokens += tokens  # not count(), because its rate is already measured, and a call for each batch costs time
            if event.confidences:
                attempt.confidence.record(event.confidences)
        if handover is not None:
            handover.add(event if isinstance(event, TextRepeated) else event.chunks, tokens, attempt.plan.vocabulary)
        if tokens:
            self.meter.record(tokens, now=now)
        return True

    def take_commands(self) -> list[Command]:
        """Return the commands since the last call, in order."""
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float | None:
        """Return when ``handle_deadline`` must be called next, because an attempt or a token is due, or None if nothing is timed."""
        due = self._delivery.next_due()
        if self._orphaned is not None and self.finished is None:
            return self._patience_ends if due is None else min(due, self._patience_ends)
        if self.winner is not None or self.finished is not None:
            return due
        waits = [attempt.plan.wait for attempt in self.attempts.values() if attempt.state is AttemptState.WAITING]
        gate = self.gate.deadline if self.gate is not None and self._has_second_choice() else None
        return min([self.began + wait for wait in waits if wait is not None] + [at for at in (due, gate) if at is not None], default=None)

    def handle_deadline(self, *, now: float) -> None:
        """Open the attempts whose wait is over, and release the tokens that are due."""
        if self.finished is not None:
            return
        if self.winner is None:
            self._start_due(now)
            if self.gate is not None and self._has_second_choice() and now >= (self.gate.deadline or now):
                for attempt in self.attempts.values():
                    if attempt.state is AttemptState.OPEN and not self._is_paused(attempt):
                        self._stop(attempt, LATE if self._had_time(attempt, self.gate, now) else "lost")
                self._let_pass(now, f"no other endpoint had begun after {self.gate.patience:.3g} s")
        if self._orphaned is not None and now >= self._patience_ends:
            self._stop_waiting(now)
        self._release(now)

    # What drivers and reports read

    @property
    def buffered(self) -> int:
        """Number of tokens held back for the reader's pace."""
        return self._delivery.buffered

    @property
    def writer(self) -> str | None:
        """Name of the endpoint whose tokens the reader gets, which is the winner or the one that took over from it."""
        return self._writer.source if self._writer is not None else None

    @property
    def text(self) -> str:
        """The answer's text so far if another endpoint may have to continue it, otherwise ""."""
        return self._handover.transcript.text if self._handover is not None else ""

    @property
    def hand_overs(self) -> Sequence[HandOver]:
        """All hand-overs of the answer so far, in order."""
        return self._handover.hand_overs if self._handover is not None else ()

    @property
    def is_direct(self) -> bool:
        """True if nothing is timed and no other attempt is working, so that all further events come from the writer."""
        winning = self._writer
        if self._delivery.is_paced or winning is None or winning.state is not AttemptState.WON or self._may_migrate:
            return False
        return not any(attempt.is_live for attempt in self.attempts.values() if attempt is not winning)

    @property
    def is_over(self) -> bool:
        """True if the reader has everything and no endpoint is working any more."""
        return self.finished is not None and not any(attempt.is_live for attempt in self.attempts.values())

    @property
    def _may_migrate(self) -> bool:
        return self._handover is not None and self._handover.may_migrate

    # Tokens

    def _receive_tokens(self, event: TokensReceived, now: float) -> None:
        attempt = self._writer
        if attempt is not None and event.source == attempt.source:
            if event.tokens:
                attempt.count(event.tokens, now - self.began, event.confidences)
            if attempt.state is AttemptState.WON and self.finished is None:
                self._receive_answer(attempt, event, now)
            else:
                attempt.count_late(event.tokens)
            return
        attempt = self.attempts[event.source]
        if event.tokens and attempt.opened is not None:
            attempt.count(event.tokens, now - self.began, event.confidences)
        if attempt.state is AttemptState.LOST:
            attempt.count_late(event.tokens)
            if event.tokens and self.plan.explore:
                self._stop(attempt, "explored")
        elif attempt.state is AttemptState.OPEN:
            attempt.hold(event.chunks)
            if self.finished is None:
                self._receive_beginning(attempt, event, now)

    def _receive_beginning(self, attempt: Attempt, event: TokensReceived, now: float) -> None:
        """Let an attempt win by its first tokens, unless the gate holds them or the device has already begun and is sure of its answer."""
        gate = self.gate
        if gate is not None and gate.holds(attempt.source):
            gate.take(event, thinks=bool(attempt.thinks))
            if gate.verdict is None and gate.tokens and (alone := self._why_alone(gate)):
                self._let_pass(now, alone)
            elif gate.verdict is None and gate.is_ready:
                self._grade(gate, now)
        elif event.tokens or (event.has_output and self._is_alone(attempt)):
            if gate is not None and self._is_sure(gate, now):
                attempt.count_late(event.tokens)
                self._let_pass(now)
            else:
                self._win(attempt, event.tokens, now)

    def _is_sure(self, gate: HeldBeginning, now: float) -> bool:
        """Return True if the device has begun and is sure of its beginning. It is graded now, because another endpoint has begun too."""
        if not gate.is_holding or gate.verdict is not None or self.attempts[gate.plan.source].state is not AttemptState.OPEN:
            return False
        return gate.grade(is_complete=False, at=now - self.began)

    def _is_alone(self, attempt: Attempt) -> bool:
        """Return True if no other attempt is about to write the first token."""
        return not any(other.may_begin for other in self.attempts.values() if other is not attempt and not self._is_paused(other))

    def _receive_answer(self, attempt: Attempt, event: TokensReceived, now: float) -> None:
        """Deliver the new part of an event. A restarted answer first repeats text that the reader already has."""
        new = event if attempt.restart_filter is None else attempt.drop_repeated(event)
        if isinstance(new, Diverged):
            self._stop(attempt, "diverged")
            self._handle_divergence(attempt, new, now)
        elif new is not None:
            self._deliver(new.source, new.chunks, new.tokens, now)
            self._consider_migration(now)

    def _handle_divergence(self, attempt: Attempt, diverged: Diverged, now: float) -> None:
        """Fail an attempt because its restarted answer differs from the text that the reader has."""
        error = EndpointProtocolError(str(diverged), endpoint=attempt.source)
        attempt.fail(now - self.began, error)
        self._fail_over(attempt, error, now)

    def _win(self, attempt: Attempt, tokens: int, now: float) -> None:
        attempt.win()
        self._decide(attempt)
        self._deliver(attempt.source, attempt.take_held(), tokens, now)
        self._consider_migration(now)

    def _win_after_end(self, attempt: Attempt, tokens: int, now: float) -> None:
        """Let an attempt win whose answer ended before the race was decided."""
        attempt.win_after_end()
        self._decide(attempt)
        if attempt.held:
            self._deliver(attempt.source, attempt.take_held(), tokens, now)
        self._complete(attempt, now)

    def _decide(self, winner: Attempt) -> None:
        """End the race. No other attempt will start, and the running ones have lost."""
        self.winner, self._writer = winner.source, winner
        if self.gate is not None and not self.gate.is_open:
            self.gate.open()
            self.attempts[self.gate.plan.source].take_held()
        for other in self.attempts.values():
            if other.state is AttemptState.WAITING:
                other.spare()
            elif other.state is AttemptState.OPEN and other is not winner:
                other.lose()
                if not self.plan.explore or other.first_token is not None:
                    self._stop(other, "lost")

    # The gate

    def _grade(self, gate: HeldBeginning, now: float, *, is_complete: bool = False) -> None:
        """Let the device win if it is sure of its answer. Otherwise pause it, and wait for another endpoint to answer."""
        if gate.grade(is_complete=is_complete, at=now - self.began):
            self._let_pass(now)
            return
        alone = self._why_alone(gate)
        if alone or not gate.has_time(now - self.began):
            self._let_pass(now, alone or "too little is left of the time for the whole answer")
            return
        device = self.attempts[gate.plan.source]
        others = [attempt for attempt in self.attempts.values() if attempt is not device and attempt.state is AttemptState.OPEN]
        is_asked = any(attempt.trouble is None for attempt in others)
        asked = None if is_asked or (others and gate.plan.obstacle) else self._start_next(now)
        gate.wait(now, at=now - self.began, asked=None if asked is None else asked.source)
        if device.state is AttemptState.OPEN:
            gate.is_paused = True
            device.end_rating()
            self._commands.append(PauseStream(device.source))

    def _had_time(self, attempt: Attempt, gate: HeldBeginning, now: float) -> bool:
        """Return True if the attempt had the whole waiting time to begin. An attempt that was opened later isn't to blame."""
        opened = now if attempt.opened is None else self.began + attempt.opened
        return now - opened >= gate.plan.max_wait - _EPSILON

    def _why_alone(self, gate: HeldBeginning) -> str:
        """Return why no other endpoint can answer instead of the device, as a clause, or "" if one can."""
        others = [attempt for attempt in self.attempts.values() if attempt.source != gate.plan.source]
        waiting = [attempt for attempt in others if attempt.state is AttemptState.WAITING]
        if any(attempt.state is AttemptState.OPEN for attempt in others):
            return ""
        if not waiting:
            return "no other endpoint is left"
        return gate.plan.obstacle if all(attempt.plan.wait is None for attempt in waiting) else ""

    def _let_pass(self, now: float, because: str = "") -> None:
        """Let the device win with all tokens that were held. ``because`` says why, if the device is unsure."""
        gate = self.gate
        assert gate is not None, "only a gate holds tokens"
        device = self.attempts[gate.plan.source]
        gate.open(because)
        if device.state is AttemptState.ENDED:
            self._win_after_end(device, gate.tokens, now)
            return
        if gate.is_paused:
            self._commands.append(ResumeStream(device.source))
        self._win(device, gate.tokens, now)

    def _has_second_choice(self) -> bool:
        """Return True if the gate holds an answer that can be delivered if no other endpoint gives one."""
        gate = self.gate
        return gate is not None and gate.waits and self.attempts[gate.plan.source].state is not AttemptState.FAILED

    def _deliver(self, source: str, chunks: list[ChatCompletionChunk], tokens: int, now: float) -> None:
        if self._handover is not None:
            self._handover.add(chunks, tokens, self.attempts[source].plan.vocabulary)
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
        was = attempt.state
        attempt.end(now - self.began, event.finish_reason, event.usage)
        if was is AttemptState.WON:
            diverged = attempt.restart_filter.end() if attempt.restart_filter is not None else None
            if diverged is not None:
                self._handle_divergence(attempt, diverged, now)
            else:
                self._complete(attempt, now)
        elif was is AttemptState.PREPARING:
            self._receive_prepared(attempt, now)
        elif was is AttemptState.OPEN and self.gate is not None and self.gate.is_holding and self.gate.holds(attempt.source):
            if self.gate.verdict is None and self.finished is None:
                self._grade(self.gate, now, is_complete=True)
        elif was is AttemptState.OPEN:
            self._end_without_winner(now)

    def _complete(self, attempt: Attempt, now: float) -> None:
        self.finish_reason = attempt.finish_reason
        self._is_complete = True
        self._stop_preparing()
        self._finish_if_empty(now)

    def _finish_if_empty(self, now: float) -> None:
        """Finish the delivery if the answer is complete and nothing is held back."""
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
        was = attempt.state
        attempt.fail(now - self.began, event.error)
        if was is AttemptState.WON:
            self._fail_over(attempt, event.error, now)
        elif was is AttemptState.PREPARING:
            self._continue_after_reading(attempt, now)
        elif was is AttemptState.OPEN and self._is_fatal(attempt, event.error):
            self._fail(event.error, now)
            self._stop_all("refused")
        elif was is AttemptState.OPEN:
            self._start_next(now)
            self._end_without_winner(now)

    def _receive_retrying(self, event: StreamRetrying, now: float) -> None:
        """Let another endpoint begin at once, unless one is working, because this attempt has failed and will retry only later."""
        attempt = self.attempts[event.source]
        attempt.setback = event.error
        if self.winner is not None or self.finished is not None or self.plan.fatal == "all":
            return
        others = [other for other in self.attempts.values() if other is not attempt]
        if any(other.is_live and other.trouble is None and not self._is_paused(other) for other in others):
            return
        if not self.plan.hedges and any(other.state is AttemptState.WAITING for other in others):
            attempt.fail(now - self.began, event.error)
            self._stop(attempt, "asked elsewhere")
        begun = self._start_next(now)
        is_last = not any(other.state is AttemptState.OPEN and not self._is_paused(other) for other in others)
        is_late = self.gate is not None and now + event.wait >= (self.gate.deadline or now)
        if begun is None and is_last and is_late and self._has_second_choice():
            self._let_pass(now, "no other endpoint will begin in time")

    def _is_fatal(self, failed: Attempt, error: EndpointError) -> bool:
        """Return True if this failure fails the whole answer, and no other endpoint may answer instead.

        If the gate holds the device's beginning, the device continues, as a winner would. If the device is unsure of it, "all" still
        makes any failure fatal.
        """
        if self.winner is not None or self.finished is not None:
            return False
        is_late = self.plan.is_timed and is_out_of_time(error)
        if is_late:
            return True
        gate = self.gate
        if gate is not None and gate.is_holding and failed.source != gate.plan.source:
            is_there = self.attempts[gate.plan.source].state in {AttemptState.OPEN, AttemptState.ENDED}
            if is_there and (gate.verdict is None or self.plan.fatal != "all"):
                return False
        return self.plan.fatal == "all" or (self.plan.fatal == "refusals" and is_refusal(error))

    def _is_paused(self, attempt: Attempt) -> bool:
        return self.gate is not None and self.gate.waits and attempt.source == self.gate.plan.source

    def _stop_all(self, reason: str) -> None:
        for attempt in self.attempts.values():
            if attempt.state is AttemptState.WAITING:
                attempt.spare()
            elif attempt.is_live:
                self._stop(attempt, reason)

    def _fail(self, error: StreamcoError, now: float) -> None:
        if self.finished is not None:
            return
        self._deliver_broken(now)
        self._commands += self._delivery.flush(now=now)
        self._stop_preparing()
        self.finished, self.error = now, error
        self._commands.append(FailDelivery(error))

    def _receive_cancelled(self, event: StreamCancelled, now: float) -> None:
        attempt = self.attempts[event.source]
        attempt.cancel(now - self.began)
        if attempt is self._successor:
            self._take_over(attempt, now)
        else:
            self._consider_migration(now)

    def _receive_reader_left(self, now: float) -> None:
        if self.finished is None:
            self.finished = now
        self._stop_all("reader left")
        self.dropped += self._delivery.drop()

    def _stop(self, attempt: Attempt, reason: str) -> None:
        """Command the cancellation of an attempt, unless this was done before. So the first reason counts."""
        if attempt.request_stop():
            self._commands.append(CancelStream(attempt.source, reason))

    # Hand-over

    def _fail_over(self, failed: Attempt, error: EndpointError, now: float) -> None:
        """Let another attempt continue from the last good token, or fail the delivery."""
        is_late = self.plan.is_timed and is_out_of_time(error)
        if self._handover is not None and self.finished is None and not is_late and self._handover.must_wait(self.attempts):
            if self._orphaned is None:
                self._orphaned, self._patience_ends = (failed, error), now + _PATIENCE
            return
        self._orphaned = None
        successor = self._handover.find_successor(self.attempts) if self._handover is not None else None
        if successor is None or self._handover is None or self.finished is not None or is_late:
            if self._handover is not None and not is_late and self._handover.fails_over:
                error.unable = tuple(each.source for each in self.attempts.values() if each.can_restart)
            self._fail(self._combine_mid_errors(error), now)
            return
        self._handover.record_failover(failed, successor, at=now - self.began, buffered=self._delivery.ahead(now=now))
        self._pass_to(successor, now)

    def _receive_abilities(self, event: AbilitiesFound, now: float) -> None:
        self.attempts[event.source].learn(continues=event.continues, vocabulary=event.vocabulary)
        if self._orphaned is not None:
            self._fail_over(*self._orphaned, now)

    def _stop_waiting(self, now: float) -> None:
        """Stop waiting to learn what the remaining endpoints can do, and continue with what is known."""
        assert self._orphaned is not None, "something is waited for"
        for attempt in self.attempts.values():
            attempt.learn(continues=attempt.plan.continues, vocabulary=attempt.plan.vocabulary)
        self._fail_over(*self._orphaned, now)

    def _pass_to(self, successor: Attempt, now: float, *, waits: bool = False) -> None:
        """Let the successor write from now on.

        Its current work is cancelled first. If ``waits`` is True, it may finish reading in advance instead.
        """
        self._writer = successor
        self._stop_preparing(except_for=successor)
        if successor.is_live:
            self._successor = successor
            if not waits:
                self._stop(successor, "takes over")
        else:
            self._take_over(successor, now)

    def _take_over(self, attempt: Attempt, now: float) -> None:
        assert self._handover is not None, "only answers that may be handed over have successors"
        self._successor = None
        if self.finished is not None:
            return
        partial = self._handover.partial()
        limit = self.plan.max_tokens
        if limit is not None and partial.is_counted and partial.tokens >= limit:
            self.finish_reason, self._is_complete = "length", True
            self._finish_if_empty(now)
            return
        if attempt.plan.continues:
            self._writer = self._replace(attempt, attempt.take_over(partial.tokens, now - self.began))
            self._commands.append(ContinueStream(attempt.source, partial))
        else:
            self._writer = self._replace(attempt, attempt.restart(partial, now - self.began))
            self._commands.append(OpenStream(attempt.source))

    def _replace(self, attempt: Attempt, new: Attempt) -> Attempt:
        """Store an endpoint's next attempt and return it. The earlier attempt is kept for the report if it was opened."""
        if attempt.opened is not None:
            self.past_attempts.append(attempt)
        self.attempts[attempt.source] = new
        return new

    def _combine_mid_errors(self, last: EndpointError) -> StreamcoError:
        """Return the last endpoint's error, or all errors together if the answer had been handed over before."""
        if self._handover is None or not self._handover.hand_overs:
            return last
        errors = {attempt.source: attempt.error for attempt in self.attempts.values() if attempt.error is not None}
        return AllEndpointsFailed(errors, partial=self.text)

    # Planned migration

    def _consider_migration(self, now: float) -> None:
        """Ask the migration controller whether the answer should move, and carry out its decision."""
        source = self._writer
        if self._handover is None or source is None or source.state is not AttemptState.WON or self.finished is not None:
            return
        match self._handover.consider_migration(source, self.attempts, buffered=self._delivery.ahead(now=now), now=now - self.began):
            case Release(target):
                self._stop(self.attempts[target], "wanted")
            case Prepare(target):
                self._prepare(self.attempts[target], now)
            case Switch(target, waits):
                self._migrate(source, self.attempts[target], now, waits=waits)

    def _prepare(self, attempt: Attempt, now: float) -> None:
        """Make an endpoint read the prompt and the answer so far in advance, in a separate attempt."""
        assert self._handover is not None, "only a migration prepares"
        partial = self._handover.partial()
        read_ahead = ReadAhead(partial.tokens, self._handover.unread(attempt, partial.tokens))
        self._replace(attempt, attempt.prepare(now - self.began, read_ahead))
        self._commands.append(PrepareStream(attempt.source, partial))

    def _receive_prepared(self, attempt: Attempt, now: float) -> None:
        assert self._handover is not None, "only a migration prepares"
        read = attempt.finish_reading()
        if attempt.opened is not None and attempt.stopped is not None:
            self._handover.record_copied(attempt, tokens=read.unread, seconds=attempt.stopped - attempt.opened)
        self._continue_after_reading(attempt, now)

    def _continue_after_reading(self, attempt: Attempt, now: float) -> None:
        """Let a successor that was reading in advance take over, even if that failed, because no endpoint is writing any more."""
        if attempt is not self._successor:
            self._consider_migration(now)
        elif not attempt.is_stopping:
            self._take_over(attempt, now)

    def _migrate(self, source: Attempt, target: Attempt, now: float, *, waits: bool) -> None:
        """Let the target continue, and stop the source. Tokens that the source still generates are not used."""
        assert self._handover is not None, "only a controller plans migrations"
        self._handover.record_migration(source, target, at=now - self.began, buffered=self._delivery.ahead(now=now))
        source.lose()
        self._pass_to(target, now, waits=waits)
        self._stop(source, "handed over")

    def _stop_preparing(self, except_for: Attempt | None = None) -> None:
        for attempt in self.attempts.values():
            if attempt.state is AttemptState.PREPARING and attempt is not except_for:
                self._stop(attempt, "not needed")

    # Starts

    def _start_due(self, now: float) -> None:
        for attempt in self.attempts.values():
            if attempt.state is AttemptState.WAITING and attempt.plan.wait is not None and self.began + attempt.plan.wait <= now:
                self._open(attempt, now)

    def _start_next(self, now: float) -> Attempt | None:
        """Open the untried attempt with the shortest wait, or else one without a wait, and return it, or None if there is none."""
        waiting = [attempt for attempt in self.attempts.values() if attempt.state is AttemptState.WAITING]
        if not waiting:
            return None
        attempt = min(waiting, key=lambda attempt: (attempt.plan.wait is None, attempt.plan.wait or 0.0))
        self._open(attempt, now)
        return attempt

    def _open(self, attempt: Attempt, now: float) -> None:
        attempt.open(now - self.began)
        self._commands.append(OpenStream(attempt.source))

    def _end_without_winner(self, now: float) -> None:
        """If no attempt is open any more, deliver the held answer, or an empty one, or fail."""
        attempts = self.attempts.values()
        if self.finished is not None:
            return
        if self._has_second_choice():
            if not any(attempt.may_begin for attempt in attempts if not self._is_paused(attempt)):
                self._let_pass(now, "no other endpoint gave an answer")
            return
        if any(attempt.state is AttemptState.OPEN for attempt in attempts):
            return
        empty = next((attempt for attempt in attempts if attempt.state is AttemptState.ENDED), None)
        is_broken = self.gate is not None and self.gate.is_holding
        if empty is not None and not is_broken:
            self._win_after_end(empty, 0, now)
            return
        self._fail(self._combine_errors(list(attempts)), now)

    def _deliver_broken(self, now: float) -> None:
        """Deliver the tokens that the gate holds before the error is raised, so that the partial answer isn't lost."""
        gate = self.gate
        if gate is None or not gate.is_holding or self.winner is not None:
            return
        broken = self.attempts[gate.plan.source]
        gate.open("no other endpoint gave an answer")
        broken.win_after_end()
        self.winner, self._writer = broken.source, broken
        self._deliver(broken.source, broken.take_held(), gate.tokens, now)

    def _combine_errors(self, attempts: Sequence[Attempt]) -> StreamcoError:
        failed = {attempt.source: attempt.error for attempt in attempts if attempt.error is not None}
        if not failed:
            return EndpointProtocolError("expected an answer or an error, got neither")
        errors = {**dict(self.plan.missing), **failed}
        return AllEndpointsFailed(errors) if len(errors) > 1 else next(iter(failed.values()))
