"""Splits an answer into its parts, in the order in which they began: runs of text, reasoning or refusal, and tool calls.

Chat chunks don't say where a part begins and ends, but the events of other APIs do. A run ends when another part begins. A call begins with
its first arguments, because its name is complete then. If the name comes later, the call begins with it, because other APIs name a call at
its start. Later parts wait until then. A call ends when another part begins, but only if its arguments are complete by then, because
servers may send the pieces of parallel calls in turn. Parts that are still open at the end of the answer end there.

In the Messages API, each part has to end before the next one begins. So the parts after a call are held until the call's arguments are
complete or the answer ends.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

from msgspec import Struct

from streamco.openai_types import ChatCompletionChunk, ChatCompletionMessage, ChunkChoice, CompletionUsage, ToolCall, ToolCallDelta
from streamco.wire.openai.tool_calls import CallParts, JSONPieces, ToolCalls, arguments_of

__all__ = ["AnswerPart", "AnswerParts", "PartBegan", "PartEnded", "PartEvent", "PartGrew", "PartKind", "message_parts"]

PartKind = Literal["text", "reasoning", "refusal", "call"]


class AnswerPart:
    """The text of one part so far.

    Args:
        kind: the kind of part.
        call: the tool call's name and id, or None if the part isn't a call.
    """

    __slots__ = ("_json", "call", "index", "is_open", "kind", "logprobs", "pieces")

    def __init__(self, kind: PartKind, call: CallParts | None = None) -> None:
        self.kind = kind
        self.call = call
        self.index = -1
        """Number of the part in the answer, from 0, or -1 if the part hasn't begun."""
        self.is_open = False
        self.pieces: list[str] = []
        self._json = JSONPieces(self.pieces)
        self.logprobs: list[Any] = []

    @property
    def text(self) -> str:
        """The text so far. For a call, this is its arguments or its input."""
        return "".join(self.pieces)

    @property
    def has_name(self) -> bool:
        """False if the part is a call whose name hasn't come yet."""
        return self.call is None or bool(self.call.name)

    @property
    def is_whole(self) -> bool:
        """True if the part may end. A function call's arguments must be whole JSON, and any other part may end anywhere."""
        return self.call is None or self.call.is_custom or self._json.is_whole


class PartBegan(Struct, frozen=True):
    """A part has begun. It has no text yet."""

    part: AnswerPart


class PartGrew(Struct, frozen=True):
    """A part has grown by this text, with the log-probabilities of its tokens."""

    part: AnswerPart
    text: str
    logprobs: list[Any]


class PartEnded(Struct, frozen=True):
    """A part has ended."""

    part: AnswerPart


PartEvent = PartBegan | PartGrew | PartEnded


