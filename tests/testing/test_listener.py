"""The base of servers and proxies: a free port, one context manager, and nothing left when it is closed."""

from __future__ import annotations

import asyncio

import pytest

from streamco.testing.listener import Listener


class Greeter(Listener):
    """Writes a greeting to each connection and keeps it open."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.drops = 0

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        assert (host, port) == ("127.0.0.1", 0)
        return await asyncio.start_server(self._greet, host, port)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(b"hello")
        await reader.read()
        writer.close()

    async def _drop(self) -> None:
        self.drops += 1
        for writer in self.writers:
            writer.transport.abort()


async def test_it_listens_inside_its_context_and_not_after_it() -> None:
    async with Greeter() as greeter:
        port = greeter.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(5) == b"hello"
    with pytest.raises(OSError, match=str(port)):
        await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b"", "the connection was dropped"
    writer.close()
    await writer.wait_closed()


async def test_closing_twice_or_before_the_start_is_harmless() -> None:
    greeter = Greeter()
    await greeter.aclose()
    assert greeter.drops == 0
    await greeter.start()
    await greeter.aclose()
    await greeter.aclose()
    assert greeter.drops == 2


async def test_two_listeners_have_ports_of_their_own() -> None:
    async with Greeter() as one, Greeter() as other:
        assert one.port != other.port


def test_a_listener_that_does_not_run_has_no_port() -> None:
    with pytest.raises(AssertionError, match="the Greeter is not running"):
        _ = Greeter().port
