"""What servers are asked in the background: whether they take the key, what they are, and nothing that a promise forbids."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from streamco.client.modes.race.driver import RaceDriver
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Capabilities
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointConnectError, EndpointStatusError
from streamco.testing import Pause, ScriptedResponse, ScriptedServer, Stall, json_answer, stream_answer
from tests.client.helpers import ask, device, opened, tokens_text, words
from tests.support.leaks import alive, settled
from tests.support.modes import racing

CHAT, MODELS = "/v1/chat/completions", "/v1/models"
LIST = json_answer({"object": "list", "data": [{"id": "m"}]})
SLOW = stream_answer(["S"], first=60.0)
ALWAYS: dict[str, Any] = {"policy": "both", "budget": 1.0}


def refusing(status: int, message: str = "Incorrect API key provided") -> ScriptedResponse:
    return json_answer({"error": {"message": message}}, status=status)


def endpoint(server: ScriptedServer, key: str | None = "sk-test-12345678", **options: Any) -> OpenAIEndpoint:
    """Return the server's endpoint; its URL is no known provider's, so that it would be asked what it is."""
    return OpenAIEndpoint("m", base_url=server.url, api_key=key, name="server", **{"probe": False, **options})


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


async def test_a_server_that_writes_an_answer_is_asked_what_it_is_after_it() -> None:
    """llama-cpp-python breaks off an answer when it is asked for its models."""
    async with ScriptedServer(stream_answer(["S"] * 8, gap=0.05)) as server:
        server.route(MODELS, LIST)
        mode = {"policy": "server-first", "budget": 1.0}
        async with opened(device(words(0.0)), endpoint(server, probe=True), **mode) as client:
            assert await ask(client) == "S" * 8
            assert server.count(MODELS) == 0
            await settled(lambda: server.count(MODELS) == 1)


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


@pytest.mark.parametrize("settings", [{"provider": "openai"}, {"probe": True}])
async def test_a_wrong_name_of_a_model_is_found_out(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedServer(SLOW) as server:
        server.route(MODELS, json_answer({"object": "list", "data": [{"id": "other", "owned_by": "vllm"}]}))
        async with opened(device(), endpoint(server, **settings), **ALWAYS) as client:
            assert await ask(client) == "D"
            await settled(lambda: warnings(caplog))
            assert await ask(client) == "D"
    assert warnings(caplog) == [
        "server may refuse answers: its list of models lacks 'm'; other endpoints have answered in its place (logged once)"
    ]


@pytest.mark.parametrize("settings", [{"provider": "openai"}, {"probe": True}])
async def test_a_server_out_of_reach_that_no_answer_has_waited_for_is_found_out(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    remote = OpenAIEndpoint("m", base_url="http://127.0.0.1:9/v1", api_key="k", name="server", **{"probe": False, **settings})
    async with opened(device(), remote, policy="device-first", budget=1.0) as client:
        assert await ask(client) == "D"
        await settled(lambda: client.degraded)
        (degraded,) = client.degraded
        assert degraded.note == "server failed (EndpointConnectError)"
    assert warnings(caplog) == ["server failed (EndpointConnectError): other endpoints have answered in its place (logged once)"]


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


# What an unknown server is


def listed(owner: str, **facts: Any) -> ScriptedResponse:
    return json_answer({"object": "list", "data": [{"id": "m", "owned_by": owner, **facts}]})


def dying(*pieces: str) -> Any:
    return device([*((0.02 * index, text) for index, text in enumerate(pieces)), (0.02 * len(pieces), EndpointConnectError("dead"))])


def unknown(server: ScriptedServer, **options: Any) -> OpenAIEndpoint:
    return endpoint(server, probe=True, **options)


FIRST: dict[str, Any] = {"policy": "device-first", "budget": 1.0}


async def test_the_first_answer_fails_over_to_a_server_that_says_that_it_can_continue(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="streamco")
    async with ScriptedServer(stream_answer([" S"])) as server:
        server.route(MODELS, listed("vllm", max_model_len=99))
        remote = unknown(server)
        async with opened(dying("D1", " D2"), remote, **FIRST) as client:
            stream = client.stream("hello")
            assert await tokens_text(stream) == "D1 D2 S"
            assert [each.target for each in stream.report.hand_overs] == ["server"]
            assert [each.server for each in stream.report.endpoints] == ["vllm", None]
            await ask(client)
        assert [each.path for each in server.requests] == [MODELS, CHAT, CHAT], "the list answers the question, so no other path is asked"
        body = server.requests[1].json()
        assert body["messages"][-1] == {"role": "assistant", "content": "D1 D2"}
        assert (remote.provider, remote.capabilities.context_tokens) == ("vllm", 99)
        assert "server is vllm, context 99, goes on with begun answers: continue_final_message" in caplog.text


async def test_a_hand_over_waits_for_a_slow_list() -> None:
    async with ScriptedServer(stream_answer([" S"])) as server:
        server.route(MODELS, json_answer({"data": [{"id": "m", "owned_by": "vllm"}]}, steps=[Pause(0.3)]))
        async with opened(dying("D"), unknown(server), **FIRST) as client:
            assert await ask(client) == "D S"


async def test_a_server_that_says_nothing_ends_the_answer_after_a_second() -> None:
    async with ScriptedServer(stream_answer([" S"])) as server:
        server.route(MODELS, ScriptedResponse(steps=[Stall()]))
        async with opened(dying("D"), unknown(server), **FIRST) as client:
            with pytest.raises(EndpointConnectError, match="dead") as caught:
                await ask(client)
            assert caught.value.partial == "D"
        assert server.count(CHAT) == 0


@pytest.mark.parametrize("owner", ["organization_owner", "ollama-like"])
async def test_other_paths_are_asked_only_if_the_list_leaves_it_open(owner: str) -> None:
    async with ScriptedServer(stream_answer(["S"])) as server:
        server.route(MODELS, listed(owner))
        server.route("/api/version", json_answer({"version": "0.13"}))
        remote = unknown(server)
        async with opened(device(), remote, **ALWAYS) as client:
            await ask(client)
            await settled(lambda: remote.provider == "ollama")
            await ask(client)
        assert {each.path for each in server.requests} - {CHAT} == {MODELS, "/props", "/version", "/get_model_info", "/api/version"}
        assert {each.method for each in server.requests if each.path != CHAT} == {"GET"}
        assert remote.capabilities.images, "abilities are only added"
        assert remote.capabilities.choices


@pytest.mark.parametrize("status", [403, 404, 405])
async def test_a_server_that_refuses_is_not_asked_again(status: int) -> None:
    async with ScriptedServer(stream_answer(["S"])) as server:
        server.route(MODELS, refusing(status, "no"))
        remote = unknown(server)
        async with opened(device(), remote, on_degraded="ignore", **ALWAYS) as client:
            await ask(client)
            await settled(lambda: not remote.is_unknown)
            for _ in range(3):
                await ask(client)
        assert [each.path for each in server.requests if each.path not in {CHAT, MODELS}] == []
        assert server.count(MODELS) == 1
        assert remote.capabilities.continuation == "none"


async def test_a_wrong_key_of_an_unknown_server_is_found_out_too(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedServer(SLOW) as server:
        server.route(MODELS, refusing(401))
        async with opened(device(), unknown(server), **ALWAYS) as client:
            assert await ask(client) == "D"
            await settled(lambda: client.degraded)
            with pytest.raises(EndpointStatusError, match="401"):
                await ask(client)


async def test_a_list_that_needs_another_key_is_no_matter_while_the_server_answers() -> None:
    async with ScriptedServer(stream_answer(["a", "b", "c"], gap=0.1)) as server:
        server.route(MODELS, refusing(401))
        async with opened(device([(9.0, "D")]), unknown(server), **ALWAYS) as client:
            first = asyncio.create_task(ask(client))
            await settled(lambda: server.count(MODELS))
            assert await ask(client) == "abc"
            assert await first == "abc"
            for _ in range(2):
                assert await ask(client) == "abc"
            assert client.degraded == ()


@pytest.mark.parametrize(("status", "questions"), [(429, 2), (503, 2), (404, 1)])
async def test_a_busy_server_is_asked_again_later(status: int, questions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.client.modes.race.server_checks._ASK_AGAIN", 0.0)
    async with ScriptedServer(stream_answer(["S"])) as server:
        server.route(MODELS, refusing(status, "no"))
        async with opened(device(), unknown(server), **ALWAYS) as client:
            for asked in (1, questions):
                await ask(client)
                await settled(lambda asked=asked: server.count(MODELS) == asked)  # type: ignore[misc]
                await asyncio.sleep(0.1)
        assert server.count(MODELS) == questions


async def test_a_question_without_an_answer_holds_no_answers() -> None:
    async with ScriptedServer(stream_answer(["S"])) as server:
        server.route(MODELS, ScriptedResponse(steps=[Stall()]))
        async with opened(device(), unknown(server), **ALWAYS) as client:
            gc.collect()
            before = len(alive(RaceDriver))
            for _ in range(10):
                await ask(client)
            await settled(lambda: not client._settings.endpoints.active)
            assert len(alive(RaceDriver)) - before <= 1


async def test_no_redirect_is_followed() -> None:
    async with ScriptedServer(stream_answer(["S"])) as server:
        server.route(MODELS, ScriptedResponse(status=307, headers={"Location": "/v1/elsewhere"}, steps=[b"{}"]))
        async with opened(device(), unknown(server), **ALWAYS) as client:
            await ask(client)
            await settled(lambda: server.count(MODELS))
            await asyncio.sleep(0.05)
        assert server.count("/v1/elsewhere") == 0


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"policy": "device-only"}, {}),
        ({"budget": 0.0}, {}),
        ({**ALWAYS, "check_access": False}, {}),
        (ALWAYS, {"probe": False}),
        (ALWAYS, {"provider": "deepseek"}),
        (ALWAYS, {"capabilities": Capabilities(tools=True)}),
    ],
)
async def test_nothing_is_asked_about_it_under_a_promise_or_if_it_is_switched_off(
    options: dict[str, Any], settings: dict[str, Any]
) -> None:
    async with ScriptedServer(stream_answer(["S"], first=0.5)) as server:
        server.route(MODELS, listed("vllm"))
        async with opened(device(), endpoint(server, "", **{"probe": True, **settings}), **options) as client:
            await ask(client)
            await asyncio.sleep(0.05)
        assert server.count(MODELS) == 0
        if options is not ALWAYS and "check_access" not in options:
            assert server.requests == []


async def test_a_client_with_one_endpoint_asks_nothing() -> None:
    async with ScriptedServer(stream_answer(["S"])) as server:
        async with opened(server=unknown(server)) as client:
            assert await ask(client) == "S"
            await asyncio.sleep(0.05)
        assert [each.path for each in server.requests] == [CHAT]


async def test_closing_ends_the_question() -> None:
    async with ScriptedServer(stream_answer(["S"])) as server:
        server.route(MODELS, ScriptedResponse(steps=[Stall()]))
        async with opened(device(), unknown(server), **ALWAYS) as client:
            await ask(client)
            await settled(lambda: server.count(MODELS) == 1)


# How long its latest answers took


async def basis_after(card: dict[str, Any]) -> str:
    """What the second answer's plan rests on; the device gave the first one, beside a server with this card."""
    async with ScriptedServer(SLOW) as server:
        server.route(MODELS, json_answer({"object": "list", "data": [{"id": "m", "owned_by": "streamco", **card}]}))
        asked = endpoint(server, probe=True)
        async with opened(device(words(0.0, 0.05)), asked, **ALWAYS) as client:
            await ask(client)
            await settled(lambda: not asked.is_unknown)
            await ask(client)
            assert server.count(MODELS) == 1, "it is asked once, and for both"
            return racing(client).dispatcher._learner.replan().basis


async def test_a_server_that_is_asked_what_it_is_tells_how_long_its_answers_took() -> None:
    assert (await basis_after({"first_token_times": [0.2, 0.4]})).endswith(", 2 server times told by it")


@pytest.mark.parametrize("told", [None, "soon", [-1.0, None], [0.1] * 10_000], ids=type)
async def test_a_server_that_tells_nonsense_has_told_nothing(told: Any) -> None:
    assert "told" not in await basis_after({"first_token_times": told})
