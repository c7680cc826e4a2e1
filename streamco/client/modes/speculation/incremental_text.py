"""Incremental detokenisation with provisional text: it handles incomplete code points, stop strings and retractions.

The text of a draft depends on the tokens before it: a code point may be incomplete, or a stop string may have begun. So the provisional
text is computed again each time, starting at the committed tokens that have no text yet, and the reader gets only the changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from streamco.engines.base import TextPiece
from streamco.engines.detokenizer import StopMatcher, TextAssembler
from streamco.events import Origin, common_prefix_length

__all__ = ["IncrementalText", "TextAdded", "TextCommitted", "TextEvent", "TextRetracted"]


class TextAdded(Struct, frozen=True):
    """The next piece of text; it is provisional if the origin is "draft"."""

    piece: TextPiece
    origin: Origin


class TextCommitted(Struct, frozen=True):
    """The oldest provisional pieces of text have become final."""

    pieces: int
    characters: int
    origin: Origin


class TextRetracted(Struct, frozen=True):
    """The newest provisional pieces of text were retracted."""

    pieces: int
    characters: int


TextEvent = TextAdded | TextCommitted | TextRetracted


class IncrementalText:
    """The text of one answer, made from the token ids in the machine's commands.

    Args:
        token_bytes: returns the bytes of a token id, b"" for control tokens.
        stops: strings that end the answer.
        pending: first bytes of a code point, if the prompt ends inside one.

    Attributes:
        is_stopped: True if a stop string was found in committed text, so that no more text follows.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stops: tuple[str, ...] = (), pending: bytes = b"") -> None:
        self._token_bytes = token_bytes
        self._stops = stops
        self._pending = pending
        self._assembler = TextAssembler(token_bytes, pending)
        self._matcher = StopMatcher(stops)
        self._textless: deque[tuple[int, Origin]] = deque()  # committed tokens whose text is still held
        self._provisional: list[int] = []
        self._shown: list[TextPiece] = []  # provisional pieces that the reader has
        self.is_stopped = False

    def deliver(self, ids: Iterable[int], origin: Origin) -> list[TextEvent]:
        """Add tokens; they are provisional if the origin is "draft"."""
        if origin == "draft":
            self._provisional += ids
            return self._update([])
        return self._update(self._commit(ids, origin))

    def commit(self, count: int, origin: Origin) -> list[TextEvent]:
        """Make the oldest ``count`` provisional tokens final."""
        ids = self._provisional[:count]
        del self._provisional[:count]
        return self._update(self._commit(ids, origin))

    def retract(self, count: int) -> list[TextEvent]:
        """Drop the newest ``count`` provisional tokens."""
        del self._provisional[len(self._provisional) - count :]
        return self._update([])

    def finish(self) -> list[TextEvent]:
        """End the answer: add the text that is held, and retract provisional text."""
        self._provisional.clear()
        if self.is_stopped:
            return self._update([])
        pieces: list[TextPiece] = []
        if (rest := self._assembler.flush()) is not None:
            pieces, self.is_stopped = self._matcher.add(rest)
        return self._update(self._release([*pieces, *self._matcher.flush()]))

    def _commit(self, ids: Iterable[int], origin: Origin) -> list[TextAdded]:
        added: list[TextAdded] = []
        for token in ids:
            if self.is_stopped:
                break
            self._textless.append((token, origin))
            if (piece := self._assembler.add(token)) is not None:
                pieces, self.is_stopped = self._matcher.add(piece)
                added += self._release(pieces)
        return added

    def _release(self, pieces: Sequence[TextPiece]) -> list[TextAdded]:
        """Return final pieces, each with the origin of the token that completed it."""
        added = []
        for piece in pieces:
            self._pending = b""
            origins = [self._textless.popleft()[1] for _ in piece.ids]
            added.append(TextAdded(piece, origins[-1]))
        return added

    def _update(self, added: list[TextAdded]) -> list[TextEvent]:
        """Return the difference between the reader's text and the current text. ``added`` is final text."""
        same = common_prefix_length(self._shown, [each.piece for each in added])
        events: list[TextEvent] = []
        for origin, group in groupby(added[:same], key=lambda each: each.origin):
            committed = list(group)
            events.append(TextCommitted(len(committed), sum(len(each.piece.text) for each in committed), origin))
        del self._shown[:same]
        shown = [] if self.is_stopped else self._preview()
        kept = common_prefix_length(self._shown, shown) if same == len(added) else 0
        if gone := self._shown[kept:]:
            events.append(TextRetracted(len(gone), sum(len(piece.text) for piece in gone)))
        events += added[same:]
        events += [TextAdded(piece, "draft") for piece in shown[kept:]]
        self._shown = shown
        return events

    def _preview(self) -> list[TextPiece]:
        """Return the text of the provisional tokens."""
        if not self._provisional:
            return []
        assembler, matcher = TextAssembler(self._token_bytes, self._pending), StopMatcher(self._stops)
        shown: list[TextPiece] = []
        for token in [*(token for token, _ in self._textless), *self._provisional]:
            if (piece := assembler.add(token)) is not None:
                pieces, is_stopped = matcher.add(piece)
                shown += pieces
                if is_stopped:
                    break
        return shown
