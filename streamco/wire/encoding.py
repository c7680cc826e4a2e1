"""Answers as OpenAI's API writes them: the JSON that ``streamco serve`` and ``streamco proxy`` send.

The chunk objects are encoded as they are; fields that OpenAI's JSON leaves out when they say nothing are cut from the bytes. That is safe:
inside a JSON string a quote is always escaped, so ``,"usage":null`` can't be part of a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from streamco.chunks import ChatCompletion, ChatCompletionChunk

__all__ = [
    "DONE_EVENT",
    "encode_chunk",
    "encode_completion",
    "encode_event",
    "encode_models",
    "encode_text_chunk",
    "encode_text_completion",
    "error_body",
]

DONE_EVENT = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode
_CHUNK_OBJECT = "chat.completion.chunk"
_NO_TAIL = b',"system_fingerprint":null,"service_tier":null}'
_NO_USAGE_NOR_TAIL = b',"usage":null' + _NO_TAIL
_OPTIONAL = tuple(
    f',"{name}":null'.encode()
    for name in (
        "token_ids",
        "system_fingerprint",
        "service_tier",
        "prompt_tokens_details",
        "completion_tokens_details",
        "reasoning_content",
        "tool_calls",
    )
)
_TYPE_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}


def encode_event(payload: bytes) -> bytes:
    """One server-sent event with this data; ``payload`` holds no line end, as JSON never does."""
    return b"data: " + payload + b"\n\n"


def encode_chunk(chunk: ChatCompletionChunk, *, include_usage: bool = False) -> bytes:
    """A ``chat.completion.chunk``.

    Args:
        chunk: what to send.
        include_usage: the client asked for usage: then chunks without it say ``"usage":null``.
    """
    if chunk.object != _CHUNK_OBJECT:
        chunk = msgspec.structs.replace(chunk, object=_CHUNK_OBJECT)
    data = _encode(chunk)
    if not include_usage and data.endswith(_NO_USAGE_NOR_TAIL):  # nearly every chunk
        return data[: -len(_NO_USAGE_NOR_TAIL)].replace(b',"token_ids":null', b"") + b"}"
    return _strip(data if include_usage else data.replace(b',"usage":null', b""))


def encode_completion(completion: ChatCompletion) -> bytes:
    """A ``chat.completion``."""
    return _strip(_encode(completion).replace(b',"usage":null', b""))


def encode_text_chunk(chunk: ChatCompletionChunk, *, include_usage: bool = False) -> bytes:
    """A chunk as a ``text_completion`` event of ``/v1/completions``."""
    choices = [
        {
            "text": choice.delta.content or "",
            "index": choice.index,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
            "token_ids": choice.token_ids,
        }
        for choice in chunk.choices
    ]
    body = _text_body(chunk, choices)
    if include_usage:
        body["usage"] = chunk.usage
    return _strip(_encode(body))


def encode_text_completion(completion: ChatCompletion) -> bytes:
    """A whole answer as the ``text_completion`` of ``/v1/completions``."""
    choices = [
        {
            "text": choice.message.content or "",
            "index": choice.index,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
        }
        for choice in completion.choices
    ]
    return _strip(_encode(_text_body(completion, choices)))


def _text_body(answer: ChatCompletionChunk | ChatCompletion, choices: list[dict[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": answer.id,
        "object": "text_completion",
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
    }
    if answer.usage is not None:
        body["usage"] = answer.usage
    if answer.system_fingerprint is not None:
        body["system_fingerprint"] = answer.system_fingerprint
    return body


def encode_models(names: Iterable[str], *, created: int, owned_by: str = "streamco") -> bytes:
    """The answer to ``GET /v1/models``. ``created``: seconds since the epoch."""
    models = [{"id": name, "object": "model", "created": created, "owned_by": owned_by} for name in names]
    return _encode({"object": "list", "data": models})


def error_body(message: str, *, status: int = 400, kind: str | None = None, param: str | None = None, code: str | None = None) -> bytes:
    """An error as OpenAI writes it; also the data of an error event in a stream, with ``code``.

    Args:
        message: expected, got, where.
        status: the HTTP status it goes with: decides the type.
        kind: the ``type``, if not the one that goes with the status.
        param: the request's field it is about.
        code: a name for programs, for example "context_length_exceeded".
    """
    kind = kind or _TYPE_BY_STATUS.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _strip(data: bytes) -> bytes:
    for field in _OPTIONAL:
        data = data.replace(field, b"")
    return data
