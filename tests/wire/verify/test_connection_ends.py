"""What the ends of all protocols share, on a protocol of two frames: a text is echoed, and b"bad" breaks the rules."""

from __future__ import annotations

import pytest
from msgspec import Struct

from streamco.errors import UsageError
from streamco.wire.verify.connection_ends import ClientEnd, ServerEnd
from streamco.wire.verify.errors import (
    FaultLimitError,
    MalformedFrameError,
    OverloadedError,
    UnauthorisedError,
    UnexpectedFrameError,
    UnknownSessionError,
    VersionError,
)
from streamco.wire.verify.frames import Close, Refusal


class Text(Struct, frozen=True):
    text: str


class Codec:
    """Writes frames as text."""

    def encode(self, frame: object, /) -> bytes:
        return repr(frame).encode()


class Client(ClientEnd[Codec, Text, Text, str]):
    def __init__(self) -> None:
        super().__init__(Codec(), Text("hello"), versions=(2, 3), server="echo")

    def welcomed(self, version: int = 2) -> None:
        self._check_version(version)
        self.welcome = Text("welcome")

    def open(self) -> int:
        number = self._next_number()
        self._add(number, "open")
        return number

    def find(self, session: int) -> str:
        return self._find(session)

    def _decode(self, message: bytes) -> Text:
        if message == b"bad":
            raise MalformedFrameError("message: expected a good one, got a bad one")
        return Text(message.decode())

    def _handle(self, frame: Text) -> Text | None:
        self._check_welcome(frame)
        return frame if frame.text else None


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
    client.welcomed()
    with pytest.raises(UnexpectedFrameError, match="expected one a connection"):
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
    assert client.find(1) == "open"
    with pytest.raises(UsageError, match="session 0: expected one that is open, got none"):
        client.find(0)


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
