from __future__ import annotations

import io
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from streamco.cli.ui.live_region import Region, Row
from streamco.cli.ui.render import AnswerRenderer, make_console, markdown_styles, rows_of
from streamco.cli.ui.theme import THEMES
from tests.cli.emulator import Emulator, painted, plain
from tests.cli.ui.test_markdown import DOCUMENT

DARK = THEMES["dark"]
DEVICE, SERVER, LOCAL = "38;2;169;220;182", "38;2;168;199;250", "38;2;224;197;143"  # the tints as escape sequences


def make(width: int = 60) -> tuple[Console, AnswerRenderer]:
    console = Console(
        file=io.StringIO(), width=width, height=12, force_terminal=True, color_system="truecolor", theme=markdown_styles(DARK)
    )
    return console, AnswerRenderer(console, DARK)


def texts(rows: list[Row]) -> list[str]:
    return [plain(row.text) for row in rows]


def stream(text: str, *, room: int = 6, pieces: int | None = None, width: int = 60, seed: int = 0) -> list[Row]:
    """Rows after an answer came in random pieces, drawn after each."""
    _, renderer = make(width)
    dice = random.Random(seed)
    rows: list[Row] = []
    while text:
        cut = pieces or dice.randint(1, 12)
        piece, text = text[:cut], text[cut:]
        rows += renderer.feed(piece, "device")
        rows += renderer.frame(room).done
    return rows + renderer.finish()


def whole(text: str, width: int = 60) -> list[Row]:
    _, renderer = make(width)
    return renderer.feed(text, "device") + renderer.finish()


def test_markdown_comes_out_as_people_read_it() -> None:
    assert texts(whole(DOCUMENT)) == [
        "Title",
        "",
        "A paragraph with bold",
        "and a second line.",
        "",
        " • one",
        "    • nested",
        " • two after a blank line",
        "",
        "def f():",
        "",
        "    return 1",
        "",
        " a  b",
        " ────",
        " 1  2",
        "",
        " 1 first",
        " 2 second",
        "",
        "▌ quoted",
        "",
        "Done.",
    ]


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("pieces", [1, 2, 7, None])
@pytest.mark.parametrize("room", [3, 6, 50])
def test_however_it_is_cut_and_scrolled_the_same_rows_come_out_once(pieces: int | None, room: int) -> None:
    for seed in range(4 if pieces is None else 1):
        assert texts(stream(DOCUMENT, room=room, pieces=pieces, seed=seed)) == texts(whole(DOCUMENT)), f"seed {seed}"


@pytest.mark.long
def test_a_long_answer_is_never_cut_short() -> None:
    listing = "\n".join(f"{number}. item number {number}" for number in range(1, 201))
    code = "```python\n" + "\n".join(f"x{number} = {number}" for number in range(200)) + "\n```\n"
    rows = texts(stream(f"{listing}\n\n{code}", room=5, pieces=60))
    assert [row.strip() for row in rows if "item" in row] == [f"{number} item number {number}" for number in range(1, 201)]
    assert [row.strip() for row in rows if "=" in row] == [f"x{number} = {number}" for number in range(200)]


def test_open_rows_never_take_more_than_their_room() -> None:
    _, renderer = make()
    for number in range(60):
        renderer.feed(f"- item {number}\n", "server")
        assert len(renderer.frame(7).open) <= 7


def test_rows_leave_a_cell_free_so_that_none_wraps() -> None:
    for width in (20, 33, 80, 200):
        rows = whole("word " * 100 + "\n\n- a\n\n  ```\n  " + "x" * 500 + "\n  ```\n\n日本語の文章" * 20, width)
        assert all(row.cells < width for row in rows)


def test_a_line_of_code_stays_one_row_so_that_it_is_copied_whole() -> None:
    line = "    total = first + second  # a comment that is longer than the terminal is wide, and that must not become code"
    assert texts(whole(f"```python\nif x:\n{line}\n```\n", 60)) == ["if x:", line]
    wide = "# 日本語の文章" * 9
    assert all(row.cells < 60 for row in whole(f"```python\n{wide}\n```\n", 60)), "an edge in the middle of a wide character"


def test_a_line_of_code_that_would_fill_the_screen_is_wrapped() -> None:
    console, _ = make(60)
    rows = whole("```\n" + "x" * 5000 + "\n```\n", 60)
    assert max(row.height(60) for row in rows) <= console.height // 3
    assert "".join(texts(rows)) == "x" * 5000


def test_an_unfinished_fence_is_shown_as_code_from_its_first_line() -> None:
    _, renderer = make()
    renderer.feed("Look:\n\n```python\nprint(1", "device")
    frame = renderer.frame(10)
    assert texts(frame.done) == ["Look:"]
    assert texts(frame.open) == ["", "print(1"]


