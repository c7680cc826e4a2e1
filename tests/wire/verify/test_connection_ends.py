"""What the ends of all protocols share, on a protocol of two frames: a text is echoed, and b"bad" breaks the rules."""

from __future__ import annotations

import pytest
from msgspec import Struct

from streamco.errors import UsageError
from streamco.wire.verify.connection_ends import ClientEnd, ClientSession, ServerEnd
from streamco.wire.verify.errors import (
    FaultLimitError,
    MalformedFrameError,
    OverloadedError,
    UnauthorisedError,
    UnexpectedFrameError,
    UnknownSessionError,
    VersionError,
)
from streamco.wire.verify.frames import Close, Opened, Refusal


class Text(Struct, frozen=True):
    text: str


class Welcome(Struct, frozen=True):
    version: int = 2
    limits: Text = Text("small")


class Codec:
    """Writes frames as text; its limits are what it was made with."""

    def __init__(self, limits: Text | None = None) -> None:
        self.limits = limits or Text("large")

    def encode(self, frame: object, /) -> bytes:
        return repr(frame).encode()

    def decode_down(self, message: bytes, /) -> Text:
        if message == b"bad":
            raise MalformedFrameError("message: expected a good one, got a bad one")
        return Text(message.decode())

    def within(self, limits: Text, /) -> Codec:
        return Codec(limits)


class Client(ClientEnd[Codec, Text, Welcome, ClientSession]):
    def __init__(self) -> None:
        super().__init__(Codec(), Text("hello"), versions=(2, 3), server="echo")
        self.rounds: set[int] = set()

    def welcomed(self, version: int = 2) -> None:
        self._handle_welcome(Welcome(version))

    def open(self, *, is_resuming: bool = False) -> int:
        number = self._next_number()
        self._add(number, ClientSession(number + 7, is_resuming=is_resuming))
        return number

    def use(self, session: int) -> None:
        self._find_resumed(session)

    def opened(self, session: int) -> Opened | None:
        return self._handle_opened(Opened(session, bytes(16), 0))

    def refused(self, code: str, session: int | None = None, round_number: int | None = None) -> Refusal | None:
        return self._handle_refusal(Refusal(code, "no", session, round_number))

    def _handle(self, frame: Text) -> Text | None:
        self._check_welcome(frame)
        return frame if frame.text else None

    def _drop_round(self, state: ClientSession, frame: Refusal) -> bool:
        return frame.round_number in self.rounds


class Server(ServerEnd[Codec, Text]):
    def __init__(self) -> None:
        super().__init__(Codec(), Text("welcome"), max_faults=3)
        self.numbers = {4, 5}

    def refuse(self, error: UnauthorisedError | OverloadedError) -> None:
        self._answer(error)

    def _has_session(self, session: int | None) -> bool:
        return session in self.numbers

    def _end_session(self, session: int | None) -> bool:
        found = session in self.numbers
        self.numbers -= {session or 0}
        return found

    def _read(self, message: bytes) -> Text | None:
        self._has_hello = True
        if message.isdigit():
            raise UnknownSessionError("session: expected another one", session=int(message))
        if message == b"bad":
            raise MalformedFrameError("message: expected a good one, got a bad one")
        return Text(message.decode())


def test_a_client_begins_with_a_hello_and_then_expects_a_welcome() -> None:
    client = Client()
    assert client.take_messages() == [repr(Text("hello")).encode()]
    assert client.take_messages() == []
    with pytest.raises(UsageError, match="echo: expected a welcomed connection, got one that is not welcomed yet"):
        client.open()
    with pytest.raises(UnexpectedFrameError, match="expected a welcome first, got Text"):
        client.receive(b"early")
    assert client.is_closed


