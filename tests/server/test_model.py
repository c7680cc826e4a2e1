"""The server over the packaged model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest

from streamco.emulation.step_emulation import StepEmulator
from streamco.emulation.step_times import StepTimes
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from tests.server.support import CHAT, HELLO, TEXT, Running, contents, running

pytestmark = pytest.mark.model

GREEDY = {**HELLO, "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=512, max_sequences=4))
    yield engine
    engine.close()


async def test_streamed_and_whole_answers_are_the_same(engine: LlamaEngine) -> None:
    async with running(engine) as server:
        events = await server.events(CHAT, GREEDY)
        _, whole = await server.post(CHAT, GREEDY)
    assert "".join(contents(events)) == whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 8
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_ids_of_an_answer_continue_it(engine: LlamaEngine) -> None:
    async with running(engine) as server:
        _, whole = await server.post(CHAT, {**GREEDY, "return_token_ids": True})
        choice = whole["choices"][0]
        prompt = choice["prompt_token_ids"] + choice["token_ids"][:4]
        _, rest = await server.post(TEXT, {"prompt": prompt, "temperature": 0, "max_tokens": 4, "return_token_ids": True})
    assert rest["choices"][0]["token_ids"] == choice["token_ids"][4:]


async def test_a_final_message_is_continued(engine: LlamaEngine) -> None:
    messages = [{"role": "user", "content": "Count to five."}, {"role": "assistant", "content": "1, 2, 3,"}]
    async with running(engine) as server:
        _, body = await server.post(CHAT, {"messages": messages, "continue_final_message": True, "temperature": 0, "max_tokens": 3})
    assert body["choices"][0]["message"]["content"].strip().startswith("4")


async def test_a_stop_string_ends_the_answer_and_is_not_in_it(engine: LlamaEngine) -> None:
    async with running(engine) as server:
        _, free = await server.post(CHAT, GREEDY)
        text = free["choices"][0]["message"]["content"]
        stop = text.split()[2]
        _, body = await server.post(CHAT, {**GREEDY, "stop": [stop]})
    assert body["choices"][0]["message"]["content"] == text[: text.index(stop)]
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_log_probabilities_of_greedy_tokens_are_the_best(engine: LlamaEngine) -> None:
    async with running(engine) as server:
        _, body = await server.post(CHAT, {**GREEDY, "logprobs": True, "top_logprobs": 3})
    for entry in body["choices"][0]["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 3
        assert entry["token"] == entry["top_logprobs"][0]["token"]
        assert -20 < entry["logprob"] <= 0


async def test_a_prompt_beyond_the_context_is_400(engine: LlamaEngine) -> None:
    async with running(engine) as server:
        status, body = await server.post(TEXT, {"prompt": "word " * 600})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


async def test_more_requests_than_sequences_are_queued_and_all_answered(engine: LlamaEngine) -> None:
    async def ask(server: Running, number: int) -> Any:
        return await server.events(CHAT, {**GREEDY, "max_tokens": 3 + number % 3})

    async with running(engine) as server:
        answers = await asyncio.gather(*(ask(server, number) for number in range(12)))
        assert server.service.active == 0
    assert all(answer[-1] == "[DONE]" for answer in answers)


async def test_a_client_that_leaves_frees_its_sequence_for_the_next(engine: LlamaEngine) -> None:
    async with running(engine, max_streams=1) as server:
        response = await server.client.post(CHAT, json={**HELLO, "stream": True, "max_tokens": 400, "ignore_eos": True})
        await response.content.readany()
        response.close()
        while server.service.admission.present:
            await asyncio.sleep(0.001)
        assert (await server.post(CHAT, GREEDY))[0] == 200


def test_imposed_step_times_are_a_lower_bound_on_every_step() -> None:
    slow = StepTimes(name="slow", source="here", license="MIT", decode_ms=((1, 60.0),), prefill_ms=((32, 150.0), (64, 300.0)))
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=256, max_sequences=2), pace=StepEmulator(slow))

    async def ask() -> tuple[float, dict[str, Any]]:
        async with running(engine) as server:
            begun = perf_counter()
            _, body = await server.post(CHAT, {**GREEDY, "ignore_eos": True})
            return perf_counter() - begun, body

    try:
        took, body = asyncio.run(ask())
    finally:
        engine.close()
    assert body["usage"]["completion_tokens"] == 8
    assert took >= 0.15 + 7 * 0.06 - 0.005  # imposed times are lower bounds, so this holds on any machine
