"""Translates a request to Anthropic's Messages API into a chat request.

Fields that chat requests also have are passed on under their chat names. Fields that chat can't express are refused, with an error that
names the field. Fields that the API doesn't have are passed on unchanged, because a server may know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from streamco.wire.messages_api.content_blocks import read_conversation, referenced_tools
from streamco.wire.messages_api.events import MessageEvents
from streamco.wire.request_fields import FieldError, Fields, decode_fields, unoffered
from streamco.wire.translated_request import TranslatedRequest, function_tool, refuse_chat_names, stream_fields

__all__ = ["read_count_request", "read_message_request"]

Json = dict[str, Any]

_NAMES: Mapping[str, str] = {  # this API's names of chat fields
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}

_ABSENT = ("n", "functions", "function_call", "modalities", "audio", "prediction", "web_search_options", "logprobs", "top_logprobs")
_REFUSED = ("container", "mcp_servers", "inference_geo", "diagnostics", "user_profile_id", "workspace_id")
_EFFORTS = ((4_000, "low"), (16_000, "medium"))  # by the budget of thinking tokens; a larger budget is "high"


def read_message_request(body: bytes) -> TranslatedRequest:
    """Translate a request body of ``/v1/messages`` into a chat request.

    Raises:
        FieldError: a field can't be served.
    """
    fields = decode_fields(body)
    limit = fields.count("max_tokens")
    if limit is None:
        raise FieldError("max_tokens", "expected an integer >= 1, got none")
    return _read(fields, {"max_completion_tokens": limit})


def read_count_request(body: bytes) -> TranslatedRequest:
    """Translate a request body of ``/v1/messages/count_tokens`` into a chat request, of which only the tokens are counted.

    Raises:
        FieldError: a field can't be served.
    """
    fields = decode_fields(body)
    fields.skip("stream", "max_tokens")
    return _read(fields, {})


def _read(fields: Fields, chat: Json) -> TranslatedRequest:
    for name in _REFUSED:
        if fields.take(name):
            raise unoffered(name)
    if (speed := fields.text("speed")) not in {None, "standard"}:
        raise FieldError("speed", f"expected standard, got {speed}", code="unsupported_parameter")
    fields.skip("cache_control", "metadata", "service_tier")  # hints and billing at Anthropic; the answer is the same without them
    given = fields.rest().get("messages")
    chat["messages"] = messages = read_conversation(fields)
    if stops := fields.items("stop_sequences"):
        chat["stop"] = stops
    _read_edits(fields)
    _read_tools(fields, chat, given)
    _read_output(fields, chat)
    has_effort = "reasoning_effort" in chat
    skips_reasoning = _read_thinking(fields, chat)
    is_streamed = fields.flag("stream") or False
    refuse_chat_names(fields, {**_NAMES, **dict.fromkeys(_ABSENT, "")})
    return TranslatedRequest(
        chat={**fields.rest(), **chat, **stream_fields(is_streamed)},
        encoder=partial(MessageEvents, skips_reasoning=skips_reasoning),
        names={**_NAMES, "reasoning_effort": "thinking"} if not has_effort else _NAMES,
        is_streamed=is_streamed,
        ends_open=messages[-1]["role"] == "assistant",
    )


def _read_edits(fields: Fields) -> None:
    """Accept but ignore edits that clear parts of the prompt, so that the model still reads these parts. Refuse all other edits."""
    management = fields.inner("context_management")
    if management is None:
        return
    for edit in management.objects("edits"):
        kind = edit.needed_text("type")
        if not kind.startswith("clear_"):
            raise FieldError(edit.where("type"), f"expected an edit that clears, got {kind[:100]}", code="unsupported_parameter")
    management.refuse_rest()


def _read_tools(fields: Fields, chat: Json, messages: Any) -> None:
    """Read the tools. Like Anthropic, leave out deferred tools until a tool search has found them.

    A deferred tool that ``tool_choice`` names is included. Without tools the choice is dropped, because servers would refuse it.
    """
    tools = [(tool.flag("defer_loading"), _tool(tool)) for tool in fields.objects("tools")]
    choice = _read_choice(fields)
    found = referenced_tools(messages) if any(is_deferred for is_deferred, _ in tools) else set()
    match choice.get("tool_choice"):
        case {"function": {"name": str(named)}}:
            found.add(named)
    if offered := [tool for is_deferred, tool in tools if not is_deferred or tool["function"]["name"] in found]:
        chat |= {"tools": offered, **choice}


def _read_choice(fields: Fields) -> Json:
    """Translate ``tool_choice`` into the chat fields for it."""
    choice = fields.inner("tool_choice")
    if choice is None:
        return {}
    kind = choice.needed_text("type")
    made: Json = {}
    match kind:
        case "auto" | "none":
            made["tool_choice"] = kind
        case "any":
            made["tool_choice"] = "required"
        case "tool":
            made["tool_choice"] = {"type": "function", "function": {"name": choice.needed_text("name")}}
        case _:
            raise FieldError("tool_choice.type", f"expected auto, any, tool or none, got {kind[:100]}")
    if choice.flag("disable_parallel_tool_use"):
        made["parallel_tool_calls"] = False
    choice.refuse_rest()
    return made


def _tool(tool: Fields) -> Json:
    kind = tool.text("type")
    if kind not in {None, "custom"}:
        raise FieldError(tool.where("type"), f"expected custom, got {(kind or '')[:100]}", code="unsupported_parameter")
    schema = tool.needed_object("input_schema")
    made = function_tool(tool.needed_text("name"), tool.text("description"), schema, tool.flag("strict"))
    if tool.take("allowed_callers") not in (None, ["direct"]):
        raise unoffered(tool.where("allowed_callers"))
    tool.skip("cache_control", "eager_input_streaming")
    tool.refuse_rest()
    return made


def _read_output(fields: Fields, chat: Json) -> None:
    output = fields.inner("output_config")
    if output is None:
        return
    if (effort := output.text("effort")) is not None:
        chat["reasoning_effort"] = effort
    if (shape := output.inner("format")) is not None:
        kind = shape.needed_text("type")
        schema = shape.take("schema")
        if kind != "json_schema" or not isinstance(schema, dict):
            raise FieldError(shape.path, "expected type json_schema and a schema that is an object, got something else")
        shape.refuse_rest()
        chat["response_format"] = {"type": kind, kind: {"name": "answer", "schema": schema, "strict": True}}
    output.refuse_rest()


def _read_thinking(fields: Fields, chat: Json) -> bool:
    """Set the reasoning effort nearest to the budget of thinking tokens. Returns True if the answer must leave out thinking."""
    thinking = fields.inner("thinking")
    if thinking is None:
        return False
    kind = thinking.needed_text("type")
    budget = thinking.count("budget_tokens")
    display = thinking.text("display")
    if kind not in {"enabled", "disabled", "adaptive"}:
        raise FieldError("thinking.type", f"expected enabled, disabled or adaptive, got {kind[:100]}", code="unsupported_parameter")
    if kind == "enabled":
        if budget is None:
            raise FieldError("thinking.budget_tokens", "expected an integer >= 1, got none")
        chat.setdefault("reasoning_effort", next((effort for most, effort in _EFFORTS if budget < most), "high"))
    thinking.refuse_rest()
    return kind == "disabled" or display == "omitted"
