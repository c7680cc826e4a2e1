"""Encodes the chunks of a client's answer in the formats of OpenAI's API: chat completions and completions.

The deltas are the objects that came from the wire, and are encoded only here. Fields that OpenAI leaves out are left out (empty fields of
a delta). Fields that it sends as null are sent (``finish_reason``, ``logprobs``). Fields that only some servers have are passed on, but
token ids only on request.
"""

from __future__ import annotations

import time
from operator import attrgetter
from typing import Protocol

from msgspec.structs import replace

from streamco.core.report import Report
from streamco.openai_types import (
    ChatCompletion,
    ChatCompletionChunk,
    ChoiceDelta,
    ChunkChoice,
    CompletionUsage,
    ResponseModel,
    further_fields,
    with_text,
)
from streamco.proxy.origins import EXTENSION
from streamco.server.http.encoding import CHAT, COMPLETION, DONE, Json, ObjectNames, encode, event, make_choice
from streamco.server.http.errors import RequestError, error_event
from streamco.server.http.event_stream import KEEPALIVE

__all__ = ["ChatShape", "CompletionShape", "ResponseShape"]


class ResponseShape(Protocol):
    """Encodes one answer in the format of one API. The encoders of translated APIs (``AnswerEncoder``) also implement this."""

    @property
    def keepalive(self) -> bytes:
        """Bytes without content, to send while the reader is waiting."""
        ...

    def event(self, chunk: ChatCompletionChunk) -> bytes:
        """Return the chunk as a server-sent event, or b"" if this format has nothing to send for it."""
        ...

    def ending(self, reason: str | None) -> bytes:
        """Return an event with the finish reason if no chunk had it, or b"" if the chunks had it."""
        ...

    def done(self) -> bytes:
        """Return the bytes that end the stream, after ``ending``."""
        ...

    def failing(self, failure: RequestError) -> bytes:
        """Return the bytes that end a stream that failed after it had begun."""
        ...

    def whole(self, answer: ChatCompletion, reason: str | None) -> bytes:
        """Return a whole answer as one JSON object. Choices without a finish reason get ``reason``.

        Raises:
            AnswerFormError: the API can't represent it.
        """
        ...


_CHUNK_FIELDS = ("provider", "obfuscation", "p", "stream_options", "moderation")
_CHOICE_FIELDS = ("native_finish_reason", "content_filter_results", "stop_reason", "matched_stop")
_ANSWER_FIELDS = ("provider",)
_chunk_fields, _NO_CHUNK_FIELDS = attrgetter(*_CHUNK_FIELDS), (None,) * len(_CHUNK_FIELDS)  # one call per event, not one per field
_choice_fields, _NO_CHOICE_FIELDS = attrgetter(*_CHOICE_FIELDS), (None,) * len(_CHOICE_FIELDS)


def _provided(model: ResponseModel, names: tuple[str, ...]) -> Json:
    """Return the fields that only some servers send: the declared fields with these names, and all undeclared fields."""
    found = {name: value for name in names if (value := getattr(model, name)) is not None}
    return found | further_fields(model)


def _shaped_usage(usage: CompletionUsage | None) -> CompletionUsage | Json | None:
    """Return the usage in a form that can be encoded: a dict if it has undeclared fields, otherwise unchanged."""
    parts = () if usage is None else (usage, usage.prompt_tokens_details, usage.completion_tokens_details)
    has_further = any(part is not None and further_fields(part) for part in parts)
    return usage.to_dict() if usage is not None and has_further else usage


_PROBE = "\x7fstreamco"
_MAX_TRIES = 4  # attempts to find a repeated event; with servers that send something new each time (OpenAI's ``obfuscation``), all fail


class _RepeatedEvent:
    """Encodes chunks that differ from a given chunk only in their text, as most do, by putting the text between the same bytes.

    Args:
        chunk: the given chunk, which belongs to this object.
        head: the bytes of its event before the JSON string of its text.
        tail: the bytes after it.
    """

    __slots__ = ("_chunk", "_delta", "_head", "_tail")

    def __init__(self, chunk: ChatCompletionChunk, head: bytes, tail: bytes) -> None:
        self._chunk = chunk
        self._delta = chunk.choices[0].delta
        self._head = head
        self._tail = tail

    def encode(self, chunk: ChatCompletionChunk) -> bytes:
        """Return the event for a chunk, or b"" if it differs in more than its text."""
        choices = chunk.choices
        if len(choices) != 1:
            return b""
        self._delta.content = text = choices[0].delta.content
        return b"%b%b%b" % (self._head, encode(text), self._tail) if text and chunk == self._chunk else b""


