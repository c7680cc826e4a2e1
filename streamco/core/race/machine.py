"""One answer from several endpoints: who starts when, who wins, what the reader gets (DiSCo 4.2, section "Race").

The first *content* token wins: role deltas, empty choices and usage don't count, but the winner's are delivered in their place. A leg
that fails before anybody won lets the next one start at once, whatever its wait. When nobody is left the reader gets the error, after all
text that came. An answer whose endpoint fails in the middle, or writes at too high a price, goes on at another (``core.relay``).
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
        starts: the legs; those without a wait stand in for failed ones, in this order. pace: tokens per second at the reader, None:
        deliver at once. explore: let a losing leg run to its first token, to learn how long that takes. reader_rate: tokens per second of
        the virtual reader that quality is measured with; None: the pace, or the reading speed. on_failure: what becomes of an answer
        whose endpoint fails in the middle: another leg that can goes on with it, or the error is raised; "restart": if none can, one makes
        it anew. max_tokens: limit of the
        answer's length; a leg that takes over gets what is left of it. missing: endpoints that could take no part, with their errors;
        told to the reader when those that could fail too. migration: what planned moves rest on; None: there are none.
    """

    starts: tuple[AttemptPlan, ...]
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
        if not plan.starts:
            raise AssertionError("a session needs a leg")
        self.plan = plan
        self.legs = {start.source: Attempt(start) for start in plan.starts}
        self.past_legs: list[Attempt] = []  # earlier parts of endpoints that have taken over since
        self._delivery = Delivery(plan.pace, plan.reader_rate or plan.pace or READING)
        self.meter = self._delivery.meter
        self.winner: str | None = None
        self.began = 0.0
        self.finished: float | None = None
        self.error: StreamcoError | None = None
        self.finish_reason: str | None = None
        self.dropped = 0  # tokens that were held for the reader's pace when the reader left
        self._winning: Attempt | None = None
        self._commands: list[Command] = []
        self._relay = _make_relay(plan)
        self._heir: Attempt | None = None  # goes on as soon as its earlier work is cancelled
        self._is_complete = False  # the winner ended; what is buffered is still to be delivered

    # The machine protocol

    def start(self, *, now: float) -> None:
        """Open the legs that wait for nothing."""
        self.began = now
        self._start_due(now)
        if not any(leg.wait is not None for leg in self.legs.values()):
            self._start_next(now)

    def receive(self, event: Event, *, now: float) -> None:
        """Take note of what an endpoint or the reader did; late news from legs that are out is only counted."""
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
        leg = self._winning
        if leg is None or leg.source != event.source or leg.state is not AttemptState.WON or leg.first_token is None:
            return False
        if self._delivery.is_paced or self.finished is not None or leg.is_new or leg.overlap is not None or self._may_move:
            return False
        tokens = event.tokens
        leg.tokens += tokens
        if self._relay is not None:
            self._relay.add(event.chunks, tokens, leg.vocabulary)
        if tokens:
            self.meter.record(tokens, now=now)
        return True

    def take_commands(self) -> list[Command]:
        """Return what to do, in order."""
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float | None:
        """Return the next leg's start or the next token's release, whichever comes first."""
        deadline = self._delivery.next_due()
        if self.winner is None and self.finished is None:
            for leg in self.legs.values():
                if leg.state is AttemptState.WAITING and leg.wait is not None:
                    deadline = self.began + leg.wait if deadline is None else min(deadline, self.began + leg.wait)
        return deadline

    def handle_deadline(self, *, now: float) -> None:
        """Start the legs whose wait is over and release the tokens that are due."""
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
    def writing(self) -> str | None:
        """Whose tokens the reader gets: the winner, or who took over from it."""
        return self._winning.source if self._winning is not None else None

    @property
    def hand_overs(self) -> Sequence[HandOver]:
        """How the answer changed endpoints, in order."""
        return self._relay.hand_overs if self._relay is not None else ()

    @property
    def is_direct(self) -> bool:
        """True if all that can happen now is that the winner goes on: nothing is timed and nobody else works."""
        winning = self._winning
        if self._delivery.is_paced or winning is None or winning.state is not AttemptState.WON or self._may_move:
            return False
        return not any(leg.is_live for leg in self.legs.values() if leg is not winning)

    @property
    def is_over(self) -> bool:
        """True if the reader has everything and nobody works any more."""
        return self.finished is not None and not any(leg.is_live for leg in self.legs.values())

    @property
    def _may_move(self) -> bool:
        return self._relay is not None and self._relay.may_move

    # Tokens

    def _receive_tokens(self, event: TokensReceived, now: float) -> None:
        leg = self._winning
        if leg is not None and event.source == leg.source:
            if event.tokens:
                leg.count(event.tokens, now - self.began)
            if leg.state is AttemptState.WON and self.finished is None:
                self._receive_answer(leg, event, now)
            else:
                leg.late += event.tokens
            return
        leg = self.legs[event.source]
        if event.tokens and leg.opened is not None:
            leg.count(event.tokens, now - self.began)
        if leg.state is AttemptState.LOST:
            leg.late += event.tokens
            if event.tokens and self.plan.explore:
                self._stop(leg, "explored")
        elif leg.state is AttemptState.OPEN:
            leg.held += event.chunks
            if event.tokens and self.finished is None:
                self._win(leg, event.tokens, now)

    def _receive_answer(self, leg: Attempt, event: TokensReceived, now: float) -> None:
        """The answer goes on; whoever makes it anew first makes what the reader has."""
        new: TokensReceived | Diverged | None = event
        if leg.overlap is not None:
            new = leg.overlap.feed(event)
            leg.late += event.tokens - (new.tokens if isinstance(new, TokensReceived) else 0)
            if not leg.overlap.is_open:
                leg.overlap = None
        if isinstance(new, Diverged):
            self._stop(leg, "departed")
            self._depart(leg, new, now)
        elif new is not None:
            self._deliver(new.source, new.chunks, new.tokens, now)
            self._consider_moving(now)

    def _depart(self, leg: Attempt, departed: Diverged, now: float) -> None:
        """A leg that makes the answer anew makes another one: it is of no use."""
        error = EndpointProtocolError(str(departed), endpoint=leg.source)
        leg.state, leg.stopped, leg.error = AttemptState.FAILED, now - self.began, error
        self._fail_over(leg, error, now)

    def _win(self, leg: Attempt, tokens: int, now: float) -> None:
        self.winner, self._winning, leg.state, leg.has_won = leg.source, leg, AttemptState.WON, True
        for other in self.legs.values():
            if other.state is AttemptState.WAITING:
                other.state = AttemptState.SPARED
            elif other.state is AttemptState.OPEN:
                other.state = AttemptState.LOST
                if not self.plan.explore:
                    self._stop(other, "lost")
        held, leg.held = leg.held, []
        self._deliver(leg.source, held, tokens, now)
        self._consider_moving(now)

    def _deliver(self, source: str, chunks: list[ChatCompletionChunk], tokens: int, now: float) -> None:
        if self._relay is not None:
            self._relay.add(chunks, tokens, self.legs[source].vocabulary)
        self._commands += self._delivery.take(source, chunks, tokens, now=now)
        self._finish_if_empty(now)

    def _release(self, now: float) -> None:
        self._commands += self._delivery.release(now=now)
        self._finish_if_empty(now)

    # Ends

    def _receive_end(self, event: StreamEnded, now: float) -> None:
        leg = self.legs[event.source]
        if not leg.is_live:
            return
        was, leg.state, leg.stopped = leg.state, AttemptState.ENDED, now - self.began
        leg.usage, leg.finish_reason = event.usage, event.finish_reason
        if was is AttemptState.WON:
            departed = leg.overlap.end() if leg.overlap is not None else None
            if departed is not None:
                self._depart(leg, departed, now)
            else:
                self._complete(leg, now)
        elif was is AttemptState.PREPARING:
            self._receive_prepared(leg, now)
        elif was is AttemptState.OPEN:
            self._settle_without_winner(now)

    def _complete(self, leg: Attempt, now: float) -> None:
        self.finish_reason = leg.finish_reason
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
        leg = self.legs[event.source]
        if not leg.is_live:
            return
        was, leg.state, leg.stopped, leg.error = leg.state, AttemptState.FAILED, now - self.began, event.error
        if was is AttemptState.WON:
            self._fail_over(leg, event.error, now)
        elif was is AttemptState.PREPARING:
            self._go_on_after_reading(leg, now)
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
        leg = self.legs[event.source]
        leg.is_stopping = False
        if leg.is_live:
            leg.state, leg.stopped = AttemptState.CANCELLED, now - self.began
        if leg is self._heir:
            self._take_over(leg, now)
        else:
            self._consider_moving(now)

    def _receive_reader_left(self, now: float) -> None:
        if self.finished is None:
            self.finished = now
        for leg in self.legs.values():
            if leg.state is AttemptState.WAITING:
                leg.state = AttemptState.SPARED
            elif leg.is_live:
                self._stop(leg, "reader left")
        self.dropped += self._delivery.drop()

    def _stop(self, leg: Attempt, reason: str) -> None:
        """Have a leg cancelled, once: further reasons change nothing."""
        if not leg.is_stopping:
            leg.is_stopping = True
            self._commands.append(CancelStream(leg.source, reason))

    # Hand-over

    def _fail_over(self, failed: Attempt, error: EndpointError, now: float) -> None:
        """The leg that was writing is out: let another go on from the last good token, or tell the reader."""
        heir = self._relay.find_heir(self.legs) if self._relay is not None else None
        if heir is None or self._relay is None or self.finished is not None:
            self._fail(self._combine_mid_errors(error), now)
            return
        self._relay.fail_over(failed, heir, at=now - self.began, buffered=self._delivery.ahead(now=now))
        self._pass_to(heir, now)

    def _pass_to(self, heir: Attempt, now: float, *, waits: bool = False) -> None:
        """From now on the heir writes; what it did before is cancelled first, or, where that is worth it, awaited."""
        self._winning = heir
        self._stop_preparing(but=heir)
        if heir.is_live:
            self._heir = heir
            if not waits:
                self._stop(heir, "takes over")
        else:
            self._take_over(heir, now)

    def _take_over(self, leg: Attempt, now: float) -> None:
        assert self._relay is not None, "only handed-over answers have heirs"
        self._heir = None
        if self.finished is not None:
            return
        partial = self._relay.partial()
        limit = self.plan.max_tokens
        if limit is not None and partial.tokens >= limit:
            self.finish_reason, self._is_complete = "length", True
            self._finish_if_empty(now)
            return
        if leg.continues:
            self._winning = self._replace(leg, leg.succeed(partial.tokens, now - self.began))
            self._commands.append(ContinueStream(leg.source, partial))
        else:
            self._winning = self._replace(leg, leg.begin_anew(partial, now - self.began))
            self._commands.append(OpenStream(leg.source))

    def _replace(self, leg: Attempt, new: Attempt) -> Attempt:
        """Return an endpoint's next part; the one before is kept for the report."""
        if leg.opened is not None:
            self.past_legs.append(leg)
        self.legs[leg.source] = new
        return new

    def _combine_mid_errors(self, last: EndpointError) -> StreamcoError:
        """Return one endpoint's own error, or all of them where several have tried."""
        if self._relay is None or not self._relay.hand_overs:
            return last
        errors = {leg.source: leg.error for leg in self.legs.values() if leg.error is not None}
        return AllEndpointsFailed(errors, partial=self._relay.transcript.text)

    # Planned moves

    def _consider_moving(self, now: float) -> None:
        """Let the mover look at the answer as it is now."""
        source = self._winning
        if self._relay is None or source is None or source.state is not AttemptState.WON or self.finished is not None:
            return
        match self._relay.consider_move(source, self.legs, buffered=self._delivery.ahead(now=now), now=now - self.began):
            case Release(target):
                self._stop(self.legs[target], "wanted")
            case Prepare(target):
                self._prepare(self.legs[target], now)
            case Switch(target, waits):
                self._move(source, self.legs[target], now, waits=waits)

    def _prepare(self, leg: Attempt, now: float) -> None:
        """Let a leg read ahead; its next round is the same leg's."""
        assert self._relay is not None, "only a mover prepares"
        partial = self._relay.partial()
        new = self._replace(leg, leg.prepare(now - self.began))
        new.reads = self._relay.unread(new, partial.tokens)
        new.copies = partial.tokens
        self._commands.append(PrepareStream(leg.source, partial))

    def _receive_prepared(self, leg: Attempt, now: float) -> None:
        assert self._relay is not None, "only a mover prepares"
        leg.state, leg.kept = AttemptState.PREPARED, leg.copies
        if leg.opened is not None and leg.stopped is not None:
            self._relay.note_copied(leg, tokens=leg.reads, seconds=leg.stopped - leg.opened)
        self._go_on_after_reading(leg, now)

    def _go_on_after_reading(self, leg: Attempt, now: float) -> None:
        """A reading ahead is over: who was awaited takes over, whether it could read or not, for nobody writes any more."""
        if leg is not self._heir:
            self._consider_moving(now)
        elif not leg.is_stopping:
            self._take_over(leg, now)

    def _move(self, source: Attempt, target: Attempt, now: float, *, waits: bool) -> None:
        """The target goes on, the source stops; what it makes until then nobody reads."""
        assert self._relay is not None, "only a mover moves"
        self._relay.move(source, target, at=now - self.began, buffered=self._delivery.ahead(now=now))
        source.state = AttemptState.LOST
        self._pass_to(target, now, waits=waits)
        self._stop(source, "handed over")

    def _stop_preparing(self, but: Attempt | None = None) -> None:
        for leg in self.legs.values():
            if leg.state is AttemptState.PREPARING and leg is not but:
                self._stop(leg, "not needed")

    # Starts

    def _start_due(self, now: float) -> None:
        for leg in self.legs.values():
            if leg.state is AttemptState.WAITING and leg.wait is not None and self.began + leg.wait <= now:
                self._open(leg, now)

    def _start_next(self, now: float) -> None:
        """Somebody failed: open whoever has not been tried, first those that only wait, then the stand-ins, one at a time."""
        waiting = [leg for leg in self.legs.values() if leg.state is AttemptState.WAITING]
        if waiting:
            self._open(min(waiting, key=lambda leg: (leg.wait is None, leg.wait or 0.0)), now)

    def _open(self, leg: Attempt, now: float) -> None:
        leg.state, leg.opened = AttemptState.OPEN, now - self.began
        self._commands.append(OpenStream(leg.source))

    def _settle_without_winner(self, now: float) -> None:
        """Nobody has won and a leg is out: wait for the others, or take an empty answer, or give up."""
        legs = self.legs.values()
        if self.finished is not None or any(leg.state is AttemptState.OPEN for leg in legs):
            return
        empty = next((leg for leg in legs if leg.state is AttemptState.ENDED), None)
        if empty is not None:
            for leg in legs:
                if leg.state is AttemptState.WAITING:
                    leg.state = AttemptState.SPARED
            self.winner, self._winning, empty.has_won = empty.source, empty, True
            if empty.held:
                self._deliver(empty.source, empty.held, 0, now)
            self._complete(empty, now)
            return
        self._fail(self._combine_errors(list(legs)), now)

    def _combine_errors(self, legs: Sequence[Attempt]) -> StreamcoError:
        failed = {leg.source: leg.error for leg in legs if leg.error is not None}
        if not failed:
            return EndpointProtocolError("expected an answer or an error, got neither")
        errors = {**dict(self.plan.missing), **failed}
        return AllEndpointsFailed(errors) if len(errors) > 1 else next(iter(failed.values()))


def _make_relay(plan: RacePlan) -> Handover | None:
    """Return what hands the answer over, where that may happen at all."""
    fails_over = plan.on_failure != "raise"
    if len(plan.starts) < 2 or not (fails_over or plan.migration is not None):
        return None
    mover = MigrationController(plan.migration) if plan.migration is not None else None
    return Handover(mover, fails_over=fails_over, begins_anew=plan.on_failure == "restart")
