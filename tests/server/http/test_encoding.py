"""OpenAI's objects as bytes."""

from __future__ import annotations

import json

from streamco.server.http.encoding import CHAT, COMPLETION, event, make_choice


def test_an_event_is_one_line_of_json_and_an_empty_line() -> None:
    data = event({"text": "two\nlines\u2028 and a ü"})
    assert data.startswith(b"data: {")
    assert data.endswith(b"}\n\n")
    assert data.count(b"\n") == 2
    assert json.loads(data[6:])["text"] == "two\nlines\u2028 and a ü"


def test_a_choice_says_null_for_what_it_does_not_have() -> None:
    assert make_choice(1, "delta", {"content": "a"}) == {"index": 1, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}
    assert make_choice(0, "text", "a", logprobs=[1], finish_reason="stop")["finish_reason"] == "stop"


def test_ids_say_which_api_they_are_of_and_differ() -> None:
    ids = {CHAT.new_id(), CHAT.new_id(), COMPLETION.new_id()}
    assert len(ids) == 3
    assert sorted(each.partition("-")[0] for each in ids) == ["chatcmpl", "chatcmpl", "cmpl"]


def test_a_chunk_of_a_chat_is_named_differently_from_the_whole() -> None:
    assert (CHAT.chunk, CHAT.whole) == ("chat.completion.chunk", "chat.completion")
    assert COMPLETION.chunk == COMPLETION.whole == "text_completion"
