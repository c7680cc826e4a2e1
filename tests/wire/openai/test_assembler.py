"""Whole answers out of chunks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.openai_types import (
    ChatCompletion,
    ChatCompletionChunk,
    ChoiceDelta,
    ChunkChoice,
    CompletionUsage,
    FunctionDelta,
    ToolCallDelta,
)
from streamco.wire.openai.assembler import CompletionAssembler, assemble
from streamco.wire.openai.json_body import split_answer
from tests.support.calls import function_of
from tests.wire.openai.events import chunk, read, usage_chunk


def of(*pieces: bytes) -> ChatCompletion:
    return assemble(read(*pieces)[1])


def calls_of(*deltas: ToolCallDelta) -> list[tuple[str, str, str]]:
    chunks = [ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta(tool_calls=[delta]))]) for delta in deltas]
    message = assemble(chunks).choices[0].message
    return [(call.id, function_of(call).name, function_of(call).arguments) for call in message.tool_calls or []]


def call(index: int | None = None, call_id: str | None = None, name: str | None = None, arguments: str | None = None) -> ToolCallDelta:
    return ToolCallDelta(index, call_id, None, FunctionDelta(name, arguments))


def test_the_pieces_become_one_message() -> None:
    whole = of(chunk("", role="assistant") + chunk("Hel") + chunk("lo", reasoning="hm") + chunk(finish="stop") + usage_chunk())
    [choice] = whole.choices
    assert (choice.message.content, choice.message.reasoning_content, choice.message.role) == ("Hello", "hm", "assistant")
    assert (choice.finish_reason, whole.id, whole.model, whole.created, whole.object) == ("stop", "chatcmpl-1", "m", 1, "chat.completion")
    assert whole.usage is not None
    assert whole.usage.total_tokens == 12


def test_an_answer_that_broke_off_can_be_put_together_too() -> None:
    assembler = CompletionAssembler()
    assert assembler.completion() == ChatCompletion()
    for part in read(chunk("Hel") + chunk("lo"))[1]:
        assembler.add(part)
        assert assembler.completion().choices[0].finish_reason is None
    assert assembler.completion().choices[0].message.content == "Hello"


def test_choices_are_put_together_apart_and_in_order() -> None:
    whole = of(chunk("x", index=1) + chunk("a") + chunk("y", index=1, finish="length") + chunk(finish="stop"))
    assert [(c.index, c.message.content, c.finish_reason) for c in whole.choices] == [(0, "a", "stop"), (1, "xy", "length")]


def test_content_is_null_only_where_there_is_none() -> None:
    assert of(chunk("", role="assistant")).choices[0].message.content == ""
    assert of(chunk(role="assistant")).choices[0].message.content is None
    tool = [{"index": 0, "id": "1", "function": {"name": "f", "arguments": "{}"}}]
    assert of(chunk("", tool_calls=tool)).choices[0].message.content is None
    assert of(chunk("text", tool_calls=tool)).choices[0].message.content == "text"


def test_reasoning_under_both_names_is_taken_once() -> None:
    assert (
        of(chunk(reasoning="a", reasoning_content="a") + chunk(reasoning="b") + chunk(reasoning_content="c"))
        .choices[0]
        .message.reasoning_content
        == "abc"
    )


def test_refusals_and_legacy_function_calls_are_kept() -> None:
    whole = of(
        chunk(refusal="I ")
        + chunk(refusal="won't")
        + chunk(function_call={"name": "f", "arguments": "{"})
        + chunk(function_call={"arguments": "}"})
    )
    message = whole.choices[0].message
    assert message.refusal == "I won't"
    assert message.tool_calls is None
    assert message.function_call is not None
    assert (message.function_call.name, message.function_call.arguments) == ("f", "{}")


def test_the_first_chunk_with_an_id_names_the_answer() -> None:
    azure = ChatCompletionChunk(id="", model="", choices=[])
    whole = assemble(
        [azure, ChatCompletionChunk(id="c", model="m", created=3), ChatCompletionChunk(id="d", system_fingerprint="fp", service_tier="t")]
    )
    assert (whole.id, whole.model, whole.created, whole.system_fingerprint, whole.service_tier) == ("c", "m", 3, "fp", "t")


# Tool calls


def test_arguments_are_joined_by_index() -> None:
    assert calls_of(call(0, "a", "f", ""), call(0, None, None, '{"x'), call(0, None, None, '":1}')) == [("a", "f", '{"x":1}')]


def test_a_repeated_id_or_name_is_the_same_call() -> None:
    assert calls_of(call(0, "a", "f", "{"), call(0, "a", "f", "}")) == [("a", "f", "{}")]
    assert calls_of(call(0, "a", "f", "{"), call(0, "", "", "}")) == [("a", "f", "{}")]


def test_a_name_in_pieces_is_joined() -> None:
    assert calls_of(call(0, "a", "get_"), call(0, None, "weather"), call(0, None, None, "{}")) == [("a", "get_weather", "{}")]


def test_a_call_without_index_is_found_by_its_id() -> None:
    calls = [call(None, "a", "f", "1"), call(None, "b", "g", "2"), call(None, "a", None, "3"), call(None, "b", None, "4")]
    assert calls_of(*calls) == [("a", "f", "13"), ("b", "g", "24")]


def test_an_id_that_comes_late_is_taken() -> None:
    assert calls_of(call(0, None, "f"), call(0, "a", None, "{}")) == [("a", "f", "{}")]


def test_a_delta_without_function_changes_nothing_but_its_call() -> None:
    assert calls_of(ToolCallDelta(0, "a"), call(0, None, "f", "{}")) == [("a", "f", "{}")]


def test_indexes_with_gaps_keep_the_order_of_arrival() -> None:
    assert calls_of(call(3, "b", "g", "1"), call(1, "a", "f", "2"), call(3, None, None, "3")) == [("b", "g", "13"), ("a", "f", "2")]


def test_a_call_without_index_joins_the_last_one() -> None:
    assert calls_of(call(0, "a", "f", "{"), call(None, None, None, "}")) == [("a", "f", "{}")]


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=3), st.lists(st.text(max_size=3), min_size=1, max_size=4)), min_size=1, max_size=4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_calls_with_index_come_out_whole_however_their_deltas_interleave(
    calls: list[tuple[str, list[str]]], repeats_id: bool, rng: Any
) -> None:
    queues = []
    for index, (name, pieces) in enumerate(calls):
        first = call(index, f"id{index}", name, pieces[0])
        queues.append([first, *(call(index, f"id{index}" if repeats_id else None, None, piece) for piece in pieces[1:])])
    deltas = [queue.pop(0) for queue in queues]
    while rest := [queue for queue in queues if queue]:
        deltas.append(rng.choice(rest).pop(0))
    assert calls_of(*deltas) == [(f"id{index}", name, "".join(pieces)) for index, (name, pieces) in enumerate(calls)]


# Log-probabilities


def test_log_probabilities_are_joined_and_the_chunks_stay_as_they_are() -> None:
    parts: list[Any] = [{"content": [{"token": "a"}], "refusal": None}, {"content": [{"token": "b"}], "refusal": None}, None]
    chunks = [ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta("x"), logprobs=part)]) for part in parts]
    assert assemble(chunks).choices[0].logprobs == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}
    assert parts[0] == {"content": [{"token": "a"}], "refusal": None}


def test_log_probabilities_of_another_shape_are_the_last_ones() -> None:
    parts: list[Any] = [{"content": [1]}, [2], {"tokens": ["a"]}]
    chunks = [ChatCompletionChunk(choices=[ChunkChoice(logprobs=part)]) for part in parts]
    assert assemble(chunks).choices[0].logprobs == {"tokens": ["a"]}


# Round trip


@given(st.text(max_size=20), st.text(min_size=1, max_size=20), st.sampled_from(["stop", "length", "tool_calls"]))
def test_an_answer_split_into_chunks_is_put_together_again(text: str, thinking: str, finish: str) -> None:
    message = {"role": "assistant", "content": text, "refusal": None, "reasoning_content": thinking}
    choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    answer = {"id": "c", "object": "chat.completion", "created": 5, "model": "m", "choices": choices, "usage": usage}
    whole = assemble(split_answer(answer))
    assert whole.usage == CompletionUsage(1, 2, 3)
    assert (whole.id, whole.created, whole.model) == ("c", 5, "m")
    (choice,) = whole.choices
    assert (choice.message.content or "", choice.message.reasoning_content, choice.finish_reason) == (text, thinking, finish)


def test_numbers_of_a_token_are_no_fields_of_the_message() -> None:
    _, chunks = read(chunk("hi", token_id=5, special=False, note="a"), chunk(" you", token_id=9, note="b"), chunk(finish="stop"))
    message = assemble(chunks).choices[0].message
    assert message.to_dict() == {"content": "hi you", "role": "assistant", "note": "ab"}
    assert chunks[0].choices[0].delta.model_extra == {"token_id": 5, "special": False, "note": "a"}


@pytest.mark.parametrize(("finish", "arguments"), [("tool_calls", "{}"), (None, "")])
def test_a_call_without_arguments_has_an_empty_object_once_the_answer_is_whole(finish: str | None, arguments: str) -> None:
    call = ToolCallDelta(index=0, id="a", function=FunctionDelta("f", ""))
    chunks = [
        ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta(tool_calls=[call]))]),
        ChatCompletionChunk(choices=[ChunkChoice(finish_reason=finish)]),
    ]
    (made,) = assemble(chunks).choices[0].message.tool_calls or []
    assert function_of(made).arguments == arguments
