"""The background check of servers that always lose: it finds a wrong key out, and asks for nothing that a promise forbids."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from streamco.client.modes.race.mode import Race
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointStatusError
from streamco.testing import ScriptedResponse, ScriptedServer, Stall, json_answer, stream_answer
from tests.client.helpers import ask, device, opened, tokens_text, words
from tests.support.leaks import settled

CHAT, MODELS = "/v1/chat/completions", "/v1/models"
LIST = json_answer({"object": "list", "data": [{"id": "m"}]})
SLOW = stream_answer(["S"], first=60.0)
ALWAYS: dict[str, Any] = {"policy": "both", "budget": 1.0}


def refusing(status: int, message: str = "Incorrect API key provided") -> ScriptedResponse:
    return json_answer({"error": {"message": message}}, status=status)


def endpoint(server: ScriptedServer, key: str | None = "sk-test-12345678", **options: Any) -> OpenAIEndpoint:
    return OpenAIEndpoint("m", base_url=server.url, api_key=key, name="server", **options)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


async def test_a_wrong_key_of_a_server_that_always_loses_is_found_out_after_the_first_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedServer(SLOW) as server:
        server.route(MODELS, refusing(401))
        async with opened(device(words(0.0, 0.05)), endpoint(server), **ALWAYS) as client:
            stream = client.stream("hello")
            await anext(stream)
            assert server.count(MODELS) == 0, "the first answer is not disturbed"
            await tokens_text(stream)
            assert stream.report.notes == []
            await settled(lambda: client.degraded)
            with pytest.raises(EndpointStatusError, match="401"):
                await ask(client)
            assert server.count(MODELS) == 1
            only_ready = client.with_options(mode=Race(policy="device-first"))
            stream = only_ready.stream("hello")
            await tokens_text(stream)
            assert stream.report.notes == ["server can't take over: it has refused another request (EndpointStatusError 401)"]
    assert warnings(caplog) == ["server failed (EndpointStatusError 401): other endpoints have answered in its place (logged once)"]


async def test_a_key_that_is_accepted_is_checked_once() -> None:
    async with ScriptedServer(SLOW) as server:
        server.route(MODELS, LIST)
        async with opened(device(), endpoint(server), **ALWAYS) as client:
            await ask(client)
            await settled(lambda: server.count(MODELS) == 1)
            for _ in range(3):
                await ask(client)
            assert server.count(MODELS) == 1
            assert client.degraded == ()
            request = next(each for each in server.requests if each.path == MODELS)
            assert request.headers["authorization"] == "Bearer sk-test-12345678"


async def test_a_server_that_answers_is_not_checked() -> None:
    async with ScriptedServer(stream_answer(["S"])) as server:
        async with opened(device([(5.0, "D")]), endpoint(server), **ALWAYS) as client:
            assert await ask(client) == "S"
            await asyncio.sleep(0.05)
        assert server.count(MODELS) == 0


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"policy": "device-only"}, "sk-test-12345678"),
        ({"budget": 0.0}, "sk-test-12345678"),
        ({**ALWAYS, "check_access": False}, "sk-test-12345678"),
        (ALWAYS, ""),
    ],
)
async def test_nothing_is_asked_under_a_promise_without_a_key_or_if_it_is_switched_off(options: dict[str, Any], key: str) -> None:
    async with ScriptedServer(SLOW) as server:
        async with opened(device(), endpoint(server, key), **options) as client:
            assert await ask(client) == "D"
            await asyncio.sleep(0.05)
        assert server.count(MODELS) == 0


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    "answer",
    [
        refusing(401, "You have insufficient permissions for this operation. Missing scopes: api.model.read."),
        refusing(404),
        refusing(500),
        ScriptedResponse(status=200, steps=[b"no JSON"]),
    ],
)
async def test_what_says_nothing_about_the_key_changes_nothing(answer: ScriptedResponse, caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedServer(SLOW) as server:
        server.route(MODELS, answer)
        async with opened(device(), endpoint(server), **ALWAYS) as client:
            for _ in range(2):
                assert await ask(client) == "D"
                await settled(lambda: server.count(MODELS) == 1)
                await asyncio.sleep(0.05)
            assert client.degraded == ()
    assert warnings(caplog) == []


async def test_a_list_that_is_forbidden_is_a_warning_and_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedServer(SLOW) as server:
        server.route(MODELS, refusing(403, "Forbidden"))
        async with opened(device(), endpoint(server), **ALWAYS) as client:
            assert await ask(client) == "D"
            await settled(lambda: warnings(caplog))
            assert await ask(client) == "D"
            assert server.count(MODELS) == 1
    (warning,) = warnings(caplog)
    assert warning.startswith("server may refuse answers: it refuses its list of models (403)")


async def test_a_provider_without_a_list_is_not_asked() -> None:
    async with ScriptedServer(SLOW) as server:
        async with opened(device(), endpoint(server, provider="perplexity"), **ALWAYS) as client:
            assert await ask(client) == "D"
            await asyncio.sleep(0.05)
        assert server.count(MODELS) == 0


async def test_closing_ends_a_check_that_runs() -> None:
    async with ScriptedServer(SLOW) as server:
        server.route(MODELS, ScriptedResponse(steps=[Stall()]))
        async with opened(device(), endpoint(server), **ALWAYS) as client:
            await ask(client)
            await settled(lambda: server.count(MODELS) == 1)
