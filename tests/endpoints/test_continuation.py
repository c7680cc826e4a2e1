"""Going on with an answer: what is added to the request, in each endpoint's form."""

from __future__ import annotations

import json
from base64 import b64decode
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.config import SamplingOptions
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.continuation import (
    PREFILL_FIELD,
    BoundaryWhitespace,
    continue_request,
    hand_over,
    prefill_request,
    split_trailing_whitespace,
)
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.token_transfer import PACKED_FIELD, TokenTransfer
from streamco.errors import UsageError
from streamco.events import Partial, StreamEnded, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceLogprobs
from streamco.server.app import serving
from streamco.testing import FakeEngine, ScriptedServer, json_answer, stream_answer
from streamco.testing.endpoint import text_chunk
from streamco.testing.engine import FakeVocabulary
from streamco.wire.openai.requests import encode_request
from streamco.wire.token_frames import TokenCodec
from tests.endpoints.helpers import ask, opened

QUESTION = {"role": "user", "content": "count"}
ASKED = Request(messages=[QUESTION], sampling=SamplingOptions(max_tokens=5), extra={"user": "u"})


def test_a_prefix_is_marked() -> None:
    request = continue_request(ASKED, "one two", "prefix")
    assert request.messages == [QUESTION, {"role": "assistant", "content": "one two", "prefix": True}]
    assert (request.sampling, request.extra) == (ASKED.sampling, ASKED.extra)


def test_a_final_message_is_left_open() -> None:
    request = continue_request(ASKED, "one two", "continue_final_message")
    assert request.messages == [QUESTION, {"role": "assistant", "content": "one two"}]
    assert request.extra == {"user": "u", "continue_final_message": True, "add_generation_prompt": False}
    assert ASKED.messages == [QUESTION]


def test_a_text_prompt_grows() -> None:
    assert continue_request(Request(prompt="a"), "b", "prefix").prompt == "ab"


@pytest.mark.parametrize("how", ["none", "token_ids"])
def test_an_endpoint_that_can_not_is_refused(how: str) -> None:
    with pytest.raises(UsageError, match="continuation"):
        continue_request(ASKED, "x", how)  # type: ignore[arg-type]


def test_token_ids_do_not_go_on_with_text() -> None:
    with pytest.raises(UsageError, match="token ids"):
        continue_request(Request(prompt_ids=[1]), "x", "prefix")


async def test_deepseeks_prefix_goes_to_its_beta_url() -> None:
    async with ScriptedServer() as server, opened(server.url, provider="deepseek", api_key="k") as endpoint:
        here = replace(endpoint._address.provider, continuation_base_url=server.url.replace("/v1", "/beta"))
        endpoint._address = replace(endpoint._address, provider=here)
        await ask(endpoint, ASKED)
        await ask(endpoint, continue_request(ASKED, "one", endpoint.capabilities.continuation))
        assert [request.path for request in server.requests] == ["/v1/chat/completions", "/beta/chat/completions"]


VOCABULARY = "1000:0123456789abcdef"
CODEC = TokenCodec(VOCABULARY, 1000)
BEGUN = Partial(text="one two", ids=(1, 2), vocabulary=VOCABULARY, tokens=2)
STREAMCO = Capabilities(vocabulary=VOCABULARY, takes_token_ids=True, continuation="token_ids")


def test_ids_of_the_servers_vocabulary_go_packed() -> None:
    transfer = TokenTransfer(CODEC)
    assert transfer.takes(BEGUN)
    request = transfer.pack(ASKED, BEGUN)
    assert request.messages == [QUESTION]
    assert request.extra["user"] == "u"
    assert CODEC.decode(request.extra[PACKED_FIELD]) == [1, 2]
    assert CODEC.decode(b64decode(json.loads(encode_request(request.extra))[PACKED_FIELD])) == [1, 2]


