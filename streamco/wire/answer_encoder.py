"""Encodes answers in an API's own form: chat chunks go in, the API's events or one object come out. Uses no IO, clock or random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from streamco.openai_types import ChatCompletion, ChatCompletionChunk

__all__ = ["KEEPALIVE", "AnswerEncoder", "AnswerFormError", "CallIds", "Failure", "NewEncoder", "encode", "named_event"]

KEEPALIVE = b": keep-alive\n\n"

encode = msgspec.json.Encoder().encode


class AnswerFormError(ValueError):
    """An answer can't be expressed in an API. The message says what was expected and what came instead."""


class Failure(Protocol):
    """The reason why an answer failed. ``str(failure)`` is the message."""

    @property
    def status(self) -> int:
        """HTTP status of the failure."""
        ...

    @property
    def code(self) -> str | None:
        """OpenAI's machine-readable error code, or None if there is none."""
        ...

    @property
    def param(self) -> str | None:
        """Field of the request that caused the failure, or None if no field did."""
        ...


class AnswerEncoder(Protocol):
    """Encodes one answer in the form of one API, as a stream of events or as a whole."""

    @property
    def keepalive(self) -> bytes:
        """Bytes without content that show a waiting reader that the connection is alive."""
        ...

    def opening(self) -> bytes:
        """Return the bytes that come before the first chunk's events, or b"" when called again."""
        ...

    def event(self, chunk: ChatCompletionChunk) -> bytes:
        """Encode a chunk as events, and put the opening before the first ones. Returns b"" if the chunk has nothing to show."""
        ...

    def ending(self, reason: str | None) -> bytes:
        """Return the events that end the answer's parts. ``reason`` is sent as the finish reason if no chunk had one."""
        ...

    def done(self) -> bytes:
        """Return the events that come after ``ending`` and end the stream."""
        ...

    def failing(self, failure: Failure) -> bytes:
        """Return the events that report a failure after the stream has begun. No other events follow them."""
        ...

    def whole(self, answer: ChatCompletion, reason: str | None) -> bytes:
        """Encode a whole answer as one JSON object. ``reason`` is used as the finish reason if the answer has none.

        Raises:
            AnswerFormError: the answer can't be expressed in the API.
        """
        ...


class NewEncoder(Protocol):
    """Makes an encoder for one answer."""

    def __call__(self, *, name: str, model: str, created: int) -> AnswerEncoder:
        """Return an encoder for one answer.

        Args:
            name: random letters and digits, from which the answer's ids are made.
            model: name of the model, sent if no chunk names one.
            created: time when the answer began, in seconds since the epoch.
        """
        ...


class CallIds:
    """Gives each tool call of one answer its own id, because some servers send no ids, or the same id for several calls.

    Args:
        prefix: text with which the ids made here begin.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._ids: dict[int, str] = {}  # by the number of the part

    def of(self, index: int, given: str) -> str:
        """Return the id of the call that is part ``index`` of the answer. ``given`` is the server's id, or "" if the server sent none."""
        if index not in self._ids:
            is_new = given and given not in self._ids.values()
            self._ids[index] = given if is_new else f"{self._prefix}_{index}"
        return self._ids[index]


def named_event(name: str, data: Mapping[str, Any]) -> bytes:
    """Encode an object as one server-sent event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))
