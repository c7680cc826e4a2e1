"""A drafter on a real model whose attention is read."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from streamco.config import SamplingOptions
from streamco.core.speculation.events import DraftTokens, TokensDrafted
from streamco.endpoints.device_drafter import DeviceDrafter, DrafterEvent
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import EngineError

pytestmark = pytest.mark.model


def load(layers: tuple[int, ...]) -> LlamaEngine:
    pytest.importorskip("llama_cpp")
    try:
        path = packaged_model()
    except EngineError as exc:
        pytest.skip(str(exc))
    return LlamaEngine(path, EngineOptions(threads=1, context_tokens=64, held_sequences=2, attention_layers=layers))


async def draft(engine: LlamaEngine, count: int) -> list[TokensDrafted]:
    """All that is told of one draft."""
    told: list[TokensDrafted] = []
    finished = asyncio.Event()

    def hear(event: DrafterEvent) -> None:
        assert isinstance(event, TokensDrafted), event
        told.append(event)
        if event.is_finished:
            finished.set()

    prompt = engine.tokenize("Bread is made of flour and")
    async with aclosing(DeviceDrafter(engine, prompt, emit=hear, sampling=SamplingOptions(temperature=0))) as drafter:
        drafter.run(DraftTokens(1, 0, (), count))
        await asyncio.wait_for(finished.wait(), 60)
    return told


@pytest.mark.parametrize("count", [4, 1])
async def test_the_importance_of_a_draft_is_told_with_its_tokens(count: int) -> None:
    engine = await asyncio.to_thread(load, (-1,))
    told = (await draft(engine, count))[-1].importance
    await asyncio.to_thread(engine.close)
    if count == 1:
        assert told is None  # nobody has looked at it yet
    else:
        assert told is not None
        assert 0.0 < told < count


async def test_without_layers_it_is_not_measured() -> None:
    engine = await asyncio.to_thread(load, ())
    told = await draft(engine, 3)
    await asyncio.to_thread(engine.close)
    assert {event.importance for event in told} == {None}
