"""Scripted responses: what the makers put into them is what a client's parser reads."""

from __future__ import annotations

import json

from streamco.testing import DONE, Pause, RecordedRequest, chunk_event, json_answer, sse_event, stream_answer
from streamco.wire.openai.stream import ChatStreamParser
from tests.wire.openai.events import text_of


def body(steps: object) -> bytes:
    assert isinstance(steps, list)
    return b"".join(step for step in steps if isinstance(step, bytes))


def test_an_event_is_one_data_line_of_utf8() -> None:
    assert sse_event("hi") == b"data: hi\n\n"
    assert sse_event({"text": "né\n"}) == 'data: {"text":"né\\n"}\n\n'.encode()
    assert sse_event("[DONE]") == DONE


def test_a_chunk_has_its_content_and_further_fields_in_its_delta() -> None:
    chunk = json.loads(chunk_event("hi", finish_reason="stop", role="assistant").removeprefix(b"data: "))
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]
    assert "usage" not in chunk


def test_usage_alone_comes_without_choices_and_beside_content_with_them() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    alone, beside = chunk_event(usage=usage), chunk_event("hi", usage=usage)
    assert json.loads(alone.removeprefix(b"data: "))["choices"] == []
    assert len(json.loads(beside.removeprefix(b"data: "))["choices"]) == 1


def test_a_streamed_answer_is_a_whole_one() -> None:
    answer = stream_answer(["Hello", " world"], usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})
    parser = ChatStreamParser()
    chunks = parser.feed(body(answer.steps)) + parser.close()
    assert text_of(chunks) == "Hello world"
    assert (parser.finish_reason, parser.is_done) == ("stop", True)
    assert parser.usage is not None
    assert parser.usage.completion_tokens == 2
    assert answer.headers["Content-Type"].startswith("text/event-stream")


def test_an_answer_may_lack_its_finish_reason_and_its_end() -> None:
    parser = ChatStreamParser()
    parser.feed(body(stream_answer(["Hello"], finish_reason=None, done=False).steps))
    assert not parser.is_complete


def test_pauses_come_before_the_first_content_and_between_contents() -> None:
    steps = stream_answer(["a", "b", "c"], first=0.5, gap=0.1, finish_reason=None, done=False).steps
    assert [step for step in steps if isinstance(step, Pause)] == [Pause(0.5), Pause(0.1), Pause(0.1)]
    assert steps[1] == Pause(0.5), "after the chunk with the role"


def test_joined_steps_are_one_write() -> None:
    separate, joined = stream_answer(["a", "b"]), stream_answer(["a", "b"], joined=True)
    assert joined.steps == [body(separate.steps)]


def test_a_json_answer_has_its_length_status_and_headers_and_comes_after_its_steps() -> None:
    answer = json_answer({"error": {}}, status=429, headers={"Retry-After": "1"}, steps=[Pause(0.1)])
    assert (answer.status, answer.framing) == (429, "length")
    assert answer.headers == {"Content-Type": "application/json", "Retry-After": "1"}
    assert list(answer.steps) == [Pause(0.1), b'{"error": {}}']


def test_a_recorded_request_reads_its_body() -> None:
    assert RecordedRequest("POST", "/v1/x?y=1", {"host": "x"}, b'{"a": [1]}').json() == {"a": [1]}
