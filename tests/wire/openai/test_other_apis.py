"""Answers of other APIs are named, and refused for good."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from streamco.errors import EndpointProtocolError, is_refusal
from streamco.wire.openai.other_apis import find_other_api
from streamco.wire.openai.stream import ChatStreamParser
from tests.wire.openai.events import DONE, chunk, event, read, text_of
from tests.wire.recorded import cuts, recordings

ANTHROPIC = {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": []}}
RESPONSES = {"type": "response.created", "response": {"id": "resp_1", "object": "response", "output": []}}
GEMINI = {"candidates": [{"content": {"parts": [{"text": "Hi"}], "role": "model"}}]}
OLLAMA = {"model": "llama3", "message": {"role": "assistant", "content": "Hi"}, "done": False}
GENERATE = {"model": "llama3", "response": "Hi", "done": False}
STREAMS: list[tuple[dict[str, Any], str]] = [
    (ANTHROPIC, "Anthropic's messages API (event: message_start)"),
    (RESPONSES, "OpenAI's Responses API (event: response.created)"),
    ({"response": {"object": "response"}}, "OpenAI's Responses API"),
    ({"id": "run_1", "object": "thread.run"}, "OpenAI's Assistants API"),
    (GEMINI, "Gemini's API"),
    ({"type": "message-start", "id": "1"}, "Cohere's chat API (event: message-start)"),
    ({"token": {"id": 1, "text": "Hi"}, "generated_text": None}, "text-generation-inference"),
    ({"content": "Hi", "stop": False}, "llama.cpp's /completion"),
]


def refusal(parser: ChatStreamParser) -> EndpointProtocolError:
    """The error of a parser, which is one that lasts."""
    error = parser.error
    assert isinstance(error, EndpointProtocolError)
    assert error.is_lasting
    assert is_refusal(error)
    return error


@pytest.mark.parametrize(("first", "named"), STREAMS)
def test_the_first_event_of_another_api_is_refused_by_name(first: dict[str, Any], named: str) -> None:
    parser, chunks = read(event(first), endpoint="server")
    text = str(refusal(parser))
    assert chunks == []
    assert text.startswith(f"server: expected a chat.completion.chunk stream, got the stream of {named}")
    assert "use a" in text
    assert "base_url" in text


@pytest.mark.parametrize(
    ("first", "named"), [(OLLAMA, "Ollama's /api/chat"), (GENERATE, "Ollama's /api/generate"), (GEMINI, "Gemini's API")]
)
def test_ndjson_of_a_known_api_is_refused_by_name(first: dict[str, Any], named: str) -> None:
    line = json.dumps(first).encode() + b"\n"
    for size in (1, 7, 1000):
        parser, chunks = read(*cuts(line * 2, size))
        assert chunks == []
        assert f"got the NDJSON stream of {named}" in str(refusal(parser))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"id": "msg_1", "type": "message", "content": [{"type": "text", "text": "Hi"}]}, "Anthropic's messages API"),
        ({"id": "resp_1", "object": "response", "output": []}, "OpenAI's Responses API"),
        (GEMINI, "Gemini's API"),
        ([GEMINI, GEMINI], "Gemini's API"),
        ({**OLLAMA, "done": True}, "Ollama's /api/chat"),
    ],
)
def test_a_whole_answer_of_another_api_is_refused_by_name(body: Any, named: str) -> None:
    parser, _ = read(json.dumps(body).encode())
    with pytest.raises(EndpointProtocolError, match=r"expected a chat\.completion, got the answer of") as caught:
        parser.close()
    assert named in str(caught.value)
    assert caught.value.is_lasting


@pytest.mark.parametrize("end", [b"", DONE])
def test_a_whole_stream_of_unknown_events_is_refused_with_the_first_of_them(end: bytes) -> None:
    parser, _ = read(event({"value": "Hi"}), event({"value": " there"}), end)
    with pytest.raises(EndpointProtocolError, match=r"2 events without|3 events without") as caught:
        parser.close()
    assert '{"value": "Hi"}' in str(caught.value)
    assert caught.value.is_lasting


def test_an_event_of_another_kind_inside_a_chat_stream_is_no_other_api() -> None:
    parser, chunks = read(chunk("Hel"), event(ANTHROPIC), chunk("lo"), chunk(finish="stop"), DONE)
    assert (text_of(chunks), parser.error) == ("Hello", None)
    assert find_other_api(json.loads(chunk("Hi")[6:])) is None


@pytest.mark.parametrize(
    "pieces",
    [
        [b": keep-alive\n\n"],
        [chunk("", role="assistant"), event({"type": "ping"})],
        [event({"choices": [], "prompt_filter_results": []})],
        [event({"choices": [], "prompt_filter_results": []}), event({"type": "ping"})],
    ],
)
def test_a_chat_stream_that_broke_off_may_be_asked_for_again(pieces: list[bytes]) -> None:
    parser, _ = read(*pieces)
    with pytest.raises(EndpointProtocolError, match="truncated") as caught:
        parser.close()
    assert not caught.value.is_lasting


def test_the_error_can_be_pickled() -> None:
    parser, _ = read(event(ANTHROPIC))
    assert pickle.loads(pickle.dumps(refusal(parser))).is_lasting


def test_every_recorded_stream_of_another_api_is_refused_by_name() -> None:
    names = {
        "messages": "Anthropic's messages API",
        "responses": "OpenAI's Responses API",
        "assistants": "OpenAI's Assistants API",
        "gemini": "Gemini's API",
        "cohere-chat": "Cohere's chat API",
        "ollama-ndjson": "Ollama's /api/",
    }
    for recording in recordings(apis=tuple(names)):
        for size in (500, len(recording.body)):
            parser, chunks = read(*cuts(recording.body, size))
            assert chunks == [], recording
            assert names[recording.api] in str(refusal(parser)), recording
