"""Events with fields that the types don't declare."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from streamco.openai_types import further_fields
from streamco.wire.openai.assembler import assemble
from streamco.wire.openai.extended_decode import ExtendedDecoder
from streamco.wire.openai.fast_decode import decode_chat_chunk, decode_text_chunk
from streamco.wire.openai.stream import ChatStreamParser
from tests.wire.openai.events import chunk, event, read, text_of
from tests.wire.recorded import read_slowly, recordings

SGLANG: dict[str, Any] = {
    "id": "1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "delta": {"role": None, "content": " hello", "reasoning_content": None, "tool_calls": None},
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }
    ],
    "usage": None,
}
TEXT_CHOICE: dict[str, Any] = {"index": 0, "text": " hello", "logprobs": None, "finish_reason": None, "stop_reason": None}
VLLM_TEXT: dict[str, Any] = {
    "id": "1",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [{**TEXT_CHOICE, "prompt_token_ids": None, "prompt_logprobs": None, "token_ids": None}],
    "usage": None,
}


def test_what_sglang_vllm_and_litellm_send_with_each_token_takes_the_fast_decoder() -> None:
    assert decode_chat_chunk(json.dumps(SGLANG).encode()).choices[0].delta.content == " hello"
    assert decode_chat_chunk(json.dumps({**SGLANG, "stream_options": {"include_usage": True}}).encode()).stream_options is not None
    assert decode_text_chunk(json.dumps(VLLM_TEXT).encode()).choices[0].delta.content == " hello"


def test_recorded_streams_of_litellm_take_the_fast_decoder() -> None:
    for recording in recordings(apis=("chat",), provider="litellm"):
        for sent in read_slowly(recording.body).events:
            if b'"choices"' in sent.data:
                decode_chat_chunk(sent.data)


def test_the_stop_string_that_sglang_found_is_in_the_answer() -> None:
    end = {**SGLANG, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "matched_stop": "END"}]}
    _, chunks = read(event(SGLANG), event(end))
    whole = assemble(chunks)
    assert (chunks[-1].choices[0].matched_stop, whole.choices[0].matched_stop) == ("END", "END")
    assert whole.to_dict()["choices"][0]["matched_stop"] == "END"


def test_a_text_event_keeps_its_further_fields_as_a_chat_event_does() -> None:
    choice = {**TEXT_CHOICE, "prompt_token_ids": [1, 2], "odd": {"a": 1}}
    value = {**VLLM_TEXT, "choices": [choice], "q": 1, "usage": {"prompt_tokens": 1, "queue_time": 2}}
    with pytest.raises(msgspec.ValidationError):
        decode_text_chunk(json.dumps(value).encode())
    found = ExtendedDecoder("completions").decode(json.dumps(value).encode())
    assert found.choices[0].delta.content == " hello"
    assert further_fields(found) == {"q": 1}
    assert further_fields(found.choices[0]) == {"prompt_token_ids": [1, 2], "odd": {"a": 1}}
    assert found.usage is not None
    assert further_fields(found.usage) == {"queue_time": 2}


def test_an_unknown_field_that_is_null_is_no_field() -> None:
    _, [found] = read(chunk("Hi", top={"odd": None}))
    assert further_fields(found) == {}


def test_after_an_event_with_unknown_fields_the_next_is_decoded_once() -> None:
    decoder = ExtendedDecoder()
    fast = decoder.usual
    decoder.decode(b'{"choices":[],"q":1}')
    assert decoder.usual == decoder.decode
    decoder.decode(b'{"choices":[]}')
    assert decoder.usual is fast


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize("levels", [101, 200, 400, 900, 5000])
@pytest.mark.parametrize("name", [b"deep", b"reasoning_details"])
def test_an_event_that_is_nested_too_deep_is_an_error_of_the_stream(levels: int, name: bytes) -> None:
    """In a declared field, the levels are counted from a length on with which walking them could overflow the stack."""
    deep = b'data: {"choices":[{"index":0,"delta":{"content":"a","%s":%s}}]}\n\n' % (name, nested(levels))
    for before in (b"", chunk("Hi", phase="a")):
        parser, chunks = read(before + deep)
        if name == b"deep" or len(deep) > 800:
            assert "expected a JSON chunk" in str(parser.error)
            assert len(chunks) == bool(before)
        assert all(each.model_dump() for each in chunks)
        assert assemble(chunks).model_dump_json()


def test_fields_with_too_many_elements_are_dropped_and_the_text_stays() -> None:
    wide = chunk("a", x=[{}] * 30_000)
    parser, chunks = read(*[wide] * 40)
    kept = [each for each in chunks if further_fields(each.choices[0].delta)]
    assert (text_of(chunks), parser.error) == ("a" * 40, None)
    assert parser.has_dropped_fields
    assert 2 <= len(kept) <= 10


def test_no_recorded_answer_loses_fields_even_if_it_goes_on_a_hundred_times_as_long() -> None:
    for recording in recordings(apis=("chat",)):
        if any(name in recording.provider for name in ("perplexity", "huggingface", "azure")):
            parser = ChatStreamParser()
            events = [b"data: " + sent.data + b"\n\n" for sent in read_slowly(recording.body).events if b'"choices"' in sent.data]
            for _ in range(max(1, min(100, 5000 // max(1, len(events))))):
                for each in events:
                    parser.feed(each)
            assert not parser.has_dropped_fields, recording
