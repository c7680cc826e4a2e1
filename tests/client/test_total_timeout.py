"""A limit on the whole answer's time, of a request, of a client, or of one endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import streamco
from streamco.client.error_translation import FinishedStream
from streamco.client.modes.race.driver import RaceDriver
from streamco.config import Timeouts
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import EndpointTimeoutError
from streamco.events import StreamEnded, TokensReceived
from streamco.testing import Cut, Pause, ScriptedResponse, ScriptedServer, chunk_event, stream_answer
from streamco.testing.endpoint import ScriptedEndpoint
from streamco.testing.engine import FakeEngine
from tests.client.helpers import HELLO, opened, tokens_text
from tests.client.speculating import PROMPT, World

ABLE = Capabilities(continuation="continue_final_message")
NEVER_ENDING = ScriptedResponse(
    headers={"Content-Type": "text/event-stream"}, steps=[step for _ in range(1000) for step in (chunk_event("x"), Pause(0.02))]
)


def remote(server: ScriptedServer, name: str = "server", **options: Any) -> OpenAIEndpoint:
    return OpenAIEndpoint("m", base_url=server.url, name=name, capabilities=ABLE, **options)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("has_other", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_ends_in_time_whichever_endpoint_writes(stream: bool, has_other: bool) -> None:
    async with ScriptedServer(NEVER_ENDING) as one, ScriptedServer(NEVER_ENDING) as two, asyncio.timeout(30):
        servers = [remote(one, "one"), remote(two, "two")][: 1 + has_other]
        async with opened(server=servers) as client:
            with pytest.raises(EndpointTimeoutError) as caught:
                await _read(client, stream, timeout=Timeouts(total=0.4))
            assert caught.value.phase == "total"
            assert set(caught.value.partial) == {"x"}
            assert two.requests == []


async def _read(client: streamco.Client, is_stream: bool, **options: Any) -> None:
    if not is_stream:
        await client.chat.completions.create(messages=HELLO, **options)
        return
    async for _ in await client.chat.completions.create(messages=HELLO, stream=True, **options):
        pass


async def test_an_endpoint_that_takes_over_gets_the_time_that_is_left() -> None:
    dying = ScriptedResponse(headers=NEVER_ENDING.headers, steps=[chunk_event("One "), Pause(0.2), Cut()])
    async with (
        ScriptedServer(dying) as one,
        ScriptedServer(NEVER_ENDING) as two,
        asyncio.timeout(30),
        opened(server=[remote(one, "one"), remote(two, "two")], timeout=Timeouts(total=0.6)) as client,
    ):
        with pytest.raises(streamco.AllEndpointsFailed) as caught:
            await _read(client, True)
        error = caught.value.errors["two"]
        assert caught.value.partial.startswith("One x")
        assert isinstance(error, EndpointTimeoutError)
        assert error.phase == "total"
        assert error.limit == 0.6
        assert str(error).startswith("two: expected the whole answer within 0.6 s")


@pytest.mark.long
async def test_an_endpoint_that_takes_over_does_not_pay_for_the_readers_pauses() -> None:
    dying = ScriptedResponse(headers=NEVER_ENDING.headers, steps=[chunk_event("One "), Pause(0.05), chunk_event("two "), Cut()])
    async with (
        ScriptedServer(dying) as one,
        ScriptedServer(stream_answer(["three"])) as two,
        asyncio.timeout(30),
        opened(server=[remote(one, "one"), remote(two, "two")], timeout=Timeouts(total=1.0)) as client,
    ):
        text = ""
        async for chunk in await client.chat.completions.create(messages=HELLO, stream=True):
            await asyncio.sleep(1.2)
            text += chunk.choices[0].delta.content or ""
        assert text == "One two three"


class Idle(FinishedStream):
    """A stream that stood idle for a while; it fails at once."""

    idle = 20.0

    async def receive(self) -> TokensReceived | StreamEnded:
        raise streamco.errors.EndpointProtocolError("expected a server, got none")


@pytest.mark.parametrize(("total", "elapsed"), [(60.0, 10.0), (None, 0.0)])
async def test_what_an_endpoint_gets_of_the_time_is_all_but_what_the_streams_before_it_stood_idle(
    total: float | None, elapsed: float
) -> None:
    opened_with: list[Request] = []

    class Recording(ScriptedEndpoint):
        def open(self, request: Request) -> Any:
            opened_with.append(request)
            moved[0] = 30.0
            return Idle(self.name, "stop")

    moved = [0.0]
    attempts = (AttemptPlan("one", 0.0), AttemptPlan("two", None))
    machine = RaceMachine(RacePlan(attempts=attempts))
    endpoints = {name: Recording(name, []) for name in ("one", "two")}
    request = Request(messages=HELLO, timeouts=Timeouts(total=total))
    driver = RaceDriver(machine, endpoints, request, clock=lambda: moved[0])
    driver.start()
    with pytest.raises(streamco.AllEndpointsFailed):
        await driver.next_batch()
    assert [each.elapsed for each in opened_with] == [0.0, elapsed]
    assert all(each.timeouts is not None and each.timeouts.total == total for each in opened_with)
    await driver.aclose()


async def test_a_limit_of_one_endpoint_lets_another_go_on() -> None:
    async with ScriptedServer(NEVER_ENDING) as one, ScriptedServer(stream_answer(["the end"])) as two, asyncio.timeout(30):
        first = remote(one, "one", timeouts=Timeouts(total=0.3))
        async with opened(server=[first, remote(two, "two")]) as client:
            answer = await client.chat.completions.create(messages=HELLO)
            assert (answer.choices[0].message.content or "").endswith("xthe end")
            assert answer.report is not None
            assert [each.target for each in answer.report.hand_overs] == ["two"]


async def test_a_device_keeps_the_limit_of_a_request() -> None:
    device = DeviceEndpoint(FakeEngine(["x"] * 10_000, mode="thread", token_s=0.02))
    async with opened(device) as client, asyncio.timeout(20):
        with pytest.raises(EndpointTimeoutError) as caught:
            await client.chat.completions.create(messages=HELLO, timeout=Timeouts(total=0.2))
        assert caught.value.phase == "total"
        assert set(caught.value.partial) == {"x"}


async def test_an_answer_with_such_a_limit_is_not_speculated_and_says_so() -> None:
    world = World()
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, timeout=Timeouts(total=30))
        await tokens_text(stream)
        assert "not speculated: a limit on the whole answer's time" in stream.report.notes
    world.close()
