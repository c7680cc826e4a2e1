"""Two answers side by side."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from streamco.cli.ui.columns import Column, show_columns
from streamco.cli.ui.terminal import TerminalView
from streamco.cli.ui.theme import THEMES
from streamco.cli.ui.view import PlainView


class Clock:
    """Seconds that stand still until they are set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def filled(left: Column, right: Column) -> None:
    """One answer that breaks off, and one that the other side finishes."""
    left.feed("server", " ", 0.5)
    left.feed("server", "The sky is", 0.8)
    left.failure, left.ended = "ConnectionError: gone", 1.0
    right.feed("server", "The **sky** is", 0.7)
    right.feed("device", " blue.\x1b[31m", 1.2)
    right.ended = 1.3


async def test_without_a_terminal_they_follow_each_other() -> None:
    out = io.StringIO()
    left, right = Column("alone"), Column("both")
    async with show_columns(PlainView(out, out), (left, right)):
        filled(left, right)
    assert out.getvalue() == (
        "alone: first word after 0.80 s\n  The sky is\n  ConnectionError: gone\nboth: first word after 0.70 s\n  The **sky** is blue.[31m\n"
    )


async def test_on_a_terminal_they_stand_side_by_side_with_a_clock_each() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="truecolor")
    view = TerminalView(console, THEMES["dark"], {})
    clock = Clock()
    left, right = Column("alone"), Column("both")
    async with show_columns(view, (left, right), clock=clock) as since:
        clock.now = 100.4
        assert since() == pytest.approx(0.4)
        filled(left, right)
    drawn = Console(width=80, record=True, file=io.StringIO())
    drawn.print(out.getvalue().split("\x1b[1A")[-1])
    text = out.getvalue()
    assert "alone: first word after 0.80 s" in text
    assert "both: first word after 0.70 s" in text
    assert "ConnectionError: gone" in text
    assert "\x1b[31m" not in text, "an answer's own escape sequences don't reach the terminal"
    assert "**" not in text


async def test_a_column_without_a_word_says_so() -> None:
    out = io.StringIO()
    left, right = Column("alone"), Column("both")
    async with show_columns(PlainView(out, out), (left, right)):
        left.failure, left.ended = "ConnectionError: refused", 0.1
        right.feed("device", "Hi", 0.2)
    assert out.getvalue().startswith("alone: no word\n  \n  ConnectionError: refused\n")
