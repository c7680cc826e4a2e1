"""Parses server-sent events from bytes that may be cut anywhere.

All line endings are folded to LF as bytes arrive, because CR, LF and CRLF mean the same (WHATWG HTML 9.2.5). So an event always ends
with two LFs, and one ``bytes.rfind`` finds its end. Nothing here decodes text: U+2028, U+0085 and other characters that
``str.splitlines`` takes for line ends are data.

An event that arrives in pieces is collected in one ``bytearray`` and joined once, when it is complete. Feeding a megabyte byte by byte
costs as much as feeding it whole. A compiled scan splits off plain ``data: ...`` events, the form that chat servers send. Everything else
goes through the field parser.
"""

from __future__ import annotations

from msgspec import Struct

from streamco._native import scan_events
from streamco.errors import EndpointProtocolError

__all__ = ["SSEEvent", "SSEParser"]

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A
_COLON = 0x3A
_NOT_A_FIELD = b"{[<"  # first bytes of a line of JSON or HTML
_MAX_DIGITS = 18  # digits of a number of milliseconds; int() refuses some thousand digits


class SSEEvent(Struct, frozen=True):
    """One server-sent event.

    Args:
        data: the event's ``data`` lines joined by LF, not decoded.
        event: the event's type, or "message" if the server named none.
        id: the last event id in the stream so far.
        retry: reconnection time in milliseconds that came with this event, or None.
    """

    data: bytes
    event: str = "message"
    id: str = ""
    retry: int | None = None


class SSEParser:
    """An incremental parser for one ``text/event-stream`` body.

    A line ``error: {...}``, which llama-box and sometimes llama.cpp's server send, isn't standard. It is returned as an event of type
    "error" with the data ``{"error":{...}}``, so that no failure is mistaken for the end of the answer.

    Args:
        limit_bytes: maximum size of an event, in bytes. Leading comments don't count, because they are never kept.
    """

    __slots__ = ("_after_cr", "_failure", "_has_begun", "_pending", "comments", "events", "is_between", "last_event_id", "limit_bytes")

    def __init__(self, *, limit_bytes: int = 16 << 20) -> None:
        self.limit_bytes = limit_bytes
        self.events = 0
        """Number of events returned so far."""
        self.comments = 0
        """Number of comment lines so far."""
        self.last_event_id = ""
        self._pending = bytearray()  # bytes since the last event's end, line ends folded
        self._after_cr = False  # an LF that comes next belongs to the CR before it
        self._has_begun = False  # True after the position where a byte order mark may be
        self.is_between = False
        """True if no bytes are held, so that the next byte begins an event."""
        self._failure: EndpointProtocolError | None = None

    def feed(self, data: bytes) -> list[SSEEvent]:
        """Parse more bytes and return the events that they complete.

        Raises:
            EndpointProtocolError: an event is too large, or the body is not an event stream. If ``data`` also completed
                events before the error, they are returned, and the next call raises the error.
        """
        events: list[SSEEvent] = []
        if self.is_between:
            payloads, used = scan_events(data, self.limit_bytes)
            events = [SSEEvent(payload, "message", self.last_event_id) for payload in payloads]
            self.events += len(events)
            if used == len(data):
                return events
            data = data[used:]
        events += self._parse(self._take(data))
        if self._failure is not None and not events:
            raise self._failure
        return events

    def feed_data(self, data: bytes) -> list[bytes]:
        """Parse more bytes and return only the data of each event. This is several times as fast as ``feed``, and you can mix the two."""
        payloads: list[bytes] = []
        if self.is_between:
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
        """Handle the end of the body, and return the last event if it came without its blank line.

        Raises:
            EndpointProtocolError: as in ``feed``.
        """
        return self.feed(b"\n\n")

    def _take(self, data: bytes) -> bytes:
        """Add bytes, and return the bytes of all complete events with line ends folded to LF, or b"" if no event is complete."""
        if self._failure is not None:
            return b""
        pending = self._pending
        if not self._has_begun:
            data = self._skip_bom(data)
        elif pending and pending[0] != _COLON and not (self._after_cr or b"\n" in data or b"\r" in data):
            pending += data  # the middle of an event
            self._check_size()
            return b""
        if self._after_cr or b"\r" in data:
            data = self._fold(data)
        if pending and (b"\n\n" in data or (data[:1] == b"\n" and pending[-1] == _LF)):
            data = bytes(pending) + data
            pending.clear()
        end = 0 if pending else data.rfind(b"\n\n") + 2
        if end < 2:
            end = 0  # not found
        self._hold(data[end:])
        self.is_between = self._has_begun and not (self._pending or self._after_cr)
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
        """Turn every line end into LF. A CR at the very end becomes an LF at once, and an LF that follows in the next bytes is dropped."""
        if not data:
            return data
        if self._after_cr and data[0] == _LF:
            data = data[1:]
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, data: bytes) -> None:
        """Store an incomplete event. Comments before its first field are dropped at once, so that keep-alives never pile up."""
        pending = self._pending
        pending += data
        if pending and (pending[0] == _COLON or b"\n" in data):
            self._drop_comments()
        if pending and pending[0] in _NOT_A_FIELD:
            self._failure = _not_events(bytes(pending[:80]))
        else:
            self._check_size()

    def _check_size(self) -> None:
        if len(self._pending) > self.limit_bytes + 1:  # + 1 for the first of the two LFs that end an event
            self._failure = _too_large(len(self._pending), self.limit_bytes)

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
                del pending[start + 1 :]  # the rest of the comment is dropped, however long it grows
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
            self.is_between = False
        self.events += len(events)
        return events

    def _parse_event(self, piece: bytes) -> SSEEvent | None:
        """Parse the lines of one event. Returns None if it has no data, because then it isn't dispatched (WHATWG HTML 9.2.6)."""
        data: list[bytes] = []
        kind = b""
        retry = None
        size = 0
        for line in piece.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if not name:  # a comment, or a surplus blank line
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
    got = f"{size} bytes and more in the event stream"
    return EndpointProtocolError(
        f"expected an event of at most {limit} bytes, got {got}; Limits(event_bytes=...) raises the limit", is_limit=True
    )


def _not_events(start: bytes) -> EndpointProtocolError:
    shown = start.decode("utf-8", "replace")
    what = "HTML" if start[:1] == b"<" else "a line of bare JSON, as in NDJSON or a non-streamed answer"
    return EndpointProtocolError(f'expected server-sent events ("data: ..." lines), got {what}: {shown!r}')
