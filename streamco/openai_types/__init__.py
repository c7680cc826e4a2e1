"""OpenAI's response types; endpoints, state machines and callers share the same objects.

A chunk is decoded once, at the wire, and passed on as the same object. Fields that OpenAI doesn't have but common servers send with each
token (``reasoning``, ``provider``, ``matched_stop`` ...) are optional fields here. If a server sends any other field, the object is an
instance of a subclass that has the field as an attribute (``with_further``), so ordinary chunks pay nothing for it. The chunk types refuse
unknown fields when they are decoded, because that costs nothing and shows which chunks have some. The types of whole answers and of usage
ignore them, so that the output of ``model_dump_json`` can be read back. Chunks have no cycles, so the garbage collector need not track them
(``gc=False``). Source: OpenAI API reference, chat/streaming; ``token_ids`` are as in vLLM's ``return_token_ids``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import field
from msgspec.structs import replace

from streamco.openai_types.logprobs import ChoiceLogprobs, TokenLogprobs, TopLogprob
from streamco.openai_types.response_model import ResponseModel, further_fields, with_further, without_further

__all__ = [
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatCompletionMessage",
    "Choice",
    "ChoiceDelta",
    "ChoiceLogprobs",
    "ChunkChoice",
    "CompletionTokensDetails",
    "CompletionUsage",
    "CustomCall",
    "CustomDelta",
    "FunctionCall",
    "FunctionDelta",
    "PromptTokensDetails",
    "ResponseModel",
    "TokenLogprobs",
    "ToolCall",
    "ToolCallDelta",
    "TopLogprob",
    "further_fields",
    "has_output",
    "with_further",
    "with_text",
    "without_further",
]

if TYPE_CHECKING:
    Logprobs = ChoiceLogprobs | None
else:
    Logprobs = Any  # decoded as plain data, and given its type afterwards


class FunctionDelta(ResponseModel, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """A piece of a tool call's function. The reader concatenates the pieces of ``arguments``."""

    openai_fields: ClassVar[tuple[str, ...]] = ("arguments", "name")

    name: str | None = None
    arguments: str | None = None


