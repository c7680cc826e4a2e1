"""Finds out how sure a server's model was of its tokens, from the log-probabilities in its answer (OpenAI's chat completions)."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp

from streamco.core.confidence import ends_sentence
from streamco.events import TokenConfidence
from streamco.openai_types import ChatCompletionChunk

__all__ = ["take_confidences"]


def take_confidences(chunks: Iterable[ChatCompletionChunk], *, strips: bool) -> tuple[TokenConfidence, ...]:
    """Return how sure the model was of each token of the first choice, except reasoning and tokens without a log-probability.

    Args:
        chunks: some chunks of the answer, in order.
        strips: True to remove the log-probabilities, because the caller hasn't requested them.
    """
    found = []
    for chunk in chunks:
        for choice in chunk.choices:
            content = choice.logprobs.get("content") if isinstance(choice.logprobs, dict) and choice.index == 0 else None
            if (choice.delta.reasoning_content or choice.delta.reasoning) and not choice.delta.content:
                content = None
            for entry in content if isinstance(content, list) else ():
                logprob = entry.get("logprob") if isinstance(entry, dict) else None
                if isinstance(logprob, int | float) and logprob <= 0.0:
                    found.append(TokenConfidence(exp(logprob), ends_sentence(str(entry.get("token") or ""))))
            if strips:
                choice.logprobs = None
    return tuple(found)
