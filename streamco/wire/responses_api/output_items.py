"""Keeps the output items of a response, and finds the item that an event belongs to.

The API identifies an item by its id and by its place in the output. Gateways leave out one of them, make new ids for each event, or give
every item the place 0. So an item is looked up by its id and then by its place, among items of its type. If neither finds it, the latest
item of its type is taken. Each lookup uses a table, because a response may have any number of items.
"""

from __future__ import annotations

from typing import Any

from streamco.wire.responses_api.given_texts import GatheredText

__all__ = ["OutputItem", "OutputItems"]


class OutputItem:
    """An output item that has begun.

    Args:
        kind: the item's type.
        place: the item's index in the output, or None if it isn't known.
        number: the item's number in the order in which items began.
    """

    __slots__ = ("call", "call_id", "input", "is_done", "is_given", "kind", "name", "number", "place")

    def __init__(self, kind: str, place: int | None, number: int) -> None:
        self.kind = kind
        self.place = place
        self.number = number
        self.is_done = False
        self.is_given = False
        """True if the reader has been given the whole item."""
        self.call = -1
        """Number of the tool call, or -1 if the item isn't a call."""
        self.name = ""
        self.call_id = ""  # the id that the reader has
        self.input = GatheredText()
        """The part of the call's arguments that the reader already has."""

    @property
    def is_custom(self) -> bool:
        """True if the item is a call of a custom tool."""
        return self.kind == "custom_tool_call"


class OutputItems:
    """The output items of one response."""

    def __init__(self) -> None:
        self._count = 0
        self._latest: dict[str, OutputItem] = {}  # by type
        self._by_id: dict[tuple[str, str], OutputItem] = {}  # the latest of a type and id
        self._by_place: dict[tuple[str, int | None], OutputItem] = {}  # the latest of a type and place
        self._open: dict[str | tuple[str, int | None], list[OutputItem]] = {}  # by type, and by type and place; may hold finished items

    def begin(self, kind: str, item: dict[str, Any], place: int | None) -> OutputItem:
        """Return the item for an event that announces a new item."""
        ids = _ids_of(item)
        return self._latest_of(kind, ids) or self._add(kind, ids, place)

    def find(self, kind: str, item_id: Any, place: int | None) -> OutputItem:
        """Return the item that a piece of text belongs to."""
        if isinstance(item_id, str) and (found := self._by_id.get((kind, item_id))) is not None:
            return found
        if place is not None and (found := self._by_place.get((kind, place))) is not None:
            return found
        latest = self._latest.get(kind)
        if latest is not None and (place is None or latest.place is None):
            return latest
        return self._add(kind, _ids_of({"id": item_id}), place)

    def finish(self, kind: str, item: dict[str, Any], place: int | None, *, is_final: bool) -> OutputItem:
        """Find the finished item, and mark it as done. ``is_final`` says whether it comes from the finished response."""
        ids = _ids_of(item)
        found = self._latest_of(kind, ids)
        if found is None and place is not None:
            found = self._by_place.get((kind, place)) if is_final else self._latest_open((kind, place))
        if found is None and not is_final:
            found = self._latest_open(kind if place is None else (kind, None))
        found = found or self._add(kind, ids, place)
        self._name(found, ids)
        found.is_done = True
        return found

    def has(self, kind: str, item_id: Any) -> bool:
        """Return True if there is an item of this type with this id."""
        return isinstance(item_id, str) and (kind, item_id) in self._by_id

    def _add(self, kind: str, ids: set[str], place: int | None) -> OutputItem:
        item = OutputItem(kind, place, self._count)
        self._count += 1
        self._latest[kind] = self._by_place[kind, place] = item
        for key in (kind, (kind, place)):
            self._open.setdefault(key, []).append(item)
        self._name(item, ids)
        return item

    def _name(self, item: OutputItem, ids: set[str]) -> None:
        for item_id in ids:
            self._by_id[item.kind, item_id] = item

    def _latest_of(self, kind: str, ids: set[str]) -> OutputItem | None:
        """Return the latest item that has one of these ids."""
        found = [item for item_id in ids if (item := self._by_id.get((kind, item_id))) is not None]
        return max(found, key=lambda item: item.number, default=None)

    def _latest_open(self, key: str | tuple[str, int | None]) -> OutputItem | None:
        """Return the latest unfinished item with a type, or with a type and place."""
        items = self._open.get(key, [])
        while items and items[-1].is_done:
            items.pop()
        return items[-1] if items else None


def _ids_of(item: dict[str, Any]) -> set[str]:
    return {value for name in ("id", "call_id") if isinstance(value := item.get(name), str) and value}
