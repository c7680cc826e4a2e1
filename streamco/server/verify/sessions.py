"""Sessions of the verifier, which link connections and the scheduler: keys, rounds in flight and resumes.

Frames that a connection's ``VerifyServer`` accepts become events for the scheduler. The scheduler's commands become frames, or work for
the batch runner. All of this happens on the event loop in the order of arrival, and nothing here waits.

Sessions can be resumed (``hosted_sessions``). If a round is in flight, the answer to the resume waits for its verdict, which isn't sent,
but decides the context.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from msgspec.structs import asdict

from streamco.core.verifier.events import (
    CancelPart,
    DraftReceived,
    DropSequence,
    RefuseDraft,
    RunBatch,
    SchedulerCommand,
    SendVerdict,
    SessionExtended,
    SessionOpened,
    TruncateSequence,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.engines.base import HoldingEngine
from streamco.errors import ConfigError
from streamco.policies.acceptance import Rule
from streamco.policies.serving.batching import CHUNK, Alternating, BatchPolicy, LinearStep, Mixed, StepSeconds, StrictPrefill
from streamco.policies.serving.length_aware import LengthAware
from streamco.server.verify.batches import BatchReport, BatchRunner
from streamco.server.verify.hosted_sessions import NO_SESSION, HostedSession, HostedSessions, refusal_for
from streamco.server.verify.options import MIN_ROOM, VerifyOptions
from streamco.server.verify.stats import VerifyStats
from streamco.server.verify.verdicts import TargetRowCollector
from streamco.server.wakeup import WakeCoalescer
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.frames import Close, Draft, Extend, Open, Opened, Resume, Resumed, VerdictFrame
from streamco.wire.verify.server import VerifyServer
from streamco.wire.verify.topk import TopK

__all__ = ["Connection", "SessionManager", "make_scheduler"]

_CPU_STEP = LinearStep(setup=0.01, per_token=0.003)  # used until batches are measured; only the ratio matters, and it may be wrong
_OTHER_TEXT = "the hash of the tokens that are held here, got a different one: open it again"
_MICROSECONDS = 1_000_000
_MAX_MICROSECONDS = (1 << 32) - 1


class Connection(Protocol):
    """The interface that a device's connection has for its sessions."""

    server: VerifyServer
    device: str
    peer: str  # its address
    owner: str | None  # name of its key, or None if the server has at most one key

    def flush(self) -> None:
        """Queue the messages that ``server`` has to send."""
        ...


class _TokenSession(HostedSession[Connection]):
    """A session of tokens."""

    def __init__(self, name: str, rule: Rule, top_k: int, owner: str | None) -> None:
        super().__init__(name, owner)
        self.rule = rule
        self.top_k = top_k
        self.rng = Random(rule.seed)
        self.draft: Draft | None = None  # of the round in flight
        self.resume: Resume | None = None  # a resume that waits for that round
        self.is_late = False  # a batch of the round in flight took longer than the imposed step times

    def drop_resume(self) -> None:
        self.resume = None


