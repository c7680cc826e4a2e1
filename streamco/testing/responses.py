"""Scripted HTTP responses as data, and functions that make common ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

__all__ = [
    "DONE",
    "ScriptedResponse",
    "Cut",
    "Pause",
    "RecordedRequest",
    "Reset",
    "Responder",
    "Stall",
    "Step",
    "chunk_event",
    "json_answer",
    "sse_event",
    "stream_answer",
]

DONE = b"data: [DONE]\n\n"


class Pause(Struct, frozen=True):
    """Send nothing for ``seconds``."""

    seconds: float


class Stall(Struct, frozen=True):
    """Send nothing more, and keep the socket open until the client disconnects."""


class Cut(Struct, frozen=True):
    """Close the connection (FIN) without finishing the answer."""


class Reset(Struct, frozen=True):
    """Reset the connection (RST)."""


Step = bytes | Pause | Stall | Cut | Reset


class ScriptedResponse(Struct, frozen=True, kw_only=True):
    """The response to one request.

    Args:
        status: the HTTP status.
        headers: response headers, without the ones for the framing.
        steps: pieces of the body and pauses or failures between them, in order. Each ``bytes`` is sent in one write, so the client usually
            gets it in one read.
        framing: what marks the body's end: ``chunked``, ``length`` (a Content-Length for all the steps' bytes) or ``close``.
        head_delay: seconds before the status line.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    framing: Literal["chunked", "length", "close"] = "chunked"
    head_delay: float = 0.0


class RecordedRequest(Struct, frozen=True):
    """A request as it arrived. Header names are in lower case, and ``path`` includes the query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Decode the body as JSON."""
        return json.loads(self.body)


Responder = Callable[[RecordedRequest], ScriptedResponse]


def sse_event(data: Mapping[str, Any] | str) -> bytes:
    """Return one server-sent event with this data."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def chunk_event(
    content: str | None = None, *, finish_reason: str | None = None, usage: Mapping[str, int] | None = None, **delta: Any
) -> bytes:
    """Return one ``chat.completion.chunk`` event. If only ``usage`` is given, its ``choices`` are empty, as in OpenAI's streams."""
    if content is not None:
        delta["content"] = content
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    body: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": choices}
    if usage is not None:
        body["usage"] = dict(usage)
        if not delta and finish_reason is None:
            body["choices"] = []
    return sse_event(body)


def stream_answer(
    texts: Iterable[str] = ("Hello", " world"),
    *,
    usage: Mapping[str, int] | None = None,
    finish_reason: str | None = "stop",
    done: bool = True,
    gap: float = 0.0,
    first: float = 0.0,
    joined: bool = False,
) -> ScriptedResponse:
    """Return a well-formed streamed chat answer.

    Args:
        texts: contents of the chunks.
        usage: fields of the usage event at the end, or None to leave it out.
        finish_reason: finish reason of the last choice, or None to leave it out.
        done: end with ``[DONE]``.
        gap: seconds between two chunks.
        first: seconds before the first chunk with content.
        joined: send everything in one write, as a buffering proxy would.
    """
    steps: list[Step] = [chunk_event("", role="assistant")]
    for number, text in enumerate(texts):
        wait = gap if number else first
        if wait:
            steps.append(Pause(wait))
        steps.append(chunk_event(text))
    if finish_reason is not None:
        steps.append(chunk_event(finish_reason=finish_reason))
    if usage is not None:
        steps.append(chunk_event(usage=usage))
    if done:
        steps.append(DONE)
    if joined:
        steps = [b"".join(step for step in steps if isinstance(step, bytes))]
    return ScriptedResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"}, steps=steps)


def json_answer(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None, steps: Sequence[Step] = ()) -> ScriptedResponse:
    """Return a JSON answer that isn't streamed. ``steps`` come before its body."""
    everything = [*steps, json.dumps(body).encode()]
    return ScriptedResponse(
        status=status, headers={"Content-Type": "application/json", **(headers or {})}, steps=everything, framing="length"
    )
