"""Translates a request to the Responses API into a chat request.

Fields that chat requests also have are passed on under their chat names. Fields that a response only repeats are kept for the response.
Fields that chat can't express are refused, with an error that names the field. Fields that the API doesn't have are passed on unchanged,
because a server may know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Raw

from streamco.wire.answer_encoder import encode
from streamco.wire.request_fields import FieldError, Fields, decode_fields, name_of, unoffered
from streamco.wire.responses_api.events import ResponseEvents
from streamco.wire.responses_api.input_items import read_input
from streamco.wire.responses_api.namespaces import NamespacedNames
from streamco.wire.translated_request import TranslatedRequest, function_tool, refuse_chat_names, stream_fields

__all__ = ["read_response_request"]

Json = dict[str, Any]

_NAMES: Mapping[str, str] = {  # this API's names of chat fields
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}

_ABSENT = ("n", "functions", "function_call", "modalities", "audio", "prediction", "web_search_options")  # chat has them, this API doesn't
_STORED = ("previous_response_id", "conversation", "background", "background_options", "prompt")  # need stored responses
_OTHERS = ("context_management", "moderation", "access_programs", "image")
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"  # without effect, because reasoning is plain here, and can be sent back as it is
_ECHOED = ("temperature", "top_p", "service_tier", "user", "safety_identifier", "prompt_cache_key")


def read_response_request(body: bytes) -> TranslatedRequest:
    """Translate a request body of ``/v1/responses`` into a chat request.

    Raises:
        FieldError: a field can't be served.
    """
    fields = decode_fields(body)
    for name in (*_STORED, *_OTHERS):
        if fields.take(name) not in (None, False):
            raise unoffered(name)
    if (truncation := fields.text("truncation")) not in {None, "disabled"}:
        raise FieldError("truncation", f"expected disabled, got {truncation}", code="unsupported_parameter")
    instructions = fields.text("instructions")
    limit = fields.count("max_output_tokens")
    names = NamespacedNames(fields.rest().get("tools"))
    chat: Json = {"messages": read_input(fields.take("input"), instructions, names)}
    echo: Json = {
        "background": False,
        "instructions": instructions,
        "max_output_tokens": limit,
        "metadata": _metadata(fields),
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
    }
    if limit is not None:
        chat["max_completion_tokens"] = limit
    for read in (_read_reasoning, _read_text, _read_include):
        read(fields, chat, echo)
    _read_tools(fields, chat, echo, names)
    fields.flag("store")
    # padding of events; calls of hosted tools, of which there are none; what Codex says about itself, which chat servers don't know
    fields.skip("stream_options", "max_tool_calls", "client_metadata")
    is_streamed = fields.flag("stream") or False
    refuse_chat_names(fields, {**_NAMES, **dict.fromkeys(_ABSENT, "")})
    rest = fields.rest()
    echo |= {name: rest.get(name) for name in _ECHOED}
    return TranslatedRequest(
        chat={**rest, **chat, **stream_fields(is_streamed)},
        encoder=partial(ResponseEvents, echo={name: Raw(encode(value)) for name, value in echo.items()}, names=names),
        names=_NAMES,
        is_streamed=is_streamed,
    )


def _metadata(fields: Fields) -> Json:
    metadata = fields.take("metadata", {})
    if not isinstance(metadata, dict):
        raise FieldError("metadata", f"expected an object, got {name_of(metadata)}")
    for value in metadata.values():
        if not isinstance(value, str):
            raise FieldError("metadata", f"expected texts, got {name_of(value)}")
    return metadata


def _read_reasoning(fields: Fields, chat: Json, echo: Json) -> None:
    reasoning = fields.inner("reasoning") or Fields({}, "reasoning")
    effort = reasoning.text("effort")
    summary = reasoning.text("summary") or reasoning.text("generate_summary")  # reasoning comes in full, in the item's content
    reasoning.skip("generate_summary")
    reasoning.refuse_rest()
    if effort is not None:
        chat["reasoning_effort"] = effort
    echo["reasoning"] = {"effort": effort, "summary": summary}


def _read_text(fields: Fields, chat: Json, echo: Json) -> None:
    text = fields.inner("text") or Fields({}, "text")
    shape = text.inner("format") or Fields({"type": "text"}, "text.format")
    verbosity = text.text("verbosity")
    text.refuse_rest()
    given = shape.rest()
    kind = shape.needed_text("type")
    match kind:
        case "text":
            pass
        case "json_object":
            chat["response_format"] = {"type": kind}
        case "json_schema":
            schema = {"name": shape.needed_text("name"), "schema": shape.take("schema")}
            if not isinstance(schema["schema"], dict):
                raise FieldError(shape.where("schema"), f"expected an object, got {name_of(schema['schema'])}")
            schema |= {"strict": shape.flag("strict"), "description": shape.text("description")}
            chat["response_format"] = {"type": kind, kind: {name: value for name, value in schema.items() if value is not None}}
        case _:
            raise FieldError(shape.where("type"), f"expected text, json_object or json_schema, got {kind[:100]}")
    shape.refuse_rest()
    if verbosity is not None:
        chat["verbosity"] = verbosity
    echo["text"] = {"format": given} | ({} if verbosity is None else {"verbosity": verbosity})


def _read_tools(fields: Fields, chat: Json, echo: Json, names: NamespacedNames) -> None:
    """Read the tools. Without tools the choice is dropped, because servers would refuse it."""
    tools = fields.objects("tools")
    echo["tools"] = [tool.rest() for tool in tools]
    made = [each for tool in tools for each in _functions(tool, names)]
    choice = fields.take("tool_choice", "auto")
    parallel = fields.flag("parallel_tool_calls")
    echo |= {"tool_choice": choice, "parallel_tool_calls": parallel is not False}
    chosen: Json = {} if choice == "auto" else {"tool_choice": _choice(choice, names)}
    if parallel is not None:
        chosen["parallel_tool_calls"] = parallel
    if made:
        chat |= {"tools": made, **chosen}


def _functions(tool: Fields, names: NamespacedNames) -> list[Json]:
    """Translate a tool: one function, or the functions in a namespace. The first of these also gets the namespace's description."""
    kind = tool.needed_text("type")
    if kind == "function":
        return [_function(tool, tool.needed_text("name"), tool.text("description"))]
    if kind != "namespace":
        raise FieldError(tool.where("type"), f"expected function or namespace, got {kind[:100]}", code="unsupported_parameter")
    namespace, about = tool.needed_text("name"), tool.text("description")
    if not namespace:
        raise FieldError(tool.where("name"), "expected the namespace's name, got an empty string")
    made: list[Json] = []
    for inner in tool.objects("tools"):
        if (kind := inner.needed_text("type")) != "function":
            raise FieldError(inner.where("type"), f"expected function, got {kind[:100]}", code="unsupported_parameter")
        texts = [text for text in (None if made else about, inner.text("description")) if text]
        made.append(_function(inner, names.chat_name(namespace, inner.needed_text("name")), "\n\n".join(texts) or None))
    tool.refuse_rest()
    return made


