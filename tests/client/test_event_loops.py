"""A client that outlives its event loop: each ``asyncio.run`` of a program is another one, and so is each thread's."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import streamco
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
from streamco.endpoints.local_server import LocalServerEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import ConfigError, StreamClosed
from streamco.testing import RecordedRequest, ScriptedResponse, ScriptedServer, json_answer, stream_answer
from streamco.testing.engine import FakeEngine
from tests.client.helpers import device
from tests.client.speculating import ALWAYS, PROMPT, QUICK, World
from tests.support.event_loops import in_thread, loop_thread
from tests.support.leaks import holding_nothing_new

MODELS = {"object": "list", "data": [{"id": "m", "object": "model"}]}


def respond(request: RecordedRequest) -> ScriptedResponse:
    return json_answer(MODELS) if request.method == "GET" else stream_answer(["from", " the", " server"])


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server that none of the test's loops ends."""
    with in_thread(ScriptedServer(respond)) as running:
        yield running


async def ask(client: Client) -> tuple[str | None, list[str]]:
    answer = await client.chat.completions.create(messages="hi")
    assert answer.report is not None
    return answer.choices[0].message.content, answer.report.notes


ANSWERED: tuple[str, list[str]] = ("from the server", [])


# One loop after the other


def test_every_run_gets_the_servers_answer_and_blames_nobody(server: ScriptedServer) -> None:
    client = Client(device([(0.05, "device")]), OpenAIEndpoint("m", base_url=server.url), mode=Race(policy="server-first"))
    assert [asyncio.run(ask(client)) for _ in range(3)] == [ANSWERED] * 3
    assert client.degraded == ()
    assert client.totals.answers == 3


@pytest.mark.parametrize("kind", [LocalServerEndpoint, AnthropicEndpoint])
def test_other_servers_too(server: ScriptedServer, kind: Any) -> None:
    if kind is LocalServerEndpoint:
        client = Client(LocalServerEndpoint(server.url))
        assert [asyncio.run(ask(client)) for _ in range(2)] == [ANSWERED] * 2
    else:
        endpoint = AnthropicEndpoint("m", base_url=server.url, api_key="")
        assert [asyncio.run(endpoint.models()) for _ in range(2)] == [["m"]] * 2


def test_clients_that_share_endpoints_share_their_loop(server: ScriptedServer) -> None:
    client = Client(server=OpenAIEndpoint("m", base_url=server.url))
    other = client.with_options(on_failure="raise")
    assert [asyncio.run(ask(each)) for each in (client, other, client)] == [ANSWERED] * 3


def test_a_run_leaves_no_connection_behind(server: ScriptedServer) -> None:
    client = Client(server=OpenAIEndpoint("m", base_url=server.url))

    async def run_again() -> None:
        async with holding_nothing_new():
            await asyncio.to_thread(asyncio.run, ask(client))

    asyncio.run(run_again())


CLOSED_LOOPS = """
import asyncio, gc, sys
import streamco

async def ask():
    return (await client.chat.completions.create(messages="hi")).choices[0].message.content

client = streamco.Client(server=streamco.OpenAIEndpoint("m", base_url=sys.argv[1]))
for _ in range(2):
    loop = asyncio.new_event_loop()
    print(loop.run_until_complete(ask()))
    loop.close()
asyncio.run(client.aclose())
del client, loop
gc.collect()
"""