def _has_text_alone(chunk: ChatCompletionChunk) -> bool:
    """Return True if a chunk has only text, without finish reason, usage, token ids or log-probabilities, so that others may be like it."""
    if type(chunk) is not ChatCompletionChunk or len(chunk.choices) != 1 or chunk.usage is not None:
        return False
    choice = chunk.choices[0]
    return bool(choice.delta.content) and choice.finish_reason is None and choice.token_ids is None and choice.logprobs is None


class _Shape:
    """The common part of both shapes.

    Args:
        model: the model's name if no endpoint sends one.
        wants_usage: True to send ``"usage": null`` in all chunks of a stream but the last, which has the usage.
        wants_ids: True to send token ids.
    """

    __slots__ = (
        "_around",
        "_begun",
        "_finished",
        "_head",
        "_like",
        "_model",
        "_repeated",
        "_tries",
        "_wants_ids",
        "_wants_usage",
    )

    objects: ObjectNames
    keepalive = KEEPALIVE

    def __init__(self, *, model: str, wants_usage: bool = False, wants_ids: bool = False) -> None:
        self._model = model
        self._wants_usage = wants_usage
        self._wants_ids = wants_ids
        self._head: Json | None = None
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._repeated: _RepeatedEvent | None = None
        self._like: ChatCompletionChunk | None = None  # the chunk that ``repeat`` was last called with
        self._around = (b"", b"")  # the bytes of its event before and after the text
        self._tries = _MAX_TRIES

    def event(self, chunk: ChatCompletionChunk, origin: Json | None = None) -> bytes:
        """Return the chunk as a server-sent event, or b"" if this format has nothing to send for it.

        Args:
            chunk: the chunk.
            origin: the value of its field ``streamco``, or None for no such field.
        """
        if origin is None and self._repeated is not None and (data := self._repeated.encode(chunk)):
            return data
        if origin is None and self._tries and _has_text_alone(chunk) and chunk.choices[0].index in self._begun:
            self._learn(chunk)
        return self._encode(chunk, origin)

    def repeat(self, like: ChatCompletionChunk, text: str) -> bytes:
        """Return the event for a chunk that differs from ``like`` only in its text; ``like`` must never change."""
        if like is self._like:
            head, tail = self._around
            return b"%b%b%b" % (head, encode(text), tail)
        data = self.event(with_text(like, text))  # which may be the first one, with the role
        if (around := self._encode_around(like)) is not None:
            self._like, self._around = like, around
        return data

    def _encode_around(self, chunk: ChatCompletionChunk) -> tuple[bytes, bytes] | None:
        """Return the bytes of a chunk's event before and after its text, or None if the text isn't found."""
        head, text, tail = self._encode(with_text(chunk, _PROBE), None).partition(encode(_PROBE))
        return (head, tail) if text and text not in tail else None

    def _encode(self, chunk: ChatCompletionChunk, origin: Json | None) -> bytes:
        choices = [shaped for choice in chunk.choices if (shaped := self._take(choice)) is not None]
        if not choices and chunk.usage is None:
            return b""
        if self._head is None:
            self._head = self._begin(chunk)
        body = {**self._head, "choices": choices}
        if type(chunk) is not ChatCompletionChunk or _chunk_fields(chunk) != _NO_CHUNK_FIELDS:
            body = _provided(chunk, _CHUNK_FIELDS) | body
        if self._wants_usage:
            body["usage"] = _shaped_usage(chunk.usage)
        if origin is not None:
            body[EXTENSION] = origin
        return event(body)

    def _learn(self, chunk: ChatCompletionChunk) -> None:
        """Use this chunk's event as the pattern for the next ones. It must not be the first of its choice, which has the role."""
        self._tries -= 1
        self._repeated = None
        if (around := self._encode_around(chunk)) is not None:
            self._repeated = _RepeatedEvent(with_text(chunk, _PROBE), *around)

    def report(self, report: Report) -> bytes:
        """Return the event with the final report: a chunk without choices."""
        head = self._begin(ChatCompletionChunk(choices=[])) if self._head is None else self._head
        usage = {"usage": None} if self._wants_usage else {}
        return event({**head, "choices": [], **usage, EXTENSION: {"report": report}})

    def ending(self, reason: str | None, origin: Json | None = None) -> bytes:
        """Return an event with the finish reason if no chunk had it, or b"" if the chunks had it. ``origin`` is as in ``event``."""
        missing = sorted(self._begun - self._finished)
        if reason is None or not missing:
            return b""
        return self.event(ChatCompletionChunk(choices=[ChunkChoice(index=index, finish_reason=reason) for index in missing]), origin)

    def done(self) -> bytes:
        return DONE

    def failing(self, failure: RequestError) -> bytes:
        return error_event(failure)

    def _take(self, choice: ChunkChoice) -> Json | None:
        if choice.finish_reason is not None:
            self._finished.add(choice.index)
        shaped = self._choice(choice)
        self._begun.add(choice.index)
        if shaped is not None:
            if _choice_fields(choice) != _NO_CHOICE_FIELDS:
                shaped.update((name, value) for name in _CHOICE_FIELDS if (value := getattr(choice, name)) is not None)
            if type(choice) is not ChunkChoice:
                shaped = further_fields(choice) | shaped
        if shaped is not None and self._wants_ids and choice.token_ids is not None:
            shaped["token_ids"] = choice.token_ids
        return shaped

    def _begin(self, chunk: ChatCompletionChunk | ChatCompletion) -> Json:
        """Return the fields that are the same in all chunks of an answer, even after a hand-over. They are the first chunk's, completed."""
        head: Json = {
            "id": chunk.id or self.objects.new_id(),
            "object": self.objects.chunk,
            "created": chunk.created or int(time.time()),
            "model": chunk.model or self._model,
        }
        for name in ("system_fingerprint", "service_tier"):
            if (value := getattr(chunk, name)) is not None:
                head[name] = value
        return head

    def _choice(self, choice: ChunkChoice) -> Json | None:
        raise NotImplementedError


