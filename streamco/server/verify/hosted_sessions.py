"""The base of every server's sessions: their connections, keys and resumes, the limits per address, and how they end.

``SessionManager`` hosts sessions of tokens, and ``SplitSessions`` hosts sessions of hidden states. Both inherit from ``HostedSessions``,
and add the frames that begin and answer a round, and the batches.

A session outlives its connection by ``resume_s``. A client that has its key may resume it, even if the old connection still seems alive.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from streamco.core.verifier.events import (
    AcceptSession,
    ForgetSession,
    RefuseDraft,
    RefuseSession,
    SchedulerCommand,
    SchedulerEvent,
    SendVerdict,
    SessionClosed,
)
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.machine_driver import MachineDriver
from streamco.server.verify.options import VerifyOptions
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

__all__ = ["NO_SESSION", "HostedSession", "HostedSessions", "SessionConnection", "SessionStats", "refusal_for"]

_MAX_FAILURES = 3  # consecutive failures of a session after which a retry is useless

NO_SESSION = "a session of this key, got none: open it again"
"""The error text for a resume whose session is gone."""

_ADDRESS_RETRY = 1.0  # seconds

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


class _Refusing(Protocol):
    def refuse(self, error: VerifyProtocolError) -> None: ...


class SessionConnection(Protocol):
    """The interface that a device's connection has for its sessions."""

    device: str
    peer: str  # its address
    owner: str | None  # name of its key, or None if the server has at most one key

    @property
    def server(self) -> _Refusing:
        """The server's end of the protocol on this connection."""
        ...

    def flush(self) -> None:
        """Queue the messages that ``server`` has to send."""
        ...


class SessionStats:
    """Counters that every server has. They count from the start of the server, and the session manager owns them.

    Attributes:
        opened: number of sessions opened.
        resumed: number of times that a session was resumed.
    """

    def __init__(self) -> None:
        self.opened = self.resumed = 0
        self._queued = self._computed = 0.0
        self._refused: Counter[str] = Counter()

    def record_refusal(self, reason: str) -> None:
        """Record the refusal of a session or a round."""
        self._refused[reason] += 1

    def _record_times(self, queued: float, computed: float) -> None:
        """Record the seconds that a round waited while none of its batches ran, and the seconds of its batches."""
        self._queued += queued
        self._computed += computed

    def _totals(self) -> dict[str, object]:
        """Return the total times of rounds, and the refusals."""
        return {"queued_s": round(self._queued, 6), "compute_s": round(self._computed, 6), "refused": dict(self._refused)}


ConnectionT = TypeVar("ConnectionT", bound=SessionConnection)


class HostedSession(ABC, Generic[ConnectionT]):
    """A session, connected or waiting to be resumed; the manager owns it.

    Args:
        name: its name in the scheduler.
        owner: name of the key that it was opened with, or None if the server has at most one key.
    """

    def __init__(self, name: str, owner: str | None) -> None:
        self.name = name
        self.owner = owner
        self.key = secrets.token_bytes(16)
        self.connection: ConnectionT | None = None
        self.number = 0  # on that connection
        self.peer = ""  # address of its last connection
        self.turns = 0  # rounds so far, over all connections
        self.left_at = 0.0
        self.failures = 0  # in a row

    @abstractmethod
    def drop_resume(self) -> None:
        """Forget a resume that is waiting for its answer, because its connection is lost."""


SessionT = TypeVar("SessionT", bound=HostedSession[Any])


