"""Joins a server's additional fields, which come in pieces like the text.

Nothing says which unknown fields come in pieces and which are repeated, so these rules decide. A single piece stays as it is.

- In a delta, strings are joined unless all are equal or the field is a label such as ``role``, lists are joined, and objects are merged.
- List items with an ``index`` (``reasoning_details`` of OpenRouter, ``executed_tools`` of Groq) are merged with the earlier item of the
  same type and index. Their texts and ``citations`` are joined, and other values replace the earlier ones. Encrypted items come whole.
- In a choice or a chunk, objects are merged. Of all other values, the last is kept, because lists such as ``citations`` are repeated and
  grow.

A null is kept only if no other value came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

__all__ = ["FurtherParts", "join_items", "merge"]

_LABELS = frozenset({"channel", "phase", "role", "type", "id", "format"})
_TEXTS = frozenset({"text", "summary", "thinking", "signature", "data", "transcript", "arguments", "content"})
_CITATIONS = "citations"  # in the Messages API's text blocks; they come one after the other
_PIECES = _TEXTS | {_CITATIONS}


class FurtherParts:
    """Collects the pieces of one object's additional fields, and joins them once, at the end.

    Args:
        are_deltas: True if strings and lists are pieces, as in a delta. If False, the last value counts.
    """

    def __init__(self, *, are_deltas: bool) -> None:
        self._are_deltas = are_deltas
        self._pieces: dict[str, list[Any]] = {}

    def add(self, fields: Mapping[str, Any]) -> None:
        """Add the fields of one chunk."""
        for name, value in fields.items():
            pieces = self._pieces.setdefault(name, [])
            if self._are_deltas:
                pieces.append(value)
            else:
                _add_newer(pieces, value)

    def joined(self) -> dict[str, Any]:
        """Return the joined fields so far."""
        if not self._are_deltas:
            return {name: merge(pieces) for name, pieces in self._pieces.items()}
        return {name: _join(name, pieces) for name, pieces in self._pieces.items()}


def _add_newer(pieces: list[Any], value: Any) -> None:
    """Add a value of a field whose last value counts. Earlier values are kept only for objects, which are merged.

    Other earlier values are dropped, because a server may repeat a long list in each event.
    """
    if value is None and pieces:
        return
    if pieces and pieces[0] is None:
        pieces.clear()
    is_object = isinstance(value, dict)
    if pieces and not (is_object and isinstance(pieces[0], dict)):
        del pieces[is_object:]  # of other values only one is kept, because it isn't merged
    pieces.append(value)


def _join(name: str, pieces: Sequence[Any]) -> Any:
    pieces = [piece for piece in pieces if piece is not None]
    if pieces and all(isinstance(piece, str) for piece in pieces):
        is_label = name in _LABELS or len(set(pieces)) == 1
        return pieces[-1] if is_label else "".join(pieces)
    if pieces and all(isinstance(piece, list) for piece in pieces):
        return join_items(pieces)
    return merge(pieces)


def merge(pieces: Sequence[Any], *, name: str = "") -> Any:
    """Return the last value that is not null. Objects are merged, and texts in them are joined by their names."""
    pieces = [piece for piece in pieces if piece is not None]
    if not pieces:
        return None
    if len(pieces) > 1 and all(isinstance(piece, dict) for piece in pieces):
        names = dict.fromkeys(key for piece in pieces for key in piece)
        return {key: merge([piece[key] for piece in pieces if key in piece], name=key) for key in names}
    if name in _TEXTS and all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    return pieces[-1]


def join_items(lists: Sequence[list[Any]]) -> list[Any]:
    """Join the items of all lists by the module's rules."""
    if len(lists) == 1:
        return lists[0]
    groups: list[list[Any]] = []
    newest: dict[tuple[str, int], int] = {}  # the newest group of a type and index
    before: list[Any] = []
    for items in lists:
        if before and items[: len(before)] == before and not any(map(_has_piece, before)):
            groups = groups[: -len(before)]  # the list is repeated, and grows
        for item in items:
            _group(item, groups, newest)
        before = items
    return [_merge_item(group) for group in groups]


def _merge_item(pieces: list[Any]) -> Any:
    """Merge the pieces of one item."""
    lists = [piece[_CITATIONS] for piece in pieces if isinstance(piece, dict) and piece.get(_CITATIONS) is not None]
    if len(lists) < 2 or not all(isinstance(each, list) for each in lists):
        return merge(pieces)
    return {**merge(pieces), _CITATIONS: list(chain.from_iterable(lists))}


def _group(item: Any, groups: list[list[Any]], newest: dict[tuple[str, int], int]) -> None:
    key = _key(item)
    place = None if key is None else newest.get(key)
    if place is not None and place < len(groups) and _may_continue(groups[place][-1], item):
        groups[place].append(item)
        return
    if key is not None:
        newest[key] = len(groups)
    groups.append([item])


def _key(item: Any) -> tuple[str, int] | None:
    """Return the type and index of an item that may be a piece, or None if the item is whole."""
    if not isinstance(item, dict) or type(item.get("index")) is not int or item.get("data") is not None:
        return None
    return str(item.get("type")), item["index"]


def _may_continue(before: Any, item: dict[str, Any]) -> bool:
    return before.get("id") is None or item.get("id") is None or before["id"] == item["id"]


def _has_piece(item: Any) -> bool:
    return isinstance(item, dict) and not _PIECES.isdisjoint(item)
