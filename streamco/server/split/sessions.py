"""Sessions of a split server, which link connections and the scheduler: rows in flight, keys and resumes.

The verifier's scheduler serves rows of states as it serves tokens, because the unit is the same: a session's part of a batch. It counts
each row as a token with id 0. A round becomes a draft that is always accepted whole; its rows are read and never compared. A round with
more rows than a verification, or whose states aren't wanted, is read like a prompt, and other sessions' verifications share its batches
(``policies.serving.batching.Mixed``). Such rounds are read together if they follow each other. Each is answered when its last row has been
computed.

The server keeps no states. If a session loses its cells to another one, its next rows are refused with ``evicted``, and its device sends
all its rows again. A session outlives its connection by ``resume_s``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import asdict

from streamco.core.verifier.events import (
    BatchPart,
    CancelPart,
    DraftReceived,
    DropSequence,
    RefuseDraft,
    RunBatch,
    SchedulerCommand,
    SendVerdict,
    SessionOpened,
    TruncateSequence,
)
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.engines.split.middle_engine import LayerEngine
from streamco.policies.chunking import ServerLoad
from streamco.policies.serving.batching import CHUNK, Mixed
from streamco.profiles.row_costs import RowCosts
from streamco.server.split.batches import RowsReport, RowsRunner
from streamco.server.split.rounds import PendingRound
from streamco.server.split.stats import SplitStats
from streamco.server.verify.hosted_sessions import NO_SESSION, HostedSession, HostedSessions
from streamco.server.verify.options import VerifyOptions
from streamco.server.wakeup import WakeCoalescer
from streamco.wire.row_costs import RowCost, table_of_costs
from streamco.wire.split.frames import (
    Close,
    Rows,
    SplitClientFrame,
    SplitHello,
    SplitOpen,
    SplitOpened,
    SplitResume,
    SplitResumed,
    States,
)
from streamco.wire.split.server import SplitServer
from streamco.wire.verify.errors import EvictedError, VerifierFailedError, VerifyProtocolError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SplitConnection", "SplitSessions"]

_SHARED_BATCHES = 2  # batches that a verification waits for: the running one, and its own, which includes rows of prompts
_MICROSECONDS = 1_000_000
_MAX_NUMBER = (1 << 32) - 1


class SplitConnection(Protocol):
    """The interface that a device's connection has for its sessions."""

    server: SplitServer
    device: str
    peer: str  # its address
    owner: str | None  # name of its key, or None if the server has at most one key

    def flush(self) -> None:
        """Queue the messages that ``server`` has to send."""
        ...


class _SplitSession(HostedSession[SplitConnection]):
    """A session of hidden states."""

    def __init__(self, name: str, owner: str | None) -> None:
        super().__init__(name, owner)
        self.held = 0  # rows in the engine
        self.pending: deque[PendingRound] = deque()  # in order
        self.reading: list[PendingRound] = []  # rounds with rows in the running batch
        self.is_resuming = False  # the answer to a resume waits for the pending rounds

    def drop_resume(self) -> None:
        self.is_resuming = False

    def begin(self, part: BatchPart) -> None:
        """Find the rounds whose rows are in this part of a batch."""
        self.reading, at, end = [], part.start, part.start + len(part.ids)
        for each in self.pending:
            if at >= end:
                return
            self.reading.append(each)
            at = each.rows.end


