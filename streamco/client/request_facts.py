"""Facts of a request that decide which endpoints can serve it, and the length of its prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from streamco.endpoints.base import Endpoint, Request
from streamco.policies.eligibility import RequestFacts

__all__ = ["describe_request", "takes_long"]

_CHARACTERS_A_TOKEN = 4  # OpenAI's rule of thumb for English, if there is no tokenizer
_MESSAGE_OVERHEAD = 4  # tokens a chat template adds to a message
_SHORT = 4096  # characters; tokenising more takes over a millisecond


def takes_long(request: Request) -> bool:
    """Return True if counting the prompt's tokens would block an event loop for more than a millisecond."""
    return len(_text_of(request)[0]) > _SHORT


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
        has_images=has_images,
        has_tools=bool(request.extra.get("tools") or request.extra.get("functions")),
        has_json_schema=isinstance(shape, Mapping) and shape.get("type") not in {None, "text"},
        choices=int(request.extra.get("n") or 1),
    )


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