class SessionManager(HostedSessions[_TokenSession, Connection]):
    """All sessions of a server; the service owns it.

    Args:
        engine: holds the sequences; the caller closes it.
        options: limits on devices, connections and load.
    """

    stats: VerifyStats
    expected = "a draft or an extension"

    def __init__(self, engine: HoldingEngine, options: VerifyOptions) -> None:
        super().__init__(make_scheduler(engine, options), options, VerifyStats())
        self._runner = BatchRunner(
            engine,
            WakeCoalescer(),
            self._clock,
            self._lookup,
            self._on_batch,
            owner_of=self._owner_of,
            context_tokens=engine.info.context_tokens,
        )
        self._begun: list[tuple[Connection, _TokenSession, Draft]] = []  # rounds sent in advance, whose expected verdict has come
        self._verified: tuple[str, ...] = ()  # sessions in the running batch
        self.start()

    # What a connection calls

    def handle(self, connection: Connection, frame: Open | Extend | Draft | Resume | Close) -> None:
        """Handle a frame that the connection's ``server`` has accepted."""
        match frame:
            case Open():
                self._open(connection, frame)
            case Resume():
                self._resume(connection, frame)
            case Extend(number, base, ids):
                self.emit(SessionExtended(self._connections[connection][number].name, base, ids))
            case Draft():
                self._draft(connection, self._connections[connection][frame.session], frame)
            case Close(number):
                self._close_session(connection, number)
        self._arm(self._clock())

    def close(self) -> None:
        """Drop all sessions; idempotent."""
        self._disarm()
        self._runner.close()

    def figures(self) -> dict[str, object]:
        """Return counters and sizes as a JSON object."""
        return {
            **self._counts(),
            "session_limit": self.machine.session_limit,
            "waiting_rounds": self.machine.depth,
            "cached_tokens": self.machine.reserved,
            **self.stats.figures(),
        }

    # Frames

    def _open(self, connection: Connection, frame: Open) -> None:
        if not self._may_open(connection, frame.session):
            return
        session = _TokenSession(self._next_name(connection), frame.rule, frame.top_k, connection.owner)
        self._add(session, connection, frame.session)
        self.emit(SessionOpened(session.name, connection.device, frame.ids))

    def _draft(self, connection: Connection, session: _TokenSession, frame: Draft) -> None:
        if session.draft is not None:
            self.stats.record_refusal("busy")
            connection.server.refuse(refusal_for("busy", frame.session, frame.round_number, None))
            connection.flush()
            return
        session.turns += 1
        session.draft = frame
        session.is_late = False
        given = frame.ids[: frame.given]
        name, turn, draft = session.name, session.turns, frame.pending
        self.emit(DraftReceived(session=name, round=turn, base=frame.base, given=given, draft=draft, parents=frame.parents))

    def _resume(self, connection: Connection, frame: Resume) -> None:
        session = self._of_key(connection, frame.key)
        if session is None:
            self._refuse_resume(connection, frame.session, NO_SESSION)
            return
        if self._is_other_text(session, frame):
            self._refuse_resume(connection, frame.session, _OTHER_TEXT)
            return
        self._take_over(session, connection, frame.session)
        session.resume = frame
        if session.draft is None:
            self._answer_resume(session)

    def _answer_resume(self, session: _TokenSession) -> None:
        connection, frame = session.connection, session.resume
        session.resume = None
        if connection is None or frame is None:
            return
        if self._is_other_text(session, frame):
            self._detach(session)
            self._refuse_resume(connection, frame.session, _OTHER_TEXT)
            return
        text = (self.machine.text(session.name) or ())[: frame.base]
        self.stats.resumed += 1
        connection.server.resume(Resumed(session.number, len(text), prefix_hash(text)), session.rule)
        connection.flush()

    def _is_other_text(self, session: _TokenSession, frame: Resume) -> bool:
        """Return True if the device is known to hold different tokens."""
        text = self.machine.text(session.name)
        return text is None or (frame.base <= len(text) and prefix_hash(text[: frame.base]) != frame.prefix)

    # The scheduler

    def _run_command(self, command: SchedulerCommand, now: float) -> None:
        match command:
            case RunBatch():
                self._verified = tuple(part.session for part in command.parts) if command.kind == "verify" else ()
                self.stats.record_batch(command)
                self._runner.begin(command)
            case CancelPart(name):
                self._runner.cancel(name)
            case TruncateSequence(name, length):
                self._runner.truncate(name, length)
            case DropSequence(name):
                self._runner.drop(name)
            case _:
                session = self._sessions.get(command.session)
                if session is not None:
                    self._answer(session, command)

    def _after_step(self, now: float) -> None:
        begun, self._begun = self._begun, []
        for connection, session, draft in begun:
            self._draft(connection, session, draft)

    def _send_opened(self, session: _TokenSession, connection: Connection) -> None:
        connection.server.send(Opened(session.number, session.key, 0))

    def _answer_verdict(self, session: _TokenSession, command: SendVerdict) -> None:
        draft, session.draft = session.draft, None
        session.failures = 0
        result = command.verdict
        accepted = 0 if draft is None else len(draft.accepted_ids(result.accepted))
        self.stats.record_verdict(command, accepted, is_late=session.is_late)
        if session.resume is not None:
            self._answer_resume(session)
        elif session.connection is not None and draft is not None:
            verdict = VerdictFrame(
                session.number,
                draft.round_number,
                result.accepted,
                result.token,
                command.depth,
                _microseconds(command.queued),
                _microseconds(command.compute),
                tuple(row for row in result.rows if isinstance(row, TopK)),
            )
            session.connection.server.send(verdict)
            self._begun += [(session.connection, session, begun) for begun in session.connection.server.take_begun_rounds()]

    def _answer_refusal(self, session: _TokenSession, command: RefuseDraft) -> None:
        draft, session.draft = session.draft, None
        self.stats.record_refusal(command.reason)
        if session.resume is not None:
            self._answer_resume(session)
        elif session.connection is not None and draft is not None:
            self._refuse_round(session, command, draft.round_number)

    # Batches

    def _lookup(self, name: str) -> TargetRowCollector:
        session = self._sessions.get(name)
        if session is None or session.draft is None:
            raise AssertionError(f"{name}: expected a draft to verify, got none")
        return TargetRowCollector(name, session.draft, rule=session.rule, top_k=session.top_k, rng=session.rng)

    def _owner_of(self, name: str) -> str | None:
        session = self._sessions.get(name)
        return None if session is None else session.owner

    def _on_batch(self, report: BatchReport) -> None:
        self.stats.record_report(report)
        for name in self._verified:
            session = self._sessions.get(name)
            if session is not None:
                session.is_late = session.is_late or report.late_s > 0
        self.emit(report.event)
        self._arm(self._clock())


