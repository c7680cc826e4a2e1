"""Requests that only read: nothing is said, the usage tells what was kept, and what follows finds it."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import pytest

from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.testing import FakeEngine
from streamco.wire.token_frames import TokenCodec
from tests.server.support import CHAT, HELLO, TEXT, contents, running, until

READ = {"prefill_only": True}
ASKED: dict[str, dict[str, Any]] = {CHAT: HELLO, TEXT: {"prompt": "Once upon a time"}}


def cached(body: dict[str, Any]) -> tuple[int, int, int]:
    """Prompt tokens, those found in the cache, completion tokens."""
    usage = body["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_whole_answer_has_no_text_and_the_usage(path: str) -> None:
    engine = FakeEngine()
    async with running(engine) as server:
        status, body = await server.post(path, {**ASKED[path], **READ})
    (choice,) = body["choices"]
    tokens = len(engine.requests[0].prompt_ids)
    assert (status, choice["finish_reason"], cached(body)) == (200, "length", (tokens, 0, 0))
    assert (choice["message"]["content"] if path == CHAT else choice["text"]) == ""


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": {"include_usage": True}}])
async def test_a_stream_ends_with_the_usage_asked_for_or_not(path: str, options: dict[str, Any]) -> None:
    async with running(FakeEngine()) as server:
        *events, usage, done = await server.events(path, {**ASKED[path], **READ, **options})
    assert (contents(events), done, usage["choices"]) == ([], "[DONE]", [])
    assert cached(usage)[2] == 0
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_false_and_null_are_an_ordinary_request() -> None:
    async with running(FakeEngine("one two")) as server:
        for value in (False, None):
            _, body = await server.post(TEXT, {**ASKED[TEXT], "prefill_only": value})
            assert body["choices"][0]["text"] == "one two"


async def test_what_was_read_is_found_again() -> None:
    engine = FakeEngine("three four")
    codec = TokenCodec(engine.info.vocabulary, engine.info.vocabulary_size)

    def begun(text: str) -> dict[str, Any]:
        return {**HELLO, "continuation_tokens_packed": b64encode(codec.encode(engine.tokenize(text))).decode()}

    async with running(engine) as server:
        _, first = await server.post(CHAT, {**begun(" one"), **READ})
        _, second = await server.post(CHAT, {**begun(" one two"), **READ})
        _, answer = await server.post(CHAT, begun(" one two two"))
    length = cached(first)[0]
    assert [cached(body) for body in (first, second, answer)] == [(length, 0, 0), (length + 1, length, 0), (length + 2, length + 1, 2)]


async def test_sampling_fields_change_nothing_and_are_still_checked() -> None:
    async with running(FakeEngine()) as server:
        asked = {**HELLO, **READ, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "stop": "Hello", "temperature": 0}
        status, body = await server.post(CHAT, asked)
        assert (status, body["choices"][0]["finish_reason"], cached(body)[2]) == (200, "length", 0)
        status, body = await server.post(CHAT, {**asked, "temperature": 9})
        assert (status, body["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize("value", [1, "yes", [], {}])
async def test_anything_but_a_boolean_is_refused_by_the_fields_name(value: Any) -> None:
    async with running() as server:
        status, body = await server.post(CHAT, {**HELLO, "prefill_only": value})
    assert (status, body["error"]["param"]) == (400, "prefill_only")
    assert body["error"]["message"].startswith("prefill_only: expected bool")


async def test_a_prompt_that_does_not_fit_is_refused() -> None:
    async with running(FakeEngine(context_tokens=4)) as server:
        status, body = await server.post(TEXT, {"prompt": "a b c d e", **READ})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_client_that_leaves_stops_the_reading() -> None:
    engine = FakeEngine(mode="manual")
    async with running(engine) as server:
        asking = asyncio.create_task(server.post(CHAT, {**HELLO, **READ}))
        await until(lambda: engine.generations)
        asking.cancel()
        await until(lambda: engine.generations[0].is_cancelled)
    assert engine.kept == []


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("exact", [False, True])
async def test_a_real_model_reads_an_answer_in_rounds(exact: bool) -> None:
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=256, max_sequences=2, exact=exact))
    codec = TokenCodec(engine.info.vocabulary, engine.info.vocabulary_size)
    ids = engine.tokenize(" one two three four five six seven eight nine ten eleven twelve")

    def begun(count: int) -> dict[str, Any]:
        return {**HELLO, "temperature": 0, "max_tokens": 4, "continuation_tokens_packed": b64encode(codec.encode(ids[:count])).decode()}

    try:
        async with running(engine) as server:
            _, fresh = await server.post(CHAT, {**HELLO, "max_tokens": 1})
            prompt, found = fresh["usage"]["prompt_tokens"], fresh["usage"]["prompt_tokens"]
            for count in (3, 7, 10):
                _, body = await server.post(CHAT, {**begun(count), **READ})
                assert cached(body) == (prompt + count, found, 0)
                found = prompt + count
            _, answer = await server.post(CHAT, begun(11))
        assert cached(answer)[:2] == (prompt + 11, prompt + 10)
    finally:
        engine.close()
