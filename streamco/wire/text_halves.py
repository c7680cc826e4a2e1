r"""Joins characters that a server has cut in two, with one half at the end of a piece of text and the other at the start of the next.

Gateways written in JavaScript cut texts by UTF-16 units. Their JSON then has ``\ud83d`` at the end of one piece and ``\ude00`` at the
beginning of the next. Only together are they a character. A decoded event keeps halves only in pieces of text, where the other half may
follow (``whole_values``). The parser knows which text a piece belongs to, and joins the halves (``TextHalves``).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

__all__ = ["HALF", "TextHalves", "join_pairs", "whole_values"]

HALF = "\ufffd"
"""The replacement character, used for a half whose other half never came."""

_DELTA = (
    *("content", "content.text", "content.thinking", "content.thinking.text"),
    *("reasoning_content", "reasoning", "reasoning_text", "thinking", "refusal"),
    *("tool_calls.function.arguments", "tool_calls.custom.input", "function_call.arguments"),
)
_PIECES = frozenset(
    ["delta", "delta.text", "delta.thinking", "delta.partial_json", "choices.text"]
    + [f"choices.{holder}.{name}" for holder in ("delta", "message") for name in _DELTA]
)
"""Paths of the fields that hold pieces of text in events of the three APIs. List indexes are left out."""


class TextHalves:
    """Joins halves of characters across the pieces of one answer's texts. Each parser owns one."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[Hashable, str] = {}  # the first half of a character, by the text that it belongs to

    @property
    def is_open(self) -> bool:
        """True if a half is waiting for its other half."""
        return bool(self._held)

    def join(self, text: Hashable, piece: str) -> str:
        """Return a piece with whole characters. A half at the end is held back until the next piece of the same text.

        Args:
            text: key of the text that the piece belongs to.
            piece: the piece, which may hold halves.
        """
        if not piece or (piece.isascii() and text not in self._held):
            return piece
        piece = join_pairs(self._held.pop(text, "") + piece)
        if "\ud800" <= piece[-1] <= "\udbff":
            self._held[text] = piece[-1]
            piece = piece[:-1]
        return _whole(piece)

    def holds(self, text: Hashable) -> bool:
        """Return True if a half of this text is held. It counts as output although it is no character yet."""
        return text in self._held

    def give_up(self, text: Hashable) -> str:
        """Drop the held half of this text. Returns ``HALF`` in its place, or "" if none was held."""
        return HALF if self._held.pop(text, None) else ""

    def give_up_all(self) -> list[Any]:
        """Drop all held halves, and return the keys of their texts. The caller ends each of these texts with ``HALF``."""
        texts = list(self._held)
        self._held.clear()
        return texts


def join_pairs(text: str) -> str:
    """Join the pairs of halves in a text. Single halves stay as they are."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def whole_values(value: Any, *, has_pieces: bool = False) -> Any:
    """Return a decoded value with pairs of halves joined, and with ``HALF`` for every single half, because those can't be encoded.

    Args:
        value: the value, as decoded from JSON.
        has_pieces: True if the value is an event of a stream, whose pieces of text stay as they are.
    """
    return _whole_values(value, "" if has_pieces else None)


def _whole_values(value: Any, way: str | None) -> Any:
    """Return the value with its halves joined or replaced. ``way`` is its path in an event, or None outside events."""
    match value:
        case str():
            return value if way in _PIECES else _whole(value)
        case dict():
            return {_whole(name): _whole_values(item, _extended(way, name)) for name, item in value.items()}
        case list():
            return [_whole_values(item, way) for item in value]
    return value


def _extended(way: str | None, name: str) -> str | None:
    return f"{way}.{name}" if way else name if way is not None else None


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
