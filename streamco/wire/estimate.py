"""How many tokens a piece of an answer stands for when the server doesn't tell their ids.

Servers mostly send one token an event; those that bundle tokens (Mistral, Gemini, Anthropic behind gateways) send longer pieces, which
are taken for several. Over 114 recorded streams whose usage hides no reasoning, the median error of a whole answer is 16 %; other lengths
(8 to 24) and sizes (3.5 to 5) do no better.
"""

from __future__ import annotations

from streamco.openai_types import ChoiceDelta

__all__ = ["ONE_TOKEN", "estimate_delta", "estimate_tokens"]

ONE_TOKEN = 10  # characters: a piece up to this long counts as one token
_BYTES_A_TOKEN = 4  # UTF-8 bytes of a token in longer pieces; OpenAI's rule of thumb, and a CJK character is 3 bytes


def estimate_tokens(text: str) -> int:
    """Tokens in a piece of streamed text: 1 up to 10 characters, else one for every 4 bytes of UTF-8; 0 for none."""
    if len(text) <= ONE_TOKEN:
        return 1 if text else 0
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return -(-size // _BYTES_A_TOKEN)


def estimate_delta(delta: ChoiceDelta) -> int:
    """Tokens in everything a delta holds: content, reasoning (under two names it is one text), refusal, tool calls."""
    tokens = estimate_tokens(delta.content or "") + estimate_tokens(delta.reasoning_content or delta.reasoning or "")
    tokens += estimate_tokens(delta.refusal or "")
    functions = [call.function for call in delta.tool_calls or ()]
    for function in (*functions, delta.function_call):
        if function is not None:
            tokens += estimate_tokens(function.name or "") + estimate_tokens(function.arguments or "")
    return tokens
