"""Answers of other APIs are named, and refused for good."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from streamco.endpoints.retry import is_transient
from streamco.errors import EndpointProtocolError, EndpointStatusError, is_refusal
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
    assert not caught.value.is_lasting, "it isn't known to be another API"
    assert not is_refusal(caught.value)


BARE_ERRORS: list[tuple[dict[str, Any], int, str]] = [
    ({"code": "Throttling.RateQuota", "message": "Requests rate limit exceeded"}, 429, "Requests rate limit exceeded"),  # DashScope
    ({"object": "error", "message": "overloaded", "code": 503}, 503, "overloaded"),  # FastChat, old vLLM
    ({"object": "error", "message": "no more memory", "code": 50001}, 500, "no more memory"),
    ({"detail": "Engine is overloaded"}, 500, "Engine is overloaded"),  # FastAPI
    ({"status": 401, "message": "bad key"}, 401, "bad key"),
]


@pytest.mark.parametrize("end", [b"", DONE])
@pytest.mark.parametrize(("error", "status", "message"), BARE_ERRORS)
def test_an_error_without_the_word_is_an_error_with_its_status(error: dict[str, Any], status: int, message: str, end: bytes) -> None:
    for body in (event(error) + end, json.dumps(error).encode() + b"\n\n" + end, json.dumps(error).encode()):
        parser, _ = read(body)
        with pytest.raises(EndpointStatusError, match=message) as caught:
            parser.close()
        assert caught.value.status == status
        assert is_refusal(caught.value) == (status == 401)


def test_an_error_body_that_done_follows_is_no_ndjson() -> None:
    parser, _ = read(b'{"error":{"message":"overloaded","code":503}}\n\ndata: [DONE]\n\n')
    assert isinstance(parser.error, EndpointStatusError)
    assert parser.error.status == 503


def test_a_bare_error_ends_a_stream_that_has_begun_also_if_the_connection_stays_open() -> None:
    parser, chunks = read(chunk("Hel"), event({"object": "error", "message": "overloaded", "code": 503}), chunk("lo"))
    assert text_of(chunks) == "Hel"
    assert isinstance(parser.error, EndpointStatusError)
    assert (parser.error.status, parser.error.partial) == (503, "Hel")


@pytest.mark.parametrize("notice", [{"message": "queued"}, {"code": 0, "message": "success"}, {"status": "queued", "position": 3}])
def test_a_notice_before_the_answer_is_no_error(notice: dict[str, Any]) -> None:
    parser, chunks = read(event(notice), chunk("Hi"), chunk(finish="stop"), DONE)
    assert (text_of(chunks), parser.error) == ("Hi", None)


@pytest.mark.parametrize("event_bytes", [event({"status": "queued", "position": 3}), event({"type": "ping"}), b"data: Sure\n\n"])
def test_an_answer_that_is_not_understood_may_be_asked_for_again(event_bytes: bytes) -> None:
    """A text in place of JSON may be the error page of a gateway."""
    parser, _ = read(event_bytes)
    with pytest.raises(EndpointProtocolError) as caught:
        parser.close()
    assert is_transient(caught.value)


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
