"""JSON from a device at the proxy: the openai package's own ``parse``, and what a device can't hold to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

import streamco
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Capabilities
from streamco.endpoints.device import DeviceEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.proxy.app import serving
from streamco.proxy.config import ProxyOptions
from streamco.testing import FakeEngine
from tests.client.helpers import server

pytestmark = pytest.mark.peer


class Town(BaseModel):
    """A town, as a program would describe it. Its texts have bounds, because on some processors a small model goes on for ever in one."""

    name: str = Field(max_length=20)
    size: Literal["small", "large"]
    rivers: list[Annotated[str, Field(max_length=20)]] = Field(max_length=2)
    founded: int | None = Field(ge=-1000, le=2100)
    tags: list[Tag] = Field(max_length=1)


class Tag(BaseModel):
    """A part with a reference to it."""

    text: str = Field(max_length=10)


class Coded(BaseModel):
    """What a device can't hold to."""

    codes: set[str]


class GrammarEngine(FakeEngine):
    """A scripted engine that says it keeps to grammars."""

    takes_grammars = True


@asynccontextmanager
async def calling(*sides: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        streamco.Client(*sides, mode=Race(policy="device-first" if len(sides) > 1 else "auto")) as client,
        serving(client, ProxyOptions(port=0)) as base_url,
        openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as caller,
    ):
        yield caller


@pytest.mark.long
@pytest.mark.model
async def test_the_openai_packages_parse_gets_its_model_from_a_device() -> None:
    pytest.importorskip("llama_cpp")
    device = DeviceEndpoint(packaged_model(), options=EngineOptions(threads=1, context_tokens=512))
    async with calling(device) as caller:
        answer = await caller.chat.completions.parse(
            model="streamco",
            messages=[{"role": "user", "content": "Describe Lyon as JSON."}],
            response_format=Town,
            temperature=0,
            max_tokens=250,
        )
    assert isinstance(answer.choices[0].message.parsed, Town)


async def test_what_a_device_cannot_hold_to_is_a_400_or_the_servers() -> None:
    engine = GrammarEngine()
    shape: Any = {"type": "json_schema", "json_schema": {"name": "coded", "schema": Coded.model_json_schema()}}
    async with calling(DeviceEndpoint(engine)) as caller:
        with pytest.raises(openai.BadRequestError, match="uniqueItems"):
            await caller.chat.completions.create(
                model="streamco",
                messages=[{"role": "user", "content": "Hi"}],
                response_format=shape,
            )
    remote = server([(0.0, "S")], capabilities=Capabilities(json_schema=True))
    async with calling(DeviceEndpoint(engine), remote) as caller:
        raw = await caller.chat.completions.with_raw_response.create(
            model="streamco",
            messages=[{"role": "user", "content": "Hi"}],
            response_format=shape,
        )
        assert raw.parse().choices[0].message.content == "S"
        assert "uniqueItems" in raw.headers["x-streamco-reason"]
    assert engine.requests == []


async def test_a_format_that_a_device_can_hold_to_reaches_it() -> None:
    engine = GrammarEngine("{}")
    async with calling(DeviceEndpoint(engine)) as caller:
        answer = await caller.chat.completions.create(
            model="streamco", messages=[{"role": "user", "content": "Hi"}], response_format={"type": "json_object"}
        )
    assert answer.choices[0].message.content == "{}"
    assert engine.requests[0].grammar == '{"type": "object"}'
