"""What a server sends can't control the reader's terminal."""

from __future__ import annotations

import ast
import io
import json
import logging
from pathlib import Path

import pytest

from streamco import cli
from streamco.cli.ui.control_characters import PlainFormatter, escaped, print_plain, printable
from streamco.cli.ui.view import PlainView
from streamco.client.stream import Token
from tests.cli.ui.test_terminal import Screen

ATTACKS = {
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "title": "\x1b]0;evil\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b2J\x9d0;evil\x9c",
    "bell and backspace": "\a\b\b\b",
    "carriage return": "good\revil",
    "override": "\u202egnp.exe\u202c\u2066",
    "delete": "\x7f\x00\x0e",
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("attack", ATTACKS)
def test_control_characters_go_and_text_stays(attack: str) -> None:
    assert printable(f"a\tb\n{ATTACKS[attack]}é🐈").endswith("é🐈")
    assert printable(ATTACKS[attack]).isprintable()
    assert json.loads(escaped(json.dumps(ATTACKS[attack], ensure_ascii=False))) == ATTACKS[attack]
    assert escaped(json.dumps(ATTACKS[attack], ensure_ascii=False)).isprintable()


@pytest.mark.parametrize("attack", ATTACKS)
def test_plain_output_on_a_terminal_has_none_and_a_file_gets_all(attack: str) -> None:
    out, err, file = Terminal(), Terminal(), io.StringIO()
    for view in (PlainView(out, err), PlainView(file, err)):
        for character in ATTACKS[attack]:  # also if they come one by one
            view.feed(Token(character, None, "server", 0.0))
        view.error(ATTACKS[attack])
    assert out.getvalue().replace("\n", "").isprintable()
    assert err.getvalue().replace("\n", "").isprintable()
    assert file.getvalue() == ATTACKS[attack] + "\n"


@pytest.mark.parametrize("attack", ATTACKS)
async def test_the_live_view_shows_none(attack: str) -> None:
    screen = Screen()
    async with screen.view.answering(lambda: None):
        screen.view.feed(Token(f"begin {ATTACKS[attack]} end", None, "server", 0.0))
        await screen.until("end")
        screen.view.log(ATTACKS[attack])
    screen.view.error(ATTACKS[attack])
    screen.view.note(ATTACKS[attack])
    screen.show()
    for sign in ("\x1b]", "\a", "\b", "\x9b", "\u202e", "\x1b[2J", "\x7f"):
        assert sign not in screen.raw


def test_log_records_have_none() -> None:
    record = logging.LogRecord("streamco", logging.WARNING, "", 0, "tool %s", ("\x1b]0;evil\a",), None)
    assert PlainFormatter("%(message)s").format(record) == "tool ]0;evil"


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_commands_print_has_none(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_plain(f"streamco serve: a\tb: {ATTACKS[attack]}")
    assert capsys.readouterr().out.replace("\t", "").rstrip("\n").isprintable()


def test_no_command_prints_in_any_other_way() -> None:
    found = []
    for path in Path(cli.__file__).parent.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        found += [path.name for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert found == ["control_characters.py"]
