"""What is handed over when an answer changes hands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.race.transcript import Transcript
from streamco.events import Partial, TextRepeated
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, FunctionDelta, ToolCallDelta
from streamco.testing.endpoint import text_chunk


def test_nothing_yet_is_an_empty_partial() -> None:
    assert Transcript().partial() == Partial(text="", ids=None, vocabulary=None, tokens=0)


def test_ids_of_one_vocabulary_are_handed_over_with_the_text() -> None:
    transcript = Transcript()
    transcript.add([text_chunk("He", ids=[7]), text_chunk("é", ids=[8, 9])], 3, "v")
    transcript.add([text_chunk("", ids=[10]), text_chunk("ö", ids=[11])], 2, "v")
    assert transcript.partial() == Partial(text="Heéö", ids=(7, 8, 9, 10, 11), vocabulary="v", tokens=5, is_counted=True)


def test_ids_told_ahead_of_their_text_are_not_handed_over() -> None:
    transcript = Transcript()
    transcript.add([text_chunk("a", ids=[1]), text_chunk("", ids=[2]), text_chunk("", ids=[3])], 3, "v")
    assert transcript.partial() == Partial(text="a", ids=(1,), vocabulary="v", tokens=1, is_counted=True)
    transcript.add([text_chunk("é", ids=[4])], 1, "v")
    assert transcript.partial() == Partial(text="aé", ids=(1, 2, 3, 4), vocabulary="v", tokens=4, is_counted=True)


def test_who_goes_on_makes_ids_without_text_anew() -> None:
    transcript = Transcript()
    transcript.add([text_chunk("a", ids=[1]), text_chunk("", ids=[2]), text_chunk("", ids=[3])], 3, "v")
    transcript.drop_incomplete()
    assert transcript.tokens == 1
    transcript.add([text_chunk("", ids=[2])], 1, "v")
    transcript.drop_incomplete()
    transcript.add([text_chunk("", ids=[2]), text_chunk("é", ids=[3, 4])], 3, "v")
    transcript.drop_incomplete()
    assert transcript.partial() == Partial(text="aé", ids=(1, 2, 3, 4), vocabulary="v", tokens=4, is_counted=True)


def test_the_ids_of_another_vocabulary_ahead_of_their_text_do_not_count() -> None:
    transcript = Transcript()
    transcript.add([text_chunk("a", ids=[1])], 1, "v")
    transcript.add([text_chunk("", ids=[9])], 1, "w")
    assert transcript.partial() == Partial(text="a", ids=(1,), vocabulary="v", tokens=1, is_counted=True)


def test_one_piece_without_ids_makes_it_text() -> None:
    transcript = Transcript()
    transcript.add([text_chunk("a", ids=[1]), text_chunk("b")], 2, "v")
    assert transcript.partial() == Partial(text="ab", tokens=2)


def test_thinking_is_not_handed_over_nor_are_its_ids() -> None:
    transcript = Transcript()
    thought = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="hm"), token_ids=[5])])
    transcript.add([thought], 1, "v")
    assert transcript.partial() == Partial(text="", tokens=1, is_counted=True)
    transcript.add([text_chunk("a", ids=[1])], 1, "v")
    assert transcript.partial() == Partial(text="a", ids=(1,), vocabulary="v", tokens=2, is_counted=True)


def test_two_vocabularies_make_it_text() -> None:
    transcript = Transcript()
    transcript.add([text_chunk("a", ids=[1])], 1, "v")
    transcript.add([text_chunk("b", ids=[1])], 1, "w")
    assert transcript.partial() == Partial(text="ab", tokens=2, is_counted=True)


def test_ids_of_an_unknown_vocabulary_are_of_no_use() -> None:
    transcript = Transcript()
    transcript.add([text_chunk("a", ids=[1])], 1, None)
    assert transcript.partial() == Partial(text="a", tokens=1, is_counted=True)


def test_thinking_is_no_part_of_the_answer() -> None:
    transcript = Transcript()
    thought = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="hmm"))])
    transcript.add([thought, text_chunk("a", ids=[1])], 2, "v")
    assert transcript.partial() == Partial(text="a", ids=(1,), vocabulary="v", tokens=2)


def test_the_mark_that_ends_a_thought_is_not_taken_for_the_answers() -> None:
    transcript = Transcript()
    thought = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning="hmm"), token_ids=[5])])
    transcript.add([thought, text_chunk("", ids=[6]), text_chunk("a", ids=[1])], 3, "v")
    assert transcript.partial() == Partial(text="a", tokens=3, is_counted=True)


@pytest.mark.parametrize(
    "begun",
    [
        ChoiceDelta(tool_calls=[ToolCallDelta(index=0, function=FunctionDelta(name="f"))]),
        ChoiceDelta(function_call=FunctionDelta(name="f")),
        ChoiceDelta(refusal="I can't"),
        ChoiceDelta(audio={"data": "UklGRg=="}),
    ],
)
def test_what_no_other_endpoint_can_continue_is_noticed(begun: ChoiceDelta) -> None:
    transcript = Transcript()
    transcript.add([text_chunk("a"), ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="hm"))])], 1, "v")
    assert transcript.is_text_alone is True
    transcript.add([ChatCompletionChunk(choices=[ChunkChoice(delta=begun)]), text_chunk("b")], 1, "v")
    assert transcript.is_text_alone is False


@given(st.lists(st.tuples(st.text(max_size=4), st.lists(st.integers(0, 9), min_size=1, max_size=3)), max_size=20), st.integers(1, 5))
def test_whatever_the_batches_text_and_ids_come_out_in_order(pieces: list[tuple[str, list[int]]], size: int) -> None:
    transcript = Transcript()
    for start in range(0, len(pieces), size):
        batch = pieces[start : start + size]
        transcript.add([text_chunk(text, ids=ids) for text, ids in batch], sum(len(ids) for _, ids in batch), "v")
    partial = transcript.partial()
    told = [ids for text, ids in pieces[: max((at for at, (text, _) in enumerate(pieces, 1) if text), default=0)]]
    assert partial.text == transcript.text == "".join(text for text, _ in pieces)
    assert (partial.ids or ()) == tuple(token for ids in told for token in ids)
    assert partial.tokens == sum(len(ids) for ids in told)


def test_tokens_are_counted_only_if_all_that_was_generated_came_with_ids() -> None:
    transcript = Transcript()
    role = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta("", "assistant"))])
    transcript.add([role, text_chunk("a", ids=[1])], 1, "v")
    assert transcript.partial().is_counted
    transcript.add([ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning="hm"))])], 1, "v")
    assert not transcript.partial().is_counted


@given(st.lists(st.tuples(st.text(min_size=1, max_size=4), st.booleans()), max_size=20))
def test_text_that_repeats_a_chunk_counts_like_the_chunk_with_it(pieces: list[tuple[str, bool]]) -> None:
    whole, repeated, like = Transcript(), Transcript(), text_chunk("a")
    for text, is_repeated in pieces:
        whole.add([text_chunk(text)], 1, "v")
        repeated.add(TextRepeated("s", like, text, 1) if is_repeated else [text_chunk(text)], 1, "v")
    assert repeated.partial() == whole.partial()
    assert (repeated.text, repeated.ends_in_text, repeated.is_text_alone) == (whole.text, whole.ends_in_text, whole.is_text_alone)
    assert like == text_chunk("a")
