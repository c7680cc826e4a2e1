"""Where HTTP answers begin and end in a server's bytes, and where in a body a fault is to strike. Bytes in, decisions out, no IO."""

from __future__ import annotations

from enum import Enum, auto
from typing import Literal

__all__ = ["ResponseReader", "Part", "BodyPositionFinder"]

Part = tuple[Literal["head", "body", "end"], bytes]
"""A whole head, some bytes of a body without its framing, or the end of a body."""


class _State(Enum):
    HEAD = auto()
    SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    LENGTH = auto()
    ENDLESS = auto()


class ResponseReader:
    """Takes HTTP/1.1 answers of one connection apart; answers to HEAD are beyond it."""

    def __init__(self) -> None:
        self.is_chunked = False
        """Of the answer that is being read: its body is sent in chunks."""
        self._state = _State.HEAD
        self._held = bytearray()
        self._left = 0  # bytes of the chunk, or of the body

    def feed(self, data: bytes) -> list[Part]:
        """Take bytes, give what they complete; bytes of a body are never held back."""
        self._held += data
        parts: list[Part] = []
        while self._held and self._step(parts):
            pass
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """Return one part, or one line of framing; False: more bytes are needed."""
        match self._state:
            case _State.HEAD:
                return self._read_head(parts)
            case _State.CHUNK | _State.LENGTH:
                self._read_body(parts)
            case _State.ENDLESS:
                self._left = len(self._held)
                self._read_body(parts)
            case _State.SIZE | _State.CHUNK_END | _State.TRAILER:
                return self._read_line(parts)
        return True

    def _read_head(self, parts: list[Part]) -> bool:
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._held[: end + 4])
        del self._held[: end + 4]
        parts.append(("head", head))
        status, *lines = head.lower().decode("latin-1").split("\r\n")
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        code = status.split()[1]
        if code.startswith("1"):  # the answer itself is still to come
            return True
        self.is_chunked = "chunked" in fields.get("transfer-encoding", "")
        self._left = 0 if code in {"204", "304"} else int(fields.get("content-length", "-1"))
        if self.is_chunked:
            self._state = _State.SIZE
        elif self._left < 0:
            self._state = _State.ENDLESS
        elif self._left:
            self._state = _State.LENGTH
        else:
            self._end(parts)
        return True

    def _read_body(self, parts: list[Part]) -> None:
        piece = bytes(self._held[: self._left])
        del self._held[: self._left]
        self._left -= len(piece)
        parts.append(("body", piece))
        if not self._left and self._state is _State.CHUNK:
            self._state = _State.CHUNK_END
        elif not self._left and self._state is _State.LENGTH:
            self._end(parts)

    def _end(self, parts: list[Part]) -> None:
        self._state = _State.HEAD
        parts.append(("end", b""))

    def _read_line(self, parts: list[Part]) -> bool:
        end = self._held.find(b"\r\n")
        if end < 0:
            return False
        line = bytes(self._held[:end])
        del self._held[: end + 2]
        if self._state is _State.SIZE:
            self._left = int(line.split(b";")[0], 16)
            self._state = _State.CHUNK if self._left else _State.TRAILER
        elif self._state is _State.CHUNK_END:
            self._state = _State.SIZE
        elif not line:
            self._end(parts)
        return True


class BodyPositionFinder:
    """Finds a place in a body that comes in pieces.

    Args:
        events: complete server-sent events before it, lines ended by LF.
        offset: further bytes before it.
        in_character: further on, behind the first byte of the next character of several bytes.
    """

    def __init__(self, events: int, offset: int, *, in_character: bool) -> None:
        self._events = events
        self._offset = offset
        self._in_character = in_character
        self._after_line_feed = False

    def find(self, piece: bytes) -> int | None:
        """Return how many bytes of this piece are before the place; None: all of them, and the place is not reached."""
        at = 0
        while self._events:
            if self._after_line_feed and piece[at : at + 1] == b"\n":
                at, self._after_line_feed = at + 1, False
            else:
                end = piece.find(b"\n\n", at)
                if end < 0:
                    self._after_line_feed = piece.endswith(b"\n") and at < len(piece)
                    return None
                at = end + 2
            self._events -= 1
        if self._offset > len(piece) - at:
            self._offset -= len(piece) - at
            return None
        at += self._offset
        self._offset = 0
        if not self._in_character:
            return at
        return next((place + 1 for place in range(at, len(piece)) if piece[place] >= 0xC0), None)
