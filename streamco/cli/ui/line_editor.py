"""The line editor for prompts on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style

from streamco.cli.ui.slash_commands import COMMANDS, POLICIES

__all__ = ["CommandCompleter", "Editor", "key_bindings"]

_STYLE = Style.from_dict({"prompt": "bold", "bottom-toolbar": "noreverse fg:ansibrightblack", "auto-suggestion": "fg:ansibrightblack"})
_WORDS = {"policy": POLICIES, "pace": ("reading", "listening", "smooth", "off"), "system": ("off",)}


class CommandCompleter(Completer):
    """Completes commands, their words, and file names after ``/save``."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return the completions for the text before the cursor."""
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        name, space, argument = line[1:].partition(" ")
        if not space:
            for command in COMMANDS:
                if command.name.startswith(name):
                    yield Completion(f"/{command.name}", -len(line), display_meta=command.help)
            return
        for word in _WORDS.get(name, ()):
            if word.startswith(argument):
                yield Completion(word, -len(argument))


def key_bindings() -> KeyBindings:
    """Return the keys: Enter sends; Alt-Enter, Ctrl-J, and Enter after a backslash begin a new line."""
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    return bindings


class Editor:
    """Reads prompts with history, completion and a toolbar.

    Args:
        history: file that remembers prompts. None, or a file that can't be written: prompts are remembered for this run only.
        toolbar: returns the text of the line at the bottom; called for each prompt.
        color: False: no colours.
    """

    def __init__(self, history: Path | None, toolbar: Callable[[], str], *, color: bool = True) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            auto_suggest=AutoSuggestFromHistory(),
            completer=CommandCompleter(),
            complete_while_typing=False,
            key_bindings=key_bindings(),
            multiline=True,
            prompt_continuation="  ",
            bottom_toolbar=toolbar,
            style=_STYLE,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            enable_open_in_editor=True,
        )

    async def read(self) -> str:
        """Return the next prompt.

        Raises:
            EOFError: Ctrl-D on an empty line.
            KeyboardInterrupt: Ctrl-C; the typed text is gone.
        """
        with patch_stdout(raw=True):  # a log record that comes now is printed above the prompt
            text = await self._session.prompt_async([("class:prompt", "> ")])
        return text.strip()


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))  # prompts are private
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
