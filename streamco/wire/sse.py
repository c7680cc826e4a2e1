"""Server-sent events out of bytes that were cut anywhere.

All line endings are folded to LF as bytes arrive (CR, LF and CRLF mean the same, WHATWG HTML 9.2.5), so that an event always ends
with two LF and the search for its end is one ``bytes.rfind``. Nothing here decodes text: U+2028, U+0085 and other characters that
``str.splitlines`` takes for line ends are data.

An event that arrives in pieces is collected in one ``bytearray`` and joined once, when it is complete: a megabyte fed byte by byte
costs as much as fed whole. Plain ``data: ...`` events, which is what chat servers send, are split off by a compiled scan; everything
else goes through the field parser.
"""

from __future__ import annotations

from msgspec import Struct

from streamco._native import scan_events
from streamco.errors import EndpointProtocolError

__all__ = ["SSEEvent", "SSEParser"]

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A
_COLON = 0x3A
_NOT_A_FIELD = b"{[<"  # how a line of JSON or HTML begins
_MAX_DIGITS = 18  # of a number of milliseconds; int() refuses some thousand digits


class SSEEvent(Struct, frozen=True):
    """One dispatched event.

    Args:
        data: its ``data`` lines joined by LF, undecoded.
        event: its type; "message" when it named none.
        id: the last event id seen on the stream so far.
        retry: reconnection time in milliseconds that came with this event, None without one.
    """

    data: bytes
    event: str = "message"
    id: str = ""
    retry: int | None = None


