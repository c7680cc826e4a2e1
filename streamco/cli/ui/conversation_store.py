"""The conversations that are kept between runs, each in a JSON file that only its user can read."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from streamco.cli.ui.history import ChatModels, Conversation, Turn, state_path
from streamco.engines.llamacpp.cache_dir import write_whole

__all__ = ["NO_SAVE_VARIABLE", "ConversationStore", "conversation_folder", "may_save", "read_conversation", "write_conversation"]

NO_SAVE_VARIABLE = "STREAMCO_NO_SAVE"
MAX_KEPT = 200  # conversations; the oldest are deleted first


class _Kept(Struct):
    system: str | None
    turns: list[Turn]
    models: ChatModels | None = None


def may_save() -> bool:
    """Return True unless ``STREAMCO_NO_SAVE`` is set."""
    return os.environ.get(NO_SAVE_VARIABLE, "") in {"", "0"}


def conversation_folder() -> Path | None:
    """Return the folder of kept conversations, or None if ``STREAMCO_NO_SAVE`` is set or there is nowhere to write."""
    if not may_save():
        return None
    try:
        folder = state_path("conversations")
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder


def read_conversation(path: Path) -> Conversation:
    """Return a conversation from its file.

    Raises:
        OSError: the file can't be read.
        ValueError: it contains something else.
    """
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except msgspec.DecodeError as error:
        raise ValueError(f"expected a conversation as JSON in {path}, got something else: {error}") from error
    conversation = Conversation(kept.system)
    conversation.turns = kept.turns
    conversation.models = kept.models
    return conversation


def write_conversation(conversation: Conversation, path: Path) -> None:
    """Write a conversation as JSON. The whole file is replaced at once, and only its user may read it.

    Raises:
        OSError: it can't be written.
    """
    write_whole(path, msgspec.json.encode(_Kept(conversation.system, conversation.turns, conversation.models)), is_private=True)


class ConversationStore:
    """Keeps the running conversation in a file, and finds earlier ones.

    Args:
        folder: the folder of the files, or None to keep nothing and have no earlier conversations.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._path: Path | None = None  # file of the running conversation

    def begin(self, path: Path | None = None) -> None:
        """Begin a conversation, or continue the one in ``path``."""
        self._path = path

    def keep(self, conversation: Conversation) -> None:
        """Write the running conversation to its file, if the file can be written."""
        if self._folder is None or not conversation.turns:
            return
        if self._path is None:
            self._path = self._folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 1_000_000_000:09d}.json"
            self._drop_oldest()
        with suppress(OSError):
            write_conversation(conversation, self._path)

    def earlier(self) -> list[Path]:
        """Return the files of the kept conversations, the most recently used first."""
        if self._folder is None:
            return []
        files: list[tuple[float, str, Path]] = []
        for path in self._folder.glob("*.json"):
            with suppress(OSError):
                files.append((path.stat().st_mtime, path.name, path))
        return [path for _, _, path in sorted(files, reverse=True)]

    def _drop_oldest(self) -> None:
        for path in self.earlier()[MAX_KEPT - 1 :]:
            with suppress(OSError):
                path.unlink()
