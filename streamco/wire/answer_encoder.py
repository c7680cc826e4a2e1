"""Encodes answers in an API's own form: chat chunks in, the API's events or one object out. Without IO, clock and random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from streamco.openai_types import ChatCompletion, ChatCompletionChunk

__all__ = ["KEEPALIVE", "AnswerEncoder", "AnswerFormError", "CallIds", "Failure", "NewEncoder", "encode", "named_event"]

KEEPALIVE = b": keep-alive\n\n"

encode = msgspec.json.Encoder().encode


class AnswerFormError(ValueError):
    """An answer can't be expressed in an API. The text says what was expected and what was got."""


class Failure(Protocol):
    """A failure of an answer; its text is the message."""

    @property
    def status(self) -> int:
        """HTTP status of the failure."""
        ...

    @property
    def code(self) -> str | None:
        """OpenAI's machine-readable reason; None if there is none."""
        ...

    @property
    def param(self) -> str | None:
        """Field of the request that is at fault, or None if there is none."""
        ...


class AnswerEncoder(Protocol):
    """Encodes one answer in the form of one API, as a stream of events or as a whole."""

    @property
    def keepalive(self) -> bytes:
        """Bytes without meaning, to send to a waiting reader."""
        ...

    def opening(self) -> bytes:
        """Return what comes before the first chunk's events, or b"" when called again."""
        ...

    def event(self, chunk: ChatCompletionChunk) -> bytes:
        """Return the events of a chunk, with the opening before the first ones, or b"" if the chunk shows nothing."""
        ...

    def ending(self, reason: str | None) -> bytes:
        """Return the events that end the answer's parts. ``reason`` is the finish reason, if no chunk had one."""
        ...

    def done(self) -> bytes:
        """Return the events after ``ending`` that end the stream."""
        ...

    def failing(self, failure: Failure) -> bytes:
        """Return the events of a failure after the stream has begun; nothing comes after them."""
        ...

    def whole(self, answer: ChatCompletion, reason: str | None) -> bytes:
        """Return a whole answer as one JSON object. ``reason`` is the finish reason, if the answer has none.

        Raises:
            AnswerFormError: it can't be expressed in the API.
        """
        ...


class NewEncoder(Protocol):
    """Makes the encoder of one answer."""

    def __call__(self, *, name: str, model: str, created: int) -> AnswerEncoder:
        """Return an encoder.

        Args:
            name: random letters and digits, from which the answer's ids are made.
            model: name of the model, if no chunk has one.
            created: seconds since the epoch.
        """
        ...


class CallIds:
    """Gives one answer's tool calls different ids, because some servers send none, or one id for several calls.

    Args:
        prefix: the beginning of the ids that are made here.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._ids: dict[int, str] = {}  # by the number of the part

    def of(self, index: int, given: str) -> str:
        """Return the id of the call that is part ``index`` of the answer. ``given`` is the server's id, or "" if it gave none."""
        if index not in self._ids:
            is_new = given and given not in self._ids.values()
            self._ids[index] = given if is_new else f"{self._prefix}_{index}"
        return self._ids[index]


def named_event(name: str, data: Mapping[str, Any]) -> bytes:
    """Return an object as one server-sent event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))