class SSEParser:
    """An incremental parser of one ``text/event-stream`` body.

    A line ``error: {...}`` (llama.cpp's server at times, llama-box) is not in the standard; it is given as an event of type
    "error" with the data ``{"error":{...}}``, so that no failure is mistaken for the end of the answer.

    Args:
        limit_bytes: largest event, in bytes, leading comments not counted: those are never kept.
    """

    def __init__(self, *, limit_bytes: int = 1 << 20) -> None:
        self.limit_bytes = limit_bytes
        self.events = 0
        """Events dispatched so far."""
        self.comments = 0
        """Comment lines so far: they prove that the server lives, and are no content."""
        self.last_event_id = ""
        self._pending = bytearray()  # what came since the last event's end, line ends folded
        self._after_cr = False  # an LF that comes next belongs to the CR before it
        self._has_begun = False  # past the place where a byte order mark may stand
        self._is_between = False  # nothing is held: the next byte is the first of an event
        self._failure: EndpointProtocolError | None = None

    def feed(self, data: bytes) -> list[SSEEvent]:
        """Take bytes, give the events they complete.

        Raises:
            EndpointProtocolError: an event is too large, or the body is not an event stream. When events came before it in the same
                bytes, they are returned and the error is raised by the next call.
        """
        events = self._parse(self._take(data))
        if self._failure is not None and not events:
            raise self._failure
        return events

    def feed_data(self, data: bytes) -> list[bytes]:
        """Like ``feed``, but give only each event's data; several times as fast. May be mixed with ``feed``."""
        payloads: list[bytes] = []
        if self._is_between:
            payloads, used = scan_events(data, self.limit_bytes)
            self.events += len(payloads)
            if used == len(data):
                return payloads
            data = data[used:]
        block = self._take(data)
        if block:
            more, used = scan_events(block, self.limit_bytes)
            self.events += len(more)
            payloads += more
            payloads += [event.data for event in self._parse(block[used:])]
        if self._failure is not None and not payloads:
            raise self._failure
        return payloads

    def close(self) -> list[SSEEvent]:
        """Take the end of the body; give the last event if it came without its blank line.

        Raises:
            EndpointProtocolError: as ``feed``.
        """
        return self.feed(b"\n\n")

    def _take(self, data: bytes) -> bytes:
        """Add bytes; give every complete event, LF line ends only, or b""."""
        if self._failure is not None:
            return b""
        if not self._has_begun:
            data = self._skip_bom(data)
        if self._after_cr or b"\r" in data:
            data = self._fold(data)
        pending = self._pending
        if pending and (b"\n\n" in data or (data[:1] == b"\n" and pending[-1] == _LF)):
            data = bytes(pending) + data
            pending.clear()
        end = 0 if pending else data.rfind(b"\n\n") + 2
        if end < 2:
            end = 0  # not found
        self._hold(data[end:])
        self._is_between = self._has_begun and not (self._pending or self._after_cr)
        return data[:end]

    def _skip_bom(self, data: bytes) -> bytes:
        data = bytes(self._pending) + data
        self._pending.clear()
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._pending += data
            return b""
        self._has_begun = True
        return data.removeprefix(_BOM)

    def _fold(self, data: bytes) -> bytes:
        """Turn every line end into LF; a CR at the very end counts at once, its LF is dropped when it comes."""
        if not data:
            return data
        if self._after_cr and data[0] == _LF:
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, data: bytes) -> None:
        """Keep an incomplete event; what is before its first field is used up at once, so that keep-alives never pile up."""
        pending = self._pending
        pending += data
        if pending and (pending[0] == _COLON or b"\n" in data):
            self._drop_comments()
        if pending and pending[0] in _NOT_A_FIELD:
            self._failure = _not_events(bytes(pending[:80]))
        elif len(pending) > self.limit_bytes + 1:  # + 1: the first LF of the two that end it
            self._failure = _too_large(len(pending), self.limit_bytes)

    def _drop_comments(self) -> None:
        pending = self._pending
        start = 0
        while start < len(pending):
            if pending[start] == _LF:
                start += 1
                continue
            if pending[start] != _COLON:
                break
            end = pending.find(b"\n", start)
            if end < 0:
                del pending[start + 1 :]  # nobody reads the rest of it, however long it grows
                break
            self.comments += 1
            start = end + 1
        del pending[:start]

    def _parse(self, block: bytes) -> list[SSEEvent]:
        events: list[SSEEvent] = []
        try:
            for piece in block.split(b"\n\n"):
                event = self._parse_event(piece) if piece else None
                if event is not None:
                    events.append(event)
        except EndpointProtocolError as exc:
            self._failure = exc
            self._is_between = False
        self.events += len(events)
        return events

    def _parse_event(self, piece: bytes) -> SSEEvent | None:
        """Read one event's lines; None when it has no data (WHATWG HTML 9.2.6: then it is not dispatched)."""
        data: list[bytes] = []
        kind = b""
        retry = None
        size = 0
        for line in piece.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if not name:  # a comment, or a blank line more than needed
                self.comments += bool(line)
                size += len(line) + 1 if size else 0
                continue
            size += len(line) + 1
            if name == b"data":
                data.append(value)
            elif name == b"event":
                kind = value
            elif name == b"id" and b"\0" not in value:
                self.last_event_id = value.decode("utf-8", "replace")
            elif name == b"retry" and value.isdigit() and len(value) <= _MAX_DIGITS:
                retry = int(value)
            elif name == b"error":
                kind = b"error"
                data.append(b'{"error":' + value + b"}")
            elif line[0] in _NOT_A_FIELD:
                raise _not_events(line[:80])
        if size - 1 > self.limit_bytes:
            raise _too_large(size - 1, self.limit_bytes)
        if not data:
            return None
        return SSEEvent(b"\n".join(data), kind.decode("utf-8", "replace") or "message", self.last_event_id, retry)


def _too_large(size: int, limit: int) -> EndpointProtocolError:
    return EndpointProtocolError(f"expected an event of at most {limit} bytes, got {size} bytes and more in the event stream")


def _not_events(start: bytes) -> EndpointProtocolError:
    shown = start.decode("utf-8", "replace")
    what = "HTML" if start[:1] == b"<" else "a line of bare JSON, as in NDJSON or a non-streamed answer"
    return EndpointProtocolError(f'expected server-sent events ("data: ..." lines), got {what}: {shown!r}')
