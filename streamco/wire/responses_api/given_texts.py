"""Keeps track of how much of a response's texts the reader already has, so that no text is given twice, whatever events it comes in.

The API sends each text in deltas, then again as a whole when it is done, and a third time in the finished response. Gateways leave out some
of these, or number the parts differently. Of a finished text, only the part that its deltas didn't have is given.

The work for an event depends on the event's size, not on how much came before it.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain, islice
from typing import Literal

__all__ = ["GatheredText", "GivenTexts", "Place", "TextKind"]

TextKind = Literal["text", "refusal", "reasoning", "summary"]
Place = tuple[TextKind, int, int]
"""Where a text belongs: its kind, the number of its item, and the number of its part in the item."""

_MOST_TRIED = 100  # texts; real responses have only a few that came under other numbers


class GatheredText:
    """The pieces of one text that the reader already has."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.size = 0
        """Number of characters in the pieces."""

    def add(self, piece: str) -> None:
        """Record a piece as given to the reader."""
        self._pieces.append(piece)
        self.size += len(piece)

    def begins(self, whole: str) -> bool:
        """Return True if a whole text begins with the pieces given so far."""
        if self.size > len(whole):
            return False  # without joining text that may be much longer
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return not self._pieces or whole.startswith(self._pieces[0])

    def take_rest(self, whole: str) -> str:
        """Return the part of a whole text that has not been given yet, and record it as given.

        If the given pieces differ from the whole text, nothing is returned, because text that the reader has can't be taken back.
        """
        rest = whole[self.size :] if self.begins(whole) else ""
        if rest:
            self.add(rest)
        return rest


class _Given(GatheredText):
    __slots__ = ("is_whole", "listed_at", "places")

    def __init__(self) -> None:
        super().__init__()
        self.is_whole = False  # True once the whole text has come
        self.listed_at: Place | None = None  # its place in its item, once the item is done
        self.places: list[Place] = []  # places under which it came


class GivenTexts:
    """The texts of one response that the reader already has, by their place."""

    def __init__(self) -> None:
        self._given: dict[Place, _Given] = {}
        self._unfinished: dict[TextKind, OrderedDict[_Given, None]] = {}  # texts whose whole hasn't come
        self._unlisted: dict[tuple[TextKind, int], OrderedDict[_Given, None]] = {}  # an item's texts that no finished item has listed yet

    def add(self, place: Place, piece: str) -> None:
        """Record a piece as given to the reader."""
        given = self._given.get(place)
        if given is None:
            given = self._put(place, _Given())
        given.add(piece)

    def take_rest(self, place: Place, whole: str, *, is_listed: bool = False) -> str:
        """Return the part of a whole text that has not been given yet, and record it as given.

        Args:
            place: the text's place in the response.
            whole: the whole text.
            is_listed: True if the text is in a finished item, where some servers number the parts differently than in deltas.
        """
        if not whole:
            return ""
        given = self._given.get(place)
        if given is None or (is_listed and given.listed_at not in (None, place)):
            given = self._put(place, self._find_elsewhere(place, whole, is_listed=is_listed) or _Given())
        self._finish(given, place if is_listed else None)
        return given.take_rest(whole)

    def _put(self, place: Place, given: _Given) -> _Given:
        self._given[place] = given
        given.places.append(place)
        self._unlisted.setdefault(place[:2], OrderedDict())[given] = None
        if not given.is_whole:
            self._unfinished.setdefault(place[0], OrderedDict())[given] = None
        return given

    def _finish(self, given: _Given, listed_at: Place | None) -> None:
        if not given.is_whole:
            given.is_whole = True
            self._unfinished[given.places[0][0]].pop(given, None)
        if listed_at is not None and given.listed_at is None:
            given.listed_at = listed_at
            for place in given.places:
                self._unlisted[place[:2]].pop(given, None)

    def _find_elsewhere(self, place: Place, whole: str, *, is_listed: bool) -> _Given | None:
        """Find a text of the same kind that came under another number and is the beginning of this one. Each is found only once.

        Only the first hundred texts are tried, so that a server can't make each text take longer than the one before it.
        """
        same_item = self._unlisted.get(place[:2], ()) if is_listed else ()
        free = chain(same_item, self._unfinished.get(place[0], ()))
        return next((given for given in islice(free, _MOST_TRIED) if given.begins(whole)), None)
