"""Elements of a JSON body are counted without parsing it: those of its structure, not those of its texts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.server.http.body_bounds import has_more_elements

PIECES = st.lists(st.sampled_from(['"', "\\", ",", "[", "{", "]", "a", "\\\\", '\\"']), max_size=60)


def elements_before_an_error(body: str) -> int:
    """Return the number of elements that a parser reads before a backslash outside of a text stops it; one character at a time."""
    count, is_in_text, is_escaped = 0, False, False
    for character in body:
        if is_escaped:
            is_escaped = False
        elif character == "\\":
            if not is_in_text:
                break
            is_escaped = True
        elif character == '"':
            is_in_text = not is_in_text
        else:
            count += not is_in_text and character in ",[{"
    return count


@given(PIECES, st.integers(0, 20))
def test_no_more_pass_than_a_parser_would_read(pieces: list[str], limit: int) -> None:
    body = "".join(pieces)
    if elements_before_an_error(body) > limit:
        assert has_more_elements(body.encode(), limit)


TEXTS = st.text(',[{"\\a🐈')
VALUES = st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=30)


@given(VALUES, st.booleans())
def test_json_is_counted_exactly(value: object, is_ascii: bool) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii)
    count = elements_before_an_error(body)
    assert count == 0 or has_more_elements(body.encode(), count - 1)
    assert not has_more_elements(body.encode(), count)


@pytest.mark.parametrize("text", ["1,2,3\n" * 100_000, '\\"[{,' * 100_000, "\\" * 300_000 + "," * 300_000])
def test_a_long_text_full_of_signs_is_one_element(text: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert not has_more_elements(body, 4)
    assert has_more_elements(body, 3)


@pytest.mark.parametrize("body", [b"{" * 2_000_000, b'["",' * 1_000_000])
def test_more_texts_than_elements_can_hold_are_too_many(body: bytes) -> None:
    assert has_more_elements(body, 250_000)