def make_scheduler(engine: HoldingEngine, options: VerifyOptions) -> VerificationScheduler:
    """Return a scheduler with this engine's capacity."""
    context = engine.info.context_tokens
    bounds = SchedulerOptions(
        kv_tokens=max(engine.held_tokens, context) + 1,
        places=engine.held_sequences,
        context_tokens=context + 1,  # a draft may fill the context; then no token follows it
        **asdict(options.load),
    )
    step = _step(engine)
    return VerificationScheduler(bounds, step, make_policy(options, max(CHUNK, engine.batch_tokens), step))


def make_policy(options: VerifyOptions, batch_tokens: int, step: StepSeconds) -> BatchPolicy:
    """Return the batch policy that the options name.

    Args:
        options: options of the service.
        batch_tokens: largest number of tokens that the engine reads at once.
        step: returns how many seconds a batch takes, from which the size of a mixed batch follows if the options don't set it.

    Raises:
        ConfigError: the options' ``room`` is more than the engine reads at once.
    """
    if options.policy == "mixed":
        found = max(MIN_ROOM, Alternating(batch_tokens=batch_tokens).free_tokens(step, 0))
        room = found if options.room is None else options.room
        if room > batch_tokens:
            raise ConfigError(f"verify: room: expected at most the {batch_tokens} rows that the engine reads at once, got {room}")
        return Mixed(room=room)
    if options.policy == "length-aware":
        return LengthAware(batch_tokens=batch_tokens, is_fair=True)
    return (StrictPrefill if options.policy == "strict" else Alternating)(batch_tokens=batch_tokens)


def _step(engine: HoldingEngine) -> StepSeconds:
    imposed = engine.step_time
    return _CPU_STEP if imposed is None else lambda tokens, _context: imposed(0, tokens)


def _microseconds(seconds: float) -> int:
    return min(max(0, round(seconds * _MICROSECONDS)), _MAX_MICROSECONDS)
