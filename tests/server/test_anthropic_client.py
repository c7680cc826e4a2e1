"""The real anthropic package as a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from streamco.server.app import ServeOptions, serving
from streamco.testing.engine import FakeEngine

pytestmark = pytest.mark.peer

ASKED: Any = {"model": "fake", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}


@asynccontextmanager
async def client_of(engine: FakeEngine | None = None, key: str = "unused", **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        serving(engine or FakeEngine("one two three"), ServeOptions(**options)) as url,
        anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0) as client,
    ):
        yield client


async def test_a_message_whole_and_streamed() -> None:
    async with client_of() as client:
        whole = await client.messages.create(**{**ASKED, "max_tokens": 2})
        async with client.messages.stream(**ASKED) as stream:
            text = [piece async for piece in stream.text_stream]
            message = await stream.get_final_message()
    assert ([block.to_dict() for block in whole.content], whole.stop_reason) == ([{"type": "text", "text": "one two"}], "max_tokens")
    assert text == ["one", " two", " three"]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 3)


async def test_tokens_are_counted_as_a_message_reads_them() -> None:
    async with client_of() as client:
        counted = await client.messages.count_tokens(model="fake", messages=ASKED["messages"], system="Be brief.")
        message = await client.messages.create(**ASKED, system="Be brief.")
    assert counted.input_tokens == message.usage.input_tokens


async def test_models_are_listed_with_its_key_and_in_its_form() -> None:
    engine = FakeEngine("one")
    async with client_of(engine, key="right", api_key="right") as client:
        listed = [model async for model in client.models.list()]
        one = await client.models.retrieve("fake")
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("other")
    assert listed == [one]
    assert (one.id, one.type, one.display_name, one.max_input_tokens) == ("fake", "model", "fake", engine.info.context_tokens)
    assert one.created_at.year >= 2024
    async with client_of(key="wrong", api_key="right") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.models.list()


async def test_errors_are_its_own_classes() -> None:
    async with client_of(key="wrong", api_key="right") as client:
        with pytest.raises(anthropic.AuthenticationError):
            await client.messages.create(**ASKED)
    async with client_of(key="right", api_key="right") as client:
        with pytest.raises(anthropic.BadRequestError, match="tools: expected none, got some"):
            await client.messages.create(**ASKED, tools=[{"name": "f", "input_schema": {"type": "object"}}])
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**{**ASKED, "model": "claude"})


async def test_a_failure_in_mid_stream_raises_after_the_text_so_far() -> None:
    got = ""

    async def read(client: anthropic.AsyncAnthropic) -> None:
        nonlocal got
        async with client.messages.stream(**ASKED) as stream:
            async for text in stream.text_stream:
                got += text

    async with client_of(FakeEngine("one two three", fail_after=2)) as client:
        with pytest.raises(anthropic.APIStatusError, match="failed after 2 tokens"):
            await read(client)
    assert got == "one two"
