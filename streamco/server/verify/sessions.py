"""The verifier's sessions between their connections and the scheduler: keys, what is out, who resumes what.

Frames that got through a connection's ``VerifyServer`` become the scheduler's events; its commands become frames, or work for the judge.
All of it happens on the event loop, in the order of arrival; nothing here waits.

A session outlives its connection by ``resume_s``. Whoever has its key takes it up, also while the server still believes in the old
connection, and also while a round is out: then the answer waits for that round, whose verdict nobody hears, but which has settled what
the context is.
"""

from __future__ import annotations

import asyncio
import secrets
from random import Random
from typing import Protocol

from msgspec.structs import asdict

from streamco.core.verifier.events import (
    AcceptSession,
    DraftReceived,
    DropSequence,
    ForgetSession,
    RefuseDraft,
    RefuseSession,
    RunBatch,
    SchedulerCommand,
    SchedulerEvent,
    SendVerdict,
    SessionClosed,
    SessionExtended,
    SessionOpened,
    TruncateSequence,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.engines.base import HoldingEngine
from streamco.machine_driver import MachineDriver
from streamco.policies.acceptance import Rule
from streamco.policies.batching import CHUNK, Alternating, LinearStep, StepSeconds, StrictPrefill
from streamco.server.verify.batches import BatchReport, BatchRunner
from streamco.server.verify.options import VerifyOptions
from streamco.server.verify.stats import VerifyStats
from streamco.server.verify.verdicts import VerificationRequest, VerificationResult
from streamco.server.wakeup import WakeCoalescer
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.errors import (
    ContextFullError,
    EvictedError,
    NotResumableError,
    OverloadedError,
    SessionLimitError,
    StaleRoundError,
    UnknownSessionError,
    VerifierFailedError,
    VerifyProtocolError,
    WrongBaseError,
)
from streamco.wire.verify.frames import Close, Draft, Extend, Open, Opened, Resume, Resumed, VerdictFrame
from streamco.wire.verify.server import VerifyServer

__all__ = ["SessionManager", "Connection", "make_scheduler"]

_CPU_STEP = LinearStep(setup=0.01, per_token=0.003)  # until batches were measured; only their ratio is wrong then
_OTHER_TEXT = "the hash of the tokens that are here, got that of others: open it anew"
_ADDRESS_RETRY = 1.0  # seconds
_MOST_FAILURES = 3  # of a session in a row, behind which asking again is of no use
_MICROSECONDS = 1_000_000
_MOST_MICROSECONDS = (1 << 32) - 1

_ERRORS: dict[str, type[VerifyProtocolError]] = {
    "overloaded": OverloadedError,
    "device limit": SessionLimitError,
    "too long": ContextFullError,
    "unknown session": UnknownSessionError,
    "busy": StaleRoundError,
    "stale round": StaleRoundError,
    "gap": WrongBaseError,
    "engine failed": VerifierFailedError,
}


class Connection(Protocol):
    """A connection, as its sessions see it."""

    server: VerifyServer
    device: str
    peer: str  # the address

    def flush(self) -> None:
        """Send what the server's end has to say."""
        ...


class _Hosted:
    """A session, whether somebody is connected to it or not."""

    def __init__(self, name: str, rule: Rule, top_k: int) -> None:
        self.name = name
        self.key = secrets.token_bytes(16)
        self.rule = rule
        self.top_k = top_k
        self.dice = Random(rule.seed)
        self.line: Connection | None = None
        self.number = 0  # on that line
        self.peer = ""  # of its last line
        self.turns = 0  # rounds so far, on all lines
        self.draft: Draft | None = None  # that is out
        self.resume: Resume | None = None  # waits for it
        self.left_at = 0.0
        self.failures = 0  # in a row
        self.is_late = False  # a verification of the round that is out took longer than it was to


class SessionManager(MachineDriver[SchedulerEvent, SchedulerCommand]):
    """All sessions of a server.

    Args:
        engine: holds the sequences; stays the caller's.
        options: what is borne.
    """

    machine: VerificationScheduler

    def __init__(self, engine: HoldingEngine, options: VerifyOptions) -> None:
        super().__init__(make_scheduler(engine, options), clock=asyncio.get_running_loop().time)
        self.stats = VerifyStats()
        self._options = options
        context = engine.info.context_tokens
        self._judge = BatchRunner(engine, WakeCoalescer(), self._clock, self._question, self._on_batch, context_tokens=context)
        self._sessions: dict[str, _Hosted] = {}
        self._by_key: dict[bytes, _Hosted] = {}
        self._lines: dict[Connection, dict[int, _Hosted]] = {}
        self._left: dict[str, _Hosted] = {}  # of lost connections, the oldest first
        self._begun: list[tuple[Connection, _Hosted, Draft]] = []  # rounds that were sent ahead, and have won their bets
        self._verified: tuple[str, ...] = ()  # in the batch that runs
        self._rulings: dict[str, VerificationResult] = {}
        self._opened = 0
        self.start()

    # What a connection calls

    def join(self, line: Connection) -> None:
        """A connection was welcomed."""
        self._lines[line] = {}

    def leave(self, line: Connection) -> None:
        """A connection was lost: its sessions wait to be taken up."""
        for session in self._lines.pop(line, {}).values():
            self._detach(session)
        self._arm(self._clock())

    def handle(self, line: Connection, frame: Open | Extend | Draft | Resume | Close) -> None:
        """A frame that came through the connection's server end."""
        match frame:
            case Open():
                self._open(line, frame)
            case Resume():
                self._take_up(line, frame)
            case Extend(number, base, ids):
                self.emit(SessionExtended(self._lines[line][number].name, base, ids))
            case Draft():
                self._draft(line, self._lines[line][frame.session], frame)
            case Close(number):
                session = self._lines[line].get(number)
                if session is not None:
                    self._end(session)
        self._arm(self._clock())

    def close(self) -> None:
        """Give everything up; idempotent."""
        self._disarm()
        self._judge.close()

    def figures(self) -> dict[str, object]:
        """Return what there is to see."""
        return {
            "connections": len(self._lines),
            "sessions": len(self._sessions),
            "sessions_waiting_to_be_resumed": len(self._left),
            "waiting_rounds": self.machine.depth,
            "cached_tokens": self.machine.reserved,
            **self.stats.figures(),
        }

    # Frames

    def _open(self, line: Connection, frame: Open) -> None:
        most = self._options.peer_sessions
        if sum(session.peer == line.peer for session in self._sessions.values()) >= most:
            self.stats.note_refusal("address limit")
            message = f"session {frame.session}: expected at most {most} from one address, got one more"
            line.server.refuse(OverloadedError(message, session=frame.session, retry_after=_ADDRESS_RETRY))
            line.flush()
            return
        self._opened += 1
        session = _Hosted(f"{line.device}-{self._opened}", frame.rule, frame.top_k)
        self._sessions[session.name] = self._by_key[session.key] = session
        self._attach(session, line, frame.session)
        self.emit(SessionOpened(session.name, line.device, frame.ids))

    def _draft(self, line: Connection, session: _Hosted, frame: Draft) -> None:
        if session.draft is not None:
            self.stats.note_refusal("busy")
            line.server.refuse(_error("busy", frame.session, frame.round_number, None))
            line.flush()
            return
        session.turns += 1
        session.draft = frame
        session.is_late = False
        given = frame.ids[: frame.given]
        self.emit(DraftReceived(session=session.name, round=session.turns, base=frame.base, given=given, draft=frame.pending))

    def _take_up(self, line: Connection, frame: Resume) -> None:
        session = self._by_key.get(frame.key)
        if session is None:
            self._refuse_resume(line, frame, "a session of this key, got none: open it anew")
            return
        if self._is_other_text(session, frame):
            self._refuse_resume(line, frame, _OTHER_TEXT)
            return
        if session.line is not None:
            message = f"session {session.number}: expected one connection for it, got another that resumes it"
            session.line.server.refuse(EvictedError(message, session=session.number))
            session.line.flush()
            self._detach(session)
        self._left.pop(session.name, None)
        self._attach(session, line, frame.session)
        session.resume = frame
        if session.draft is None:
            self._answer_resume(session)

    def _answer_resume(self, session: _Hosted) -> None:
        line, frame = session.line, session.resume
        session.resume = None
        if line is None or frame is None:
            return
        if self._is_other_text(session, frame):
            self._detach(session)
            self._refuse_resume(line, frame, _OTHER_TEXT)
            return
        text = (self.machine.text(session.name) or ())[: frame.base]
        self.stats.resumed += 1
        line.server.resume(Resumed(session.number, len(text), prefix_hash(text)), session.rule)
        line.flush()

    def _is_other_text(self, session: _Hosted, frame: Resume) -> bool:
        """Return True if the device holds other tokens, as far as that can be told here."""
        text = self.machine.text(session.name)
        return text is None or (frame.base <= len(text) and prefix_hash(text[: frame.base]) != frame.prefix)

    def _refuse_resume(self, line: Connection, frame: Resume, expected: str) -> None:
        line.server.refuse(NotResumableError(f"session {frame.session}: expected {expected}", session=frame.session))
        line.flush()

    # Sessions

    def _attach(self, session: _Hosted, line: Connection, number: int) -> None:
        session.line, session.number, session.peer = line, number, line.peer
        self._lines[line][number] = session

    def _detach(self, session: _Hosted) -> None:
        """Nobody hears of it until it is resumed."""
        line, session.line, session.resume = session.line, None, None
        if line in self._lines:
            self._lines[line].pop(session.number, None)
        session.left_at = self._clock()
        self._left[session.name] = session

    def _end(self, session: _Hosted) -> None:
        """It is over, on both sides."""
        self._forget(session)
        self.emit(SessionClosed(session.name))

    def _forget(self, session: _Hosted) -> None:
        line = session.line
        if line is not None and line in self._lines:
            self._lines[line].pop(session.number, None)
        self._sessions.pop(session.name, None)
        self._by_key.pop(session.key, None)
        self._left.pop(session.name, None)

    # The scheduler

    def _run_command(self, command: SchedulerCommand, now: float) -> None:
        match command:
            case RunBatch():
                self._verified = tuple(part.session for part in command.parts) if command.kind == "verify" else ()
                self.stats.note_batch(command)
                self._judge.begin(command)
            case TruncateSequence(name, length):
                self._judge.truncate(name, length)
            case DropSequence(name):
                self._judge.drop(name)
            case _:
                session = self._sessions.get(command.session)
                if session is not None:
                    self._say(session, command)

    def _after_step(self, now: float) -> None:
        begun, self._begun = self._begun, []
        for line, session, draft in begun:
            self._draft(line, session, draft)

    def _crash(self, error: BaseException) -> None:
        raise error  # the caller's connection or batch ends with it

    def _say(self, session: _Hosted, command: AcceptSession | RefuseSession | SendVerdict | RefuseDraft | ForgetSession) -> None:
        line, number = session.line, session.number
        match command:
            case AcceptSession():
                self.stats.opened += 1
                if line is not None:
                    line.server.send(Opened(number, session.key, 0))
            case SendVerdict():
                self._say_verdict(session, command)
            case RefuseDraft(_, _, reason, retry_after):
                self._say_refused(session, reason, retry_after)
            case RefuseSession(_, reason, retry_after):
                self.stats.note_refusal(reason)
                if line is not None:
                    line.server.refuse(_error(reason, number, None, retry_after))
                self._end(session)
            case ForgetSession():
                if line is not None:
                    line.server.refuse(EvictedError(f"session {number}: expected to hear of it again, got silence", session=number))
                self._forget(session)
        if line is not None:
            line.flush()

    def _say_verdict(self, session: _Hosted, command: SendVerdict) -> None:
        draft, session.draft = session.draft, None
        session.failures = 0
        ruling = self._rulings.pop(session.name)
        self.stats.note_verdict(command, is_late=session.is_late)
        if session.resume is not None:
            self._answer_resume(session)
        elif session.line is not None and draft is not None:
            verdict = VerdictFrame(
                session.number,
                draft.round_number,
                command.accepted,
                command.token,
                command.depth,
                _microseconds(command.queued),
                _microseconds(command.compute),
                ruling.rows,
            )
            session.line.server.send(verdict)
            self._begun += [(session.line, session, begun) for begun in session.line.server.take_begun_rounds()]

    def _say_refused(self, session: _Hosted, reason: str, retry_after: float | None) -> None:
        draft, session.draft = session.draft, None
        session.failures += reason == "engine failed"
        self.stats.note_refusal(reason)
        if session.resume is not None:
            self._answer_resume(session)
        elif session.line is not None and draft is not None:
            is_hopeless = session.failures >= _MOST_FAILURES
            round_number = None if is_hopeless else draft.round_number
            session.line.server.refuse(_error(reason, session.number, round_number, None if is_hopeless else retry_after))
            if is_hopeless:
                self._end(session)

    # The judge

    def _question(self, name: str) -> VerificationRequest:
        session = self._sessions.get(name)
        if session is None or session.draft is None:
            raise AssertionError(f"{name}: expected a draft to judge, got none")
        return VerificationRequest(
            draft=session.draft.pending, drafted_from=session.draft.rows, rule=session.rule, top_k=session.top_k, dice=session.dice
        )

    def _on_batch(self, report: BatchReport) -> None:
        self.stats.note_report(report)
        for name in self._verified:
            session = self._sessions.get(name)
            if session is not None:
                session.is_late = session.is_late or report.late_s > 0
        self._rulings.update(report.rulings)
        self.emit(report.event)
        for name in report.rulings:
            self._rulings.pop(name, None)  # of who was closed meanwhile
        self._arm(self._clock())

    # Time

    def _next_deadline(self) -> float | None:
        times = (self.machine.next_deadline(), self._next_expiry())
        return min((time for time in times if time is not None), default=None)

    def _next_expiry(self) -> float | None:
        oldest = next(iter(self._left.values()), None)
        return None if oldest is None else oldest.left_at + self._options.resume_s

    def _on_deadline(self, now: float) -> None:
        for session in [session for session in self._left.values() if session.left_at + self._options.resume_s <= now]:
            self._end(session)
        super()._on_deadline(now)


def make_scheduler(engine: HoldingEngine, options: VerifyOptions) -> VerificationScheduler:
    """Return the scheduler of what this engine can hold."""
    context = engine.info.context_tokens
    bounds = SchedulerOptions(
        kv_tokens=max(engine.held_tokens, context) + 1,
        places=engine.held_sequences,
        context_tokens=context + 1,  # a draft may fill the context; then no token follows it
        **asdict(options.load),
    )
    policy = StrictPrefill if options.policy == "strict" else Alternating
    return VerificationScheduler(bounds, _step(engine), policy(batch_tokens=max(CHUNK, engine.batch_tokens)))


def _step(engine: HoldingEngine) -> StepSeconds:
    imposed = engine.step_time
    return _CPU_STEP if imposed is None else lambda tokens, _context: imposed(0, tokens)


def _error(reason: str, number: int, round_number: int | None, retry_after: float | None) -> VerifyProtocolError:
    error = _ERRORS[reason]
    what = f"session {number}" if round_number is None else f"session {number}, round {round_number}"
    return error(f"{what}: expected to be taken, got {reason}", session=number, round_number=round_number, retry_after=retry_after)


def _microseconds(seconds: float) -> int:
    return min(max(0, round(seconds * _MICROSECONDS)), _MOST_MICROSECONDS)
