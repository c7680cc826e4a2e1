"""Where the parts of an answer begin and end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamco.openai_types import (
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from streamco.wire.openai.answer_parts import AnswerPart, AnswerParts, PartBegan, PartEnded, PartEvent, PartGrew, message_parts
from streamco.wire.openai.assembler import assemble
from streamco.wire.openai.stream import ChatStreamParser
from streamco.wire.openai.tool_calls import JSONPieces
from tests.wire.recorded import recordings


def chunk(**delta: Any) -> ChatCompletionChunk:
    return ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(**delta))])


def call(index: int, arguments: str | None = None, name: str | None = None) -> ChatCompletionChunk:
    piece = ToolCallDelta(index=index, id=f"call_{index}" if name else None, function=FunctionDelta(name=name, arguments=arguments))
    return chunk(tool_calls=[piece])


def shown(events: list[PartEvent]) -> list[str]:
    """Each event in a few characters: + for a beginning, - for an end, the text of what was added."""
    found = []
    for event in events:
        if isinstance(event, PartGrew):
            found.append(f"{event.part.index}:{event.text}")
        else:
            found.append(f"{'+' if isinstance(event, PartBegan) else '-'}{event.part.index} {event.part.kind}")
    return found


def read(*chunks: ChatCompletionChunk, is_sequential: bool = False) -> list[str]:
    parts = AnswerParts(is_sequential=is_sequential)
    return shown([event for each in chunks for event in parts.add(each)] + parts.end())


def test_a_run_ends_when_another_begins() -> None:
    chunks = [chunk(role="assistant"), chunk(reasoning_content="hm"), chunk(content="a"), chunk(content="b"), chunk(refusal="no")]
    assert read(*chunks) == ["+0 reasoning", "0:hm", "-0 reasoning", "+1 text", "1:a", "1:b", "-1 text", "+2 refusal", "2:no", "-2 refusal"]


def test_reasoning_has_two_names_and_comes_before_the_text_of_its_chunk() -> None:
    assert read(chunk(reasoning="hm", content="a")) == ["+0 reasoning", "0:hm", "-0 reasoning", "+1 text", "1:a", "-1 text"]


def test_reasoning_can_be_left_out() -> None:
    parts = AnswerParts(skips_reasoning=True)
    assert shown(parts.add(chunk(reasoning="hm", content="a"))) == ["+0 text", "0:a"]


def test_a_call_begins_with_its_arguments_when_its_name_is_whole() -> None:
    parts = AnswerParts()
    assert parts.add(call(0, name="get_")) == []
    assert parts.add(call(0, "", name="weather")) == []
    events = parts.add(call(0, "{"))
    assert shown(events) == ["+0 call", "0:{"]
    assert events[0].part.call is not None
    assert events[0].part.call.name == "get_weather"
    assert shown(parts.add(call(0, "}")) + parts.end()) == ["0:}", "-0 call"]


def test_calls_after_each_other_end_one_by_one() -> None:
    chunks = [chunk(content="a"), call(0, '{"x":1}', "f"), call(1, "{}", "g"), chunk(content="b")]
    expected = ["+0 text", "0:a", "-0 text", "+1 call", '1:{"x":1}', "-1 call", "+2 call", "2:{}", "-2 call", "+3 text", "3:b", "-3 text"]
    assert read(*chunks) == expected


def test_calls_in_turn_stay_open_to_the_end() -> None:
    chunks = [call(0, name="f"), call(1, name="g"), call(1, "["), call(0, "{"), call(1, "]"), call(0, "}")]
    assert read(*chunks) == ["+0 call", "+1 call", "1:[", "0:{", "1:]", "0:}", "-0 call", "-1 call"]


def test_white_space_after_a_calls_end_is_left_out() -> None:
    assert read(call(0, "{}", "f"), call(1, "{", "g"), call(0, " \n"), call(1, "}")) == [
        *("+0 call", "0:{}", "-0 call", "+1 call", "1:{", "1:}", "-1 call"),
    ]


def test_a_call_without_arguments_begins_when_another_part_does_or_at_the_end() -> None:
    assert read(call(0, name="f"), chunk(content="a"), call(1, name="g")) == [
        *("+0 call", "+1 text", "1:a", "-0 call", "-1 text", "+2 call", "-2 call"),
    ]


def test_calls_without_arguments_end_one_by_one_at_the_end() -> None:
    chunks = [call(0, "{", name="f"), call(1, name="g"), call(2, name="h")]
    assert read(*chunks) == ["+0 call", "0:{", "-0 call", "+1 call", "-1 call", "+2 call", "-2 call"]


@pytest.mark.parametrize("is_sequential", [False, True])
def test_a_call_whose_name_comes_after_its_arguments_begins_with_its_name_and_what_follows_waits(is_sequential: bool) -> None:
    late = [call(0, '{"x":'), call(0, "1}"), chunk(content="a"), call(1, "{}", "g"), call(0, name="f")]
    parts = AnswerParts(is_sequential=is_sequential)
    events = [event for each in late[:-1] for event in parts.add(each)]
    assert events == []
    assert shown(parts.add(late[-1])) == ["+0 call", '0:{"x":1}', "-0 call", "+1 text", "1:a", "-1 text", "+2 call", "2:{}"]
    assert [part.call.name for part in parts.begun if part.call is not None] == ["f", "g"]
    assert shown(parts.end()) == ["-2 call"]


def test_a_call_that_never_gets_a_name_comes_at_the_end() -> None:
    assert read(call(0, "{}"), chunk(content="a")) == ["+0 call", "0:{}", "-0 call", "+1 text", "1:a", "-1 text"]


@pytest.mark.parametrize("is_sequential", [False, True])
def test_of_a_failing_answer_the_text_behind_a_call_without_a_name_is_kept(is_sequential: bool) -> None:
    parts = AnswerParts(is_sequential=is_sequential)
    for each in (call(0, "{}"), chunk(content="a"), call(1, name="g"), call(2, "{}", "h"), call(3, "{", "i")):
        parts.add(each)
    assert shown(parts.fail()) == ["+0 text", "0:a", "-0 text", "+1 call", "1:{}", "-1 call"]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (
            [call(0, name="f"), call(1, name="g"), chunk(content="a"), chunk(content="b"), call(2, "{}", "h")],
            ["+0 call", "-0 call", "+1 call", "-1 call", "+2 text", "2:ab", "-2 text", "+3 call", "3:{}", "-3 call"],
        ),
        (
            [call(0, name="f"), chunk(content="a"), call(0, "{}"), chunk(content="b")],
            ["+0 call", "0:{}", "-0 call", "+1 text", "1:a", "1:b", "-1 text"],
        ),
        (
            [call(0, '{"x":', "f"), call(1, '{"y":', "g"), call(0, "1}"), call(1, "2}"), chunk(content="a"), chunk(content="b")],
            [
                *("+0 call", '0:{"x":', "0:1}", "-0 call", "+1 call", '1:{"y":', "1:2}", "-1 call"),
                *("+2 text", "2:a", "2:b", "-2 text"),
            ],
        ),
        (
            [call(0, name="f"), call(1, name="g"), call(1, "["), call(0, "{"), call(1, "]"), call(0, "}")],
            ["+0 call", "0:{", "0:}", "-0 call", "+1 call", "1:[]", "-1 call"],
        ),
        (
            [call(0, "{", "f"), chunk(content="a"), call(1, "{}", "g"), chunk(content="b"), chunk(content="c"), call(0, "}")],
            ["+0 call", "0:{", "0:}", "-0 call", "+1 text", "1:a", "-1 text", "+2 call", "2:{}", "-2 call", "+3 text", "3:bc", "-3 text"],
        ),
    ],
)
def test_sequential_parts_end_before_the_next_begins(chunks: list[ChatCompletionChunk], expected: list[str]) -> None:
    assert read(*chunks, is_sequential=True) == expected


@pytest.mark.parametrize("seed", range(300))
def test_sequential_parts_have_what_the_others_have_and_are_never_open_together(seed: int) -> None:
    rng = random.Random(seed)
    names: dict[int, int] = {}
    chunks = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.choice(["content", "reasoning", "refusal", "call", "call", "new"])
        if kind == "new" or (kind == "call" and not names):
            names[len(names)] = rng.choice([0, 0, 1, 2])
            chunks.append(call(len(names) - 1, rng.choice([None, "", "{}", "{"]), f"f{len(names)}"))
        elif kind == "call":
            chunks.append(call(rng.choice(list(names)), rng.choice(["{", "}", '"x":1', "{}"])))
        else:
            chunks.append(chunk(**{kind: rng.choice("abc")}))
    plain, parts = AnswerParts(), AnswerParts(is_sequential=True)
    for each in chunks:
        plain.add(each)
    plain.end()
    events = [event for each in chunks for event in parts.add(each)] + parts.end()
    opened: AnswerPart | None = None
    ended_whole: set[int] = set()
    texts: dict[int, str] = {}
    for event in events:
        match event:
            case PartBegan(part):
                assert (opened, part.index) == (None, len(texts)), seed
                opened, texts[part.index] = part, ""
            case PartGrew(part, text):
                assert part is opened or part.index in ended_whole, seed  # more arguments after whole ones
                texts[part.index] += text
            case PartEnded(part):
                assert part is opened, seed
                ended_whole |= {part.index} if JSONPieces([texts[part.index]]).is_whole else set()
                opened = None
    assert opened is None
    assert sorted((part.kind, part.text) for part in parts.begun if part.call) == sorted((p.kind, p.text) for p in plain.begun if p.call), (
        seed
    )
    for kind in ("text", "reasoning", "refusal"):
        whole = ["".join(part.text for part in each.begun if part.kind == kind) for each in (parts, plain)]
        assert whole[0] == whole[1], seed
    assert [texts[part.index] for part in parts.begun] == [part.text for part in parts.begun], seed


def test_the_form_before_tools_is_a_call_too() -> None:
    piece = FunctionDelta(name="f", arguments="{}")
    assert read(chunk(function_call=piece)) == ["+0 call", "0:{}", "-0 call"]


def test_only_the_first_choice_counts() -> None:
    other = ChatCompletionChunk(choices=[ChunkChoice(index=1, delta=ChoiceDelta(content="no"), finish_reason="length")])
    parts = AnswerParts()
    assert parts.add(other) == []
    assert parts.finish_reason is None


def test_usage_finish_reason_and_the_matched_stop_are_kept() -> None:
    parts = AnswerParts()
    parts.add(ChatCompletionChunk(choices=[ChunkChoice(finish_reason="stop", stop_reason="END", matched_stop=7)]))
    parts.add(ChatCompletionChunk(usage=CompletionUsage(1, 2, 3)))
    assert (parts.finish_reason, parts.matched_stop, parts.usage) == ("stop", "END", CompletionUsage(1, 2, 3))


def test_log_probabilities_come_with_their_text() -> None:
    parts = AnswerParts()
    tokens = [{"token": "a", "logprob": -1.0}]
    events = parts.add(ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(content="a"), logprobs=ChoiceLogprobs(content=tokens))]))
    grew = events[1]
    assert isinstance(grew, PartGrew)
    assert grew.logprobs == grew.part.logprobs == tokens


@pytest.mark.parametrize(
    ("text", "is_whole"), [("{}", True), ("{", False), ("", False), ('"\ud800"', True), ('"\ud800', False), ("[" * 99_999, False)]
)
def test_whole_arguments_are_json(text: str, is_whole: bool) -> None:
    assert JSONPieces([text]).is_whole == is_whole


def test_a_whole_message_has_the_same_parts() -> None:
    message = ChatCompletionMessage(
        content="a",
        refusal="no",
        reasoning_content="hm",
        tool_calls=[ToolCall(id="1", function=FunctionCall("f", "{}"))],
        function_call=FunctionCall("g", "[]"),
    )
    parts = message_parts(message, {"content": [1]})
    assert [(part.index, part.kind, part.text) for part in parts] == [
        (0, "reasoning", "hm"),
        (1, "text", "a"),
        (2, "refusal", "no"),
        (3, "call", "{}"),
        (4, "call", "[]"),
    ]
    assert parts[1].logprobs == [1]
    assert message_parts(message, skips_reasoning=True)[0].kind == "text"
    assert message_parts(ChatCompletionMessage()) == []


def test_recorded_answers_have_the_parts_of_their_whole_message() -> None:
    count = 0
    for recording in recordings(apis=("chat",)):
        parser = ChatStreamParser()
        chunks = parser.feed(recording.body)
        if parser.error is not None or not chunks:
            continue
        parts = AnswerParts()
        for each in chunks:
            parts.add(each)
        parts.end()
        whole = [choice for choice in assemble(chunks).choices if choice.index == 0]
        if not whole:
            continue
        expected = message_parts(whole[0].message)
        for kind in ("text", "reasoning", "refusal"):
            assert "".join(part.text for part in parts.begun if part.kind == kind) == "".join(
                part.text for part in expected if part.kind == kind
            ), str(recording)
        found = [(part.call.name, part.text) for part in parts.begun if part.call is not None]
        assert found == [(part.call.name, part.text) for part in expected if part.call is not None], str(recording)
        assert not any(part.is_open for part in parts.begun)
        assert (parts.finish_reason, parts.usage) == (whole[0].finish_reason, assemble(chunks).usage), str(recording)
        count += 1
    assert count > 100
