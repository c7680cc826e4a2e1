"""Cuts in text: never inside a character, and together the pieces are the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.graphemes import cut_evenly, is_boundary

CLUSTERS = [
    "e\u0301",  # e with an acute accent
    "\u304b\u3099",  # ka with a voiced sound mark
    "\uff76\uff9e",  # the same in half width
    "\r\n",
    "\U0001f44d\U0001f3fd",  # a thumb with a skin tone
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",  # a family
    "\U0001f1eb\U0001f1f7",  # a flag
    "\u2764\ufe0f",  # a heart in colour
    "1\ufe0f\u20e3",  # a keycap
    "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",  # the flag of Scotland, made of tags
    "\u0915\u094d\u0937\u093f",  # Devanagari kshi: a conjunct of two consonants and a vowel sign
    "\u0e19\u0e49\u0e33",  # Thai nam: tone mark and vowel sign
    "\u1112\u1161\u11ab",  # Hangul letters of one syllable
    "\uac00\u11a8",  # a Hangul syllable with a further letter
    "\ud83d\ude00",  # a surrogate pair that was decoded as two halves
]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=ascii)
def test_there_is_no_cut_inside_a_character(cluster: str) -> None:
    assert not any(is_boundary(cluster, index) for index in range(1, len(cluster)))


@pytest.mark.parametrize(
    "text", ["ab", "a b", "\u5f7c\u306f", "\ud55c\uad6d", "\u0430\u0431", "\U0001f600\U0001f601", "e\u0301a", "\n\n", "\n\r"], ids=ascii
)
def test_there_is_one_between_two(text: str) -> None:
    assert is_boundary(text, len(text) - 1)


@given(st.lists(st.sampled_from([*CLUSTERS, " ", "a", "word ", "\u5f7c"])), st.integers(1, 24))
def test_no_piece_begins_inside_a_character(clusters: list[str], pieces: int) -> None:
    text, starts, position = "".join(clusters), set[int](), 0
    for cluster in clusters:
        starts |= {position} if cluster in CLUSTERS else set(range(position, position + len(cluster)))
        position += len(cluster)
    position = 0
    for piece in cut_evenly(text, pieces):
        assert position in starts or not text
        position += len(piece)
    assert position == len(text)


@given(st.text(max_size=300), st.integers(1, 24))
def test_the_pieces_are_no_more_than_asked_for_and_together_the_text(text: str, pieces: int) -> None:
    cut = cut_evenly(text, pieces)
    assert "".join(cut) == text
    assert 1 <= len(cut) <= pieces
    assert all(cut) or not text


@given(st.text(max_size=100))
def test_every_cut_is_one_of_unicodes_rules(text: str) -> None:
    """A second implementation of UAX #29 knows all places where a cut is allowed."""
    regex = pytest.importorskip("regex")
    allowed = {match.start() for match in regex.finditer(r"\X", text)}
    assert {index for index in range(1, len(text)) if is_boundary(text, index)} <= allowed


def test_words_stay_whole_where_the_pieces_are_long_enough() -> None:
    assert cut_evenly("The quick brown fox jumps over the lazy dog", 4) == ["The quick", " brown fox", " jumps over", " the lazy dog"]


def test_text_without_spaces_is_cut_evenly_too() -> None:
    pieces = cut_evenly("https://example.com/" + "a" * 1980, 24)
    assert {len(piece) for piece in pieces} <= {83, 84}
    assert [len(piece) for piece in cut_evenly("\u5f7c\u306f\u6bce\u671d\u516c\u5712\u3092\u6563\u6b69", 3)] == [3, 3, 3]


def test_a_character_of_many_marks_is_one_piece_and_the_text_after_it_is_cut() -> None:
    many = "a" + "\u0301" * 10_000
    assert cut_evenly(many, 24) == [many]
    pieces = cut_evenly(many + "b" * 10_000, 20)
    assert pieces[0].startswith(many)
    assert len(pieces) > 8


def test_the_end_of_a_character_of_a_million_marks_is_not_looked_for_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def count(text: str, index: int) -> bool:
        nonlocal looked
        looked += 1
        return is_boundary(text, index)

    monkeypatch.setattr("streamco.core.graphemes.is_boundary", count)
    assert len(cut_evenly("\u0301" * 1_000_000, 20)) == 1
    assert looked < 20_000


@given(st.text(alphabet=["\u0600", "\u200d", "\u0915", "\u094d", "\u1112", " ", "\r", "\n", "a"], max_size=60), st.integers(1, 24))
def test_a_word_begins_a_piece_only_where_a_cut_is_allowed(text: str, pieces: int) -> None:
    position = 0
    for piece in cut_evenly(text, pieces)[:-1]:
        position += len(piece)
        assert is_boundary(text, position)
