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
    __slots__ = ("is_whole", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_whole = False  # its whole text has come


class GivenTexts:
    """The texts of one response that were given so far, by their place."""

    def __init__(self) -> None:
        self._given: dict[Place, _Given] = {}

    def add(self, place: Place, piece: str) -> None:
        """Record a piece that is given."""
        self._given.setdefault(place, _Given()).pieces.append(piece)

    def take_rest(self, place: Place, whole: str) -> str:
        """Return what of a whole text is not given yet, and record it as given.

        A text that was given otherwise stays as it is, because a reader can't take text back.
        """
        if not whole:
            return ""
        given = self._given.get(place) or self._find_elsewhere(place, whole)
        if given is None:
            given = _Given()
        self._given[place] = given
        given.is_whole = True
        before = "".join(given.pieces)
        rest = whole[len(before) :] if whole.startswith(before) else ""
        given.pieces = [before + rest]
        return rest

    def _find_elsewhere(self, place: Place, whole: str) -> _Given | None:
        """Return a text of the same kind that came under another number and begins this one; each serves once."""
        for (kind, _, _), given in self._given.items():
            if kind == place[0] and not given.is_whole and (text := "".join(given.pieces)) and whole.startswith(text):
                return given
        return None
