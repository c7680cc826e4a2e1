"""Estimates the number of tokens in streamed text, for servers that don't send token ids."""

from __future__ import annotations

from streamco.openai_types import ChoiceDelta, further_fields

__all__ = ["ONE_TOKEN", "estimate_delta", "estimate_tokens", "is_text"]

ONE_TOKEN = 10  # characters; a piece up to this length counts as one token
_BYTES_A_TOKEN = 4  # UTF-8 bytes per token in longer pieces; OpenAI's rule of thumb, and a CJK character has 3 bytes


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens in a piece of streamed text.

    The estimate is 0 for no text, 1 for up to 10 characters, and otherwise one token for every 4 bytes of UTF-8. Most servers send one
    token in each event. Some bundle tokens (Mistral, Gemini, Anthropic through gateways) and send longer pieces. Over 114 recorded streams
    whose usage includes no hidden reasoning, the median error for a whole answer is 16 %. Other limits (8 to 24 characters) and ratios
    (3.5 to 5 bytes per token) do no better.
    """
    if len(text) <= ONE_TOKEN:
        return 1 if text else 0
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return -(-size // _BYTES_A_TOKEN)


def estimate_delta(delta: ChoiceDelta) -> int:
    """Estimate the number of tokens in a delta: content, reasoning (one text under two names), refusal and tool calls."""
    texts = [delta.content, delta.reasoning_content or delta.reasoning, delta.refusal]
    if delta.function_call is not None:
        texts += delta.function_call.name, delta.function_call.arguments
    for call in delta.tool_calls or ():
        if call.function is not None:
            texts += call.function.name, call.function.arguments
        if call.custom is not None:
            texts += call.custom.name, call.custom.input
    tokens = 0
    for text in texts:
        if text:
            tokens += 1 if len(text) <= ONE_TOKEN else estimate_tokens(text)
    return tokens


def is_text(delta: ChoiceDelta) -> bool:
    """Return True if a delta holds only text, or nothing. Labels don't count."""
    if delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls or delta.function_call:
        return False
    return not (delta.audio or delta.reasoning_details or any(isinstance(item, dict | list) for item in further_fields(delta).values()))
