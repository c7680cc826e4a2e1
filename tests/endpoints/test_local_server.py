"""A server that runs on the user's machine, as the device: scripted ones, streamco's own, and two real ones."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import streamco
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.local_server import LocalServerEndpoint
from streamco.errors import ConfigError, EndpointConnectError, EndpointError
from streamco.server.app import serving
from streamco.server.options import ServeOptions
from streamco.testing import FakeEngine, ScriptedResponse, ScriptedServer, json_answer
from tests.client.helpers import ask
from tests.client.helpers import server as remote
from tests.endpoints.helpers import read_all
from tests.support.peer_servers import running_peer

HELLO = Request(messages=[{"role": "user", "content": "hello"}], model="gpt-4o-mini")


def offering(*names: str, owner: str = "library") -> Any:
    return json_answer({"object": "list", "data": [{"id": name, "owned_by": owner} for name in names]})


@pytest.mark.parametrize(("offered", "given", "used"), [(("qwen:1.5b",), None, "qwen:1.5b"), (("a", "b:latest"), "b", "b"), ((), "c", "c")])
async def test_it_answers_with_its_own_model_whatever_a_request_names(offered: tuple[str, ...], given: str | None, used: str) -> None:
    async with ScriptedServer() as server:
        server.route("/v1/models", offering(*offered))
        device = LocalServerEndpoint(server.url.removesuffix("/v1"), given)
        await device.start()
        await device.start()
        answered = await read_all(device.open(HELLO))
        await device.aclose()
        assert (device.model, device.name, device.kind) == (used, "device", "device")
        assert answered.text == "Hello world"
        asked = [request for request in server.requests if request.path == "/v1/chat/completions"]
        assert [request.json()["model"] for request in asked] == [used]
        assert "authorization" not in asked[0].headers


async def test_a_limit_for_servers_is_none_for_a_device() -> None:
    async with ScriptedServer() as server:
        server.route("/v1/models", offering("m"))
        device = LocalServerEndpoint(server.url, "m")
        await read_all(device.open(replace(HELLO, server_limit=77)))
        await device.aclose()
        assert "max_tokens" not in server.requests[-1].json()


@pytest.mark.parametrize(
    ("offered", "given", "complaint"),
    [
        (("a", "b"), None, "expected the name of one of its models, got none; it offers a, b"),
        ((), None, "got none; it offers none by name"),
        (("a",), "b", "expected one of its models, got 'b'; it offers a"),
        (tuple("abcdefghij"), "z", "it offers a, b, c, d, e, f, g, h and 2 others"),
    ],
)
async def test_a_model_that_is_not_there_is_named(offered: tuple[str, ...], given: str | None, complaint: str) -> None:
    async with ScriptedServer() as server:
        server.route("/v1/models", offering(*offered))
        device = LocalServerEndpoint(server.url, given)
        with pytest.raises(EndpointError, match=complaint):
            await device.start()
        server.route("/v1/models", offering(*offered, given or "only"))
        if given is not None or not offered:
            await device.start()  # the user has fetched it meanwhile
        await device.aclose()


async def test_a_server_that_is_not_there_is_an_error_and_the_other_side_answers(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedServer() as gone:
        url = gone.url
    async with streamco.Client(url) as client:
        with pytest.raises(EndpointConnectError, match="device"):
            await ask(client)
    assert "each answer will ask again" in caplog.text
    async with streamco.Client(url, remote([(0.0, "S")])) as client:
        stream = client.stream("hello")
        assert "".join([token.text async for token in stream]) == "S"


async def test_a_server_that_comes_later_is_used_from_then_on() -> None:
    engine = FakeEngine("later")
    async with ScriptedServer() as gone:
        port = gone.port
    async with streamco.Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(EndpointConnectError):
            await ask(client)
        async with serving(engine, ServeOptions(port=port)):
            assert await ask(client) == "later"
    engine.close()


async def test_a_server_that_still_loads_its_model_is_asked_again() -> None:
    async with ScriptedServer() as server:
        server.route("/v1/models", ScriptedResponse(status=503, steps=[b'{"error":{"code":503,"message":"Loading model"}}']))
        device = LocalServerEndpoint(server.url)
        await device.start()
        server.route("/v1/models", json_answer({"data": [{"id": "m"}]}))
        async with streamco.Client(device) as client:
            assert await ask(client) == "Hello world"


async def test_the_context_is_what_was_given_or_what_the_server_says() -> None:
    async with ScriptedServer() as server:
        server.route("/v1/models", json_answer({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}))
        for device, expected in ((LocalServerEndpoint(server.url), 2048), (LocalServerEndpoint(server.url, context_tokens=512), 512)):
            await device.start()
            assert device.capabilities.context_tokens == expected
            assert device.capabilities.tools, "as vLLM"
            await device.aclose()
        changed = LocalServerEndpoint(server.url, capabilities={"images": False})
        await changed.start()
        assert (changed.capabilities.tools, changed.capabilities.images, changed.capabilities.context_tokens) == (True, False, 2048)
        await changed.aclose()
        declared = LocalServerEndpoint(server.url, capabilities=Capabilities(json_schema=True))
        await declared.start()
        assert (declared.capabilities.tools, declared.capabilities.json_schema) == (False, True)
        await declared.aclose()


@pytest.mark.parametrize(
    "wrong",
    [
        {"context_tokens": 0},
        {"model": ""},
        {"base_url": "127.0.0.1:11434"},
        {"base_url": ""},
        {"base_url": "http://127.0.0.1:1/a.gguf"},
        {"base_url": "http://[::1:8000/v1"},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LocalServerEndpoint(**{"base_url": "http://127.0.0.1:11434", **wrong})


def test_a_server_on_another_machine_is_used_and_named(caplog: pytest.LogCaptureFixture) -> None:
    LocalServerEndpoint("http://127.0.0.1:11434")
    assert not caplog.text
    LocalServerEndpoint("http://10.0.0.7:11434")
    assert "device: expected a server on this machine, got 10.0.0.7; it counts as the device, without a price" in caplog.text


async def test_it_races_as_the_device_and_costs_nothing() -> None:
    engine = FakeEngine("from the device")
    async with serving(engine) as url, streamco.Client(url, remote([(60.0, "S")]), mode=Race(policy="device-only")) as client:
        stream = client.stream("hello")
        assert "".join([token.text async for token in stream]) == "from the device"
        [part] = [part for part in stream.report.endpoints if part.opened is not None]
        assert (part.name, part.kind, part.cost_usd, part.counted_by) == ("device", "device", 0.0, "usage")
    engine.close()


async def test_a_budget_of_0_asks_the_local_server_alone() -> None:
    engine, other = FakeEngine("here"), remote([(0.0, "S")])
    async with serving(engine) as url, streamco.Client(url, other, budget=0) as client:
        assert await ask(client) == "here"
    engine.close()


async def test_it_does_not_draft_and_says_so() -> None:
    engine = FakeEngine("here")
    async with serving(engine) as url, streamco.Client(url, remote(), mode="speculate", on_degraded="warn") as client:
        stream = client.stream("hello")
        assert "".join([token.text async for token in stream])
        assert any("can't draft" in note for note in stream.report.notes)
    engine.close()


@pytest.mark.long("after the first case")
@pytest.mark.peer
@pytest.mark.model
@pytest.mark.parametrize("kind", ["llama-cpp-python", "xllamacpp"])
async def test_real_servers_are_devices(kind: str) -> None:
    with running_peer(kind) as url:
        async with streamco.Client(streamco.LocalServerEndpoint(url)) as client:
            stream = client.stream("Write a sentence about the sea.", max_tokens=8, temperature=0)
            text = "".join([token.text async for token in stream])
        assert len(text.split()) > 3
        assert stream.report.winner == "device"
