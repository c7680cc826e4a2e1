"""From an answer's tokens to what its reader gets: whole code points, nothing of a stop string, and no more taken back than was given.

A draft's text depends on the tokens before it (a code point may be open, a stop string may have begun), so what is provisional is worked
out anew from the settled tokens that have no text yet, and the reader is told the difference to what it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from streamco.core.speculation.events import Origin
from streamco.engines.base import TextPiece
from streamco.engines.detokenizer import StopMatcher, TextAssembler
from streamco.partial import common_prefix_length

__all__ = ["TextAdded", "TextCommitted", "TextRetracted", "IncrementalText", "Words"]


class TextAdded(Struct, frozen=True):
    """Text that comes next. Origin ``draft``: provisional."""

    piece: TextPiece
    origin: Origin


class TextCommitted(Struct, frozen=True):
    """The oldest provisional pieces are final."""

    pieces: int
    characters: int
    origin: Origin


class TextRetracted(Struct, frozen=True):
    """The newest provisional pieces are gone."""

    pieces: int
    characters: int


Words = TextAdded | TextCommitted | TextRetracted


class IncrementalText:
    """One answer's text; ids go in as the speculator's commands name them.

    Args:
        token_bytes: bytes of a token id; b"" for control tokens.
        stops: strings that end the answer.
        opened: the first bytes of a code point that the prompt ends inside of.

    Attributes:
        is_stopped: a stop string was found among settled tokens; nothing comes behind it.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stops: tuple[str, ...] = (), opened: bytes = b"") -> None:
        self._token_bytes = token_bytes
        self._stops = stops
        self._opened = opened
        self._assembler = TextAssembler(token_bytes, opened)
        self._matcher = StopMatcher(stops)
        self._textless: deque[tuple[int, Origin]] = deque()  # settled tokens whose text is held
        self._provisional: list[int] = []
        self._shown: list[TextPiece] = []  # of provisional tokens, at the reader
        self.is_stopped = False

    def deliver(self, ids: Iterable[int], origin: Origin) -> list[Words]:
        """These tokens come next."""
        if origin == "draft":
            self._provisional += ids
            return self._tell([])
        return self._tell(self._settle(ids, origin))

    def settle(self, count: int, origin: Origin) -> list[Words]:
        """Return the oldest ``count`` provisional tokens are final."""
        ids = self._provisional[:count]
        del self._provisional[:count]
        return self._tell(self._settle(ids, origin))

    def retract(self, count: int) -> list[Words]:
        """Return the newest ``count`` provisional tokens are gone."""
        del self._provisional[len(self._provisional) - count :]
        return self._tell([])

    def finish(self) -> list[Words]:
        """Return the answer has ended: what was held comes, what is provisional goes."""
        self._provisional.clear()
        if self.is_stopped:
            return self._tell([])
        pieces: list[TextPiece] = []
        if (rest := self._assembler.flush()) is not None:
            pieces, self.is_stopped = self._matcher.add(rest)
        return self._tell(self._release([*pieces, *self._matcher.flush()]))

    def _settle(self, ids: Iterable[int], origin: Origin) -> list[TextAdded]:
        said: list[TextAdded] = []
        for token in ids:
            if self.is_stopped:
                break
            self._textless.append((token, origin))
            if (piece := self._assembler.add(token)) is not None:
                pieces, self.is_stopped = self._matcher.add(piece)
                said += self._release(pieces)
        return said

    def _release(self, pieces: Sequence[TextPiece]) -> list[TextAdded]:
        """Pieces are told with who completed them."""
        said = []
        for piece in pieces:
            self._opened = b""
            makers = [self._textless.popleft()[1] for _ in piece.ids]
            said.append(TextAdded(piece, makers[-1]))
        return said

    def _tell(self, said: list[TextAdded]) -> list[Words]:
        """Return the difference between what the reader has and what is so now."""
        same = common_prefix_length(self._shown, [each.piece for each in said])
        told: list[Words] = []
        for origin, group in groupby(said[:same], key=lambda each: each.origin):
            settled = list(group)
            told.append(TextCommitted(len(settled), sum(len(each.piece.text) for each in settled), origin))
        del self._shown[:same]
        wanted = [] if self.is_stopped else self._preview()
        kept = common_prefix_length(self._shown, wanted) if same == len(said) else 0
        if gone := self._shown[kept:]:
            told.append(TextRetracted(len(gone), sum(len(piece.text) for piece in gone)))
        told += said[same:]
        told += [TextAdded(piece, "draft") for piece in wanted[kept:]]
        self._shown = wanted
        return told

    def _preview(self) -> list[TextPiece]:
        """Return what the provisional tokens would say."""
        if not self._provisional:
            return []
        assembler, matcher = TextAssembler(self._token_bytes, self._opened), StopMatcher(self._stops)
        shown: list[TextPiece] = []
        for token in [*(token for token, _ in self._textless), *self._provisional]:
            if (piece := assembler.add(token)) is not None:
                pieces, is_stopped = matcher.add(piece)
                shown += pieces
                if is_stopped:
                    break
        return shown