@pytest.mark.parametrize("partial", [replace(BEGUN, vocabulary="other"), replace(BEGUN, ids=None, vocabulary=None)])
def test_ids_of_another_vocabulary_go_as_text(partial: Partial) -> None:
    assert not TokenTransfer(CODEC).takes(partial)
    request, _ = hand_over(ASKED, partial, STREAMCO)
    assert request.messages == [QUESTION, {"role": "assistant", "content": "one two"}]
    assert PACKED_FIELD not in request.extra


@pytest.mark.parametrize("vocabulary", [None, VOCABULARY])
def test_ids_go_plain_behind_a_prompt_of_ids(vocabulary: str | None) -> None:
    can = Capabilities(takes_token_ids=True, vocabulary=vocabulary, continuation="continue_final_message")
    request, _ = hand_over(Request(prompt_ids=[7, 8]), BEGUN, can)
    assert request.prompt_ids == [7, 8, 1, 2]


@pytest.mark.parametrize("can", [Capabilities(continuation="continue_final_message"), Capabilities(takes_token_ids=True, vocabulary="x")])
def test_ids_that_a_server_does_not_understand_are_not_sent(can: Capabilities) -> None:
    with pytest.raises(UsageError, match="token ids"):
        hand_over(Request(prompt_ids=[7]), BEGUN, can)


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_a_beginning_without_text_begins_anew(text: str) -> None:
    request, boundary = hand_over(ASKED, Partial(text=text), Capabilities(continuation="prefix"))
    assert (request, boundary) == (ASKED, text)


@pytest.mark.parametrize(
    ("text", "sent", "boundary"),
    [("one", "one", ""), ("one ", "one", " "), ("one.\n\n", "one.", "\n\n"), ("one {\n  \t", "one {", "\n  \t"), (" one", " one", "")],
)
def test_whitespace_at_the_seam_is_held_back(text: str, sent: str, boundary: str) -> None:
    can = Capabilities(continuation="continue_final_message")
    request, held = hand_over(ASKED, Partial(text=text), can)
    assert request.messages is not None
    assert (request.messages[-1]["content"], held) == (sent, boundary)


def test_a_text_prompt_is_held_to_the_same() -> None:
    request, boundary = hand_over(Request(prompt="a"), Partial(text="b\n "), Capabilities(continuation="continue_final_message"))
    assert (request.prompt, boundary) == ("ab", "\n ")


def closed(boundary: BoundaryWhitespace, *pieces: str) -> tuple[str, int]:
    """Text and tokens of an event when the seam has been closed."""
    event = boundary.strip(TokensReceived("s", [text_chunk(piece, ids=[9]) for piece in pieces], len(pieces)))
    assert all(choice.token_ids is None or choice.delta.content in pieces for chunk in event.chunks for choice in chunk.choices)
    return "".join(choice.delta.content or "" for chunk in event.chunks for choice in chunk.choices), event.tokens


@pytest.mark.parametrize(
    ("held", "pieces", "text", "tokens"),
    [
        ("", [" a"], " a", 1),
        (" ", [" a", " b"], "a b", 2),
        (" ", [" ", "a"], "a", 1),
        ("  ", [" ", " ", " a"], " a", 1),
        ("  ", [" a"], "a", 1),
        (" ", ["a", " b"], "a b", 2),
        ("\n\n", ["\n", "\nA", "\n"], "A\n", 2),
        ("\n\n", ["\n", "A"], "A", 1),
        (" ", [], "", 0),
    ],
)
def test_whitespace_that_was_held_back_is_not_shown_twice(held: str, pieces: list[str], text: str, tokens: int) -> None:
    assert closed(BoundaryWhitespace(held), *pieces) == (text, tokens)


@given(st.text(" \n\tab"), st.data())
def test_an_answer_that_writes_it_again_is_whole_however_it_is_cut(answer: str, data: st.DataObject) -> None:
    begun = answer[: data.draw(st.integers(0, len(answer)))]
    sent, held = split_trailing_whitespace(begun)
    rest = answer[len(sent) :]
    places = sorted({0, len(rest), *data.draw(st.lists(st.integers(0, len(rest)), max_size=5))})
    boundary = BoundaryWhitespace(held)
    shown = begun
    for start, stop in pairwise(places):
        shown += closed(boundary, rest[start:stop])[0] if boundary.is_open else rest[start:stop]
    assert shown == answer


