"""Which item of a response an event belongs to: by its id, else by its place, else the latest one of its type."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamco.wire.responses_api.output_items import OutputItem, OutputItems


class ScannedItems:
    """The same rules, read off by looking at all items from the latest to the first."""

    def __init__(self) -> None:
        self.items: list[tuple[OutputItem, set[str]]] = []

    def latest(self, kind: str, ids: set[str], places: tuple[int | None, ...] | None, *, is_open: bool = False) -> OutputItem | None:
        for item, own in reversed(self.items):
            fits = bool(own & ids) if ids else places is None or item.place in places
            if item.kind == kind and fits and not (is_open and item.is_done):
                return item
        return None

    def add(self, kind: str, ids: set[str], place: int | None) -> OutputItem:
        self.items.append((OutputItem(kind, place, len(self.items)), set(ids)))
        return self.items[-1][0]

    def begin(self, kind: str, ids: set[str], place: int | None) -> OutputItem:
        return (self.latest(kind, ids, None) if ids else None) or self.add(kind, ids, place)

    def find(self, kind: str, ids: set[str], place: int | None) -> OutputItem:
        found = self.latest(kind, ids, None) if ids else None
        if found is None and place is not None:
            found = self.latest(kind, set(), (place,))
        latest = self.latest(kind, set(), None)
        if found is None and latest is not None and None in (place, latest.place):
            found = latest
        return found or self.add(kind, ids, place)

    def finish(self, kind: str, ids: set[str], place: int | None, *, is_final: bool) -> OutputItem:
        found = self.latest(kind, ids, None) if ids else None
        if found is None and place is not None:
            found = self.latest(kind, set(), (place,), is_open=not is_final)
        if found is None and not is_final:
            found = self.latest(kind, set(), None if place is None else (None,), is_open=True)
        found = found or self.add(kind, ids, place)
        next(own for item, own in self.items if item is found).update(ids)
        found.is_done = True
        return found


STEPS = st.tuples(
    st.sampled_from(["begin", "find", "finish", "final"]),
    st.sampled_from(["message", "function_call"]),
    st.dictionaries(st.sampled_from(["id", "call_id"]), st.sampled_from(["a", "b", "c", "", None, 5]), max_size=2),
    st.none() | st.integers(0, 2),
)


@given(st.lists(STEPS, max_size=25))
def test_the_tables_find_what_a_look_at_all_items_finds(steps: list[tuple[str, str, dict[str, Any], int | None]]) -> None:
    items, scanned = OutputItems(), ScannedItems()
    for step, kind, fields, place in steps:
        ids = {value for value in fields.values() if isinstance(value, str) and value}
        match step:
            case "begin":
                found, expected = items.begin(kind, fields, place), scanned.begin(kind, ids, place)
            case "find":
                own = {value for value in (fields.get("id"),) if isinstance(value, str) and value}
                found, expected = items.find(kind, fields.get("id"), place), scanned.find(kind, own, place)
            case _:
                is_final = step == "final"
                found = items.finish(kind, fields, place, is_final=is_final)
                expected = scanned.finish(kind, ids, place, is_final=is_final)
        assert (found.number, found.kind, found.place, found.is_done) == (expected.number, kind, expected.place, expected.is_done)


def test_any_number_of_items_is_read() -> None:
    items = OutputItems()
    for number in range(20_000):
        assert items.begin("function_call", {"id": f"i{number}"}, number).number == number
    for number in range(20_000):
        assert items.find("function_call", f"i{number}", None).number == number
        assert items.find("function_call", None, number).number == number
    for number in range(20_000):
        assert items.finish("function_call", {}, number, is_final=False).number == number
    assert items.finish("function_call", {}, None, is_final=False).number == 20_000  # all others are done
