"""Chunks in OpenAI's shapes: what is sent, what is left out, what stays the same through an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.openai_types import (
    ChatCompletion,
    ChatCompletionChunk,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    FunctionDelta,
    ToolCallDelta,
    with_further,
    with_text,
)
from streamco.proxy.response_shapes import ChatShape, CompletionShape
from streamco.wire.openai.assembler import assemble
from tests.core.test_report_text import make_report


def decode(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    return dict(json.loads(event[6:]))


def chunk(delta: ChoiceDelta | None = None, *, index: int = 0, finish: str | None = None, **fields: Any) -> ChatCompletionChunk:
    choice = ChunkChoice(delta=delta or ChoiceDelta(), index=index, finish_reason=finish)
    return ChatCompletionChunk(**{"id": "a", "model": "m", "created": 5, **fields}, choices=[choice])


def text(content: str, **fields: Any) -> ChatCompletionChunk:
    return chunk(ChoiceDelta(content=content), **fields)


def test_the_head_is_the_first_chunks_though_the_answer_changes_hands() -> None:
    shape = ChatShape(model="asked")
    first = decode(shape.event(text("a", system_fingerprint="fp", service_tier="default")))
    second = decode(shape.event(text("b", id="other", model="another", created=9)))
    for name in ("id", "model", "created", "system_fingerprint", "service_tier"):
        assert first[name] == second[name]
    assert (first["id"], first["model"], first["created"]) == ("a", "m", 5)


def test_what_the_endpoint_does_not_tell_is_made_up() -> None:
    event = decode(ChatShape(model="asked").event(text("a", id="", model="", created=0)))
    assert event["id"].startswith("chatcmpl-")
    assert event["model"] == "asked"
    assert event["created"] > 1_600_000_000
    assert "system_fingerprint" not in event


def test_only_the_first_delta_of_each_choice_has_a_role_and_the_chunk_is_not_changed() -> None:
    shape = ChatShape(model="m")
    first = text("a")
    assert decode(shape.event(first))["choices"][0]["delta"] == {"role": "assistant", "content": "a"}
    assert first.choices[0].delta.role is None
    assert decode(shape.event(text("b")))["choices"][0]["delta"] == {"content": "b"}
    assert decode(shape.event(text("c", index=1)))["choices"][0]["delta"] == {"role": "assistant", "content": "c"}


def test_a_role_that_is_told_stays() -> None:
    shape = ChatShape(model="m")
    assert decode(shape.event(chunk(ChoiceDelta(role="tool", content=""))))["choices"][0]["delta"] == {"role": "tool", "content": ""}


def test_nulls_stand_where_openai_has_them() -> None:
    choice = decode(ChatShape(model="m").event(text("a")))["choices"][0]
    assert choice["finish_reason"] is None
    assert choice["logprobs"] is None
    assert set(choice) == {"index", "delta", "logprobs", "finish_reason"}


def test_tool_calls_and_log_probabilities_pass_as_they_are() -> None:
    call = ToolCallDelta(index=2, id="c", type="function", function=FunctionDelta(name="f", arguments=""))
    given = chunk(ChoiceDelta(tool_calls=[call]))
    given.choices[0].logprobs = ChoiceLogprobs(content=[{"token": "a", "logprob": -0.5}])
    choice = decode(ChatShape(model="m").event(given))["choices"][0]
    assert choice["delta"]["tool_calls"] == [{"index": 2, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]
    assert choice["logprobs"] == {"content": [{"token": "a", "logprob": -0.5}]}


@pytest.mark.parametrize("kind", [ChatShape, CompletionShape])
def test_usage_comes_alone_and_is_null_before(kind: type[ChatShape | CompletionShape]) -> None:
    shape = kind(model="m", wants_usage=True)
    assert decode(shape.event(text("a")))["usage"] is None
    last = decode(shape.event(ChatCompletionChunk(usage=CompletionUsage(1, 2, 3))))
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 3)


@pytest.mark.parametrize("kind", [ChatShape, CompletionShape])
def test_token_ids_are_told_when_asked_for(kind: type[ChatShape | CompletionShape]) -> None:
    given = text("a")
    given.choices[0].token_ids = [7]
    assert decode(kind(model="m", wants_ids=True).event(given))["choices"][0]["token_ids"] == [7]
    assert "token_ids" not in decode(kind(model="m").event(given))["choices"][0]


def test_a_chunk_with_nothing_to_say_is_no_event() -> None:
    assert ChatShape(model="m").event(ChatCompletionChunk()) == b""
    completion = CompletionShape(model="m")
    assert completion.event(chunk(ChoiceDelta(role="assistant", content=""))) == b""
    assert completion.event(chunk(ChoiceDelta(reasoning_content="hm"))) == b""


@pytest.mark.parametrize("kind", [ChatShape, CompletionShape])
def test_choices_without_a_finish_reason_get_one_at_the_end(kind: type[ChatShape | CompletionShape]) -> None:
    shape = kind(model="m")
    shape.event(text("a"))
    shape.event(text("b", index=1))
    shape.event(chunk(index=1, finish="length"))
    ending = decode(shape.ending("stop"))
    assert [(choice["index"], choice["finish_reason"]) for choice in ending["choices"]] == [(0, "stop")]
    assert "streamco" not in ending
    assert shape.ending("stop") == b""


def test_a_finish_reason_of_its_own_has_an_origin_if_the_chunks_have_one() -> None:
    shape = ChatShape(model="m")
    shape.event(text("a"), {"endpoint": "server"})
    assert decode(shape.ending("stop", {"endpoint": "server"}))["streamco"] == {"endpoint": "server"}


def test_an_end_that_nobody_knows_is_not_made_up() -> None:
    shape = ChatShape(model="m")
    shape.event(text("a"))
    assert shape.ending(None) == b""


def whole(*chunks: ChatCompletionChunk) -> ChatCompletion:
    return assemble(chunks)


def test_a_whole_answer_leaves_out_what_there_is_not() -> None:
    body = json.loads(ChatShape(model="m").whole(whole(text("Hi"), chunk(finish="stop")), "stop"))
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hi", "refusal": None}
    assert body["usage"] is None


def test_a_whole_answer_has_thinking_and_every_choice() -> None:
    body = json.loads(
        ChatShape(model="m").whole(
            whole(chunk(ChoiceDelta(reasoning_content="hm")), text("a"), text("b", index=1, finish="length")), "stop"
        )
    )
    first, second = body["choices"]
    assert (first["message"]["reasoning_content"], first["message"]["content"], first["finish_reason"]) == ("hm", "a", "stop")
    assert (second["message"]["content"], second["finish_reason"]) == ("b", "length")


def test_a_whole_completion_is_text() -> None:
    body = json.loads(CompletionShape(model="m").whole(whole(text("a"), text("b", finish="stop")), "stop"))
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop"}]


@pytest.mark.parametrize(("given", "shown"), [("chatcmpl-1a", "cmpl-1a"), ("cmpl-1a", "cmpl-1a"), ("gen-7", "cmpl-gen-7")])
def test_a_completion_has_an_id_of_its_api_and_the_model_that_was_asked_for(given: str, shown: str) -> None:
    streamed, answered = CompletionShape(model="asked"), CompletionShape(model="asked")
    bodies = [decode(streamed.event(text(each, id=given, model="its own"))) for each in "ab"]
    bodies.append(json.loads(answered.whole(whole(text("a", id=given, model="its own", finish="stop")), "stop")))
    assert {(body["id"], body["model"]) for body in bodies} == {(shown, "asked")}
    assert decode(CompletionShape(model="asked").event(text("a", id="")))["id"].startswith("cmpl-")


def test_the_origin_of_a_chunk_is_a_field_beside_openais_and_only_if_it_is_given() -> None:
    for shape in (ChatShape(model="m"), CompletionShape(model="m")):
        assert "streamco" not in decode(shape.event(text("a")))
        marked = decode(shape.event(text("b"), {"endpoint": "near", "origin": "device"}))
        assert marked["streamco"] == {"endpoint": "near", "origin": "device"}


def test_a_field_of_that_name_from_a_server_gives_way_to_the_proxys_own() -> None:
    forged = with_further(text("a"), {"streamco": {"origin": "bonus"}})
    assert decode(ChatShape(model="m").event(forged, {"endpoint": "far"}))["streamco"] == {"endpoint": "far"}
    assert decode(ChatShape(model="m").event(forged))["streamco"] == {"origin": "bonus"}, "passed on like any other"


@pytest.mark.parametrize("wants_usage", [False, True])
def test_the_report_is_a_chunk_without_choices_and_with_the_answers_head(*, wants_usage: bool) -> None:
    shape = ChatShape(model="asked", wants_usage=wants_usage)
    alone = decode(shape.report(make_report()))
    first, last = decode(shape.event(text("a"))), decode(shape.report(make_report()))
    assert (alone["model"], alone["choices"], last["choices"]) == ("asked", [], [])
    assert (last["id"], last["created"]) == (first["id"], first["created"])
    assert last["streamco"]["report"]["winner"] == make_report().winner
    assert ("usage" in last) == wants_usage


texts = st.text(max_size=6) | st.sampled_from(['"', "\\", "\n", "\x7fstreamco", "\u2028", "\U0001f600"])
roles, thoughts = st.none() | st.just("assistant"), st.none() | st.just("hm")
deltas = st.builds(ChoiceDelta, content=texts | st.none(), role=roles, reasoning_content=thoughts)
choices = st.builds(
    ChunkChoice,
    delta=deltas,
    index=st.integers(0, 1),
    finish_reason=st.none() | st.none() | st.just("stop"),
    token_ids=st.none() | st.none() | st.just([7]),
    logprobs=st.none() | st.none() | st.just({"content": []}),
    matched_stop=st.none() | st.just(3),
)
plain_chunks = st.builds(ChatCompletionChunk, id=st.just("a"), created=st.integers(5, 6), choices=st.lists(choices, max_size=2))
further_chunks = st.builds(
    lambda chunk, value: with_further(chunk, {"timings": value}) if value else chunk, plain_chunks, st.none() | st.integers(1, 2)
)


@given(st.lists(further_chunks, max_size=30), st.sampled_from([ChatShape, CompletionShape]), st.booleans(), st.booleans())
def test_events_that_repeat_another_are_the_same_bytes(
    chunks: list[ChatCompletionChunk], kind: type[ChatShape | CompletionShape], wants_usage: bool, wants_ids: bool
) -> None:
    quick, slow = (kind(model="m", wants_usage=wants_usage, wants_ids=wants_ids) for _ in range(2))
    quick._head = slow._head = {"id": "a", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    slow._tries = 0
    assert [quick.event(each) for each in chunks] == [slow.event(each) for each in chunks]
    assert quick.ending("stop") == slow.ending("stop")


@given(
    st.lists(st.tuples(st.integers(0, 2), st.text(min_size=1, max_size=5), st.booleans()), max_size=30),
    st.sampled_from([ChatShape, CompletionShape]),
    st.booleans(),
)
def test_text_that_repeats_a_chunk_is_the_same_bytes_as_the_chunk(
    runs: list[tuple[int, str, bool]], kind: type[ChatShape | CompletionShape], wants_usage: bool
) -> None:
    likes = [text("a"), text("a", obfuscation="x"), text("a", provider="p")]
    quick, slow = (kind(model="m", wants_usage=wants_usage) for _ in range(2))
    quick._head = slow._head = {"id": "a", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    for number, piece, is_repeated in runs:
        whole = with_text(likes[number], piece)
        assert (quick.repeat(likes[number], piece) if is_repeated else quick.event(whole)) == slow._encode(whole, None)
    assert quick.ending("stop") == slow.ending("stop")


def test_an_answers_events_are_made_of_one_of_them() -> None:
    shape = ChatShape(model="m")
    events = [shape.event(text(str(number))) for number in range(50)]
    assert shape._tries == 3
    assert [decode(event)["choices"][0]["delta"]["content"] for event in events] == [str(number) for number in range(50)]


def test_a_server_that_sends_something_new_with_each_event_is_soon_taken_as_it_is() -> None:
    shape = ChatShape(model="m")
    events = [decode(shape.event(text("a", obfuscation=str(number)))) for number in range(50)]
    assert [event["obfuscation"] for event in events] == [str(number) for number in range(50)]
    assert shape._tries == 0
