"""Encodes OpenAI's JSON objects as bytes, for the answers of both the server and the proxy.

Both make a choice and an event for each chunk of a stream. They differ in where chunks come from: the server makes them from an engine's
tokens, and the proxy passes on the endpoints' chunks.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from msgspec import Struct

__all__ = ["CHAT", "COMPLETION", "DONE", "Json", "ObjectNames", "encode", "event", "make_choice"]

Json = dict[str, Any]

DONE = b"data: [DONE]\n\n"

encode = msgspec.json.Encoder().encode


class ObjectNames(Struct, frozen=True):
    """Names that one of OpenAI's two APIs gives to its objects.

    Args:
        id_prefix: the beginning of an answer's id.
        chunk: the field ``object`` in a chunk of a stream.
        whole: the field ``object`` in a whole answer.
    """

    id_prefix: str
    chunk: str
    whole: str

    def new_id(self) -> str:
        """Return a random id for an answer."""
        return f"{self.id_prefix}-{uuid.uuid4().hex}"


CHAT = ObjectNames("chatcmpl", "chat.completion.chunk", "chat.completion")
COMPLETION = ObjectNames("cmpl", "text_completion", "text_completion")


def event(data: Json) -> bytes:
    """Return an object as one server-sent event."""
    return b"data: %b\n\n" % encode(data)


def make_choice(index: int, field: str, value: object, *, logprobs: object = None, finish_reason: str | None = None) -> Json:
    """Return one choice of a chunk or of a whole answer.

    Args:
        index: number of the choice, from 0.
        field: name of the field that has its content: ``delta``, ``message`` or ``text``.
        value: its content.
        logprobs: log-probabilities of its tokens; None is sent as null.
        finish_reason: why it ended, or None (sent as null) if it hasn't.
    """
    return {"index": index, field: value, "logprobs": logprobs, "finish_reason": finish_reason}
