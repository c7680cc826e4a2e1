"""The client between real parts: third-party servers as the remote side, the packaged model as the device, one machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.config import Timeouts
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import EndpointError
from streamco.testing import running_server
from tests.client.helpers import chunks_text, tokens_text
from tests.support.leaks import holding_nothing_new, settled
from tests.support.modes import client_options
from tests.support.peer_servers import running_peer

pytestmark = [pytest.mark.peer, pytest.mark.model]

PATIENT = Timeouts(connect=10, first_token=60, next_token=60, socket=60, cancel=5)
SEA = [{"role": "user", "content": "Write a sentence about the sea."}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
KINDS = ["llama-cpp-python", "xllamacpp"]


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with running_peer(request.param) as url:
        yield url


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, max_sequences=2, context_tokens=512))
    yield engine
    engine.close()


@asynccontextmanager
async def client_of(url: str, engine: LlamaEngine | None = None, **options: Any) -> AsyncIterator[Client]:
    remote = OpenAIEndpoint("smollm2", base_url=url, name="server", timeouts=PATIENT)
    device = DeviceEndpoint(engine) if engine is not None else None
    async with holding_nothing_new():
        async with Client(device, remote, seed=1, **client_options(options)) as client:
            yield client
        if engine is not None:
            await settled(lambda: not engine._loop._live)


@pytest.mark.long
async def test_the_server_alone_streams_and_answers_whole(url: str) -> None:
    async with client_of(url) as client:
        stream = await client.chat.completions.create(messages=SEA, stream=True, **GREEDY)
        text = await chunks_text(stream)
        assert len(text.split()) > 3
        assert stream.report.winner == "server"
        assert stream.report.finish_reason in {"stop", "length"}
        whole = await client.chat.completions.create(messages=SEA, **GREEDY)
        assert whole.choices[0].message.content == text, "greedy answers are the same, streamed or whole"


async def test_a_race_is_won_by_one_side_and_the_other_is_released(url: str, engine: LlamaEngine) -> None:
    async with client_of(url, engine, policy="both", budget=1.0) as client:
        for _ in range(3):
            stream = client.stream(SEA, **GREEDY)
            tokens = [token async for token in stream]
            report = stream.report
            assert len(tokens) > 3
            assert {token.source for token in tokens} == {report.winner}
            assert {part.outcome for part in report.endpoints} == {"won", "lost"}
            assert report.is_final
            assert report.ttft is not None


@pytest.mark.long
async def test_five_turns_of_a_chat_go_to_both_sides_with_everything_said_so_far(url: str, engine: LlamaEngine) -> None:
    async with client_of(url, engine, policy="both", budget=1.0) as client:
        messages: list[dict[str, str]] = []
        lengths = []
        for question in ("My name is Ada.", "What is my name?", "Name a colour.", "Name another.", "Thanks."):
            messages.append({"role": "user", "content": question})
            stream = client.stream(messages, temperature=0, max_tokens=8)
            answer = await tokens_text(stream)
            assert answer
            messages.append({"role": "assistant", "content": answer})
            lengths.append(stream.report.dispatch.prompt_tokens)
        assert lengths == sorted(set(lengths)), "each prompt is longer than the one before"


async def test_an_answer_stopped_halfway_frees_both_sides(url: str, engine: LlamaEngine) -> None:
    async with client_of(url, engine, policy="both", budget=1.0) as client:
        for _ in range(3):
            stream = client.stream(SEA, temperature=0, max_tokens=400)
            async for _ in stream:
                break
            await settled(lambda: not client._settings.endpoints.active)
            assert stream.report.is_final
        assert len(await tokens_text(client.stream(SEA, **GREEDY))) > 10, "the server takes the next request"


async def test_tokens_come_at_the_readers_pace(url: str) -> None:
    async with client_of(url, pace=20) as client:
        times = [token.time async for token in client.stream(SEA, **GREEDY)]
        assert len(times) > 5
        assert all(time >= times[0] + n / 20 - 0.001 for n, time in enumerate(times)), "no token is early"


async def test_several_answers_at_once(url: str, engine: LlamaEngine) -> None:
    async with client_of(url, engine, policy="stochastic", budget=0.5, dispatch=Race(constrained="server")) as client:
        answers = await asyncio.gather(*(tokens_text(client.stream(SEA, temperature=0, max_tokens=6)) for _ in range(6)))
        assert all(answers)


@pytest.mark.long
async def test_learning_from_real_answers_gives_a_profile(url: str, engine: LlamaEngine) -> None:
    async with client_of(url, engine, policy="both", budget=1.0) as client:
        for turn in range(6):
            await tokens_text(client.stream(f"Say {turn}.", temperature=0, max_tokens=2))
        saved = client.profile()
    async with client_of(url, engine, profile=saved) as client:
        stream = client.stream(SEA, **GREEDY)
        assert await tokens_text(stream)
        assert stream.report.dispatch.policy in {"server-constrained", "device-constrained"}, "planned from the profile"


async def test_the_device_unplugged_leaves_the_remote_answer_alone(url: str, tmp_path: Path) -> None:
    remote = OpenAIEndpoint("smollm2", base_url=url, name="server", timeouts=PATIENT)
    async with holding_nothing_new(), Client(tmp_path / "unplugged.gguf", remote) as client:
        stream = client.stream(SEA, **GREEDY)
        assert await tokens_text(stream)
        assert stream.report.winner == "server"
        assert "unplugged.gguf" in stream.report.dispatch.reason


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_killed_in_mid_answer_gives_an_error_with_the_text_so_far(kind: str) -> None:
    peer = running_peer(kind)
    url = await asyncio.to_thread(peer.__enter__)
    killed = False
    text = ""
    try:
        async with client_of(url) as client:
            stream = client.stream(SEA, temperature=0.0, max_tokens=400, extra_body={"ignore_eos": True})
            with pytest.raises(EndpointError) as caught:  # noqa: PT012  the server dies while the answer is read
                async for token in stream:
                    text += token.text
                    if not killed and len(text) > 20:
                        killed = True
                        await asyncio.to_thread(peer.__exit__, None, None, None)
            assert caught.value.partial == text
            assert len(text) > 20
            assert caught.value.endpoint == "server"
            with pytest.raises(EndpointError, match="expected a connection"):
                await tokens_text(client.stream(SEA, **GREEDY))
    finally:
        if not killed:
            await asyncio.to_thread(peer.__exit__, None, None, None)


async def test_the_openai_package_and_the_client_talk_to_the_same_serve() -> None:
    messages: Any = SEA
    async with running_server("--port", "0", "--threads", "1", "--model-name", "smollm2") as url:
        async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as official:
            stream = await official.chat.completions.create(
                model="smollm2", messages=messages, stream=True, stream_options={"include_usage": True}, **GREEDY
            )
            theirs = [chunk async for chunk in stream]
        async with client_of(url) as client:
            ours = [
                chunk
                async for chunk in await client.chat.completions.create(
                    messages=SEA, stream=True, stream_options={"include_usage": True}, **GREEDY
                )
            ]
    assert len(ours) == len(theirs)
    for mine, official_chunk in zip(ours, theirs, strict=True):
        assert [choice.delta.content for choice in mine.choices] == [choice.delta.content for choice in official_chunk.choices]
        assert [choice.finish_reason for choice in mine.choices] == [choice.finish_reason for choice in official_chunk.choices]
    assert ours[-1].usage is not None
    assert theirs[-1].usage is not None
    assert ours[-1].usage.completion_tokens == theirs[-1].usage.completion_tokens == 12
