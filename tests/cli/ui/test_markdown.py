from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.cli.ui.markdown import blocks, closed_end, complete, is_in_fence, parse

DOCUMENT = """\
# Title

A paragraph with **bold**
and a second line.

- one
  - nested

- two after a blank line

```python
def f():

    return 1
```

| a | b |
|---|---|
| 1 | 2 |

1. first
2. second

> quoted

Done."""


def test_blocks_are_the_top_level_ones_and_join_to_the_text() -> None:
    found = blocks(DOCUMENT)
    assert [block.split("\n", 1)[0] for block in found] == [
        "# Title",
        "A paragraph with **bold**",
        "- one",
        "```python",
        "| a | b |",
        "1. first",
        "> quoted",
        "Done.",
    ]
    assert "".join(found) == DOCUMENT


@pytest.mark.parametrize("text", ["", "\n\n", "  "])
def test_a_text_without_blocks_is_whole(text: str) -> None:
    assert "".join(blocks(text)) == text
    assert closed_end(text) == 0


@given(st.text("ab*_`~#->|[]()\n 1."))
def test_blocks_join_to_any_text(text: str) -> None:
    assert "".join(blocks(text)) == text


def test_closed_blocks_stay_as_they_are_whatever_comes_next() -> None:
    for end in range(len(DOCUMENT)):
        closed = closed_end(DOCUMENT[:end])
        before = blocks(DOCUMENT[:closed])
        assert blocks(DOCUMENT)[: len(before)] == before, DOCUMENT[:end]


def test_the_open_block_is_what_has_not_been_followed_by_another() -> None:
    assert closed_end("one paragraph") == 0
    assert closed_end("one\n\ntwo") == len("one\n\n")
    assert closed_end("one\n\n- a\n- b\n") == len("one\n\n")
    assert closed_end("```\ncode\n\nmore code\n") == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("some **bo", "some **bo**"),
        ("some *it", "some *it*"),
        ("some **bold *it", "some **bold *it***"),
        ("some `co", "some `co`"),
        ("a ``b`c", "a ``b`c``"),
        ("~~gone", "~~gone~~"),
        ("**bold** and plain", "**bold** and plain"),
        ("some **", "some"),
        ("ends in **bold ", "ends in **bold**"),
    ],
)
def test_what_is_open_at_the_end_is_closed(text: str, shown: str) -> None:
    assert complete(text) == shown


@pytest.mark.parametrize("text", ["2*3", "a * b", "snake_case and more_of_it", r"\*not", "x_1", "5 * 3 * 2", "it costs 3~4"])
def test_marks_that_are_meant_as_they_stand_are_left_alone(text: str) -> None:
    assert complete(text) == text


@pytest.mark.parametrize("line", ["-", "*", "**", "#", "##", "`", "``", "```"[:2], "1", "12.", "1)", ">", "|", "|--", "---", "==", "~~"])
def test_a_line_that_may_yet_become_anything_is_held_back(line: str) -> None:
    assert complete(f"Some text\n{line}") == "Some text"


def test_a_line_under_a_paragraph_never_flashes_as_a_heading() -> None:
    for line in ("-", "--", "---", "=", "=="):
        types = {token.type for token in parse(complete(f"Some text\n{line}"))}
        assert "heading_open" not in types


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see [the do", "see the do"),
        ("see [the docs](", "see the docs"),
        ("see [the docs](https://exa", "see the docs"),
        ("see [the docs](https://example.org)", "see [the docs](https://example.org)"),
        ("![an ima", "an ima"),
        ("`a[0", "`a[0`"),
    ],
)
def test_a_link_shows_its_text_before_its_address_has_come(text: str, shown: str) -> None:
    assert complete(text) == shown


def test_emphasis_left_open_in_an_earlier_item_does_not_reach_into_the_last() -> None:
    assert complete("- a **b\n- c") == "- a **b\n- c"
    assert complete("a **b\n\nc") == "a **b\n\nc"
    assert complete("| a **b | c") == "| a **b | c"


def test_inside_a_fence_nothing_is_closed() -> None:
    assert complete("```\na **b `c") == "```\na **b `c"


@pytest.mark.parametrize("last", ["`", "``", "  ``"])
def test_the_beginning_of_a_closing_fence_is_held_back(last: str) -> None:
    assert complete(f"```\ncode\n{last}") == "```\ncode"


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("```python\ncode", True),
        ("```\ncode\n```", False),
        ("````\n```\ncode", True),
        ("````\n```\n````\n", False),
        ("~~~\n```\n", True),
        ("- item\n  ```sh\n  ls\n", True),
        ("- item\n  ```sh\n  ls\n  ```\n", False),
        ("```\n``` not a close\n", True),
        ("no `fence` here", False),
        ("", False),
    ],
)
def test_an_open_fence_is_told_from_a_closed_one(text: str, is_open: bool) -> None:
    assert is_in_fence(text) is is_open


def test_html_is_text_and_a_newline_is_a_line_break() -> None:
    inline = parse("<think>hm</think>\nyes")[1]
    assert [child.type for child in inline.children or ()] == ["text", "hardbreak", "text"]
    assert inline.children is not None
    assert inline.children[0].content == "<think>hm</think>"


@given(st.text("ab*_`~#->|[]()\n 1.\\"))
def test_completing_any_text_gives_markdown_that_parses(text: str) -> None:
    parse(complete(text))
