"""A device makes only so many tokens ahead of a paced reader, whatever buffers lie between them.

Tokens that the reader has finished with are those before the one in its hand.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamco.core.pacer
import streamco.core.smooth_schedule
from streamco.client.client import Client
from streamco.config import Limits
from streamco.endpoints.device import DeviceEndpoint
from streamco.engines.base import EngineOptions, Generation, GenerationEnd, GenerationRequest, TextPiece
from streamco.engines.generation import RunningGeneration
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.testing.engine import FakeEngine, FakeGeneration
from streamco.testing.virtual_clock import VirtualTimeLoop, run_in_virtual_time
from tests.native.conftest import TWINS, load_twin
from tests.support.examples import examples


@pytest.fixture(params=TWINS)
def pacedring(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let the pacer use this twin of the ring."""
    module = load_twin("pacedring", request.param)
    monkeypatch.setattr(streamco.core.pacer, "PacedRing", module.PacedRing)
    monkeypatch.setattr(streamco.core.smooth_schedule, "PacedRing", module.PacedRing)
    return module


@pytest.mark.parametrize("pace", [5.0, 20.0, 100.0])
async def test_a_fast_engine_is_parked_at_the_bound(pace: float) -> None:
    limits = Limits(lookahead=2.0)
    engine = FakeEngine("word " * 2000, mode="thread", context_tokens=4096)
    made: list[Generation] = []
    submit = engine.submit

    def watch(request: GenerationRequest, wake: object) -> Generation:
        made.append(submit(request, wake))  # type: ignore[arg-type]
        return made[-1]

    engine.submit = watch  # type: ignore[method-assign]
    async with Client(DeviceEndpoint(engine), pace=pace, limits=limits) as client:
        read = 0
        async for _token in client.stream("hello"):
            read += 1
            if read % 4 == 0:
                ahead = made[0]._made - read  # type: ignore[attr-defined]
                assert ahead <= limits.tokens_ahead(pace)
            if read == 20:
                break
    engine.close()


@dataclass
class Merged:
    """A generation of pieces that hold one to four tokens each. It writes whenever it may, and at once."""

    inner: FakeGeneration
    rng: random.Random

    def take(self) -> tuple[list[TextPiece], GenerationEnd | None]:
        pieces, end = self.inner.take()
        merged: list[TextPiece] = []
        while pieces:
            part, pieces = pieces[: (count := self.rng.choice([1, 1, 2, 4]))], pieces[count:]
            merged.append(TextPiece("".join(piece.text for piece in part), tuple(token for piece in part for token in piece.ids)))
        return merged, end

    def cancel(self) -> None:
        self.inner.cancel()

    def pause(self) -> None:
        self.inner.pause()

    def resume(self) -> None:
        self.inner.resume()


def merging_engine(words: int, seed: int) -> FakeEngine:
    engine = FakeEngine("word " * words, context_tokens=2 * words)
    submit = engine.submit

    def merge(request: GenerationRequest, wake: Callable[[], None]) -> Generation:
        inner = submit(request, wake)
        assert isinstance(inner, FakeGeneration)
        return Merged(inner, random.Random(seed))

    engine.submit = merge  # type: ignore[method-assign]
    return engine


readers = st.lists(
    st.one_of(
        st.tuples(st.just("reads"), st.integers(1, 60)),
        st.tuples(st.just("sleeps"), st.floats(0.001, 30.0)),
        st.tuples(st.just("blocks"), st.floats(0.001, 10.0)),  # nothing else runs on the loop meanwhile
    ),
    max_size=25,
)


