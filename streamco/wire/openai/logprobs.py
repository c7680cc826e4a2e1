"""Log-probabilities of tokens, in the shape of OpenAI's chat completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["MAX_TOP_LOGPROBS", "UNLIKELY", "TokenLogprob", "chat_logprobs", "token_logprobs"]

MAX_TOP_LOGPROBS = 20  # alternatives of each token that a request may ask for, as at OpenAI

UNLIKELY = -9999.0  # log-probability that OpenAI sends for a token that is not among the most likely ones

TokenLogprob = tuple[int, float, list[tuple[int, float]]]
"""A token's id, its log-probability, and the likeliest (id, log-probability) in its place."""


def token_logprobs(ids: Sequence[int], probabilities: Iterable[tuple[int, float]] | None, count: int) -> list[TokenLogprob]:
    """Return the log-probabilities of a text's tokens.

    Args:
        ids: the tokens that make up the text.
        probabilities: (id, probability) in the place of the last token, best first; None: not known. Those of the others are never known.
        count: number of alternatives.
    """
    table = [(token, _log(probability)) for token, probability in probabilities or ()]
    found: list[TokenLogprob] = [(token, UNLIKELY, []) for token in ids[:-1]]
    return found + [(token, dict(table).get(token, UNLIKELY), table[:count]) for token in ids[-1:]]


def chat_logprobs(tokens: Iterable[TokenLogprob], detokenize: Callable[[Sequence[int]], bytes]) -> dict[str, Any]:
    """Return the ``logprobs`` of a choice."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = detokenize([token])
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    content = [{**entry(token, logprob), "top_logprobs": [entry(*other) for other in others]} for token, logprob, others in tokens]
    return {"content": content, "refusal": None}


def _log(probability: float) -> float:
    return max(math.log(probability), UNLIKELY) if probability > 0 else UNLIKELY