class AnswerParts:
    """Splits the first choice of one answer into parts, chunk by chunk.

    Args:
        skips_reasoning: True to leave out reasoning.
        is_sequential: True if each part must end before the next one begins.
    """

    def __init__(self, *, skips_reasoning: bool = False, is_sequential: bool = False) -> None:
        self.begun: list[AnswerPart] = []
        """The parts that have begun, in the order in which they began."""
        self.usage: CompletionUsage | None = None
        self.finish_reason: str | None = None
        self.matched_stop: str | None = None
        """The stop string that ended the answer, or None if it ended for another reason or the server didn't say."""
        self._skips_reasoning = skips_reasoning
        self._is_sequential = is_sequential
        self.is_held = False
        """True if parts are waiting for the end of a call."""
        self._calls = ToolCalls()
        self._by_call: dict[int, AnswerPart] = {}
        self._waiting: deque[AnswerPart] = deque()  # calls without arguments so far, and held parts
        self._unfinished: list[AnswerPart] = []  # calls that were open when another part began, and wait for the end of the answer
        self._last: AnswerPart | None = None  # the part that began last

    def add(self, chunk: ChatCompletionChunk) -> list[PartEvent]:
        """Add the next chunk, and return the events for parts that it begins, continues or ends."""
        if chunk.usage is not None:
            self.usage = chunk.usage
        events: list[PartEvent] = []
        for choice in chunk.choices:
            if choice.index == 0:
                self._add_choice(choice, events)
        return events

    def end(self) -> list[PartEvent]:
        """Return the events that end the answer's open parts."""
        events: list[PartEvent] = []
        for part in (*self._unfinished, *([] if self._last is None else [self._last])):
            _end(part, events)
        while self._waiting:  # each ends before the next begins
            part = self._waiting.popleft()
            self._begin(part, events)
            _end(part, events)
        return events

    def fail(self) -> list[PartEvent]:
        """When the answer fails, return the events of runs of text and complete calls that were still waiting for another call."""
        events: list[PartEvent] = []
        ready = [part for part in self._waiting if part.pieces and part.has_name and part.is_whole]
        if ready and self._is_sequential and self._last is not None:
            _end(self._last, events)
        for part in ready:
            self._begin(part, events)
            _end(part, events)
        self._waiting.clear()
        return events

    def _add_choice(self, choice: ChunkChoice, events: list[PartEvent]) -> None:
        delta = choice.delta
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning and not self._skips_reasoning:
            self._grow("reasoning", reasoning, [], events)
        if delta.content:
            self._grow("text", delta.content, content_logprobs(choice.logprobs), events)
        if delta.refusal:
            self._grow("refusal", delta.refusal, [], events)
        for call in delta.tool_calls or ():
            self._add_call(call, events)
        if delta.function_call is not None:  # the form before tools
            self._add_call(ToolCallDelta(index=0, function=delta.function_call), events)
        self.finish_reason = choice.finish_reason or self.finish_reason
        for stop in (choice.stop_reason, choice.matched_stop):  # vLLM, SGLang; a number is the id of an end token
            if isinstance(stop, str) and stop:
                self.matched_stop = stop

    def _grow(self, kind: PartKind, text: str, logprobs: list[Any], events: list[PartEvent]) -> None:
        run = self._last
        if run is None or run.kind != kind or self._waiting:
            run = self._begin_run(kind, events)
            if run.index < 0:
                run.pieces.append(text)
                run.logprobs += logprobs
                return
        run.pieces.append(text)
        run.logprobs += logprobs
        events.append(PartGrew(run, text, logprobs))

    def _add_call(self, delta: ToolCallDelta, events: list[PartEvent]) -> None:
        call = self._calls.add(delta)
        part = self._by_call.get(id(call))  # the calls are kept alive, so no id is reused
        if part is None:
            part = self._by_call[id(call)] = AnswerPart("call", call)
            self._waiting.append(part)
        piece = arguments_of(delta)
        if part.index < 0:
            if piece:
                part.pieces.append(piece)
            if part.pieces and call.name:
                self._begin_filled(events)
            return
        if not piece or (not part.is_open and piece.isspace()):  # after the event of its end
            return
        part.pieces.append(piece)
        events.append(PartGrew(part, piece, []))
        if self.is_held and part is self._last and piece.rstrip().endswith(("}", "]")) and part.is_whole:
            self._release(part, events)

    def _begin_run(self, kind: PartKind, events: list[PartEvent]) -> AnswerPart:
        """Begin a run of text and return it. If it can't begin yet, it is held, or joined to a held run of its kind."""
        self._begin_waiting(events)
        held = self._waiting[-1] if self._waiting else None
        if held is not None and held.kind == kind:
            return held
        run = AnswerPart(kind)
        if held is not None or not self._begin(run, events):
            self._waiting.append(run)
        return run

    def _release(self, call: AnswerPart, events: list[PartEvent]) -> None:
        """End a complete call, and begin the parts that were waiting for it, except calls that have no arguments yet."""
        _end(call, events)
        self.is_held = False
        self._begin_filled(events)

    def _begin_filled(self, events: list[PartEvent]) -> None:
        """Begin the waiting parts up to the last one that has text or arguments."""
        filled = [part for part in self._waiting if part.pieces]
        if filled:
            self._begin_waiting(events, until=filled[-1])

    def _begin_waiting(self, events: list[PartEvent], *, until: AnswerPart | None = None) -> None:
        """Begin the waiting parts in their order, up to the first call without a name, unless they are held."""
        while self._waiting and not self.is_held:
            part = self._waiting[0]
            if not part.has_name or not self._begin(part, events):
                return
            self._waiting.popleft()
            if part is until:
                return

    def _begin(self, part: AnswerPart, events: list[PartEvent]) -> bool:
        """Begin a part and return True, or return False if it must be held because the call before it hasn't ended."""
        last = self._last
        if last is not None and last.is_open:
            if last.is_whole:
                _end(last, events)
            elif self._is_sequential:
                self.is_held = True
                return False
            else:
                self._unfinished.append(last)
        self._last = part
        part.index = len(self.begun)
        part.is_open = True
        self.begun.append(part)
        events.append(PartBegan(part))
        if part.pieces:  # it was held
            events.append(PartGrew(part, part.text, part.logprobs))
        return True


def _end(part: AnswerPart, events: list[PartEvent]) -> None:
    if part.is_open:
        part.is_open = False
        events.append(PartEnded(part))


def content_logprobs(logprobs: Any) -> list[Any]:
    """Return the log-probabilities of a choice's text, one object for each token, or [] if it has none."""
    found = logprobs.get("content") if isinstance(logprobs, dict) else None
    return found if isinstance(found, list) else []


def message_parts(message: ChatCompletionMessage, logprobs: Any = None, *, skips_reasoning: bool = False) -> list[AnswerPart]:
    """Return the parts of a whole message: reasoning, text, refusal, calls.

    Args:
        message: the message to split.
        logprobs: log-probabilities of the message's choice.
        skips_reasoning: True to leave out reasoning.
    """
    parts = []
    texts: list[tuple[PartKind, str | None]] = [
        ("reasoning", None if skips_reasoning else message.reasoning_content),
        ("text", message.content),
        ("refusal", message.refusal),
    ]
    for kind, text in texts:
        if text:
            part = AnswerPart(kind)
            part.pieces.append(text)
            part.logprobs = content_logprobs(logprobs) if kind == "text" else []
            parts.append(part)
    calls = list(message.tool_calls or ())
    if message.function_call is not None:
        calls.append(ToolCall(function=message.function_call))
    for whole in calls:
        if whole.custom is not None:
            name, text = whole.custom.name, whole.custom.input
        else:
            name, text = ("", "") if whole.function is None else (whole.function.name, whole.function.arguments)
        call = CallParts(name=name)
        call.id, call.is_custom = whole.id, whole.custom is not None
        part = AnswerPart("call", call)
        part.pieces.append(text)
        parts.append(part)
    for index, part in enumerate(parts):
        part.index = index
    return parts
