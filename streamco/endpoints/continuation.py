"""Builds requests that continue an answer which another endpoint began, in the form that the next endpoint understands.

Token ids are sent, packed (``token_transfer``) or plain, if they mean the same at both endpoints. Otherwise text is sent, and its end needs
care.

Tokenizers join the last space of a run to the next word, and merge the rest of the run into one token. So a line break and an indent
become different tokens at the end of a text than in the middle. What a model writes after these tokens is hardly ever what it would
otherwise have written. Many chat templates also trim the end of a message.

So all whitespace at the end is held back. The next endpoint writes it again, and ``BoundaryWhitespace`` removes it from the answer. It
removes known characters that the endpoint was never shown, so nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamco.endpoints.base import Capabilities, Continuation, PreCopy, Request
from streamco.errors import UsageError
from streamco.events import Partial, TokensReceived, common_prefix_length
from streamco.openai_types import ChunkChoice

__all__ = [
    "PREFILL_FIELD",
    "BoundaryWhitespace",
    "continue_request",
    "hand_over",
    "prefill_request",
    "split_trailing_whitespace",
]

PREFILL_FIELD = "prefill_only"  # a field of ``streamco serve``: docs/serve.md
# Fields that affect the output. A pre-copy's output is never read, and some of these cost money or contradict a limit of one token.
_OUTPUT_FIELDS = {
    "best_of",
    "function_call",
    "functions",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "min_tokens",
    "n",
    "parallel_tool_calls",
    "return_token_ids",
    "tool_choice",
    "tools",
    "top_logprobs",
}


def hand_over(request: Request, partial: Partial, capabilities: Capabilities) -> tuple[Request, str]:
    """Return a request for continuing after ``partial``, and the whitespace that the server will write again.

    If the prompt consists of ids, the answer's ids are appended to them; otherwise the answer's text is sent.

    Args:
        request: the request without its ``partial``; for the chat API, a text prompt must already be a message.
        partial: the answer's beginning. If none of it can be sent, the request begins the answer again.
        capabilities: the server's capabilities.

    Raises:
        UsageError: the server can't continue this answer.
    """
    ids = partial.ids
    if ids and request.prompt_ids is not None and capabilities.takes_token_ids and capabilities.vocabulary in {None, partial.vocabulary}:
        # The prompt's ids belong to the server's vocabulary, and so do the answer's.
        return msgspec.structs.replace(request, prompt_ids=[*request.prompt_ids, *ids]), ""
    text, held_whitespace = split_trailing_whitespace(partial.text)
    if not text:
        return request, held_whitespace
    return continue_request(
        request, text, "continue_final_message" if capabilities.continuation == "token_ids" else capabilities.continuation
    ), held_whitespace


def continue_request(request: Request, text: str, how: Continuation) -> Request:
    """Return the request with ``text`` as the beginning of its answer; the endpoint then sends the rest.

    A text prompt is extended by the text. A conversation gets one more message, in the form ``how``:

    - ``prefix``: a marked assistant message (Mistral, and DeepSeek at its beta URL).
    - ``continue_final_message``: the chat template leaves the message open (vLLM, SGLang, llama.cpp's server).

    Raises:
        UsageError: the endpoint can't continue a text, or the request has token ids instead of text.
    """
    if request.prompt_ids is not None:
        raise UsageError("continuation: expected messages or a text prompt, got token ids")
    if how not in {"prefix", "continue_final_message"}:
        raise UsageError(f"continuation: expected an endpoint that can continue text, got one with continuation {how!r}")
    if request.messages is None:
        return msgspec.structs.replace(request, prompt=(request.prompt or "") + text)
    message = {"role": "assistant", "content": text}
    if how == "prefix":
        return msgspec.structs.replace(request, messages=[*request.messages, {**message, "prefix": True}])
    extra = {**request.extra, "continue_final_message": True, "add_generation_prompt": False}
    return msgspec.structs.replace(request, messages=[*request.messages, message], extra=extra)


def prefill_request(request: Request, how: PreCopy) -> Request:
    """Return a request that makes a server read the prompt in advance and write at most one token.

    With ``append``, the request gets a field that ``streamco serve`` knows. With ``warm``, it asks an unmodified server with a prefix cache
    for one token. Both have a limit of one token, because a server that doesn't know the field must not write a whole answer.

    Args:
        request: the request to read.
        how: the server's way of reading a prompt in advance.

    Raises:
        UsageError: reading in advance has no effect at this endpoint.
    """
    if how == "none":
        raise UsageError("prefill_only: expected an endpoint that can read ahead, got one with pre_copy 'none'")
    extra = {name: value for name, value in request.extra.items() if name not in _OUTPUT_FIELDS}
    if how == "append":
        extra[PREFILL_FIELD] = True
    sampling = msgspec.structs.replace(request.sampling, max_tokens=1, stop=())
    return msgspec.structs.replace(request, extra=extra, sampling=sampling, prefill_only=False)


def split_trailing_whitespace(text: str) -> tuple[str, str]:
    """Split a text into the part to hand over and the whitespace at its end, which is held back."""
    kept = text.rstrip()
    return kept, text[len(kept) :]


class BoundaryWhitespace:
    """Removes whitespace that the reader already has from the beginning of a continued answer.

    Args:
        text: the whitespace that was held back; if "", nothing is removed.
    """

    __slots__ = ("_pending",)

    def __init__(self, text: str = "") -> None:
        self._pending = text

    @property
    def is_open(self) -> bool:
        """True if something may still be removed."""
        return bool(self._pending)

    def strip(self, event: TokensReceived) -> TokensReceived:
        """Return the event without whitespace that the reader already has. All text from the first different character on is new."""
        dropped = sum(self._trim(chunk.choices[:1]) for chunk in event.chunks)
        return TokensReceived(event.source, event.chunks, max(0, event.tokens - dropped), event.confidences[dropped:])

    def _trim(self, choices: Sequence[ChunkChoice]) -> int:
        """Shorten a chunk's choices; return the number of tokens that were removed completely.

        A shortened text loses its ids, because they would no longer match it.
        """
        dropped = 0
        for choice in choices:
            text = choice.delta.content
            if not self._pending or not text:
                continue
            shared = common_prefix_length(self._pending, text)
            self._pending = "" if shared < len(text) else self._pending[shared:]
            if shared:
                if shared == len(text):
                    dropped += len(choice.token_ids or (0,))
                    choice.logprobs = None  # the reader already has those of the tokens that first wrote this text
                choice.delta.content = text[shared:]
                choice.token_ids = None
        return dropped
