"""Shapes that a client returns or takes: OpenAI's, those of token streams, and the interface of an endpoint of your own."""

from __future__ import annotations

from streamco.client.chat import Answer
from streamco.client.stream import Retracted, Settled, Token
from streamco.endpoints.base import Endpoint, EndpointStream, Request, TextCounter, WrittenStream
from streamco.openai_types import ChatCompletion, ChatCompletionChunk, ChoiceLogprobs, CompletionUsage, TokenLogprobs, TopLogprob
from streamco.policies.quality import AnswerFacts, ShadowPair

__all__ = [
    "Answer",
    "AnswerFacts",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChoiceLogprobs",
    "CompletionUsage",
    "Endpoint",
    "EndpointStream",
    "Request",
    "Retracted",
    "Settled",
    "ShadowPair",
    "TextCounter",
    "Token",
    "TokenLogprobs",
    "TopLogprob",
    "WrittenStream",
]
