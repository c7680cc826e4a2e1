"""Facts of a request that decide which endpoints can serve it, and the length of its prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from streamco.client.arguments import ChatOptions
from streamco.endpoints.base import Endpoint, Request, TextCounter
from streamco.engines.llamacpp.json_schema import grammar_of
from streamco.errors import MAX_NAME, ConfigError, shorten
from streamco.events import TextCount
from streamco.policies.eligibility import RequestFacts
from streamco.wire.known_fields import FIELDS_WITHOUT_EFFECT, NEUTRAL_VALUES, is_asked

__all__ = ["count_prompt", "describe_request", "facts_for_log", "logged_field", "takes_long"]

_CHARACTERS_A_TOKEN = 4  # OpenAI's rule of thumb for English, if there is no tokenizer
_MESSAGE_OVERHEAD = 4  # tokens a chat template adds to a message
# Fields that a device keeps to, or that are checked by themselves
_DEVICE_FIELDS = frozenset(
    {"functions", "ignore_eos", "logprobs", "n", "parallel_tool_calls", "response_format", "tools", "top_logprobs"},
)
_OTHER_VOCABULARY = "logit_bias (its token ids are another vocabulary's)"
_FORMAT = "response_format"  # what is said of one begins with it
# Names that may be logged: those of OpenAI's API and of common servers. Others are the caller's own words.
_LOGGED_FIELDS = {*FIELDS_WITHOUT_EFFECT, *NEUTRAL_VALUES, *ChatOptions.__annotations__, "ignore_eos", _OTHER_VOCABULARY}
_SHORT = 4096  # characters; tokenising more takes over a millisecond


def takes_long(request: Request) -> bool:
    """Return True if finding the request's facts would block an event loop for more than a millisecond."""
    return request.extra.get("response_format") is not None or len(_text_of(request)[0]) > _SHORT


def describe_request(request: Request, device: Endpoint | None, servers: Sequence[Endpoint]) -> RequestFacts:
    """Return the facts of a request. Thread-safe.

    The prompt's length is the device's count, else the first server's, else an estimate.
    """
    text, has_images = _text_of(request)
    shape = request.extra.get("response_format")
    return RequestFacts(
        prompt_tokens=_count_tokens(request, device, servers, text),
        max_tokens=request.sampling.max_tokens,
        prompt_chars=len(text),
        task=request.task,
        has_images=has_images,
        has_tools=bool(request.extra.get("tools") or request.extra.get("functions")),
        has_json_schema=isinstance(shape, Mapping) and shape.get("type") not in (None, "text"),  # a type may be any JSON value
        choices=int(request.extra.get("n") or 1),
        server_fields=tuple(_server_fields(request, device, servers)),
    )


def facts_for_log(facts: RequestFacts) -> RequestFacts:
    """Return the facts without the caller's words, from which reasons are made that may be logged."""
    fields = tuple(dict.fromkeys(map(logged_field, facts.server_fields)))
    return facts if fields == facts.server_fields else replace(facts, server_fields=fields)


def logged_field(name: str) -> str:
    """Return a field's name as it may be logged: what is no known name is described, because it may be private."""
    if name in _LOGGED_FIELDS:
        return name
    return "a response_format that it can't follow" if name.startswith(_FORMAT) else "a field that isn't known"


def count_prompt(request: Request, device: Endpoint | None, servers: Sequence[Endpoint]) -> TextCount | None:
    """Return the prompt's length and what counted it; None: no endpoint can count it, such as one with images. Thread-safe.

    The count is the device's, unless the request has tools and the device can't use any; else that of the first server that knows one.
    """
    has_tools = bool(request.extra.get("tools") or request.extra.get("functions"))
    is_devices = device is not None and (device.capabilities.tools or not has_tools)
    for endpoint in (device if is_devices else None, *servers):
        tokens = None if endpoint is None else endpoint.count_tokens(request)
        if tokens is not None:
            known = endpoint.count_text("") if isinstance(endpoint, TextCounter) else None
            return TextCount(tokens, "estimate" if known is None else known.counter)
    return None


def _server_fields(request: Request, device: Endpoint | None, servers: Sequence[Endpoint]) -> list[str]:
    """Return the fields that a device can't keep to."""
    extra = request.extra
    found = sorted(shorten(name, MAX_NAME) for name in extra.keys() - _DEVICE_FIELDS if is_asked(name, extra[name]))
    if request.sampling.logit_bias and device is not None and any(not _is_same_vocabulary(device, server) for server in servers):
        found.append(_OTHER_VOCABULARY)
    if device is not None and device.capabilities.json_schema:
        found += _unkept_format(extra.get("response_format"))
    return found


def _unkept_format(response_format: object) -> list[str]:
    """Return why a device can't hold an answer to this format; []: it can."""
    try:
        grammar_of(response_format)
    except ConfigError as exc:
        return [str(exc)]
    return []


def _is_same_vocabulary(device: Endpoint, server: Endpoint) -> bool:
    vocabulary = device.capabilities.vocabulary
    return vocabulary is not None and vocabulary == server.capabilities.vocabulary


def _count_tokens(request: Request, device: Endpoint | None, servers: Sequence[Endpoint], text: str) -> int:
    for endpoint in (device, *servers[:1]):
        if endpoint is not None and (count := endpoint.count_tokens(request)) is not None:
            return count
    if request.prompt_ids is not None:
        return len(request.prompt_ids)
    return len(text) // _CHARACTERS_A_TOKEN + _MESSAGE_OVERHEAD * len(request.messages or ()) + 1


def _text_of(request: Request) -> tuple[str, bool]:
    """Return all text of a request, and True if the request holds anything else (images, audio, files)."""
    if request.prompt is not None:
        return request.prompt, False
    texts, has_more = [], False
    for message in request.messages or ():
        content: Any = message.get("content")
        if isinstance(content, str):
            texts.append(content)
        for part in content if isinstance(content, list | tuple) else ():
            if isinstance(part, Mapping) and part.get("type") == "text":
                texts.append(str(part.get("text", "")))
            else:
                has_more = True
    if tools := request.extra.get("tools"):
        texts.append(json.dumps(tools, default=str))
    return "\n".join(texts), has_more
