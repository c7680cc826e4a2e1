"""Reasoning of the served model in all three APIs, streamed and whole, and where an answer goes on after it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from streamco.endpoints.base import Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.events import Partial, StreamEnded
from streamco.openai_types import ChatCompletionChunk
from streamco.testing.engine import FakeEngine
from streamco.wire.token_frames import TokenCodec
from tests.endpoints.test_device_reasoning import HI, THOUGHT, engine
from tests.server.support import CHAT, TEXT, running
from tests.support.named_events import build_message, build_response, read_named

REASONING, CONTENT = "It is far.", "The sky is blue."
ASKED = {"messages": HI}


def joined(events: list[Any], field: str) -> str:
    return "".join(choice["delta"].get(field) or "" for event in events if event != "[DONE]" for choice in event["choices"])


@pytest.mark.parametrize("is_open", [False, True])
async def test_the_chat_api(is_open: bool) -> None:
    made = engine(THOUGHT[2 * is_open :], is_open=is_open)
    async with running(made) as server:
        _, whole = await server.post(CHAT, {**ASKED, "logprobs": True, "return_token_ids": True})
        events = await server.events(CHAT, {**ASKED, "logprobs": True, "return_token_ids": True})
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (REASONING, CONTENT)
    assert (joined(events, "reasoning_content"), joined(events, "content")) == (REASONING, CONTENT)
    ids = [made.vocabulary.id_of(text) for text in THOUGHT[2 * is_open :]]
    assert whole["choices"][0]["token_ids"] == ids, "tags and whitespace included"
    assert [token for event in events[:-1] for choice in event["choices"] for token in choice.get("token_ids") or ()] == ids
    assert whole["usage"]["completion_tokens"] == len(ids)
    assert [each["token"] for each in whole["choices"][0]["logprobs"]["content"]] == THOUGHT[9:]


async def test_the_other_two_apis() -> None:
    async with running(engine()) as server:
        _, response = await server.post("/v1/responses", {"input": "Hi"})
        _, message = await server.post("/v1/messages", {**ASKED, "max_tokens": 100})
        async with server.client.post("/v1/responses", json={"input": "Hi", "stream": True}) as answer:
            responses = build_response(read_named(await answer.read())).parts
        async with server.client.post("/v1/messages", json={**ASKED, "max_tokens": 100, "stream": True}) as answer:
            messages = build_message(read_named(await answer.read())).parts
    reasoning, text = response["output"]
    assert (reasoning["content"][0]["text"], text["content"][0]["text"]) == (REASONING, CONTENT)
    thinking, text = message["content"]
    assert (thinking["thinking"], text["text"]) == (REASONING, CONTENT)
    assert responses == [("reasoning", REASONING), ("message", CONTENT)]
    assert messages == [("thinking", REASONING), ("text", CONTENT)]


async def test_an_answer_without_reasoning_has_no_field_for_it() -> None:
    async with running(engine([" Yes", ".", " <think>"])) as server:
        _, whole = await server.post(CHAT, ASKED)
        events = await server.events(CHAT, ASKED)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": " Yes. <think>", "refusal": None}
    assert not any("reasoning_content" in choice["delta"] for event in events[:-1] for choice in event["choices"])


async def test_text_completions_and_models_that_do_not_think_keep_the_tags() -> None:
    async with running(engine()) as server:
        _, whole = await server.post(TEXT, {"prompt": "Hi"})
    assert whole["choices"][0]["text"] == "".join(THOUGHT)
    async with running(FakeEngine(THOUGHT)) as server:
        _, whole = await server.post(CHAT, ASKED)
    assert whole["choices"][0]["message"]["content"] == "".join(THOUGHT)


async def test_an_answer_that_goes_on_is_content_after_closed_reasoning() -> None:
    made = engine([" sky", " <think>"], is_open=True)
    frame = base64.b64encode(TokenCodec(made.info.vocabulary, made.info.vocabulary_size).encode(made.tokenize("The"))).decode()
    async with running(made) as server:
        _, packed = await server.post(CHAT, {**ASKED, "continuation_tokens_packed": frame})
        begun = [*HI, {"role": "assistant", "content": "The"}]
        _, final = await server.post(CHAT, {"messages": begun, "continue_final_message": True, "add_generation_prompt": False})
    by_ids, by_text = (made.detokenize(request.prompt_ids).decode() for request in made.requests)
    assert by_ids.endswith("<think>\n\n</think>\n\nThe")
    assert by_text == "user: hello\nassistant: The"
    for whole in (packed, final):
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": " sky <think>", "refusal": None}


@pytest.mark.parametrize("partial", [None, Partial(text="The", ids=None, vocabulary=None, tokens=1)])
async def test_the_sdk_reads_a_served_models_reasoning(partial: Partial | None) -> None:
    """A client of this project asks for packed answers, which have no reasoning: it gets another form."""
    chunks: list[ChatCompletionChunk] = []
    async with running(engine()) as server:
        endpoint = OpenAIEndpoint("fake", base_url=f"http://127.0.0.1:{server.runner.addresses[0][1]}/v1", api_key="unused")
        await endpoint.probe()
        stream = endpoint.open(Request(messages=HI, partial=partial))
        while not isinstance(event := await stream.receive(), StreamEnded):
            chunks += event.chunks
        await endpoint.aclose()
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    found = "".join(d.reasoning_content or "" for d in deltas), "".join(d.content or "" for d in deltas)
    assert found == ((REASONING, CONTENT) if partial is None else ("", "".join(THOUGHT)))
