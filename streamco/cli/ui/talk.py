"""What chat and demo do with a started client: answer one prompt, the lines from a pipe, or a person at a terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec import Struct

from streamco.cli.options import budget_of
from streamco.cli.ui.answer import AnswerSettings, read_answer
from streamco.cli.ui.attachments import Attachment, Prompt, attach, size_text, without_marks
from streamco.cli.ui.control_characters import escaped, print_plain
from streamco.cli.ui.conversation_store import ConversationStore, conversation_folder, may_save, read_conversation
from streamco.cli.ui.history import Conversation, state_path
from streamco.cli.ui.interrupt import quiet_keyboard
from streamco.cli.ui.log_handler import log_to_view
from streamco.cli.ui.repl import Dialogue, Sides, check_images, last_prompt
from streamco.cli.ui.slash_commands import USUAL_PACE
from streamco.cli.ui.view import PlainView, View
from streamco.client.client import Client
from streamco.client.modes.race.migration import MigrationOptions
from streamco.config import Pace
from streamco.errors import ConfigError

if TYPE_CHECKING:
    from streamco.cli.ui.line_editor import Editor

__all__ = [
    "OpenConversation",
    "answer_prompt",
    "converse",
    "is_interactive",
    "join_prompt",
    "lines_of",
    "make_view",
    "migration_of",
    "open_conversation",
    "settings_of",
]

KEYS = "/help: commands · Alt-Enter: new line · Ctrl-C stops an answer · Ctrl-D quits"


def is_interactive(args: argparse.Namespace) -> bool:
    """Return True if no prompt is given, and both stdin and stdout are terminals."""
    return args.prompt is None and sys.stdin.isatty() and _is_live()


def _is_live() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", ""}


def settings_of(args: argparse.Namespace) -> AnswerSettings:
    """Return the settings that prompts are sent with. A person at a terminal gets the text evenly, and a program gets it as it comes."""
    usual: Pace = "smooth" if _is_live() and not args.json else None
    pace = usual if args.pace is USUAL_PACE else args.pace
    return AnswerSettings(pace=pace, max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed)


def migration_of(args: argparse.Namespace) -> MigrationOptions:
    """Return the migration options. At a terminal a person is reading, so answers may move even without a pace."""
    return MigrationOptions(
        max_migrations=0 if args.no_migration else 1, unpaced=_is_live() and not args.json, min_quality=args.min_quality
    )


def make_view(args: argparse.Namespace, kinds: Mapping[str, str], *, notes: TextIO | None = None) -> View:
    """Return a live view on a terminal, else a plain one.

    Args:
        args: the command's options.
        kinds: ``device`` or ``server`` by endpoint name.
        notes: file for plain text other than answers, by default stderr.

    Raises:
        ConfigError: stdout is a terminal and rich isn't installed.
    """
    if args.json or not _is_live():
        plain = PlainView(err=notes, is_silent=args.json)
        log_to_view(plain.log, is_live=False)
        return plain
    try:
        from streamco.cli.ui.render import make_console
        from streamco.cli.ui.terminal import TerminalView
        from streamco.cli.ui.theme import pick_theme
    except ImportError as error:
        raise _missing(error) from error
    theme = pick_theme(args.theme)
    console = make_console(theme, color=not args.no_color)
    view = TerminalView(console, theme.fit(console.color_system), kinds)
    log_to_view(view.log, is_live=True)
    return view


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"expected rich and prompt_toolkit for a chat on a terminal (pip install 'streamco[cli]'), got: {error}")


class OpenConversation(Struct):
    """The conversation that a command continues, and the store that keeps it.

    Args:
        conversation: the turns, and the models that they are with.
        store: keeps the conversation.
        note: a line about its models for the user, or "".
    """

    conversation: Conversation
    store: ConversationStore
    note: str = ""


def open_conversation(args: argparse.Namespace) -> OpenConversation:
    """Return the last conversation if ``--continue`` is given, or else an empty one.

    Raises:
        ConfigError: there is none to continue, or it can't be read.
    """
    store = ConversationStore(None if args.no_save and not args.goes_on else conversation_folder())
    if not args.goes_on:
        return OpenConversation(Conversation(args.system), store)
    last = next(iter(store.earlier()), None)
    if last is None:
        raise ConfigError("--continue: expected a kept conversation, got none")
    try:
        conversation = read_conversation(last)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--continue: {error}") from error
    if args.system is not None:
        conversation.system = args.system
    if args.no_save:
        return OpenConversation(conversation, ConversationStore(None))
    store.begin(last)
    return OpenConversation(conversation, store)


def join_prompt(piped: str, prompt: str | None) -> str:
    """Join the text on stdin and ``--prompt`` into one prompt, in this order with a blank line between them.

    Raises:
        ConfigError: both are empty.
    """
    parts = [part for part in (piped.rstrip(), prompt) if part and part.strip()]
    if not parts:
        raise ConfigError("prompt: expected --prompt TEXT or text on stdin, got neither")
    return "\n\n".join(parts)


async def answer_prompt(
    client: Client,
    args: argparse.Namespace,
    view: View,
    kept: OpenConversation | None = None,
    *,
    sides: Sides | None = None,
    files: Sequence[Attachment] = (),
) -> int:
    """Answer ``--prompt`` and return the exit code.

    Args:
        client: makes the answer.
        args: the options of the command.
        view: shows it.
        kept: the conversation that it belongs to, or None for one that isn't kept.
        sides: the models, or None if they accept only text.
        files: files that are sent before the prompt.

    Raises:
        ConfigError: the files can't be sent.
    """
    kept = kept or OpenConversation(Conversation(args.system), ConversationStore(None))
    prompt = attach(Prompt(args.prompt, args.prompt), files)
    kept.conversation.ask(prompt.text, prompt.images)
    check_images(sides, has_images=kept.conversation.has_images)
    if kept.note:
        view.note(kept.note)
    for file in prompt.files:
        view.note(f"sent with it: {file.name}, {size_text(file.size)}")
    answer = await read_answer(client, kept.conversation.messages(), settings_of(args), view)
    kept.conversation.answer(answer.text, is_stopped=bool(answer.ending))
    kept.store.keep(kept.conversation)
    if args.json:
        print_plain(escaped(answer.to_json()))
    return answer.exit_code


async def converse(
    client: Client,
    args: argparse.Namespace,
    view: View,
    kept: OpenConversation | None = None,
    *,
    saves_prompts: bool = True,
    sides: Sides | None = None,
    files: Sequence[Attachment] = (),
) -> int:
    """Answer prompts until the user leaves or the lines end. Return 1 if the answer to a line failed, or else 0.

    Args:
        client: makes the answers.
        args: the options of the command.
        view: shows them.
        kept: the conversation to continue, or None for a new one that isn't kept.
        saves_prompts: True to keep typed prompts in a file, for the Up key.
        sides: the models, which commands may change, or None if they can't be changed.
        files: files that are sent with the first prompt.
    """
    kept = kept or OpenConversation(Conversation(args.system), ConversationStore(None))
    dialogue = Dialogue(
        client,
        view,
        kept.conversation,
        settings_of(args),
        budget=budget_of(args),
        policy=args.policy,
        mode="split" if args.split else args.mode,
        store=kept.store,
        sides=sides,
        files=files,
        has_editor=is_interactive(args),
    )
    if kept.conversation.turns:
        view.note(f"going on after {len(kept.conversation.turns)} turns; the last prompt was: {last_prompt(kept.conversation)}")
    if kept.note:
        view.note(kept.note)
    if files:
        view.note(f"the first prompt is sent with {', '.join(file.name for file in files)}")
    if is_interactive(args):
        history = _history_path() if saves_prompts else None
        await _talk_to_person(dialogue, view, history, color=not args.no_color and args.theme != "mono")
        return 0
    async for line in lines_of():
        if not await dialogue.handle(without_marks(line)):
            break
        if dialogue.was_stopped:
            return 130
    return 1 if dialogue.has_failed else 0


async def _talk_to_person(dialogue: Dialogue, view: View, history: Path | None, *, color: bool) -> None:
    try:
        from streamco.cli.ui.line_editor import Editor
    except ImportError as error:
        raise _missing(error) from error
    editor = Editor(history, lambda: dialogue.settings_line, color=color)
    view.note(f"{KEYS}\n")
    with quiet_keyboard():  # between prompts, too, so that an Enter typed early stays an Enter
        await _talk(dialogue, view, editor)


async def _talk(dialogue: Dialogue, view: View, editor: Editor) -> None:
    while True:
        draft, dialogue.draft = dialogue.draft, ""
        try:
            line = await editor.read(draft)
        except KeyboardInterrupt:
            dialogue.end_editing()
            view.note("Ctrl-D or /quit leaves")
            continue
        except EOFError:
            return
        if not line:
            dialogue.end_editing()
        elif not await dialogue.handle(line):
            return


def _history_path() -> Path | None:
    """Return the file of typed prompts, or None to remember them only during this run, as ``STREAMCO_NO_SAVE`` asks."""
    if not may_save():
        return None
    try:
        return state_path("history")
    except OSError:  # no writable home, so prompts are remembered only during this run
        return None


async def lines_of(file: TextIO | None = None) -> AsyncIterator[str]:
    """Yield the lines of ``file`` (by default stdin), stripped and without empty ones.

    A daemon thread reads them, because an event loop can't watch plain files, and a pool's thread that waits for a line would keep the
    program from ending.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    thread = threading.Thread(target=_read, args=(file or sys.stdin, loop, lines), name="streamco-stdin", daemon=True)
    thread.start()
    while (line := await lines.get()) is not None:
        if line.strip():
            yield line.strip()


def _read(file: TextIO, loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None]) -> None:
    try:
        for line in file:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)
    except RuntimeError:  # the loop is closed, so no task waits for more
        return