def test_text_is_tinted_by_its_maker_and_the_marks_leave_no_trace() -> None:
    _, renderer = make()
    renderer.feed("Made here, ", "device")
    renderer.feed("made there, ", "server")
    renderer.feed("made here.", "device")
    rows = renderer.finish()
    assert texts(rows) == ["Made here, made there, made here."]
    assert rows[0].cells == len("Made here, made there, made here.")
    parts = rows[0].text.split("\x1b[0m")
    assert [part for part in parts if part] == [f"\x1b[{DEVICE}mMade here, ", f"\x1b[{SERVER}mmade there, ", f"\x1b[{DEVICE}mmade here."]


LONG = "words that go on for longer than a row of the terminal is wide "
WRAPPED = {
    "paragraph": LONG * 4,
    "emphasis": f"Some **{LONG * 2}** and *{LONG * 2}* and `{LONG * 2}`",
    "link": f"See [{LONG * 2}](https://example.org/{'a' * 90})",
    "lines of one paragraph": f"{LONG}\n{LONG}\n{LONG}",
    "list": f"- {LONG * 2}\n- {LONG * 2}\n  - {LONG * 2}\n\n1. {LONG * 2}\n2. {LONG * 2}\n\n   {LONG * 2}",
    "quotation": f"> {LONG * 3}\n>\n> - {LONG * 2}\n> > {LONG * 2}",
    "headings": "\n\n".join(f"{'#' * level} {LONG * 2}" for level in range(1, 7)),
    "struck out": f"~~{LONG * 3}~~",
    "code": f"```\n{LONG}\n\n    {LONG}\n{'x' * 3000}\n```\n\n- code in a list\n\n  ```\n  {LONG}\n  {LONG}\n  ```",
    "table": f"| a | b |\n|---|---|\n| {LONG} | {LONG} |",
    "wide characters": "日本語の文章が続く" * 20 + "\n\n- " + "語" * 99 + "\n\n> " + "文、章" * 40,
    "one long word": "x" * 300,
}


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("width", [20, 37, 200])
@pytest.mark.parametrize("text", WRAPPED.values(), ids=WRAPPED)
def test_every_row_of_a_wrapped_block_has_its_tint(text: str, width: int) -> None:
    for rows in (whole(text, width), stream(text, room=3, width=width)):
        assert len([row for row in rows if row.cells]) > 1
        for row in rows:
            styles = {style for character, style in painted(row.text) if not character.isspace()}
            assert all(DEVICE in style for style in styles), row
            assert painted(f"{row.text}.")[-1] == (".", ""), "a row leaves no style behind"


def test_every_row_of_wrapped_thoughts_is_dim_and_italic() -> None:
    _, renderer = make(40)
    renderer.feed(LONG * 4, "server", "reasoning")
    rows = renderer.finish()
    assert len(rows) > 4
    assert {style for row in rows for character, style in painted(row.text) if not character.isspace()} == {"2;3"}


def test_code_in_colours_of_its_own_keeps_them_on_each_row() -> None:
    rows = whole('```python\ntext = """first\nsecond\n\nthird"""\n```')
    styles = [{style for character, style in painted(row.text) if character.isalpha()} for row in rows]
    assert styles[1] == styles[3]
    assert styles[1] <= styles[0]
    assert all("" not in style for style in styles)


_LETTERS = {"device": ("d", DEVICE), "server": ("s", SERVER), "local": ("l", LOCAL)}
_PIECES = st.lists(
    st.tuples(st.sampled_from(list(_LETTERS)), st.lists(st.integers(1, 12), min_size=1, max_size=12)), min_size=1, max_size=12
)


@given(_PIECES, st.sampled_from(["", "- ", "> ", "1. ", "# ", "**", "- > - "]), st.integers(12, 70))
def test_wherever_rows_break_each_letter_has_the_tint_of_its_maker(pieces: list[tuple[str, list[int]]], opening: str, width: int) -> None:
    _, renderer = make(width)
    renderer.feed(opening, pieces[0][0])
    for maker, words in pieces:
        renderer.feed("".join(f"{_LETTERS[maker][0] * length} " for length in words), maker)
    tints = dict(_LETTERS.values())
    for row in renderer.finish():
        for character, style in painted(row.text):
            assert tints.get(character, "") in style, row


def test_a_new_maker_at_a_block_border_tints_the_whole_block() -> None:
    _, renderer = make()
    renderer.feed("First.\n\n", "device")
    renderer.feed("- second\n- third", "server")
    rows = renderer.finish()
    assert DEVICE in rows[0].text
    assert all(f"\x1b[{SERVER}m{word}" in row.text for row, word in zip(rows[2:], ("second", "third"), strict=True))


