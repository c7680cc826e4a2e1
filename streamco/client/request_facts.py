"""The facts about a request that decide which endpoints can serve it, and the length of its prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from streamco.client.arguments import ChatOptions
from streamco.endpoints.base import Endpoint, Request, TextCounter, estimate_tokens
from streamco.engines.llamacpp.json_schema import grammar_of
from streamco.errors import MAX_NAME, ConfigError, shorten
from streamco.events import ESTIMATE, TextCount
from streamco.policies.eligibility import RequestFacts
from streamco.wire.known_fields import FIELDS_WITHOUT_EFFECT, NEUTRAL_VALUES, is_asked
from streamco.wire.request_fields import name_of

__all__ = ["count_prompt", "describe_request", "facts_for_log", "logged_field", "takes_long"]

_CHARACTERS_A_TOKEN = 4  # OpenAI's rule of thumb for English, used without a tokenizer
_MESSAGE_OVERHEAD = 4  # tokens that a chat template adds to a message
# Fields that a device honours, or that are checked separately
_DEVICE_FIELDS = frozenset(
    {"functions", "ignore_eos", "logprobs", "n", "parallel_tool_calls", "response_format", "tools", "top_logprobs"},
)
_OTHER_VOCABULARY = "logit_bias (its token ids are another vocabulary's)"
_FORMAT = "response_format"  # every complaint about a response_format begins with it
# Names that may be logged: the fields of OpenAI's API and of common servers. Other names are the caller's own words.
_LOGGED_FIELDS = {*FIELDS_WITHOUT_EFFECT, *NEUTRAL_VALUES, *ChatOptions.__annotations__, "ignore_eos", _OTHER_VOCABULARY}
_LOGGED_TYPES = frozenset(  # types of message parts in OpenAI's APIs, Anthropic's and common servers
    {
        *("audio", "audio_url", "document", "file", "image", "image_url", "input_audio", "input_file", "input_image", "input_text"),
        *("output_text", "reasoning", "refusal", "thinking", "tool_result", "tool_use", "video", "video_url"),
    }
)
_OWN_TOKENIZER = "tokenizer"  # the counter's name, if the endpoint that counted doesn't give one
_SHORT = 4096  # characters; tokenising more takes more than a millisecond


def takes_long(request: Request) -> bool:
    """Return True if finding the request's facts would block an event loop for more than a millisecond."""
    if request.extra.get("response_format") is not None or any(message.get("tool_calls") for message in request.messages or ()):
        return True
    return len(_text_of(request)[0]) > _SHORT


def describe_request(request: Request, device: Endpoint | None, servers: Sequence[Endpoint]) -> RequestFacts:
    """Return the facts about a request. Thread-safe.

    The prompt's length is the device's count, or else the first server's, or else an estimate, at worst from the number of characters.
    """
    text, other_parts = _text_of(request)
    shape = request.extra.get("response_format")
    counts = _counts(request, device, servers)
    prompt = _measure(request, (device, *servers[:1]), counts)
    if prompt is None:
        guess = len(text) // _CHARACTERS_A_TOKEN + _MESSAGE_OVERHEAD * len(request.messages or ()) + 1
        prompt = TextCount(guess, ESTIMATE)
    return RequestFacts(
        prompt_tokens=prompt.tokens,
        is_estimated=prompt.is_estimated,
        counts=counts,
        max_tokens=request.sampling.max_tokens,
        prompt_chars=len(text),
        task=request.task,
        has_images=bool(other_parts),
        other_parts=tuple(other_parts),
        has_tools=bool(request.extra.get("tools") or request.extra.get("functions")),
        has_json_schema=isinstance(shape, Mapping) and shape.get("type") not in (None, "text"),  # the type may be any JSON value
        choices=int(request.extra.get("n") or 1),
        server_fields=tuple(_server_fields(request, device, servers)),
    )


def facts_for_log(facts: RequestFacts) -> RequestFacts:
    """Return the facts without any text from the caller, so that reasons made from them may be logged."""
    fields = tuple(dict.fromkeys(map(logged_field, facts.server_fields)))
    parts = tuple(map(_logged_part, facts.other_parts))
    if (fields, parts) == (facts.server_fields, facts.other_parts):
        return facts
    return replace(facts, server_fields=fields, other_parts=parts)


def logged_field(name: str) -> str:
    """Return a field's name in a form that may be logged: an unknown name is only described, because it may be private."""
    if name in _LOGGED_FIELDS:
        return name
    return "a response_format that it can't follow" if name.startswith(_FORMAT) else "a field that isn't known"


