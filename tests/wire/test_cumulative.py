"""Text that is repeated in every event is given once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from streamco.wire.cumulative import CumulativeText


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
    assert [keep(texts, content) for content in ("The cat", "A cat sat", "The", "The cat ran")] == ["The cat", None, None, " ran"]


def test_what_came_as_deltas_before_is_not_repeated() -> None:
    texts = CumulativeText()
    begun = [texts.has_begun]
    texts.begin("The")
    begun.append(texts.has_begun)
    assert begun == [False, True]
    assert keep(texts, "The cat") == " cat"
    assert keep(texts, "The cat", index=1) == "The cat"
