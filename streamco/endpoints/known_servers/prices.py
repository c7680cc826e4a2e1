"""Prices of common models, used for cost estimates if the caller gives no prices.

Source: litellm 1.109.1, model_prices_and_context_window_backup.json (MIT licence), November 2026. Prices change: pass ``prices=`` if money
depends on them.
"""

from __future__ import annotations

from streamco.endpoints.base import TokenPrices

__all__ = ["UNKNOWN", "find_prices"]

UNKNOWN = TokenPrices()

# US dollars per million tokens: prompt, completion, cached prompt.
_PER_MILLION: dict[str, dict[str, tuple[float, float, float | None]]] = {
    "openai": {
        "gpt-4.1": (2.0, 8.0, 0.5),
        "gpt-4.1-mini": (0.4, 1.6, 0.1),
        "gpt-4.1-nano": (0.1, 0.4, 0.025),
        "gpt-4o": (2.5, 10.0, 1.25),
        "gpt-4o-mini": (0.15, 0.6, 0.075),
        "gpt-5": (1.25, 10.0, 0.125),
        "gpt-5-mini": (0.25, 2.0, 0.025),
        "gpt-5-nano": (0.05, 0.4, 0.005),
        "gpt-5.1": (1.25, 10.0, 0.125),
        "gpt-5.2": (1.75, 14.0, 0.175),
        "gpt-5.4": (2.5, 15.0, 0.25),
        "gpt-5.4-mini": (0.75, 4.5, 0.075),
        "gpt-5.4-nano": (0.2, 1.25, 0.02),
        "gpt-5.5": (5.0, 30.0, 0.5),
        "o3": (2.0, 8.0, 0.5),
        "o3-mini": (1.1, 4.4, 0.55),
        "o4-mini": (1.1, 4.4, 0.275),
    },
    "deepseek": {
        "deepseek-chat": (0.28, 0.42, 0.028),
        "deepseek-reasoner": (0.28, 0.42, 0.028),
    },
    "mistral": {
        "mistral-large-latest": (0.5, 1.5, 0.05),
        "mistral-medium-latest": (1.5, 7.5, 0.15),
        "mistral-small-latest": (0.15, 0.6, 0.015),
    },
    "perplexity": {
        "sonar": (1.0, 1.0, None),
        "sonar-pro": (3.0, 15.0, None),
    },
}


def find_prices(provider: str, model: str) -> TokenPrices:
    """Return the prices of exactly this model at this provider; all None if they aren't known.

    Azure isn't included, because a deployment there may have any name.
    """
    known = _PER_MILLION.get(provider, {}).get(model)
    if known is None:
        return UNKNOWN
    prompt, completion, cached = (None if price is None else price / 1e6 for price in known)
    return TokenPrices(prompt=prompt, completion=completion, cached_prompt=cached)
