"""The conversation loop: each line is a prompt or a command. If one fails, its error is shown, and the program continues.

``Dialogue`` has an attribute for each value that a command may change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from streamco.cli.ui.answer import AnswerSettings, ShownAnswer, read_answer
from streamco.cli.ui.attachments import Attachment, Prompt, attach, names_untyped_file, parse_typed, size_text, without_marks
from streamco.cli.ui.conversation_store import ConversationStore, read_conversation, write_conversation
from streamco.cli.ui.history import ChatModels, Conversation
from streamco.cli.ui.interrupt import on_interrupt
from streamco.cli.ui.slash_commands import (
    POLICIES,
    CommandError,
    help_lines,
    pace_text,
    parse_budget,
    parse_line,
    parse_mode,
    parse_pace_text,
    parse_policy,
)
from streamco.cli.ui.view import View
from streamco.client.client import Client
from streamco.core.report import Report, report_sections
from streamco.core.report_text import Section
from streamco.endpoints.model_files import PACKAGED, is_hub_name
from streamco.errors import ConfigError, StreamcoError

__all__ = ["Dialogue", "Sides", "check_images", "last_prompt"]

SHOWN = 10  # kept conversations that /load lists
MAX_COPY = 75_000  # bytes; 100,000 in base64, the most that terminals accept


class Sides(Protocol):
    """The two models of a chat, which can be changed while it runs."""

    @property
    def models(self) -> ChatModels | None:
        """The models as the options name them, or None for a split model."""
        ...

    @property
    def takes_images(self) -> bool:
        """True if one of the sides takes images."""
        ...

    async def change_device(self, name: str, settings: Mapping[str, object]) -> Client:
        """Load another device model, and return a started client that uses it. The former client is then closed.

        Args:
            name: a file, ``hf:org/repo:QUANT``, ``packaged``, a URL, or "off".
            settings: settings that commands have changed since the start, by option name.

        Raises:
            StreamcoError: it can't be loaded; the former client stays in use.
        """
        ...

    async def change_server(self, words: Sequence[str], settings: Mapping[str, object]) -> Client:
        """Return a started client with another server. ``words`` name the server's model and, if given, URL and key variable, or are "off".

        Raises:
            StreamcoError: it can't be used; the former client stays in use.
        """
        ...


class Dialogue:
    """Takes prompts and commands, and shows the answers.

    Args:
        client: a started client.
        view: shows answers, notes and errors.
        conversation: the turns so far, with the system message.
        settings: the settings that prompts are sent with.
        budget: the client's budget, 0 to 1.
        policy: name of the client's dispatch policy.
        mode: the client's mode.
        store: keeps the conversation between runs, or None not to keep it.
        sides: the models, or None if they can't be changed and accept only text.
        files: files that are sent with the first prompt.
        has_editor: True if a prompt can be returned to the user to be edited.

    Attributes:
        draft: initial text of the next line, set by ``/edit``. The code that reads the line takes it.
        has_failed: True if an endpoint has failed in any answer so far.
        was_stopped: True if the last answer was stopped by Ctrl-C.
    """

    def __init__(
        self,
        client: Client,
        view: View,
        conversation: Conversation,
        settings: AnswerSettings,
        *,
        budget: float,
        policy: str,
        mode: str = "race",
        store: ConversationStore | None = None,
        sides: Sides | None = None,
        files: Sequence[Attachment] = (),
        has_editor: bool = False,
    ) -> None:
        self._client = client
        self._view = view
        self._conversation = conversation
        self._settings = settings
        self._budget_share = budget
        self._policy_name = policy
        self._mode_name = mode
        self._store = store or ConversationStore(None)
        self._sides = sides
        self._files = tuple(files)
        self._has_editor = has_editor
        self._changes: dict[str, object] = {}  # settings that commands have changed, by option name
        self._last: Report | None = None
        self._asked: Prompt | None = None  # the last prompt of this run in this conversation
        self._is_withdrawn = False  # that prompt got no answer
        self._is_editing = False  # the next prompt replaces the last one
        self.draft = ""
        self.has_failed = False
        self.was_stopped = False
        self._tasks: Mapping[str, Callable[[str], Awaitable[None]]] = {
            "retry": self._retry,
            "edit": self._edit,
            "model": self._model,
            "device": self._device,
            "server": self._server,
        }
        self._commands: Mapping[str, Callable[[str], bool]] = {
            "help": self._help,
            "new": self._new,
            "system": self._system,
            "report": self._report,
            "copy": self._copy,
            "good": lambda _: self._rate(good=True),
            "bad": lambda _: self._rate(good=False),
            "pace": self._pace,
            "budget": self._budget,
            "policy": self._policy,
            "mode": self._mode,
            "save": self._save,
            "load": self._load,
            "quit": lambda _: False,
        }

    async def handle(self, line: str) -> bool:
        """Answer a prompt or run a command, and return False once the user wants to leave. Errors are shown, not raised.

        A line that was typed may contain marks of files (``attachments``).
        """
        is_edited, self._is_editing = self._is_editing, False
        try:
            call = parse_line(line)
            if call is not None:
                if call.name in self._tasks:
                    await self._tasks[call.name](call.argument)
                    return True
                return self._commands[call.name](call.argument)
            prompt = self._prepare(line.removeprefix("/") if line.startswith("//") else line, is_edited=is_edited)
        except (CommandError, StreamcoError, OSError, ValueError) as error:
            self._view.error(str(error))
            return True
        await (self._ask_again(prompt) if is_edited else self.ask(prompt))
        return True

    def _prepare(self, line: str, *, is_edited: bool) -> Prompt:
        """Return a line as a prompt with its files, after telling the user which files are sent.

        Raises:
            ConfigError: a file can't be sent; the user can edit the line again.
        """
        try:
            files = self._asked.attached if is_edited and self._asked is not None else self._files
            prompt = attach(parse_typed(line), files)
            check_images(self._sides, has_images=bool(prompt.images))
        except ConfigError:
            if self._has_editor:
                self.draft, self._is_editing = line, is_edited
            raise
        self._files = self._files if is_edited else ()
        for file in prompt.files:
            self._view.note(f"sent with it: {file.name}, {size_text(file.size)} of {'an image' if file.image else 'text'}")
        if self._has_editor and names_untyped_file(line):
            self._view.note("a line begins with @ that was not typed, so it is sent as text")
        return prompt

    def end_editing(self) -> None:
        """Leave the last exchange as it is, because the line that was to replace it was abandoned."""
        self._is_editing = False

    async def ask(self, prompt: Prompt) -> ShownAnswer:
        """Answer a prompt, and add the answer, or the part that arrived, to the conversation."""
        self._conversation.ask(prompt.text, prompt.images)
        answer = await read_answer(self._client, self._conversation.messages(), self._settings, self._view)
        self._conversation.answer(answer.text, is_stopped=bool(answer.ending))
        self._store.keep(self._conversation)
        self._asked, self._is_withdrawn = prompt, not answer.text.strip()
        self._last = answer.report or self._last
        self.has_failed |= answer.error is not None
        self.was_stopped = answer.is_stopped
        if answer.error is not None and answer.text:
            self._view.note("the text so far is kept in the conversation; /retry asks again")
        if answer.error is None:
            self._show_degraded([] if answer.report is None else answer.report.notes)
        return answer

    async def _ask_again(self, prompt: Prompt) -> None:
        """Answer a prompt that replaces the last one and its answer, which stay if no answer comes."""
        former = list(self._conversation.turns)
        if not self._is_withdrawn:
            self._conversation.take_back()
        answer = await self.ask(prompt)
        if not answer.text.strip() and self._conversation.turns != former:
            self._conversation.turns[:] = former
            self._is_withdrawn = False
            self._store.keep(self._conversation)
            self._view.note("the last answer stays in the conversation")

    def _last_prompt(self, command: str) -> Prompt:
        """Return the last prompt, even if the conversation was loaded from a file.

        Raises:
            CommandError: there is none.
        """
        if self._asked is not None:
            return self._asked
        turn = self._conversation.last_question
        if turn is None:
            raise CommandError(f"/{command}: expected a prompt before it, got none")
        text = without_marks(turn.content)
        images = tuple(Attachment("image", len(image) * 3 // 4, image=image) for image in turn.images)
        return attach(Prompt(text, text), images)

    def _show_degraded(self, notes: Sequence[str]) -> None:
        """Show the endpoints that don't work, even after an answer that didn't involve them, unless its notes say so already."""
        for each in self._client.degraded:
            if not any(each.note in note or note.startswith(f"{each.endpoint} ") for note in notes):
                self._view.error(each.note)

    # The toolbar

    @property
    def settings_line(self) -> str:
        """Return the current settings as one line."""
        if self._mode_name == "split":
            return f"mode split · pace {pace_text(self._settings.pace)}"
        rule = f"policy {self._policy_name}" if self._mode_name == "race" else f"mode {self._mode_name}"
        return f"{rule} · budget {self._budget_share:g} · pace {pace_text(self._settings.pace)}"

    # Commands: each takes the text after its name and returns True to continue

    def _help(self, _: str) -> bool:
        self._view.tables([Section("commands and keys", (), list(help_lines()))])
        return True

    async def _retry(self, text: str) -> None:
        if text:
            raise CommandError(f"/retry: expected nothing after it, got {text!r}; /edit changes the prompt")
        prompt = self._last_prompt("retry")
        check_images(self._sides, has_images=bool(prompt.images))
        await self._ask_again(prompt)

    async def _edit(self, text: str) -> None:
        former = self._last_prompt("edit")
        if text:
            self._asked = former
            await self._ask_again(self._prepare(text, is_edited=True))
        elif self._has_editor:
            self._asked = former
            self.draft, self._is_editing = former.typed, True
        else:
            raise CommandError("/edit: expected the new prompt after it, got none, and no terminal to edit at")

    def _copy(self, _: str) -> bool:
        answers = [turn.content.strip() for turn in self._conversation.turns if turn.role == "assistant"]
        if not answers:
            raise CommandError("/copy: expected an answer before it, got none")
        if (size := len(answers[-1].encode())) > MAX_COPY:
            raise CommandError(f"/copy: expected at most {MAX_COPY:,} bytes, got {size:,}; /save FILE writes the conversation")
        if not self._view.copy(answers[-1]):
            raise CommandError("/copy: expected a terminal, which has a clipboard, got none")
        self._view.note(f"copied {len(answers[-1]):,} characters to the terminal's clipboard, if it allows that")
        return True

    async def _model(self, text: str) -> None:
        if not text:
            models = self._models("model")
            self._view.note(f"device: {models.device_name or 'none'}\nserver: {models.server_name or 'none'}")
        elif _is_device(text):
            await self._device(text)
        else:
            await self._server(text)

    async def _device(self, text: str) -> None:
        before = self._models("device").device_name or "none"
        if text and self._sides is not None:
            self._client = await _stoppable(self._sides.change_device(text, self._changes), "/device")
            self._show_change("device", before, self._models("device").device_name)
        else:
            self._view.note(f"device: {before}")

    async def _server(self, text: str) -> None:
        before = self._models("server").server_name or "none"
        if text and self._sides is not None:
            self._client = await _stoppable(self._sides.change_server(text.split(), self._changes), "/server")
            self._show_change("server", before, self._models("server").server_name)
        else:
            self._view.note(f"server: {before}")

    def _models(self, command: str) -> ChatModels:
        models = None if self._sides is None else self._sides.models
        if models is None:
            raise CommandError(f"/{command}: expected a chat whose models can be changed, got one of a demo or a split model")
        return models

    def _show_change(self, side: str, before: str, after: str) -> None:
        self._conversation.models = self._models(side)
        self._view.note(f"{side}: {after or 'none'} from now on, before: {before}; the conversation stays")

    def _new(self, _: str) -> bool:
        self._conversation.forget()
        self._asked, self._is_withdrawn, self._files = None, False, ()
        self._store.begin()
        self._view.note("a new conversation")
        return True

    def _system(self, text: str) -> bool:
        if text:
            self._conversation.system = None if text == "off" else text
        self._view.note(f"system message: {self._conversation.system or 'none'}")
        return True

    def _report(self, text: str) -> bool:
        if text not in {"", "--all"}:
            raise CommandError(f"/report: expected --all or nothing, got {text!r}")
        if self._last is None:
            self._view.note("no answer yet")
        else:
            self._view.tables(report_sections(self._last, is_short=not text))
        return True

    def _rate(self, *, good: bool) -> bool:
        if self._last is None:
            self._view.note("no answer yet")
        elif self._client.rate(self._last.request_id, good):
            self._view.note(f"noted: {self._last.winner}'s answer was {'good' if good else 'not good enough'}")
        else:
            self._view.note("nothing is learned from it: only an answer that the device wrote alone tells how good its answers are")
        return True

    def _pace(self, text: str) -> bool:
        if text:
            self._settings.pace = parse_pace_text(text)
        self._view.note(f"pace: {pace_text(self._settings.pace)}")
        return True

    def _budget(self, text: str) -> bool:
        if text:
            share = parse_budget(text)
            self._client = self._client.with_options(budget=share)
            self._budget_share = self._changes["budget"] = share
        raced, drafted = "of prompt tokens may be processed by the constrained side", "of drafted tokens are verified by the server"
        what = {"race": raced, "speculate": drafted}.get(self._mode_name, f"{raced}, or {drafted}")
        self._view.note(f"budget: {self._budget_share:.0%} {what}")
        return True

    def _mode(self, text: str) -> bool:
        if text:
            mode = parse_mode(text)
            self._client = self._client.with_options(mode=mode)
            self._mode_name = self._changes["mode"] = mode
        self._view.note(f"mode: {self._mode_name}")
        return True

    def _policy(self, text: str) -> bool:
        if text:
            name = parse_policy(text)
            race = replace(self._client.race, policy=name)
            self._client = self._client.with_options(mode=race).with_options(mode=parse_mode(self._mode_name))
            self._policy_name = self._changes["policy"] = name
            self._view.note(f"policy: {name}")
        else:
            others = ", ".join(name for name in POLICIES if name != self._policy_name)
            self._view.note(f"policy: {self._policy_name} (others: {others})")
        return True

    def _save(self, text: str) -> bool:
        name = text.removeprefix("-f ").strip()
        if not name or name == "-f":
            raise CommandError("/save: expected a file name, got nothing")
        path = Path(name).expanduser()
        if path.exists() and name == text:
            raise CommandError(f"/save: expected a new file, got {path}, which exists; /save -f {name} overwrites it")
        if path.suffix == ".json":
            write_conversation(self._conversation, path)
        else:
            path.write_text(self._conversation.to_markdown(), encoding="utf-8")
        self._view.note(f"saved {len(self._conversation.turns)} turns to {path}")
        return True

    def _load(self, text: str) -> bool:
        earlier = self._store.earlier()[:SHOWN]
        if not text:
            self._list(earlier)
            return True
        if text.isascii() and text.isdigit():
            if not 1 <= int(text) <= len(earlier):
                raise CommandError(f"/load: expected 1 to {len(earlier)}, got {text}" if earlier else "/load: no conversation is kept")
            self._go_on(earlier[int(text) - 1], is_kept=True)
        else:
            self._go_on(Path(text).expanduser(), is_kept=False)
        return True

    def _list(self, earlier: Sequence[Path]) -> None:
        rows = []
        for number, path in enumerate(earlier, start=1):
            with suppress(OSError, ValueError):
                turns = read_conversation(path).turns
                begin = " ".join(turns[0].content.split()) if turns else ""
                rows.append((str(number), f"{begin[:60]}{'…' if len(begin) > 60 else ''} ({len(turns)} turns)"))
        if rows:
            self._view.tables([Section("kept conversations, the last one first: /load N goes on", (), list(rows))])
        else:
            self._view.note("no conversation is kept")

    def _go_on(self, path: Path, *, is_kept: bool) -> None:
        loaded = read_conversation(path)
        self._conversation.system, self._conversation.turns = loaded.system, loaded.turns
        self._asked, self._is_withdrawn = None, False
        self._store.begin(path if is_kept else None)
        self._view.note(f"going on after {len(loaded.turns)} turns; the last prompt was: {last_prompt(loaded)}")
        now = self._conversation.models
        if loaded.models is not None and now is not None and loaded.models != now:
            self._view.note(f"it was with {loaded.models}, and now is with {now}; /device and /server change them")


def _is_device(name: str) -> bool:
    """Return True if a model's name is a file, a name on the hub or a URL, which can only mean a device."""
    return name == PACKAGED or is_hub_name(name) or "://" in name or name.endswith(".gguf") or Path(name).expanduser().is_file()


async def _stoppable(work: Coroutine[object, object, Client], command: str) -> Client:
    """Return the work's result. Ctrl-C stops it.

    Raises:
        CommandError: it was stopped.
    """
    task = asyncio.ensure_future(work)
    with on_interrupt(task.cancel):
        try:
            return await task
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) and own.cancelling():
                raise  # the program ends
            raise CommandError(f"{command}: stopped; the model is the same as before") from None


def check_images(sides: Sides | None, *, has_images: bool) -> None:
    """Check that one of the sides accepts images, before anything is sent.

    Raises:
        ConfigError: neither does.
    """
    if has_images and (sides is None or not sides.takes_images):
        models = None if sides is None else sides.models
        raise ConfigError(f"image: expected a model that takes images, got {models or 'the two of this chat'}, of which none does")


def last_prompt(conversation: Conversation) -> str:
    """Return the first line of the user's last prompt, or "" if there is none."""
    question = conversation.last_question
    return "" if question is None else question.content.strip().partition("\n")[0][:80]
