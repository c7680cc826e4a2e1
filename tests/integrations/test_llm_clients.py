"""Clients on a loop in a thread of its own: how they are configured, kept and closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.errors import ConfigError, EndpointError, StreamClosed
from streamco.integrations.llm_clients import ClientThread, PluginSettings, parse_settings
from streamco.proxy.config import DeviceSection, ServerSection
from streamco.testing import ScriptedResponse, ScriptedServer, Stall, chunk_event, json_answer

EVENTS = {"Content-Type": "text/event-stream"}
MODELS = json_answer({"object": "list", "data": [{"id": "small", "owned_by": "scripted"}]})


def settings(**options: Any) -> PluginSettings:
    return PluginSettings(default="/nowhere/streamco.toml", **options)


@pytest.fixture
def clients() -> Any:
    """Clients of this test alone, closed afterwards."""
    thread = ClientThread()
    yield thread
    thread.close()
    assert "streamco-llm" not in [each.name for each in threading.enumerate()]


async def texts(client: Client) -> AsyncGenerator[str, None]:
    async for token in client.stream("hello"):
        yield token.text


def serving() -> ScriptedServer:
    server = ScriptedServer()
    server.route("/v1/models", MODELS)
    return server


def test_without_an_endpoint_the_packaged_model_answers() -> None:
    config = parse_settings(settings(budget=0.5, pace="reading"))
    assert config.device == DeviceSection(model="packaged")
    assert (config.server, config.dispatch.budget, config.dispatch.pace) == ((), 0.5, "reading")


def test_endpoints_are_named_by_options() -> None:
    config = parse_settings(settings(device="m.gguf", server="large", base_url="https://h/v1", key="k", policy="both", mode="auto"))
    assert config.device == DeviceSection(model="m.gguf")
    assert config.server == (ServerSection(model="large", base_url="https://h/v1", api_key_env="STREAMCO_LLM_KEY"),)
    assert (config.dispatch.policy, config.speculate.mode, config.speculate.budget) == ("both", "auto", 1.0)
    assert parse_settings(settings(server="large")).device is None
    local = parse_settings(settings(device="http://127.0.0.1:11434", device_model="qwen", key="k")).device
    assert local == DeviceSection(base_url="http://127.0.0.1:11434", model="qwen", api_key_env="STREAMCO_LLM_KEY")


def test_a_budget_is_that_of_drafts_if_the_device_drafts() -> None:
    config = parse_settings(settings(device="m.gguf", server="large", mode="speculate", budget=0.25, verifier="ws://127.0.0.1:1"))
    assert (config.speculate.budget, config.speculate.verifier) == (0.25, "ws://127.0.0.1:1")


def test_a_file_names_the_endpoints_and_options_change_how_they_answer(tmp_path: Path) -> None:
    file = tmp_path / "streamco.toml"
    file.write_text('[device]\nmodel = "m.gguf"\n[dispatch]\nbudget = 0.1\npolicy = "both"\n')
    for given in (PluginSettings(default=str(file), budget=0.2), settings(config=str(file), budget=0.2)):
        config = parse_settings(given)
        assert config.device == DeviceSection(model=str(tmp_path / "m.gguf"))
        assert (config.dispatch.budget, config.dispatch.policy) == (0.2, "both")
    assert parse_settings(PluginSettings(default=str(file), server="large")).device is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"config": "x.toml", "server": "large"}, "server: can't be combined with config"),
        ({"config": "x.toml", "key": "k"}, "key: can't be combined with config"),
        ({"device_model": "qwen"}, "device_model: only valid with the URL of a server as device"),
        ({"device": "m.gguf", "device_model": "qwen"}, "device_model: only valid with the URL"),
        ({"device": "m.gguf", "base_url": "https://h/v1"}, "base_url: only valid with server"),
        ({"device": "m.gguf", "key": "secret"}, "key: only valid with server"),
    ],
)
def test_an_option_without_effect_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse_settings(settings(**options))
    assert "secret" not in str(caught.value)


async def test_a_client_is_kept_until_another_one_is_used(clients: ClientThread) -> None:
    async with serving() as first, serving() as second:
        for server in (first, first, second):
            assert [text async for text in clients.aiterate(settings(device=server.url), texts)] == ["Hello", " world"]
        assert first.count("/v1/models") == 1
        await first.wait_for(lambda server: not server.connections_open)
        assert second.connections_open


async def test_a_client_with_an_answer_under_way_stays_open_until_its_end(clients: ClientThread) -> None:
    async with serving() as first, serving() as second:
        answer = clients.aiterate(settings(device=first.url), texts)
        assert await anext(answer) == "Hello"
        assert [text async for text in clients.aiterate(settings(device=second.url), texts)] == ["Hello", " world"]
        assert [text async for text in answer] == [" world"]
        await first.wait_for(lambda server: not server.connections_open)


async def test_blocking_and_other_callers_share_a_client(clients: ClientThread) -> None:
    async with serving() as server:
        chosen = settings(device=server.url)
        both = await asyncio.gather(
            asyncio.to_thread(lambda: list(clients.iterate(chosen, texts))), asyncio.to_thread(lambda: list(clients.iterate(chosen, texts)))
        )
        assert list(both) == [["Hello", " world"]] * 2
        assert server.count("/v1/models") == 1


async def test_an_error_reaches_the_caller_and_the_next_answer_comes(clients: ClientThread) -> None:
    async with ScriptedServer() as server:
        server.route("/v1/models", json_answer({"object": "list", "data": []}))
        with pytest.raises(EndpointError, match="offers none by name"):
            [text async for text in clients.aiterate(settings(device=server.url), texts)]
        server.route("/v1/models", MODELS)
        assert [text async for text in clients.aiterate(settings(device=server.url), texts)] == ["Hello", " world"]


async def test_closed_clients_begin_again_with_the_next_answer(clients: ClientThread) -> None:
    async with serving() as server:
        for _ in range(2):
            assert [text async for text in clients.aiterate(settings(device=server.url), texts)] == ["Hello", " world"]
            await asyncio.to_thread(clients.close)
        assert server.count("/v1/models") == 2
        await server.wait_for(lambda server: not server.connections_open)


async def test_closing_ends_the_answers_under_way_and_the_reads_that_wait(clients: ClientThread) -> None:
    async with ScriptedServer(ScriptedResponse(headers=EVENTS, steps=[chunk_event("Hello"), Stall()])) as server:
        chosen = settings(server="large", base_url=server.url)
        left: Any = clients.iterate(chosen, texts)
        waited = clients.iterate(chosen, texts)
        assert [await asyncio.to_thread(next, left), await asyncio.to_thread(next, waited)] == ["Hello", "Hello"]
        waiting = asyncio.create_task(asyncio.to_thread(list, waited))
        await server.wait_for(lambda server: server.connections_open == 2)
        await asyncio.to_thread(clients.close)
        with pytest.raises(StreamClosed, match="the clients are closed"):
            await waiting
        left.close()
        await server.wait_for(lambda server: not server.connections_open)


async def test_an_answer_that_is_collected_on_the_loop_of_the_clients_does_not_block_it(clients: ClientThread) -> None:
    async with serving() as server:
        chosen = settings(device=server.url)
        answers = [clients.iterate(chosen, texts)]
        assert await asyncio.to_thread(next, answers[0]) == "Hello"

        async def collect(client: Client) -> AsyncGenerator[str, None]:
            answers.pop()
            yield "collected"

        assert [text async for text in clients.aiterate(chosen, collect)] == ["collected"]
        assert [text async for text in clients.aiterate(chosen, texts)] == ["Hello", " world"]


async def test_what_was_learned_is_written_to_the_file_that_the_configuration_names(clients: ClientThread, tmp_path: Path) -> None:
    async with serving() as server:
        file = tmp_path / "streamco.toml"
        file.write_text(f'[device]\nbase_url = "{server.url}"\n[dispatch]\nprofile = "learned.json"\n')
        [text async for text in clients.aiterate(settings(config=str(file)), texts)]
        await asyncio.to_thread(clients.close)
    assert (tmp_path / "learned.json").read_bytes().startswith(b"{")
