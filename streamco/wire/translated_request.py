"""A request of another API as a chat request: what the translations have in common."""

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

_IMAGES = "images"  # a tool's message has its image parts here, until they are placed


class TranslatedRequest(Struct, frozen=True, kw_only=True):
    """A request of another API as a chat request.

    Args:
        chat: fields of a body for ``/v1/chat/completions``, all of this request's own.
        encoder: makes the encoder of its answer.
        names: the API's own names of chat fields, for errors that name a field.
        is_streamed: the answer is sent as events.
        ends_open: the last message is the beginning of the answer, to be continued.
    """

    chat: dict[str, Any]
    encoder: NewEncoder
    names: Mapping[str, str]
    is_streamed: bool
    ends_open: bool = False


def stream_fields(is_streamed: bool) -> dict[str, Any]:
    """Return the chat fields of a streamed answer, which always ends with usage; {}: the answer is whole."""
    return {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}


def keep_open_reasoning(messages: Sequence[dict[str, Any]]) -> None:
    """Take the reasoning out of messages, except that of the last turn's tool calls.

    Reasoning models that call tools want their reasoning back until the turn is over. Other servers refuse the field.
    """
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for index, message in enumerate(messages):
        if index < last or "tool_calls" not in message:
            message.pop("reasoning_content", None)


def tool_message(call_id: str, result: str | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the message of a tool.

    Args:
        call_id: id of its call.
        result: a text, or chat parts of text and images; ``place_images`` must be called if there are images.
    """
    message: dict[str, Any] = {"role": "tool", "tool_call_id": call_id}
    if isinstance(result, str):
        return message | {"content": result}
    images = [part for part in result if part["type"] == "image_url"]
    text = "\n".join([part.get("text", "[image]") for part in result])
    return message | {"content": text} | ({_IMAGES: images} if images else {})


def place_images(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the images of tools' results in a user's message, because a tool's message has text alone.

    It comes after all results of a turn, because servers want these right after their calls; if a user's message follows, it is that one.
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
    """Return a tool in the form of a chat request."""
    function = {"name": name, "description": description, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def refuse_chat_names(fields: Fields, names: Mapping[str, str]) -> None:
    """Refuse fields that chat requests have under another name, because they would be overwritten.

    Args:
        fields: the request's fields that were not read.
        names: the API's own names by chat's; "": it has no such field.

    Raises:
        FieldError: there is such a field.
    """
    for name in fields.rest().keys() & names.keys():
        if not names[name]:
            raise unoffered(name)
        raise FieldError(name, f"expected {names[name]} in its place on this path, got {name}", code="unsupported_parameter")