class CustomDelta(ResponseModel, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """A piece of a custom tool's call. The reader concatenates the pieces of ``input``."""

    openai_fields: ClassVar[tuple[str, ...]] = ("input", "name")

    name: str | None = None
    input: str | None = None


class ToolCallDelta(ResponseModel, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """A piece of one tool call; ``index`` is the number of the call in the answer.

    A function call has ``function``, and a call of a custom tool has ``custom``.
    """

    openai_fields: ClassVar[tuple[str, ...]] = ("index", "id", "function", "type")

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None


class ChoiceDelta(ResponseModel, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """The part of the message that one chunk adds; ``reasoning`` and ``reasoning_content`` are two names for the same text."""

    openai_fields: ClassVar[tuple[str, ...]] = ("audio", "content", "function_call", "refusal", "role", "tool_calls")

    content: str | None = None
    role: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None
    reasoning_details: Any = None  # OpenRouter and others; a message that is sent back must include them
    channel: Any = None  # Groq: gpt-oss marks its thinking
    audio: Any = None


class ChunkChoice(ResponseModel, gc=False, forbid_unknown_fields=True):
    """One choice of a chunk; ``token_ids`` are the ids of ``delta.content``, if the endpoint sends them.

    ``native_finish_reason`` comes from OpenRouter, ``content_filter_results`` from Azure, ``stop_reason`` from vLLM, ``matched_stop`` from
    SGLang.
    """

    openai_fields: ClassVar[tuple[str, ...]] = ("delta", "index", "finish_reason", "logprobs")
    sent_nulls: ClassVar[frozenset[str]] = frozenset({"finish_reason"})

    delta: ChoiceDelta = field(default_factory=ChoiceDelta)
    index: int = 0
    finish_reason: str | None = None
    logprobs: Logprobs = None
    token_ids: list[int] | None = None
    native_finish_reason: Any = None
    content_filter_results: Any = None
    stop_reason: Any = None
    matched_stop: Any = None

    def __post_init__(self) -> None:
        if type(self.logprobs) is dict:
            self.logprobs = ChoiceLogprobs(self.logprobs)


class PromptTokensDetails(ResponseModel, omit_defaults=True, gc=False):
    """Numbers of prompt tokens, by origin."""

    openai_fields: ClassVar[tuple[str, ...]] = ("audio_tokens", "cache_write_tokens", "cached_tokens", "image_tokens", "text_tokens")

    cached_tokens: int | None = None
    audio_tokens: int | None = None


class CompletionTokensDetails(ResponseModel, omit_defaults=True, gc=False):
    """Numbers of completion tokens, by use."""

    openai_fields: ClassVar[tuple[str, ...]] = (
        "accepted_prediction_tokens",
        "audio_tokens",
        "reasoning_tokens",
        "rejected_prediction_tokens",
        "text_tokens",
    )

    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    audio_tokens: int | None = None


class CompletionUsage(ResponseModel, gc=False):
    """The token counts of one request. A zero is a count, not a missing value.

    Args:
        cost: the price that the server states, in US dollars (OpenRouter's ``usage.cost``), or None. OpenAI doesn't have this field.
    """

    openai_fields: ClassVar[tuple[str, ...]] = (
        "completion_tokens",
        "prompt_tokens",
        "total_tokens",
        "completion_tokens_details",
        "prompt_tokens_details",
    )

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    cost: Any = None


class ChatCompletionChunk(ResponseModel, gc=False, forbid_unknown_fields=True):
    """One event of a streamed answer, in the shape of OpenAI's ``chat.completion.chunk``.

    ``provider`` is the server that OpenRouter used. ``obfuscation`` is random padding, so that an event's size gives nothing away; Mistral
    calls it ``p``. ``stream_options`` is LiteLLM's copy of the request's field.
    """

    openai_fields: ClassVar[tuple[str, ...]] = (
        "id",
        "choices",
        "created",
        "model",
        "object",
        "moderation",
        "obfuscation",
        "service_tier",
        "system_fingerprint",
        "usage",
    )

    id: str = ""
    choices: list[ChunkChoice] = field(default_factory=list)
    created: int = 0
    model: str = ""
    object: str = "chat.completion.chunk"
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    provider: Any = None
    obfuscation: Any = None
    p: Any = None
    stream_options: Any = None
    moderation: Any = None


class FunctionCall(ResponseModel):
    """A finished tool call's function; ``arguments`` is the JSON text as the model wrote it, unchecked."""

    openai_fields: ClassVar[tuple[str, ...]] = ("arguments", "name")

    name: str = ""
    arguments: str = ""


class CustomCall(ResponseModel):
    """A finished call of a custom tool; ``input`` is the text that the model wrote."""

    openai_fields: ClassVar[tuple[str, ...]] = ("input", "name")

    name: str = ""
    input: str = ""


class ToolCall(ResponseModel):
    """A finished tool call in a message. If ``type`` is "function", ``function`` is set; if it is "custom", ``custom`` is set."""

    openai_fields: ClassVar[tuple[str, ...]] = ("id", "type")

    id: str = ""
    function: FunctionCall | None = None
    type: str = "function"
    custom: CustomCall | None = None


class ChatCompletionMessage(ResponseModel):
    """The finished message of a choice.

    ``reasoning_content`` is the model's thinking, whatever the server calls it. If the server's name for it is ``reasoning``, that field
    has the same text. A dump has it only under the server's name, because a message that is sent back should use names that its server
    knows.
    """

    openai_fields: ClassVar[tuple[str, ...]] = ("content", "refusal", "role", "annotations", "audio", "function_call", "tool_calls")
    sent_nulls: ClassVar[frozenset[str]] = frozenset({"content"})

    content: str | None = None
    role: str = "assistant"
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None  # OpenAI's older form, before tool calls
    annotations: Any = None
    audio: Any = None
    reasoning: str | None = None
    reasoning_details: Any = None

    def _rename(self, dumped: dict[str, Any]) -> None:
        if self.reasoning is not None:
            dumped.pop("reasoning_content", None)  # the same text, under the name that the server doesn't use


class Choice(ResponseModel):
    """One finished choice of an answer."""

    openai_fields: ClassVar[tuple[str, ...]] = ("finish_reason", "index", "logprobs", "message")
    sent_nulls: ClassVar[frozenset[str]] = frozenset({"finish_reason"})

    message: ChatCompletionMessage
    index: int = 0
    finish_reason: str | None = None
    logprobs: Logprobs = None
    native_finish_reason: Any = None
    content_filter_results: Any = None
    stop_reason: Any = None
    matched_stop: Any = None

    def __post_init__(self) -> None:
        if type(self.logprobs) is dict:
            self.logprobs = ChoiceLogprobs(self.logprobs)


class ChatCompletion(ResponseModel):
    """A whole answer, in the shape of OpenAI's ``chat.completion``."""

    openai_fields: ClassVar[tuple[str, ...]] = (
        "id",
        "choices",
        "created",
        "model",
        "object",
        "metadata",
        "moderation",
        "service_tier",
        "system_fingerprint",
        "usage",
    )

    id: str = ""
    choices: list[Choice] = field(default_factory=list)
    created: int = 0
    model: str = ""
    object: str = "chat.completion"
    usage: CompletionUsage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    provider: Any = None


def has_output(delta: ChoiceDelta) -> bool:
    """Return True if a delta has anything that was generated, that is, any field besides the role, declared or not, that isn't empty."""
    if delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal or delta.function_call is not None:
        return True
    if delta.audio or delta.reasoning_details or delta.channel:
        return True
    return type(delta) is not ChoiceDelta and any(further_fields(delta).values())


def with_text(chunk: ChatCompletionChunk, text: str | None, field: str = "content") -> ChatCompletionChunk:
    """Return a copy of a chunk whose first choice's delta has ``text`` in the given field; the copy shares all other values."""
    choice = chunk.choices[0]
    return replace(chunk, choices=[replace(choice, delta=replace(choice.delta, **{field: text}))])