class HostedSessions(MachineDriver[SchedulerEvent, SchedulerCommand], Generic[SessionT, ConnectionT]):
    """All sessions of a server.

    Args:
        machine: the scheduler.
        options: limits on devices, connections and load.
        stats: the counters.
    """

    machine: VerificationScheduler
    expected: ClassVar[str]  # the kind of frame that a session must send in time

    def __init__(self, machine: VerificationScheduler, options: VerifyOptions, stats: SessionStats) -> None:
        super().__init__(machine, clock=asyncio.get_running_loop().time)
        self.stats = stats
        self._options = options
        self._sessions: dict[str, SessionT] = {}
        self._by_key: dict[bytes, SessionT] = {}
        self._connections: dict[ConnectionT, dict[int, SessionT]] = {}
        self._left: dict[str, SessionT] = {}  # sessions of lost connections, the oldest first
        self._opened = 0

    # Connections

    def join(self, connection: ConnectionT) -> None:
        """Add a connection whose hello was accepted."""
        self._connections[connection] = {}

    def leave(self, connection: ConnectionT) -> None:
        """Remove a lost connection; its sessions wait to be resumed."""
        for session in self._connections.pop(connection, {}).values():
            self._detach(session)
        self.machine.leave(connection.device)
        self._arm(self._clock())

    def _counts(self) -> dict[str, object]:
        """Return the numbers of connections and sessions."""
        return {
            "connections": len(self._connections),
            "sessions": len(self._sessions),
            "sessions_waiting_to_be_resumed": len(self._left),
        }

    # Opening and resuming

    def _may_open(self, connection: ConnectionT, number: int) -> bool:
        """Return True if the connection's address may have another session with its key. Otherwise refuse the session."""
        max_sessions = self._options.peer_sessions
        source = (connection.peer, connection.owner)
        if sum((session.peer, session.owner) == source for session in self._sessions.values()) < max_sessions:
            return True
        self.stats.record_refusal("address limit")
        message = f"session {number}: the limit is {max_sessions} sessions from one address"
        connection.server.refuse(OverloadedError(message, session=number, retry_after=_ADDRESS_RETRY))
        connection.flush()
        return False

    def _next_name(self, connection: ConnectionT) -> str:
        self._opened += 1
        return f"{connection.device}-{self._opened}"

    def _add(self, session: SessionT, connection: ConnectionT, number: int) -> None:
        self._sessions[session.name] = self._by_key[session.key] = session
        self._attach(session, connection, number)

    def _of_key(self, connection: ConnectionT, key: bytes) -> SessionT | None:
        """Return the session that this connection may resume with a key, or None if there is none or it has another owner."""
        session = self._by_key.get(key)
        return None if session is None or session.owner != connection.owner else session

    def _take_over(self, session: SessionT, connection: ConnectionT, number: int) -> None:
        """Give a session to the connection that resumes it."""
        if session.connection is not None:
            message = f"session {session.number}: resumed by another connection"
            session.connection.server.refuse(EvictedError(message, session=session.number))
            session.connection.flush()
            self._detach(session)
        self._left.pop(session.name, None)
        self._attach(session, connection, number)

    def _refuse_resume(self, connection: ConnectionT, number: int, expected: str) -> None:
        connection.server.refuse(NotResumableError(f"session {number}: expected {expected}", session=number))
        connection.flush()

    def _attach(self, session: SessionT, connection: ConnectionT, number: int) -> None:
        session.connection, session.number, session.peer = connection, number, connection.peer
        self._connections[connection][number] = session

    def _detach(self, session: SessionT) -> None:
        """Separate a session from its connection, until it is resumed."""
        connection, session.connection = session.connection, None
        session.drop_resume()
        if connection in self._connections:
            self._connections[connection].pop(session.number, None)
        session.left_at = self._clock()
        self._left[session.name] = session

    # The scheduler

    def _answer(self, session: SessionT, command: AcceptSession | RefuseSession | SendVerdict | RefuseDraft | ForgetSession) -> None:
        """Answer a session's connection as the scheduler has decided."""
        connection = session.connection
        match command:
            case AcceptSession():
                self.stats.opened += 1
                if connection is not None:
                    self._send_opened(session, connection)
            case SendVerdict():
                self._answer_verdict(session, command)
            case RefuseDraft():
                session.failures += command.reason == "engine failed"
                self._answer_refusal(session, command)
            case RefuseSession():
                self._refuse_session(session, command)
            case ForgetSession():
                self._forget_as(session, command)
        if connection is not None:
            connection.flush()

    @abstractmethod
    def _send_opened(self, session: SessionT, connection: ConnectionT) -> None:
        """Send a session's key."""

    @abstractmethod
    def _answer_verdict(self, session: SessionT, command: SendVerdict) -> None:
        """Handle the verdict of a round."""

    @abstractmethod
    def _answer_refusal(self, session: SessionT, command: RefuseDraft) -> None:
        """Handle the refusal of a round."""

    def _send_refusal(self, session: SessionT, error: VerifyProtocolError) -> None:
        """Send the refusal of a round."""
        if session.connection is not None:
            session.connection.server.refuse(error)

    def _refuse_round(self, session: SessionT, command: RefuseDraft, round_number: int) -> None:
        """Refuse a round and, after too many failures in a row, its session, too."""
        is_hopeless = session.failures >= _MAX_FAILURES
        number, retry_after = (None, None) if is_hopeless else (round_number, command.retry_after)
        self._send_refusal(session, refusal_for(command.reason, session.number, number, retry_after))
        if is_hopeless:
            self._end(session)

    # The end

    def _close_session(self, connection: ConnectionT, number: int) -> None:
        """End a session that its client has closed."""
        session = self._connections[connection].get(number)
        if session is not None:
            self._end(session)

    def _refuse_session(self, session: SessionT, command: RefuseSession) -> None:
        """End a session that the scheduler refuses."""
        self.stats.record_refusal(command.reason)
        if session.connection is not None:
            session.connection.server.refuse(refusal_for(command.reason, session.number, None, command.retry_after))
        self._end(session)

    def _forget_as(self, session: SessionT, command: ForgetSession) -> None:
        """Forget a session that the scheduler has forgotten."""
        if session.connection is not None:
            message = f"session {session.number}: expected {self.expected}, got silence"
            if not command.is_silent:
                message = f"session {session.number}: expected a server with room for it, got a full one, and a device with fewer sessions"
            session.connection.server.refuse(EvictedError(message, session=session.number))
        self._forget(session)

    def _end(self, session: SessionT) -> None:
        """End a session, here and in the scheduler."""
        self._forget(session)
        self.emit(SessionClosed(session.name))

    def _forget(self, session: SessionT) -> None:
        connection = session.connection
        if connection is not None and connection in self._connections:
            self._connections[connection].pop(session.number, None)
        self._sessions.pop(session.name, None)
        self._by_key.pop(session.key, None)
        self._left.pop(session.name, None)

    def _crash(self, error: BaseException) -> None:
        raise error  # it ends the caller's connection or batch

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


def refusal_for(reason: str, number: int, round_number: int | None, retry_after: float | None) -> VerifyProtocolError:
    """Return the error that tells a client about the scheduler's refusal of a session, or of a round if a round number is given."""
    error = _ERRORS[reason]
    what = f"session {number}" if round_number is None else f"session {number}, round {round_number}"
    return error(f"{what}: refused: {reason}", session=number, round_number=round_number, retry_after=retry_after)
