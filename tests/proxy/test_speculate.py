"""Speculated answers behind the proxy, read by the openai package: its callers see one ordinary stream."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import openai
import pytest

from streamco.proxy.app import serving
from tests.client.speculating import PROMPT, World

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("no_blocked_loop")]
MESSAGES: Any = [{"role": "user", "content": PROMPT}]


async def test_the_openai_package_reads_a_speculated_stream_and_a_whole_answer() -> None:
    world = World()
    async with (
        world.scripted() as verifier,
        world.speculating(verifier, emit="draft") as client,
        serving(client) as url,
        openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as caller,
    ):
        stream = await caller.chat.completions.create(
            model="streamco", messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
        )
        assert stream.response.headers["x-streamco-mode"] == "speculate"
        chunks = [chunk async for chunk in stream]
        assert "".join([choice.delta.content or "" for chunk in chunks for choice in chunk.choices]) == world.text()
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(world.own(world.prompt_ids()))

        raw = await caller.chat.completions.with_raw_response.create(model="streamco", messages=MESSAGES, temperature=0)
        assert raw.parse().choices[0].message.content == world.text()
        assert raw.headers["x-streamco-winner"] == "device with 127.0.0.1:" + str(verifier.port)
        assert 0 < float(raw.headers["x-streamco-acceptance"]) <= 1
        assert raw.headers["x-streamco-offloaded-share"] == "1.0000"
        assert int(raw.headers["x-streamco-rounds"]) > 3
        assert raw.headers["x-streamco-exact"] == "true"
    world.close()


async def test_the_comment_behind_a_stream_has_the_figures_and_tools_race() -> None:
    world = World()
    async with (
        world.scripted() as verifier,
        world.speculating(verifier) as client,
        serving(client) as url,
        aiohttp.ClientSession() as http,
    ):
        body = {"messages": MESSAGES, "temperature": 0, "stream": True}
        async with http.post(f"{url}/chat/completions", json=body) as response:
            text = await response.text()
        comment = next(line for line in text.splitlines() if line.startswith(": streamco "))
        figures = json.loads(comment.removeprefix(": streamco "))["speculation"]
        assert figures["rounds"] == len(verifier.drafts)
        assert "origin" not in text.replace(comment, "")
        body = {"messages": MESSAGES, "temperature": 0, "logit_bias": {"5": 3}}
        async with http.post(f"{url}/chat/completions", json=body) as response:
            assert response.headers["x-streamco-mode"] == "race"
            assert "not speculated: logit_bias" in response.headers["x-streamco-reason"]
    world.close()
