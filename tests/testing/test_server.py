"""The scripted server sends its script, byte for byte, and counts what happens."""

from __future__ import annotations

import asyncio
import json

import pytest

from streamco.testing import (
    DONE,
    Cut,
    Pause,
    RecordedRequest,
    Reset,
    ScriptedResponse,
    ScriptedServer,
    Stall,
    chunk_event,
    json_answer,
    sse_event,
    stream_answer,
)

REQUEST = b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{"'


async def connect(server: ScriptedServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def exchange(server: ScriptedServer, request: bytes = REQUEST) -> bytes:
    reader, writer = await connect(server)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    body = await (reader.readuntil(b"0\r\n\r\n") if b"chunked" in head else reader.read())
    writer.close()
    await writer.wait_closed()
    return head + body


async def test_an_answer_is_sent_piece_by_piece_in_chunked_framing() -> None:
    answer = ScriptedResponse(headers={"Content-Type": "text/plain"}, steps=[b"abc", Pause(0.001), b"defg"])
    async with ScriptedServer(answer) as server:
        assert await exchange(server) == (
            b"HTTP/1.1 200 Scripted\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
        )


async def test_close_framing_ends_with_the_connection() -> None:
    async with ScriptedServer(ScriptedResponse(status=503, steps=[b"busy"], framing="close")) as server:
        assert await exchange(server) == b"HTTP/1.1 503 Scripted\r\nConnection: close\r\n\r\nbusy"


async def test_length_framing_counts_the_bytes_and_keeps_the_connection_for_the_next_request() -> None:
    async with ScriptedServer(json_answer({"a": 1}), json_answer({"b": 2}, status=404)) as server:
        reader, writer = await connect(server)
        for body, status in ((b'{"a": 1}', b"200"), (b'{"b": 2}', b"404"), (b'{"b": 2}', b"404")):
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            assert status in head
            assert b"Content-Length: 8" in head
            assert await reader.readexactly(8) == body
        writer.close()
        await writer.wait_closed()
        assert server.connections_total == 1
        assert len(server.requests) == 3


async def test_a_request_is_recorded_even_when_it_arrives_byte_by_byte() -> None:
    body = json.dumps({"model": "m"}).encode()
    head = f"POST /v1/x?y=1 HTTP/1.1\r\nHost: h\r\nX-Key:  v \r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with ScriptedServer(ScriptedResponse(framing="close")) as server:
        reader, writer = await connect(server)
        for byte in head + body:
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()
        request = server.requests[0]
        assert (request.method, request.path, request.headers["x-key"]) == ("POST", "/v1/x?y=1", "v")
        assert request.json() == {"model": "m"}
        assert server.count("/v1/x") == 1


async def test_a_cut_ends_the_connection_without_the_end_of_the_answer() -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"abc", Cut()])) as server:
        reader, writer = await connect(server)
        writer.write(REQUEST)
        assert (await reader.read()).endswith(b"3\r\nabc\r\n")
        writer.close()
        await writer.wait_closed()


async def test_a_reset_is_seen_as_a_reset() -> None:
    async with ScriptedServer(ScriptedResponse(steps=[Reset()])) as server:
        reader, writer = await connect(server)
        writer.write(REQUEST)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_client_that_leaves_a_stalled_answer_is_counted() -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"abc", Stall()])) as server:
        reader, writer = await connect(server)
        writer.write(REQUEST)
        await reader.readuntil(b"abc")
        assert server.connections_open == 1
        assert server.answers_abandoned == 0
        writer.close()
        await server.wait_for(lambda server: server.connections_open == 0)
        assert server.answers_abandoned == 1


async def test_a_function_of_the_request_and_a_route_decide_the_answer() -> None:
    def echo(request: RecordedRequest) -> ScriptedResponse:
        return ScriptedResponse(steps=[request.path.encode()], framing="close")

    async with ScriptedServer(echo) as server:
        server.route("/health", ScriptedResponse(steps=[b"fine"], framing="close"))
        assert (await exchange(server)).endswith(b"/v1/chat/completions")
        assert (await exchange(server, b"GET /health HTTP/1.1\r\n\r\n")).endswith(b"fine")


async def test_closing_the_server_drops_clients_and_can_be_repeated() -> None:
    server = ScriptedServer(ScriptedResponse(steps=[Stall()]))
    await server.start()
    reader, writer = await connect(server)
    writer.write(REQUEST)
    await reader.readuntil(b"\r\n\r\n")
    await server.aclose()
    await server.aclose()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert server.connections_open == 0


async def test_waiting_for_something_that_does_not_happen_has_a_limit() -> None:
    async with ScriptedServer() as server:
        with pytest.raises(TimeoutError):
            await server.wait_for(lambda server: server.connections_total == 1, limit=0.01)


async def test_a_large_answer_is_written_at_the_speed_of_its_reader() -> None:
    async with ScriptedServer(ScriptedResponse(steps=[bytes(1 << 20)] * 8, framing="close")) as server:
        reader, writer = await connect(server)
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.read()) == 8 << 20
        writer.close()
        await writer.wait_closed()


def test_a_stream_answer_has_a_role_its_texts_a_finish_usage_and_done() -> None:
    answer = stream_answer(["a", "b"], usage={"prompt_tokens": 1}, gap=0.5, first=0.25)
    assert answer.steps == [
        chunk_event("", role="assistant"),
        Pause(0.25),
        chunk_event("a"),
        Pause(0.5),
        chunk_event("b"),
        chunk_event(finish_reason="stop"),
        chunk_event(usage={"prompt_tokens": 1}),
        DONE,
    ]
    assert b'"choices":[],' in chunk_event(usage={"prompt_tokens": 1})
    assert len(stream_answer(["a", "b"], gap=0.5, joined=True).steps) == 1
    assert stream_answer(["a"], finish_reason=None, done=False).steps == [chunk_event("", role="assistant"), chunk_event("a")]
    assert sse_event("[DONE]") == DONE
