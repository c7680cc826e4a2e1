"""A drafter on a real model, with its attention read."""

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
    """All events of one draft."""
    emitted: list[TokensDrafted] = []
    finished = asyncio.Event()

    def emit(event: DrafterEvent) -> None:
        assert isinstance(event, TokensDrafted), event
        emitted.append(event)
        if event.is_finished:
            finished.set()

    prompt = engine.tokenize("Bread is made of flour and")
    async with aclosing(DeviceDrafter(engine, prompt, emit=emit, sampling=SamplingOptions(temperature=0))) as drafter:
        drafter.run(DraftTokens(1, 0, (), count))
        await asyncio.wait_for(finished.wait(), 60)
    return emitted


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("count", [4, 1])
async def test_the_importance_of_a_draft_is_told_with_its_tokens(count: int) -> None:
    engine = await asyncio.to_thread(load, (-1,))
    emitted = (await draft(engine, count))[-1].importance
    await asyncio.to_thread(engine.close)
    if count == 1:
        assert emitted is None  # no later token has attended to it
    else:
        assert emitted is not None
        assert 0.0 < emitted < count


async def test_without_layers_it_is_not_measured() -> None:
    engine = await asyncio.to_thread(load, ())
    emitted = await draft(engine, 3)
    await asyncio.to_thread(engine.close)
    assert {event.importance for event in emitted} == {None}
