"""A request that goes on with an answer somebody else has begun, in the form its endpoint understands."""

from __future__ import annotations

import msgspec

from streamco.endpoints.base import Continuation, Request
from streamco.errors import UsageError

__all__ = ["continue_request"]


def continue_request(request: Request, text: str, how: Continuation) -> Request:
    """The same request with ``text`` as the beginning of its answer; the endpoint then sends what comes after it.

    ``prefix``: the last message is the assistant's and marked (DeepSeek, where it goes to the beta URL, and Mistral).
    ``continue_final_message``: it is not closed by the chat template (vLLM, SGLang, llama.cpp's server). A text prompt simply grows.

    Raises:
        UsageError: the endpoint can't go on with text, or the request has token ids in place of text.
    """
    if request.prompt_ids is not None:
        raise UsageError("continuation: expected messages or a text prompt, got token ids")
    if how not in {"prefix", "continue_final_message"}:
        raise UsageError(f"continuation: expected an endpoint that can go on with text, got one with continuation {how!r}")
    if request.messages is None:
        return msgspec.structs.replace(request, prompt=(request.prompt or "") + text)
    message = {"role": "assistant", "content": text}
    if how == "prefix":
        return msgspec.structs.replace(request, messages=[*request.messages, {**message, "prefix": True}])
    extra = {**request.extra, "continue_final_message": True, "add_generation_prompt": False}
    return msgspec.structs.replace(request, messages=[*request.messages, message], extra=extra)
