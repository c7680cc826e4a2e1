"""Builds request bodies for OpenAI-compatible servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from streamco.config import NO_LIMIT, SamplingOptions

__all__ = ["build_chat_request", "build_completion_request", "encode_request", "without_stream"]

MaxTokensField = Literal["max_tokens", "max_completion_tokens"]

_SAMPLING = SamplingOptions()


def build_chat_request(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str | None,
    stream: bool = True,
    sampling: SamplingOptions = _SAMPLING,
    extra: Mapping[str, Any] | None = None,
    include_usage: bool = True,
    max_tokens_field: MaxTokensField = "max_tokens",
) -> dict[str, Any]:
    """Build the body of ``POST /v1/chat/completions`` as a new dict, without changing the caller's objects.

    Args:
        messages: the conversation. It is passed on unchanged, except that calls without arguments get ``{}``, because servers expect JSON
            there.
        model: the model's name. None leaves it out.
        stream: True to request a stream of events.
        sampling: sampling options. Options that are None are left out.
        extra: additional fields, which override every other field except ``stream``.
        include_usage: True to request a last event with token counts (``stream_options``). Other stream options in ``extra`` are kept.
        max_tokens_field: the field in which the server expects the token limit. OpenAI's reasoning models refuse ``max_tokens``.
    """
    body: dict[str, Any] = {"messages": [_with_arguments(message) for message in messages]}
    if model is not None:
        body["model"] = model
    _add_sampling(body, sampling, max_tokens_field)
    return _finish(body, stream, extra, include_usage)


def build_completion_request(
    prompt: str | Sequence[int],
    *,
    model: str | None,
    stream: bool = True,
    sampling: SamplingOptions = _SAMPLING,
    extra: Mapping[str, Any] | None = None,
    include_usage: bool = True,
) -> dict[str, Any]:
    """Build the body of ``POST /v1/completions``. The prompt is text or token ids. The other arguments are as in ``build_chat_request``."""
    body: dict[str, Any] = {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
    if model is not None:
        body["model"] = model
    _add_sampling(body, sampling, "max_tokens")
    return _finish(body, stream, extra, include_usage)


def without_stream(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of any API's request body without the fields about streaming, so that it asks for a whole answer."""
    return {name: value for name, value in body.items() if name not in {"stream", "stream_options"}}


def encode_request(body: Mapping[str, Any]) -> bytes:
    """Encode a body as JSON.

    Raises:
        TypeError: JSON can't express a value.
    """
    return msgspec.json.encode(body)


def _with_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple) or not any(map(_lacks_arguments, calls)):
        return message
    return {**message, "tool_calls": [_with_object(call) if _lacks_arguments(call) else call for call in calls]}


def _lacks_arguments(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and function.get("arguments") == ""


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": "{}"}}


def _add_sampling(body: dict[str, Any], sampling: SamplingOptions, max_tokens_field: MaxTokensField) -> None:
    for name in ("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"):
        value = getattr(sampling, name)
        if value is not None:
            body[name] = value
    limit = NO_LIMIT if sampling.is_unlimited and sampling.max_tokens is None else sampling.max_tokens
    if limit is not None:
        body[max_tokens_field] = limit
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}


def _finish(body: dict[str, Any], stream: bool, extra: Mapping[str, Any] | None, include_usage: bool) -> dict[str, Any]:
    body.update(extra or {})
    body["stream"] = stream
    if not stream:
        body.pop("stream_options", None)  # OpenAI refuses this field without stream
    elif include_usage:
        body["stream_options"] = {"include_usage": True, **(body.get("stream_options") or {})}
    return body
