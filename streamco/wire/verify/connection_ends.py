"""Base classes for both sides of a connection in all frame protocols. They queue messages, check received ones, and end on a fault.

``VerifyClient`` and ``SplitClient`` inherit from ``ClientEnd``, and ``VerifyServer`` and ``SplitServer`` from ``ServerEnd``. Each adds its
own frames.
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
    """The methods of a codec that ``ClientEnd`` and ``ServerEnd`` call."""

    def encode(self, frame: Any, /) -> bytes:
        """Encode a frame as bytes."""
        ...

    def decode_down(self, message: bytes, /) -> Any:
        """Decode a message from the server."""
        ...

    def within(self, limits: Any, /) -> Self:
        """Return a codec whose limits are each the smaller of this codec's and the given ones."""
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
    """A session's state at the client, in any frame protocol.

    Args:
        length: number of tokens or positions in the session's context that the client may rely on.
        is_opened: True once the server has answered the request to open or resume the session.
        is_resuming: True until the server answers a request to resume the session.
        last_round: number of the session's last round, or -1 if there hasn't been one.
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
    """Base class for the client's side of a connection.

    Args:
        codec: codec of the protocol.
        hello: the frame that is sent first.
        versions: first and last version of the protocol that this client speaks.
        server: name for the server in error messages.

    Attributes:
        welcome: the server's welcome, or None if it hasn't come.
        is_closed: True once the connection has ended.
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
        """Return the messages to send, in order. Each message is returned only once."""
        messages, self._messages = self._messages, []
        return messages

    def length(self, session: int) -> int:
        """Return the length of a session's context at both sides, including rows of unanswered rounds.

        Raises:
            UsageError: there is no such session.
        """
        return self._find(session).length

    def close(self, session: int) -> None:
        """End a session. You may call it more than once."""
        if self._sessions.pop(session, None) is not None and not self.is_closed:
            self._queue(Close(session))

    def receive(self, message: bytes | str) -> FrameT | None:
        """Decode a message from the server. Returns None if its frame is about a session or a round that is over.

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
        """Check a frame, and update the state. Returns None if it is about a session or a round that is over."""

    def _handle_welcome(self, frame: WelcomeT) -> WelcomeT:
        """Accept a welcome, and respect its limits from now on."""
        self._check_server(frame)
        self.welcome = frame
        self.codec = self.codec.within(frame.limits)
        return frame

    def _check_server(self, frame: WelcomeT) -> None:
        """Check that a welcome is the first one and has a supported version."""
        if self.welcome is not None:
            raise UnexpectedFrameError("welcome: expected one per connection, got a second one")
        first, last = self._versions
        if not first <= frame.version <= last:
            raise VersionError(f"welcome: expected a version from {first} to {last}, got {frame.version}")

    def _check_welcome(self, frame: Struct) -> None:
        """Check that the welcome came before this frame."""
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
        """Drop the refused round and everything that depends on it. Returns False if the round is already over."""

    def _queue(self, frame: Struct) -> None:
        self._messages.append(self.codec.encode(frame))

    def _end(self) -> None:
        self.is_closed = True
        self._sessions.clear()

    def _next_number(self) -> int:
        """Return the number for a new session.

        Raises:
            UsageError: the welcome hasn't come, or the connection is closed.
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
        """Return a session that isn't waiting for the answer to a resume.

        Raises:
            UsageError: there is no such session, or its resume hasn't been answered.
        """
        state = self._find(session)
        if state.is_resuming:
            raise UsageError(f"session {session}: expected a resumed session, got one that waits for the answer")
        return state


class ServerEnd(ABC, Generic[CodecT, FrameT]):
    """Base class for the server's side of a connection.

    Args:
        codec: codec of the protocol, with the limits that the welcome announces.
        welcome: the frame that answers a hello.
        max_faults: the connection ends after this many faulty frames.

    Attributes:
        is_closed: True if the connection must be closed after the last message.
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
        """Return the messages to send, in order. Each is returned only once. If ``is_closed`` is set, close the connection after them."""
        messages, self._messages = self._messages, []
        return messages

    def receive(self, message: bytes | str) -> FrameT | Close | None:
        """Decode a message, and return the frame to carry out, or None if there is nothing to do. Nothing that the client sends raises.

        If the client's fault ended a session, ``Close`` is returned for that session.
        """
        if self.is_closed:
            return None
        try:
            if isinstance(message, str):
                raise MalformedFrameError(f"message: expected bytes, got text of {len(message)} characters")
            return self._read(message)
        except VerifyProtocolError as error:
            lost = error.session if error.scope == "session" and self._has_session(error.session) else None
            self._answer(error)  # if it names a round, that one isn't unanswered or repeats a number, so there is nothing to drop
            return None if lost is None or self.is_closed else Close(lost)

    def welcome(self) -> None:
        """Accept the hello that ``receive`` returned. The shell must check the hello's token first, and ``refuse`` a wrong token."""
        assert self._has_hello, "a hello is what a welcome answers"
        self._is_welcome = True
        self._messages.append(self.codec.encode(self._accepting))

    @abstractmethod
    def _read(self, message: bytes) -> FrameT | Close | None:
        """Decode a message, and return its frame if the shell must carry it out, otherwise None."""

    @abstractmethod
    def _has_session(self, session: int | None) -> bool:
        """Return True if a session with this number is open."""

    @abstractmethod
    def _end_session(self, session: int | None) -> bool:
        """Drop a session. Returns False if there was none."""

    def _answer(self, error: VerifyProtocolError) -> None:
        """Send an error, and end the connection or session that it affects."""
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
