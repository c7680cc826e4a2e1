"""What a client logs of its answers: a line each, decisions in detail, one request id for all of them, and nothing private."""

from __future__ import annotations

import logging
import re
from typing import Any

import aiohttp
import pytest

from streamco.client.answer_log import AnswerLog, describe_error
from streamco.endpoints.base import Capabilities
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import AllEndpointsFailed, EndpointConnectError, EndpointError, EndpointStatusError, EndpointTimeoutError
from streamco.proxy.app import serving as serving_proxy
from streamco.server.app import ServeOptions, serving
from streamco.testing import Cut, RecordedRequest, ScriptedResponse, ScriptedServer, chunk_event, json_answer, stream_answer
from streamco.testing.engine import FakeEngine
from tests.client.helpers import ask, device, opened, server, tokens_text, words
from tests.client.speculating import PROMPT, World

KEY, SECRET = "sk-marked-key-7f3a", "marked private words"


def schema_with(name: str) -> dict[str, Any]:
    """A response format that no device can hold to, because of this property's format."""
    schema = {"type": "object", "properties": {name: {"type": "string", "format": name}}, "required": [name], "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What the client logged at this level."""
    return [each.getMessage() for each in caplog.records if each.name == "streamco" and each.levelno == level]


async def test_an_answer_is_one_line_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamco")
    async with opened(device(), server([(5.0, "S")]), policy="both", budget=1.0) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        await stream.aclose()
        request_id = stream.report.request_id
    (line,) = lines(caplog, logging.INFO)
    assert re.fullmatch(
        rf"{request_id}: device answered \(race: both at once\); first token \d\.\d{{3}} s, 1 token in \d\.\d{{3}} s, stop, cost unknown",
        line,
    )
    assert re.fullmatch(r"[0-9a-f]{16}", request_id)


async def test_a_failed_answer_and_one_that_its_reader_left_are_lines_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamco")
    async with opened(server=server([(0.0, EndpointConnectError("down"))])) as client:
        with pytest.raises((AllEndpointsFailed, EndpointError)):
            await ask(client)
    async with opened(server=server([(0.0, "a"), (60.0, "b")])) as client:
        stream = client.stream("hello")
        async for _token in stream:
            break
        await stream.aclose()
    failed, left = lines(caplog, logging.INFO)
    assert "no token, 0 tokens in " in failed
    assert ", failed, " in failed
    assert "1 token in " in left
    assert ", its reader left, " in left


async def test_a_hand_over_is_in_the_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamco")
    cut = ScriptedResponse(steps=[chunk_event("One "), chunk_event("two "), Cut()])
    async with ScriptedServer(cut) as scripted:
        first = OpenAIEndpoint("m", base_url=scripted.url, name="first", probe=False)
        async with opened(
            None, [first, server(words(0.0, 0.0, 0.0), name="second", capabilities=Capabilities(continuation="prefix"))]
        ) as client:
            await ask(client)
    (line,) = lines(caplog, logging.INFO)
    assert "second took over from first after token 2 (EndpointProtocolError)" in line


async def test_debug_has_each_decision_with_its_numbers_under_one_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "streamco")
    async with opened(device(), server([(5.0, "S")]), policy="both", budget=1.0) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        await stream.aclose()
        request_id = stream.report.request_id
    told = lines(caplog, logging.DEBUG)
    assert all(line.startswith(f"{request_id}: ") for line in told)
    assert f"{request_id}: device starts" in told
    assert f"{request_id}: server is cancelled: lost" in told
    assert f"{request_id}: device has ended" in told
    assert "prompt 10 tokens; device at once, server at once; policy both, constrained server, budget 1, spent nothing yet: both" in told[0]


async def test_debug_has_the_rounds_of_a_speculated_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "streamco")
    world = World()
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        await tokens_text(stream)
        await stream.aclose()
        rounds = stream.report.speculation.rounds if stream.report.speculation else 0
    told = " | ".join(lines(caplog, logging.DEBUG))
    assert rounds > 0
    assert len(re.findall(r"round \d+: \d+ accepted; queued \d", told)) == rounds
    assert len(re.findall(r"round \d+: \d+ drafted tokens sent from position \d+", told)) >= rounds
    assert "verifier connected" in told
    world.close()


async def test_servers_get_the_request_id_and_the_callers_own_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamco")
    async with (
        ScriptedServer(stream_answer(["a"]), stream_answer(["b"])) as scripted,
        opened(server=OpenAIEndpoint("m", base_url=scripted.url, name="server")) as client,
    ):
        stream = client.stream("hello")
        await tokens_text(stream)
        assert scripted.requests[0].headers["x-client-request-id"] == stream.report.request_id
        await ask(client, extra_headers={"x-client-request-id": "order-66"})
        assert scripted.requests[1].headers["x-client-request-id"] == "order-66"
    assert lines(caplog, logging.INFO)[-1].startswith("order-66: ")


