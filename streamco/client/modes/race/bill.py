"""What a server bills for an answer: its own bill if it sends one, else the tokens that it counts.

Servers differ in where reasoning is counted. Recorded with a bill beside them, which these rules meet:

- In ``completion_tokens``: OpenAI, OpenRouter, DeepSeek and most others.
- Outside of it, in ``total_tokens``: xAI.
- Outside of both: Gemini by Vercel's gateway. More reasoning than completion shows it.
"""

from __future__ import annotations

from typing import Any

from streamco.openai_types import CompletionUsage, further_fields

__all__ = ["billed_completion", "has_counted", "has_counted_prompt", "own_bill"]

_MAX_BILL = 1000.0  # US dollars; a million tokens of the dearest models cost less. What claims more for one answer is a defect
_MAX_REASONING = 1 << 17  # tokens outside the completion; no model has a larger reasoning budget
_TICK = 1e-10  # US dollars; xAI's unit


def own_bill(usage: CompletionUsage | None) -> float | None:
    """Return the US dollars that the server itself says it bills; None: it doesn't say, or nothing that can be.

    Read are ``cost`` (OpenRouter, Vercel and others), ``cost.total_cost`` (Perplexity) and ``cost_in_usd_ticks`` (xAI). Ticks of 0 are no
    bill, because resellers of xAI's models send them.
    """
    if usage is None:
        return None
    told = usage.cost.get("total_cost") if isinstance(usage.cost, dict) else usage.cost
    cost = _number(told)
    if told is None and (ticks := _number(further_fields(usage).get("cost_in_usd_ticks"))):
        cost = ticks * _TICK
    return cost if cost is not None and 0 <= cost < _MAX_BILL else None


def has_counted(usage: CompletionUsage | None, tokens: int) -> bool:
    """Return True if a server has counted the tokens that it made: zero is no count of an answer of which something came.

    Args:
        usage: the server's usage; None: it sent none.
        tokens: tokens that came, by this side's estimate.
    """
    return usage is not None and (usage.completion_tokens > 0 or not tokens)


def has_counted_prompt(usage: CompletionUsage | None, tokens: int) -> bool:
    """Return True if a server has counted the prompt that it read: zero is a count only if it made nothing, because it was not asked.

    The arguments are those of ``has_counted``.
    """
    return usage is not None and (usage.prompt_tokens > 0 or not (tokens or usage.completion_tokens))


def billed_completion(usage: CompletionUsage) -> int:
    """Return the completion tokens that are billed, reasoning included wherever the server counts it.

    Tokens outside of ``completion_tokens`` are believed up to the reasoning that the server names. If it names none they are believed up to
    131,072.
    """
    completion = max(0, usage.completion_tokens)
    details = usage.completion_tokens_details
    reasoning = (details.reasoning_tokens or 0) if details else 0
    if reasoning > completion:
        outside = reasoning
    else:
        outside = usage.total_tokens - usage.prompt_tokens - completion
        outside = min(outside, reasoning) if reasoning > 0 else outside
    return completion + outside if 0 < outside <= _MAX_REASONING else completion


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None
