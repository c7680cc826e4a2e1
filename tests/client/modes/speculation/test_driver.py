"""Speculated answers from end to end: the device's drafts, a verifier on the loopback, one text."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from streamco.client.modes.speculation.driver import SpeculationDriver
from streamco.client.stream import Retracted, Settled
from streamco.config import Limits
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.testing import LinkProxy
from tests.client.helpers import tokens_text
from tests.client.speculating import PROMPT, Screen, World
from tests.support.leaks import settled

HELLO = [{"role": "user", "content": PROMPT}]


@pytest.mark.long("after the first case")
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


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_over_a_long_link_drafts_are_sent_ahead_and_the_answer_is_the_same(temperature: float) -> None:
    world = World(spread=6.0)  # sure enough that a sampled answer has its whole drafts accepted now and then
    async with world.served() as url, LinkProxy(urlsplit(url).port or 0, rtt=0.08) as link:
        verifier = VerifierEndpoint(f"http://127.0.0.1:{link.port}")
        async with world.speculating(verifier) as client:
            shares: list[float] = []
            for number in range(3):
                prompt = f"{PROMPT} w{number}"
                stream = client.stream(prompt, temperature=temperature)
                text = await tokens_text(stream)
                figures = stream.report.speculation
                assert figures is not None
                assert figures.is_exact
                if not temperature:
                    assert text == world.text(prompt)
                shares.append(figures.ahead_rate or 0.0)
            assert max(shares) > 0.0
    assert stream.report.finish_reason == "stop"
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


async def test_an_answer_at_a_smooth_pace_is_whole_and_never_provisional(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier, emit="draft", pace="smooth") as client:
        stream, screen = client.stream(PROMPT, temperature=0, max_tokens=30), Screen()
        assert await screen.read(stream) == world.text(most=30)
        assert all(token.origin != "draft" for token in screen.tokens)
        assert len(screen.tokens) == 30
        assert any("the answer has a pace" in note for note in stream.report.notes)


@pytest.mark.long
@pytest.mark.parametrize("pace", [None, 20.0])
async def test_a_reader_who_is_far_behind_holds_the_work_back_and_gets_all_of_it_later(world: World, pace: float | None) -> None:
    world.target.length = world.drafter.length = 400
    limits = Limits(unread_tokens=16)
    async with world.scripted() as verifier, world.speculating(verifier, limits=limits, pace=pace) as client:
        stream = client.stream(PROMPT, temperature=0, max_tokens=120)
        first = await anext(stream)
        driver = stream._answer.driver
        assert isinstance(driver, SpeculationDriver)
        await settled(lambda: driver._is_behind)
        await settled(lambda: driver.machine._verifier.round is None)
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


@pytest.mark.long
async def test_what_a_paced_reader_does_not_read_holds_the_work_back_though_it_is_due(world: World) -> None:
    world.target.length = world.drafter.length = 400
    limits = Limits(lookahead=0.2)
    async with world.scripted() as verifier, world.speculating(verifier, limits=limits, pace=200.0) as client:
        stream = client.stream(PROMPT, temperature=0, max_tokens=300)
        text = (await anext(stream)).text
        driver = stream._answer.driver
        assert isinstance(driver, SpeculationDriver)
        await settled(lambda: driver._is_behind)
        await settled(lambda: driver.machine._verifier.round is None and not driver.output.delivery.buffered)
        assert driver._is_behind, "all is due, and nothing was read"
        assert driver.output.delivery.meter.tokens <= 2 * limits.tokens_ahead(200.0)
        assert text + await tokens_text(stream) == world.text(most=300)


@pytest.mark.long
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
        report = stream.report
        assert (report.mode, report.winner, report.notes) == ("race", "device", ["not speculated: the server is kept out"])
        assert not verifier.connections_total


async def test_sampling_sends_what_it_drew_from_and_is_exact(world: World) -> None:
    async with world.scripted() as verifier, world.speculating(verifier) as client:
        stream = client.stream(PROMPT, temperature=0.7, seed=3, max_tokens=20)
        await tokens_text(stream)
        assert stream.report.speculation is not None
        assert all(len(draft.rows) == len(draft.pending) for draft in verifier.drafts)
        assert any(draft.rows for draft in verifier.drafts)