def test_log_probabilities_go_with_the_text_that_is_left() -> None:
    chunks = [text_chunk(piece, ids=[9]) for piece in ("\n", " a")]
    for chunk in chunks:
        chunk.choices[0].logprobs = ChoiceLogprobs(content=[{"logprob": -1.0}])
    BoundaryWhitespace("\n ").strip(TokensReceived("s", chunks, 2))
    assert [chunk.choices[0].logprobs for chunk in chunks] == [None, {"content": [{"logprob": -1.0}]}]


async def test_a_stream_gives_whitespace_at_the_seam_once() -> None:
    async with ScriptedServer(stream_answer([" ", "three", " four"])) as server, opened(server.url, provider="vllm") as endpoint:
        answered = await ask(endpoint, replace(ASKED, partial=Partial(text="one two ", tokens=3)))
        assert server.requests[0].json()["messages"][-1]["content"] == "one two"
    assert (answered.text, answered.tokens) == ("three four", 2)


async def test_a_prompt_for_the_chat_api_is_the_message_it_was() -> None:
    async with ScriptedServer() as server, opened(server.url, provider="vllm") as endpoint:
        await ask(endpoint, Request(prompt="count", partial=BEGUN))
        assert server.requests[0].json()["messages"] == [QUESTION, {"role": "assistant", "content": "one two"}]


async def test_nothing_more_to_say_is_a_proper_end() -> None:
    async with ScriptedServer(stream_answer([])) as server, opened(server.url, provider="vllm") as endpoint:
        answered = await ask(endpoint, replace(ASKED, partial=BEGUN))
    assert (answered.text, answered.tokens) == ("", 0)
    assert answered.end is not None
    assert answered.end.finish_reason == "stop"


# Against ``streamco serve`` over an engine of words


async def test_a_probe_learns_what_streamco_serve_takes() -> None:
    engine = FakeEngine()
    async with serving(engine) as url, opened(url, model="fake") as endpoint:
        assert endpoint.capabilities.continuation == "none"
        info = await endpoint.probe()
        assert (info.kind, info.vocabulary) == ("streamco", engine.info.vocabulary)
        assert endpoint.capabilities == Capabilities(
            vocabulary=engine.info.vocabulary,
            takes_token_ids=True,
            continuation="token_ids",
            pre_copy="append",
            context_tokens=engine.info.context_tokens,
        )
        answered = await ask(endpoint, ASKED)
    ids = [token for chunk in answered.chunks for choice in chunk.choices for token in choice.token_ids or ()]
    assert engine.detokenize(ids).decode() == answered.text


async def test_a_beginning_of_ids_arrives_as_those_ids() -> None:
    engine = FakeEngine()
    ids = engine.tokenize(" one two")
    async with serving(engine) as url, opened(url, model="fake") as endpoint:
        await endpoint.probe()
        for request, end in (
            (ASKED, "assistant: one two"),
            (Request(prompt="count"), "user: count\nassistant: one two"),
            (Request(prompt_ids=engine.tokenize("count")), "count one two"),
        ):
            await ask(endpoint, replace(request, partial=Partial(text=" one two", ids=tuple(ids), vocabulary=engine.info.vocabulary)))
            assert list(engine.requests[-1].prompt_ids)[-len(ids) :] == ids
            assert engine.detokenize(engine.requests[-1].prompt_ids).decode().endswith(end)


async def test_a_beginning_of_another_vocabulary_arrives_as_its_text() -> None:
    engine = FakeEngine()
    async with serving(engine) as url, opened(url, model="fake") as endpoint:
        await endpoint.probe()
        await ask(endpoint, replace(ASKED, partial=Partial(text="one two\n ", ids=(1,), vocabulary="other")))
    assert engine.detokenize(engine.requests[-1].prompt_ids).decode() == "user: count\nassistant: one two"


