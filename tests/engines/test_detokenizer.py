"""Whole code points and unseen stop strings, at every way of cutting text into tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.base import TextPiece
from streamco.engines.detokenizer import IncrementalDetokenizer, StopMatcher, TextAssembler


def assemble(tokens: list[bytes]) -> list[TextPiece]:
    assembler = TextAssembler(tokens.__getitem__)
    pieces = [piece for index in range(len(tokens)) if (piece := assembler.add(index)) is not None]
    last = assembler.flush()
    return pieces if last is None else [*pieces, last]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(borders)]


def test_a_token_of_whole_characters_is_a_piece() -> None:
    assert assemble([b"Hello", b" w\xc3\xb6rld"]) == [TextPiece("Hello", (0,)), TextPiece(" wörld", (1,))]


def test_a_character_over_four_tokens_is_one_piece_with_four_ids() -> None:
    assert assemble([b"\xf0", b"\x9f", b"\x90", b"\x88"]) == [TextPiece("🐈", (0, 1, 2, 3))]


def test_text_before_an_open_character_waits_for_it_so_that_ids_and_text_agree() -> None:
    assert assemble([b"a\xc3", b"\xa9b"]) == [TextPiece("aéb", (0, 1))]


def test_an_open_character_at_the_end_becomes_a_replacement_character() -> None:
    assert assemble([b"ok", b"\xf0\x9f"]) == [TextPiece("ok", (0,)), TextPiece("\ufffd", (1,))]


def test_bytes_that_are_not_utf8_do_not_stop_the_text() -> None:
    assert [piece.text for piece in assemble([b"\xff", b"a", b"\xc3", b"(", b"z"])] == ["\ufffd", "a", "\ufffd(", "z"]


def test_tokens_without_text_go_with_the_next_piece() -> None:
    assert assemble([b"", b"a", b"", b""]) == [TextPiece("a", (0, 1)), TextPiece("", (2, 3))]


def test_each_token_keeps_its_own_table() -> None:
    assembler = TextAssembler([b"\xc3", b"\xa9"].__getitem__)
    assert assembler.add(0, ((0, 0.9),)) is None
    assert assembler.add(1, ((1, 0.8),)) == TextPiece("é", (0, 1), (((0, 0.9),), ((1, 0.8),)))


@given(st.binary(max_size=40), st.lists(st.integers(0, 80)), st.lists(st.text("ab\ufffd", min_size=1, max_size=3), max_size=2))
def test_tables_stay_with_their_tokens_at_any_cut_and_any_stop_string(data: bytes, places: list[int], stops: list[str]) -> None:
    tokens = cut(data, places)
    text = IncrementalDetokenizer(tokens.__getitem__, tuple(stops))
    shown: list[TextPiece] = []
    for token in range(len(tokens)):
        completed = text.add(token, ((token, 0.5),))
        shown += completed[0] if completed is not None else []
        if completed is not None and completed[1]:
            break
    else:
        shown += text.flush()
    for piece in shown:
        assert piece.tops == tuple(((token, 0.5),) for token in piece.ids)


@given(st.binary(max_size=60), st.lists(st.integers(0, 100)))
def test_pieces_join_to_the_decoded_bytes_and_each_agrees_with_its_ids(data: bytes, places: list[int]) -> None:
    tokens = cut(data, places)
    pieces = assemble(tokens)
    assert "".join(piece.text for piece in pieces) == data.decode("utf-8", "replace")
    assert [token for piece in pieces for token in piece.ids] == list(range(len(tokens)))


@given(st.text(max_size=40), st.lists(st.integers(0, 200)))
def test_of_valid_text_every_piece_is_exactly_its_tokens_bytes(text: str, places: list[int]) -> None:
    tokens = cut(text.encode("utf-8", "replace"), places)
    for piece in assemble(tokens):
        assert piece.text.encode() == b"".join(tokens[token] for token in piece.ids)


def feed(stops: tuple[str, ...], words: list[str]) -> tuple[list[TextPiece], bool]:
    matcher = StopMatcher(stops)
    shown: list[TextPiece] = []
    for index, word in enumerate(words):
        pieces, has_stopped = matcher.add(TextPiece(word, (index,)))
        shown += pieces
        if has_stopped:
            return shown, True
    return shown + matcher.flush(), False


def test_without_stop_strings_nothing_is_held() -> None:
    piece = TextPiece("a", (1,))
    assert StopMatcher(()).add(piece) == ([piece], False)
    assert StopMatcher(("",)).add(piece) == ([piece], False)


def test_a_stop_string_inside_a_token_cuts_it() -> None:
    assert feed(("\n\n",), ["one", " two\n\nthree"]) == ([TextPiece("one", (0,)), TextPiece(" two", (1,), is_cut=True)], True)


def test_a_stop_string_over_tokens_drops_those_wholly_inside() -> None:
    assert feed(("<end>",), ["a", "b<", "en", "d>", "c"]) == ([TextPiece("a", (0,)), TextPiece("b", (1,), is_cut=True)], True)


def test_what_only_looked_like_a_stop_string_is_shown_late_and_whole() -> None:
    matcher = StopMatcher(("<end>",))
    assert matcher.add(TextPiece("<en", (0,))) == ([], False)
    assert matcher.add(TextPiece("joy", (1,))) == ([TextPiece("<en", (0,)), TextPiece("joy", (1,))], False)


def test_what_is_held_at_the_end_is_shown() -> None:
    assert feed(("<end>",), ["a", "<e"]) == ([TextPiece("a", (0,)), TextPiece("<e", (1,))], False)


def test_the_earliest_of_several_stop_strings_counts() -> None:
    assert feed(("world", "lo w"), ["hel", "lo", " wor", "ld"]) == ([TextPiece("hel", (0,))], True)


def test_a_stop_string_at_the_very_beginning_leaves_nothing() -> None:
    assert feed(("ab",), ["a", "b"]) == ([], True)


@pytest.mark.parametrize("stop", ["aab", "abab", "aaaa", "b"])
def test_overlapping_beginnings_are_found(stop: str) -> None:
    words = list("aaabababaaaab")
    shown, has_stopped = feed((stop,), words)
    assert has_stopped
    assert "".join(piece.text for piece in shown) == "".join(words).split(stop)[0]


@given(st.text("ab", max_size=30), st.lists(st.integers(0, 30)), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_any_cut_shows_the_text_before_the_first_stop_string(text: str, places: list[int], stops: list[str]) -> None:
    words = [word.decode() for word in cut(text.encode(), places)]
    shown, has_stopped = feed(tuple(stops), words)
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert has_stopped == bool(ends)
    seen = "".join(piece.text for piece in shown)
    if not ends:
        assert seen == text
    else:
        assert text.startswith(seen)
        assert not any(stop in seen for stop in stops)
    for piece in shown:
        (token,) = piece.ids
        assert words[token].startswith(piece.text)


@given(st.text(min_size=1, max_size=8), st.integers(0, 40))
def test_a_code_point_that_was_begun_before_is_shown_with_the_token_that_ends_it(text: str, place: int) -> None:
    data = text.encode()
    cut = place % len(data)
    whole = data[:cut].decode("utf-8", "ignore")
    opened = data[len(whole.encode()) : cut]
    tokens = [bytes([byte]) for byte in data[cut:]]
    assembler = TextAssembler(tokens.__getitem__, opened)
    pieces = [piece for index in range(len(tokens)) if (piece := assembler.add(index)) is not None]
    assert whole + "".join(piece.text for piece in pieces) == text
    assert [token for piece in pieces for token in piece.ids] == list(range(len(tokens)))
    assert assembler.flush() is None


def test_a_beginning_that_nothing_follows_is_not_shown() -> None:
    assert TextAssembler([b""].__getitem__, b"\xf0\x9f").flush() is None


def test_tokens_become_pieces_without_a_stop_string() -> None:
    text = IncrementalDetokenizer([b"one", b"\xc3", b"\xa9"].__getitem__, ())
    assert text.add(0) == ([TextPiece("one", (0,))], False)
    assert text.add(1) is None
    assert text.add(2) == ([TextPiece("é", (1, 2))], False)
    assert text.flush() == []


@pytest.mark.parametrize(
    ("stops", "words", "found"),
    [
        (("world", "lo w"), ["hel", "lo", " wor", "ld"], "lo w"),
        (("b", "END"), ["one", "END"], "END"),
        (("END", "END!"), ["one END!"], "END"),
        (("END",), ["one"], None),
        ((), ["END"], None),
    ],
)
def test_the_stop_string_that_was_found_is_known(stops: tuple[str, ...], words: list[str], found: str | None) -> None:
    text = IncrementalDetokenizer([word.encode() for word in words].__getitem__, stops)
    for token in range(len(words)):
        text.add(token)
    assert text.found_stop == found


def test_a_stop_string_ends_the_pieces() -> None:
    text = IncrementalDetokenizer([b"one", b" E", b"ND"].__getitem__, ("END",))
    assert text.add(0) == ([TextPiece("one", (0,))], False)
    assert text.add(1) == ([], False)
    assert text.add(2) == ([TextPiece(" ", (1,), is_cut=True)], True)


@pytest.mark.parametrize(("stops", "pieces"), [((), ["\ufffd"]), (("EN",), ["E", "\ufffd"]), (("E\ufffd",), [])])
def test_an_answer_s_end_shows_what_was_held(stops: tuple[str, ...], pieces: list[str]) -> None:
    text = IncrementalDetokenizer([b"E", b"\xc3"].__getitem__, stops)
    text.add(0)
    text.add(1)
    assert [piece.text for piece in text.flush()] == pieces
