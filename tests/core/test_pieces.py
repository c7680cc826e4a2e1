"""Chunks cut into pieces: where they are cut, which piece has what, and how much each weighs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.pieces import split_chunk, weigh_chunk
from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    ToolCallDelta,
    further_fields,
    with_further,
)
from streamco.testing.endpoint import text_chunk


def test_a_chunk_that_holds_many_tokens_is_cut_at_word_ends() -> None:
    chunk = text_chunk("The quick brown fox  jumps over\nthe lazy dog. ", finish_reason="stop")
    chunk.usage = CompletionUsage(1, 9, 10)
    chunk.choices[0].delta.role = "assistant"
    pieces = split_chunk(chunk)
    assert len(pieces) == 9
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * 8 + ["stop"]
    assert [piece.usage for piece in pieces] == [None] * 8 + [chunk.usage]
    assert pieces[0].choices[0].delta.role == "assistant"
    assert all(piece.id == chunk.id and piece.model == chunk.model for piece in pieces)


def test_languages_without_spaces_are_cut_between_characters() -> None:
    pieces = split_chunk(text_chunk("彼は毎朝、公園を散歩するのが好きです。"))
    assert len(pieces) > 10


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thinking_text_is_cut_under_the_name_the_server_gave_it(name: str) -> None:
    delta = ChoiceDelta()
    setattr(delta, name, "let me think about this one")
    pieces = split_chunk(ChatCompletionChunk(choices=[ChunkChoice(delta=delta)]))
    assert "".join(getattr(piece.choices[0].delta, name) for piece in pieces) == "let me think about this one"
    assert all(piece.choices[0].delta.content is None for piece in pieces)


def test_chunks_whose_text_belongs_to_other_data_stay_whole() -> None:
    with_ids = text_chunk("one two three four five", ids=[1, 2, 3, 4, 5])
    with_tools = text_chunk("one two three four five")
    with_tools.choices[0].delta.tool_calls = [ToolCallDelta(index=0)]
    with_logprobs = text_chunk("one two three four five")
    with_logprobs.choices[0].logprobs = ChoiceLogprobs(content=[])
    for chunk in (with_ids, with_tools, with_logprobs, ChatCompletionChunk(), text_chunk("short")):
        assert split_chunk(chunk) == [chunk]
    assert weigh_chunk(with_ids) == 5


def test_a_servers_own_fields_come_once_and_its_end_last() -> None:
    chunk = text_chunk("one two three four five", finish_reason="stop")
    chunk.provider, chunk.obfuscation = "Azure", "xx"
    choice = chunk.choices[0]
    choice.native_finish_reason, choice.content_filter_results = "end", {"hate": {"filtered": False}}
    choice.delta.reasoning_details = [{"index": 0}]
    choice.delta = with_further(choice.delta, {"channel": "final"})
    chunk.choices = [with_further(choice, {"seed": 5})]
    pieces: list[Any] = split_chunk(with_further(chunk, {"citations": ["a"]}))
    assert len(pieces) == 5
    assert {piece.provider for piece in pieces} == {"Azure"}
    assert [further_fields(piece) for piece in pieces] == [{"citations": ["a"]}, {}, {}, {}, {}]
    assert [further_fields(piece.choices[0]) for piece in pieces] == [{"seed": 5}, {}, {}, {}, {}]
    assert [further_fields(piece.choices[0].delta) for piece in pieces] == [{"channel": "final"}, {}, {}, {}, {}]
    assert [piece.choices[0].delta.reasoning_details for piece in pieces] == [[{"index": 0}], None, None, None, None]
    assert [piece.choices[0].native_finish_reason for piece in pieces] == [None, None, None, None, "end"]
    assert [piece.choices[0].finish_reason for piece in pieces] == [None, None, None, None, "stop"]


@given(st.text(max_size=200))
def test_the_pieces_together_are_the_text(text: str) -> None:
    pieces = split_chunk(text_chunk(text))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text


def test_a_chunk_of_a_megabyte_is_cut_into_a_thousand_pieces_and_keeps_its_time() -> None:
    text = "word " * 200_000
    pieces = split_chunk(text_chunk(text))
    assert len(pieces) <= 1024
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text
    assert sum(map(weigh_chunk, pieces)) == pytest.approx(250_000, rel=0.01)