def _function(tool: Fields, name: str, description: str | None) -> Json:
    made = function_tool(name, description, tool.json_object("parameters"), tool.flag("strict"))
    if tool.take("allowed_callers") not in (None, ["direct"]):
        raise unoffered(tool.where("allowed_callers"))
    tool.refuse_rest()
    return made


def _choice(choice: Any, names: NamespacedNames) -> Any:
    match choice:
        case "none" | "required":
            return choice
        case {"type": "function", "name": str(name), "namespace": str(namespace)}:
            return {"type": "function", "function": {"name": names.chat_name(namespace, name)}}
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
    got = choice.get("type") if isinstance(choice, dict) else choice
    shown = got[:100] if isinstance(got, str) else name_of(got)
    raise FieldError("tool_choice", f"expected none, auto, required or a function, got {shown}", code="unsupported_parameter")


def _read_include(fields: Fields, chat: Json, echo: Json) -> None:
    top = fields.take("top_logprobs")
    for index, value in enumerate(fields.items("include") or []):
        if value == _LOGPROBS:
            chat["logprobs"] = True
        elif value != _ENCRYPTED:
            shown = value[:100] if isinstance(value, str) else name_of(value)
            raise FieldError(f"include[{index}]", f"expected {_LOGPROBS} or {_ENCRYPTED}, got {shown}", code="unsupported_parameter")
    echo["top_logprobs"] = top or 0
    if top:
        if "logprobs" not in chat:
            raise FieldError("top_logprobs", f"only valid with {_LOGPROBS} in include")
        chat["top_logprobs"] = top
