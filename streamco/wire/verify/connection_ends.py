"""What both ends of a connection have in common in all frame protocols: sending messages, checking received ones, and ending on a fault.

``VerifyClient`` and ``SplitClient`` inherit from ``ClientEnd``, ``VerifyServer`` and ``SplitServer`` from ``ServerEnd``, and add their
frames.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, assert_never

from msgspec import Struct

from streamco.errors import UsageError
from streamco.wire.verify.errors import FaultLimitError, MalformedFrameError, UnexpectedFrameError, VerifyProtocolError, VersionError
from streamco.wire.verify.frames import Close, Refusal

__all__ = ["ClientEnd", "ClientSession", "FrameCodec", "ServerEnd"]


class FrameCodec(Protocol):
    """The part of a codec that an end needs."""

    def encode(self, frame: Any, /) -> bytes:
        """Return a frame as bytes."""
        ...

    def decode_down(self, message: bytes, /) -> Any:
        """Return the frame in a message from the server."""
        ...

    def within(self, limits: Any, /) -> Self:
        """Return a codec with the smaller of each limit."""
        ...


class _Welcome(Protocol):
    @property
    def version(self) -> int: ...

    @property
    def limits(self) -> Struct: ...


class _OfSession(Protocol):
    @property
    def session(self) -> int: ...


@dataclass(slots=True)
class ClientSession:
    """What a client's end knows about a session in any protocol.

    Args:
        length: tokens or positions of its context, as far as the client may count on them.
        is_opened: True once the server has answered the request to open or resume the session.
        is_resuming: True while the request to resume it isn't answered.
        last_round: number of its last round; -1 if there hasn't been one.
    """

    length: int
    is_opened: bool = False
    is_resuming: bool = False
    last_round: int = -1


FrameT = TypeVar("FrameT", bound=Struct)
WelcomeT = TypeVar("WelcomeT", bound=_Welcome)
OpenedT = TypeVar("OpenedT", bound=_OfSession)
SessionT = TypeVar("SessionT", bound=ClientSession)
CodecT = TypeVar("CodecT", bound=FrameCodec)


class ClientEnd(ABC, Generic[CodecT, FrameT, WelcomeT, SessionT]):
    """The client's end of a connection.

    Args:
        codec: codec of the protocol.
        hello: the first frame.
        versions: first and last version of the protocol that this end speaks.
        server: what the server is called in errors.

    Attributes:
        welcome: the server's welcome; None if it has not come.
        is_closed: the connection has ended.
    """

    def __init__(self, codec: CodecT, hello: Struct, *, versions: tuple[int, int], server: str) -> None:
        self.codec = codec
        self.welcome: WelcomeT | None = None
        self.is_closed = False
        self._versions = versions
        self._server = server
        self._sessions: dict[int, SessionT] = {}
        self._last_session = -1
        self._messages = [codec.encode(hello)]

    def take_messages(self) -> list[bytes]:
        """Return the messages to send, in order; each is returned once."""
        messages, self._messages = self._messages, []
        return messages

    def length(self, session: int) -> int:
        """Return the length of a session's context as both sides hold it, including rows of unanswered rounds.

        Raises:
            UsageError: there is no such session.
        """
        return self._find(session).length

    def close(self, session: int) -> None:
        """End a session; idempotent."""
        if self._sessions.pop(session, None) is not None and not self.is_closed:
            self._queue(Close(session))

    def receive(self, message: bytes | str) -> FrameT | None:
        """Return the server's frame in a message, or None if it is about a session or a round that is over.

        Raises:
            VerifyProtocolError: the frame breaks the protocol, and the connection must be closed.
        """
        if self.is_closed:
            return None
        try:
            if isinstance(message, str):
                raise MalformedFrameError(f"message: expected bytes, got text of {len(message)} characters")
            return self._handle(self.codec.decode_down(message))
        except VerifyProtocolError:
            self._end()
            raise

    @abstractmethod
    def _handle(self, frame: FrameT) -> FrameT | None:
        """Check a frame, and update the state. Returns None if it is about something that is over."""

    def _handle_welcome(self, frame: WelcomeT) -> WelcomeT:
        """Accept a welcome, and observe its limits from now on."""
        self._check_server(frame)
        self.welcome = frame
        self.codec = self.codec.within(frame.limits)
        return frame

    def _check_server(self, frame: WelcomeT) -> None:
        """Check that a welcome is the first one, and has a supported version."""
        if self.welcome is not None:
            raise UnexpectedFrameError("welcome: expected one per connection, got a second one")
        first, last = self._versions
        if not first <= frame.version <= last:
            raise VersionError(f"welcome: expected a version from {first} to {last}, got {frame.version}")

    def _check_welcome(self, frame: Struct) -> None:
        """Check that a frame that isn't the welcome comes after it."""
        if self.welcome is None:
            raise UnexpectedFrameError(f"connection: expected a welcome first, got {type(frame).__name__}")

    def _handle_opened(self, frame: OpenedT) -> OpenedT | None:
        state = self._sessions.get(frame.session)
        if state is None:
            return None
        if state.is_opened or state.is_resuming:
            raise UnexpectedFrameError(f"session {frame.session}: opened, but it was open or being resumed", session=frame.session)
        state.is_opened = True
        return frame

    def _handle_refusal(self, frame: Refusal) -> Refusal | None:
        state = None if frame.session is None else self._sessions.get(frame.session)
        match frame.error().scope:
            case "connection":
                self._end()
                return frame
            case "frame":
                return frame
            case "session":
                self._sessions.pop(-1 if frame.session is None else frame.session, None)
                return None if state is None else frame
            case "round":
                return frame if state is not None and self._drop_round(state, frame) else None
            case _ as never:
                assert_never(never)

    @abstractmethod
    def _drop_round(self, state: SessionT, frame: Refusal) -> bool:
        """Forget the refused round and what depends on it; return False if it is already over."""

    def _queue(self, frame: Struct) -> None:
        self._messages.append(self.codec.encode(frame))

    def _end(self) -> None:
        self.is_closed = True
        self._sessions.clear()

    def _next_number(self) -> int:
        """Return the number of a new session.

        Raises:
            UsageError: no welcome has come, or the connection is closed.
        """
        if self.welcome is None or self.is_closed:
            got = "closed" if self.is_closed else "not welcomed yet"
            raise UsageError(f"{self._server}: expected a welcomed connection, got one that is {got}")
        return self._last_session + 1

    def _add(self, number: int, session: SessionT) -> None:
        self._last_session, self._sessions[number] = number, session

    def _find(self, session: int) -> SessionT:
        state = self._sessions.get(session)
        if state is None:
            raise UsageError(f"session {session}: is not open")
        return state

    def _find_resumed(self, session: int) -> SessionT:
        """Return a session; if it was resumed, the resume must have been answered.

        Raises:
            UsageError: there is no such session.
        """
        state = self._find(session)
        if state.is_resuming:
            raise UsageError(f"session {session}: expected a resumed session, got one that waits for the answer")
        return state