def test_loops_that_are_only_closed_are_let_go_without_a_complaint(server: ScriptedServer) -> None:
    command = [sys.executable, "-W", "ignore::ResourceWarning", "-c", CLOSED_LOOPS, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["from the server"] * 2
    assert not done.stderr


def test_a_run_that_is_broken_off_leaves_a_client_that_works(server: ScriptedServer) -> None:
    client = Client(device([(0.0, "device "), (60.0, "never")]), OpenAIEndpoint("m", base_url=server.url))

    async def begin() -> None:
        stream = await client.with_options(mode=Race(policy="device-only")).chat.completions.create(messages="hi", stream=True)
        await anext(stream)  # and no end: the loop ends it

    asyncio.run(begin())
    assert asyncio.run(ask(client.with_options(mode=Race(policy="server-only")))) == ANSWERED
    assert client._settings.endpoints._work.latest is not None
    assert not client._settings.endpoints._work.latest.active


def test_a_model_is_loaded_once_for_all_loops() -> None:
    engine = FakeEngine(["from", " the", " device"], mode="thread", token_s=0.001)
    client = Client(DeviceEndpoint(engine))
    try:
        assert [asyncio.run(ask(client))[0] for _ in range(3)] == ["from the device"] * 3
    finally:
        engine.close()


@pytest.mark.long
def test_drafts_are_verified_in_every_loop(world: World) -> None:
    world.wake()
    with in_thread(world.served()) as url:
        client = Client(DeviceEndpoint(world.engine), mode=replace(ALWAYS, verifier=VerifierEndpoint(url, timeouts=QUICK)), seed=1)

        async def speculate() -> tuple[str, str]:
            stream = client.stream(PROMPT, temperature=0)
            text = "".join([token.text async for token in stream])
            return text, stream.report.mode

        assert [asyncio.run(speculate()) for _ in range(3)] == [(world.text(), "speculate")] * 3
        assert client.unspeculated == ""
        asyncio.run(client.aclose())


# Closing


def test_a_client_is_closed_in_any_loop(server: ScriptedServer) -> None:
    client = Client(server=OpenAIEndpoint("m", base_url=server.url))
    assert asyncio.run(ask(client)) == ANSWERED
    asyncio.run(client.close())
    asyncio.run(client.aclose())
    with pytest.raises(StreamClosed, match="closed"):
        asyncio.run(ask(client))


def test_a_client_in_another_thread_is_closed_there(server: ScriptedServer) -> None:
    client = Client(device([(0.0, "device "), (60.0, "never")]), OpenAIEndpoint("m", base_url=server.url), mode=Race(policy="device-only"))

    async def begin() -> streamco.ChatStream:
        stream = client.open_chat(streamco.types.Request(messages=[{"role": "user", "content": "hi"}]))
        await anext(stream)
        return stream

    with loop_thread() as there:
        stream = there.run(begin())
        asyncio.run(client.aclose())
        assert stream._answer.driver is not None
        assert stream._answer.driver.is_over


# Two loops that run, two processes


def test_two_running_loops_are_the_callers_mistake_and_no_failure_of_the_server(server: ScriptedServer) -> None:
    client = Client(device(), OpenAIEndpoint("m", base_url=server.url), mode=Race(policy="server-first"))
    with loop_thread() as there:
        assert there.run(ask(client)) == ANSWERED
        with pytest.raises(ConfigError, match=r"^client: already in use by another running event loop; make a client for each loop$"):
            asyncio.run(ask(client))
        assert client.degraded == ()
        assert there.run(ask(client)) == ANSWERED


def test_a_stream_stays_in_the_loop_that_it_began_in(server: ScriptedServer) -> None:
    client = Client(server=OpenAIEndpoint("m", base_url=server.url))

    async def begin() -> Any:
        return await client.chat.completions.create(messages="hi", stream=True)

    async def read(stream: Any) -> list[Any]:
        return [chunk async for chunk in stream]

    with loop_thread() as there:
        stream = there.run(begin())
        there.run(stream.first())
        with pytest.raises(ConfigError, match=r"^stream: can't be read in this event loop"):
            asyncio.run(read(stream))
        asyncio.run(stream.aclose())


async def test_a_session_of_another_loop_is_named(server: ScriptedServer) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session:
        client = Client(server=OpenAIEndpoint("m", base_url=server.url, session=session))
        assert await ask(client) == ANSWERED
        other = Client(server=OpenAIEndpoint("m", base_url=server.url, session=session))
        with pytest.raises(ConfigError, match=r"^session: expected one that was made in the running event loop"):
            await asyncio.to_thread(asyncio.run, ask(other))
        await client.aclose()


def _ask_in_child(client: Client, results: Any) -> None:
    try:
        results.put(asyncio.run(ask(client)))
    except Exception as error:  # noqa: BLE001  the parent looks at it
        results.put(f"{type(error).__name__}: {error}")


def asked_in_child(client: Client) -> Any:
    """The answer, or the error, of a forked process."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=_ask_in_child, args=(client, results))
    process.start()
    try:
        return results.get(timeout=60)
    finally:
        process.kill()
        process.join()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system can't fork")
may_fork = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@needs_fork
@may_fork
def test_a_client_that_was_only_made_before_the_fork_works_in_the_child(server: ScriptedServer) -> None:
    client = Client(server=OpenAIEndpoint("m", base_url=server.url))
    assert asked_in_child(client) == ANSWERED
    assert asyncio.run(ask(client)) == ANSWERED
    assert asked_in_child(client) == ANSWERED, "its loop had ended before"


@needs_fork
@may_fork
def test_a_running_client_is_not_used_by_a_child(server: ScriptedServer) -> None:
    client = Client(server=OpenAIEndpoint("m", base_url=server.url))
    with loop_thread() as there:
        assert there.run(ask(client)) == ANSWERED
        assert asked_in_child(client).startswith("ConfigError: client: expected the process that it was started in, got one")
        assert there.run(ask(client)) == ANSWERED


@needs_fork
@may_fork
def test_a_child_has_no_thread_of_the_parents_model() -> None:
    engine = FakeEngine(["from", " the", " device"], mode="thread", token_s=0.001)
    client = Client(DeviceEndpoint(engine))
    try:
        assert asyncio.run(ask(client))[0] == "from the device"
        assert asked_in_child(client).startswith("ConfigError: device: expected the process that it was started in, got one")
    finally:
        engine.close()