class ChatShape(_Shape):
    """Response format of ``/v1/chat/completions``."""

    __slots__ = ()
    objects = CHAT

    def whole(self, answer: ChatCompletion, reason: str | None) -> bytes:
        """Return a ``chat.completion`` object."""
        choices = []
        for choice in answer.choices:
            message = {"role": "assistant", "content": None, "refusal": None} | choice.message.to_dict()
            ended = choice.finish_reason or reason
            shaped = make_choice(choice.index, "message", message, logprobs=choice.logprobs, finish_reason=ended)
            choices.append(_provided(choice, _CHOICE_FIELDS) | shaped)
        head = _provided(answer, _ANSWER_FIELDS) | self._begin(answer)
        return encode({**head, "object": CHAT.whole, "choices": choices, "usage": _shaped_usage(answer.usage)})

    def _choice(self, choice: ChunkChoice) -> Json:
        delta = choice.delta
        if choice.index not in self._begun and delta.role is None:
            delta = replace(delta, role="assistant")  # OpenAI's first delta has it, and frameworks build the message's class from it
        is_plain = type(delta) is ChoiceDelta and delta.tool_calls is None and delta.function_call is None
        shaped = delta if is_plain else delta.to_dict()
        return make_choice(choice.index, "delta", shaped, logprobs=choice.logprobs, finish_reason=choice.finish_reason)


class CompletionShape(_Shape):
    """Response format of ``/v1/completions``, which has no fields for reasoning, refusals and tool calls.

    Endpoints answer with chat completions, so they name the answer as a chat. Here it gets an id of this API, and the model name that the
    caller used.
    """

    __slots__ = ()
    objects = COMPLETION

    def _begin(self, chunk: ChatCompletionChunk | ChatCompletion) -> Json:
        head = super()._begin(chunk)
        if not head["id"].startswith(f"{COMPLETION.id_prefix}-"):
            head["id"] = f"{COMPLETION.id_prefix}-{head['id'].removeprefix(f'{CHAT.id_prefix}-')}"
        return head | {"model": self._model}

    def whole(self, answer: ChatCompletion, reason: str | None) -> bytes:
        """Return a ``text_completion`` object."""
        choices = [
            _provided(choice, _CHOICE_FIELDS)
            | make_choice(choice.index, "text", choice.message.content or "", finish_reason=choice.finish_reason or reason)
            for choice in answer.choices
        ]
        return encode(
            {**_provided(answer, _ANSWER_FIELDS), **self._begin(answer), "choices": choices, "usage": _shaped_usage(answer.usage)}
        )

    def _choice(self, choice: ChunkChoice) -> Json | None:
        text = choice.delta.content or ""
        if not text and choice.finish_reason is None:
            return None
        return make_choice(choice.index, "text", text, finish_reason=choice.finish_reason)
