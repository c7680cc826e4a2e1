"""The most that a request may cost at a server, known before it is sent, and what it is charged when its answer has ended.

Prompts are estimated from above: a token has at least one byte of the prompt's text. Answers have a limit: the request's own, or one that
is set for it. Fields are refused if nothing here bounds their cost. So the sum of what is spent and reserved keeps below a budget, with
three exceptions. A request that fails over to another server is billed by both. A server may bill more than its prices. The work on an
answer that its reader broke off is an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from streamco.core.report import EndpointReport
from streamco.endpoints.base import Message, Request, TokenPrices
from streamco.errors import MAX_NAME, shorten
from streamco.proxy.callers.base import to_nanos
from streamco.server.http.errors import RequestError, invalid

__all__ = ["RequestSize", "charge", "measure_request"]

IMAGE_TOKENS = 50_000  # of one image at its most: gpt-4o-mini bills up to 48,169 for eight tiles
_FRAME = 32  # tokens of a chat template around a message, and around all of them
_BYTES_A_TOKEN = 5  # of text in a prompt that no server has counted, so that the count is rather too low
_MOST_TOKENS = 10**15  # of a limit that a request may name; beyond any budget, and exact in a float
_PARTS = ("text", "input_text", "refusal", "thinking", "image_url")
_TOOLS = (None, "function", "custom")
_TIERS = (None, "auto", "default", "flex", "standard", "standard_only")  # "priority" costs twice as much

# Fields of a request that cost no more than the tokens of their own text, those of the prompt and those of the answer. Not among them:
# those that call other models, sell searches or files, expand a template of their own, or limit an answer by another name.
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


class RequestSize(Struct, frozen=True, kw_only=True):
    """Tokens of one request at a server.

    Args:
        prompt: the prompt at its most.
        answer: all choices of the answer at their most.
        least_prompt: the prompt at its least.
    """

    prompt: int
    answer: int
    least_prompt: int = 0

    def cost_at_most(self, prices: Iterable[TokenPrices]) -> int:
        """Return the nanodollars that it costs at the dearest of these prices, all of which are known."""
        return max((to_nanos(self.prompt * (each.prompt or 0.0) + self.answer * (each.completion or 0.0)) for each in prices), default=0)


def measure_request(request: Request, *, answer_tokens: int) -> RequestSize:
    """Return the size of a request.

    Args:
        request: the request.
        answer_tokens: limit of an answer to a request without its own.

    Raises:
        RequestError: 400 nothing bounds the cost of a field or a content.
    """
    _check_fields(request.extra)
    images = sum(_count_images(message) for message in request.messages or ())
    size = _count_bytes([request.prompt or "", *map(_without_images, request.messages or ()), dict(request.extra)])
    frames = _FRAME * (len(request.messages or ()) + 1) + len(request.prompt_ids or ())
    limit = answer_tokens if request.sampling.max_tokens is None else request.sampling.max_tokens
    return RequestSize(
        prompt=size + images * IMAGE_TOKENS + frames,
        answer=min(limit * int(request.extra.get("n") or 1), _MOST_TOKENS),
        least_prompt=size // _BYTES_A_TOKEN + images * IMAGE_TOKENS,
    )


def charge(parts: Iterable[EndpointReport], size: RequestSize | None, prices: Mapping[str, TokenPrices], *, reserved: int) -> int:
    """Return the nanodollars that an answer is charged: its report's cost.

    Where a server has sent no count, its prompt counts as the larger of two estimates, the report's and that of ``size``. If a cost is not
    known, the answer is charged at least what was reserved for it.

    Args:
        parts: parts of the endpoints in the answer.
        size: the request's size; None: it was not measured.
        prices: prices of the servers, by name.
        reserved: the most that it was expected to cost.
    """
    total, is_known = 0, True
    for part in parts:
        if part.kind != "server" or part.opened is None:
            continue
        if part.cost_usd is None:
            is_known = False
            continue
        total += to_nanos(part.cost_usd)
        if part.is_estimated and size is not None and part.name in prices:
            total += to_nanos(max(0, size.least_prompt - part.prompt_tokens) * (prices[part.name].prompt or 0.0))
    return total if is_known else max(total, reserved)


def _check_fields(extra: Mapping[str, Any]) -> None:
    """Check that nothing in a request costs more than its tokens.

    Raises:
        RequestError: 400.
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


def _unbounded(field: str, expected: str) -> RequestError:
    """Return the refusal of a field; ``expected``: the part of it that has a bounded cost."""
    text = f"expected {expected}, got more: a budget can't be kept, because what it costs is not known beforehand"
    return invalid(field, text, code="unsupported_parameter")


def _parts(message: Message) -> Sequence[Any]:
    """Return the parts of a message's content that are no plain text."""
    content = message.get("content")
    if isinstance(content, list):
        return [part for part in content if not isinstance(part, str)]
    return () if content is None or isinstance(content, str) else (content,)


def _count_images(message: Message) -> int:
    """Return the number of images in a message.

    Raises:
        RequestError: 400 it has fields or parts of another kind.
    """
    images = 0
    if not message.keys() <= _MESSAGE_FIELDS:
        raise _unbounded("messages", "text, images and tool calls")
    for part in _parts(message):
        if not isinstance(part, Mapping) or part.get("type") not in _PARTS:
            raise _unbounded("messages", "text, images and tool calls")
        images += part.get("type") == "image_url"
    return images


def _without_images(message: Message) -> Message:
    """Return the message without the data and addresses of its images, which are no text to the server."""
    content = message.get("content")
    return {**message, "content": [_without_image(part) for part in content]} if isinstance(content, list) else dict(message)


def _without_image(part: Any) -> Any:
    is_image = isinstance(part, Mapping) and part.get("type") == "image_url"
    return {name: value for name, value in part.items() if name != "image_url"} if is_image else part


def _count_bytes(values: Sequence[Any]) -> int:
    """Return the bytes of all texts, names and numbers in JSON values: dicts and lists."""
    size, pending = 0, list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            size += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        else:
            size += len(repr(value))  # as a template may show it
    return size
