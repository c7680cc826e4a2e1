"""Parses request bodies for the fields that the proxy itself needs. All others are passed on to the endpoints unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from streamco.client.arguments import build_request
from streamco.endpoints.base import Request
from streamco.errors import MAX_NAME, ConfigError, shorten
from streamco.proxy.config import MODEL, ProxyOptions
from streamco.proxy.origins import ORIGIN_OPTION
from streamco.server.http.errors import RequestError, invalid, unsupported
from streamco.wire.request_fields import name_of

__all__ = ["ParsedRequest", "parse_chat", "parse_completion", "parse_fields", "refuse_setting", "unknown_model"]

_KNOWN = frozenset({"temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens", "stop"})
_CONSUMED = frozenset({"model", "messages", "prompt", "stream", "stream_options"})
_WHOLE = "request"  # prefix of errors about the whole request
_OWN_STREAM_OPTIONS = frozenset({"include_usage", ORIGIN_OPTION})  # usage is always requested, because the report needs it


class ParsedRequest(Struct, frozen=True, kw_only=True):
    """One request from a caller.

    Args:
        request: the client's request.
        model: the model name that the caller used, or "" for none.
        is_known: True if the proxy has that model, or no name was given.
        is_streamed: True if the answer is sent as server-sent events.
        wants_usage: True if a stream ends with usage.
        wants_origin: True if the chunks of a stream say what made their text (``streamco.proxy.origins``).
        wants_ids: True if token ids are sent (vLLM's ``return_token_ids``).
    """

    request: Request
    model: str
    is_known: bool
    is_streamed: bool
    wants_usage: bool
    wants_origin: bool
    wants_ids: bool


def parse_chat(body: bytes, options: ProxyOptions) -> ParsedRequest:
    """Parse the body of a ``/v1/chat/completions`` request.

    Raises:
        RequestError: 400, naming the field if one is at fault.
    """
    return parse_fields(_decode(body), options)


def parse_fields(fields: Mapping[str, Any], options: ProxyOptions) -> ParsedRequest:
    """Parse the decoded fields of a chat request.

    Raises:
        RequestError: 400, naming the field if one is at fault.
    """
    if "messages" not in fields:
        raise invalid("messages", "expected a list of messages, got none")
    if not isinstance(fields["messages"], list):
        raise invalid("messages", f"expected a list of messages, got {name_of(fields['messages'])}")
    return _parse(fields, fields["messages"], options)


def parse_completion(body: bytes, options: ProxyOptions) -> ParsedRequest:
    """Parse the body of a ``/v1/completions`` request.

    Raises:
        RequestError: 400, naming the field if one is at fault.
    """
    fields = _decode(body)
    prompt = _single_prompt(fields.get("prompt"))
    # these mean something else or nothing if the prompt is a message
    for name, nothing in (("echo", False), ("suffix", ""), ("best_of", 1), ("logprobs", None)):
        if fields.pop(name, nothing) != nothing:
            raise unsupported(name)
    parsed = _parse(fields, [{"role": "user", "content": prompt}], options)
    if not options.raw_prompts:
        return parsed
    return msgspec.structs.replace(parsed, request=msgspec.structs.replace(parsed.request, messages=None, prompt=prompt))


def _decode(body: bytes) -> dict[str, Any]:
    """Return the fields that are set; null means not set, as in OpenAI's API."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(None, f"body: expected JSON, got {error}") from error
    if not isinstance(value, dict):
        raise invalid(None, f"body: expected an object, got {name_of(value)}")
    return {name: each for name, each in value.items() if each is not None}


def _parse(fields: Mapping[str, Any], messages: list[Any], options: ProxyOptions) -> ParsedRequest:
    model = fields.get("model", "")
    if not isinstance(model, str):
        raise invalid("model", f"expected a name, got {name_of(model)}")
    is_streamed = _flag(fields, "stream")
    stream_options = fields.get("stream_options", {})
    if not isinstance(stream_options, dict):
        raise invalid("stream_options", f"expected an object, got {name_of(stream_options)}")
    wants_origin = _flag(stream_options, ORIGIN_OPTION)
    if wants_origin and not is_streamed:
        raise invalid(f"stream_options.{ORIGIN_OPTION}", "only valid with stream, got a request for a whole answer")
    return ParsedRequest(
        request=_build(fields, messages, model, stream_options, options),
        model=model,
        is_known=_is_known(model, options),
        is_streamed=is_streamed,
        wants_usage=_flag(stream_options, "include_usage"),
        wants_origin=wants_origin,
        wants_ids=_flag(fields, "return_token_ids"),
    )


def _build(fields: Mapping[str, Any], messages: list[Any], model: str, stream_options: Mapping[str, Any], options: ProxyOptions) -> Request:
    known = {name: value for name, value in fields.items() if name in _KNOWN}
    extra = {name: value for name, value in fields.items() if name not in _KNOWN and name not in _CONSUMED}
    if rest := {name: value for name, value in stream_options.items() if name not in _OWN_STREAM_OPTIONS}:
        extra["stream_options"] = rest
    is_known = _is_known(model, options)
    if not is_known and options.refuses_unknown_models:
        raise unknown_model(model, options)
    try:
        return build_request(messages, model=None if is_known else model, extra_body=extra, **known)
    except ConfigError as error:
        raise refuse_setting(error) from error


def _is_known(model: str, options: ProxyOptions) -> bool:
    return model in {"", MODEL, *options.models}


def unknown_model(model: str, options: ProxyOptions) -> RequestError:
    """Return a 404 that lists the models that exist."""
    known = ", ".join((MODEL, *options.models))
    return RequestError(404, f"model: expected one of {known}, got {shorten(model, MAX_NAME)}", param="model", code="model_not_found")


def refuse_setting(error: ConfigError) -> RequestError:
    """Return a 400 for a bad argument, which the error text names at its beginning, or for a request that no endpoint can serve."""
    name = error.field or str(error).partition(":")[0]
    field = name.partition("[")[0]
    is_field = field.isidentifier() and name != _WHOLE
    return RequestError(400, str(error), param=name if is_field else None, code=error.code)


def _single_prompt(prompt: Any) -> str:
    match prompt:
        case str() | [str()]:
            return prompt if isinstance(prompt, str) else prompt[0]
        case None:
            raise invalid("prompt", "expected a string, got none")
        case [int(), *_] | [[*_], *_]:
            raise invalid("prompt", "expected a string, got token ids, whose meaning differs between the endpoints' vocabularies")
        case [*texts]:
            raise invalid("prompt", f"expected one text, got {len(texts)}")
    raise invalid("prompt", f"expected a string, got {name_of(prompt)}")


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise invalid(name, f"expected true or false, got {name_of(value)}")
    return value
