from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Iterator

import pytest

from streamco.cli.ui.view import PlainView
from streamco.client.stream import Token
from streamco.core.report_text import Section
from tests.core.test_report_text import TRIPS, make_report


def make() -> tuple[PlainView, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return PlainView(out, err), out, err


async def test_the_answer_goes_to_stdout_and_its_summary_to_stderr() -> None:
    view, out, err = make()
    async with view.answering(lambda: None):
        for text in ("Hello", " there"):
            view.feed(Token(text, None, "device", 0.0))
    view.end(make_report())
    assert out.getvalue() == "Hello there\n"
    assert err.getvalue() == "[device answered · first token 38 ms · 48.1 tokens/s · 132 tokens · $0.0000045]\n"


def test_thinking_aloud_is_left_out() -> None:
    view, out, _ = make()
    view.feed(Token("hm", None, "device", 0.0, "reasoning"))
    view.feed(Token("yes", None, "device", 0.0))
    assert out.getvalue() == "yes"


def test_a_line_that_is_ended_already_is_not_ended_twice() -> None:
    view, out, _ = make()
    view.feed(Token("Hello\n", None, "device", 0.0))
    view.end(None)
    view.end(None)
    assert out.getvalue() == "Hello\n"


def test_a_message_never_lands_in_the_middle_of_an_answer() -> None:
    view, out, err = make()
    view.feed(Token("Half", None, "device", 0.0))
    view.error("it broke")
    assert out.getvalue() == "Half\n"
    assert err.getvalue() == "error: it broke\n"


def test_a_log_record_waits_for_the_end_of_an_open_line(capsys: pytest.CaptureFixture[str]) -> None:
    view, out, err = make()
    view.log("before")
    view.feed(Token("Half", None, "device", 0.0))
    view.log("inside")
    view.log("inside, too")
    assert capsys.readouterr().err == "before\n"
    view.feed(Token(" a line\nand", None, "device", 0.0))
    assert capsys.readouterr().err == ""
    view.end(None)
    assert (out.getvalue(), err.getvalue()) == ("Half a line\nand\n", "")
    view.log("after")
    assert capsys.readouterr().err == "inside\ninside, too\nafter\n"


async def test_an_answer_that_breaks_off_ends_its_line_and_shows_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    view, out, _ = make()

    async def break_off() -> None:
        async with view.answering(lambda: None):
            view.feed(Token("Half", None, "device", 0.0))
            view.log("inside")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await break_off()
    assert (out.getvalue(), capsys.readouterr().err) == ("Half\n", "inside\n")


def test_a_silent_view_prints_no_answer() -> None:
    out, err = io.StringIO(), io.StringIO()
    view = PlainView(out, err, is_silent=True)
    view.feed(Token("Hello", None, "device", 0.0))
    view.end(make_report(), ending="stopped")
    assert out.getvalue() == ""
    assert err.getvalue().endswith(" · stopped]\n")


def test_legend_headings_and_tables_are_plain_lines() -> None:
    view, out, err = make()
    view.legend({"device": "small", "server": "large"})
    view.heading("1. title")
    view.tables([Section("things", ("a", "b"), [("1", "two")])])
    assert err.getvalue() == "device  small\nserver  large\n\n1. title\nthings\n  a  b\n  1  two\n"
    assert out.getvalue() == ""


@pytest.fixture
def terminal_pair() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """The program's end of a pseudo-terminal, and the other end's descriptor."""
    outer, inner = pty.openpty()
    with os.fdopen(inner, "w") as stream:
        yield outer, stream
    os.close(outer)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (0, "[device answered · 1.25 tokens a trip · first token 38 ms · 48.1 tokens/s · 132 tokens · $0.0000045 · not as asked]"),
        (80, "[device answered · 1.25 tokens a trip · first token 38 ms · 48.1 tokens/s]"),
        (40, "[device answered · 48.1 tokens/s]"),
    ],
)
def test_on_a_terminal_the_summary_fits_a_line(terminal_pair: tuple[int, io.TextIOWrapper], columns: int, line: str) -> None:
    outer, stream = terminal_pair
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    PlainView(io.StringIO(), stream).end(make_report(split=TRIPS, notes=["not as asked"]))
    found = os.read(outer, 4096).decode().splitlines()
    assert found == ([line, "[not as asked]"] if columns else [line])
