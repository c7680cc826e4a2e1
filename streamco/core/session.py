"""One answer from several endpoints: who starts when, who wins, what the reader gets (DiSCo 4.2, section "Race").

The life of a leg (one endpoint's part in the answer)::

    waiting ──▶ open ──▶ won ──▶ ended | failed
       │          ├────▶ lost ──▶ cancelled            (another leg had the first content token)
       │          └────▶ failed
       └─────▶ spared                                  (never started)

The first *content* token wins: role deltas, empty choices and usage don't count, but the winner's are delivered in their place. A leg
that fails before anybody won lets the next one start at once, whatever its wait. When nobody is left the reader gets the error, after all
text that came.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from msgspec import Struct

from streamco.chunks import ChatCompletionChunk, CompletionUsage
from streamco.commands import CancelStream, Command, DeliverTokens, FailDelivery, FinishDelivery, OpenStream
from streamco.core.meter import Meter
from streamco.core.pacer import Pacer, weigh_chunk
from streamco.errors import AllEndpointsFailed, EndpointError, EndpointProtocolError, StreamcoError
from streamco.events import Event, ReaderLeft, StreamCancelled, StreamEnded, StreamFailed, TokensReceived

__all__ = ["Leg", "LegState", "SessionMachine", "SessionPlan", "Start"]


class Start(Struct, frozen=True):
    """When a leg starts: ``wait`` seconds after the request; None: only if the others fail."""

    source: str
    wait: float | None


class SessionPlan(Struct, frozen=True, kw_only=True):
    """Everything a session is told at its beginning; with the events it reproduces the session.

    Args:
        starts: the legs; those without a wait stand in for failed ones, in this order.
        pace: tokens per second at the reader, None: deliver at once.
        explore: let a losing leg run to its first token, to learn how long that takes.
        reader_rate: tokens per second of the virtual reader that quality is measured with; None: the pace, or the reading speed.
        missing: endpoints that could take no part, with their errors; told to the reader when those that could fail too.
    """

    starts: tuple[Start, ...]
    pace: float | None = None
    explore: bool = False
    reader_rate: float | None = None
    missing: tuple[tuple[str, EndpointError], ...] = ()


class LegState(Enum):
    """Where a leg stands."""

    WAITING = auto()
    OPEN = auto()
    WON = auto()
    ENDED = auto()
    LOST = auto()
    CANCELLED = auto()
    FAILED = auto()
    SPARED = auto()


_LIVE = (LegState.OPEN, LegState.WON, LegState.LOST)


class Leg:
    """One endpoint's part: times in seconds since the request began, tokens as far as they are known."""

    def __init__(self, source: str, wait: float | None) -> None:
        self.source = source
        self.wait = wait
        self.state = LegState.WAITING
        self.opened: float | None = None
        self.first_token: float | None = None
        self.stopped: float | None = None
        self.tokens = 0
        self.has_won = False
        self.is_stopping = False  # its cancel was commanded
        self.finish_reason: str | None = None
        self.usage: CompletionUsage | None = None
        self.error: EndpointError | None = None
        self.held: list[ChatCompletionChunk] = []  # chunks without content from before the race was decided

    @property
    def is_live(self) -> bool:
        """Whether the endpoint still works on it, or is being cancelled."""
        return self.state in _LIVE

    @property
    def ttft(self) -> float | None:
        """Seconds from opening to the first content token."""
        return None if self.first_token is None or self.opened is None else self.first_token - self.opened


