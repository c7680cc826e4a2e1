"""Packed ids to ``streamco serve``: in MessagePack where it takes that, and never more bytes on the wire than the text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.config import SamplingOptions
from streamco.endpoints.base import Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.openai_stream import StreamCall
from streamco.endpoints.token_transfer import PACKED_FIELD, TokenTransfer
from streamco.errors import EndpointStatusError
from streamco.events import Partial
from streamco.server.app import serving
from streamco.testing import FakeEngine, ScriptedServer
from streamco.testing.responses import ScriptedResponse, json_answer, stream_answer
from streamco.wire.openai.msgpack_body import MSGPACK, decode_msgpack
from streamco.wire.openai.msgpack_stream import encode_ending
from streamco.wire.token_frames import TokenCodec
from tests.endpoints.helpers import ask, opened, read_all

msgpack: Any = import_module("msgpack")  # it has no types

VOCABULARY = "49152:0123456789abcdef"
CODEC = TokenCodec(VOCABULARY, 49152)
ASKED = Request(messages=[{"role": "user", "content": "count"}])
BEGUN = Partial(text=" one two", ids=(500, 40_000), vocabulary=VOCABULARY, tokens=2)


def card(**fields: Any) -> ScriptedResponse:
    model = {"id": "m", "object": "model", "owned_by": "streamco", "vocabulary": VOCABULARY, "vocabulary_size": 49152, **fields}
    return json_answer({"object": "list", "data": [model]})


@asynccontextmanager
async def probed(*answers: Any, api: Any = "chat", **fields: Any) -> AsyncIterator[tuple[ScriptedServer, OpenAIEndpoint]]:
    """An endpoint at a scripted server of streamco's, with ``fields`` in the model's card."""
    async with ScriptedServer() as server, opened(server.url, model="m", api=api) as endpoint:
        server.route("/v1/models", card(**fields))
        await endpoint.probe()
        server.requests.clear()
        if answers:
            server.script(*answers)
        yield server, endpoint


async def test_ids_go_in_messagepack_to_a_server_that_takes_it() -> None:
    async with probed(media_types=["application/json", MSGPACK]) as (server, endpoint):
        await ask(endpoint, replace(ASKED, sampling=SamplingOptions(max_tokens=5), extra={"user": "u"}, partial=BEGUN))
        (sent,) = server.requests
    assert sent.headers["content-type"] == MSGPACK
    fields = decode_msgpack(sent.body)
    assert fields[PACKED_FIELD] == CODEC.encode_short([500, 40_000])
    assert (fields["messages"], fields["max_tokens"], fields["user"], fields["stream"]) == (ASKED.messages, 5, "u", True)
    assert "continue_final_message" not in fields


async def test_a_request_that_hands_nothing_over_stays_json() -> None:
    async with probed(media_types=["application/json", MSGPACK]) as (server, endpoint):
        await ask(endpoint, ASKED)
        (sent,) = server.requests
    assert (sent.headers["content-type"], sent.json()["messages"]) == ("application/json", ASKED.messages)


async def test_ids_go_in_json_to_a_server_that_does_not_say_it_takes_messagepack() -> None:
    async with probed() as (server, endpoint):
        await ask(endpoint, replace(ASKED, partial=BEGUN))
        (sent,) = server.requests
    assert sent.headers["content-type"] == "application/json"
    assert sent.json()[PACKED_FIELD].startswith("VEsB")  # "TK", version 1


async def test_a_server_that_refuses_messagepack_by_now_gets_json_in_the_same_answer_and_from_then_on() -> None:
    refusal = json_answer({"error": {"message": "content type: expected application/json"}}, status=415)
    async with probed(refusal, stream_answer([" three"]), stream_answer([]), media_types=[MSGPACK]) as (server, endpoint):
        answered = await ask(endpoint, replace(ASKED, partial=BEGUN))
        await ask(endpoint, replace(ASKED, partial=BEGUN))
    assert answered.text == " three"
    assert [sent.headers["content-type"] for sent in server.requests] == [MSGPACK, "application/json", "application/json"]


INVALID = {"error": {"message": "Invalid JSON in request body"}}


@pytest.mark.parametrize("status", [400, 405, 406, 415, 422])
async def test_a_gateway_that_reads_json_alone_gets_json_in_the_same_answer_and_from_then_on(status: int) -> None:
    answers = json_answer(INVALID, status=status), stream_answer([" three"]), stream_answer([])
    async with probed(*answers, media_types=[MSGPACK]) as (server, endpoint):
        stream = endpoint.open(replace(ASKED, partial=BEGUN))
        answered = await read_all(stream)
        await ask(endpoint, replace(ASKED, partial=BEGUN))
    assert answered.text == " three"
    assert [sent.headers["content-type"] for sent in server.requests] == [MSGPACK, "application/json", "application/json"]
    assert stream.changes == {"MessagePack": f"begun answers go in JSON, because MessagePack was refused ({status})"}


@pytest.mark.parametrize("status", [401, 402, 403, 404, 409, 429])
async def test_a_refusal_for_another_reason_is_not_taken_for_one_of_messagepack(status: int) -> None:
    async with probed(json_answer(INVALID, status=status), media_types=[MSGPACK]) as (server, endpoint):
        assert isinstance((await ask(endpoint, replace(ASKED, partial=BEGUN, max_retries=0))).error, EndpointStatusError)
    assert [sent.headers["content-type"] for sent in server.requests] == [MSGPACK]


async def test_a_request_that_is_refused_in_json_too_leaves_messagepack_in_use() -> None:
    answers = json_answer(INVALID, status=400), json_answer(INVALID, status=400), stream_answer([])
    async with probed(*answers, media_types=[MSGPACK]) as (server, endpoint):
        stream = endpoint.open(replace(ASKED, partial=BEGUN))
        assert isinstance((await read_all(stream)).error, EndpointStatusError)
        await ask(endpoint, replace(ASKED, partial=BEGUN))
    assert [sent.headers["content-type"] for sent in server.requests] == [MSGPACK, "application/json", MSGPACK]
    assert stream.changes == {}


async def test_a_request_in_json_that_is_refused_says_nothing_about_messagepack() -> None:
    async with probed(json_answer(INVALID, status=400), stream_answer([]), media_types=[MSGPACK]) as (server, endpoint):
        assert isinstance((await ask(endpoint, ASKED)).error, EndpointStatusError)
        await ask(endpoint, replace(ASKED, partial=BEGUN))
    assert [sent.headers["content-type"] for sent in server.requests] == ["application/json", MSGPACK]


async def test_ids_that_are_refused_become_text_and_the_stream_says_so() -> None:
    refusal = json_answer({"error": {"message": f"{PACKED_FIELD}: expected another vocabulary"}}, status=400)
    async with probed(refusal, stream_answer([" three"]), media_types=[MSGPACK]) as (server, endpoint):
        stream = endpoint.open(replace(ASKED, partial=BEGUN))
        assert (await read_all(stream)).text == " three"
    assert server.requests[-1].json()["messages"][-1]["content"] == " one two"
    assert stream.changes == {"ids": "begun answers go as text, because packed token ids were refused (400)"}


async def test_the_format_is_asked_for_and_an_older_server_may_answer_in_its_own() -> None:
    opening = {"id": "chatcmpl-1", "created": 5, "model": "m", "vocabulary": VOCABULARY}
    pieces = [msgpack.packb([text, CODEC.pack_bare(ids)]) for text, ids in ((" three", [7]), (" four", [8, 9]))]
    older = ScriptedResponse(headers={"Content-Type": MSGPACK}, steps=[msgpack.packb(opening), *pieces, encode_ending("stop", None)])
    async with probed(older, media_types=[MSGPACK]) as (server, endpoint):
        answered = await ask(endpoint, replace(ASKED, partial=BEGUN))
        (sent,) = server.requests
    assert sent.headers["accept"] == f"{MSGPACK};v=2, */*"
    assert (answered.text, answered.error) == (" three four", None)
    assert not any(choice.token_ids for chunk in answered.chunks for choice in chunk.choices)


@pytest.mark.parametrize(("logprobs", "asks"), [(0, True), (2, True), (True, True), (None, False), (False, False)])
async def test_ids_are_asked_for_where_the_answer_can_not_be_messagepack(logprobs: int | None, asks: bool) -> None:
    api = "chat" if isinstance(logprobs, bool) else "completions"
    request = ASKED if api == "chat" else Request(prompt="count")
    async with probed(api=api, media_types=[MSGPACK]) as (server, endpoint):
        await ask(endpoint, replace(request, extra={"logprobs": logprobs}))
        (sent,) = server.requests
    assert sent.json().get("return_token_ids", False) is asks


@pytest.mark.parametrize("extra", [{"seed": 1 << 70}, {"stop": ["x"] * 5000}])
async def test_what_has_no_form_in_messagepack_goes_in_json(extra: dict[str, Any]) -> None:
    async with probed(media_types=[MSGPACK]) as (server, endpoint):
        await ask(endpoint, replace(ASKED, extra=extra, partial=BEGUN))
        (sent,) = server.requests
    assert sent.headers["content-type"] == "application/json"
    assert PACKED_FIELD in sent.json()


async def test_text_goes_where_it_is_shorter_than_its_ids() -> None:
    digits = Partial(text="7" * 400, ids=(40_000,) * 400, vocabulary=VOCABULARY, tokens=400)
    async with probed(media_types=[MSGPACK]) as (server, endpoint):
        await ask(endpoint, replace(ASKED, partial=digits))
        (sent,) = server.requests
    assert sent.json()["messages"][-1] == {"role": "assistant", "content": "7" * 400}


@pytest.mark.parametrize(
    ("request_", "partial"),
    [(Request(prompt_ids=[7] * 9), replace(BEGUN, text="x")), (ASKED, replace(BEGUN, text="\n\n")), (ASKED, replace(BEGUN, text=""))],
)
async def test_ids_go_where_no_text_can(request_: Request, partial: Partial) -> None:
    async with probed(media_types=[MSGPACK]) as (server, endpoint):
        await ask(endpoint, replace(request_, partial=partial))
        (sent,) = server.requests
    assert CODEC.decode(decode_msgpack(sent.body)[PACKED_FIELD]) == [500, 40_000]


def head_and_body(call: StreamCall) -> int:
    """Bytes of a request as HTTP writes it."""
    size = str(len(call.body))
    lines = [
        f"POST {call.url.raw_path_qs} HTTP/1.1",
        f"Content-Length: {size}",
        *(f"{name}: {value}" for name, value in call.headers.items()),
    ]
    return sum(len(line.encode()) + 2 for line in lines) + 2 + len(call.body)


WORDS = st.text(min_size=1, max_size=6)
SAMPLING = st.builds(
    SamplingOptions, temperature=st.none() | st.floats(0, 2), top_p=st.none() | st.floats(0.1, 1), seed=st.none() | st.integers(0, 9)
)
EXTRA = st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5), max_size=3)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(WORDS, st.integers(0, 49151)), min_size=1, max_size=60),
    st.sampled_from(["chat", "completions"]),
    st.booleans(),
    st.builds(
        SamplingOptions, temperature=st.none() | st.floats(0, 2), top_p=st.none() | st.floats(0.1, 1), seed=st.none() | st.integers(0, 9)
    ),
    st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5), max_size=3),
)
async def test_a_hand_over_is_never_larger_than_the_text(
    tokens: list[tuple[str, int]], api: Any, is_binary: bool, sampling: SamplingOptions, extra: dict[str, Any]
) -> None:
    endpoint = OpenAIEndpoint("m", base_url="http://127.0.0.1:9/v1", provider="streamco", api=api)
    endpoint._transfer = TokenTransfer(CODEC, is_binary)
    text = "".join(word for word, _ in tokens)
    partial = Partial(text=text, ids=tuple(token for _, token in tokens), vocabulary=VOCABULARY, tokens=len(tokens))
    asked = Request(prompt="count", sampling=sampling, extra=extra)
    chosen = await endpoint._prepare(replace(asked, partial=partial))
    endpoint._transfer = None
    as_text = await endpoint._prepare(replace(asked, partial=partial))
    if text.strip():
        assert head_and_body(chosen) <= head_and_body(as_text)
    await endpoint.aclose()


@pytest.mark.parametrize("request_", [ASKED, Request(prompt="count"), Request(prompt_ids=[5, 6])])
async def test_streamco_serve_continues_after_ids_in_messagepack(request_: Request) -> None:
    engine = FakeEngine()
    ids = engine.tokenize(" one two")
    async with serving(engine) as url, opened(url, model="fake") as endpoint:
        assert MSGPACK in (await endpoint.probe()).media_types
        partial = Partial(text=" one two", ids=tuple(ids), vocabulary=engine.info.vocabulary)
        call = await endpoint._prepare(replace(request_, partial=partial))
        answered = await ask(endpoint, replace(request_, partial=partial))
    assert call.headers["Content-Type"] == MSGPACK
    assert answered.error is None
    assert list(engine.requests[-1].prompt_ids)[-len(ids) :] == ids


async def test_what_is_read_ahead_goes_packed_too() -> None:
    engine = FakeEngine()
    ids = engine.tokenize(" one two")
    async with serving(engine) as url, opened(url, model="fake") as endpoint:
        await endpoint.probe()
        partial = Partial(text=" one two", ids=tuple(ids), vocabulary=engine.info.vocabulary)
        reading = replace(ASKED, partial=partial, prefill_only=True)
        call = await endpoint._prepare(reading)
        answered = await ask(endpoint, reading)
    assert (call.headers["Content-Type"], decode_msgpack(call.body)["prefill_only"]) == (MSGPACK, True)
    assert list(engine.requests[-1].prompt_ids)[-len(ids) :] == ids
    assert engine.requests[-1].prefill_only
    assert answered.end is not None
    assert answered.end.finish_reason == "length"
