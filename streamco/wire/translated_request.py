"""Helpers shared by all translations of other APIs' requests into chat requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from streamco.wire.answer_encoder import NewEncoder
from streamco.wire.request_fields import FieldError, Fields, unoffered

__all__ = [
    "TranslatedRequest",
    "function_tool",
    "keep_open_reasoning",
    "place_images",
    "refuse_chat_names",
    "stream_fields",
    "tool_message",
]

_IMAGES = "images"  # key of a tool message's image parts, until they are placed


class TranslatedRequest(Struct, frozen=True, kw_only=True):
    """A request of another API, translated to a chat request.

    Args:
        chat: fields of a body for ``/v1/chat/completions``. Nothing else uses this dict.
        encoder: makes an encoder for the answer.
        names: the API's names for chat fields, used in errors.
        is_streamed: True if the answer is sent as events.
        ends_open: True if the last message is the beginning of the answer, which the model continues.
    """

    chat: dict[str, Any]
    encoder: NewEncoder
    names: Mapping[str, str]
    is_streamed: bool
    ends_open: bool = False


def stream_fields(is_streamed: bool) -> dict[str, Any]:
    """Return the chat fields for a streamed answer, which always ends with usage, or {} for a whole answer."""
    return {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}


def keep_open_reasoning(messages: Sequence[dict[str, Any]]) -> None:
    """Remove the reasoning from messages, except from messages with tool calls in the last turn.

    Reasoning models that call tools need their reasoning back until the turn is over. Other servers refuse the field.
    """
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for index, message in enumerate(messages):
        if index < last or "tool_calls" not in message:
            message.pop("reasoning_content", None)


def tool_message(call_id: str, result: str | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a chat message with a tool's result.

    Args:
        call_id: id of the tool call.
        result: a text, or chat parts of text and images. If there are images, ``place_images`` must be called afterwards.
    """
    message: dict[str, Any] = {"role": "tool", "tool_call_id": call_id}
    if isinstance(result, str):
        return message | {"content": result}
    images = [part for part in result if part["type"] == "image_url"]
    text = "\n".join([part.get("text", "[image]") for part in result])
    return message | {"content": text} | ({_IMAGES: images} if images else {})


def place_images(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move the images of tool results into a user message, because a tool message may only hold text. Returns the new messages.

    The user message comes after all results of a turn, because servers expect results right after their calls. If a user message follows
    anyway, the images are put into it.
    """
    placed: list[dict[str, Any]] = []
    waiting: list[Any] = []
    for message in messages:
        if waiting and message["role"] == "user":
            content = message["content"]
            message["content"] = [*waiting, *([{"type": "text", "text": content}] if isinstance(content, str) else content)]
            waiting = []
        if waiting and message["role"] != "tool":
            placed.append({"role": "user", "content": waiting})
            waiting = []
        if images := message.pop(_IMAGES, None):
            waiting.append({"type": "text", "text": f"Images in the result of {message['tool_call_id']}:"})
            waiting.extend(images)
        placed.append(message)
    return [*placed, {"role": "user", "content": waiting}] if waiting else placed


def function_tool(name: str, description: str | None, parameters: Any, strict: bool | None) -> dict[str, Any]:
    """Return the definition of a function tool as chat requests have it."""
    function = {"name": name, "description": description, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def refuse_chat_names(fields: Fields, names: Mapping[str, str]) -> None:
    """Refuse unread fields with a chat request's name, because the translation would overwrite them.

    Args:
        fields: the request's fields that were not read.
        names: the API's name for each chat name, or "" if the API has no such field.

    Raises:
        FieldError: the request has a field with a chat name.
    """
    for name in fields.rest().keys() & names.keys():
        if not names[name]:
            raise unoffered(name)
        raise FieldError(name, f"expected {names[name]} in its place on this path, got {name}", code="unsupported_parameter")