async def test_one_id_joins_the_logs_of_proxy_client_and_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = FakeEngine()
    async with serving(engine, ServeOptions(port=0)) as upstream:
        remote = OpenAIEndpoint(engine.info.name, base_url=upstream, name="server")
        async with opened(server=remote) as client, serving_proxy(client) as url, aiohttp.ClientSession() as http:
            body = {"messages": [{"role": "user", "content": "hello"}]}
            async with http.post(f"{url}/chat/completions", json=body, headers={"X-Client-Request-Id": "order-67"}) as response:
                assert response.headers["x-request-id"] == "order-67"
                await response.read()
    engine.close()
    told = {each.name for each in caplog.records if each.getMessage().startswith("order-67: ")}
    assert told == {"streamco", "streamco.proxy", "streamco.server"}


@pytest.mark.parametrize("status", [200, 400, 401, 500])
async def test_no_log_at_any_level_has_a_key_or_a_prompt(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def answer(request: RecordedRequest) -> ScriptedResponse:
        if status == 200:
            return stream_answer(["fine ", SECRET])
        echo = f"bad {request.headers['authorization']} {request.body.decode()}"
        return json_answer({"error": {"message": echo}}, status=status)

    body = {"messages": [{"role": "user", "content": SECRET}], "stream": True}
    async with ScriptedServer(*[answer] * 20) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, api_key=KEY, name="server")
        async with opened(device(), remote) as client, serving_proxy(client) as url, aiohttp.ClientSession() as http:
            headers = {"Authorization": f"Bearer {KEY}"}
            async with http.post(f"{url}/chat/completions?{KEY}", json=body, headers=headers) as response:
                await response.read()
            async with http.post(f"{url}/chat/completions", data=f'{{"messages": "{SECRET}', headers=headers) as response:
                await response.read()
    told = " ".join(each.getMessage() + (each.exc_text or "") for each in caplog.records)
    assert told
    assert KEY not in told
    assert SECRET not in told


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ({SECRET: 1}, "a field that isn't known"),
        ({"response_format": schema_with(SECRET)}, "a response_format that it can't follow"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ],
)
async def test_a_line_says_the_kind_of_reason_that_leaves_the_device_out_and_the_caller_gets_the_rest(
    field: dict[str, Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    near = device(capabilities=Capabilities(json_schema=True))
    far = server(capabilities=Capabilities(json_schema=True))
    async with opened(near, far) as client, serving_proxy(client) as url, aiohttp.ClientSession() as http:
        body = {"messages": [{"role": "user", "content": "Hello"}], **field}
        async with http.post(f"{url}/chat/completions", json=body) as response:
            assert response.status == 200
            reason, notes = (response.headers[f"x-streamco-{name}"] for name in ("reason", "notes"))
    words = kind if kind == "reasoning_effort" else SECRET
    assert words in reason
    assert words in notes
    told = [each.getMessage() for each in caplog.records]
    assert SECRET not in " ".join(told)
    assert any(f"server answered (race: device: {kind})" in line for line in told)
    assert any(line.endswith(f": device: {kind}") for line in told), "the decision"
    assert f"device left out: {kind}; the server alone answers (logged once)" in told


@pytest.mark.long
@pytest.mark.parametrize("options", [{"extra_body": {SECRET: 1}}, {"model": SECRET}])
async def test_why_an_answer_is_not_speculated_is_logged_without_the_callers_words(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world = World()
    async with world.scripted() as verifier, world.speculating(verifier, server=server()) as client:
        stream = client.stream(PROMPT, **options)
        await tokens_text(stream)
        assert any(SECRET in note for note in stream.report.notes)
        assert SECRET in stream.report.dispatch.reason
    told = [each.getMessage() for each in caplog.records]
    assert SECRET not in " ".join(told)
    assert [line for line in told if line.startswith("not speculated: ") and line.endswith(" (logged once)")]
    assert [line for line in told if " answered (race: " in line and "; not speculated: " in line]
    world.close()


async def test_speculation_logs_neither_key_nor_prompt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = World()
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        await tokens_text(client.stream(PROMPT, temperature=0))
    told = " ".join(each.getMessage() for each in caplog.records)
    assert told
    assert PROMPT not in told
    assert world.text()[:20] not in told
    world.close()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (EndpointStatusError("quoted", status=429), "EndpointStatusError 429"),
        (EndpointTimeoutError("quoted", phase="first_token", limit=1.0), "EndpointTimeoutError first_token"),
        (EndpointConnectError("quoted"), "EndpointConnectError"),
    ],
)
def test_errors_are_named_not_quoted(error: Any, text: str) -> None:
    assert describe_error(error) == text


def test_details_are_off_unless_debug_is_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamco")
    assert not AnswerLog().is_detailed
    caplog.set_level(logging.DEBUG, "streamco")
    assert AnswerLog("x").is_detailed
    assert AnswerLog("x").request_id == "x"