class SplitSessions(HostedSessions[_SplitSession, SplitConnection]):
    """All sessions of a split server; the service owns it.

    Args:
        engine: computes the middle layers; the caller closes it.
        options: limits on devices, connections and load.
        policy: forms the batches.
        costs: seconds that a batch takes, by number of rows, measured before there is any load.

    Attributes:
        row_costs: current costs of batches of the measured sizes; the same for all answers of a batch.
    """

    stats: SplitStats
    expected = "rows"

    def __init__(self, engine: LayerEngine, options: VerifyOptions, *, policy: Mixed, costs: RowCosts) -> None:
        super().__init__(_make_scheduler(engine, options, costs, policy), options, SplitStats())
        self.load = ServerLoad(costs)
        self.row_costs = self._present_costs()
        self._width = engine.info.width
        self._runner = RowsRunner(engine, WakeCoalescer(), self._look_up, self._on_batch)
        self._parts: dict[str, BatchPart] = {}  # of the running batch
        self.start()

    def _present_costs(self) -> tuple[RowCost, ...]:
        costs = self.load.costs()
        return table_of_costs({rows: costs.seconds(rows) for rows in costs.rows})

    # What a connection calls

    def handle(self, connection: SplitConnection, frame: SplitClientFrame) -> None:
        """Handle a frame that the connection's ``server`` has accepted."""
        match frame:
            case SplitOpen():
                self._open(connection, frame)
            case SplitResume():
                self._resume(connection, frame)
            case Rows():
                self._begin_round(connection, self._connections[connection][frame.session], frame)
            case Close(number):
                self._close_session(connection, number)
            case SplitHello():
                raise AssertionError("a hello is the connection's to answer")
        self._arm(self._clock())

    def close(self) -> None:
        """Drop all sessions; idempotent."""
        self._disarm()
        self._runner.close()

    def figures(self) -> dict[str, object]:
        """Return counters and sizes as a JSON object."""
        return {
            **self._counts(),
            "pending_rounds": sum(len(session.pending) for session in self._sessions.values()),
            "cached_rows": self.machine.reserved,
            "load_rows": round(self.load.rows, 3),
            "steady_rows": round(self.load.steady_rows, 3),
            **self.stats.figures(),
        }

    # Frames

    def _open(self, connection: SplitConnection, frame: SplitOpen) -> None:
        if not self._may_open(connection, frame.session):
            return
        session = _SplitSession(self._next_name(connection), connection.owner)
        self._add(session, connection, frame.session)
        self.emit(SessionOpened(session.name, connection.device, ()))

    def _begin_round(self, connection: SplitConnection, session: _SplitSession, frame: Rows) -> None:
        if not session.pending and frame.position > session.held:
            self.stats.record_refusal("evicted")
            message = f"session {frame.session}: expected rows from position {session.held} on, because the others were given up"
            connection.server.refuse(EvictedError(message, session=frame.session, round_number=frame.round_number))
            connection.flush()
            return
        session.turns += 1
        rows = len(frame.states)
        continues = bool(session.pending) and session.pending[-1].is_prompt  # the end of a prompt may be short
        is_prompt = rows > CHUNK or not frame.wanted or continues
        session.pending.append(PendingRound(frame, session.turns, is_prompt=is_prompt, arrived=self._clock()))
        drafted = 0 if is_prompt else rows - 1
        event = DraftReceived(
            session=session.name,
            round=session.turns,
            base=frame.position,
            given=(0,) * (rows - drafted),
            draft=(0,) * drafted,
            is_prompt=is_prompt,
            follows=len(session.pending) > 1,
        )
        self.emit(event)

    def _resume(self, connection: SplitConnection, frame: SplitResume) -> None:
        session = self._of_key(connection, frame.key)
        if session is None:
            self._refuse_resume(connection, frame.session, NO_SESSION)
            return
        self._take_over(session, connection, frame.session)
        session.is_resuming = True
        self._answer_resume(session)

    def _answer_resume(self, session: _SplitSession) -> None:
        """Answer a resume as soon as no round of the lost connection is pending."""
        if session.connection is None or not session.is_resuming or session.pending:
            return
        session.is_resuming = False
        self.stats.resumed += 1
        session.connection.server.resume(SplitResumed(session.number, session.held))
        session.connection.flush()

    # The scheduler

    def _run_command(self, command: SchedulerCommand, now: float) -> None:
        match command:
            case RunBatch():
                self._run_batch(command)
            case CancelPart():
                pass  # a batch is one forward pass of all its sessions
            case TruncateSequence():
                pass  # each part of a batch says where it begins (LayerPart.run_batch)
            case DropSequence(name):
                self._runner.drop(name)
                session = self._sessions.get(name)
                if session is not None:
                    self.stats.evicted += 1
                    session.held = 0
            case _:
                session = self._sessions.get(command.session)
                if session is not None:
                    self._answer(session, command)

    def _send_opened(self, session: _SplitSession, connection: SplitConnection) -> None:
        connection.server.send(SplitOpened(session.number, session.key))

    def _answer_verdict(self, session: _SplitSession, command: SendVerdict) -> None:
        """Do nothing: the rounds were answered when their rows were computed."""

    def _answer_round(self, session: _SplitSession) -> None:
        """Send the states of the first pending round."""
        done = session.pending.popleft()
        rows = done.rows
        if done.is_refused:
            self._answer_resume(session)
            return
        session.failures, session.held = 0, rows.end
        queued = max(0.0, self._clock() - done.arrived - done.computed)
        self.stats.record_round(rows.wanted, queued=queued, computed=done.computed)
        if session.connection is not None and not session.is_resuming:
            times = (_number(queued * _MICROSECONDS), _number(done.computed * _MICROSECONDS))
            loads = (_number(self.load.rows), _number(self.load.steady_rows))
            frame = States(session.number, rows.round_number, rows.form, self._joined(done), *times, *loads, self.row_costs)
            try:
                session.connection.server.send(frame)
            except VerifyProtocolError as error:  # the states aren't finite, which spoils everything after them
                session.held = rows.position
                message = f"session {session.number}, round {rows.round_number}: expected finite results, got {error}"
                failed = VerifierFailedError(message, session=session.number, round_number=rows.round_number)
                self._send_refusal(session, failed)
        self._answer_resume(session)

    def _joined(self, done: PendingRound) -> NDArray[np.float32]:
        import numpy as np

        if not done.found:
            return np.empty((0, self._width), np.float32)
        return done.found[0] if len(done.found) == 1 else np.concatenate(done.found)

    def _answer_refusal(self, session: _SplitSession, command: RefuseDraft) -> None:
        """Refuse the first pending round. ``server`` refuses the rounds after it. All rounds up to the one in the command are over."""
        refused, session.reading = session.pending.popleft(), []
        while session.pending and session.pending[0].turn <= command.round:
            session.pending.popleft()
        session.held = min(session.held, refused.rows.position)
        if session.connection is not None and not session.is_resuming and not refused.is_refused:
            self.stats.record_refusal(command.reason)
            self._refuse_round(session, command, refused.rows.round_number)
        self._answer_resume(session)

    def _send_refusal(self, session: _SplitSession, error: VerifyProtocolError) -> None:
        super()._send_refusal(session, error)
        for later in session.pending:
            later.is_refused = True

    # Batches

    def _run_batch(self, command: RunBatch) -> None:
        for part in command.parts:
            session = self._sessions.get(part.session)
            if session is not None:
                session.begin(part)
                self.stats.record_part(len(session.reading))
        self.stats.record_batch(command)
        self._parts = {part.session: part for part in command.parts}
        self._runner.begin(command)

    def _look_up(self, part: BatchPart) -> NDArray[np.float32] | None:
        import numpy as np

        session = self._sessions.get(part.session)
        if session is None:
            return None
        found = [each.slice_of(part.start, part.start + len(part.ids)) for each in session.reading]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _on_batch(self, report: RowsReport) -> None:
        if report.error is None:
            self.load.record(report.rows, max(1e-6, report.seconds), prompt_rows=self._prompt_rows(report))
            self.row_costs = self._present_costs()
        else:
            self.stats.record_failure()
        for name, states in report.states.items():
            session = self._sessions.get(name)
            if session is not None:
                self._read(session, states, self._parts[name].start, report.seconds)
        self.emit(report.event)
        self._arm(self._clock())

    def _prompt_rows(self, report: RowsReport) -> int:
        sessions = ((self._sessions.get(name), len(states)) for name, states in report.states.items())
        return sum(rows for session, rows in sessions if session is not None and session.reading[0].is_prompt)

    def _read(self, session: _SplitSession, states: NDArray[np.float32], start: int, seconds: float) -> None:
        """Give a batch's states to the rounds that they belong to, and answer the rounds that are complete."""
        for each in session.reading:
            each.keep(states, start, seconds)
        session.reading = []
        while session.pending and session.pending[0].done == session.pending[0].rows.end:
            self._answer_round(session)
        if session.connection is not None:
            session.connection.flush()


def _make_scheduler(engine: LayerEngine, options: VerifyOptions, costs: RowCosts, policy: Mixed) -> VerificationScheduler:
    """Return a scheduler with this engine's capacity. Each session counts one token more than it has rows.

    A verification waits for the running batch, and shares its own batch with prompts. So it counts as late only after the time
    that two more full batches take at present.
    """
    load = asdict(options.load)
    load["late_grace"] += _SHARED_BATCHES * costs.seconds(policy.room)
    bounds = SchedulerOptions(
        kv_tokens=(engine.cells + 1) * engine.sequences,
        places=engine.sequences,
        context_tokens=engine.cells + 1,
        shared_batches=_SHARED_BATCHES,
        **load,
    )
    return VerificationScheduler(bounds, lambda rows, _context: costs.seconds(rows), policy)


def _number(value: float) -> int:
    return min(max(0, round(value)), _MAX_NUMBER)
