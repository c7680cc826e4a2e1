"""The stream that ``client.chat.completions.stream`` returns: it gives an answer as the events of OpenAI's helper, then as a whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Literal, Self, TypeAlias

from msgspec import Struct

from streamco.client.response_schema import read_partly
from streamco.client.stream import ChatStream
from streamco.client.whole_answer import Answer, ParsedAnswer, ParsedT, check_end, read_answer, read_content, whole_answer
from streamco.core.report import Report
from streamco.core.report_parts import AnswerUsage
from streamco.openai_types import ChatCompletion, ChatCompletionChunk, Choice, ChunkChoice, TokenLogprobs, ToolCallDelta
from streamco.wire.openai.assembler import CompletionAssembler
from streamco.wire.openai.tool_calls import ToolCalls, arguments_of

__all__ = [
    "ChatEvent",
    "ChatEventStream",
    "ChunkEvent",
    "ContentDeltaEvent",
    "ContentDoneEvent",
    "FunctionToolCallArgumentsDeltaEvent",
    "FunctionToolCallArgumentsDoneEvent",
    "LogprobsContentDeltaEvent",
    "LogprobsContentDoneEvent",
    "LogprobsRefusalDeltaEvent",
    "LogprobsRefusalDoneEvent",
    "RefusalDeltaEvent",
    "RefusalDoneEvent",
]


class ChunkEvent:
    """A chunk as it arrived; the other events say what it adds."""

    type: Literal["chunk"] = "chunk"

    def __init__(self, chunk: ChatCompletionChunk, assembler: CompletionAssembler) -> None:
        self.chunk = chunk
        self._assembler = assembler

    @property
    def snapshot(self) -> ChatCompletion:
        """The answer so far. It is assembled on each access, so reading it for every chunk takes longer and longer."""
        return self._assembler.completion()


class ContentDeltaEvent(Struct, frozen=True, kw_only=True):
    """A piece of the text.

    Args:
        delta: the piece.
        snapshot: the text so far.
        parsed: the JSON so far as plain data, if a class was requested; None if there is nothing yet.
    """

    delta: str
    snapshot: str
    parsed: object | None = None
    type: Literal["content.delta"] = "content.delta"


class ContentDoneEvent(Struct, Generic[ParsedT], frozen=True, kw_only=True):
    """The whole text, and the object parsed from it if a class was requested."""

    content: str
    parsed: ParsedT | None = None
    type: Literal["content.done"] = "content.done"


class RefusalDeltaEvent(Struct, frozen=True, kw_only=True):
    """A piece of a refusal, and the refusal so far."""

    delta: str
    snapshot: str
    type: Literal["refusal.delta"] = "refusal.delta"


class RefusalDoneEvent(Struct, frozen=True, kw_only=True):
    """The whole text of a refusal."""

    refusal: str
    type: Literal["refusal.done"] = "refusal.done"


class FunctionToolCallArgumentsDeltaEvent(Struct, frozen=True, kw_only=True):
    """A piece of a function call's arguments.

    Args:
        name: the function's name so far.
        index: number of the call in the answer.
        arguments: the JSON text so far.
        arguments_delta: the piece.
    """

    name: str
    index: int
    arguments: str
    arguments_delta: str
    type: Literal["tool_calls.function.arguments.delta"] = "tool_calls.function.arguments.delta"


class FunctionToolCallArgumentsDoneEvent(Struct, frozen=True, kw_only=True):
    """A complete function call: its name, its number in the answer, and the JSON text of its arguments."""

    name: str
    index: int
    arguments: str
    type: Literal["tool_calls.function.arguments.done"] = "tool_calls.function.arguments.done"


class LogprobsContentDeltaEvent(Struct, frozen=True, kw_only=True):
    """Log-probabilities of the newest tokens of the text, and of all its tokens so far."""

    content: list[TokenLogprobs]
    snapshot: list[TokenLogprobs]
    type: Literal["logprobs.content.delta"] = "logprobs.content.delta"


class LogprobsContentDoneEvent(Struct, frozen=True, kw_only=True):
    """Log-probabilities of the whole text."""

    content: list[TokenLogprobs]
    type: Literal["logprobs.content.done"] = "logprobs.content.done"


class LogprobsRefusalDeltaEvent(Struct, frozen=True, kw_only=True):
    """Log-probabilities of the newest tokens of a refusal, and of all its tokens so far."""

    refusal: list[TokenLogprobs]
    snapshot: list[TokenLogprobs]
    type: Literal["logprobs.refusal.delta"] = "logprobs.refusal.delta"


class LogprobsRefusalDoneEvent(Struct, frozen=True, kw_only=True):
    """Log-probabilities of a whole refusal."""

    refusal: list[TokenLogprobs]
    type: Literal["logprobs.refusal.done"] = "logprobs.refusal.done"


ChatEvent: TypeAlias = (
    ChunkEvent
    | ContentDeltaEvent
    | ContentDoneEvent[ParsedT]
    | RefusalDeltaEvent
    | RefusalDoneEvent
    | FunctionToolCallArgumentsDeltaEvent
    | FunctionToolCallArgumentsDoneEvent
    | LogprobsContentDeltaEvent
    | LogprobsContentDoneEvent
    | LogprobsRefusalDeltaEvent
    | LogprobsRefusalDoneEvent
)


class ChatEventStream(Generic[ParsedT]):
    """An answer as events. Use it as an async context manager: leaving the block stops all work for the answer.

    Entering it waits for the first token, and raises an error if the answer can't start. You may stop reading and continue later.

    Args:
        chunks: the answer.
        kind: the pydantic class that was requested, or None.
        shows_usage: True if the chunk that holds only usage becomes an event, too.
    """

    def __init__(self, chunks: ChatStream, kind: type[ParsedT] | None, *, shows_usage: bool) -> None:
        self._chunks = chunks
        self._kind = kind
        self._shows_usage = shows_usage
        self._assembler = CompletionAssembler()
        self._choices: dict[int, _ChoiceEvents[ParsedT]] = {}
        self._events: deque[ChatEvent[ParsedT]] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatEvent[ParsedT]:
        while not self._events:
            chunk = await anext(self._chunks, None)
            if chunk is not None:
                self._add(chunk)
                continue
            for index, known in self._choices.items():  # choices whose server sent no finish reason
                self._events.extend(known.end(index))
            if not self._events:
                raise StopAsyncIteration
        return self._events.popleft()

    async def until_done(self) -> Self:
        """Read the rest of the answer.

        Raises:
            UnparsedAnswer: it was cut off, or isn't valid JSON for the class that was requested.
        """
        async for _ in self:
            pass
        return self

    async def get_final_completion(self) -> ParsedAnswer[ParsedT]:
        """Read the rest of the answer and return the whole answer, with ``message.parsed`` if a class was requested.

        Raises:
            UnparsedAnswer: it was cut off, or isn't valid JSON for the class that was requested.
        """
        await self.until_done()
        return read_answer(self._answer(), self._kind)

    @property
    def current_completion_snapshot(self) -> ChatCompletion:
        """The answer so far."""
        return self._assembler.completion()

    @property
    def report(self) -> Report:
        """The report on the answer so far; final once the answer has been read to its end."""
        return self._chunks.report

    @property
    def usage(self) -> AnswerUsage:
        """Tokens of the answer so far; ``is_estimated`` is True if not all of them were counted by an endpoint."""
        return self._chunks.usage

    @property
    def rating_key(self) -> str:
        """A key that identifies this answer in ``Client.rate``."""
        return self._chunks.rating_key

    def rate(self, good: bool) -> bool:
        """Say whether the answer was good, once it has ended; see ``Client.rate``."""
        return self._chunks.rate(good)

    async def aclose(self) -> None:
        """Stop all work for this answer, and wait until it has ended; idempotent."""
        self._events.clear()
        await self._chunks.aclose()

    async def close(self) -> None:
        """Do the same as ``aclose``, which OpenAI's SDK calls ``close``."""
        await self.aclose()

    async def __aenter__(self) -> Self:
        try:
            await self._chunks.first()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def _answer(self) -> Answer:
        return whole_answer(self._assembler.completion(), self._chunks.report)

    def _add(self, chunk: ChatCompletionChunk) -> None:
        """Add a chunk, and queue its events."""
        self._assembler.add(chunk)
        if not chunk.choices and not self._shows_usage:
            return
        events: list[ChatEvent[ParsedT]] = [ChunkEvent(chunk, self._assembler)]
        for choice in chunk.choices:
            if choice.finish_reason and self._kind is not None:
                answer = self._answer()
                check_end(_choice_of(answer, choice.index), answer)
            known = self._choices.get(choice.index)
            if known is None:
                known = self._choices[choice.index] = _ChoiceEvents(None if self._kind is None else self._read)
            events += known.add(choice)
        self._events.extend(events)

    def _read(self, index: int) -> ParsedT | None:
        """Return the object parsed from a choice's text, or None if there is no text."""
        answer = self._answer()
        choice = _choice_of(answer, index)
        if self._kind is None or choice.message.refusal:
            return None
        return read_content(choice, answer, self._kind)


