"""OpenAI's response types; endpoints, machines and callers share the same objects.

A chunk is decoded once, at the wire, and passed on as the same object. Fields that OpenAI does not have but real servers send
(``reasoning``, ``reasoning_content``, ``token_ids``) are optional fields here. Unknown fields are dropped. Chunks hold no cycles, so the
garbage collector need not track them (``gc=False``). Source: OpenAI API reference, chat/streaming; ``token_ids`` as vLLM's
``return_token_ids``.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

__all__ = [
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatCompletionMessage",
    "Choice",
    "ChoiceDelta",
    "ChunkChoice",
    "CompletionTokensDetails",
    "CompletionUsage",
    "FunctionCall",
    "FunctionDelta",
    "PromptTokensDetails",
    "ToolCall",
    "ToolCallDelta",
]


class FunctionDelta(Struct, omit_defaults=True, gc=False):
    """A piece of a tool call's function: the reader concatenates the pieces of ``arguments``."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(Struct, omit_defaults=True, gc=False):
    """A piece of one tool call; ``index`` None: the server left it out."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class ChoiceDelta(Struct, omit_defaults=True, gc=False):
    """The part of the message that one chunk adds; ``reasoning`` and ``reasoning_content`` are two names for the same text."""

    content: str | None = None
    role: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChunkChoice(Struct, gc=False):
    """One choice of a chunk; ``token_ids``: the ids of ``delta.content``, if the endpoint sends them."""

    delta: ChoiceDelta = field(default_factory=ChoiceDelta)
    index: int = 0
    finish_reason: str | None = None
    logprobs: Any = None
    token_ids: list[int] | None = None


class PromptTokensDetails(Struct, omit_defaults=True, gc=False):
    """Prompt tokens by origin, in tokens."""

    cached_tokens: int | None = None
    audio_tokens: int | None = None


class CompletionTokensDetails(Struct, omit_defaults=True, gc=False):
    """Completion tokens by use, in tokens."""

    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    audio_tokens: int | None = None


class CompletionUsage(Struct, gc=False):
    """Tokens of one request; an explicit zero is a count, not a missing value."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class ChatCompletionChunk(Struct, gc=False):
    """One event of a streamed answer, in the shape of OpenAI's ``chat.completion.chunk``."""

    id: str = ""
    choices: list[ChunkChoice] = field(default_factory=list)
    created: int = 0
    model: str = ""
    object: str = "chat.completion.chunk"
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class FunctionCall(Struct):
    """A finished tool call's function; ``arguments`` is the JSON text that the model wrote, not checked."""

    name: str = ""
    arguments: str = ""


class ToolCall(Struct):
    """A finished tool call of a message."""

    id: str = ""
    function: FunctionCall = field(default_factory=FunctionCall)
    type: str = "function"


class ChatCompletionMessage(Struct):
    """The finished message of a choice."""

    content: str | None = None
    role: str = "assistant"
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(Struct):
    """One finished choice of an answer."""

    message: ChatCompletionMessage
    index: int = 0
    finish_reason: str | None = None
    logprobs: Any = None


class ChatCompletion(Struct):
    """A whole answer, in the shape of OpenAI's ``chat.completion``."""

    id: str = ""
    choices: list[Choice] = field(default_factory=list)
    created: int = 0
    model: str = ""
    object: str = "chat.completion"
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
