"""Chunks that don't fit the types: what can be understood is kept, the rest is dropped, nothing raises."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, PromptTokensDetails
from streamco.wire.openai.extended_decode import ExtendedDecoder
from streamco.wire.openai.fast_decode import decode_chat_chunk
from streamco.wire.openai.lenient_decode import CumulativeText, build_chunk, build_usage, decode_object, newer_usage
from tests.wire.recorded import answer_slowly, read_slowly, recordings


def choice_of(**fields: Any) -> Any:
    return build_chunk({"choices": [fields]}).choices[0]


def delta_of(**fields: Any) -> Any:
    return choice_of(delta=fields).delta


# JSON that is not quite JSON


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": "\xff"}', {"a": "\ufffd"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"\\ud83d": ["\\ude00"]}', {"\ufffd": ["\ufffd"]}),
        (b'{"a": "tab\there"}', {"a": "tab\there"}),
        (b'{"a": -Infinity}', {"a": -math.inf}),
        (b'{"a": 1}', {"a": 1}),
    ],
)
def test_json_with_common_faults_is_read(data: bytes, value: object) -> None:
    assert decode_object(data) == value


def test_nan_is_read_as_nan() -> None:
    assert math.isnan(decode_object(b'{"a": NaN}')["a"])


def test_json_is_read_to_a_hundred_levels_sound_or_not_and_refused_beyond() -> None:
    for fault in (b"", b"\xff"):
        for levels in (99, 100, 5_000, 200_000):
            data = b'{"a": "' + fault + b'", "b": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"
            if levels <= 100:
                assert decode_object(data)["b"] is not None
            else:
                with pytest.raises(ValueError, match="at most 100 levels, got more"):
                    decode_object(data)


def test_brackets_in_strings_and_beside_each_other_are_not_levels() -> None:
    assert decode_object(b'{"a": "' + b"[{" * 5_000 + b'"}') == {"a": "[{" * 5_000}
    assert decode_object(b"[" + b"[]," * 5_000 + b"[]]") == [[]] * 5_001


def test_integers_are_read_however_many_digits_they_have() -> None:
    for fault in (b"", b"\xff"):
        for digits, value in ((b"9" * 30, 1e30), (b"-" + b"9" * 5_000, -math.inf), (b"9" * 18, 10**18 - 1)):
            assert decode_object(b'{"a": "' + fault + b'", "b": ' + digits + b"}")["b"] == pytest.approx(value)


@pytest.mark.parametrize("data", [b"", b"{", b"{'a': 1}", b"data", b'{"a":1}{"b":2}', b"\xff\xfe"])
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_object(data)


# Chunks


@given(st.text(max_size=20), st.none() | st.sampled_from(["stop", "length"]), st.integers(0, 5), st.booleans())
def test_a_chunk_that_fits_the_types_is_built_as_the_typed_decoder_decodes_it(
    text: str, finish: str | None, index: int, has_usage: bool
) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}
    calls = [{"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}]
    delta = {"role": "assistant", "content": text, "reasoning": "r", "refusal": "no", "tool_calls": calls}
    choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": {"content": []}, "token_ids": [1]}
    head = {"id": "1", "object": "chat.completion.chunk", "created": 5, "model": "m", "system_fingerprint": "f", "service_tier": "t"}
    value = {**head, "choices": [choice], "usage": usage if has_usage else None}
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    assert build_chunk(decode_object(data)) == decode_chat_chunk(data)


def test_every_recorded_chunk_is_built_as_the_typed_decoder_decodes_it() -> None:
    compared = 0
    for recording in recordings(apis=("chat",)):
        for event in read_slowly(recording.body).events[:200]:
            try:
                typed = ExtendedDecoder().decode(event.data)
            except msgspec.DecodeError:
                continue
            value = json.loads(event.data)
            if "choices" in value and not value.get("x_groq") and not typed.object.endswith("completion"):
                typed.object = "chat.completion.chunk"
                assert build_chunk(value) == typed, recording
                compared += 1
    assert compared > 5000 or not compared


def test_numbers_where_strings_should_be_and_the_other_way_round() -> None:
    chunk = build_chunk({"id": 7, "created": "12", "model": True, "choices": [{"index": "1", "delta": {"content": 5}}]})
    assert (chunk.id, chunk.created, chunk.model, chunk.choices[0].index, chunk.choices[0].delta.content) == ("7", 12, "true", 1, "5")
    assert build_chunk({"created": 1.9}).created == 1
    assert build_chunk({"created": math.nan}).created == 0


def test_numbers_no_counter_reaches_are_no_counts() -> None:
    for huge in ("9" * 5_000, 10**30, 1e300, math.inf, math.nan, "²"):
        assert build_chunk({"created": huge}).created == 0
    assert build_chunk({"created": "1792567680"}).created == build_chunk({"created": 1792567680.5}).created == 1792567680


def test_missing_null_and_unknown_parts_are_empty() -> None:
    values: list[dict[str, Any]] = [
        {},
        {"choices": None},
        {"choices": {}},
        {"choices": [None, 3, "x"]},
        {"id": [], "model": {}, "usage": 5},
    ]
    for value in values:
        assert build_chunk(value) == ChatCompletionChunk()
    assert choice_of().delta == choice_of(delta=None).delta == choice_of(delta=[]).delta
    assert choice_of(finish_reason={"type": "stop"}).finish_reason is None
    assert choice_of(token_ids=["a"]).token_ids is None
    assert choice_of(token_ids=[1, 2]).token_ids == [1, 2]


def test_a_whole_message_and_legacy_text_stand_for_the_delta() -> None:
    assert choice_of(message={"content": "a", "role": "assistant"}).delta.content == "a"
    assert choice_of(text="a").delta.content == "a"
    assert choice_of(text="a", delta={"content": "b"}).delta.content == "b"


def test_content_in_parts_is_text_and_thinking() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}
    parts = [thinking, {"type": "text", "text": "a"}, "b", {"type": "reference", "reference_ids": [1]}, 7, {"type": "text", "text": None}]
    delta = delta_of(content=parts)
    assert (delta.content, delta.reasoning_content) == ("ab", "hm")
    assert (delta_of(content=[]).content, delta_of(content={}).content) == (None, None)
    assert delta_of(content=[{"thinking": "plain"}]).reasoning_content == "plain"


def test_mistrals_recorded_parts_are_text_and_thinking() -> None:
    found = [r for r in recordings(apis=("chat",), provider="mistral") if b'"content":[' in r.body]
    assert found
    for recording in found:
        deltas = [
            choice.delta for event in read_slowly(recording.body).events[:-1] for choice in build_chunk(json.loads(event.data)).choices
        ]
        expected = answer_slowly(recording.body)
        assert "".join(delta.content or "" for delta in deltas) == expected.text
        assert "".join(delta.reasoning_content or "" for delta in deltas) == expected.reasoning != ""


def test_tool_calls_of_odd_shapes() -> None:
    call = {"index": 1.0, "id": 5, "type": None, "function": {"name": "f", "arguments": {"city": "Paris"}}}
    [built] = delta_of(tool_calls=[call, None, "x"]).tool_calls
    assert (built.index, built.id, built.type) == (1, "5", None)
    assert (built.function.name, built.function.arguments) == ("f", '{"city":"Paris"}')
    assert len(delta_of(tool_calls={"id": "a"}).tool_calls) == 1
    assert delta_of(tool_calls="x").tool_calls is None
    assert delta_of(tool_calls=[{"function": "f"}]).tool_calls[0].function is None
    assert delta_of(function_call={"name": "f"}).function_call.name == "f"


def test_usage_of_odd_shapes() -> None:
    usage = build_usage(
        {"prompt_tokens": 3.0, "completion_tokens": None, "total_tokens": "5", "prompt_tokens_details": {"cached_tokens": 1.0}}
    )
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.prompt_tokens_details.cached_tokens) == (3, 0, 5, 1)
    assert build_usage(None) is build_usage(5) is build_usage([]) is None
    assert build_usage({}) is build_usage({"prompt_tokens": None, "total_tokens": 7}) is None
    found = build_chunk({"x_groq": {"usage": {"completion_tokens": 4}}}).usage
    assert found is not None
    assert found.total_tokens == 4


@pytest.mark.parametrize(
    ("index", "number"), [("0", 0), (0, 0), ("7", 7), (2.0, 2), (None, None), ("", None), ("a", None), (True, None), ([], None)]
)
def test_the_index_of_a_call_is_a_number_or_none(index: Any, number: int | None) -> None:
    assert delta_of(tool_calls=[{"index": index}]).tool_calls[0].index == number


def usage(prompt: int, completion: int, **details: Any) -> CompletionUsage:
    return CompletionUsage(prompt, completion, prompt + completion, **details)


@pytest.mark.parametrize(
    ("known", "new", "newest"),
    [
        (None, usage(10, 0), usage(10, 0)),
        (None, usage(0, 0), None),
        (usage(10, 20), usage(0, 0), None),
        (usage(10, 0), usage(0, 20), usage(10, 20)),
        (usage(0, 20), usage(10, 0), usage(10, 20)),
        (usage(10, 20), usage(10, 0), usage(10, 20)),
        (usage(10, 20), usage(0, 25), usage(10, 25)),
        (usage(10, 20), usage(11, 15), usage(11, 15)),
        (usage(10, 20), usage(11, 1 << 25), None),
        (usage(10, 20), usage(-1, 20), None),
        (usage(10, 20), usage(10, 21, prompt_tokens_details=PromptTokensDetails(cached_tokens=-1)), None),
        (usage(10, 20), None, None),
    ],
)
def test_the_newest_usage_has_the_newest_of_each_count(
    known: CompletionUsage | None, new: CompletionUsage | None, newest: CompletionUsage | None
) -> None:
    assert newer_usage(known, new) == newest


def test_the_counts_of_other_apis_are_the_same_counts() -> None:
    usage = build_usage({"input_tokens": 30, "output_tokens": 10, "output_tokens_details": {"reasoning_tokens": 4}, "prompt_tokens": 0})
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 10, 40)
    assert usage.completion_tokens_details.reasoning_tokens == 4
    assert usage.model_extra == {}


_NAMES = [
    "choices",
    "delta",
    "message",
    "content",
    "tool_calls",
    "function",
    "usage",
    "index",
    "id",
    "arguments",
    "thinking",
    "text",
    "x_groq",
]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
        max_leaves=15,
    )
)
def test_any_object_becomes_a_chunk_that_can_be_encoded(value: Any) -> None:
    chunk = build_chunk(value if isinstance(value, dict) else {"choices": value})
    assert ExtendedDecoder().decode(msgspec.json.encode(chunk)) is not None
    assert build_chunk(chunk.to_dict()).to_dict() == chunk.to_dict()


# Text that is repeated in every event is given once


def keep(texts: CumulativeText, content: str | None, index: int = 0) -> str | None:
    chunk = ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta(content), index)])
    texts.keep_new(chunk)
    return chunk.choices[0].delta.content


@given(st.lists(st.text(max_size=5), max_size=20))
def test_the_increments_of_growing_texts_are_what_they_grew_by(pieces: list[str]) -> None:
    texts = CumulativeText()
    assert [keep(texts, "".join(pieces[: i + 1])) or "" for i in range(len(pieces))] == pieces


def test_choices_grow_apart() -> None:
    texts = CumulativeText()
    found = [keep(texts, content, index) for content, index in (("a", 0), ("x", 1), ("ab", 0), ("xy", 1))]
    assert found == ["a", "x", "b", "y"]


def test_events_without_text_change_nothing() -> None:
    texts = CumulativeText()
    assert [keep(texts, content) for content in ("a", None, "", "ab")] == ["a", None, "", "b"]


def test_revised_text_gives_nothing_until_it_goes_on_from_what_was_given() -> None:
    texts = CumulativeText()
    contents = ("The", "The cat", "A cat sat", "The", "The cat ran")
    assert [keep(texts, content) for content in contents] == ["The", " cat", None, None, " ran"]


def test_contents_that_repeat_nothing_are_increments() -> None:
    texts = CumulativeText()
    assert [keep(texts, content) for content in ("The", " cat", " The", " The end")] == ["The", " cat", " The", " The end"]


def test_what_came_as_deltas_before_is_not_repeated() -> None:
    texts = CumulativeText()
    begun = [texts.has_begun]
    texts.begin("The")
    begun.append(texts.has_begun)
    assert begun == [False, True]
    assert keep(texts, "The cat") == " cat"
    assert keep(texts, "The cat", index=1) == "The cat"
