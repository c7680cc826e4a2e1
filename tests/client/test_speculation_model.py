"""The real pair through a real `streamco serve` process: what comes out is the large model's own greedy text, token for token."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from streamco.client.client import Client
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationTuning
from streamco.client.stream import Retracted, Settled
from streamco.config import SamplingOptions
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.gguf import derived
from streamco.events import TokensReceived
from streamco.testing import running_server
from tests.support.leaks import holding_nothing_new
from tests.support.modes import client_options, drafting

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

PROMPTS = ("Why is the sky blue?", "Write two lines about a fox \U0001f98a and the sea.")
LENGTH = 32
ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def pair(kind: str, **options: object) -> AsyncIterator[Client]:
    """A client with a device that drafts in this quantisation for a Q8_0 of the same model, one thread each, exact arithmetic there."""
    small, large = await asyncio.to_thread(lambda: [derived(packaged_model(), each) for each in (kind, "Q8_0")])
    async with running_server("--model", str(large), "--threads", "1", "--exact", "--port", "0", "--context", "512") as url:
        engine = EngineOptions(context_tokens=512, threads=1, held_sequences=8)
        device = DeviceEndpoint(small, options=engine)
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with holding_nothing_new(), Client(device, server, seed=1, **client_options({"mode": "speculate", **options})) as client:
            yield client


async def own(client: Client, prompt: str) -> list[int]:
    """What the large model writes by itself after the same prompt."""
    binding = drafting(client).binding
    assert binding.verifier is not None
    assert binding.verifier.remote is not None
    engine = binding.device.engine
    assert engine is not None
    prompt_ids = binding.device.prompt_ids(engine, Request(messages=[{"role": "user", "content": prompt}]))
    sampling = SamplingOptions(temperature=0, max_tokens=LENGTH)
    stream = binding.verifier.remote.open(Request(prompt_ids=prompt_ids, sampling=sampling))
    ids: list[int] = []
    while isinstance(event := await stream.receive(), TokensReceived):
        ids += [token for chunk in event.chunks for choice in chunk.choices for token in choice.token_ids or ()]
    return ids


@asynccontextmanager
async def process(model: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A ``streamco serve`` that listens on this port."""
    words = ("-m", "streamco", "serve", "--model", str(model), "--threads", "1", "--exact", "--context", "512", "--port", str(port))
    started = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    try:
        assert started.stdout is not None
        assert (await started.stdout.readline()).startswith(b"listening on ")
        yield started
    finally:
        with suppress(ProcessLookupError):
            started.kill()
        await started.communicate()


@pytest.mark.long
async def test_a_server_killed_in_mid_answer_and_started_again_costs_no_token() -> None:
    small, large = await asyncio.to_thread(lambda: [derived(packaged_model(), each) for each in ("Q4_0", "Q8_0")])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(process(large, port))
        device = DeviceEndpoint(small, options=EngineOptions(context_tokens=512, threads=1, held_sequences=8))
        server = OpenAIEndpoint("large", base_url=f"http://127.0.0.1:{port}/v1", name="server")
        options = Speculate(
            is_adaptive=False,
            patience=60.0,
            tuning=SpeculationTuning(last_patience=90.0, first_verdict_timeout=60.0, verdict_timeout=30.0),
        )
        client = await stack.enter_async_context(Client(device, server, mode=options, seed=1))
        engine = device.engine
        assert engine is not None
        wanted = engine.detokenize(await own(client, PROMPTS[0])).decode(errors="replace")
        stream = client.stream(PROMPTS[0], temperature=0, max_tokens=LENGTH)
        texts: list[str] = []
        async for token in stream:
            texts.append(token.text)
            if len(texts) == 8:
                first.kill()
                await first.wait()
                await stack.enter_async_context(process(large, port))
        assert "".join(texts) == wanted
        figures = stream.report.speculation
        assert figures is not None
        assert figures.is_exact
        assert figures.device == 0
        assert figures.losses >= 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Q4_0", "Q2_K"])
async def test_a_lossless_answer_is_the_large_models_own_token_for_token(kind: str) -> None:
    async with pair(kind, speculation=Speculate(is_adaptive=False)) as client:
        engine = drafting(client).binding.device.engine
        assert engine is not None
        for prompt in PROMPTS:
            wanted = await own(client, prompt)
            stream = client.stream(prompt, temperature=0, max_tokens=LENGTH)
            tokens = [token async for token in stream]
            text = engine.detokenize(wanted).decode(errors="replace")
            assert "".join([token.text for token in tokens]) == text
            figures = stream.report.speculation
            assert figures is not None
            assert figures.is_exact
            assert figures.remote == 0
            assert figures.accepted > 0
            assert figures.bytes_up / figures.rounds < 100
            assert {token.origin for token in tokens} <= {"accepted", "corrected", "bonus"}


async def test_drafts_shown_at_once_come_to_the_same_text() -> None:
    async with pair("Q4_0", speculation=Speculate(is_adaptive=False), emit="draft") as client:
        engine = drafting(client).binding.device.engine
        assert engine is not None
        wanted = engine.detokenize(await own(client, PROMPTS[1])).decode(errors="replace")
        text, final = "", 0
        async for token in client.stream(PROMPTS[1], temperature=0, max_tokens=LENGTH):
            match token:
                case Retracted():
                    text = text[: len(text) - token.characters]
                case Settled():
                    final += token.characters
                case _:
                    text += token.text
                    final += len(token.text) * (token.origin != "draft")
            assert final <= len(text)
        assert text == wanted
        assert final == len(text)


@pytest.mark.long
async def test_a_device_endpoint_without_places_of_its_own_drafts_and_one_loaded_without_says_why_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, engine = await asyncio.to_thread(packaged_model), EngineOptions(context_tokens=256, threads=1)
    async with running_server("--model", str(model), "--threads", "1", "--port", "0", "--context", "256") as url:
        server = OpenAIEndpoint(model.stem, base_url=url, name="server")
        always = Speculate(is_adaptive=False)
        async with (
            holding_nothing_new(),
            Client(DeviceEndpoint(model, options=engine), server, mode=always) as client,
        ):
            stream = client.stream(PROMPTS[0], temperature=0, max_tokens=12)
            assert "".join([token.text async for token in stream])
            figures = stream.report.speculation
            assert figures is not None
            assert figures.accepted > 0
            assert not stream.report.notes
        server = OpenAIEndpoint(model.stem, base_url=url, name="server")
        async with holding_nothing_new(), Client(DeviceEndpoint(model, options=engine), server) as client:
            stream = client.with_options(mode=always).stream(PROMPTS[0], max_tokens=4)
            assert "".join([token.text async for token in stream])
            (note,) = stream.report.notes
            assert note.startswith("not speculated: device: expected an engine with EngineOptions(held_sequences=...) above 0")
    assert [each.getMessage() for each in caplog.records if "answers are not speculated: device: expected" in each.getMessage()]
