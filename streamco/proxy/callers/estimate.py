"""Computes the most that a request may cost at a server, before it is sent, and what it is charged when its answer has ended.

The estimate of a prompt is an upper bound: a token has at least one byte of the prompt's text. Tools and other objects count as the text
that a chat template may make of them: indented JSON, with everything escaped. Answers have a limit: the request's own, or one that is set
for it. Fields whose cost has no bound are refused. So the amounts spent and reserved together stay below the budget, with the exceptions
listed in docs/proxy.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any

from msgspec import Struct

from streamco.core.report_parts import EndpointReport
from streamco.endpoints.base import Message, Request, TokenPrices
from streamco.errors import MAX_NAME, shorten
from streamco.proxy.callers.base import to_nanos
from streamco.server.http.errors import RequestError, invalid

__all__ = ["RequestSize", "charge", "measure_request"]

IMAGE_TOKENS = 50_000  # most tokens of one image: gpt-4o-mini bills up to 48,169 for eight tiles
LEAST_IMAGE_TOKENS = 85  # fewest tokens of one image: gpt-4o's price for a small one
PREAMBLE_TOKENS = 500  # tokens of the sentences that a server puts around tools, schemas or documents
_FRAME = 32  # tokens that a chat template puts around each message, and around all of them
_BYTES_A_TOKEN = 5  # bytes per token of a prompt that no server has counted; a high number, so that the estimate is low
_MOST_TOKENS = 10**15  # largest limit that counts; beyond any budget, and exact in a float
_PARTS = ("text", "input_text", "refusal", "thinking", "image_url")
_MEMBER = 8  # tokens of the tags that a chat template may put around a member of an object
_IMAGE_ADDRESSES = ("data:image/", "http://", "https://")
_WITH_PREAMBLE = frozenset({"documents", "functions", "guided_json", "json_schema", "response_format", "structured_outputs", "tools"})
_TOOLS = (None, "function", "custom")
_TIERS = (None, "auto", "default", "flex", "standard", "standard_only")  # "priority" costs twice as much

# Fields of a request that cost no more than the tokens of their own text, of the prompt and of the answer. Fields that call other
# models, sell searches or files, expand a template of their own, or limit an answer under another name aren't among them.
_BOUNDED_FIELDS = frozenset(
    {
        *("add_generation_prompt", "add_special_tokens", "cache_prompt", "chat_template_kwargs", "client_metadata"),
        *("continue_final_message", "documents", "enable_thinking", "function_call", "functions", "grammar", "guided_choice"),
        *("guided_grammar", "guided_json", "guided_regex", "ignore_eos", "include_reasoning", "include_stop_str_in_output"),
        *("json_schema", "keep_alive", "logprobs", "metadata", "min_tokens", "mirostat", "mirostat_eta", "mirostat_tau", "modalities"),
        *("n", "parallel_tool_calls", "priority", "prompt_cache_key", "prompt_cache_retention", "reasoning", "reasoning_effort"),
        *("reasoning_format", "regex", "repeat_last_n", "repeat_penalty", "repetition_penalty", "request_id", "response_format"),
        *("return_token_ids", "safety_identifier", "service_tier", "skip_special_tokens", "spaces_between_special_tokens", "stop_regex"),
        *("stop_token_ids", "store", "stream_options", "structured_outputs", "thinking", "thinking_budget", "tool_choice", "tools"),
        *("top_logprobs", "truncate_prompt_tokens", "typical_p", "usage", "user", "verbosity", "xtc_probability", "xtc_threshold"),
    }
)
_MESSAGE_FIELDS = frozenset(
    {
        *("annotations", "content", "function_call", "name", "partial", "prefix", "reasoning", "reasoning_content", "reasoning_details"),
        *("refusal", "role", "tool_call_id", "tool_calls"),
    }
)
# Fields of parts, tools and calls. ``cache_control`` isn't among them, because some gateways bill twice the price for it.
_PART_FIELDS = frozenset({"type", "text", "refusal", "thinking", "signature", "image_url"})
_IMAGE_FIELDS = frozenset({"url", "detail"})
_TOOL_FIELDS = frozenset({"type", "function", "custom"})
_FUNCTION_FIELDS = frozenset({"name", "description", "parameters", "strict", "format"})
_CALL_FIELDS = frozenset({"id", "type", "index", "function", "custom", "extra_content"})
_CALLED_FIELDS = frozenset({"name", "arguments", "input"})

# Switches of chat templates. Arguments of the function that renders a template, such as ``chat_template`` itself, aren't among them.
_SWITCHES = frozenset(
    {
        *("add_generation_prompt", "add_vision_id", "clear_thinking", "continue_final_message", "current_date", "date_string"),
        *("enable_thinking", "keep_all_reasoning", "model_identity", "preserve_thinking", "reasoning_effort", "thinking"),
        *("thinking_budget", "thinking_mode", "tools_in_user_message", "truncate_history_thinking"),
    }
)


class RequestSize(Struct, frozen=True, kw_only=True):
    """The tokens of one request at a server.

    Args:
        prompt: most tokens that the prompt can have.
        answer: most tokens that all choices of the answer can have.
        least_prompt: fewest tokens that the prompt can have.
    """

    prompt: int
    answer: int
    least_prompt: int = 0

    def cost_at_most(self, prices: Iterable[TokenPrices]) -> int:
        """Return the nanodollars that it costs at the highest of these prices, all of which must be known."""
        return max((to_nanos(self.prompt * (each.prompt or 0.0) + self.answer * (each.completion or 0.0)) for each in prices), default=0)


def measure_request(request: Request, *, answer_tokens: int, computed: int = 1) -> RequestSize:
    """Return the size of a request.

    Args:
        request: the request.
        answer_tokens: limit for the answer if the request has none.
        computed: most tokens that a server computes for each token of the answer.

    Raises:
        RequestError: 400 nothing bounds the cost of a field or of some content.
    """
    _check_fields(request.extra)
    measured = _Measured()
    measured.add_text(request.prompt or "")
    images = sum(_measure_message(message, measured) for message in request.messages or ())
    measured.add(dict(request.extra))
    frames = _FRAME * (len(request.messages or ()) + 1) + len(request.prompt_ids or ())
    frames += 0 if request.extra.keys().isdisjoint(_WITH_PREAMBLE) else PREAMBLE_TOKENS
    limit = answer_tokens if request.sampling.max_tokens is None else request.sampling.max_tokens
    return RequestSize(
        prompt=measured.most + images * IMAGE_TOKENS + frames,
        answer=min(limit * int(request.extra.get("n") or 1) * computed, _MOST_TOKENS),
        least_prompt=measured.least // _BYTES_A_TOKEN + images * LEAST_IMAGE_TOKENS,
    )


def charge(parts: Iterable[EndpointReport], size: RequestSize | None, prices: Mapping[str, TokenPrices], *, reserved: int) -> int:
    """Return the nanodollars that an answer is charged, which is its report's cost.

    If a server sent no plausible token count, or its cost isn't known, the answer is charged at least the amount that was reserved for it,
    because an estimate may be too low, and then the budget wouldn't hold. A server that lost a race was stopped at the winner's first
    token, so its estimate is used. A prompt that wasn't counted costs at least the larger of two estimates, from the report and ``size``.

    Args:
        parts: the endpoints' parts in the answer.
        size: the request's size, or None if it wasn't measured.
        prices: prices of the servers, by name.
        reserved: the amount that was reserved for the answer.
    """
    total, is_known = 0, True
    for part in parts:
        if part.kind != "server" or part.opened is None:
            continue
        if part.cost_usd is None:
            is_known = False
            continue
        total += to_nanos(part.cost_usd)
        is_known = is_known and (not part.is_estimated or part.cost_source == "server" or part.outcome == "lost")
        if part.is_estimated and size is not None and part.name in prices:
            total += to_nanos(max(0, size.least_prompt - part.prompt_tokens) * (prices[part.name].prompt or 0.0))
    return total if is_known else max(total, reserved)


def _check_fields(extra: Mapping[str, Any]) -> None:
    """Check that nothing in a request costs more than its tokens.

    Raises:
        RequestError: 400 something does.
    """
    for name in sorted(extra.keys() - _BOUNDED_FIELDS):
        raise _unbounded(shorten(name, MAX_NAME), "none")
    if extra.get("service_tier") not in _TIERS:
        raise _unbounded("service_tier", "auto, default or flex")
    if extra.get("modalities") not in (None, ["text"]):
        raise _unbounded("modalities", "text alone")
    tools = extra.get("tools") or []
    if not isinstance(tools, list) or any(not isinstance(tool, Mapping) or tool.get("type") not in _TOOLS for tool in tools):
        raise _unbounded("tools", "functions alone")
    for tool in tools:
        _check_names(tool, _TOOL_FIELDS, "tools")
        for kind in ("function", "custom"):
            _check_names(tool.get(kind), _FUNCTION_FIELDS, "tools")
    functions = extra.get("functions") or []
    if not isinstance(functions, list):
        raise _unbounded("functions", "a list of functions")
    for function in functions:
        _check_names(function, _FUNCTION_FIELDS, "functions")
    switches = extra.get("chat_template_kwargs") or {}
    if not isinstance(switches, Mapping) or any(isinstance(value, list | dict) for value in switches.values()):
        raise _unbounded("chat_template_kwargs", "names with texts, numbers or booleans")
    _check_names(switches, _SWITCHES, "chat_template_kwargs")


def _check_names(value: Any, known: frozenset[str], field: str) -> None:
    """Check that an object has only known fields. Other kinds of values pass.

    Raises:
        RequestError: 400 it has other fields.
    """
    if isinstance(value, Mapping):
        for name in sorted(value.keys() - known):
            raise _unbounded(field, f"no {shorten(name, MAX_NAME)} in it")


def _unbounded(field: str, expected: str) -> RequestError:
    """Return the refusal of a field. ``expected`` says which contents of the field have a bounded cost."""
    text = f"expected {expected}, got more: a budget can't be kept, because what it costs is not known beforehand"
    return invalid(field, text, code="unsupported_parameter")


def _measure_message(message: Message, measured: _Measured) -> int:
    """Measure a message, and return the number of its images.

    Raises:
        RequestError: 400 it has fields or parts of an unknown kind.
    """
    if not message.keys() <= _MESSAGE_FIELDS:
        raise _unbounded("messages", "text, images and tool calls")
    calls = message.get("tool_calls") or []
    for call in calls if isinstance(calls, list) else ():
        _check_names(call, _CALL_FIELDS, "messages")
        if isinstance(call, Mapping):
            for kind in ("function", "custom"):
                _check_names(call.get(kind), _CALLED_FIELDS, "messages")
    add = measured.add if message.get("role") in ("tool", "function") else measured.add_field  # templates may show results as JSON
    content, images = message.get("content"), 0
    for part in content if isinstance(content, list) else [content]:
        if part is None or isinstance(part, str):
            add(part)
        else:
            images += _measure_part(part, add)
    for name, value in message.items():
        if name != "content":
            add(value)
    return images


def _measure_part(part: Any, add: Callable[[Any], None]) -> int:
    """Measure a part of a message's content that isn't plain text, and return the number of its images. ``add`` measures a field.

    Raises:
        RequestError: 400 it is of an unknown kind.
    """
    if not isinstance(part, Mapping) or part.get("type") not in _PARTS:
        raise _unbounded("messages", "text, images and tool calls")
    _check_names(part, _PART_FIELDS, "messages")
    for name, value in part.items():
        if name != "image_url":
            add(value)
    if "image_url" not in part:
        return int(part["type"] == "image_url")
    image = part["image_url"]
    _check_names(image, _IMAGE_FIELDS, "messages")
    address = image.get("url") if isinstance(image, Mapping) else image
    if not isinstance(address, str) or not address[:16].lower().startswith(_IMAGE_ADDRESSES):
        raise _unbounded("messages", "images whose address begins with data:image/, http:// or https://")
    return 1


class _Measured:
    """The total length of texts and JSON values.

    Args:
        least: bytes of only the texts, names and numbers.
        most: bytes of the longest text that a server may make of them, escaped as far as possible, and indented by at most four spaces a
            level, which count as one because they are one token.
    """

    def __init__(self, least: int = 0, most: int = 0) -> None:
        self.least = least
        self.most = most

    def add_text(self, text: str) -> None:
        """Add a text that is shown as it is."""
        size = _bytes_of(text)
        self.least += size
        self.most += size + 1  # plus a line ending

    def add_field(self, value: Any) -> None:
        """Add a field of a message: a text as it is, any other value as JSON."""
        if isinstance(value, str):
            self.add_text(value)
        else:
            self.add(value)

    def add(self, value: Any, *, decodes: bool = True) -> None:
        """Add a JSON value. With ``decodes``, a tool call's arguments count as a string or as the JSON in it, whichever is longer."""
        pending = [(value, 0)]
        while pending:
            value, depth = pending.pop()
            self.most += 2 + depth  # its comma, and the new line that it is on
            if isinstance(value, str):
                self.least += _bytes_of(value)
                self.most += len(encode_basestring_ascii(value))
            elif isinstance(value, list | tuple):
                self.most += 3 + depth
                pending += [(each, depth + 1) for each in value]
            elif isinstance(value, dict):
                self.most += 3 + depth
                for name, each in value.items():
                    self.least += _bytes_of(name)
                    self.most += len(encode_basestring_ascii(name)) + 2 + _MEMBER
                    if decodes and name == "arguments" and isinstance(each, str):
                        self._add_arguments(each)
                    else:
                        pending.append((each, depth + 1))
            else:
                is_finite = not isinstance(value, float) or isfinite(value)
                size = len(repr(value)) if is_finite else len("-Infinity")  # as a template or JSON may show it
                self.least += size
                self.most += size

    def _add_arguments(self, text: str) -> None:
        plain, decoded = _Measured(), _Measured()
        plain.add(text)
        decoded.add(_decoded(text), decodes=False)
        self.least += plain.least
        self.most += max(plain.most, decoded.most)


def _decoded(text: str) -> Any:
    """Return the JSON value in a text, as servers decode it for their templates, or the text itself if it isn't JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