@pytest.mark.parametrize("place", range(len(DOCUMENT)))
def test_a_hand_over_anywhere_changes_no_character(place: int) -> None:
    _, renderer = make()
    renderer.feed(DOCUMENT[:place], "device")
    renderer.feed(DOCUMENT[place:], "server")
    assert texts(renderer.finish()) == texts(whole(DOCUMENT))


def test_a_hand_over_inside_an_address_leaves_the_address_alone() -> None:
    _, renderer = make()
    renderer.feed("see [docs](https://exa", "device")
    renderer.feed("mple.org/a) now", "server")
    assert texts(renderer.finish()) == ["see docs (https://example.org/a) now"]


def test_thinking_is_shown_apart_as_it_is() -> None:
    _, renderer = make()
    rows = renderer.feed("\nHmm, **stars**", "server", "reasoning")
    rows += renderer.frame(10).done
    assert texts(renderer.frame(10).open) == ["Hmm, **stars**"]
    rows += renderer.feed("\n\nThe **answer**.", "server")
    assert texts(rows) == ["Hmm, **stars**"]
    assert "2;3m" in rows[0].text  # dim, italic
    assert texts(renderer.finish()) == ["", "The answer."]


def test_control_characters_never_reach_the_terminal() -> None:
    assert texts(whole("a\x1b[31mb\x07c\x9b1md\u2061e\r\nf\tg")) == ["a[31mbc1mde", "f       g"]


@given(st.text(), st.integers(3, 9))
def test_any_text_can_be_streamed(text: str, room: int) -> None:
    for row in stream(text, room=room, width=30):
        assert "\n" not in row.text
        assert row.cells < 30


def test_after_the_terminal_narrows_nothing_is_lost_and_next_to_nothing_repeated() -> None:
    words = [f"word{number}" for number in range(300)]
    for first, second in ((80, 40), (40, 80)):
        console, renderer = make(first)
        rows: list[Row] = []
        for index, word in enumerate(words):
            if index == 200:
                console.width = second
            rows += renderer.feed(f"{word} ", "device")
            rows += renderer.frame(5).done
        rows += renderer.finish()
        found = " ".join(texts(rows)).split()
        assert list(dict.fromkeys(found)) == words
        assert len(found) - len(words) <= 12  # at most a row's worth


def test_streamed_on_a_small_screen_the_scroll_back_reads_like_the_whole_answer() -> None:
    _, renderer = make()
    terminal, region = Emulator(height=8, width=60), Region(60)
    dice = random.Random(7)
    text = DOCUMENT * 3
    while text:
        cut = dice.randint(1, 9)
        done = renderer.feed(text[:cut], "device")
        text = text[cut:]
        frame = renderer.frame(5)
        terminal.write(region.draw([*frame.open, Row("", 0), Row("status", 6)], above=[*done, *frame.done]))
        assert terminal.screen[-1] == "status"
    terminal.write(region.draw([Row("end", 3)], above=renderer.finish()))
    assert terminal.text.split("\n") == [*texts(whole(DOCUMENT * 3)), "end"]


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("width", [37, 40, 60])
def test_long_lines_of_code_read_in_the_scroll_back_as_the_terminal_wraps_them(width: int) -> None:
    code = "\n".join(f"value_{number} = " + "x" * (number * 5) for number in range(25))
    document = f"Look:\n\n```python\n{code}\n```\n\nDone with *it*."
    console, renderer = make(width)
    console.height = 12
    terminal, region = Emulator(height=12, width=width), Region(width)
    rng, rest = random.Random(11), document
    while rest:
        cut = rng.randint(1, 9)
        done = renderer.feed(rest[:cut], "device")
        rest = rest[cut:]
        frame = renderer.frame(9)
        terminal.write(region.draw([*frame.open, Row("", 0), Row("status", 6)], above=[*done, *frame.done]))
        assert terminal.screen[-1] == "status"
    terminal.write(region.draw([Row("end", 3)], above=renderer.finish()))
    console, renderer = make(width)
    console.height = 12
    renderer.feed(document, "device")
    whole_rows = texts(renderer.finish())
    expected = [row[start : start + width].rstrip() for row in whole_rows for start in range(0, max(1, len(row)), width)]
    assert any(len(row) > width for row in whole_rows)
    assert terminal.text.split("\n") == [*expected, "end"]


def test_nothing_is_drawn_for_nothing() -> None:
    console, renderer = make()
    assert renderer.frame(5).open == []
    assert renderer.finish() == []
    assert rows_of(console, "") == []


def test_without_colours_the_rows_have_none() -> None:
    console = make_console(DARK, color=False)
    assert console.no_color
    assert all("38;" not in row.text for row in rows_of(console, "[red]text[/red]"))