async def test_a_server_with_another_model_by_now_gets_the_text() -> None:
    engine, other = FakeEngine(), FakeEngine(vocabulary=FakeVocabulary("other"))
    async with serving(engine) as url, opened(url, model="fake") as endpoint:
        await endpoint.probe()
        begun = Partial(text="one", ids=tuple(engine.tokenize("one")), vocabulary=engine.info.vocabulary)
        async with serving(other) as elsewhere:
            endpoint._address = replace(endpoint._address, base_url=elsewhere)
            answered = await ask(endpoint, replace(ASKED, partial=begun))
            assert answered.end is not None
        assert other.detokenize(other.requests[-1].prompt_ids).decode().endswith("assistant: one")
        assert (endpoint.capabilities.vocabulary, endpoint.capabilities.continuation) == (None, "continue_final_message")


@pytest.mark.parametrize(
    ("provider", "can", "asks"),
    [
        ("vllm", Capabilities(vocabulary=VOCABULARY, takes_token_ids=True, continuation="continue_final_message"), True),
        ("vllm", None, False),
        ("openai", Capabilities(vocabulary=VOCABULARY), False),
    ],
)
async def test_ids_are_asked_for_where_another_endpoint_may_understand_them(provider: str, can: Capabilities | None, asks: bool) -> None:
    async with ScriptedServer() as server, opened(server.url, provider=provider, api_key="k", capabilities=can) as endpoint:
        await ask(endpoint, ASKED)
        await ask(endpoint, replace(ASKED, extra={"return_token_ids": False}))
        assert [request.json().get("return_token_ids") for request in server.requests] == [True if asks else None, False]


async def test_a_device_gives_spaces_at_the_seam_once() -> None:
    engine = FakeEngine([" three", " four"])
    endpoint = DeviceEndpoint(engine)
    stream = endpoint.open(replace(ASKED, partial=Partial(text=" one two ", tokens=3)))
    chunks: list[ChatCompletionChunk] = []
    while not isinstance(event := await stream.receive(), StreamEnded):
        chunks += event.chunks
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "three four"
    assert engine.detokenize(engine.requests[0].prompt_ids).decode() == "user: count\nassistant: one two"
    await endpoint.aclose()


async def test_a_device_begins_anew_behind_nothing_but_thoughts() -> None:
    engine = FakeEngine()
    endpoint = DeviceEndpoint(engine)
    await endpoint.open(replace(ASKED, partial=Partial(text="", tokens=9))).receive()
    assert engine.detokenize(engine.requests[0].prompt_ids).decode() == "user: count\nassistant:"
    await endpoint.aclose()


# Reading ahead

READING = replace(ASKED, partial=BEGUN, prefill_only=True)
CROWDED = {"n": 2, "tools": [{}], "tool_choice": "auto", "logprobs": True, "top_logprobs": 3, "max_tokens": 9, "max_completion_tokens": 9}


def test_reading_ahead_asks_for_as_little_as_can_be() -> None:
    asked = replace(READING, sampling=SamplingOptions(temperature=0.5, max_tokens=5, stop=("x",)), extra={**CROWDED, "user": "u"})
    warm, append = prefill_request(asked, "warm"), prefill_request(asked, "append")
    assert warm.extra == {"user": "u"}
    assert append.extra == {"user": "u", PREFILL_FIELD: True}
    assert warm.sampling == append.sampling == SamplingOptions(temperature=0.5, max_tokens=1)
    assert (warm.messages, warm.partial, warm.prefill_only) == (asked.messages, BEGUN, False)
    assert asked.extra["n"] == 2


def test_reading_ahead_where_it_is_of_no_use_is_refused() -> None:
    with pytest.raises(UsageError, match="prefill_only: expected an endpoint that can read ahead"):
        prefill_request(READING, "none")


