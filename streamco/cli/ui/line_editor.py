"""The line editor for prompts on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style

from streamco.cli.ui.attachments import TYPED_AT, shown, without_marks
from streamco.cli.ui.slash_commands import COMMANDS, MODES, POLICIES
from streamco.endpoints.model_files import PACKAGED

__all__ = ["CommandCompleter", "Editor", "key_bindings"]

_STYLE = Style.from_dict({"prompt": "bold", "bottom-toolbar": "noreverse fg:ansibrightblack", "auto-suggestion": "fg:ansibrightblack"})
_WORDS = {
    "policy": POLICIES,
    "mode": MODES,
    "pace": ("reading", "listening", "smooth", "off"),
    "system": ("off",),
    "report": ("--all",),
    "device": ("off", PACKAGED),
    "server": ("off",),
}
_PATHS = {"save", "load", "device", "model"}  # commands that take a file name


class CommandCompleter(Completer):
    """Completes commands, their arguments, and file names, which may follow some commands or an ``@`` typed at the beginning of a line."""

    def __init__(self) -> None:
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return the completions for the text before the cursor."""
        line = document.text_before_cursor
        row = document.current_line_before_cursor
        if row.startswith(TYPED_AT) and " " not in row:
            yield from self._files.get_completions(Document(row[1:]), complete_event)
            return
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
        if name in _PATHS:
            yield from self._files.get_completions(Document(argument), complete_event)


class _ShowAt(Processor):
    """Shows the mark of a typed ``@`` as an ordinary ``@``."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Replace the mark. Nothing moves, because mark and ``@`` are both one cell wide."""
        return Transformation([(style, shown(text), *more) for style, text, *more in transformation_input.fragments])  # type: ignore[misc]


def key_bindings() -> KeyBindings:
    """Return the key bindings: Enter sends; Alt-Enter, Ctrl-J, and Enter after a backslash begin a new line; a typed ``@`` is marked."""
    bindings = KeyBindings()

    @bindings.add("@", filter=has_focus(DEFAULT_BUFFER))
    def _name_file(event: KeyPressEvent) -> None:
        is_begin = not event.current_buffer.document.current_line_before_cursor
        event.current_buffer.insert_text(TYPED_AT if is_begin else "@")

    @bindings.add(Keys.BracketedPaste)
    def _paste(event: KeyPressEvent) -> None:
        text = without_marks(event.data).replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(text)

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
        history: file that remembers prompts. With None, or if it can't be written, prompts are remembered only during this run.
        toolbar: returns the text of the line at the bottom; called for each prompt.
        color: whether to use colours.
    """

    def __init__(self, history: Path | None, toolbar: Callable[[], str], *, color: bool = True) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            auto_suggest=AutoSuggestFromHistory(),
            completer=CommandCompleter(),
            complete_while_typing=False,
            key_bindings=key_bindings(),
            input_processors=[_ShowAt()],
            multiline=True,
            prompt_continuation="  ",
            bottom_toolbar=toolbar,
            style=_STYLE,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            enable_open_in_editor=True,
        )

    async def read(self, draft: str = "") -> str:
        """Return the next prompt. An ``@`` that was typed at the beginning of a line is returned as ``TYPED_AT``.

        Args:
            draft: initial text, to be edited.

        Raises:
            EOFError: Ctrl-D on an empty line.
            KeyboardInterrupt: Ctrl-C; the typed text is lost.
        """
        with patch_stdout(raw=True):  # log records are printed above the prompt meanwhile
            text = await self._session.prompt_async([("class:prompt", "> ")], default=draft)
        return text.strip()


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))  # prompts are private
    except OSError:
        return InMemoryHistory()
    return _PromptHistory(str(path))


class _PromptHistory(FileHistory):
    """A file of prompts without marks. Prompts of this run keep their marks; prompts of earlier runs don't name files."""

    def load_history_strings(self) -> Iterable[str]:
        """Return the prompts in the file, the last one first."""
        return map(without_marks, super().load_history_strings())

    def store_string(self, string: str) -> None:
        """Add a prompt to the file."""
        super().store_string(shown(string))
