"""What a speculated answer took."""

from __future__ import annotations

import pytest

from streamco.client.client import Client
from streamco.client.modes.speculation.driver import SpeculationDriver
from streamco.client.modes.speculation.remote_stream import RemoteStreamPart
from streamco.client.modes.speculation.report import _cached
from streamco.core.speculation.events import VerifierFailed
from streamco.endpoints.base import TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import VerifierError
from tests.client.helpers import tokens_text
from tests.client.speculating import ALWAYS, PROMPT, QUICK, World
from tests.support.leaks import settled


async def test_costs_are_the_servers_prices_for_what_it_computed(world: World) -> None:
    prices = TokenPrices(prompt=1e-6, completion=1e-5)
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server", prices=prices)
        async with Client(DeviceEndpoint(world.engine), server, mode=ALWAYS) as client:
            stream = client.stream(PROMPT, temperature=0)
            await tokens_text(stream)
            report = stream.report
            figures = report.speculation
            assert figures is not None
            assert report.cost_usd == pytest.approx(len(world.prompt_ids()) * 1e-6 + figures.target_tokens * 1e-5)
            assert figures.accepted + figures.corrected + figures.bonus >= report.tokens
            assert figures.bytes_up > 0
            assert figures.bytes_down > 0
            assert client.totals.endpoints["server"].speculated == 1
            assert client.totals.cost_usd == pytest.approx(report.cost_usd)
            assert client.totals.tokens == report.tokens


async def test_what_a_server_reads_once_more_to_go_on_alone_is_cached(world: World) -> None:
    world.target.length = world.drafter.length = 400
    world.large.token_s = 0.01
    prices = TokenPrices(prompt=1e-3, completion=1e-5, cached_prompt=1e-7)
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server", prices=prices)
        async with Client(DeviceEndpoint(world.engine), server, mode=ALWAYS) as client:
            stream = client.stream(PROMPT, temperature=0)
            for _ in range(8):
                await anext(stream)
            driver = stream._answer.driver
            assert isinstance(driver, SpeculationDriver)
            driver.emit(VerifierFailed(VerifierError("verifier: expected it to go on, got told not to")))
            while not driver.machine.report.remote:
                await anext(stream)
            await stream.aclose()
            (part,) = driver.remote_stream.parts
            assert part.is_estimated
            report = stream.report
            assert report.speculation is not None
            prompt = len(world.prompt_ids())
            assert part.read > prompt
            assert report.cost_usd == pytest.approx(prompt * 1e-3 + part.read * 1e-7 + report.speculation.target_tokens * 1e-5)


def test_what_a_server_had_from_before_is_what_it_told_or_else_all_it_was_given() -> None:
    told = RemoteStreamPart(opened=0.0, read=20, cached=16, made=5, is_estimated=False)
    first, second = RemoteStreamPart(opened=0.0, read=20, made=5), RemoteStreamPart(opened=1.0, read=30)
    assert _cached([told], was_asked=True, unread=0) == 16
    assert _cached([first, second], was_asked=True, unread=0) == 50
    assert _cached([first, second], was_asked=True, unread=4) == 42
    assert _cached([first, second], was_asked=False, unread=0) == 30
    assert _cached([second, first], was_asked=False, unread=0) == 0, "the first one came to nothing"


async def test_what_is_held_for_a_reader_who_leaves_is_waste(world: World) -> None:
    world.target.length = world.drafter.length = 400
    async with world.scripted() as verifier, world.speculating(verifier, pace=5.0) as client:
        stream = client.stream(PROMPT, temperature=0, max_tokens=60)
        await anext(stream)
        driver = stream._answer.driver
        assert isinstance(driver, SpeculationDriver)
        await settled(lambda: driver.output.delivery.buffered > 10)
        await stream.aclose()
        assert driver.dropped > 10
        report = stream.report
        assert report.ending == "left"
        assert report.wasted_tokens >= driver.dropped
        assert report.tokens < 10


async def test_waste_of_a_reader_who_leaves_is_the_servers_where_it_made_the_answer(world: World) -> None:
    world.target.length = world.drafter.length = 400
    world.engine.token_s = 0.02
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with Client(DeviceEndpoint(world.engine), server, mode=ALWAYS, pace=5.0) as client:
            stream = client.stream(PROMPT, temperature=0, max_tokens=90)
            await anext(stream)
            driver = stream._answer.driver
            assert isinstance(driver, SpeculationDriver)
            driver.emit(VerifierFailed(VerifierError("verifier: expected it to go on, got told not to")))
            await settled(lambda: driver.output.delivery.buffered > 60)
            await stream.aclose()
            report, machine = stream.report, driver.machine.report
            device, verifier = report.endpoints
            assert machine.drafted < driver.dropped
            assert device.wasted_tokens == machine.drafted
            assert device.wasted_tokens + verifier.wasted_tokens >= driver.dropped
            assert verifier.wasted_tokens <= verifier.completion_tokens
            assert report.wasted_tokens == device.wasted_tokens + verifier.wasted_tokens


async def test_a_verifier_beside_a_server_is_billed_at_its_own_prices(world: World) -> None:
    async with world.scripted() as scripted:
        verifier = VerifierEndpoint(scripted.url, timeouts=QUICK, prices=TokenPrices(prompt=2e-6, completion=3e-6))
        async with world.speculating(verifier) as client:
            stream = client.stream(PROMPT, temperature=0)
            await tokens_text(stream)
            figures = stream.report.speculation
            assert figures is not None
            assert stream.report.cost_usd == pytest.approx(len(world.prompt_ids()) * 2e-6 + figures.target_tokens * 3e-6)


async def test_what_the_device_kept_alone_is_read_and_not_made_by_the_server(world: World) -> None:
    world.target.length = world.drafter.length = 100
    async with world.scripted() as scripted:
        verifier = VerifierEndpoint(scripted.url, timeouts=QUICK, prices=TokenPrices(prompt=2e-6, completion=3e-6))
        async with world.speculating(verifier, budget=0.3) as client:
            stream = client.stream(PROMPT, temperature=0)
            await tokens_text(stream)
            figures, (_, part) = stream.report.speculation, stream.report.endpoints
            assert isinstance(stream._answer.driver, SpeculationDriver)
            machine = stream._answer.driver.machine.report
            assert figures is not None
            assert machine.given > 0
            assert figures.target_tokens == machine.verified + machine.rounds + machine.remote
            assert part.prompt_tokens == len(world.prompt_ids()) + machine.given
            assert part.completion_tokens == figures.target_tokens
            assert part.wasted_tokens == figures.target_tokens - figures.accepted - figures.corrected - figures.bonus
            assert part.cost_usd == pytest.approx(part.prompt_tokens * 2e-6 + figures.target_tokens * 3e-6)
