"""The fast decoders."""

from __future__ import annotations

import json

import msgspec
import pytest

from streamco.openai_types import ChatCompletionChunk
from streamco.wire.openai.fast_decode import decode_chat_chunk, decode_text_chunk
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


def test_unknown_fields_are_dropped_and_missing_ones_have_defaults() -> None:
    assert decode_chat_chunk(b'{"obfuscation":"xyz","citations":[1]}') == ChatCompletionChunk()
    assert decode_text_chunk(b'{"choices":[{}],"p":1}').choices[0].delta.content == ""


@pytest.mark.parametrize("payload", [b"[DONE]", b"", b"{", b'{"choices":5}', b'{"choices":[{"delta":null}]}', b'{"created":1.5}'])
def test_what_does_not_fit_is_refused_as_a_decode_error(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_chat_chunk(payload)


def test_invalid_utf8_is_refused_as_such() -> None:
    for decode in (decode_chat_chunk, decode_text_chunk):
        with pytest.raises(UnicodeDecodeError):
            decode(b'{"id":"\xff","choices":[]}')


def test_an_event_without_choices_is_no_text_event() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_text_chunk(b'{"error":{"message":"x"}}')


def test_recorded_text_events_decode_to_their_text() -> None:
    for recording in recordings(apis=("completions",)):
        payloads = [event.data for event in read_slowly(recording.body).events if b'"choices"' in event.data]
        text = "".join(
            choice.delta.content or "" for payload in payloads for choice in decode_text_chunk(payload).choices if choice.index == 0
        )
        assert text == answer_slowly(recording.body).text, recording
