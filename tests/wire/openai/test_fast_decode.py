"""The fast decoders."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from streamco.openai_types import ChatCompletionChunk
from streamco.wire.openai.extended_decode import ExtendedDecoder
from streamco.wire.openai.fast_decode import decode_chat_chunk, decode_text_chunk
from streamco.wire.openai.lenient_decode import build_chunk
from tests.wire.recorded import answer_slowly, read_slowly, recordings


def test_a_text_event_takes_a_chat_chunks_shape() -> None:
    choice = {"text": "Hi", "index": 2, "finish_reason": "stop", "logprobs": {"tokens": ["Hi"]}, "token_ids": [7], "stop_reason": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    value = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 4,
        "model": "m",
        "system_fingerprint": "f",
        "choices": [choice],
        "usage": usage,
    }
    chunk = decode_text_chunk(json.dumps(value).encode())
    [found] = chunk.choices
    assert (found.delta.content, found.index, found.finish_reason, found.logprobs, found.token_ids) == (
        "Hi",
        2,
        "stop",
        {"tokens": ["Hi"]},
        [7],
    )
    assert (chunk.id, chunk.created, chunk.model, chunk.system_fingerprint, chunk.object) == (
        "cmpl-1",
        4,
        "m",
        "f",
        "chat.completion.chunk",
    )
    assert chunk.usage is not None
    assert chunk.usage.total_tokens == 3


def test_missing_fields_have_defaults() -> None:
    assert decode_chat_chunk(b"{}") == ChatCompletionChunk()
    assert decode_text_chunk(b'{"choices":[{}]}').choices[0].delta.content == ""


def _holds(found: Any, sent: Any) -> bool:
    """True if all that was sent is in what was found."""
    if isinstance(sent, dict):
        return all(name in found and _holds(found[name], item) for name, item in sent.items())
    if isinstance(sent, list):
        return len(found) == len(sent) and all(map(_holds, found, sent))
    return bool(found == sent)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"citations":[1]}',
        b'{"choices":[{"seed":1}]}',
        b'{"choices":[{"delta":{"phase":"analysis"}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"extra_content":{}}]}}]}',
    ],
)
def test_unknown_fields_are_left_to_the_decoder_that_keeps_them(payload: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        decode_chat_chunk(payload)
    dumped, sent = ExtendedDecoder().decode(payload).to_dict(), json.loads(payload)
    assert all(_holds(dumped[name], item) for name, item in sent.items())
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        decode_text_chunk(b'{"choices":[{}],"q":1}')


@pytest.mark.parametrize("payload", [b'{"usage":{"queue_time":0.5}}', b'{"usage":{"prompt_tokens_details":{"video_tokens":0}}}'])
def test_unknown_fields_of_a_usage_are_added_to_what_the_fast_decoder_gives(payload: bytes) -> None:
    chunk = decode_chat_chunk(payload)
    ExtendedDecoder().extend_usage(chunk, payload)
    assert chunk == ExtendedDecoder().decode(payload)
    assert _holds(chunk.to_dict()["usage"], json.loads(payload)["usage"])


def test_fields_that_common_servers_send_with_each_token_take_the_fast_decoder() -> None:
    choice = {"delta": {"reasoning_details": [{"type": "reasoning.text"}]}, "native_finish_reason": "end", "content_filter_results": {}}
    chunk = decode_chat_chunk(json.dumps({"provider": "Azure", "obfuscation": "x", "choices": [{**choice, "stop_reason": 5}]}).encode())
    [found] = chunk.choices
    assert (chunk.provider, chunk.obfuscation, found.delta.reasoning_details) == ("Azure", "x", [{"type": "reasoning.text"}])
    assert (found.native_finish_reason, found.content_filter_results, found.stop_reason) == ("end", {}, 5)


@pytest.mark.parametrize("payload", [b"[DONE]", b"", b"{", b'{"choices":5}', b'{"choices":[{"delta":null}]}', b'{"created":1.5}'])
def test_what_does_not_fit_is_refused_as_a_decode_error(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_chat_chunk(payload)


def test_invalid_utf8_is_refused() -> None:
    for decode in (decode_chat_chunk, decode_text_chunk):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):  # the former since msgspec 0.23
            decode(b'{"id":"\xff","choices":[]}')


def test_an_event_without_choices_is_no_text_event() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_text_chunk(b'{"error":{"message":"x"}}')


def decode_text(payload: bytes) -> ChatCompletionChunk:
    """The chunk of a text event; if it has unknown fields, from the lenient decoder."""
    try:
        return decode_text_chunk(payload)
    except msgspec.ValidationError as error:
        assert "unknown field" in str(error)  # noqa: PT017  any other error is none that a recording may have
        return build_chunk(json.loads(payload))


def test_recorded_text_events_decode_to_their_text() -> None:
    for recording in recordings(apis=("completions",)):
        payloads = [event.data for event in read_slowly(recording.body).events if b'"choices"' in event.data]
        text = "".join(choice.delta.content or "" for payload in payloads for choice in decode_text(payload).choices if choice.index == 0)
        assert text == answer_slowly(recording.body).text, recording
