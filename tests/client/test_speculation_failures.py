"""Verifiers that fail, devices that fail, readers that leave: the answer continues or ends, and nothing stays open."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from streamco.client.client import Client
from streamco.client.modes.speculation.driver import EmitEvent, SpeculationDriver
from streamco.client.modes.speculation.mode import Speculate
from streamco.config import Timeouts
from streamco.core.speculation.events import DeviceFailed, VerifierFailed, VerifierLost
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.device_drafter import DeviceDrafter
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import AllEndpointsFailed, EngineError, StreamClosed, StreamcoError, VerifierError
from streamco.testing import Crash, Cut, FaultProxy, Pause, Refuse, Reset
from streamco.wire.verify.errors import OverloadedError
from tests.client.helpers import tokens_text
from tests.client.speculating import ALWAYS, HASTY, PROMPT, World
from tests.support.leaks import holding_nothing_new, settled
from tests.support.logprob_servers import ScriptedSGLang, ScriptedVLLM
from tests.support.modes import client_options, drafting


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("step", [Cut(), Reset(), Crash(), Refuse(OverloadedError, retry_after=0.05), Pause(0.05)], ids=type)
async def test_trouble_with_the_verifier_costs_no_token(world: World, step: object) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        verifier.script(None, None, step, None, step)  # type: ignore[arg-type]
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        assert stream.report.speculation is not None
        assert stream.report.speculation.is_exact


async def test_a_verifier_that_is_killed_and_comes_back_empty_goes_on_where_it_was(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        text, kills = "", 0
        async for token in stream:
            text += token.text
            if len(text) > 60 * (kills + 1):
                kills += 1
                verifier.lose_sessions()
                verifier.cut()
        assert kills > 2
        assert text == world.text()
        figures = stream.report.speculation
        assert figures is not None
        assert figures.is_exact
        assert figures.losses >= kills - 1


async def test_a_verifier_that_is_gone_is_stood_in_for_by_the_device(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, speculation=HASTY) as client:
        stream = client.stream(PROMPT, temperature=0)
        text = ""
        async for token in stream:
            text += token.text
            if len(text) > 30 and verifier.connections_open:
                await verifier.aclose()
        figures = stream.report.speculation
        assert figures is not None
        assert not figures.is_exact
        assert figures.device > 0
        assert world.text().startswith(text[:30])


@pytest.mark.long
@pytest.mark.parametrize("is_left", [False, True], ids=["read", "left"])
async def test_a_verifier_that_dies_between_answers_is_noticed_by_one_of_them(
    world: World, is_left: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, speculation=HASTY) as client:
        assert await tokens_text(client.stream(PROMPT, temperature=0)) == world.text()
        await verifier.aclose()
        stream = client.stream(PROMPT, temperature=0)
        if is_left:
            reading = asyncio.create_task(tokens_text(stream))
            await settled(lambda: bool(client._settings.endpoints.active))
            reading.cancel()
            await asyncio.wait([reading])
            await settled(lambda: not client._settings.endpoints.active)
            assert not client.unspeculated, "nobody waited long enough to know"
            return
        await tokens_text(stream)
        assert stream.report.mode == "speculate"
        await settled(lambda: not client._settings.endpoints.active)
        assert "expected a connection within 0.3 s" in client.unspeculated
        for after in [30.0, 0.0]:
            monkeypatch.setattr("streamco.client.modes.speculation.verifier_binding._PROBE_AGAIN", after)
            stream = client.stream(PROMPT, temperature=0)
            await tokens_text(stream)
            assert stream.report.mode == "race"
            assert "not speculated: 127.0.0.1" in stream.report.dispatch.reason
        await settled(lambda: drafting(client).binding._probes.get().task is None)
        assert len([record for record in caplog.records if "not speculated" in record.message]) == 1, "it is said once"
        await verifier.start()
        await tokens_text(client.stream(PROMPT, temperature=0))
        await settled(lambda: not client.unspeculated)
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        assert stream.report.mode == "speculate"
        await verifier.aclose()


async def test_a_verifier_that_refuses_in_an_answer_is_done_without_in_the_next(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        await anext(stream)
        driver = stream._answer.driver
        assert isinstance(driver, SpeculationDriver)
        driver.emit(VerifierFailed(VerifierError("verifier: expected it to go on, got told not to")))
        await tokens_text(stream)
        await settled(lambda: not client._settings.endpoints.active)
        assert client.unspeculated == "verifier: expected it to go on, got told not to"


async def test_a_full_verifier_is_said_to_be_full(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, speculation=HASTY) as client:
        verifier.script(None, Refuse(OverloadedError, retry_after=30.0, is_about_round=False))
        stream = client.stream(PROMPT, temperature=0)
        await tokens_text(stream)
        assert stream.report.speculation is not None
        assert stream.report.speculation.device > 0
        await settled(lambda: not client._settings.endpoints.active)
        assert client.unspeculated.endswith("expected a session within 0.3 s, got a refusal")


async def test_a_failure_that_nobody_may_stand_in_for_keeps_the_text_so_far(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, speculation=HASTY, on_failure="raise") as client:
        texts: list[str] = []

        async def read() -> None:
            async for token in client.stream(PROMPT, temperature=0):
                texts.append(token.text)
                if len(texts) > 9 and verifier.connections_open:
                    await verifier.aclose()

        with pytest.raises(AllEndpointsFailed, match="no endpoint could finish the answer") as failure:
            await read()
        assert failure.value.partial == "".join(texts)
        assert world.text().startswith("".join(texts))


async def test_a_device_that_fails_leaves_the_answer_to_the_verifier(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        text = ""
        async for token in stream:
            text += token.text
            if len(text) > 30:
                world.engine.close()
        assert text == world.text()


async def test_a_device_that_fails_before_the_answer_begins_leaves_it_to_the_verifier(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = DeviceEndpoint.drafter

    async def failing(device: DeviceEndpoint, request: Request, *, emit: EmitEvent, **options: Any) -> DeviceDrafter:
        drafter = await make(device, request, emit=emit, **options)
        emit(DeviceFailed(EngineError("expected a decode, got a failure", endpoint="device")))
        return drafter

    monkeypatch.setattr(DeviceEndpoint, "drafter", failing)
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        assert stream.report.speculation is not None
        assert stream.report.speculation.accepted == 0
        assert stream.report.speculation.is_exact


async def test_a_server_verifies_and_goes_on_alone_when_its_verifier_is_out(world: World) -> None:
    world.wake()
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with holding_nothing_new(), Client(DeviceEndpoint(world.engine), server, mode=ALWAYS) as client:
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == world.text()
            assert {part.name: part.outcome for part in stream.report.endpoints} == {"device": "drafted", "server": "verified"}
            broken = client.stream(PROMPT, temperature=0)
            text = ""
            async for token in broken:
                text += token.text
                if len(text) > 30 and isinstance(driver := broken._answer.driver, SpeculationDriver):
                    driver.emit(VerifierFailed(VerifierError("verifier: expected it to go on, got told not to")))
            figures = broken.report.speculation
            assert figures is not None
            assert figures.remote > 0
            assert figures.fallbacks == 1
            assert figures.is_exact
            assert text == world.text()


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("fault", [FaultProxy.stall, FaultProxy.reset], ids=["stopped", "killed"])
@pytest.mark.parametrize("may_use_device", [True, False])
async def test_a_server_that_stops_or_is_killed_ends_the_wait_by_its_own_time_outs(world: World, fault: Any, may_use_device: bool) -> None:
    """With the default time-outs of a verifier and of a stream this would take minutes."""
    limits = Timeouts(connect=1, first_token=5, next_token=0.3, socket=5, cancel=0.2)
    settings: dict[str, Any] = {} if may_use_device else {"on_failure": "raise"}
    world.wake()
    async with world.served() as url, FaultProxy(urlsplit(url).port or 0) as proxy:
        server = OpenAIEndpoint("large", base_url=proxy.url, name="server", timeouts=limits)
        options = Speculate(is_adaptive=False, patience=0.2)
        async with Client(
            DeviceEndpoint(world.engine), server, **client_options({"mode": "speculate", "speculation": options, **settings})
        ) as client:
            stream = client.stream(PROMPT, temperature=0)
            text, error = "", None
            try:
                async for token in stream:
                    text += token.text
                    if len(text) > 30 and proxy.connections_open:
                        fault(proxy)
                        await proxy.aclose() if fault is FaultProxy.reset else None
            except StreamcoError as failure:
                error = failure
    figures = stream.report.speculation
    assert figures is not None
    assert world.text().startswith(text[:30])
    assert (error is None, figures.is_exact) == ((True, False) if may_use_device else (False, True))


@pytest.mark.long
@pytest.mark.parametrize("kind", [ScriptedVLLM, ScriptedSGLang])
async def test_stock_servers_verify_behind_their_own_api(world: World, kind: type[ScriptedVLLM]) -> None:
    world.wake()
    async with kind(world.target, world.engine.tokenize) as scripted:
        server = OpenAIEndpoint(scripted.model, base_url=scripted.url, name="stock")
        async with holding_nothing_new(), Client(DeviceEndpoint(world.engine), server, mode=ALWAYS) as client:
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == world.text(), stream.report.dispatch.reason
            figures = stream.report.speculation
            assert figures is not None
            assert figures.is_exact
            assert figures.remote == 0
            assert figures.bytes_up > 1000 * figures.rounds / 10, "every round sends the whole context"


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("end", ["break", "aclose", "cancel", "drop", "client"])
@pytest.mark.parametrize("emit", ["verified", "draft"])
async def test_a_reader_who_leaves_stops_all_work(world: World, end: str, emit: str) -> None:
    world.target.length = world.drafter.length = 1500
    async with world.scripted() as verifier, world.speculating(verifier, emit=emit) as client:
        stream = client.stream(PROMPT, temperature=0)
        match end:
            case "break":
                async for _ in stream:
                    break
            case "aclose":
                await anext(stream)
                await stream.aclose()
                with pytest.raises(StreamClosed):
                    await anext(stream)
            case "cancel":
                reading = asyncio.create_task(tokens_text(stream))
                await asyncio.sleep(0.05)
                reading.cancel()
                await asyncio.wait([reading])
            case "drop":
                await anext(stream)
                del stream
            case _:
                await anext(stream)
                await client.aclose()
        await settled(lambda: not client._settings.endpoints.active)
        await settled(lambda: not drafting(client).binding.device._work.get().drafters)
        if end != "client":
            assert client.totals.left == 1


async def test_what_breaks_in_the_machine_reaches_the_reader_as_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    async with world.scripted() as verifier, world.speculating(verifier) as client:
        monkeypatch.setattr("streamco.core.speculation.machine.SpeculationMachine.receive", broken)
        with pytest.raises(StreamcoError, match="a bug") as failure:
            await tokens_text(client.stream(PROMPT, temperature=0))
        assert isinstance(failure.value.__cause__, ZeroDivisionError)
        monkeypatch.setattr("streamco.core.speculation.machine.SpeculationMachine.start", broken)
        with pytest.raises(StreamcoError, match="a bug"):
            await tokens_text(client.stream(PROMPT, temperature=0))
        await settled(lambda: not client._settings.endpoints.active)


async def test_what_is_held_for_the_pace_is_handed_out_before_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    async with world.scripted() as verifier, world.speculating(verifier, pace=5.0) as client:
        stream = client.stream(PROMPT, temperature=0)
        text = (await anext(stream)).text

        async def read() -> None:
            nonlocal text
            async for token in stream:
                text += token.text

        driver = stream._answer.driver
        assert isinstance(driver, SpeculationDriver)
        await settled(lambda: driver.output.delivery.buffered > 10)
        monkeypatch.setattr(driver.machine, "receive", broken)
        driver.emit(VerifierLost())
        with pytest.raises(StreamcoError, match="a bug") as failure:
            await read()
        assert failure.value.partial == text
        assert len(text.split()) > 10
        assert stream.report.duration < 5.0, "it has come to its end"


async def test_what_breaks_behind_a_whole_answer_takes_nothing_from_it(world: World) -> None:
    class Broken(Exception):
        """A bug in an endpoint."""

    async def fail() -> None:
        raise Broken

    said: list[object] = []
    async with world.scripted() as verifier, world.speculating(verifier, pace=5.0) as client:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["exception"]))
        stream = client.stream(PROMPT, temperature=0, max_tokens=16)  # three seconds to read, of which its writing takes few
        text = (await anext(stream)).text
        driver = stream._answer.driver
        assert isinstance(driver, SpeculationDriver)
        await settled(lambda: driver._is_complete)
        assert not driver.output.delivery.is_empty
        driver._spawn(fail(), "fails")
        async for token in stream:
            text += token.text
        assert text == world.text(most=16)
        assert stream.report.finish_reason == "length"
        assert [type(error) for error in said] == [Broken]


@pytest.mark.long
async def test_a_hundred_answers_ended_in_all_ways_leave_nothing_behind(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:

        async def one(number: int) -> None:
            stream = client.stream(f"{PROMPT} w{number}", temperature=0, max_tokens=12)
            if number % 3 == 0:
                await tokens_text(stream)
            elif number % 3 == 1:
                async for _ in stream:
                    break
            else:
                await anext(stream)
                await stream.aclose()

        for start in range(0, 100, 4):
            await asyncio.gather(*(one(number) for number in range(start, start + 4)))
        await settled(lambda: not client._settings.endpoints.active)
        assert not drafting(client).binding.device._work.get().drafters
        assert client.totals.answers == 100
