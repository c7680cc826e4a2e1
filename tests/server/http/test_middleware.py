"""Who may ask, how much, and how many at once, over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from streamco.server.http.errors import RequestError
from streamco.server.http.middleware import RequestAdmission, authorize, means_loopback
from streamco.server.options import ServeOptions
from streamco.testing.engine import FakeEngine
from tests.server.support import CHAT, HELLO, TEXT, Running, running, until

KEY = {"Authorization": "Bearer sk-right"}


async def send(server: Running, data: bytes) -> bytes:
    """Bytes on a connection of their own, and all that comes back until the server closes it."""
    reader, writer = await asyncio.open_connection(*server.runner.addresses[0][:2])
    writer.write(data)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def check_error(status: int, body: dict[str, Any], *, of: int, kind: str) -> str:
    assert status == of
    assert list(body) == ["error"]
    assert sorted(body["error"]) == ["code", "message", "param", "type"]
    assert body["error"]["type"] == kind
    assert isinstance(body["error"]["message"], str)
    return str(body["error"]["message"])


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_right_key_is_let_in(scheme: str) -> None:
    async with running(api_key="sk-right") as server:
        status, _ = await server.post(CHAT, HELLO, Authorization=f"{scheme} sk-right")
        assert status == 200


async def test_keys_that_the_options_do_not_have_need_a_check_of_their_own() -> None:
    class Elsewhere(ServeOptions, frozen=True, kw_only=True):
        @property
        def has_key(self) -> bool:
            return True

    with pytest.raises(AssertionError, match="need a check of their own"):
        authorize(Elsewhere())


WRONG = [None, "", "Bearer", "Bearer ", "Bearer sk-wrong", "Bearer sk-right-not", "Basic sk-right", "sk-right", "Bearer schlüssel"]


@pytest.mark.parametrize("given", WRONG)
async def test_anything_else_is_401_and_starts_nothing(given: str | None) -> None:
    engine = FakeEngine()
    async with running(engine, api_key="sk-right") as server:
        headers = {} if given is None else {"Authorization": given}
        async with server.client.post(CHAT, json=HELLO, headers=headers) as response:
            check_error(response.status, await response.json(), of=401, kind="authentication_error")
            assert response.headers["WWW-Authenticate"] == "Bearer"
    assert engine.requests == []


async def test_every_path_but_health_asks_for_the_key() -> None:
    async with running(api_key="sk-right") as server:
        for path, expected in (("/health", 200), ("/v1/models", 401), ("/nothing", 401)):
            async with server.client.get(path) as response:
                assert response.status == expected


async def test_the_key_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(api_key="sk-right") as server:
        await server.post(CHAT, HELLO, **KEY)
        await server.post(CHAT, b"{", **KEY)
        await server.post(CHAT, HELLO, Authorization="Bearer sk-other")
    assert "sk-right" not in caplog.text
    assert "sk-other" not in caplog.text


MALFORMED = [
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-right\x01\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer sk-right\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-right" + b"t" * 10_000 + b"\r\n\r\n",
    b"POST a secret prompt HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.mark.parametrize("head", MALFORMED)
async def test_malformed_http_is_refused_and_not_quoted_in_the_log(head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(api_key="sk-right") as server:
        answer = await send(server, head)
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert "sk-right" not in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("head", [b"", b"POST /v1/comp", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_a_connection_without_a_whole_request_is_closed_after_a_while(head: bytes) -> None:
    async with running(idle_timeout=0.05) as server:
        answer = await send(server, head)
    assert answer.startswith(b"HTTP/1.1 200") if head.endswith(b"\n") else answer == b""


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1:80", 200), ("localhost", 200), ("LOCALHOST:8000", 200), ("[::1]:8000", 200),
                                                ("evil.example:8000", 403), ("192.168.0.7", 403)])  # fmt: skip
async def test_a_server_without_a_key_answers_only_those_who_mean_this_machine(host: str, expected: int) -> None:
    async with running() as server:
        status, _ = await server.post(CHAT, HELLO, Host=host)
        assert status == expected


async def test_a_server_with_a_key_or_opened_on_purpose_goes_by_any_name() -> None:
    async with running(api_key="sk-right") as server:
        assert (await server.post(CHAT, HELLO, Host="models.example", **KEY))[0] == 200
    async with running(allow_open=True) as server:
        assert (await server.post(CHAT, HELLO, Host="models.example"))[0] == 200


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_beyond_the_limit_is_413(is_chunked: bool) -> None:
    async def pieces() -> Any:
        for _ in range(20):
            yield b"x" * 100

    async with running(max_body_bytes=1000) as server:
        data = pieces() if is_chunked else b"x" * 2000
        async with server.client.post(CHAT, data=data, headers={"Content-Type": "application/json"}) as response:
            message = check_error(response.status, await response.json(), of=413, kind="invalid_request_error")
            assert "at most 1000 bytes" in message


async def test_a_body_within_the_limit_passes() -> None:
    async with running(max_body_bytes=1000) as server:
        assert (await server.post(CHAT, HELLO))[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_another_content_type_is_415(kind: str) -> None:
    async with running() as server, server.client.post(CHAT, data=json.dumps(HELLO), headers={"Content-Type": kind}) as response:
        check_error(response.status, await response.json(), of=415, kind="invalid_request_error")


async def test_no_content_type_is_415_since_web_pages_may_send_that_anywhere() -> None:
    engine = FakeEngine()
    async with (
        running(engine) as server,
        server.client.post(CHAT, data=json.dumps(HELLO), skip_auto_headers=["Content-Type"]) as response,
    ):
        message = check_error(response.status, await response.json(), of=415, kind="invalid_request_error")
        assert message == "content type: expected application/json or application/vnd.msgpack, got none"
    assert engine.requests == []


async def test_json_with_a_charset_is_json() -> None:
    async with running() as server:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        async with server.client.post(CHAT, data=json.dumps(HELLO), headers=headers) as response:
            assert response.status == 200


async def test_an_unknown_path_is_404_and_a_wrong_method_405() -> None:
    async with running() as server:
        async with server.client.get("/v2/chat") as response:
            assert "/v2/chat" in check_error(response.status, await response.json(), of=404, kind="invalid_request_error")
        async with server.client.get(CHAT) as response:
            message = check_error(response.status, await response.json(), of=405, kind="invalid_request_error")
            assert message == f"method: expected POST, got GET on {CHAT}"
            assert response.headers["Allow"] == "POST"


async def test_one_more_than_all_places_is_429_with_a_time_to_come_back_and_a_place_freed_is_a_place() -> None:
    engine = FakeEngine(mode="manual")
    async with running(engine, max_streams=2, retry_after=2.5) as server:
        first, second = (asyncio.ensure_future(server.post(CHAT, HELLO)) for _ in range(2))
        await until(lambda: len(engine.generations) == 2)
        async with server.client.post(TEXT, json={"prompt": "Hello"}) as response:
            message = check_error(response.status, await response.json(), of=429, kind="rate_limit_error")
            assert "the limit of 2 at once is reached" in message
            assert response.headers["Retry-After"] == "3"
        engine.step(100)
        assert (await first)[0] == (await second)[0] == 200
        assert server.service.admission.present == 0
        third = asyncio.ensure_future(server.post(CHAT, HELLO))
        await until(lambda: len(engine.generations) == 3)
        engine.step(100)
        assert (await third)[0] == 200


async def test_an_unexpected_failure_is_500_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    def script(_request: object) -> list[str]:
        raise ZeroDivisionError("secret details")

    async with running(FakeEngine(script)) as server:
        message = check_error(*await server.post(CHAT, HELLO), of=500, kind="server_error")
        assert "secret" not in message
    assert "secret details" in caplog.text


def test_a_place_is_given_back_whatever_happens() -> None:
    admission = RequestAdmission(ServeOptions(max_streams=1))
    with pytest.raises(RuntimeError), admission.admitted():
        raise RuntimeError
    assert admission.present == 0
    with admission.admitted(), pytest.raises(RequestError, match="the limit of 1 at once"), admission.admitted():
        raise AssertionError
    assert admission.present == 0


def test_a_closed_house_admits_nobody() -> None:
    admission = RequestAdmission(ServeOptions())
    admission.close()
    with pytest.raises(RequestError) as caught, admission.admitted():
        raise AssertionError
    assert caught.value.status == 503


@pytest.mark.parametrize("filling", [b"{},", b"[],", b"1,"])
async def test_json_that_would_multiply_in_memory_is_413_before_it_is_decoded(filling: bytes) -> None:
    body = b'{"messages": [' + filling * 300_000 + b"1]}"
    kind = {"Content-Type": "application/json"}
    async with running(max_body_bytes=16 << 20) as server, server.client.post(CHAT, data=body, headers=kind) as response:
        assert response.status == 413
        assert "250000 commas and opening brackets" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("127.8.8.8:", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("", True),
        ("[::1].evil", False),
        ("[::1]evil:80", False),
        ("localhost.evil:80", False),
        ("127.0.0.1.evil", False),
        ("evil:80", False),
    ],
)
def test_a_host_is_this_machine_only_by_a_name_that_nothing_follows_but_a_port(host: str, is_here: bool) -> None:
    assert means_loopback(host) is is_here


async def test_a_table_in_a_message_is_no_structure() -> None:
    body = {"messages": [{"role": "user", "content": "," * 400_000}], "max_tokens": 1}
    async with running(max_body_bytes=16 << 20) as server, server.client.post(CHAT, json=body) as response:
        assert response.status != 413


async def test_a_size_beyond_the_limit_is_refused_before_the_key_is_checked() -> None:
    kind = {"Content-Type": "application/json"}
    async with running(api_key="secret", max_body_bytes=99) as server, server.client.post(CHAT, data=b"x" * 100, headers=kind) as response:
        assert response.status == 413


PACKED = {"Content-Type": "application/vnd.msgpack"}


async def test_messagepack_is_read_only_after_its_size_and_the_key_were_checked() -> None:
    engine = FakeEngine()
    async with running(engine, max_body_bytes=1000, api_key="sk-right") as server:
        assert (await server.post(CHAT, b"\xc1" * 2000, **PACKED))[0] == 413
        assert (await server.post(CHAT, b"\xc1", **PACKED))[0] == 401
        status, body = await server.post(CHAT, b"\xc1", **PACKED, **KEY)
        assert (status, body["error"]["message"]) == (400, "body: expected MessagePack, got a byte that begins no object")
        assert (await server.post(CHAT, b"\x81\xa8messages\xdd\xff\xff\xff\xff", **PACKED, **KEY))[0] == 413
    assert engine.requests == []