class ServerEnd(ABC, Generic[CodecT, FrameT]):
    """The server's end of a connection.

    Args:
        codec: codec of the protocol, with the limits that the welcome announces.
        welcome: the frame that answers a hello.
        max_faults: number of faulty frames that ends the connection.

    Attributes:
        is_closed: the connection must be closed after the last message.
        faults: number of faulty frames from the client so far.
    """

    def __init__(self, codec: CodecT, welcome: Struct, *, max_faults: int) -> None:
        self.codec = codec
        self.is_closed = False
        self.faults = 0
        self._accepting = welcome
        self._max_faults = max_faults
        self._has_hello = False
        self._is_welcome = False
        self._messages: list[bytes] = []

    def take_messages(self) -> list[bytes]:
        """Return the messages to send, in order; each is returned once. If ``is_closed``, close the connection after them."""
        messages, self._messages = self._messages, []
        return messages

    def receive(self, message: bytes | str) -> FrameT | Close | None:
        """Return the frame to carry out, or None if there is nothing to do. Nothing that the client sends makes it raise.

        If a client's fault ended a session, it returns ``Close`` for that session.
        """
        if self.is_closed:
            return None
        try:
            if isinstance(message, str):
                raise MalformedFrameError(f"message: expected bytes, got text of {len(message)} characters")
            return self._read(message)
        except VerifyProtocolError as error:
            lost = error.session if error.scope == "session" and self._has_session(error.session) else None
            self._answer(error)  # a round that it names isn't an unanswered one, or repeats its number, so there is nothing to drop
            return None if lost is None or self.is_closed else Close(lost)

    def welcome(self) -> None:
        """Accept the hello that ``receive`` returned. The shell must check its token first, and ``refuse`` a wrong one."""
        assert self._has_hello, "a hello is what a welcome answers"
        self._is_welcome = True
        self._messages.append(self.codec.encode(self._accepting))

    @abstractmethod
    def _read(self, message: bytes) -> FrameT | Close | None:
        """Return the frame in a message if it must be carried out, or None."""

    @abstractmethod
    def _has_session(self, session: int | None) -> bool:
        """Return True if there is such a session."""

    @abstractmethod
    def _end_session(self, session: int | None) -> bool:
        """Forget a session. Returns False if there was none."""

    def _answer(self, error: VerifyProtocolError) -> None:
        """Send an error, and end its connection or session."""
        if self.is_closed:
            return
        self._messages.append(self.codec.encode(Refusal.of(error)))
        match error.scope:
            case "connection":
                self.is_closed = True
            case "session":
                self._end_session(error.session)
            case "round" | "frame":
                pass
            case _ as never:
                assert_never(never)
        if error.is_fault:
            self.faults += 1
            if self.faults >= self._max_faults:
                self._answer(FaultLimitError("connection: expected frames of this protocol, got too many that are not"))
