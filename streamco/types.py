"""Types that a client returns or accepts: OpenAI's responses, token streams, and the interface for writing your own endpoint."""

from __future__ import annotations

from streamco.client.chat_events import (
    ChatEvent,
    ChatEventStream,
    ChunkEvent,
    ContentDeltaEvent,
    ContentDoneEvent,
    FunctionToolCallArgumentsDeltaEvent,
    FunctionToolCallArgumentsDoneEvent,
    LogprobsContentDeltaEvent,
    LogprobsContentDoneEvent,
    LogprobsRefusalDeltaEvent,
    LogprobsRefusalDoneEvent,
    RefusalDeltaEvent,
    RefusalDoneEvent,
)
from streamco.client.stream import Retracted, Settled, Token
from streamco.client.sync_client import SyncChatStream, SyncEventStream, SyncStream
from streamco.client.whole_answer import Answer, ParsedAnswer, ParsedChoice, ParsedMessage
from streamco.endpoints.base import Endpoint, EndpointStream, Request, TextCounter, WrittenStream
from streamco.openai_types import ChatCompletion, ChatCompletionChunk, ChoiceLogprobs, CompletionUsage, TokenLogprobs, TopLogprob
from streamco.policies.quality import AnswerFacts, ShadowPair

__all__ = [
    "Answer",
    "AnswerFacts",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatEvent",
    "ChatEventStream",
    "ChoiceLogprobs",
    "ChunkEvent",
    "CompletionUsage",
    "ContentDeltaEvent",
    "ContentDoneEvent",
    "Endpoint",
    "EndpointStream",
    "FunctionToolCallArgumentsDeltaEvent",
    "FunctionToolCallArgumentsDoneEvent",
    "LogprobsContentDeltaEvent",
    "LogprobsContentDoneEvent",
    "LogprobsRefusalDeltaEvent",
    "LogprobsRefusalDoneEvent",
    "ParsedAnswer",
    "ParsedChoice",
    "ParsedMessage",
    "RefusalDeltaEvent",
    "RefusalDoneEvent",
    "Request",
    "Retracted",
    "Settled",
    "ShadowPair",
    "SyncChatStream",
    "SyncEventStream",
    "SyncStream",
    "TextCounter",
    "Token",
    "TokenLogprobs",
    "TopLogprob",
    "WrittenStream",
]
