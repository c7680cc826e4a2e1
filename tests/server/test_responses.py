"""Answers in OpenAI's shapes, read back with the project's own client side parser."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from streamco.engines.base import GenerationEnd, GenerationTimings, TextPiece
from streamco.server.responses import ChatResponse, CompletionResponse, usage_of
from streamco.wire.openai.logprobs import UNLIKELY
from streamco.wire.openai.stream import Api, ChatStreamParser

TIMINGS = GenerationTimings(prompt_tokens=7, reused_tokens=3, completion_tokens=2, prefill_s=0.1, decode_s=0.2)
WORDS = {1: b"one", 2: b" two", 3: "é".encode()[:1], 4: "é".encode()[1:], 5: b"five"}
PIECES = [
    TextPiece("one", (1,), (((1, 0.5), (5, 0.25)),)),
    TextPiece(" two", (2,), (((5, 0.75), (1, 0.125)),)),
    TextPiece("é", (3, 4), (((3, 0.5), (4, 0.25)), ((4, 1.0), (1, 0.0)))),
]


def answer(shape: type[ChatResponse | CompletionResponse], **changes: Any) -> Any:
    fields = {
        "name": "id-1",
        "model": "small",
        "created": 5,
        "detokenize": lambda ids: b"".join(WORDS[token] for token in ids),
        "top": None,
        "wants_ids": False,
        "wants_usage": False,
        "prompt_ids": [9, 8],
    }
    return shape(**{**fields, **changes})


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(block.removeprefix("data: ")) for block in data.decode().split("\n\n") if block and block != "data: [DONE]"]


@pytest.mark.parametrize(("shape", "api"), [(ChatResponse, "chat"), (CompletionResponse, "completions")])
def test_a_stream_reads_back_as_text_finish_and_usage(shape: type[ChatResponse], api: Api) -> None:
    made = answer(shape, wants_usage=True, wants_ids=True)
    parser = ChatStreamParser(api=api)
    chunks = parser.feed(made.opening() + made.events(PIECES) + made.closing(GenerationEnd("stop", TIMINGS)))
    assert parser.error is None
    assert parser.is_done
    assert parser.partial_text() == "one twoé"
    assert parser.finish_reason == "stop"
    assert parser.usage is not None
    assert (parser.usage.prompt_tokens, parser.usage.completion_tokens, parser.usage.total_tokens) == (7, 2, 9)
    ids = [token for chunk in chunks for choice in chunk.choices for token in choice.token_ids or ()]
    assert ids == [1, 2, 3, 4]
    assert {chunk.id for chunk in chunks} == {"id-1"}


def test_the_stream_ends_with_done() -> None:
    assert answer(ChatResponse).closing(GenerationEnd("length", TIMINGS)).endswith(b"data: [DONE]\n\n")


def test_chat_opens_with_the_role_as_openai_does() -> None:
    (event,) = events(answer(ChatResponse).opening())
    assert event["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert event["object"] == "chat.completion.chunk"
    assert answer(CompletionResponse).opening() == b""


def test_ids_of_the_prompt_come_once_and_only_when_wanted() -> None:
    assert events(answer(ChatResponse, wants_ids=True).opening())[0]["prompt_token_ids"] == [9, 8]
    assert events(answer(CompletionResponse, wants_ids=True).opening())[0]["prompt_token_ids"] == [9, 8]
    plain = answer(ChatResponse)
    assert b"token_ids" not in plain.opening() + plain.events(PIECES)


def test_every_piece_is_one_event() -> None:
    assert [event["choices"][0]["delta"]["content"] for event in events(answer(ChatResponse).events(PIECES))] == ["one", " two", "é"]


def test_chunks_say_usage_null_only_when_usage_will_come() -> None:
    assert events(answer(ChatResponse, wants_usage=True).events(PIECES))[0]["usage"] is None
    assert "usage" not in events(answer(ChatResponse).events(PIECES))[0]
    *_, usage = events(answer(ChatResponse, wants_usage=True).closing(GenerationEnd("stop", TIMINGS)))
    assert usage["choices"] == []
    assert usage["usage"] == usage_of(TIMINGS)


def test_a_whole_chat_answer() -> None:
    made = answer(ChatResponse)
    made.add(PIECES[:1])
    made.add(PIECES[1:])
    whole = json.loads(made.whole(GenerationEnd("length", TIMINGS)))
    assert whole["object"] == "chat.completion"
    assert whole["choices"] == [
        {"index": 0, "finish_reason": "length", "logprobs": None, "message": {"role": "assistant", "content": "one twoé", "refusal": None}}
    ]
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_a_whole_text_answer_with_ids() -> None:
    made = answer(CompletionResponse, wants_ids=True)
    made.add(PIECES)
    (choice,) = json.loads(made.whole(GenerationEnd("stop", TIMINGS)))["choices"]
    assert choice["text"] == "one twoé"
    assert choice["token_ids"] == [1, 2, 3, 4]
    assert choice["prompt_token_ids"] == [9, 8]


def test_logprobs_of_chat_hold_each_token_its_bytes_and_alternatives() -> None:
    made = answer(ChatResponse, top=1)
    first = events(made.events(PIECES))[0]["choices"][0]["logprobs"]["content"]
    assert first == [
        {
            "token": "one",
            "logprob": math.log(0.5),
            "bytes": [111, 110, 101],
            "top_logprobs": [{"token": "one", "logprob": math.log(0.5), "bytes": [111, 110, 101]}],
        }
    ]


def test_a_token_that_is_not_among_the_likely_ones_gets_openais_stand_in() -> None:
    entry = events(answer(ChatResponse, top=5).events(PIECES))[1]["choices"][0]["logprobs"]["content"][0]
    assert entry["logprob"] == UNLIKELY
    assert [other["token"] for other in entry["top_logprobs"]] == ["five", "one"]


def test_a_piece_of_two_tokens_knows_the_probability_of_each() -> None:
    entries = events(answer(ChatResponse, top=2).events(PIECES))[2]["choices"][0]["logprobs"]["content"]
    assert [(entry["bytes"], entry["logprob"]) for entry in entries] == [([0xC3], math.log(0.5)), ([0xA9], 0.0)]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2]
    assert entries[1]["top_logprobs"][1]["logprob"] == UNLIKELY


@pytest.mark.parametrize("top", [0, 2])
def test_a_probability_that_is_not_known_is_null(top: int) -> None:
    piece = TextPiece("é", (3, 4))
    chat = events(answer(ChatResponse, top=top).events([piece]))[0]["choices"][0]["logprobs"]["content"]
    assert [(entry["logprob"], entry["top_logprobs"]) for entry in chat] == [(None, []), (None, [])]
    text = events(answer(CompletionResponse, top=top).events([piece]))[0]["choices"][0]["logprobs"]
    assert text["token_logprobs"] == [None, None]


def test_parts_of_a_character_have_different_names_in_completions() -> None:
    found = events(answer(CompletionResponse, top=2).events(PIECES))[2]["choices"][0]["logprobs"]
    assert found["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert found["token_logprobs"] == [math.log(0.5), 0.0]
    assert found["top_logprobs"][0] == {"bytes:\\xc3": math.log(0.5), "bytes:\\xa9": math.log(0.25)}


def test_without_alternatives_the_tokens_own_logprob_is_told() -> None:
    entry = events(answer(ChatResponse, top=0).events(PIECES))[0]["choices"][0]["logprobs"]["content"][0]
    assert entry["logprob"] == math.log(0.5)
    assert entry["top_logprobs"] == []


def test_logprobs_of_completions_count_their_offsets_through_the_stream() -> None:
    made = answer(CompletionResponse, top=2)
    found = [event["choices"][0]["logprobs"] for event in events(made.events(PIECES[:2]) + made.events(PIECES[2:]))]
    assert [each["text_offset"] for each in found] == [[0], [3], [7, 7]]
    assert found[0]["tokens"] == ["one"]
    assert found[0]["top_logprobs"] == [{"one": math.log(0.5), "five": math.log(0.25)}]
    assert answer(CompletionResponse, top=0)._logprobs(PIECES)["top_logprobs"] is None


@pytest.mark.parametrize(("shape", "api"), [(ChatResponse, "chat"), (CompletionResponse, "completions")])
def test_a_piece_cut_by_a_stop_string_has_no_ids_and_is_told_with_the_end(shape: type[ChatResponse], api: Api) -> None:
    """Its ids would make whoever goes on behind them miss the stop string; without its end somebody might go on at all."""
    made = answer(shape, wants_ids=True)
    data = made.opening() + made.events([PIECES[0], TextPiece(" t", (2,), is_cut=True)])
    parser = ChatStreamParser(api=api)
    chunks = parser.feed(data)
    assert (parser.partial_text(), parser.finish_reason, parser.is_complete) == ("one t", "stop", True)
    assert [token for chunk in chunks for choice in chunk.choices for token in choice.token_ids or ()] == [1]
    assert made.closing(GenerationEnd("stop", TIMINGS)) == b"data: [DONE]\n\n"
