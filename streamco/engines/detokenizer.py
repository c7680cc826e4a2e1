"""Turns token ids into text that may be shown, in whole code points and without stop strings.

A code point may be split across tokens (an emoji often takes three or four), and a stop string may end in the middle of a token. Text that
can't be shown yet is held back. Ids stay with the text that they belong to, so that a piece's ids always decode to its text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from operator import itemgetter

from streamco.engines.base import TextPiece

__all__ = ["IncrementalDetokenizer", "StopMatcher", "TextAssembler"]

Top = tuple[tuple[int, float], ...]


class TextAssembler:
    """Joins tokens until they form whole code points.

    Args:
        token_bytes: returns the bytes of a token id; b"" for control tokens.
        pending_bytes: the first bytes of a code point that began before these tokens; its text comes with the token that completes it.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], pending_bytes: bytes = b"") -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(pending_bytes)
        self._text = ""
        self._ids: list[int] = []
        self._tops: list[Top] = []
        self._is_clear = not pending_bytes

    def add(self, token: int, top: Top | None = None) -> TextPiece | None:
        """Return the piece that this token completes, or None if a code point is still incomplete, or if there is no text yet.

        Args:
            token: the token.
            top: its likeliest alternatives, given for every token or for none; None if not requested.
        """
        data = self._token_bytes(token)
        if self._is_clear and data.isascii():
            if data:
                return TextPiece(data.decode("ascii"), (token,), None if top is None else (top,))
            self._keep(token, top)
            return None
        self._text += self._decoder.decode(data)
        self._keep(token, top)
        return self._release() if self._text and not self._decoder.getstate()[0] else None

    def _keep(self, token: int, top: Top | None) -> None:
        self._ids.append(token)
        if top is not None:
            self._tops.append(top)
        self._is_clear = False

    def flush(self) -> TextPiece | None:
        """Return the last piece, or None if there is none; an incomplete code point at its end becomes U+FFFD."""
        self._text += self._decoder.decode(b"", final=True)
        return self._release() if self._ids else None

    def _release(self) -> TextPiece:
        piece = TextPiece(self._text, tuple(self._ids), tuple(self._tops) or None)
        self._text = ""
        self._ids, self._tops = [], []
        self._is_clear = True
        return piece


class StopMatcher:
    """Holds back pieces while they may be the beginning of a stop string.

    When a stop string is found, the text before it is released. A token that begins before the stop string and reaches into it is released
    with its text cut short. Its id stays, because it is needed to produce that text. Tokens that lie entirely inside the stop string are
    dropped.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held: list[TextPiece] = []
        self._text = ""
        self.found: str | None = None  # the stop string that was found

    def add(self, piece: TextPiece) -> tuple[list[TextPiece], bool]:
        """Return the pieces that can be shown now, and True if a stop string was found."""
        if not self._stops:
            return [piece], False
        self._held.append(piece)
        self._text += piece.text
        first = min(((at, stop) for stop in self._stops if (at := self._text.find(stop)) >= 0), key=itemgetter(0), default=None)
        if first is not None:
            position, self.found = first
            return self._cut(position), True
        return self._release(len(self._text) - self._open_length()), False

    def flush(self) -> list[TextPiece]:
        """Return all held pieces, because the answer ended without a stop string."""
        held, self._held, self._text = self._held, [], ""
        return held

    def _open_length(self) -> int:
        """Return the length of the longest suffix of the text that is the beginning of a stop string."""
        max_length = min(len(self._text), max(map(len, self._stops)) - 1)
        for length in range(max_length, 0, -1):
            tail = self._text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def _release(self, boundary: int) -> list[TextPiece]:
        """Return the pieces that end at or before ``boundary``."""
        count = end = 0
        for piece in self._held:
            if end + len(piece.text) > boundary:
                break
            end += len(piece.text)
            count += 1
        released = self._held[:count]
        del self._held[:count]
        self._text = self._text[end:]
        return released

    def _cut(self, boundary: int) -> list[TextPiece]:
        released = self._release(boundary)
        left = boundary - sum(len(piece.text) for piece in released)
        if left > 0:
            part = self._held[0]
            released.append(TextPiece(part.text[:left], part.ids, part.tops, is_cut=True))
        self._held = []
        self._text = ""
        return released


class IncrementalDetokenizer:
    """Turns one answer's tokens into text that may be shown, with a ``TextAssembler`` and, if there are stop strings, a ``StopMatcher``.

    Args:
        token_bytes: see ``TextAssembler``.
        stops: texts that end the answer.
        pending_bytes: see ``TextAssembler``.
    """

    __slots__ = ("_assembler", "_stops")

    def __init__(self, token_bytes: Callable[[int], bytes], stops: tuple[str, ...], pending_bytes: bytes = b"") -> None:
        self._assembler = TextAssembler(token_bytes, pending_bytes)
        self._stops = StopMatcher(stops) if stops else None

    @property
    def found_stop(self) -> str | None:
        """The stop string that was found, or None if none has been found yet."""
        return None if self._stops is None else self._stops.found

    def add(self, token: int, top: Top | None = None) -> tuple[list[TextPiece], bool] | None:
        """Return the pieces that can be shown now, and whether a stop string was found; None if the token completes no piece."""
        piece = self._assembler.add(token, top)
        if piece is None:
            return None
        return ([piece], False) if self._stops is None else self._stops.add(piece)

    def flush(self) -> list[TextPiece]:
        """Return the remaining pieces at the end of the answer, up to a stop string."""
        last = self._assembler.flush()
        if self._stops is None:
            return [] if last is None else [last]
        if last is None:
            return self._stops.flush()
        pieces, has_stopped = self._stops.add(last)
        return pieces if has_stopped else pieces + self._stops.flush()