def count_prompt(request: Request, device: Endpoint | None, servers: Sequence[Endpoint]) -> TextCount | None:
    """Return the prompt's length and what counted it, or None if there isn't even an estimate, as for images. Thread-safe.

    It is the device's count, unless the request has tools and the device can't use them. Otherwise it is the count of the first server that
    can count, or else the first estimate that one of the endpoints has.
    """
    has_tools = bool(request.extra.get("tools") or request.extra.get("functions"))
    is_devices = device is not None and (device.capabilities.tools or not has_tools)
    return _measure(request, (device if is_devices else None, *servers))


def _server_fields(request: Request, device: Endpoint | None, servers: Sequence[Endpoint]) -> list[str]:
    """Return the fields that a device can't honour."""
    extra = request.extra
    found = sorted(shorten(name, MAX_NAME) for name in extra.keys() - _DEVICE_FIELDS if is_asked(name, extra[name]))
    if request.sampling.logit_bias and device is not None and any(not _is_same_vocabulary(device, server) for server in servers):
        found.append(_OTHER_VOCABULARY)
    if device is not None and device.capabilities.json_schema:
        found += _unkept_format(extra.get("response_format"))
    return found


def _unkept_format(response_format: object) -> list[str]:
    """Return the reason why a device can't constrain an answer to this format, as a list; [] if it can."""
    try:
        grammar_of(response_format)
    except ConfigError as exc:
        return [str(exc)]
    return []


def _is_same_vocabulary(device: Endpoint, server: Endpoint) -> bool:
    vocabulary = device.capabilities.vocabulary
    return vocabulary is not None and vocabulary == server.capabilities.vocabulary


def _counts(request: Request, device: Endpoint | None, servers: Sequence[Endpoint]) -> dict[str, int]:
    """Return the prompt's length by endpoint name. A fallback server counts it only if its context length is known."""
    found = {}
    for endpoint in (device, *servers):
        if endpoint is None or (endpoint in servers[1:] and endpoint.capabilities.context_tokens is None):
            continue
        tokens = endpoint.count_tokens(request)
        if tokens is not None:
            found[endpoint.name] = tokens
    return found


def _measure(request: Request, endpoints: Iterable[Endpoint | None], counts: Mapping[str, int] | None = None) -> TextCount | None:
    """Return the count of the first endpoint that has one, or else the first estimate, or None.

    Args:
        request: the request.
        endpoints: the endpoints to ask; None among them is skipped.
        counts: the counts by endpoint name, if they are already known; None asks each endpoint.
    """
    asked = [endpoint for endpoint in endpoints if endpoint is not None]
    for endpoint in asked:
        tokens = endpoint.count_tokens(request) if counts is None else counts.get(endpoint.name)
        if tokens is not None:
            known = endpoint.count_text("") if isinstance(endpoint, TextCounter) else None
            return TextCount(tokens, _OWN_TOKENIZER if known is None else known.counter)
    if request.prompt_ids is not None:
        return TextCount(len(request.prompt_ids), "token ids")
    guesses = (estimate_tokens(each, request) for each in asked)
    return next((TextCount(guess, ESTIMATE) for guess in guesses if guess is not None), None)


def _text_of(request: Request) -> tuple[str, list[str]]:
    """Return all text in a request, and the type and place of each part that isn't text (images, audio, files)."""
    if request.prompt is not None:
        return request.prompt, []
    texts, other_parts = [], []
    for index, message in enumerate(request.messages or ()):
        content: Any = message.get("content")
        if isinstance(content, str):
            texts.append(content)
        for place, part in enumerate(content if isinstance(content, list | tuple) else ()):
            if isinstance(part, Mapping) and part.get("type") == "text":
                texts.append(str(part.get("text", "")))
            else:
                other_parts.append(f"messages[{index}].content[{place}]: {_type_of(part)}")
    if tools := request.extra.get("tools"):
        texts.append(json.dumps(tools, default=str))
    return "\n".join(texts), other_parts


def _type_of(part: object) -> str:
    """Return the type of a part of a message, in words."""
    if not isinstance(part, Mapping):
        return f"{name_of(part)} in place of an object"
    kind = part.get("type")
    return f"type {shorten(kind, MAX_NAME)!r}" if isinstance(kind, str) else "no type"


def _logged_part(part: str) -> str:
    """Return a part's type and place in a form that may be logged: an unknown type may be private."""
    place, _, kind = part.partition(": ")
    is_known = not kind.startswith("type ") or kind.removeprefix("type ").strip("'") in _LOGGED_TYPES
    return part if is_known else f"{place}: a type that isn't known"
