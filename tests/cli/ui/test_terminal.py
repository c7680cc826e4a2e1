from __future__ import annotations

import asyncio
import io

import pytest
from msgspec import structs
from rich.console import Console

from streamco.cli.ui.render import markdown_styles
from streamco.cli.ui.terminal import TerminalView
from streamco.cli.ui.theme import THEMES
from streamco.client.stream import Token
from streamco.core.report import report_sections
from streamco.core.report_parts import HandOver
from tests.cli.emulator import Emulator, plain
from tests.core.test_report_text import FIGURES, TRIPS, make_report

KINDS = {"device": "device", "server": "server"}


class Screen:
    """A view over an emulated terminal."""

    def __init__(self, width: int = 60, height: int = 12) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file, width=width, height=height, force_terminal=True, color_system="truecolor", theme=markdown_styles(THEMES["dark"])
        )
        self.view = TerminalView(self.console, THEMES["dark"], KINDS)
        self.raw = ""
        self.terminal = Emulator(height=height, width=width)

    def show(self) -> str:
        """All that can be read now."""
        text = self.file.getvalue()
        self.raw += text
        self.file.seek(0)
        self.file.truncate()
        self.terminal.write(text.replace("\r\n", "\n").replace("\n", "\r\n"))
        return self.terminal.text

    async def until(self, words: str) -> str:
        """Wait until this can be read."""
        async with asyncio.timeout(10):
            while words not in (text := self.show()):
                await asyncio.sleep(0.01)
        return text


def token(text: str, source: str = "device", kind: str = "content") -> Token:
    return Token(text, None, source, 0.0, kind)  # type: ignore[arg-type]


async def test_before_the_first_token_it_says_who_is_waited_for() -> None:
    screen = Screen()
    async with screen.view.answering(make_report):
        text = await screen.until("waiting for device and server")
        assert "Ctrl-C stops" in text
    assert screen.show() == ""


async def test_a_speculated_answer_is_tinted_by_who_vouches_for_each_token() -> None:
    screen, theme = Screen(width=140), THEMES["dark"]
    async with screen.view.answering(lambda: make_report(speculation=FIGURES)):
        for text, origin in (("one ", "accepted"), ("two ", "corrected"), ("three ", "device"), ("four", "bonus")):
            screen.view.feed(Token(text, None, "device", 0.0, "content", origin))  # type: ignore[arg-type]
        await screen.until("72% of drafts accepted · 30% verified")
    screen.show()
    tints = [f"38;2;{int(tint[1:3], 16)};{int(tint[3:5], 16)};{int(tint[5:], 16)}" for tint in (theme.device, theme.server, theme.local)]
    for tint, word in zip([*tints, tints[1]], ("one", "two", "three", "four"), strict=True):
        assert f"\x1b[{tint}m{word}" in screen.raw


async def test_while_an_answer_comes_a_status_line_stays_below_it() -> None:
    screen = Screen()
    async with screen.view.answering(make_report):
        screen.view.feed(token("Some **bo"))
        text = await screen.until("Some bo")
        assert plain(text).split("\n")[-1][1:].startswith(" device · first token ")
        assert "$0.0000045" in text
        screen.view.feed(token("ld** text"))
        await screen.until("Some bold text")
    assert screen.show() == "\nSome bold text"
    screen.view.end(make_report())
    assert screen.show().split("\n") == [
        "",
        "Some bold text",
        "",
        "device answered · first token 38 ms · 48.1 tokens/s",
    ]


async def test_what_scrolls_away_reads_like_the_whole_answer() -> None:
    screen = Screen(height=8)
    lines = [f"{number}. item {number}" for number in range(1, 61)]
    async with screen.view.answering(lambda: None):
        for number, line in enumerate(lines, 1):
            screen.view.feed(token(f"{line}\n"))
            if number % 7 == 0:
                await screen.until(f"{number} item {number}")
                assert len(screen.terminal.screen) <= 8
    found = [line.split(" item ")[1] for line in screen.show().split("\n") if " item " in line]
    assert found == [str(number) for number in range(1, 61)]


async def test_the_cursor_is_hidden_while_drawing_and_shown_afterwards_even_after_an_error() -> None:
    screen = Screen()

    async def answer() -> None:
        async with screen.view.answering(lambda: None):
            screen.view.feed(token("partial"))
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        await answer()
    raw = screen.file.getvalue()
    assert "\x1b[?25l" in raw
    assert raw.endswith("\x1b[?25h")
    assert "partial" in screen.show()


async def test_text_that_came_after_the_last_drawing_is_shown_all_the_same() -> None:
    screen = Screen()
    async with screen.view.answering(lambda: None):
        screen.view.feed(token("all of it"))
    assert screen.show() == "\nall of it"


