"""The conversation loop: each line is a prompt or a command; a failing one is shown and does not end the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from streamco.cli.ui.answer import AnswerSettings, ShownAnswer, read_answer
from streamco.cli.ui.conversation_store import ConversationStore, read_conversation, write_conversation
from streamco.cli.ui.history import Conversation
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
from streamco.errors import ConfigError, UsageError

__all__ = ["Dialogue", "last_prompt"]

SHOWN = 10  # kept conversations that /load lists


class Dialogue:
    """Prompts and commands in, answers out.

    Args:
        client: a started client.
        view: shows answers, notes and errors.
        conversation: the turns so far, with the system message.
        settings: what prompts are sent with.
        budget: the client's budget, 0 to 1.
        policy: name of the client's dispatch policy.
        mode: the client's mode.
        store: keeps the conversation between two runs; None: it isn't kept.
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
    ) -> None:
        self._client = client
        self._view = view
        self._conversation = conversation
        self._settings = settings
        self._budget_share = budget
        self._policy_name = policy
        self._mode_name = mode
        self._store = store or ConversationStore(None)
        self._last: Report | None = None
        self.has_failed = False  # an endpoint, in any answer so far
        self.was_stopped = False  # the last answer, by Ctrl-C
        self._commands: Mapping[str, Callable[[str], bool]] = {
            "help": self._help,
            "new": self._new,
            "system": self._system,
            "report": self._report,
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
        """Answer a prompt or run a command; return False once the user wants to leave. Errors are shown, not raised."""
        try:
            call = parse_line(line)
            if call is not None:
                return self._commands[call.name](call.argument)
        except (CommandError, ConfigError, UsageError, OSError, ValueError) as error:
            self._view.error(str(error))
            return True
        await self.ask(line.removeprefix("/") if line.startswith("//") else line)
        return True

    async def ask(self, prompt: str) -> ShownAnswer:
        """Answer a prompt; the answer, as far as it came, is in the conversation afterwards."""
        self._conversation.ask(prompt)
        answer = await read_answer(self._client, self._conversation.messages(), self._settings, self._view)
        self._conversation.answer(answer.text, is_stopped=bool(answer.ending))
        self._store.keep(self._conversation)
        self._last = answer.report or self._last
        self.has_failed |= answer.error is not None
        self.was_stopped = answer.is_stopped
        if answer.error is not None and answer.text:
            self._view.note("the text so far is kept in the conversation; ask again to try once more")
        if answer.error is None:
            self._show_degraded([] if answer.report is None else answer.report.notes)
        return answer

    def _show_degraded(self, notes: Sequence[str]) -> None:
        """Show the endpoints that don't work, also after an answer that had nothing to do with them, unless its notes say it."""
        for each in self._client.degraded:
            if not any(each.note in note or note.startswith(f"{each.endpoint} ") for note in notes):
                self._view.error(each.note)

    # What the toolbar shows

    @property
    def settings_line(self) -> str:
        """Return the settings in force, as one line."""
        if self._mode_name == "split":
            return f"mode split · pace {pace_text(self._settings.pace)}"
        rule = f"policy {self._policy_name}" if self._mode_name == "race" else f"mode {self._mode_name}"
        return f"{rule} · budget {self._budget_share:g} · pace {pace_text(self._settings.pace)}"

    # Commands: each takes the text after its name and returns True to go on

    def _help(self, _: str) -> bool:
        self._view.tables([Section("commands and keys", (), list(help_lines()))])
        return True

    def _new(self, _: str) -> bool:
        self._conversation.forget()
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
            self._budget_share = share
        raced, drafted = "of prompt tokens may be processed by the constrained side", "of drafted tokens are verified by the server"
        what = {"race": raced, "speculate": drafted}.get(self._mode_name, f"{raced}, or {drafted}")
        self._view.note(f"budget: {self._budget_share:.0%} {what}")
        return True

    def _mode(self, text: str) -> bool:
        if text:
            mode = parse_mode(text)
            self._client = self._client.with_options(mode=mode)
            self._mode_name = mode
        self._view.note(f"mode: {self._mode_name}")
        return True

    def _policy(self, text: str) -> bool:
        if text:
            name = parse_policy(text)
            race = replace(self._client.race, policy=name)
            self._client = self._client.with_options(mode=race).with_options(mode=parse_mode(self._mode_name))
            self._policy_name = name
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
        self._store.begin(path if is_kept else None)
        self._view.note(f"going on after {len(loaded.turns)} turns; the last prompt was: {last_prompt(loaded)}")


def last_prompt(conversation: Conversation) -> str:
    """Return the first line of the user's last prompt; "" if there is none."""
    prompts = [turn.content for turn in conversation.turns if turn.role == "user"]
    return prompts[-1].strip().partition("\n")[0][:80] if prompts else ""
