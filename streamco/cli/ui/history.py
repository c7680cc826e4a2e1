"""The conversation that is sent with every prompt, and the file that remembers prompts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

__all__ = ["Conversation", "Turn", "state_path"]


class Turn(Struct, frozen=True):
    """One message. ``is_stopped``: the answer was cut short by Ctrl-C or by a failed endpoint."""

    role: str
    content: str
    is_stopped: bool = False


class Conversation:
    """The turns so far, with a system message before them.

    A question without any answer is withdrawn again: two user messages in a row are refused by many chat templates.
    """

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[Turn] = []

    def ask(self, prompt: str) -> None:
        """Add a prompt of the user."""
        self.turns.append(Turn("user", prompt))

    def answer(self, text: str, *, is_stopped: bool = False) -> None:
        """Add the model's answer; if it is empty, withdraw the question."""
        if text.strip():
            self.turns.append(Turn("assistant", text, is_stopped))
        else:
            self.turns.pop()

    def forget(self) -> None:
        """Start a new conversation; the system message stays."""
        self.turns.clear()

    def messages(self) -> list[Mapping[str, str]]:
        """Return the conversation in OpenAI's shape."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *({"role": turn.role, "content": turn.content} for turn in self.turns)]

    def to_markdown(self) -> str:
        """Return the conversation as a document for a reader."""
        sections = [f"## System\n\n{self.system}\n"] if self.system else []
        for turn in self.turns:
            title = "You" if turn.role == "user" else "Answer (stopped)" if turn.is_stopped else "Answer"
            sections.append(f"## {title}\n\n{turn.content.strip()}\n")
        return "\n".join(sections)


def state_path(name: str) -> Path:
    """Return a file in the user's state folder (XDG Base Directory: ``$XDG_STATE_HOME``, by default ``~/.local/state``).

    The folder is made, readable by its user alone: prompts are private.

    Raises:
        OSError: the folder can't be made.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    folder = (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "streamco"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / name