def _choice_of(answer: Answer, index: int) -> Choice:
    return next(each for each in answer.choices if each.index == index)


class _ChoiceEvents(Generic[ParsedT]):
    """Makes the events of one choice.

    Args:
        read: returns the object parsed from the text of the choice with this index; None if texts aren't parsed.
    """

    def __init__(self, read: Callable[[int], ParsedT | None] | None) -> None:
        self._read = read
        self._content = ""
        self._refusal = ""
        self._logprobs: list[TokenLogprobs] = []
        self._refusal_logprobs: list[TokenLogprobs] = []
        self._is_done: set[str] = set()  # types of one-time events that have been sent
        self._calls = ToolCalls()
        self._call: int | None = None  # number of the call that is being written
        self._arguments: dict[int, str] = {}  # arguments of function calls, by number

    def add(self, choice: ChunkChoice) -> list[ChatEvent[ParsedT]]:
        """Add the choice's part of a chunk, and return its events in the order of OpenAI's helper."""
        delta = choice.delta
        events: list[ChatEvent[ParsedT]] = []
        if delta.content is not None:
            self._content += delta.content
            reads = self._read is not None and self._content.strip() and not self._refusal
            parsed = read_partly(self._content) if reads else None
            events.append(ContentDeltaEvent(delta=delta.content, snapshot=self._content, parsed=parsed))
        if delta.refusal is not None:
            self._refusal += delta.refusal
            events.append(RefusalDeltaEvent(delta=delta.refusal, snapshot=self._refusal))
        ended: list[ChatEvent[ParsedT]] = []
        for call in delta.tool_calls or ():
            events += self._add_call(call, choice.index, ended)
        if choice.logprobs is not None and (content := choice.logprobs.content):
            self._logprobs = [*self._logprobs, *content]
            events.append(LogprobsContentDeltaEvent(content=content, snapshot=self._logprobs))
        if choice.logprobs is not None and (refusal := choice.logprobs.refusal):
            self._refusal_logprobs = [*self._refusal_logprobs, *refusal]
            events.append(LogprobsRefusalDeltaEvent(refusal=refusal, snapshot=self._refusal_logprobs))
        if choice.finish_reason:
            ended += self.end(choice.index)
        return events + ended

    def end(self, index: int) -> list[ChatEvent[ParsedT]]:
        """Return the events that are due when the choice ends, without the ones that were already sent."""
        return [*self._end_text(index), *self._end_call()]

    def _add_call(self, delta: ToolCallDelta, index: int, ended: list[ChatEvent[ParsedT]]) -> list[ChatEvent[ParsedT]]:
        """Add a piece of a call and return its event. If a new call begins, the events that end what came before go to ``ended``."""
        call, piece = self._calls.add(delta), arguments_of(delta) or ""
        if call.index != self._call:
            ended += self.end(index)
            self._call = call.index
        if call.is_custom:
            return []
        text = self._arguments[call.index] = self._arguments.get(call.index, "") + piece
        return [FunctionToolCallArgumentsDeltaEvent(name=call.name, index=call.index, arguments=text, arguments_delta=piece)]

    def _end_text(self, index: int) -> Iterator[ChatEvent[ParsedT]]:
        """Yield the events for texts that are complete, each only once."""
        if self._content and self._ends("content.done"):
            yield ContentDoneEvent(content=self._content, parsed=self._read(index) if self._read is not None else None)
        if self._refusal and self._ends("refusal.done"):
            yield RefusalDoneEvent(refusal=self._refusal)
        if self._logprobs and self._ends("logprobs.content.done"):
            yield LogprobsContentDoneEvent(content=self._logprobs)
        if self._refusal_logprobs and self._ends("logprobs.refusal.done"):
            yield LogprobsRefusalDoneEvent(refusal=self._refusal_logprobs)

    def _ends(self, event: str) -> bool:
        """Return True the first time that this is called for a type of event."""
        is_first = event not in self._is_done
        self._is_done.add(event)
        return is_first

    def _end_call(self) -> Iterator[ChatEvent[ParsedT]]:
        """Yield the event of the function call that was being written, if there is one."""
        if self._call is not None and (text := self._arguments.pop(self._call, None)) is not None:
            yield FunctionToolCallArgumentsDoneEvent(name=self._calls.calls[self._call].name, index=self._call, arguments=text or "{}")
        self._call = None
