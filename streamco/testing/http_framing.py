"""HTTP framing without IO: finds the boundaries of responses in a server's bytes, and the position in a body where a fault happens."""

from __future__ import annotations

from enum import Enum, auto
from importlib import import_module
from typing import Any, Literal

__all__ = ["BodyPositionFinder", "ObjectPositionFinder", "Part", "ResponseReader"]

Part = tuple[Literal["head", "body", "end"], bytes]
"""A part of a response: a whole head, some bytes of a body without its framing, or the end of a body."""


class _State(Enum):
    HEAD = auto()
    SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    LENGTH = auto()
    ENDLESS = auto()


class ResponseReader:
    """Splits the bytes of one connection into the parts of its HTTP/1.1 responses. Responses to HEAD aren't supported."""

    def __init__(self) -> None:
        self.is_chunked = False
        """True if the body of the current response is sent in chunks."""
        self.media_type = ""
        """Content type of the current response, in lower case, or "" if it has none."""
        self._state = _State.HEAD
        self._held = bytearray()
        self._left = 0  # bytes left of the chunk or the body

    def feed(self, data: bytes) -> list[Part]:
        """Take bytes, and return the parts that they complete. Bytes of a body are never held back."""
        self._held += data
        parts: list[Part] = []
        while self._held and self._step(parts):
            pass
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """Read one part or one line of framing; return False if more bytes are needed."""
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
        if code.startswith("1"):  # an interim response: the final one is still to come
            return True
        self.media_type = fields.get("content-type", "").partition(";")[0].strip()
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
    """Finds a position in a body that comes in pieces.

    Args:
        events: number of complete server-sent events before it; their lines must end with LF.
        offset: number of further bytes before it.
        in_character: move the position on, to follow the first byte of the next multi-byte character.
    """

    def __init__(self, events: int, offset: int, *, in_character: bool) -> None:
        self._events = events
        self._offset = offset
        self._in_character = in_character
        self._after_line_feed = False

    def find(self, piece: bytes) -> int | None:
        """Return the number of bytes of this piece before the position; None if the position comes later."""
        position = 0
        while self._events:
            if self._after_line_feed and piece[position : position + 1] == b"\n":
                position, self._after_line_feed = position + 1, False
            else:
                end = piece.find(b"\n\n", position)
                if end < 0:
                    self._after_line_feed = piece.endswith(b"\n") and position < len(piece)
                    return None
                position = end + 2
            self._events -= 1
        if self._offset > len(piece) - position:
            self._offset -= len(piece) - position
            return None
        position += self._offset
        self._offset = 0
        if not self._in_character:
            return position
        return next((index + 1 for index in range(position, len(piece)) if piece[index] >= 0xC0), None)


class ObjectPositionFinder:
    """Finds a position in a body of MessagePack objects that comes in pieces.

    Args:
        objects: number of complete objects before it.
        offset: number of further bytes before it.
    """

    def __init__(self, objects: int, offset: int) -> None:
        msgpack: Any = import_module("msgpack")  # it has no type hints
        self._unpacker: Any = msgpack.Unpacker()
        self._incomplete: type[Exception] = msgpack.OutOfData
        self._objects = objects
        self._offset = offset
        self._passed = 0

    def find(self, piece: bytes) -> int | None:
        """Return the number of bytes of this piece before the position; None if the position comes later."""
        before, self._passed = self._passed, self._passed + len(piece)
        self._unpacker.feed(piece)
        while self._objects:
            try:
                self._unpacker.skip()
            except self._incomplete:
                return None
            self._objects -= 1
        position: int = self._unpacker.tell() + self._offset - before
        return position if position <= len(piece) else None
