"""A device makes only so many tokens ahead of a paced reader, whatever buffers lie between them."""

from __future__ import annotations

import asyncio

import pytest

from streamco.client.client import Client
from streamco.config import Limits
from streamco.endpoints.device import DeviceEndpoint
from streamco.engines.base import EngineOptions, Generation, GenerationRequest
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.testing.engine import FakeEngine


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


@pytest.mark.model
async def test_a_real_model_makes_no_more_than_the_bound_ahead() -> None:
    engine = await asyncio.to_thread(lambda: LlamaEngine(packaged_model(), EngineOptions(threads=1)))
    generations = []
    submit = engine.submit

    def watch(request: GenerationRequest, wake: object) -> Generation:
        generations.append(submit(request, wake))  # type: ignore[arg-type]
        return generations[-1]

    engine.submit = watch  # type: ignore[method-assign]
    limits, pace = Limits(lookahead=4.0), 10.0
    async with Client(DeviceEndpoint(engine), pace=pace, limits=limits) as client:
        read = 0
        async for _token in client.stream("Write a long story.", extra_body={"ignore_eos": True}, max_tokens=600):
            read += 1
            if read == 3:
                await asyncio.sleep(3.0)  # a hundred tokens would be made by now, and thirty are released
            assert generations[0]._made - read <= limits.tokens_ahead(pace)  # type: ignore[attr-defined]
            if read == 10:
                break
    await asyncio.to_thread(engine.close)
