"""What is speculated, what races, and what is remembered of the pair."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from streamco.client.client import Client
from streamco.client.modes.speculation.driver import SpeculationDriver
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationTuning
from streamco.client.modes.speculation.plan import _opener
from streamco.config import SamplingOptions
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.base import continuation_seed
from streamco.errors import ConfigError
from streamco.testing import ScriptedVerifier, Stall
from tests.client.helpers import chunks_text, server, tokens_text
from tests.client.speculating import ALWAYS, PROMPT, World
from tests.support.leaks import settled
from tests.support.modes import drafting


async def test_what_was_measured_outlives_the_answer(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        before = drafting(client).estimates.acceptance
        await tokens_text(client.stream(PROMPT, temperature=0))
        after = drafting(client).estimates.acceptance
        assert after != before
        assert drafting(client.with_options(pace=100)).estimates is drafting(client).estimates
        assert drafting(client.with_options(budget=0.5)).estimates.acceptance == pytest.approx(after)


async def test_what_a_second_is_worth_in_joules_prices_each_drafted_token(world: World) -> None:
    worth = replace(ALWAYS, joules_per_second_saved=lambda: 5.0)
    async with world.scripted() as verifier, world.speculating(verifier, speculation=worth) as client:
        await tokens_text(client.stream(PROMPT, temperature=0))
        dear = drafting(client).estimates.energy
        assert dear > 0.0
        mode = replace(ALWAYS, verifier=verifier.url)
        cheaper = client.with_options(mode=replace(mode, joules_per_second_saved=10.0))
        await tokens_text(cheaper.stream(PROMPT, temperature=0))
        assert drafting(cheaper).estimates.energy == pytest.approx(dear / 2)
        free = client.with_options(mode=mode)
        await tokens_text(free.stream(PROMPT, temperature=0))
        assert drafting(free).estimates.energy == 0.0


def test_a_function_that_fails_at_once_makes_no_client_and_later_ones_are_not_asked_again(world: World) -> None:
    calls: list[int] = []

    def worth() -> float:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("no battery")
        return 5.0

    mode = Speculate(joules_per_second_saved=worth)
    client = Client(DeviceEndpoint(world.engine), mode=mode)
    for budget in (0.2, 0.5):
        client.with_options(budget=budget)
    assert len(calls) == 1
    with pytest.raises(ConfigError, match="joules_per_second_saved: expected a function that returns a rate, got OSError"):
        Client(DeviceEndpoint(world.engine), mode=mode)


def test_below_a_budget_of_one_single_tokens_are_verified_by_confidence_alone() -> None:
    mode = Speculate(budget=0.3)
    estimates = mode.estimates(0.3)
    assert (estimates.window, mode.offload, mode.threshold) == (1, "confidence", 1.0)
    assert mode.estimates(1.0).window > 1


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"model": "another"}, "model another"),
    ],
)
async def test_what_drafts_cant_keep_to_races_and_the_report_says_why(world: World, options: Any, reason: str) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0, **options)
        await tokens_text(stream)
        assert stream.report.mode == "race"
        assert "not speculated" in stream.report.dispatch.reason
        assert reason in stream.report.dispatch.reason
        assert stream.report.speculation is None


async def test_without_a_verifier_answers_race(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        assert client.unspeculated == ""
    async with ScriptedVerifier(world.target, vocabulary="300:another", vocabulary_size=300) as other, world.speculating(other) as client:
        stream = client.stream(PROMPT, temperature=0)
        await tokens_text(stream)
        assert "vocabulary" in stream.report.dispatch.reason
    async with Client(DeviceEndpoint(world.engine), mode="speculate") as client:
        assert client.unspeculated == "no verifier"
        assert client.with_options(mode="race").unspeculated == ""
        stream = client.stream(PROMPT, temperature=0)
        await tokens_text(stream)
        assert "not speculated: no verifier" in stream.report.dispatch.reason


async def test_an_answer_that_is_too_long_for_the_device_goes_to_the_server() -> None:
    world = World(context_tokens=100)
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with Client(DeviceEndpoint(world.engine), server, mode="speculate") as client:
            stream = client.stream(PROMPT, temperature=0, max_tokens=200)
            assert await tokens_text(stream) == world.text()
            assert "not speculated: 206 tokens, room for 100" in stream.report.dispatch.reason
            assert stream.report.winner == "server"
    world.close()


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("has_remote", [True, False])
async def test_an_answer_without_a_limit_ends_where_the_context_is_full(has_remote: bool) -> None:
    world = World(context_tokens=40, length=200)
    if has_remote:
        async with world.served() as url:
            server = OpenAIEndpoint("large", base_url=url, name="server")
            async with Client(DeviceEndpoint(world.engine), server, mode=ALWAYS) as client:
                stream = client.stream(PROMPT, temperature=0)
                text = await tokens_text(stream)
    else:
        async with world.scripted() as verifier, world.speculating(verifier) as client:
            stream = client.stream(PROMPT, temperature=0)
            text = await tokens_text(stream)
    report = stream.report
    assert report.mode == "speculate"
    assert text == world.text(most=40 - len(world.prompt_ids()))
    assert (report.finish_reason, report.ending) == ("length", "complete")
    assert report.speculation is not None
    assert report.speculation.is_exact
    assert report.speculation.fallbacks == 0
    world.close()


async def test_a_limit_for_servers_limits_a_speculated_answer_that_has_no_other(world: World) -> None:
    asked = Request(messages=[{"role": "user", "content": PROMPT}], sampling=SamplingOptions(temperature=0), server_limit=5)
    limited = replace(asked, sampling=SamplingOptions(temperature=0, max_tokens=9))
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        for request, tokens in ((asked, 5), (limited, 9)):
            stream = client.open_chat(request)
            assert await chunks_text(stream) == world.text(most=tokens)
            assert (stream.report.mode, stream.report.tokens, stream.report.finish_reason) == ("speculate", tokens, "length")


@pytest.mark.long
async def test_a_client_waits_for_verdicts_as_long_as_it_is_told(world: World) -> None:
    options = Speculate(
        is_adaptive=False,
        patience=3.0,
        tuning=SpeculationTuning(first_verdict_timeout=7.0, verdict_timeout=0.5, last_patience=5.0),
    )
    async with world.scripted() as verifier, world.speculating(verifier, speculation=options) as client:
        verifier.script(None, None, Stall())
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        figures = stream.report.speculation
        assert figures is not None
        assert figures.losses >= 1, "the stalled one is given up"
        driver = stream._answer.driver
        assert isinstance(driver, SpeculationDriver)
        told = driver.machine._options
        assert (told.first_verdict_timeout, told.verdict_timeout, told.patience, told.last_patience) == (7.0, 0.5, 3.0, 5.0)


async def test_a_server_that_goes_on_alone_throws_other_dice_than_at_the_beginning() -> None:
    request = Request(messages=[], sampling=SamplingOptions(seed=-2, temperature=1.0), server_limit=9)
    remote = server()
    open_stream = _opener(lambda: remote, request, (1, 2))
    for ids in [(), (5,), (5, 6)]:
        await open_stream(ids, 7).cancel()
    seeds = [stream.request.sampling.seed for stream in remote.streams]
    assert seeds == [-2, continuation_seed(-2, 1), continuation_seed(-2, 2)]
    assert len(set(seeds)) == 3
    assert {stream.request.server_limit for stream in remote.streams} == {9}, "the limit for servers is theirs, too"


async def test_a_server_that_goes_on_alone_is_sent_the_seed_that_means_any() -> None:
    request = Request(messages=[], sampling=SamplingOptions(seed=-1, temperature=1.0))
    remote = server()
    open_stream = _opener(lambda: remote, request, (1, 2))
    await open_stream((5,), 7).cancel()
    assert remote.streams[0].request.sampling.seed == -1


async def test_answers_that_race_show_how_fast_the_server_writes(world: World) -> None:
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with Client(None, server, mode="auto") as client:
            world.large.token_s = 0.02
            before = drafting(client).estimates.remote_step
            stream = client.stream(PROMPT, temperature=0, max_tokens=12)
            await tokens_text(stream)
            assert "not speculated: no device" in stream.report.dispatch.reason
            await settled(lambda: not client._settings.endpoints.active)
            assert drafting(client).estimates.remote_step < before
            before = drafting(client).estimates.remote_step
            world.large.token_s = 0.002
            await tokens_text(client.with_options(mode="race").stream(PROMPT, temperature=0, max_tokens=12))
            await settled(lambda: not client._settings.endpoints.active)
            assert drafting(client).estimates.remote_step < before, "races of a client with other options teach the pair, too"


@pytest.mark.long
async def test_mode_auto_speculates_where_drafting_is_faster(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, mode="auto") as client:
        pair = drafting(client).estimates
        pair._remote_step.seconds = 5.0  # seconds
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        assert stream.report.mode == "speculate"
        pair._remote_step.seconds = 1e-4
        modes = []
        for _ in range(21):
            stream = client.stream(PROMPT, temperature=0, max_tokens=4)
            await tokens_text(stream)
            modes.append(stream.report.mode)
        assert modes == ["race"] * 20 + ["speculate"], "now and then it is tried again"
        assert "drafting doesn't pay now" not in stream.report.dispatch.reason