@pytest.mark.parametrize("version", [1, 4])
def test_a_client_takes_one_welcome_of_a_version_that_it_speaks(version: int) -> None:
    client = Client()
    with pytest.raises(VersionError, match=f"expected a version from 2 to 3, got {version}"):
        client.welcomed(version)
    assert client.codec.limits == Text("large")
    client.welcomed()
    assert client.codec.limits == Text("small")
    with pytest.raises(UnexpectedFrameError, match="expected one per connection"):
        client.welcomed()


def test_a_clients_sessions_have_numbers_of_their_own_until_they_are_closed() -> None:
    client = Client()
    client.welcomed()
    client.take_messages()
    assert [client.open(), client.open()] == [0, 1]
    client.close(0)
    client.close(0)
    assert client.take_messages() == [repr(Close(0)).encode()]
    assert client.open() == 2
    assert client.length(1) == 8
    with pytest.raises(UsageError, match="session 0: is not open"):
        client.length(0)


def test_a_session_is_opened_once_and_not_used_before_its_resume_is_answered() -> None:
    client = Client()
    client.welcomed()
    opened, resumed = client.open(), client.open(is_resuming=True)
    client.use(opened)
    with pytest.raises(UsageError, match="session 1: expected a resumed session, got one that waits for the answer"):
        client.use(resumed)
    assert client.opened(opened) is not None
    assert client.opened(9) is None
    for session in (opened, resumed):
        with pytest.raises(UnexpectedFrameError, match=f"session {session}: opened, but it was open or being resumed"):
            client.opened(session)


def test_a_refusal_ends_what_it_names_and_is_dropped_if_that_is_over() -> None:
    client = Client()
    client.welcomed()
    session = client.open()
    client.rounds = {3}
    assert client.refused("overloaded", session, 3) is not None
    assert client.refused("overloaded", session, 4) is None
    assert client.refused("overloaded", 9, 3) is None
    assert client.refused("malformed") is not None
    client.use(session)
    assert client.refused("evicted", session) is not None
    assert client.refused("evicted", session) is None
    with pytest.raises(UsageError, match="is not open"):
        client.use(session)
    assert client.refused("shutting_down") is not None
    assert client.is_closed


@pytest.mark.parametrize("message", [b"bad", "text"])
def test_a_client_ends_with_an_answer_that_breaks_the_protocol(message: bytes | str) -> None:
    client = Client()
    client.welcomed()
    client.open()
    client.take_messages()
    assert (client.receive(b"hi"), client.receive(b"")) == (Text("hi"), None)
    with pytest.raises(MalformedFrameError, match="message: expected"):
        client.receive(message)
    client.close(0)
    assert (client.receive(b"hi"), client.take_messages()) == (None, [])
    with pytest.raises(UsageError, match="got one that is closed"):
        client.open()


def test_a_server_refuses_faults_and_ends_after_so_many() -> None:
    server = Server()
    assert server.receive(b"hi") == Text("hi")
    server.welcome()
    assert server.take_messages() == [repr(Text("welcome")).encode()]
    messages: list[bytes | str] = [b"bad", "text"]
    for faults, message in enumerate(messages, start=1):
        assert server.receive(message) is None
        assert (server.faults, server.is_closed, len(server.take_messages())) == (faults, False, 1)
    server.receive(b"bad")
    *_, last = server.take_messages()
    assert server.is_closed
    assert FaultLimitError.code.encode() in last
    assert (server.receive(b"hi"), server.take_messages()) == (None, [])


def test_a_session_that_a_fault_ends_is_closed_for_the_shell() -> None:
    server = Server()
    assert server.receive(b"4") == Close(4)
    assert server.numbers == {5}
    assert server.receive(b"9") is None, "there was none"


def test_what_a_shell_refuses_is_no_fault_and_may_end_the_connection() -> None:
    server = Server()
    busy = OverloadedError("busy: expected less", session=5)
    server.refuse(busy)
    assert (server.faults, server.numbers, server.take_messages()) == (0, {4}, [repr(Refusal.of(busy)).encode()])
    server.refuse(UnauthorisedError("token: expected another"))
    assert server.is_closed