class SessionMachine:
    """The race and the delivery of one answer.

    Args:
        plan: what was decided before it starts.
    """

    def __init__(self, plan: SessionPlan) -> None:
        if not plan.starts:
            raise AssertionError("a session needs a leg")
        self.plan = plan
        self.legs = {start.source: Leg(start.source, start.wait) for start in plan.starts}
        self.meter = Meter(plan.reader_rate or plan.pace or 4.8)
        self.winner: str | None = None
        self.began = 0.0
        self.finished: float | None = None
        self.error: StreamcoError | None = None
        self.finish_reason: str | None = None
        self.dropped = 0  # tokens that were held for the reader's pace when the reader left
        self._winning: Leg | None = None
        self._pacer = Pacer(plan.pace) if plan.pace else None
        self._commands: list[Command] = []
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

    def take_commands(self) -> list[Command]:
        """What to do, in order."""
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float | None:
        """The next leg's start or the next token's release, whichever comes first."""
        deadline = self._pacer.next_due() if self._pacer else None
        if self.winner is None and self.finished is None:
            for leg in self.legs.values():
                if leg.state is LegState.WAITING and leg.wait is not None:
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
        return self._pacer.buffered if self._pacer else 0

    @property
    def is_direct(self) -> bool:
        """Whether all that can happen now is that the winner goes on: nothing is timed and nobody else works."""
        winning = self._winning
        return self._pacer is None and winning is not None and not any(leg.is_live for leg in self.legs.values() if leg is not winning)

    @property
    def is_over(self) -> bool:
        """Whether the reader has everything and nobody works any more."""
        return self.finished is not None and not any(leg.is_live for leg in self.legs.values())

    # Tokens

    def _receive_tokens(self, event: TokensReceived, now: float) -> None:
        leg = self._winning
        if leg is not None and event.source == leg.source:
            leg.tokens += event.tokens
            if leg.state is LegState.WON and self.finished is None:
                self._deliver(event.source, event.chunks, event.tokens, now)
            return
        leg = self.legs[event.source]
        leg.tokens += event.tokens
        if event.tokens and leg.first_token is None and leg.opened is not None:
            leg.first_token = now - self.began
        if leg.state is LegState.LOST:
            if event.tokens and self.plan.explore:
                self._stop(leg, "explored")
        elif leg.state is LegState.OPEN:
            leg.held += event.chunks
            if event.tokens:
                self._win(leg, event.tokens, now)

    def _win(self, leg: Leg, tokens: int, now: float) -> None:
        self.winner, self._winning, leg.state, leg.has_won = leg.source, leg, LegState.WON, True
        for other in self.legs.values():
            if other.state is LegState.WAITING:
                other.state = LegState.SPARED
            elif other.state is LegState.OPEN:
                other.state = LegState.LOST
                if not self.plan.explore:
                    self._stop(other, "lost")
        held, leg.held = leg.held, []
        self._deliver(leg.source, held, tokens, now)

    def _deliver(self, source: str, chunks: list[ChatCompletionChunk], tokens: int, now: float) -> None:
        if self._pacer is None:
            if tokens:
                self.meter.record(tokens, now=now)
            self._commands.append(DeliverTokens(source, chunks))
        else:
            self._pacer.feed(source, chunks, now=now)
            self._release(now)

    def _release(self, now: float) -> None:
        if self._pacer is None:
            return
        self._hand_out(self._pacer.release(now=now), now)
        if self._is_complete and self._pacer.next_due() is None:
            self._finish(now)

    def _hand_out(self, released: list[tuple[str, ChatCompletionChunk]], now: float) -> None:
        start = 0
        for end in range(1, len(released) + 1):
            if end == len(released) or released[end][0] != released[start][0]:
                chunks = [chunk for _, chunk in released[start:end]]
                if tokens := sum(map(weigh_chunk, chunks)):
                    self.meter.record(tokens, now=now)
                self._commands.append(DeliverTokens(released[start][0], chunks))
                start = end

    # Ends

    def _receive_end(self, event: StreamEnded, now: float) -> None:
        leg = self.legs[event.source]
        if not leg.is_live:
            return
        was, leg.state, leg.stopped = leg.state, LegState.ENDED, now - self.began
        leg.usage, leg.finish_reason = event.usage, event.finish_reason
        if was is LegState.WON:
            self._complete(leg, now)
        elif was is LegState.OPEN:
            self._settle_without_winner(now)

    def _complete(self, leg: Leg, now: float) -> None:
        self.finish_reason = leg.finish_reason
        self._is_complete = True
        if self._pacer is None or self._pacer.next_due() is None:
            self._finish(now)

    def _finish(self, now: float) -> None:
        if self.finished is None:
            self.finished = now
            self._commands.append(FinishDelivery())

    def _receive_failure(self, event: StreamFailed, now: float) -> None:
        leg = self.legs[event.source]
        if not leg.is_live:
            return
        was, leg.state, leg.stopped, leg.error = leg.state, LegState.FAILED, now - self.began, event.error
        if was is LegState.WON:
            self._fail(event.error, now)
        elif was is LegState.OPEN:
            self._start_next(now)
            self._settle_without_winner(now)

    def _fail(self, error: StreamcoError, now: float) -> None:
        if self.finished is not None:
            return
        if self._pacer:
            self._hand_out(self._pacer.flush(), now)
        self.finished, self.error = now, error
        self._commands.append(FailDelivery(error))

    def _receive_cancelled(self, event: StreamCancelled, now: float) -> None:
        leg = self.legs[event.source]
        if leg.is_live:
            leg.state, leg.stopped = LegState.CANCELLED, now - self.began

    def _receive_reader_left(self, now: float) -> None:
        if self.finished is None:
            self.finished = now
        for leg in self.legs.values():
            if leg.state is LegState.WAITING:
                leg.state = LegState.SPARED
            elif leg.is_live:
                self._stop(leg, "reader left")
        if self._pacer:
            self.dropped += self._pacer.buffered
            self._pacer.flush()

    def _stop(self, leg: Leg, reason: str) -> None:
        """Have a leg cancelled, once: further reasons change nothing."""
        if not leg.is_stopping:
            leg.is_stopping = True
            self._commands.append(CancelStream(leg.source, reason))

    # Starts

    def _start_due(self, now: float) -> None:
        for leg in self.legs.values():
            if leg.state is LegState.WAITING and leg.wait is not None and self.began + leg.wait <= now:
                self._open(leg, now)

    def _start_next(self, now: float) -> None:
        """Somebody failed: open whoever has not been tried, first those that only wait, then the stand-ins, one at a time."""
        waiting = [leg for leg in self.legs.values() if leg.state is LegState.WAITING]
        if waiting:
            self._open(min(waiting, key=lambda leg: (leg.wait is None, leg.wait or 0.0)), now)

    def _open(self, leg: Leg, now: float) -> None:
        leg.state, leg.opened = LegState.OPEN, now - self.began
        self._commands.append(OpenStream(leg.source))

    def _settle_without_winner(self, now: float) -> None:
        """Nobody has won and a leg is out: wait for the others, or take an empty answer, or give up."""
        legs = self.legs.values()
        if self.finished is not None or any(leg.state is LegState.OPEN for leg in legs):
            return
        empty = next((leg for leg in legs if leg.state is LegState.ENDED), None)
        if empty is not None:
            for leg in legs:
                if leg.state is LegState.WAITING:
                    leg.state = LegState.SPARED
            self.winner, self._winning, empty.has_won = empty.source, empty, True
            if empty.held:
                self._deliver(empty.source, empty.held, 0, now)
            self._complete(empty, now)
            return
        self._fail(self._combine_errors(list(legs)), now)

    def _combine_errors(self, legs: Sequence[Leg]) -> StreamcoError:
        failed = {leg.source: leg.error for leg in legs if leg.error is not None}
        if not failed:
            return EndpointProtocolError("expected an answer or an error, got neither")
        errors = {**dict(self.plan.missing), **failed}
        return AllEndpointsFailed(errors) if len(errors) > 1 else next(iter(failed.values()))
