"""Finds out what a server bills for an answer: the price that it states, or else the tokens that it counts.

Servers differ in where they count reasoning. These rules agree with recorded answers that came with a bill:

- In ``completion_tokens``: OpenAI, OpenRouter, DeepSeek and most others.
- Outside it, but in ``total_tokens``: xAI.
- Outside both: Gemini through Vercel's gateway, recognisable because there is more reasoning than completion.
"""

from __future__ import annotations

from typing import Any

from streamco.openai_types import CompletionUsage, further_fields

__all__ = ["billed_completion", "has_counted", "has_counted_prompt", "own_bill"]

_MAX_BILL = 1000.0  # US dollars; a million tokens of the most expensive models cost less. A higher bill for one answer is a defect
_MAX_REASONING = 1 << 17  # tokens outside the completion; no model has a larger reasoning budget
_TICK = 1e-10  # US dollars; xAI's unit


def own_bill(usage: CompletionUsage | None) -> float | None:
    """Return the price that the server itself states, in US dollars, or None if it states none or an impossible one.

    It reads ``cost`` (OpenRouter, Vercel and others), ``cost.total_cost`` (Perplexity) and ``cost_in_usd_ticks`` (xAI). Ticks of 0 don't
    count as a bill, because resellers of xAI's models send them.
    """
    if usage is None:
        return None
    told = usage.cost.get("total_cost") if isinstance(usage.cost, dict) else usage.cost
    cost = _number(told)
    if told is None and (ticks := _number(further_fields(usage).get("cost_in_usd_ticks"))):
        cost = ticks * _TICK
    return cost if cost is not None and 0 <= cost < _MAX_BILL else None


def has_counted(usage: CompletionUsage | None, tokens: int) -> bool:
    """Return True if a server has counted the tokens that it generated; zero doesn't count if any tokens arrived.

    Args:
        usage: the server's usage, or None if it sent none.
        tokens: tokens that arrived, as estimated by the client.
    """
    return usage is not None and (usage.completion_tokens > 0 or not tokens)


def has_counted_prompt(usage: CompletionUsage | None, tokens: int) -> bool:
    """Return True if a server has counted the prompt. A zero is valid only if the server generated nothing, because then it wasn't asked.

    The arguments are the same as for ``has_counted``.
    """
    return usage is not None and (usage.prompt_tokens > 0 or not (tokens or usage.completion_tokens))


def billed_completion(usage: CompletionUsage) -> int:
    """Return how many completion tokens are billed, including reasoning wherever the server counts it.

    Tokens that ``total_tokens`` has beyond the prompt and ``completion_tokens`` count as reasoning: as many as the server states, or up to
    131,072 if it states none.
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