@pytest.mark.parametrize(
    ("provider", "field", "last"),
    [
        ("vllm", "max_tokens", {"role": "assistant", "content": "one two"}),
        ("mistral", "max_tokens", {"role": "assistant", "content": "one two", "prefix": True}),
    ],
)
async def test_a_stock_servers_cache_is_warmed_by_one_token(provider: str, field: str, last: dict[str, object]) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    script = stream_answer([" three"], finish_reason="length", usage=usage)
    async with ScriptedServer(script) as server, opened(server.url, provider=provider, api_key="k") as endpoint:
        assert endpoint.capabilities.pre_copy == "warm"
        answered = await ask(endpoint, replace(READING, extra=CROWDED))
        sent = server.requests[0].json()
    assert (sent["messages"], sent[field]) == ([QUESTION, last], 1)
    assert set(sent) <= {"model", "messages", "max_tokens", "stream", "stream_options", "continue_final_message", "add_generation_prompt"}
    assert (answered.tokens, answered.text) == (1, " three")
    assert answered.end is not None
    assert answered.usage is not None
    assert (answered.end.finish_reason, answered.usage.prompt_tokens) == ("length", 7)


async def test_the_limit_goes_by_the_name_the_server_knows() -> None:
    can = Capabilities(continuation="prefix", pre_copy="warm")
    async with ScriptedServer() as server, opened(server.url, provider="openai", api_key="k", capabilities=can) as endpoint:
        await ask(endpoint, replace(READING, extra=CROWDED))
        sent = server.requests[0].json()
    assert (sent["max_completion_tokens"], "max_tokens" in sent) == (1, False)


async def test_whitespace_at_the_seam_is_no_matter_when_nothing_is_shown() -> None:
    async with ScriptedServer(stream_answer([" "])) as server, opened(server.url, provider="vllm") as endpoint:
        answered = await ask(endpoint, replace(READING, partial=Partial(text="one two ", tokens=3)))
    assert (answered.text, answered.tokens) == (" ", 1)


async def test_an_endpoint_without_continuation_sends_nothing() -> None:
    async with ScriptedServer() as server, opened(server.url) as endpoint:
        assert endpoint.capabilities.pre_copy == "none"
        with pytest.raises(UsageError, match="prefill_only"):
            await endpoint.open(replace(READING, partial=None)).receive()
        assert not server.requests


@pytest.mark.parametrize("is_probed", [True, False])
async def test_streamco_serve_reads_in_rounds_and_says_nothing(is_probed: bool) -> None:
    engine = FakeEngine([" x", " y"])
    words = [" one", " two", " three"]
    async with serving(engine) as url, opened(url, model="fake", provider=None if is_probed else "streamco") as endpoint:
        if is_probed:
            await endpoint.probe()
        assert endpoint.capabilities.pre_copy == "append"
        found = []
        for count in (1, 2, 3):
            ids = tuple(engine.tokenize("".join(words[:count])))
            partial = Partial(text="".join(words[:count]), ids=ids, vocabulary=engine.info.vocabulary, tokens=count)
            answered = await ask(endpoint, replace(READING, partial=partial, prefill_only=count < 3))
            assert answered.usage is not None
            assert answered.usage.prompt_tokens_details is not None
            found.append((answered.usage.prompt_tokens, answered.usage.prompt_tokens_details.cached_tokens, answered.tokens))
    first = found[0][0]
    assert found == [(first, 0, 0), (first + 1, first, 0), (first + 2, first + 1, 2)]
    assert [request.prefill_only for request in engine.requests] == [True, True, False]


async def test_a_server_that_does_not_know_the_field_is_warmed_from_then_on() -> None:
    refusal = json_answer({"error": {"message": "Extra inputs are not permitted: prefill_only"}}, status=422)
    can = Capabilities(continuation="continue_final_message", pre_copy="append")
    async with ScriptedServer(refusal, stream_answer(["x"])) as server, opened(server.url, capabilities=can) as endpoint:
        answered = await ask(endpoint, READING)
        sent = [request.json() for request in server.requests]
        assert endpoint.capabilities.pre_copy == "warm"
    assert answered.end is not None
    assert [(body.get(PREFILL_FIELD), body["max_tokens"]) for body in sent] == [(True, 1), (None, 1)]
