"""The real openai package's ``responses`` as a client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from streamco.testing.engine import FakeEngine
from tests.server.test_openai_client import client_of

pytestmark = pytest.mark.peer

TOOL: Any = {"type": "function", "name": "f", "parameters": {}, "strict": False}


async def test_a_response_whole_and_streamed() -> None:
    async with client_of() as client:
        whole = await client.responses.create(model="fake", input="Hello", max_output_tokens=2)
        async with client.responses.stream(model="fake", input=[{"role": "user", "content": "Hello"}]) as stream:
            text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
            final = await stream.get_final_response()
    assert (whole.output_text, whole.status) == ("one two", "incomplete")
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert text == final.output_text == "one two three"
    assert final.usage is not None
    assert final.usage.output_tokens == 3


async def test_log_probabilities() -> None:
    async with client_of() as client:
        answer = await client.responses.create(model="fake", input="Hi", include=["message.output_text.logprobs"], top_logprobs=1)
    message = answer.output[0]
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    assert [entry.token for entry in part.logprobs or ()] == ["one", " two", " three"]


async def test_errors_are_its_own_classes() -> None:
    async with client_of(key="wrong", api_key="right") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.responses.create(model="fake", input="Hi")
    async with client_of() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(
                model="fake", input="Hi", tools=[{"type": "function", "name": "f", "parameters": {}, "strict": False}]
            )
        assert refused.value.param == "tools"
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="gpt-4o", input="Hi")


async def test_a_failure_in_mid_stream_raises_after_the_text_so_far() -> None:
    got = ""

    async def read(client: openai.AsyncOpenAI) -> None:
        nonlocal got
        async for event in await client.responses.create(model="fake", input="Hi", stream=True):
            got += event.delta if event.type == "response.output_text.delta" else ""

    async with client_of(FakeEngine("one two three", fail_after=2)) as client:
        with pytest.raises(openai.APIError, match="failed after 2 tokens"):
            await read(client)
    assert got == "one two"
