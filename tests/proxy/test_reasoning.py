"""Reasoning of a model in the proxy's process, in all three APIs."""

from __future__ import annotations

import anthropic
import openai
import pytest

import streamco
from streamco.endpoints.device import DeviceEndpoint
from streamco.proxy.app import serving
from streamco.proxy.config import ProxyOptions
from tests.endpoints.test_device_reasoning import engine

pytestmark = pytest.mark.peer
REASONING, CONTENT = "It is far.", "The sky is blue."
ASKED = "Why is the sky blue?"


async def test_each_api_has_it_apart_from_the_answer() -> None:
    async with streamco.Client(DeviceEndpoint(engine())) as client, serving(client, ProxyOptions(port=0)) as url:
        async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as caller:
            whole = await caller.chat.completions.create(model="streamco", messages=[{"role": "user", "content": ASKED}])
            stream = await caller.chat.completions.create(model="streamco", messages=[{"role": "user", "content": ASKED}], stream=True)
            deltas = [choice.delta async for chunk in stream for choice in chunk.choices]
            response = await caller.responses.create(model="streamco", input=ASKED)
            text = await caller.completions.create(model="streamco", prompt=ASKED)
        async with anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="unused", max_retries=0) as caller:
            message = await caller.messages.create(model="streamco", max_tokens=100, messages=[{"role": "user", "content": ASKED}])
    told = whole.choices[0].message
    assert (getattr(told, "reasoning_content", None), told.content) == (REASONING, CONTENT)
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == REASONING
    assert "".join(delta.content or "" for delta in deltas) == CONTENT
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output_text == CONTENT
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert text.choices[0].text == CONTENT, "this API has no field for reasoning"
