"""A stream as events that operators can change, and the bytes that a server would send for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Api = Literal["chat", "responses", "messages"]
Json = dict[str, Any]

DONE = "[DONE]"


@dataclass(slots=True)
class Event:
    """One event of a stream: an object, a raw text such as ``[DONE]``, or a comment.

    Args:
        data: the parsed object; a text is sent as it is; None sends no data.
        name: the ``event:`` line; None sends none.
        comment: a comment line before it.
    """

    data: Json | str | None
    name: str | None = None
    comment: str | None = None

    @property
    def object(self) -> Json:
        """The parsed object, or an empty one that changes nothing."""
        return self.data if isinstance(self.data, dict) else {}

    @property
    def type(self) -> str:
        """The type that the object or the name gives the event, "" for those of the chat API."""
        return str(self.object.get("type") or self.name or "")


@dataclass(slots=True)
class Framing:
    """How events become lines.

    Args:
        newline: what ends a line.
        bom: begin with a byte order mark.
        space: one space after the colon of a field.
        pretty: indent the JSON, so that it takes several data lines.
        ascii: escape what isn't ASCII. Halves of a character are always escaped.
        last_blank: end the last event with a blank line.
        done_suffix: what follows ``[DONE]`` on its line.
        preamble: bytes before the first event.
    """

    newline: str = "\n"
    bom: bool = False
    space: bool = True
    pretty: bool = False
    ascii: bool = False
    last_blank: bool = True
    done_suffix: str = ""
    preamble: str = ""


@dataclass(slots=True)
class Stream:
    """A stream of one of the three APIs.

    Args:
        api: which API.
        name: what the stream shows.
        events: its events in order.
        whole: the body that the API answers without streaming; None if nobody wrote it.
        body: bytes that are sent in place of the events.
    """

    api: Api
    name: str
    events: list[Event]
    whole: Json | None = None
    framing: Framing = field(default_factory=Framing)
    status: int = 200
    content_type: str | None = "text/event-stream"
    body: bytes | None = None

    def copy(self) -> Stream:
        """Return a stream whose events share nothing with this one's, nor with each other."""
        events = [Event(json.loads(json.dumps(event.data)), event.name, event.comment) for event in self.events]
        return replace(self, events=events, framing=replace(self.framing))


def render(stream: Stream) -> bytes:
    """Return the bytes of the body."""
    if stream.body is not None:
        return stream.body
    framing = stream.framing
    blocks = [_block(event, framing) for event in stream.events]
    if blocks and not framing.last_blank:
        blocks[-1] = blocks[-1].removesuffix(framing.newline.encode())
    return (b"\xef\xbb\xbf" if framing.bom else b"") + framing.preamble.encode() + b"".join(blocks)


def _block(event: Event, framing: Framing) -> bytes:
    gap = " " if framing.space else ""
    lines = []
    if event.comment is not None:
        lines.append(f":{event.comment}")
    if event.name is not None:
        lines.append(f"event:{gap}{event.name}")
    if isinstance(event.data, str):
        suffix = framing.done_suffix if event.data == DONE else ""
        lines += [f"data:{gap}{line}{suffix}" for line in event.data.split("\n")]
    elif event.data is not None:
        lines += [f"data:{gap}{line}" for line in _dump(event.data, framing).split("\n")]
    return framing.newline.join([*lines, "", ""]).encode()


def _dump(data: Json, framing: Framing) -> str:
    indent = 2 if framing.pretty else None
    separators = None if framing.pretty else (",", ":")
    text = json.dumps(data, indent=indent, separators=separators, ensure_ascii=framing.ascii)
    if not framing.ascii and not _is_encodable(text):
        text = json.dumps(data, indent=indent, separators=separators)
    return text


def _is_encodable(text: str) -> bool:
    """Return False for a text with half a character, which UTF-8 can't hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
