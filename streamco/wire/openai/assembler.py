"""Assembles a whole completion from its chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from streamco.openai_types import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    Choice,
    ChoiceDelta,
    ChunkChoice,
    CompletionUsage,
    CustomCall,
    FunctionCall,
    ResponseModel,
    ToolCall,
    ToolCallDelta,
    further_fields,
    with_further,
)
from streamco.wire.openai.further_parts import FurtherParts, join_items
from streamco.wire.openai.tool_calls import CallParts, ToolCalls

__all__ = ["CompletionAssembler", "assemble"]

_Model = TypeVar("_Model", bound=ResponseModel)


class CompletionAssembler:
    """Collects the chunks of one answer. You can call ``completion`` at any time, even if the answer broke off."""

    def __init__(self) -> None:
        self._first: ChatCompletionChunk | None = None
        self._usage: CompletionUsage | None = None
        self._fingerprint: str | None = None
        self._tier: str | None = None
        self._provider: Any = None
        self._further = FurtherParts(are_deltas=False)
        self._choices: dict[int, _ChoiceParts] = {}

    def add(self, chunk: ChatCompletionChunk) -> None:
        """Add the next chunk."""
        if self._first is None or (not self._first.id and chunk.id):
            self._first = chunk
        if chunk.usage is not None:
            self._usage = chunk.usage
        self._fingerprint = chunk.system_fingerprint or self._fingerprint
        self._tier = chunk.service_tier or self._tier
        self._provider = chunk.provider or self._provider
        for name in _CHUNK_PROVIDED:
            if (value := getattr(chunk, name)) is not None:
                self._further.add({name: value})
        if further := further_fields(chunk):
            self._further.add(further)
        for choice in chunk.choices:
            parts = self._choices.get(choice.index)
            if parts is None:
                parts = self._choices[choice.index] = _ChoiceParts()
            parts.add(choice)

    def completion(self) -> ChatCompletion:
        """Return the answer so far, with its choices ordered by index."""
        first = self._first or ChatCompletionChunk()
        completion = ChatCompletion(
            id=first.id,
            choices=[self._choices[index].choice(index) for index in sorted(self._choices)],
            created=first.created,
            model=first.model,
            usage=self._usage,
            system_fingerprint=self._fingerprint,
            service_tier=self._tier,
            provider=self._provider,
        )
        return _complete(completion, self._further)


def _complete(whole: _Model, further: FurtherParts, *, dropping: tuple[str, ...] = (), keeps_numbers: bool = True) -> _Model:
    """Add a server's additional fields to an assembled object. Fields that the object declares are only set if they have no value yet.

    Args:
        whole: the assembled object.
        further: the collected additional fields.
        dropping: names of fields to leave out.
        keeps_numbers: False leaves out numbers and booleans, which in a delta are about one token (``token_id``), not the message.
    """
    found = {
        name: value
        for name, value in further.joined().items()
        if name not in dropping and (keeps_numbers or not isinstance(value, int | float))
    }
    for name in found.keys() & set(whole.__struct_fields__):
        value = found.pop(name)
        if getattr(whole, name) is None:
            setattr(whole, name, value)
    return with_further(whole, found)


def assemble(chunks: Iterable[ChatCompletionChunk]) -> ChatCompletion:
    """Assemble chunks into a completion."""
    assembler = CompletionAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler.completion()


_CHUNK_PROVIDED = ("stream_options", "moderation")
_DELTA_PROVIDED = ("channel", "audio")
_PROVIDED = ("native_finish_reason", "content_filter_results", "stop_reason", "matched_stop")


class _ChoiceParts:
    """The pieces of one choice so far. They are joined only once, at the end."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.has_content = False
        self.role = "assistant"
        self.finish_reason: str | None = None
        self.logprobs: Any = None
        self.calls = ToolCalls()
        self.function = ToolCalls()  # at most one
        self.names_it_reasoning = False
        self.reasoning_details: list[list[Any]] = []
        self.provided = FurtherParts(are_deltas=False)
        self.further = FurtherParts(are_deltas=False)
        self.delta_further = FurtherParts(are_deltas=True)

    def add(self, choice: ChunkChoice) -> None:
        delta = choice.delta
        if delta.content is not None:
            self.has_content = True
            self.content.append(delta.content)
        thinking = delta.reasoning_content or delta.reasoning  # two names for one text; a server uses one of them
        if thinking:
            self.names_it_reasoning = not delta.reasoning_content and (self.names_it_reasoning or not self.reasoning)
            self.reasoning.append(thinking)
        if delta.refusal:
            self.refusal.append(delta.refusal)
        self.role = delta.role or self.role
        self.finish_reason = choice.finish_reason or self.finish_reason
        if choice.logprobs is not None:
            self._add_logprobs(choice.logprobs)
        self._add_calls(delta)
        self._add_provided(choice)

    def _add_provided(self, choice: ChunkChoice) -> None:
        """Add fields that only some servers send."""
        for name in _PROVIDED:
            if (value := getattr(choice, name)) is not None:
                self.provided.add({name: value})
        if further := further_fields(choice):
            self.further.add(further)
        delta = choice.delta
        if isinstance(delta.reasoning_details, list):
            self.reasoning_details.append(delta.reasoning_details)
        for name in _DELTA_PROVIDED:
            if (value := getattr(delta, name)) is not None:
                self.delta_further.add({name: value})
        if further := further_fields(delta):
            self.delta_further.add(further)

    def _add_logprobs(self, new: Any) -> None:
        """Append to the lists in ``content``, ``refusal`` (chat) or ``tokens``, ``token_logprobs`` ... (completions)."""
        if not isinstance(new, dict) or not isinstance(self.logprobs, dict | None):
            self.logprobs = new
            return
        self.logprobs = known = self.logprobs or {}
        for key, value in new.items():
            if isinstance(value, list) and isinstance(known.get(key), list):
                known[key] += value
            elif value is not None or key not in known:
                known[key] = list(value) if isinstance(value, list) else value

    def _add_calls(self, delta: ChoiceDelta) -> None:
        for call in delta.tool_calls or ():
            self.calls.add(call)
        if delta.function_call is not None:  # the form before tools: a single function call without id
            self.function.add(ToolCallDelta(index=0, function=delta.function_call))

    def choice(self, index: int) -> Choice:
        calls = [_tool_call(call, is_whole=self.finish_reason is not None) for call in self.calls.calls]
        functions = [_tool_call(call, is_whole=False).function for call in self.function.calls]
        content, thinking = "".join(self.content), "".join(self.reasoning) or None
        message = ChatCompletionMessage(
            content=content if content or (self.has_content and not calls and not functions) else None,
            role=self.role,
            refusal="".join(self.refusal) or None,
            reasoning_content=thinking,
            reasoning=thinking if self.names_it_reasoning else None,
            reasoning_details=join_items(self.reasoning_details) if self.reasoning_details else None,
            tool_calls=calls or None,
            function_call=functions[0] if functions else None,
        )
        message = _complete(message, self.delta_further, keeps_numbers=False)
        choice = Choice(message=message, index=index, finish_reason=self.finish_reason, logprobs=self.logprobs)
        return _complete(_complete(choice, self.provided), self.further, dropping=("text",))


def _tool_call(call: CallParts, *, is_whole: bool) -> ToolCall:
    """Assemble a call from its parts. A complete call without arguments gets an empty object, as in answers that are not streamed."""
    text = "".join(call.arguments)
    if call.is_custom:
        custom = _complete(CustomCall(call.name, text), call.function_further)
        return _complete(ToolCall(call.id, type=call.kind or "custom", custom=custom), call.further)
    function = _complete(FunctionCall(call.name, text or ("{}" if is_whole else "")), call.function_further)
    return _complete(ToolCall(call.id, function, call.kind or "function"), call.further)
