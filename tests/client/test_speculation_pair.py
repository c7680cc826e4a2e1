"""A real pair of models over real sockets: a 0.5B drafts, and what comes out is the 1.5B's own greedy text, token for token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamco.client.client import Client
from streamco.client.modes.speculation.mode import Speculate
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.testing import running_server
from tests.support.leaks import holding_nothing_new
from tests.support.pair import pair_model

pytestmark = [pytest.mark.pair, pytest.mark.timeout(400)]  # the first run derives a model, which takes a minute

PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Why do leaves fall in autumn? Answer in two sentences.",
)
LENGTH = 24


@pytest.fixture(scope="module")
def models() -> tuple[Path, Path]:
    """The device's model and the server's."""
    return pair_model("0.5B"), pair_model("1.5B", "Q4_0")


@asynccontextmanager
async def pair(small: Path, large: Path) -> AsyncIterator[tuple[Client, str]]:
    """A client over the pair, one thread each, with exact arithmetic at the server; and the server's URL."""
    async with running_server("--model", str(large), "--threads", "1", "--exact", "--port", "0", "--context", "512") as url:
        device = DeviceEndpoint(small, options=EngineOptions(context_tokens=512, threads=1, held_sequences=8))
        server = OpenAIEndpoint(large.stem, base_url=url, name="server")
        options = Speculate(is_adaptive=False)
        async with holding_nothing_new(), Client(device, server, mode=options, seed=1) as client:
            yield client, url


async def own(model: str, url: str, prompt: str) -> str:
    """What the server writes by itself."""
    async with Client(server=OpenAIEndpoint(model, base_url=url, name="alone")) as client:
        return "".join([token.text async for token in client.stream(prompt, temperature=0, max_tokens=LENGTH)])


@pytest.mark.long
async def test_drafts_of_a_smaller_model_come_to_the_larger_ones_own_text(models: tuple[Path, Path]) -> None:
    async with pair(*models) as (client, url):
        for prompt in PROMPTS:
            wanted = await own(models[1].stem, url, prompt)
            stream = client.stream(prompt, temperature=0, max_tokens=LENGTH)
            text = "".join([token.text async for token in stream])
            assert text == wanted
            assert len(text) > LENGTH
            figures = stream.report.speculation
            assert figures is not None
            assert figures.is_exact
            assert figures.device == figures.remote == 0
            assert figures.accepted > 0
