"""The real openai package as a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from streamco.server.app import ServeOptions, serving
from streamco.testing.engine import FakeEngine

pytestmark = pytest.mark.peer

MESSAGES: Any = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def client_of(engine: FakeEngine | None = None, key: str = "unused", **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(engine or FakeEngine("one two three"), ServeOptions(**options)) as url,
        openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client,
    ):
        yield client


async def test_models_are_listed() -> None:
    async with client_of() as client:
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).id == "fake"


async def test_a_chat_answer() -> None:
    async with client_of() as client:
        answer = await client.chat.completions.create(model="fake", messages=MESSAGES)
    assert answer.choices[0].message.content == "one two three"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


async def test_a_streamed_chat_answer_with_usage() -> None:
    async with client_of() as client:
        stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "one two three"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_its_stream_helper_accumulates_the_answer() -> None:
    async with (
        client_of() as client,
        client.chat.completions.stream(model="fake", messages=MESSAGES, logprobs=True, top_logprobs=1) as stream,
    ):
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "one two three"
    logprobs = final.choices[0].logprobs
    assert logprobs is not None
    assert [entry.token for entry in logprobs.content or ()] == ["one", " two", " three"]


async def test_completions_of_text_and_ids_streamed_and_not() -> None:
    engine = FakeEngine("one two three")
    async with client_of(engine) as client:
        whole = await client.completions.create(model="fake", prompt=engine.tokenize("Hi"), max_tokens=2, logprobs=1)
        stream = await client.completions.create(model="fake", prompt="Hi", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("one two", "length")
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.tokens == ["one", " two"]
    assert text == "one two three"


async def test_token_ids_arrive_as_extra_fields() -> None:
    async with client_of() as client:
        stream = await client.completions.create(model="fake", prompt="Hi", stream=True, extra_body={"return_token_ids": True})
        ids = [getattr(chunk.choices[0], "token_ids", None) async for chunk in stream]
    assert sum(len(each) for each in ids if each) == 3


async def test_errors_are_its_own_classes() -> None:
    async with client_of(key="wrong", api_key="right") as client:
        with pytest.raises(openai.AuthenticationError) as denied:
            await client.chat.completions.create(model="fake", messages=MESSAGES)
        assert denied.value.code == "invalid_api_key"
    async with client_of() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="fake", messages=MESSAGES, n=2)
        assert (refused.value.param, refused.value.type) == ("n", "invalid_request_error")
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)


async def test_an_overloaded_server_is_a_rate_limit_error() -> None:
    engine = FakeEngine(mode="manual")
    async with client_of(engine, max_streams=1) as client:
        first = asyncio.ensure_future(client.chat.completions.create(model="fake", messages=MESSAGES))
        while not engine.generations:
            await asyncio.sleep(0.001)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="fake", messages=MESSAGES)
        assert refused.value.response.headers["Retry-After"] == "1"
        engine.step(100)
        assert (await first).choices[0].message.content


async def test_a_failure_in_mid_stream_raises_after_the_text_so_far() -> None:
    got = ""

    async def read(client: openai.AsyncOpenAI) -> None:
        nonlocal got
        async for chunk in await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True):
            got += chunk.choices[0].delta.content or ""

    async with client_of(FakeEngine("one two three", fail_after=2)) as client:
        with pytest.raises(openai.APIError, match="failed after 2 tokens"):
            await read(client)
    assert got == "one two"


async def test_closing_its_stream_cancels_the_sequence() -> None:
    engine = FakeEngine(" ".join(["word"] * 500), mode="manual")
    async with client_of(engine) as client:
        opening = asyncio.ensure_future(client.chat.completions.create(model="fake", messages=MESSAGES, stream=True))
        while not engine.generations:
            await asyncio.sleep(0.001)
        engine.step(3)
        stream = await opening
        await stream.close()
        while not engine.generations[0].is_cancelled:
            await asyncio.sleep(0.001)
