"""The whole chain with real parts: openai package, proxy, the packaged model as the device, ``streamco serve`` as the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from streamco.proxy.app import serving
from streamco.proxy.config import parse_config
from streamco.proxy.from_config import build_client, build_options
from streamco.testing import running_server
from tests.support.leaks import settled
from tests.support.peer_servers import running_peer

pytestmark = [pytest.mark.model, pytest.mark.peer]

SEA: Any = [{"role": "user", "content": "Write a sentence about the sea."}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
CONFIG = """
[proxy]
port = 0
[device]
model = "packaged"
threads = 1
context = 512
[[server]]
model = "cloud"
base_url = "{url}"
name = "remote"
prices = {{ prompt = 1, completion = 2 }}
[dispatch]
policy = "{policy}"
"""


@asynccontextmanager
async def chain(policy: str) -> AsyncIterator[tuple[Any, openai.AsyncOpenAI]]:
    """The proxy's client, and a caller of the proxy."""
    options = ("--port", "0", "--threads", "1", "--context", "512", "--model-name", "cloud")
    async with running_server(*options) as url:
        config = parse_config(CONFIG.format(url=url, policy=policy))
        async with (
            build_client(config, {}) as client,
            serving(client, build_options(config, environ={})) as base_url,
            openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as caller,
        ):
            yield client, caller


@pytest.mark.long
async def test_both_sides_race_and_the_answer_is_the_same_streamed_and_whole() -> None:
    async with chain("both") as (_, caller):
        raw = await caller.chat.completions.with_raw_response.create(model="streamco", messages=SEA, **GREEDY)
        stream = await caller.chat.completions.create(model="cloud", messages=SEA, stream=True, **GREEDY)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    whole = raw.parse()
    assert whole.choices[0].message.content
    assert streamed == whole.choices[0].message.content  # the same model on both sides, and greedy
    assert raw.headers["x-streamco-winner"] in {"device", "remote"}
    assert raw.headers["x-streamco-policy"] == "both"


@pytest.mark.long
@pytest.mark.parametrize(("policy", "winner"), [("device-only", "device"), ("server-only", "remote")])
async def test_one_side_alone_answers(policy: str, winner: str) -> None:
    async with chain(policy) as (_, caller):
        raw = await caller.chat.completions.with_raw_response.create(model="streamco", messages=SEA, **GREEDY)
        completion = await caller.completions.create(model="streamco", prompt="Write a sentence about the sea.", **GREEDY)
    answer = raw.parse()
    assert raw.headers["x-streamco-winner"] == winner
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert completion.choices[0].text == answer.choices[0].message.content  # a prompt is a user's message


@pytest.mark.long
async def test_closing_a_stream_frees_the_devices_sequence() -> None:
    async with chain("device-only") as (client, caller):
        stream = await caller.chat.completions.create(model="streamco", messages=SEA, stream=True, max_tokens=400)
        await anext(stream)
        await stream.close()
        await settled(lambda: not client._settings.endpoints.active)


async def test_a_probed_server_of_the_devices_model_is_handed_token_ids() -> None:
    with running_peer("xllamacpp") as url:
        section = CONFIG.format(url=url, policy="both").replace('model = "cloud"', 'model = "cloud"\nprobe = true')
        async with build_client(parse_config(section), {}) as client:
            device, server = client._settings.endpoints.endpoints.values()
            assert server.capabilities.continuation == "token_ids"
            assert server.capabilities.vocabulary == device.capabilities.vocabulary is not None
