"""The conversation that is sent with every prompt, and the file that remembers prompts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from streamco.endpoints.address import is_url
from streamco.endpoints.model_files import PACKAGED, is_hub_name

__all__ = ["Conversation", "ChatModels", "Turn", "state_path"]


class Turn(Struct, frozen=True, omit_defaults=True):
    """One message of a conversation.

    Args:
        role: ``user`` or ``assistant``.
        content: its text.
        is_stopped: True if the answer was cut short by Ctrl-C or a failed endpoint.
        images: ``data:`` URLs that were sent with the text.
    """

    role: str
    content: str
    is_stopped: bool = False
    images: tuple[str, ...] = ()


class ChatModels(Struct, frozen=True, omit_defaults=True):
    """The models of a conversation, as options name them. A field is None if it isn't given or there is no such side.

    Args:
        device: path, name or URL of the device's model, or ``packaged``.
        device_model: the model's name at a URL.
        server: the remote model's name.
        base_url: the server's base URL.
        api_key_env: environment variable that contains its key.
    """

    device: str | None = None
    device_model: str | None = None
    server: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None

    def __str__(self) -> str:
        """Return the models as text, such as ``tiny.gguf and gpt-4o-mini``."""
        return " and ".join(name for name in (self.device_name, self.server_name) if name) or "no model"

    @property
    def device_name(self) -> str:
        """A readable name of the device's model, or "" if there is none."""
        if self.device is None or self.device == PACKAGED:
            return "" if self.device is None else "the packaged model"
        if is_url(self.device):
            return f"{self.device_model or 'the model'} at {self.device}"
        return self.device if is_hub_name(self.device) else Path(self.device).name

    @property
    def server_name(self) -> str:
        """A readable name of the server's model, or "" if there is none."""
        return "" if self.server is None else f"{self.server} at {self.base_url}" if self.base_url else self.server


class Conversation:
    """The turns so far, preceded by a system message if there is one.

    A question that gets no answer is withdrawn, because many chat templates refuse two user messages in a row.
    """

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[Turn] = []
        self.models: ChatModels | None = None  # not known, or a split model

    def ask(self, prompt: str, images: Sequence[str] = ()) -> None:
        """Add the user's prompt."""
        self.turns.append(Turn("user", prompt, images=tuple(images)))

    @property
    def has_images(self) -> bool:
        """True if the next request contains an image, with its prompt or in an earlier turn."""
        return any(turn.images for turn in self.turns)

    @property
    def last_question(self) -> Turn | None:
        """The last prompt that has an answer, if any."""
        return next((turn for turn in reversed(self.turns) if turn.role == "user"), None)

    def take_back(self) -> None:
        """Remove the last prompt and its answer."""
        while self.turns and self.turns.pop().role != "user":
            pass

    def answer(self, text: str, *, is_stopped: bool = False) -> None:
        """Add the model's answer, or withdraw the question if the answer is empty."""
        if text.strip():
            self.turns.append(Turn("assistant", text, is_stopped))
        else:
            self.turns.pop()

    def forget(self) -> None:
        """Start a new conversation, keeping the system message."""
        self.turns.clear()

    def messages(self) -> list[Mapping[str, Any]]:
        """Return the conversation in OpenAI's format."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *({"role": turn.role, "content": _content(turn)} for turn in self.turns)]

    def to_markdown(self) -> str:
        """Return the conversation as a readable Markdown document."""
        sections = [f"## System\n\n{self.system}\n"] if self.system else []
        for turn in self.turns:
            title = "You" if turn.role == "user" else "Answer (stopped)" if turn.is_stopped else "Answer"
            images = f"\n\n({len(turn.images)} image{'s' if len(turn.images) > 1 else ''})" if turn.images else ""
            sections.append(f"## {title}\n\n{turn.content.strip()}{images}\n")
        return "\n".join(sections)


def _content(turn: Turn) -> str | list[dict[str, Any]]:
    """Return a message's content in OpenAI's format: a text, or parts if there are images."""
    if not turn.images:
        return turn.content
    text = [{"type": "text", "text": turn.content}] if turn.content else []
    return [*text, *({"type": "image_url", "image_url": {"url": url}} for url in turn.images)]


def state_path(name: str) -> Path:
    """Return a file in the user's state folder (XDG Base Directory: ``$XDG_STATE_HOME``, by default ``~/.local/state``).

    The folder is created, readable only by its user, because prompts are private.

    Raises:
        OSError: the folder can't be created.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    folder = (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "streamco"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / name