@given(pace=st.floats(0.5, 200.0), lookahead=st.floats(0.0, 20.0), unread=st.integers(1, 400), reader=readers, seed=st.integers(0, 99))
@settings(max_examples=examples(40, thorough=1000), deadline=None)
def check_bound(pace: float, lookahead: float, unread: int, reader: list[tuple[str, Any]], seed: int) -> None:
    limits, words = Limits(lookahead=lookahead, unread_tokens=unread), 800
    bound, (_, kept) = limits.tokens_ahead(pace), limits.device_buffers(pace)
    engine = merging_engine(words, seed)

    async def main(loop: VirtualTimeLoop) -> None:
        finished = in_hand = 0
        async with Client(DeviceEndpoint(engine), pace=pace, limits=limits) as client:
            tokens = aiter(client.stream("hello"))

            def ahead() -> int:
                return engine.generations[0]._made - finished

            for action, amount in reader:
                match action:
                    case "reads":
                        for _ in range(amount):
                            finished, in_hand = finished + in_hand, 0
                            token = await anext(tokens, None)
                            assert ahead() <= bound
                            if token is None:
                                return
                            in_hand = len(token.text.split())
                    case "sleeps":
                        await asyncio.sleep(amount)
                        if in_hand and ahead() + finished < words:
                            assert kept < ahead() <= bound, "it works ahead, and is parked"
                    case "blocks":
                        loop.now += amount
            await tokens.aclose()

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        await main(loop)

    run_in_virtual_time(begin())


def test_the_bound_holds_for_every_pace_limit_and_reader(pacedring: ModuleType) -> None:
    check_bound()


def watched(engine: LlamaEngine) -> list[RunningGeneration]:
    """Return a list of the engine's generations, which grows."""
    made: list[RunningGeneration] = []
    submit = engine.submit

    def watch(request: GenerationRequest, wake: Callable[[], None]) -> Generation:
        made.append(cast(RunningGeneration, submit(request, wake)))
        return made[-1]

    engine.submit = watch  # type: ignore[method-assign]
    return made


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("prompt", ["Write a long story.", "Repeat this for ever: 🐈🐕🐈🐕🐈🐕"])
async def test_a_real_models_sequence_is_parked_at_the_bound_and_its_thread_is_not(prompt: str, pacedring: ModuleType) -> None:
    engine = await asyncio.to_thread(lambda: LlamaEngine(packaged_model(), EngineOptions(threads=1)))
    generations = watched(engine)
    limits, pace = Limits(lookahead=1.0), 32.0
    bound, (held, kept) = limits.tokens_ahead(pace), limits.device_buffers(pace)
    finished = in_hand = chunks = 0
    async with Client(DeviceEndpoint(engine), pace=pace, limits=limits) as client, Client(DeviceEndpoint(engine)) as other:
        async for chunk in await client.chat.completions.create(
            messages=[{"role": "user", "content": prompt}], stream=True, max_tokens=300, seed=1, extra_body={"ignore_eos": True}
        ):
            first = generations[0]
            finished, in_hand, chunks = finished + in_hand, len(chunk.choices[0].token_ids or ()), chunks + 1
            assert first._made - finished <= bound
            if chunks % 15 == 0:  # the reader rests
                while not first.is_parked or first._made - finished <= held // 2 + kept:
                    await asyncio.sleep(0.01)
                made = first._made
                assert made - first._consumer.taken == kept, "its last token is drawn and waits in the sequence"
                assert made - finished <= bound
                words = [token async for token in other.stream("hello", max_tokens=5, extra_body={"ignore_eos": True})]
                assert words, "the engine's thread goes on"
                assert (first._made, first.is_parked, first.is_done) == (made, True, False)
            if chunks == 40:
                break
    await asyncio.to_thread(engine.close)


@pytest.mark.long
@pytest.mark.model
async def test_a_real_model_makes_no_more_than_the_bound_ahead() -> None:
    engine = await asyncio.to_thread(lambda: LlamaEngine(packaged_model(), EngineOptions(threads=1)))
    generations = watched(engine)
    limits, pace = Limits(lookahead=4.0), 10.0
    async with Client(DeviceEndpoint(engine), pace=pace, limits=limits) as client:
        read = 0
        async for _token in client.stream("Write a long story.", extra_body={"ignore_eos": True}, max_tokens=600):
            read += 1
            if read == 3:
                await asyncio.sleep(3.0)  # a hundred tokens would be made by now, and thirty are released
            assert generations[0]._made - read <= limits.tokens_ahead(pace)
            if read == 10:
                break
    await asyncio.to_thread(engine.close)
