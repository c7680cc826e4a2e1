r"""Characters that a server has cut in two: one half at the end of an event, the other at the beginning of a later one.

Gateways written in JavaScript cut texts by UTF-16 units. Their JSON then has ``\ud83d`` at the end of one text and ``\ude00`` at the
beginning of the next. Only both together are a character.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["TextHalves", "replace_halves"]

_Path = tuple[Any, ...]
_TEXTS = frozenset({
    "arguments",
    "content",
    "delta",
    "input",
    "partial_json",
    "reasoning",
    "reasoning_content",
    "reasoning_text",
    "refusal",
    "text",
    "thinking",
})  # fmt: skip
_PLACES = ("type", "index", "output_index", "content_index", "summary_index")  # of an object: which of its kind it is


class TextHalves:
    """Joins the halves in the events of one answer; its parser owns it.

    Args:
        places: the fields that say which text of its kind an event has a piece of.
        is_one_choice: all choices are one, whatever their index is.
    """

    __slots__ = ("_held", "_is_one_choice", "_places", "_skeletons", "has_taken")

    def __init__(self, places: tuple[str, ...] = _PLACES, *, is_one_choice: bool = False) -> None:
        self._places = places
        self._is_one_choice = is_one_choice
        self.has_taken = False
        """True if a half of the event joined last is held, which is output without a text."""
        self._held: dict[_Path, str] = {}  # the first half of a character, by the place of its text
        self._skeletons: dict[_Path, dict[str, Any]] = {}

    @property
    def is_open(self) -> bool:
        """True if a half waits for the other one."""
        return bool(self._held)

    def join(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event with whole characters. A half at the end of a text is held until the next text of the same place comes.

        Args:
            event: the decoded event, which may hold lone surrogates.
        """
        self.has_taken = False
        return self._join(event, (), [])  # type: ignore[no-any-return]

    def take_rest(self) -> list[dict[str, Any]]:
        """Return events with U+FFFD in the place of each half whose other half never came."""
        rest = list(self._skeletons.values())
        self._held.clear()
        self._skeletons.clear()
        return rest

    def _join(self, value: Any, path: _Path, way: list[tuple[Any, Any]]) -> Any:
        match value:
            case str():
                return self._join_text(value, path, way)
            case dict():
                names = () if self._is_one_choice and path[-2:-1] == ("choices",) else self._places
                place = tuple(value.get(name) for name in names if isinstance(value.get(name), str | int))
                return {_whole(name): self._join(item, (*path, place, name), [*way, (value, name)]) for name, item in value.items()}
            case list():
                is_one = self._is_one_choice and path[-1:] == ("choices",)
                return [
                    self._join(item, (*path, 0 if is_one else _number_of(item, at)), [*way, (value, at)]) for at, item in enumerate(value)
                ]
        return value

    def _join_text(self, text: str, path: _Path, way: list[tuple[Any, Any]]) -> str:
        if not path or path[-1] not in _TEXTS or "logprobs" in path:
            return _whole(text)
        before = self._held.get(path)
        if before is None and text.isascii():
            return text
        if before is not None and text:
            del self._held[path], self._skeletons[path]
            text = before + text
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if text and "\ud800" <= text[-1] <= "\udbff":
            self.has_taken = True
            self._held[path] = text[-1]
            self._skeletons[path] = _skeleton(way)
            text = text[:-1]
        return _whole(text)


def replace_halves(value: Any) -> Any:
    """Return a decoded value in which each half of a character, for which there is no encoding, is U+FFFD; pairs are joined."""
    match value:
        case str():
            return _whole(value)
        case dict():
            return {_whole(name): replace_halves(item) for name, item in value.items()}
        case list():
            return [replace_halves(item) for item in value]
    return value


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _number_of(item: Any, at: int) -> Any:
    number = item.get("index") if isinstance(item, dict) else None
    return number if isinstance(number, str | int) else at


def _skeleton(way: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Return an event that holds nothing but U+FFFD in one place.

    Args:
        way: the holders of that place from the outermost to the innermost, each with the key or the number of the next.
    """
    value: Any = "\ufffd"
    for holder, key in reversed(way):
        value = [value] if isinstance(holder, list) else {**dict(_placed(holder)), key: value}
    return value  # type: ignore[no-any-return]


def _placed(holder: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in (*_PLACES, "id", "item_id"):
        if isinstance(item := holder.get(name), str | int):
            yield name, item
