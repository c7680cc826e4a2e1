"""Log-probabilities of tokens, in the format of OpenAI's chat completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from streamco.openai_types import ChoiceLogprobs

__all__ = ["MAX_TOP_LOGPROBS", "UNLIKELY", "TokenLogprob", "chat_logprobs", "token_logprobs"]

MAX_TOP_LOGPROBS = 20  # alternatives for each token that a request may ask for, as in OpenAI's API

UNLIKELY = -9999.0  # log-probability that OpenAI sends for a token that isn't among the most likely ones

Top = Sequence[tuple[int, float]]
TokenLogprob = tuple[int, float | None, list[tuple[int, float]]]
"""A token's id, its log-probability (None if not known), and the likeliest tokens at its position as (id, log-probability)."""


def token_logprobs(ids: Sequence[int], tops: Sequence[Top] | None, count: int) -> list[TokenLogprob]:
    """Return the log-probabilities of a text's tokens.

    Args:
        ids: the tokens that make up the text.
        tops: for each token, the candidates at its position as (id, probability), best first. A token that isn't among them counts as
            unlikely. None if no candidates are known.
        count: number of alternatives to return for each token.
    """
    if tops is None:
        return [(token, None, []) for token in ids]
    return [_token_logprob(token, top, count) for token, top in zip(ids, tops, strict=True)]


def _token_logprob(token: int, top: Top, count: int) -> TokenLogprob:
    table = [(each, _log(probability)) for each, probability in top]
    return token, dict(table).get(token, UNLIKELY), table[:count]


def chat_logprobs(tokens: Iterable[TokenLogprob], detokenize: Callable[[Sequence[int]], bytes]) -> ChoiceLogprobs:
    """Build the ``logprobs`` field of a choice. A log-probability that isn't known is None."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        data = detokenize([token])
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    content = [{**entry(token, logprob), "top_logprobs": [entry(*other) for other in others]} for token, logprob, others in tokens]
    return ChoiceLogprobs(content=content, refusal=None)


def _log(probability: float) -> float:
    return max(math.log(probability), UNLIKELY) if probability > 0 else UNLIKELY
