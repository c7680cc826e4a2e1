"""The connection that sessions share: which server answers, what is refused, what is lost, and what is kept secret."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from streamco.config import Timeouts
from streamco.core.speculation.events import (
    ConnectVerifier,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.errors import (
    EndpointConnectError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
)
from streamco.testing import FaultProxy, Refuse, ScriptedServer, ScriptedVerifier, Send
from streamco.wire.verify.errors import (
    MalformedFrameError,
    ShuttingDownError,
    UnauthorisedError,
    VersionError,
    VocabularyError,
)
from tests.endpoints.verifiers.support import (
    ANSWER,
    Talk,
    scripted,
    verifier_at,
)
from tests.support.certificates import client_context, server_context
from tests.support.leaks import settled


async def test_a_server_that_is_not_there_yet_is_tried_again() -> None:
    server = scripted()
    async with server:
        port = server.port
    async with verifier_at(f"ws://127.0.0.1:{port}") as verifier:
        with pytest.raises(EndpointConnectError):
            await verifier.probe()
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        await asyncio.sleep(0.1)
        await server.start()
        try:
            await talk.next(VerifierConnected)
            await talk.verify(ANSWER[:2])
        finally:
            await verifier.aclose()
            await server.aclose()


@pytest.mark.long
@pytest.mark.parametrize("kind", [UnauthorisedError, VocabularyError, VersionError])
async def test_a_server_that_does_not_want_us_ends_every_session(server: ScriptedVerifier, kind: type[UnauthorisedError]) -> None:
    async with verifier_at(server.url) as verifier:
        talks = [Talk(verifier), Talk(verifier)]
        for talk in talks:
            await talk.connect()
        server.script(Refuse(kind))
        talks[0].send(ANSWER[:2])
        for talk in talks:
            assert isinstance((await talk.next(VerifierFailed)).error, kind)


async def test_a_good_bye_is_a_loss_and_the_next_connection_is_better(server: ScriptedVerifier) -> None:
    server.script(Refuse(ShuttingDownError))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        await talk.next(VerifierLost)
        await talk.connect()
        assert await talk.write(6) == ANSWER[:6]


async def test_a_wrong_token_is_refused_and_the_right_one_is_not_told() -> None:
    async with scripted(token="sesame") as server:
        for token in (None, "open"):
            async with verifier_at(server.url, token=token) as verifier:
                with pytest.raises(UnauthorisedError):
                    await verifier.probe()
                talk = Talk(verifier)
                talk.session.run(ConnectVerifier(()))
                assert isinstance((await talk.next(VerifierFailed)).error, UnauthorisedError)
        async with verifier_at(server.url, token="sesame") as verifier:
            await verifier.probe()
            assert "sesame" not in repr(verifier)


async def test_neither_token_nor_prompt_are_written_into_a_log_that_takes_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with scripted(token="sesame") as server:
        caplog.clear()
        async with verifier_at(server.url, token="sesame") as verifier:
            talk = Talk(verifier)
            await talk.connect()
            await talk.verify(ANSWER[:2])
    ours = [record.getMessage() for record in caplog.records if record.name != "websockets.server"]  # the scripted server's own
    assert "sesame" not in "".join(ours)
    assert not [record for record in caplog.records if record.name.startswith(("websockets.client", "streamco.websockets"))]


async def test_a_server_that_repeats_the_token_is_quoted_without_it() -> None:
    async with scripted(token="another") as server, verifier_at(server.url, token="sesame") as verifier:
        server.status = 403
        server.reason = "sesame is no key of ours"
        with pytest.raises(EndpointStatusError) as caught:
            await verifier.probe()
        assert "sesame" not in str(caught.value) + caught.value.body
        assert "is no key of ours" in caught.value.body


@pytest.mark.long
@pytest.mark.parametrize(("status", "is_tried_again"), [(401, False), (404, False), (429, True), (503, True)])
async def test_a_server_behind_a_refusing_gateway(server: ScriptedVerifier, status: int, is_tried_again: bool) -> None:
    server.status = status
    async with verifier_at(server.url) as verifier:
        with pytest.raises(EndpointStatusError) as caught:
            await verifier.probe()
        assert caught.value.status == status
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        if is_tried_again:
            server.status = None
            await talk.next(VerifierConnected)
        else:
            assert isinstance((await talk.next(VerifierFailed)).error, EndpointStatusError)


async def test_a_server_that_speaks_http_only_is_no_verifier() -> None:
    async with ScriptedServer() as server, verifier_at(f"ws://127.0.0.1:{server.port}") as verifier:
        with pytest.raises(EndpointStatusError, match="200"):
            await verifier.probe()


async def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(ignore, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with verifier_at(f"ws://127.0.0.1:{port}", timeouts=Timeouts(connect=0.1, cancel=1)) as verifier:
        with pytest.raises(EndpointTimeoutError) as caught:
            await verifier.probe()
        assert caught.value.phase == "connect"
    listener.close()
    await listener.wait_closed()


async def test_a_connection_that_answers_no_ping_is_lost_for_all(server: ScriptedVerifier) -> None:
    timeouts = Timeouts(connect=5, first_token=5, next_token=1, socket=1, cancel=1)
    async with FaultProxy(server.port) as proxy, verifier_at(f"ws://127.0.0.1:{proxy.port}", timeouts=timeouts) as verifier:
        talk, other = Talk(verifier), Talk(verifier)
        await talk.connect()
        await other.connect()
        await talk.verify(ANSWER[:2])
        await other.verify(ANSWER[:2])
        proxy.stall()
        talk.send(ANSWER[3:5])
        await talk.next(VerifierLost)
        talk.session.run(ConnectVerifier(tuple(talk.answer)))
        await other.next(VerifierLost)
        await talk.next(VerifierConnected)
        await other.connect()
        proxy.resume()
        assert await talk.write(8) == ANSWER[:8]
        assert await other.write(8) == ANSWER[:8]
        assert proxy.connections_total == 2


@pytest.mark.long
@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x98\x12\x00\x00\x09\x01\x00\x00\x00", b"\x94\x11\x00\xc4\x02ab\x00"])
async def test_a_server_that_says_what_makes_no_sense_is_not_believed_any_more(server: ScriptedVerifier, data: bytes) -> None:
    server.script(Send(data))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        assert isinstance((await talk.next(VerifierFailed)).error, MalformedFrameError)
        await settled(lambda: not server.connections_open)


async def test_tls_is_used_and_its_certificate_looked_at() -> None:
    async with scripted(tls=server_context()) as server:
        async with verifier_at(server.url, tls=client_context()) as verifier:
            talk = Talk(verifier)
            await talk.connect()
            assert await talk.write(5) == ANSWER[:5]
        async with verifier_at(server.url) as verifier:
            talk = Talk(verifier)
            talk.session.run(ConnectVerifier(()))
            failed = await talk.next(VerifierFailed)
            assert isinstance(failed.error, EndpointConnectError)
            assert isinstance(failed.error.__cause__, ssl.SSLCertVerificationError)


async def test_closing_does_not_wait_for_a_server_that_reads_nothing(server: ScriptedVerifier) -> None:
    async with FaultProxy(server.port) as proxy, verifier_at(f"ws://127.0.0.1:{proxy.port}") as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:2])
        proxy.stall()
        long = Talk(verifier, [1] * 100_000)
        talks = [Talk(verifier, long.prompt) for _ in range(40)]
        for waiting in talks:
            waiting.session.run(ConnectVerifier(()))
        await settled(lambda: all(waiting.events for waiting in talks))


async def test_a_connection_that_is_no_verifiers_is_a_protocol_error() -> None:
    from websockets.asyncio.server import serve

    async with serve(lambda socket: socket.wait_closed(), "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with verifier_at(f"ws://127.0.0.1:{port}") as verifier:
            with pytest.raises(EndpointProtocolError, match="subprotocol"):
                await verifier.probe()
