"""Builds request bodies for Anthropic's Messages API from chat messages and the fields of a chat request.

Fields that have another name in this API are renamed. All others are passed on unchanged, and the server refuses any that it doesn't know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streamco.config import SamplingOptions
from streamco.wire.translated_body import further_fields, joined_text, logit_bias_field, sampling_fields

__all__ = ["build_message_body"]

Json = dict[str, Any]

_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


def build_message_body(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str,
    sampling: SamplingOptions,
    max_tokens: int,
    extra: Mapping[str, Any] | None = None,
) -> Json:
    """Build the body of a streamed ``POST /v1/messages`` as a new dict, without changing the caller's objects.

    Args:
        messages: the conversation, as chat messages.
        model: the model's name.
        sampling: sampling options. Options that are None are left out.
        max_tokens: the limit if ``sampling`` has none, because this API needs one.
        extra: additional fields of a chat request.

    Raises:
        ValueError: a message has a part that this API can't express, or a call's arguments aren't a JSON object. The message says which.
    """
    system, conversation = _read_messages(messages)
    limit = max_tokens if sampling.max_tokens is None else sampling.max_tokens
    body: Json = {"model": model, "messages": conversation, "max_tokens": limit, "stream": True}
    if system:
        body["system"] = "\n".join(system)
    body |= sampling_fields(sampling)
    if sampling.stop:
        body["stop_sequences"] = list(sampling.stop)
    body |= logit_bias_field(sampling)
    further = further_fields(extra)
    if output := _output_settings(further):
        body["output_config"] = output
    if (tools := further.pop("tools", None)) is not None:
        body["tools"] = [_tool(tool) for tool in tools]
    if choice := _choice(further.pop("tool_choice", None), further.pop("parallel_tool_calls", None)):
        body["tool_choice"] = choice
    if (user := further.pop("user", None)) is not None:
        body["metadata"] = {"user_id": user}
    return body | further


def _output_settings(further: Json) -> Json:
    """Remove the chat fields that belong in ``output_config``, and return that field's value."""
    output: Json = {}
    if (effort := further.pop("reasoning_effort", None)) is not None:
        output["effort"] = effort
    shape = further.pop("response_format", None)
    if isinstance(shape, Mapping) and shape.get("type") != "text":
        schema = shape.get("json_schema")
        output["format"] = {"type": shape.get("type"), "schema": schema.get("schema") if isinstance(schema, Mapping) else None}
    return output


def _tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return tool
    made = {"name": function.get("name"), "input_schema": function.get("parameters") or {"type": "object", "properties": {}}}
    return made | {name: function[name] for name in ("description", "strict") if function.get(name) is not None}


def _choice(choice: Any, parallel: Any) -> Json:
    made: Json = {}
    match choice:
        case {"function": {"name": name}}:
            made = {"type": "tool", "name": name}
        case str() if choice in _CHOICES:
            made = {"type": _CHOICES[choice]}
    if parallel is False and made.get("type") != "none":
        made = {"type": "auto", **made, "disable_parallel_tool_use": True}
    return made


def _read_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[Json]]:
    """Return the system prompt's texts and the other messages. Consecutive tool results are joined into one message."""
    system: list[str] = []
    conversation: list[Json] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in {"system", "developer"}:
            system.append(joined_text(content))
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": joined_text(content)}
            last = conversation[-1] if conversation else {}
            if last.get("role") == "user" and isinstance(last["content"], list) and last["content"][-1]["type"] == "tool_result":
                last["content"].append(result)
            else:
                conversation.append({"role": "user", "content": [result]})
        elif role == "assistant":
            conversation.append({"role": role, "content": _answer(message, joined_text(content))})
        else:
            conversation.append(
                {"role": role, "content": content if isinstance(content, str) else [_block(part) for part in content or ()]}
            )
    return system, conversation


def _answer(message: Mapping[str, Any], text: str) -> Any:
    text = text or message.get("refusal") or ""
    calls = [_use(call) for call in message.get("tool_calls") or ()]
    return ([{"type": "text", "text": text}] if text else []) + calls if calls else text


def _use(call: Mapping[str, Any]) -> Json:
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments") or "{}"
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"messages: expected arguments of the call of {name!r} that are a JSON object, got other text")
    return {"type": "tool_use", "id": call.get("id"), "name": name, "input": given}


def _block(part: Mapping[str, Any]) -> Json:
    match part:
        case {"type": "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "image", "source": _source(url)}
    raise ValueError(f"messages: expected parts of type text or image_url, got {part.get('type')!r}")


def _source(url: str) -> Json:
    media_type, separator, data = url.removeprefix("data:").partition(";base64,")
    if url.startswith("data:") and separator:
        return {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "url", "url": url}
