"""What of a response's texts the reader has, so that each text is given once, in whatever events it comes.

The API sends each text in deltas, once more whole when it is done, and a third time in the finished response. Gateways leave out some of
these, or number the parts differently. The rest of a text that is done is what its deltas have not given.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["GivenTexts", "Place", "TextKind"]

TextKind = Literal["text", "refusal", "reasoning", "summary"]
Place = tuple[TextKind, int, int]
"""Kind of a text, number of its item, and number of the part in the item."""


class _Given:
    __slots__ = ("is_whole", "listed_at", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_whole = False  # its whole text has come
        self.listed_at: Place | None = None  # where its item has it, once that is done


class GivenTexts:
    """The texts of one response that were given so far, by their place."""

    def __init__(self) -> None:
        self._given: dict[Place, _Given] = {}

    def add(self, place: Place, piece: str) -> None:
        """Record a piece that is given."""
        self._given.setdefault(place, _Given()).pieces.append(piece)

    def take_rest(self, place: Place, whole: str, *, is_listed: bool = False) -> str:
        """Return what of a whole text is not given yet, and record it as given.

        A text that was given otherwise stays as it is, because a reader can't take text back.

        Args:
            place: where the text is.
            whole: the whole text.
            is_listed: the text is in an item that is done. Some servers number its parts otherwise in their deltas.
        """
        if not whole:
            return ""
        given = self._given.get(place)
        if given is None or (is_listed and given.listed_at not in (None, place)):
            given = self._find_elsewhere(place, whole, is_listed=is_listed) or _Given()
        self._given[place] = given
        given.is_whole = True
        if is_listed:
            given.listed_at = place
        before = "".join(given.pieces)
        rest = whole[len(before) :] if whole.startswith(before) else ""
        given.pieces = [before + rest]
        return rest

    def _find_elsewhere(self, place: Place, whole: str, *, is_listed: bool) -> _Given | None:
        """Return a text of the same kind that came under another number and begins this one; each serves once."""
        for (kind, item, _), given in self._given.items():
            is_free = not given.is_whole or (is_listed and item == place[1] and given.listed_at is None)
            if kind == place[0] and is_free and (text := "".join(given.pieces)) and whole.startswith(text):
                return given
        return None
