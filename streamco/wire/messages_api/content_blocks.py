"""Translates the conversation in a request to the Messages API into chat messages.

A user message with tool results becomes several chat messages: a tool message for each result, then a user message. Adjacent text blocks
become parts of a message, but in an assistant message, a system prompt or a tool result they are joined. Thinking is sent back only with
the tool calls of the last turn (``keep_open_reasoning``), because servers refuse it elsewhere. Its signature means nothing to them. Images
in results move into a user message (``place_images``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamco.wire.request_fields import FieldError, Fields, name_of, objects_of, unoffered
from streamco.wire.translated_request import keep_open_reasoning, place_images, tool_message

__all__ = ["read_conversation", "referenced_tools"]

Json = dict[str, Any]

_ROLES = ("user", "assistant", "system")


def read_conversation(fields: Fields) -> list[Json]:
    """Return the chat messages of a request, with the system prompt first.

    Args:
        fields: the request's fields, of which ``system`` and ``messages`` are read.

    Raises:
        FieldError: a message or a block can't be served.
    """
    messages: list[Json] = []
    if (system := fields.take("system")) is not None:
        text = system if isinstance(system, str) else "\n".join(_texts(system, "system"))
        messages += [{"role": "system", "content": text}] if text else []
    given = fields.objects("messages")
    if not given:
        raise FieldError("messages", "expected at least one message, got none")
    for message in given:
        role = message.needed_text("role")
        where = message.where("content")
        content = message.take("content")
        match role:
            case "user":
                messages += _user_messages(content, where)
            case "assistant":
                messages.append(_answer(content, where))
            case "system":
                messages.append({"role": role, "content": content if isinstance(content, str) else "\n".join(_texts(content, where))})
            case _:
                raise FieldError(message.where("role"), f"expected {', '.join(_ROLES)}, got {role[:100]}")
    keep_open_reasoning(messages)
    return place_images(messages)


def referenced_tools(messages: Any) -> set[str]:
    """Return the names of the tools that the results of tool searches mention.

    Args:
        messages: the request's field ``messages``, decoded. Malformed parts are skipped here, and refused later when they are read.
    """
    contents = [message.get("content") for message in objects_of(messages)]
    results = [block.get("content") for content in contents for block in objects_of(content) if block.get("type") == "tool_result"]
    blocks = [block for result in results for block in objects_of(result) if block.get("type") == "tool_reference"]
    return {name for block in blocks if isinstance(name := block.get("tool_name"), str)}


def _blocks(value: Any, where: str) -> list[Fields]:
    if not isinstance(value, list):
        raise FieldError(where, f"expected a string or a list of blocks, got {'none' if value is None else name_of(value)}")
    return [Fields(each, f"{where}[{index}]") for index, each in enumerate(value)]


def _texts(value: Any, where: str) -> list[str]:
    """Return the texts of a list of blocks, which must all be text blocks."""
    texts = []
    for block in _blocks(value, where):
        kind = block.needed_text("type")
        if kind != "text":
            raise _unknown_block(block, kind, "text")
        texts.append(block.needed_text("text"))
    return texts


def _unknown_block(block: Fields, kind: str, expected: str) -> FieldError:
    return FieldError(block.where("type"), f"expected {expected}, got {kind[:100]}", code="unsupported_parameter")


def _user_messages(content: Any, where: str) -> list[Json]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results: list[Json] = []
    parts: list[Json] = []
    for block in _blocks(content, where):
        kind = block.needed_text("type")
        match kind:
            case "text":
                parts.append({"type": "text", "text": block.needed_text("text")})
            case "image":
                parts.append({"type": "image_url", "image_url": {"url": _image_url(block)}})
            case "tool_result":
                results.append(_tool_result(block))
            case _:
                raise _unknown_block(block, kind, "text, image or tool_result")
    if not parts:
        return results or [{"role": "user", "content": ""}]
    is_one_text = len(parts) == 1 and parts[0]["type"] == "text"
    return [*results, {"role": "user", "content": parts[0]["text"] if is_one_text else parts}]


def _image_url(block: Fields) -> str:
    source = block.inner("source")
    if source is None:
        raise FieldError(block.where("source"), "expected an object, got none")
    kind = source.needed_text("type")
    match kind:
        case "base64":
            return f"data:{source.needed_text('media_type')};base64,{source.needed_text('data')}"
        case "url":
            return source.needed_text("url")
    raise FieldError(source.where("type"), f"expected base64 or url, got {kind[:100]}", code="unsupported_parameter")


def _tool_result(block: Fields) -> Json:
    """Return a tool message. Chat has no flag for a failed call, so "Error: " is put before the text unless it mentions an error."""
    content, where = block.take("content", ""), block.where("content")
    result = content if isinstance(content, str) else [_result_part(each) for each in _blocks(content, where)]
    message = tool_message(block.needed_text("tool_use_id"), result)
    if block.flag("is_error") and "error" not in message["content"].lower():
        message["content"] = f"Error: {message['content']}"
    return message


def _result_part(block: Fields) -> Json:
    """Translate one block of a tool's result into a chat part."""
    kind = block.needed_text("type")
    match kind:
        case "text":
            return {"type": "text", "text": block.needed_text("text")}
        case "image":
            return {"type": "image_url", "image_url": {"url": _image_url(block)}}
        case "tool_reference":
            return {"type": "text", "text": f"The tool {block.needed_text('tool_name')} can be called from now on."}
    raise _unknown_block(block, kind, "text, image or tool_reference")


def _answer(content: Any, where: str) -> Json:
    """Translate an assistant message."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, thoughts, calls = [], [], []
    for block in _blocks(content, where):
        kind = block.needed_text("type")
        match kind:
            case "text":
                texts.append(block.needed_text("text"))
            case "thinking":
                thoughts.append(block.needed_text("thinking"))
            case "redacted_thinking":  # only the model that wrote it can read it
                pass
            case "tool_use":
                calls.append(_call(block))
            case _:
                raise _unknown_block(block, kind, "text, thinking, redacted_thinking or tool_use")
    message: Json = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if calls:
        message["tool_calls"] = calls
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    return message


def _call(block: Fields) -> Json:
    given = block.take("input", {})
    if not isinstance(given, dict):
        raise FieldError(block.where("input"), f"expected an object, got {name_of(given)}")
    if block.take("toolset_name") is not None:
        raise unoffered(block.where("toolset_name"))
    function = {"name": block.needed_text("name"), "arguments": msgspec.json.encode(given).decode()}
    return {"id": block.needed_text("id"), "type": "function", "function": function}
