"""Speculated answers from end to end: the device's drafts, a verifier on the loopback, one text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.speculation import SpeculationDriver
from streamco.client.stream import Retracted, Settled
from streamco.config import Limits
from streamco.core.speculation import VerifierFailed
from streamco.endpoints.base import TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifier import VerifierEndpoint
from streamco.errors import AllEndpointsFailed, StreamClosed, StreamcoError, VerifierError
from streamco.testing import Cut, Forget, Pause, Refuse, Reset, ScriptedSGLang, ScriptedVerifier, ScriptedVLLM
from streamco.wire.verify_errors import OverloadedError
from tests.client.helpers import tokens_text
from tests.client.speculating import ALWAYS, HASTY, PROMPT, QUICK, Screen, World
from tests.support.leaks import holding_nothing_new, settled

HELLO = [{"role": "user", "content": PROMPT}]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.close()


# The text


@pytest.mark.parametrize("noise", [0.0, 0.7, 5.0])
async def test_a_lossless_answer_is_the_targets_own(noise: float) -> None:
    world = World(noise=noise)
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        report = stream.report
        assert report.mode == "speculate"
        assert report.finish_reason == "stop"
        assert report.ending == "complete"
        assert report.speculation is not None
        assert report.speculation.is_exact
        assert report.speculation.rounds == len(verifier.drafts)
    world.close()


async def test_drafts_shown_at_once_come_to_the_same_text() -> None:
    world = World(noise=1.0)
    async with world.scripted() as verifier, world.speculating(verifier, emit="draft") as client:
        stream = client.stream(PROMPT, temperature=0)
        screen = Screen()
        assert await screen.read(stream) == world.text()
        assert screen.final == len(screen.text)
        assert any(isinstance(token, Retracted) for token in screen.tokens)
        assert any(isinstance(token, Settled) and token.origin == "accepted" for token in screen.tokens)
        report = stream.report
        assert report.tokens == len(world.own(world.prompt_ids()))
        assert report.speculation is not None
        assert report.speculation.retracted > 0
    world.close()


@pytest.mark.parametrize("most", [1, 2, 7])
async def test_max_tokens_is_kept(world: World, most: int) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0, max_tokens=most)
        assert await tokens_text(stream) == world.text(most=most)
        assert stream.report.finish_reason == "length"
        assert stream.usage.completion_tokens == most
        assert stream.usage.prompt_tokens == len(world.prompt_ids())


@pytest.mark.parametrize("emit", ["verified", "draft"])
async def test_a_stop_string_ends_the_answer_in_front_of_it(world: World, emit: str) -> None:
    whole = world.text()
    stop = whole[40:52]
    async with world.scripted() as verifier, world.speculating(verifier, emit=emit) as client:
        stream, screen = client.stream(PROMPT, temperature=0, stop=stop), Screen()
        assert await screen.read(stream) == whole.split(stop)[0]
        assert screen.final == len(screen.text)
        assert stream.report.finish_reason == "stop"


async def test_chunks_have_openais_shape_and_say_who_made_them(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, emit="draft") as client:
        stream = await client.chat.completions.create(messages=HELLO, temperature=0, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join([choice.delta.content or "" for chunk in chunks for choice in chunk.choices]) == world.text()
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(world.own(world.prompt_ids()))
        assert len({chunk.id for chunk in chunks}) == 1
        whole = await client.chat.completions.create(messages=HELLO, temperature=0)
        assert whole.choices[0].message.content == world.text()
        assert whole.report is not None
        assert whole.report.mode == "speculate"


async def test_a_paced_answer_keeps_to_the_pace_and_is_never_provisional(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, emit="draft", pace=400) as client:
        stream, screen = client.stream(PROMPT, temperature=0, max_tokens=30), Screen()
        assert await screen.read(stream) == world.text(most=30)
        assert all(token.origin != "draft" for token in screen.tokens)
        first, last = screen.tokens[0].time, screen.tokens[-1].time
        assert last - first >= 29 / 400 * 0.9, "the text was held back"


@pytest.mark.parametrize("pace", [None, 20.0])
async def test_a_reader_who_is_far_behind_holds_the_work_back_and_gets_all_of_it_later(world: World, pace: float | None) -> None:
    world.target.length = world.drafter.length = 400
    limits = Limits(unread_tokens=16)
    async with world.scripted() as verifier, world.speculating(verifier, limits=limits, pace=pace) as client:
        stream = client.stream(PROMPT, temperature=0, max_tokens=120)
        first = await anext(stream)
        driver = stream._work.driver
        assert isinstance(driver, SpeculationDriver)
        await settled(lambda: driver._is_behind)
        await settled(lambda: driver.machine._judging.round is None)
        rounds = len(verifier.drafts)
        await asyncio.sleep(0.1)
        assert len(verifier.drafts) == rounds, "nothing new is begun"
        assert rounds < 20
        if pace is None:
            text = first.text + await tokens_text(stream)
            assert text == world.text(most=120)
        else:
            await stream.aclose()
            assert client.totals.left == 1


async def test_answers_at_the_same_time_share_one_connection_and_keep_apart(world: World) -> None:
    prompts = [f"{PROMPT} w{number} w{number + 1}" for number in range(6)]
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        answers = await asyncio.gather(*(tokens_text(client.stream(prompt, temperature=0, max_tokens=24)) for prompt in prompts))
        assert answers == [world.text(prompt, 24) for prompt in prompts]
        assert verifier.connections_total == 1


async def test_one_after_the_other_with_a_smaller_budget_judges_less(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, budget=0.3) as client:
        shares = []
        for number in range(6):
            stream = client.stream(f"{PROMPT} w{number}", temperature=0, max_tokens=32)
            await tokens_text(stream)
            figures = stream.report.speculation
            assert figures is not None
            assert not figures.is_exact
            shares.append((figures.offloaded_share or 0.0, figures.device))
        assert sum(device for _, device in shares) > 60, "most chunks were kept without asking"
        assert stream.report.dispatch.budget == 0.3
        everything = client.with_options(budget=1.0)
        assert await tokens_text(everything.stream(PROMPT, temperature=0)) == world.text()


async def test_with_a_budget_of_nothing_the_device_writes_alone_and_nobody_is_asked(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, budget=0.0) as client:
        stream = client.stream(PROMPT, temperature=0, max_tokens=20)
        await tokens_text(stream)
        figures = stream.report.speculation
        assert figures is not None
        assert (figures.device, figures.rounds, figures.bytes_up, figures.cloud_tokens) == (20, 0, 0, 0)
        assert stream.report.winner == "device"
        assert not verifier.drafts
        part = next(part for part in stream.report.endpoints if part.outcome == "verified")
        assert part.prompt_tokens == 0


async def test_sampling_sends_what_it_drew_from_and_is_exact(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0.7, seed=3, max_tokens=20)
        await tokens_text(stream)
        assert stream.report.speculation is not None
        assert all(len(draft.rows) == len(draft.pending) for draft in verifier.drafts)
        assert any(draft.rows for draft in verifier.drafts)


# Where verifiers, devices and readers fail


@pytest.mark.parametrize("step", [Cut(), Reset(), Forget(), Refuse(OverloadedError, retry_after=0.05), Pause(0.05)], ids=type)
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
                verifier.forget()
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


async def test_a_failure_that_nobody_may_stand_in_for_keeps_the_text_so_far(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, speculation=HASTY, on_failure="raise") as client:
        texts: list[str] = []

        async def read() -> None:
            async for token in client.stream(PROMPT, temperature=0):
                texts.append(token.text)
                if len(texts) > 9 and verifier.connections_open:
                    await verifier.aclose()

        with pytest.raises(AllEndpointsFailed) as failure:
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


async def test_a_server_verifies_and_goes_on_alone_when_its_verifier_is_out(world: World) -> None:
    world.wake()
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with holding_nothing_new(), Client(DeviceEndpoint(world.engine), server, mode="speculate", speculation=ALWAYS) as client:
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == world.text()
            assert {part.name: part.outcome for part in stream.report.endpoints} == {"device": "drafted", "server": "verified"}
            broken = client.stream(PROMPT, temperature=0)
            text = ""
            async for token in broken:
                text += token.text
                if len(text) > 30 and isinstance(driver := broken._work.driver, SpeculationDriver):
                    driver.tell(VerifierFailed(VerifierError("verifier: expected it to go on, got told not to")))
            figures = broken.report.speculation
            assert figures is not None
            assert figures.remote > 0
            assert figures.fallbacks == 1
            assert figures.is_exact
            assert text == world.text()


@pytest.mark.parametrize("kind", [ScriptedVLLM, ScriptedSGLang])
async def test_stock_servers_verify_behind_their_own_api(world: World, kind: type[ScriptedVLLM]) -> None:
    world.wake()
    async with kind(world.target, world.engine.tokenize) as scripted:
        server = OpenAIEndpoint(scripted.model, base_url=scripted.url, name="stock")
        async with holding_nothing_new(), Client(DeviceEndpoint(world.engine), server, mode="speculate", speculation=ALWAYS) as client:
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == world.text(), stream.report.dispatch.reason
            figures = stream.report.speculation
            assert figures is not None
            assert figures.is_exact
            assert figures.remote == 0
            assert figures.bytes_up > 1000 * figures.rounds / 10, "every round sends the whole context"


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
        await settled(lambda: not client._shared.active)
        await settled(lambda: not client._desk.pairing.device._drafters)
        if end != "client":
            assert client.totals.left == 1


async def test_a_stream_closed_before_it_begins_leaves_no_draft(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0)
        reading = asyncio.create_task(tokens_text(stream))
        await asyncio.sleep(0)
        await stream.aclose()
        with pytest.raises(StreamClosed):
            await reading
        await settled(lambda: not client._desk.pairing.device._drafters)


async def test_a_client_closed_while_an_answer_is_got_ready_leaves_no_draft(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        device = client._desk.pairing.device
        reading = asyncio.create_task(tokens_text(client.stream(PROMPT, temperature=0)))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(StreamClosed):
            await reading
        assert not device._drafters


async def test_what_breaks_in_the_machine_reaches_the_reader_as_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    async with world.scripted() as verifier, world.speculating(verifier) as client:
        monkeypatch.setattr("streamco.core.speculator.Speculator.receive", broken)
        with pytest.raises(StreamcoError, match="a bug") as failure:
            await tokens_text(client.stream(PROMPT, temperature=0))
        assert isinstance(failure.value.__cause__, ZeroDivisionError)
        monkeypatch.setattr("streamco.core.speculator.Speculator.start", broken)
        with pytest.raises(StreamcoError, match="a bug"):
            await tokens_text(client.stream(PROMPT, temperature=0))
        await settled(lambda: not client._shared.active)


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
        await settled(lambda: not client._shared.active)
        assert not client._desk.pairing.device._drafters
        assert client.totals.answers == 100


# Figures


async def test_costs_are_the_servers_prices_for_what_it_computed(world: World) -> None:
    prices = TokenPrices(prompt=1e-6, completion=1e-5)
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server", prices=prices)
        async with Client(DeviceEndpoint(world.engine), server, mode="speculate", speculation=ALWAYS) as client:
            stream = client.stream(PROMPT, temperature=0)
            await tokens_text(stream)
            report = stream.report
            figures = report.speculation
            assert figures is not None
            assert report.cost_usd == pytest.approx(len(world.prompt_ids()) * 1e-6 + figures.cloud_tokens * 1e-5)
            assert figures.accepted + figures.corrected + figures.bonus >= report.tokens
            assert figures.bytes_up > 0
            assert figures.bytes_down > 0
            assert client.totals.endpoints["server"].speculated == 1
            assert client.totals.cost_usd == pytest.approx(report.cost_usd)
            assert client.totals.tokens == report.tokens


async def test_a_verifier_beside_a_server_is_billed_at_its_own_prices(world: World) -> None:
    async with world.scripted() as scripted:
        verifier = VerifierEndpoint(scripted.url, timeouts=QUICK, prices=TokenPrices(prompt=2e-6, completion=3e-6))
        async with world.speculating(verifier) as client:
            stream = client.stream(PROMPT, temperature=0)
            await tokens_text(stream)
            figures = stream.report.speculation
            assert figures is not None
            assert stream.report.cost_usd == pytest.approx(len(world.prompt_ids()) * 2e-6 + figures.cloud_tokens * 3e-6)


async def test_what_was_measured_outlives_the_answer(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        before = client._desk.pair.acceptance
        await tokens_text(client.stream(PROMPT, temperature=0))
        after = client._desk.pair.acceptance
        assert after != before
        assert client.with_options(pace=100)._desk.pair is client._desk.pair
        assert client.with_options(budget=0.5)._desk.pair.acceptance == pytest.approx(after)


# What isn't speculated


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


async def test_answers_that_race_show_how_fast_the_server_writes(world: World) -> None:
    async with world.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with Client(None, server, mode="auto") as client:
            world.large.token_s = 0.02
            before = client._desk.pair.remote_step
            stream = client.stream(PROMPT, temperature=0, max_tokens=12)
            await tokens_text(stream)
            assert "not speculated: no device" in stream.report.dispatch.reason
            await settled(lambda: not client._shared.active)
            assert client._desk.pair.remote_step < before


async def test_mode_auto_speculates_where_drafting_is_faster(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, mode="auto") as client:
        pair = client._desk.pair
        pair.remote_step = 5.0  # seconds
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == world.text()
        assert stream.report.mode == "speculate"
        pair.remote_step = 1e-4
        modes = []
        for _ in range(21):
            stream = client.stream(PROMPT, temperature=0, max_tokens=4)
            await tokens_text(stream)
            modes.append(stream.report.mode)
        assert modes == ["race"] * 20 + ["speculate"], "now and then it is tried again"
        assert "drafting doesn't pay now" not in stream.report.dispatch.reason