async def test_both_makers_are_named_and_tinted() -> None:
    screen = Screen()
    async with screen.view.answering(lambda: None):
        screen.view.feed(token("one "))
        screen.view.feed(token("two", "server"))
        await screen.until("device 1 + server 1")
        raw = screen.raw
    assert "38;2;169;220;182mone" in raw
    assert "38;2;168;199;250mtwo" in raw


async def test_thinking_and_answering_are_told_apart() -> None:
    screen = Screen()
    async with screen.view.answering(lambda: None):
        screen.view.feed(token("hm hm", kind="reasoning"))
        screen.view.feed(token("Yes."))
    assert screen.show() == "\nhm hm\n\nYes."


async def test_a_narrow_terminal_gets_a_short_status_line() -> None:
    screen = Screen(width=20)
    async with screen.view.answering(make_report):
        text = await screen.until("waiting")
        assert text.endswith("…")
        screen.view.feed(token("word " * 12))
        await screen.until("device")
    assert screen.show().split("\n") == ["", "word word word word", "word word word word", "word word word word"]


@pytest.mark.parametrize("width", [80, 60, 40, 25])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"split": TRIPS},
        {"split": structs.replace(TRIPS, sessions=2, servers=["one:8000", "two:8000"])},
        {"speculation": FIGURES},
        {"cost_usd": None},
        {"hand_overs": [HandOver(source="device", target="server", position=18, at=1.0, reason="cheaper", is_planned=True)]},
    ],
    ids=["race", "split", "split, lost", "speculate", "no price", "moved"],
)
async def test_the_line_under_an_answer_is_never_wrapped(changes: dict[str, object], width: int) -> None:
    screen, report = Screen(width=width), make_report(**changes)
    async with screen.view.answering(lambda: report):
        screen.view.feed(token("text"))
        live = (await screen.until("device ·" if width > 25 else "device")).split("\n")
        assert [line for line in live if line] == ["text", live[-1]]
        assert len(live[-1]) < width
    screen.view.end(report, ending="stopped")
    answer, line = (line for line in screen.show().split("\n") if line)
    assert answer == "text"
    assert len(line) < width
    assert line.endswith(("stopped", "…"))


async def test_a_note_stands_under_the_figures() -> None:
    screen = Screen(width=60)
    note = "split: the states went over the wire as f16, so the answer may differ from the whole model's"
    async with screen.view.answering(lambda: None):
        screen.view.feed(token("text"))
    screen.view.end(make_report(split=TRIPS, notes=[note, "another"]))
    _, line, *noted = (line for line in screen.show().split("\n") if line)
    assert line == "device answered · 1.25 tokens a trip · 48.1 tokens/s"
    assert " ".join(noted) == f"{note} · 1 more in the report"


async def test_after_a_resize_drawing_goes_on() -> None:
    screen = Screen(width=60)
    async with screen.view.answering(lambda: None):
        screen.view.feed(token("word " * 15))
        await screen.until("word word")
        screen.terminal.resize(40)
        screen.console.width = 40
        screen.view.feed(token("end"))
        await screen.until("end")
    assert screen.show().count("word") == 15


async def test_one_view_shows_many_answers() -> None:
    screen = Screen()
    for number in range(3):
        async with screen.view.answering(lambda: None):
            screen.view.feed(token(f"answer {number}"))
    assert [line for line in screen.show().split("\n") if line] == ["answer 0", "answer 1", "answer 2"]


def test_messages_legend_and_tables_fit_the_terminal() -> None:
    screen = Screen(width=80)
    screen.view.legend({"device": "small [model]", "server": "large"})
    screen.view.heading("title")
    screen.view.note("a note with [brackets]")
    screen.view.error("it broke")
    screen.view.tables(report_sections(make_report()))
    text = screen.show()
    for words in (
        "■ device  small [model]",
        "■ server  large",
        "a note with [brackets]",
        "error: it broke",
        "which side starts when",
        "server: cut short",
    ):
        assert words in text


async def test_a_log_record_in_mid_answer_stands_under_the_text_and_is_printed_whole_after_it() -> None:
    screen = Screen(width=60)
    record = "streamco: verifier: the connection was lost and could not be opened again within 30 s; the device goes on alone"
    async with screen.view.answering(make_report):
        screen.view.feed(token("The first half"))
        await screen.until("The first half")
        screen.view.log(record)
        live = (await screen.until("the connection was lost")).splitlines()
        assert live[-1].endswith("Ctrl-C stops") or "first token" in live[-1]
        assert live[-2].startswith("streamco: verifier: the connection was lost")
        screen.view.feed(token(" and the second."))
        await screen.until("The first half and the second.")
    screen.view.end(make_report())
    text = screen.show()
    assert record in " ".join(text.split())
    assert text.index("and the second.") < text.index("streamco: verifier") < text.index("device answered")
    assert text.count("streamco: verifier") == 1
    assert "Ctrl-C stops" not in text


def test_a_log_record_between_two_answers_is_printed_at_once() -> None:
    screen = Screen()
    screen.view.log("streamco: something happened")
    assert "streamco: something happened" in screen.show()
