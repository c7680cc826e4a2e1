from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.cli.ui.live_region import Region, Row
from tests.cli.emulator import Emulator


def rows(*texts: str) -> list[Row]:
    return [Row(text, len(text)) for text in texts]


def test_the_first_drawing_writes_all_rows_and_leaves_the_cursor_on_the_last() -> None:
    terminal = Emulator()
    terminal.write(Region(80).draw(rows("one", "two")))
    assert terminal.text == "one\ntwo"
    assert (terminal.row, terminal.column) == (1, 3)


def test_what_did_not_change_is_not_written_again() -> None:
    terminal, region = Emulator(), Region(80)
    terminal.write(region.draw(rows("one", "two", "status 1")))
    terminal.touched.clear()
    terminal.write(region.draw(rows("one", "two", "status 2")))
    assert terminal.text == "one\ntwo\nstatus 2"
    assert terminal.touched == {2}


def test_an_unchanged_drawing_writes_nothing() -> None:
    region = Region(80)
    region.draw(rows("one", "two"))
    assert region.draw(rows("one", "two")) == ""


def test_a_shorter_row_leaves_nothing_of_the_longer_one() -> None:
    terminal, region = Emulator(), Region(80)
    terminal.write(region.draw(rows("a long row", "b")))
    terminal.write(region.draw(rows("short", "b")))
    assert terminal.text == "short\nb"


def test_rows_above_become_ordinary_text_and_the_region_moves_down() -> None:
    terminal, region = Emulator(), Region(80)
    terminal.write(region.draw(rows("open", "status")))
    terminal.write(region.draw(rows("open 2", "status"), above=rows("done")))
    terminal.write(region.draw(rows("open 3", "status")))
    assert terminal.text == "done\nopen 3\nstatus"


def test_rows_that_were_drawn_and_are_done_now_are_not_written_twice() -> None:
    terminal, region = Emulator(), Region(80)
    terminal.write(region.draw(rows("line 1", "line 2")))
    terminal.touched.clear()
    terminal.write(region.draw(rows("line 3"), above=rows("line 1", "line 2")))
    assert terminal.text == "line 1\nline 2\nline 3"
    assert terminal.touched == {2}


def test_fewer_rows_take_the_rest_away() -> None:
    terminal, region = Emulator(), Region(80)
    terminal.write(region.draw(rows("one", "two", "three")))
    terminal.write(region.draw(rows("one")))
    assert terminal.text == "one"
    assert (terminal.row, terminal.column) == (0, 3)
    terminal.write(region.draw([]))
    assert terminal.text == ""
    assert (terminal.row, terminal.column) == (0, 0)


def test_closing_puts_the_cursor_on_a_line_of_its_own() -> None:
    terminal, region = Emulator(), Region(80)
    terminal.write(region.draw(rows("one", "two")))
    terminal.write(region.close())
    assert (terminal.row, terminal.column) == (2, 0)
    assert region.close() == ""


def test_a_drawing_is_one_synchronised_update() -> None:
    text = Region(80).draw(rows("one"))
    assert text.startswith("\x1b[?2026h")
    assert text.endswith("\x1b[?2026l")


@pytest.mark.parametrize(("width", "moved_up"), [(80, 1), (10, 1), (5, 2), (4, 4)])
def test_after_a_resize_the_region_is_wiped_wherever_wrapping_moved_it(width: int, moved_up: int) -> None:
    region = Region(80)
    region.draw(rows("0123456789", "01234"))
    text = region.reflow(width)
    assert text == f"\r\x1b[{moved_up}A\x1b[J"


def test_a_region_without_rows_needs_no_wiping() -> None:
    assert Region(80).reflow(10) == ""


texts = st.lists(st.text("abc ", max_size=6).map(str.rstrip), max_size=5)


@given(st.lists(st.tuples(texts, texts), max_size=8), st.integers(6, 12))
def test_whatever_is_drawn_the_terminal_shows_what_is_done_and_then_the_newest_rows(
    frames: list[tuple[list[str], list[str]]], height: int
) -> None:
    terminal, region, done = Emulator(height=height), Region(80), ""
    open_rows: list[str] = []
    for above, wanted in frames:
        open_rows = wanted if wanted or not above else ["status"]  # the caller ends the line when nothing stays open
        done += "".join(f"{text}\n" for text in above)
        terminal.write(region.draw(rows(*open_rows), above=rows(*above)))
    assert terminal.text == (done + "\n".join(open_rows)).rstrip("\n")


def test_rows_that_are_done_as_they_stand_need_no_writing() -> None:
    terminal, region = Emulator(), Region(80)
    terminal.write(region.draw(rows("line", "status")))
    assert region.draw(rows("status"), above=rows("line")) == ""
    terminal.write(region.draw(rows("more", "status")))
    assert terminal.text == "line\nmore\nstatus"


def test_a_row_that_the_terminal_wraps_is_redrawn_at_its_height() -> None:
    terminal, region = Emulator(width=10), Region(10)
    terminal.write(region.draw(rows("x" * 25, "status 1")))
    assert terminal.text == f"{'x' * 10}\n{'x' * 10}\n{'x' * 5}\nstatus 1"
    terminal.write(region.draw(rows("x" * 31, "status 2")))
    terminal.write(region.draw(rows("y" * 20, "status 3"), above=rows("x" * 30)))
    assert terminal.text == "\n".join(["x" * 10] * 3 + ["y" * 10] * 2 + ["status 3"])
    terminal.write(region.draw([], above=rows("y" * 20)))
    assert terminal.text == "\n".join(["x" * 10] * 3 + ["y" * 10] * 2)


def test_a_row_that_ends_at_the_edge_is_not_erased_there() -> None:
    assert "\x1b[K" not in Region(10).draw(rows("x" * 10))
    assert "\x1b[K" in Region(10).draw(rows("x" * 9))
