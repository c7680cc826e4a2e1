"""Builds request bodies for the Responses API from chat messages and the fields of a chat request.

Fields that have another name in this API are renamed. All others are passed on unchanged, and the server refuses any that it doesn't know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamco.config import SamplingOptions
from streamco.wire.translated_body import further_fields, joined_text, logit_bias_field, sampling_fields

__all__ = ["build_response_body"]

Json = dict[str, Any]


def build_response_body(
    messages: Sequence[Mapping[str, Any]], *, model: str, sampling: SamplingOptions, extra: Mapping[str, Any] | None = None
) -> Json:
    """Build the body of a streamed ``POST /v1/responses`` as a new dict, without changing the caller's objects.

    Args:
        messages: the conversation, as chat messages.
        model: the model's name.
        sampling: sampling options. Options that are None are left out.
        extra: additional fields of a chat request. ``store`` is false unless it is given.

    Raises:
        ValueError: a message has a part that this API can't express. The message says which.
    """
    body: Json = {"model": model, "input": [item for message in messages for item in _items(message)], "stream": True, "store": False}
    body |= sampling_fields(sampling)
    if sampling.max_tokens is not None:
        body["max_output_tokens"] = sampling.max_tokens
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    body |= logit_bias_field(sampling)
    further = further_fields(extra)
    text = _text_settings(further)
    if text:
        body["text"] = text
    if (effort := further.pop("reasoning_effort", None)) is not None:
        body["reasoning"] = {"effort": effort}
    if further.pop("logprobs", None):
        body["include"] = ["message.output_text.logprobs"]
    if (tools := further.pop("tools", None)) is not None:
        body["tools"] = [_flat(tool) for tool in tools]
    if (choice := further.pop("tool_choice", None)) is not None:
        body["tool_choice"] = _flat(choice)
    return body | further


def _text_settings(further: Json) -> Json:
    """Remove the chat fields that belong in ``text``, and return that field's value."""
    text: Json = {}
    shape = further.pop("response_format", None)
    if isinstance(shape, Mapping):
        schema = shape.get("json_schema")
        text["format"] = {"type": shape.get("type"), **(schema if isinstance(schema, Mapping) else {})}
    if (verbosity := further.pop("verbosity", None)) is not None:
        text["verbosity"] = verbosity
    return text


def _flat(tool: Any) -> Any:
    """Return a tool or a tool choice without the object ``function`` or ``custom`` in which chat wraps its fields."""
    for kind in ("function", "custom"):
        if isinstance(tool, Mapping) and isinstance(inner := tool.get(kind), Mapping):
            return {"type": kind, **inner}
    return tool


def _items(message: Mapping[str, Any]) -> Iterator[Json]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": joined_text(content)}
        return
    if role == "assistant":
        if text := joined_text(content) or message.get("refusal"):
            yield {"role": role, "content": text}
    else:
        yield {"role": role, "content": content if isinstance(content, str) else [_part(part) for part in content or ()]}
    for call in message.get("tool_calls") or ():
        if isinstance(custom := call.get("custom"), Mapping):
            yield {"type": "custom_tool_call", "call_id": call.get("id"), "name": custom.get("name"), "input": custom.get("input") or ""}
            continue
        function = call.get("function") or {}
        arguments = function.get("arguments") or "{}"
        yield {"type": "function_call", "call_id": call.get("id"), "name": function.get("name"), "arguments": arguments}


def _part(part: Mapping[str, Any]) -> Json:
    match part:
        case {"type": "text", "text": text}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": url, **rest}}:
            return {"type": "input_image", "image_url": url, "detail": rest.get("detail", "auto")}
        case {"type": "file", "file": Mapping() as file}:
            return {"type": "input_file", **file}
        case {"type": "input_audio", "input_audio": audio}:
            return {"type": "input_audio", "input_audio": audio}
    raise ValueError(f"messages: expected parts of type text, image_url, file or input_audio, got {part.get('type')!r}")
