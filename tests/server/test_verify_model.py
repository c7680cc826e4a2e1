"""Drafts of one quantisation verified by another, both of the packaged model, over real sockets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import pytest

from streamco.emulation.step_emulation import StepEmulator
from streamco.emulation.step_times import StepTimes
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.verify.topk import quantise
from tests.engines.asking import draft as drafted
from tests.engines.asking import extend
from tests.engines.fakes import complete
from tests.server.verifying import Device, Serving, connected, serving
from tests.support.examples import examples
from tests.support.leaks import settled

pytestmark = pytest.mark.model

QUESTIONS = ("Name three colours of the sea.", "Write a short story about a lighthouse keeper.", "What is 17 times 3?", "Explain tides.")
TOKENS = examples(24, thorough=40)


@dataclass
class Pair:
    target: LlamaEngine
    draft: LlamaEngine

    def prompt(self, question: str) -> list[int]:
        return self.target.tokenize(self.target.apply_template([{"role": "user", "content": question}]), special=True)

    def own(self, ids: list[int], count: int = TOKENS) -> list[int]:
        """The target's own greedy answer, one token at a time."""
        return complete(self.target, ids, max_tokens=count).ids


def load(path: object, **changes: object) -> LlamaEngine:
    options = {"threads": 1, "context_tokens": 320, "max_sequences": 1, "held_sequences": 5} | changes
    return LlamaEngine(path, EngineOptions(**options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    target, draft = load(packaged_model(), exact=True), load(derived(packaged_model(), "Q4_0"))
    yield Pair(target, draft)
    target.close()
    draft.close()


async def answer(device: Device, pair: Pair, ids: list[int], window: int) -> list[int]:
    """Written by the draft model, judged by the target."""
    session, _ = await device.open(ids, reserve=len(ids) + TOKENS)
    sequence, text = pair.draft.hold(), list(ids)
    await asyncio.to_thread(extend, sequence, ids)
    while len(text) < len(ids) + TOKENS:
        told = await asyncio.to_thread(drafted, sequence, window)
        verdict = await device.draft(session, len(text), told.tokens)
        assert verdict.token is not None
        sequence.truncate(len(text) + verdict.accepted)
        text += [*told.tokens[: verdict.accepted], verdict.token]
        sequence.extend([verdict.token])
    sequence.close()
    return text[len(ids) :][:TOKENS]


@pytest.mark.long
async def test_greedy_answers_are_the_targets_own_token_for_token_while_others_are_verified(pair: Pair) -> None:
    prompts = [pair.prompt(question) for question in QUESTIONS]
    wanted = [await asyncio.to_thread(pair.own, ids) for ids in prompts]

    async def ask(url: str, ids: list[int], window: int) -> list[int]:
        async with connected(url, pair.target) as device:
            return await answer(device, pair, ids, window)

    async with serving(pair.target) as server:
        answers = await asyncio.gather(*(ask(server.url, ids, window) for window, ids in enumerate(prompts, start=3)))
        figures = server.figures
    assert [told[: len(own)] for told, own in zip(answers, wanted, strict=True)] == wanted
    assert figures["accepted_tokens"] > 0.4 * sum(map(len, wanted))
    assert figures["failed_batches"] == 0


@pytest.fixture(scope="module", params=["plain", "separate", "exact"])
def held(request: pytest.FixtureRequest) -> Iterator[LlamaEngine]:
    engine = load(derived(packaged_model(), "Q4_0"), **({} if request.param == "plain" else {request.param: True}))
    yield engine
    engine.close()


class Reading:
    """One prompt, asked for as a plain stream and as a session to verify in; counts the rows that are decoded."""

    def __init__(self, engine: LlamaEngine, server: Serving, subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages = [{"role": "user", "content": f"{subject}: " + "what are they made of, and who has use for them at sea? " * 12}]
        self.ids = engine.tokenize(engine.apply_template(self.messages), special=True)
        self.rows = 0
        self._engine, self._server = engine, server
        context, decode = engine._context, engine._context.decode

        self._may_decode, self._has_begun = threading.Event(), threading.Event()
        self._may_decode.set()
        self._arrivals, put = 0, engine._loop.put

        def counted() -> int:
            self._has_begun.set()
            assert self._may_decode.wait(60.0)
            self.rows += context.count
            return decode()

        def arrived(work: Any) -> None:
            self._arrivals += 1
            put(work)

        monkeypatch.setattr(context, "decode", counted)
        monkeypatch.setattr(engine._loop, "put", arrived)

    async def ask_at_once(self, first: Callable[[], Awaitable[None]], second: Callable[[], Awaitable[None]]) -> None:
        """The second request reaches the engine while its first batch for the first one is held up, however fast this machine is."""
        self._may_decode.clear()
        self._has_begun.clear()
        asked = [asyncio.ensure_future(first())]
        assert await asyncio.to_thread(self._has_begun.wait, 60.0)
        before = self._arrivals
        asked.append(asyncio.ensure_future(second()))
        while self._arrivals == before:
            await asyncio.sleep(0.001)
        self._may_decode.set()
        await asyncio.gather(*asked)

    async def stream(self) -> None:
        body = {"messages": self.messages, "max_tokens": 1, "temperature": 0}
        async with aiohttp.ClientSession() as http, http.post(f"{self._server.http}/v1/chat/completions", json=body) as response:
            assert (await response.json())["usage"]["prompt_tokens"] == len(self.ids)

    async def verify(self) -> None:
        async with connected(self._server.url, self._engine) as device:
            session, _ = await device.open(self.ids)
            await device.draft(session, len(self.ids), [])


@pytest.mark.long
async def test_a_session_and_a_stream_on_one_prompt_read_it_once(held: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = 2 * 4  # rows of the last token of each request, with its neighbour in exact mode
    uncopied = 16  # tokens that are read again because a copy of so few isn't worth its time
    async with serving(held) as server:
        for subject in ("Apples", "Bridges"):
            reading = Reading(held, server, subject, monkeypatch)
            asks = [reading.stream, reading.verify] if subject == "Apples" else [reading.verify, reading.stream]
            await asks[0]()
            once, reading.rows = reading.rows, 0
            assert once > 0.8 * len(reading.ids)
            await asks[1]()
            assert reading.rows <= uncopied + ends
        for subject in ("Candles", "Drapes"):
            reading = Reading(held, server, subject, monkeypatch)
            asks = [reading.stream, reading.verify] if subject == "Candles" else [reading.verify, reading.stream]
            await reading.ask_at_once(*asks)
            assert reading.rows <= len(reading.ids) + 2 * uncopied + ends  # either request may catch up with the other one


def counted(server: Serving, aborted: int) -> bool:
    return bool(server.figures["aborted_batches"] == aborted)


async def test_a_batch_whose_session_is_closed_is_aborted_and_leaves_the_other_sessions_rows(
    held: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, prompt = (held.tokenize(question * 4) for question in QUESTIONS[:2])
    has_begun, context, decode = threading.Event(), held._context, held._context.decode

    def decode_until_aborted() -> int:
        has_begun.set()
        while not context.abort.is_set:
            time.sleep(0.001)
        return decode()

    async with serving(held) as server, connected(server.url, held) as device, connected(server.url, held) as other:
        kept, _ = await other.open(ids, top_k=5)
        before = await other.draft(kept, len(ids), prompt[:3])
        for is_round in (False, True):
            session, _ = await device.open(prompt)
            if is_round:
                await device.draft(session, len(prompt), [])
            has_begun.clear()
            with monkeypatch.context() as patch:
                patch.setattr(context, "decode", decode_until_aborted)
                device.client.draft(session, len(prompt), ids[:4])
                await device.say()
                assert await asyncio.to_thread(has_begun.wait, 60.0)
                device.client.close(session)
                await device.say()
                await settled(partial(counted, server, 1 + is_round), limit=60.0)
            after = await other.draft(kept, len(ids), prompt[:3])
            assert (after.accepted, after.token, after.rows) == (before.accepted, before.token, before.rows)
        assert server.figures["failed_batches"] == 0
        again, _ = await device.open(prompt)
        verdict = await device.draft(again, len(prompt), [])
        assert verdict.token == (await asyncio.to_thread(complete, held, prompt, max_tokens=1)).ids[0]


@pytest.mark.long
async def test_a_round_that_took_longer_than_the_imposed_times_is_counted(pair: Pair) -> None:
    ids = pair.prompt(QUESTIONS[0])
    for milliseconds, late in ((2000.0, 0), (0.001, 2)):
        times = StepTimes(name="imposed", source="test", license="none", decode_ms=((1, milliseconds),))
        options = EngineOptions(threads=1, context_tokens=320, max_sequences=1, held_sequences=1)
        engine = await asyncio.to_thread(LlamaEngine, packaged_model(), options, pace=StepEmulator(times))
        try:
            async with serving(engine) as server, connected(server.url, engine) as device:
                session, _ = await device.open(ids[:3])
                first = await device.draft(session, 3, ids[3:6])
                second = await device.draft(session, 3, ids[3:6])
                assert (first.token, first.accepted) == (second.token, second.accepted)
                assert server.figures["late_verdicts"] == late
                assert (second.compute_us >= 1_500_000) == (not late)
        finally:
            await asyncio.to_thread(engine.close)


async def test_sampled_verdicts_tell_the_rows_they_were_made_from(pair: Pair) -> None:
    ids = pair.prompt(QUESTIONS[1])
    own = await asyncio.to_thread(pair.own, ids, 4)
    rule = Rule(RuleKind.SAMPLE, temperature=0.7, seed=3)
    async with serving(pair.target) as server, connected(server.url, pair.target) as device:
        session, _ = await device.open(ids, rule, top_k=5)
        rows = [quantise([(token, 1.0)], is_whole=True) for token in own]
        verdict = await device.draft(session, len(ids), own, rows=rows)
    assert [len(row.ids) for row in verdict.rows] == [5] * 5
    assert [row.ids[0] for row in verdict.rows[:4]] == own
    assert all(sum(row.weights) + row.rest in range(65533, 65539) for row in verdict.rows)
    assert verdict.accepted == 4 or verdict.token != own[verdict.accepted]
