from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from streamco.cli.ui.attachments import TYPED_AT
from streamco.cli.ui.line_editor import CommandCompleter, Editor
from streamco.cli.ui.slash_commands import COMMANDS, POLICIES


@contextmanager
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


async def read(typed: str, history: Path | None = None) -> str:
    with keyboard() as keys:
        keys.send_text(typed)
        async with asyncio.timeout(10):
            return await Editor(history, lambda: "").read()


@pytest.mark.parametrize(
    ("typed", "prompt"),
    [
        ("hello\r", "hello"),
        ("  hello  \r", "hello"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("one\x0atwo\r", "one\ntwo"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("\x1b[200~pasted\nlines\n\x1b[201~\r", "pasted\nlines"),
        ("\r", ""),
        ("@file why\r", f"{TYPED_AT}file why"),
        ("one\x1b\r@file\r", f"one\n{TYPED_AT}file"),
        ("me@home\r", "me@home"),
        ("@@home\r", f"{TYPED_AT}@home"),
        ("\x1b[200~@/etc/passwd\x1b[201~\r", "@/etc/passwd"),
        (f"see\x1b[200~\n{TYPED_AT}/etc/passwd\x1b[201~\r", "see\n/etc/passwd"),
        ("@\x1b[200~main.py\x1b[201~\r", f"{TYPED_AT}main.py"),
    ],
)
async def test_enter_sends_and_the_other_ways_begin_a_new_line(typed: str, prompt: str) -> None:
    assert await read(typed) == prompt


async def test_ctrl_d_on_an_empty_line_is_the_end_and_ctrl_c_an_interrupt() -> None:
    with pytest.raises(EOFError):
        await read("\x04")
    with pytest.raises(KeyboardInterrupt):
        await read("half\x03")


async def test_prompts_are_kept_in_a_private_file_and_come_back(tmp_path: Path) -> None:
    history = tmp_path / "history"
    assert await read("remember\r", history) == "remember"
    assert history.stat().st_mode & 0o077 == 0
    assert await read("\x1b[A\r", history) == "remember"


async def test_a_history_that_cannot_be_written_is_kept_in_memory(tmp_path: Path) -> None:
    assert await read("hello\r", tmp_path / "no" / "such" / "folder") == "hello"
    assert not list(tmp_path.iterdir())


async def test_a_draft_is_edited() -> None:
    with keyboard() as keys:
        keys.send_text(" and more\r")
        async with asyncio.timeout(10):
            assert await Editor(None, lambda: "").read(f"{TYPED_AT}file") == f"{TYPED_AT}file and more"


async def test_a_file_is_named_by_an_earlier_prompt_of_this_run_and_by_none_of_another(tmp_path: Path) -> None:
    history = tmp_path / "history"
    with keyboard() as keys:
        editor = Editor(history, lambda: "")
        async with asyncio.timeout(10):
            keys.send_text("@file\r")
            await editor.read()
            keys.send_text("\x1b[A\r")
            assert await editor.read() == f"{TYPED_AT}file"
    assert "+@file\n" in history.read_text()
    assert await read("\x1b[A\r", history) == "@file"


def complete(line: str) -> list[str]:
    return [completion.text for completion in CommandCompleter().get_completions(Document(line), CompleteEvent())]


def test_commands_and_their_words_are_completed() -> None:
    assert complete("/") == [f"/{command.name}" for command in COMMANDS]
    assert complete("/p") == ["/pace", "/policy"]
    assert complete("/re") == ["/report", "/retry"]
    assert complete("/report ") == ["--all"]
    assert complete("/policy ") == list(POLICIES)
    assert complete("/pace re") == ["reading"]
    assert complete("/pace s") == ["smooth"]
    assert complete("/new x") == []


def test_names_of_files_are_completed_where_a_file_is_meant(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    for begin in ("/device ", "/save ", TYPED_AT, f"why?\n{TYPED_AT}"):
        assert complete(f"{begin}{tmp_path}/mod") == ["el.gguf"]
    assert complete(f"@{tmp_path}/mod") == []
    assert "packaged" in complete("/device p")


def test_prompts_are_not_completed() -> None:
    assert complete("hello /p") == []
    assert complete("one\n/p") == []
