"""The output items of a response, and which of them an event belongs to.

The API names an item by its id and by its place in the output. Gateways leave out one of them, make new ids for each event, or give every
item the place 0. So an item is looked for by its id, then by its place, then as the latest one, always among items of its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["OutputItem", "OutputItems"]


class OutputItem:
    """An item that has begun.

    Args:
        kind: its type.
        place: its number in the output; None: not known.
    """

    __slots__ = ("arguments", "call", "call_id", "ids", "is_done", "is_given", "kind", "name", "number", "place")

    def __init__(self, kind: str, place: int | None, number: int) -> None:
        self.kind = kind
        self.place = place
        self.number = number
        """Number of the item in the order of the beginnings."""
        self.ids: set[str] = set()
        self.is_done = False
        self.is_given = False
        """True if the reader has the item as a whole."""
        self.call = -1
        """Number of the call that it is; -1: it is none."""
        self.name = ""
        self.call_id = ""  # that the reader has
        self.arguments = ""

    @property
    def is_custom(self) -> bool:
        """True for the call of a custom tool."""
        return self.kind == "custom_tool_call"


class OutputItems:
    """The items of one response."""

    def __init__(self) -> None:
        self._items: list[OutputItem] = []

    def begin(self, kind: str, item: dict[str, Any], place: int | None) -> OutputItem:
        """Return the item of an event that says that it is new."""
        ids = _ids_of(item)
        return self._latest(kind, lambda each: bool(each.ids & ids)) or self._add(kind, ids, place)

    def find(self, kind: str, item_id: Any, place: int | None) -> OutputItem:
        """Return the item that a piece of text belongs to."""
        ids = {item_id} if isinstance(item_id, str) and item_id else set()
        latest = self._latest(kind, lambda _: True)
        found = self._latest(kind, lambda each: bool(each.ids & ids))
        found = found or self._latest(kind, lambda each: place is not None and each.place == place)
        if found is None and latest is not None and (place is None or latest.place is None):
            found = latest
        return found or self._add(kind, ids, place)

    def finish(self, kind: str, item: dict[str, Any], place: int | None, *, is_final: bool) -> OutputItem:
        """Return the item that is done; ``is_final``: the whole response has it."""
        ids = _ids_of(item)
        found = self._latest(kind, lambda each: bool(each.ids & ids))
        found = found or self._latest(kind, lambda each: place is not None and each.place == place and (is_final or not each.is_done))
        if found is None and not is_final:
            found = self._latest(kind, lambda each: (place is None or each.place is None) and not each.is_done)
        found = found or self._add(kind, ids, place)
        found.ids |= ids
        found.is_done = True
        return found

    def _add(self, kind: str, ids: set[str], place: int | None) -> OutputItem:
        item = OutputItem(kind, place, len(self._items))
        item.ids |= ids
        self._items.append(item)
        return item

    def _latest(self, kind: str, is_wanted: Callable[[OutputItem], bool]) -> OutputItem | None:
        return next((each for each in reversed(self._items) if each.kind == kind and is_wanted(each)), None)


def _ids_of(item: dict[str, Any]) -> set[str]:
    return {value for name in ("id", "call_id") if isinstance(value := item.get(name), str) and value}
