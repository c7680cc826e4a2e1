"""Thousands of short streams over one client: no error, and nothing stays open."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from streamco.client.answer import PendingAnswer
from streamco.client.client import Client
from streamco.client.modes.race.driver import RaceDriver
from streamco.client.modes.race.mode import Race
from streamco.client.stream import ChatStream, TokenStream
from streamco.config import RetryPolicy
from streamco.endpoints.base import Capabilities
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.openai_stream import OpenAIStream
from streamco.errors import AllEndpointsFailed, EndpointError, StreamClosed
from streamco.server.app import ServeOptions, serving
from streamco.testing import Cut, ScriptedServer, Stall, chunk_event, json_answer, stream_answer
from streamco.testing.engine import FakeEngine
from streamco.testing.responses import RecordedRequest, ScriptedResponse
from tests.client.helpers import device
from tests.support.examples import examples
from tests.support.leaks import alive, holding_nothing_new, resident_bytes, settled, without_collector
from tests.support.modes import racing

STREAMS = 10_000
AT_ONCE = 100
WARM_UP = 2_000
TOLERANCE = 3 << 20  # bytes over 8,000 streams: under 400 a stream, less than its session alone; the learner's windows fill up within it
TEXT = [f" word{index}" for index in range(8)]


async def finish(stream: TokenStream) -> None:
    assert "".join([token.text async for token in stream]) == "".join(TEXT)


async def break_off(stream: TokenStream) -> None:
    async for _ in stream:
        break


async def close(stream: TokenStream) -> None:
    async with stream:
        await anext(stream)


async def be_cancelled(stream: TokenStream) -> None:
    task = asyncio.ensure_future(finish(stream))
    await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


ENDINGS = [finish] * 7 + [break_off, close, be_cancelled]


def answer(request: RecordedRequest) -> ScriptedResponse:
    """Some stall after half of the answer; those are the ones that are left early."""
    if b"stall" not in request.body:
        return stream_answer(TEXT, joined=True)
    return ScriptedResponse(steps=[chunk_event("", role="assistant"), *map(chunk_event, TEXT[:4]), Stall()])


async def run_streams(client: Client, count: int, rng: random.Random, *, at_once: int) -> None:
    """So many streams, ended in all ways; the first error is raised."""
    turns = iter(range(count))

    async def work() -> None:
        for _ in turns:
            end = rng.choice(ENDINGS)
            is_stalled = end is not finish and rng.random() < 0.5
            await end(client.stream("stall" if is_stalled else "hello", max_tokens=64))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_ten_thousand_streams_leave_nothing_behind() -> None:
    rng = random.Random(11)
    async with ScriptedServer(answer) as scripted, holding_nothing_new():
        endpoint = OpenAIEndpoint("m", base_url=scripted.url, name="server")
        async with Client(server=endpoint, seed=1) as client:
            await run_streams(client, WARM_UP, rng, at_once=AT_ONCE)
            await settled(lambda: not client._settings.endpoints.active)
            scripted.requests.clear()
            before = resident_bytes()
            for _ in range((STREAMS - WARM_UP) // 1000):
                await run_streams(client, 1000, rng, at_once=AT_ONCE)
                scripted.requests.clear()
            await settled(lambda: not client._settings.endpoints.active)
            grown = resident_bytes() - before
            await settled(lambda: scripted.connections_open <= AT_ONCE)
            assert not endpoint._answers.get().streams
        assert grown < TOLERANCE, f"resident memory grew by {grown >> 10} KiB"
        await settled(lambda: not scripted.connections_open)


async def test_races_by_the_hundred_leave_no_loser_behind() -> None:
    rng = random.Random(12)
    local = device([(0.0005 * n, text) for n, text in enumerate(TEXT)], cancel_takes=0.001)
    async with ScriptedServer(stream_answer(TEXT, joined=True, first=0.001)) as scripted, holding_nothing_new():
        endpoint = OpenAIEndpoint("m", base_url=scripted.url, name="server")
        async with Client(local, endpoint, mode=Race(policy="both"), budget=1.0, seed=1) as client:
            await run_streams(client, 1000, rng, at_once=50)
            await settled(lambda: not client._settings.endpoints.active)
            assert local.active == 0
            assert not endpoint._answers.get().streams
            assert racing(client).dispatcher._steering._pending == set(), "every reservation is settled"
        await settled(lambda: not scripted.connections_open)


async def test_closing_a_client_with_two_hundred_answers_under_way_leaves_no_socket() -> None:
    async with ScriptedServer(answer) as scripted, holding_nothing_new():
        endpoint = OpenAIEndpoint("m", base_url=scripted.url, name="server")
        async with Client(server=endpoint, seed=1) as client:
            streams = [client.stream("stall") for _ in range(200)]
            await asyncio.gather(*(anext(stream) for stream in streams[:100]))
            waiting = [asyncio.ensure_future(finish(stream)) for stream in streams]
            await settled(lambda: len(scripted.requests) == 200)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} == {StreamClosed}
        assert not client._settings.endpoints.active
        await settled(lambda: not scripted.connections_open)


async def test_dropped_streams_free_their_sockets_without_the_cyclic_collector() -> None:
    with without_collector():
        async with ScriptedServer(answer) as scripted, holding_nothing_new():
            endpoint = OpenAIEndpoint("m", base_url=scripted.url, name="server")
            async with Client(server=endpoint, seed=1) as client:
                streams = [client.stream("stall") for _ in range(50)]
                await asyncio.gather(*(anext(stream) for stream in streams))
                assert scripted.connections_open >= 50
                del streams
                await settled(lambda: not client._settings.endpoints.active and not endpoint._answers.get().streams)
                await settled(lambda: scripted.connections_open <= 1)  # one may be kept warm for the next request


async def test_two_hundred_streams_leave_the_server_without_a_sequence() -> None:
    rng = random.Random(13)
    engine = FakeEngine(TEXT, mode="thread", token_s=0.001)
    async with holding_nothing_new():
        async with serving(engine, ServeOptions()) as url:
            endpoint = OpenAIEndpoint("fake", base_url=url, name="server")
            async with Client(server=endpoint, seed=1) as client:
                await run_streams(client, 200, rng, at_once=8)
                await settled(lambda: not client._settings.endpoints.active)
                await settled(lambda: all(generation._end is not None for generation in engine.generations))
        engine.close()
    ends: Counter[Any] = Counter(generation._end and generation._end.reason for generation in engine.generations)
    assert set(ends) <= {"stop", "cancelled"}
    assert ends["stop"] >= 100
    assert ends["cancelled"] > 0, "streams left early stop their sequence, they don't run to the end"


@pytest.mark.long
@pytest.mark.model
async def test_many_streams_leave_a_real_engine_without_a_sequence() -> None:
    from streamco.engines.base import EngineOptions
    from streamco.engines.llama import LlamaEngine
    from streamco.engines.llamacpp.bundled_model import packaged_model

    options = EngineOptions(threads=1, max_sequences=8, context_tokens=256)
    engine = await asyncio.to_thread(lambda: LlamaEngine(packaged_model(), options))
    try:
        async with holding_nothing_new(), serving(engine) as url:
            endpoint = OpenAIEndpoint(engine.info.name, base_url=url, name="server")
            async with Client(server=endpoint, seed=1) as client:
                rng = random.Random(14)
                turns = iter(range(examples(50, thorough=200)))

                async def work() -> None:
                    for turn in turns:
                        stream = client.stream(f"Say {turn}.", max_tokens=2, temperature=0)
                        if rng.random() < 0.2:
                            await break_off(stream)
                        else:
                            tokens = [token async for token in stream]
                            assert tokens

                async with asyncio.TaskGroup() as group:
                    for _ in range(8):
                        group.create_task(work())
                await settled(lambda: not client._settings.endpoints.active)
            await settled(lambda: not engine._loop._live)
            assert not any(slot.is_busy for slot in engine._slots._slots)
    finally:
        await asyncio.to_thread(engine.close)


CUT = ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=[chunk_event("half"), Cut()])
ENDS = {
    "whole": [stream_answer(TEXT)],
    "refused": [json_answer({"error": {"message": "no"}}, status=400)],
    "cut": [CUT],
    "taken over": [json_answer({"error": {"message": "no"}}, status=400), stream_answer(TEXT)],
    "continued": [CUT, stream_answer(TEXT)],
}


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("end", ENDS)
async def test_an_answer_that_has_ended_is_freed_without_the_collector(end: str, *, is_streamed: bool) -> None:
    async def ask(client: Client) -> None:
        with suppress(EndpointError, AllEndpointsFailed):
            answer = await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}], stream=is_streamed)
            if isinstance(answer, ChatStream):
                async with answer:
                    assert [chunk async for chunk in answer]

    can = Capabilities(continuation="continue_final_message")
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedServer(each)) for each in ENDS[end]]
        endpoints = [
            OpenAIEndpoint("m", base_url=each.url, api_key="", name=f"s{at}", capabilities=can, retry=RetryPolicy(attempts=0))
            for at, each in enumerate(servers)
        ]
        client = await stack.enter_async_context(Client(server=endpoints, on_degraded="ignore"))
        with without_collector():
            before = alive(RaceDriver, OpenAIStream, PendingAnswer)  # of other tests
            await ask(client)
            await asyncio.sleep(0.05)
            assert len(alive(RaceDriver, OpenAIStream, PendingAnswer)) <= len(before)
