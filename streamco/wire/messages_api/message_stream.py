"""Parses the Messages API's streamed answers: bytes go in, chat chunks come out.

Text, thinking and tool calls become deltas. Signatures, citations and blocks of Anthropic's own tools, which a chat chunk can't express,
are in the delta's additional field ``content_blocks``. It lists parts of content blocks, each with its block's ``index`` and ``type``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamco.openai_types import ChoiceDelta, CompletionUsage, FunctionDelta, PromptTokensDetails, ToolCallDelta, with_further
from streamco.wire.completeness import read_reason
from streamco.wire.event_stream_parser import EventStreamParser
from streamco.wire.json_values import count_of, json_text_of, number_of, object_of, text_of
from streamco.wire.text_halves import whole_values

__all__ = ["MessageStreamParser"]

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_PIECES = {
    "text_delta": "text",
    "text": "text",
    "thinking_delta": "thinking",
    "thinking": "thinking",
    "input_json_delta": "partial_json",
    "signature_delta": "signature",
    "citations_delta": "citation",
}
"""The field that holds the text of each type of delta. Some gateways leave out the type, or send the block's type instead."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_COUNTS = {
    "input_tokens": ("input_tokens", "prompt_tokens"),  # the second name is the chat API's, which some gateways keep
    "cache_creation_input_tokens": ("cache_creation_input_tokens",),
    "cache_read_input_tokens": ("cache_read_input_tokens",),
    "output_tokens": ("output_tokens", "completion_tokens"),
}


class _Block:
    """A content block that has begun.

    Args:
        kind: the block's type, or "" if its start never came.
        call: number of the tool call, or None if the block isn't one.
        given: the input that came with the block's start.
    """

    __slots__ = ("call", "given", "has_input", "kind", "pieces")

    def __init__(self, kind: str, call: int | None = None, given: Any = None) -> None:
        self.kind = kind
        self.call = call
        self.given = given
        self.has_input = False
        self.pieces: list[str] = []  # of the input of one of the server's own tools


class MessageStreamParser(EventStreamParser):
    """Turns the body of one streamed message into chat chunks; see ``EventStreamParser``."""

    first_event = "message_start"
    foreign_types = ("response.",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._counts: dict[str, int] = {}  # by the server's names; later ones are sums and replace earlier ones
        self._given: dict[str, int] = {}  # counts that the reader has
        self._blocks: dict[int | None, _Block] = {}  # open blocks in the order in which they began, by index
        self._calls = 0

    def _decode(self, kind: str, value: dict[str, Any]) -> bool:
        if kind == "content_block_delta":
            self._delta(number_of(value.get("index")), object_of(value.get("delta")))
            return True
        match kind:
            case "content_block_start":
                self._start(number_of(value.get("index")), object_of(value.get("content_block")))
            case "content_block_stop":
                self._stop_block(number_of(value.get("index")))
            case "message_start":
                message = object_of(value.get("message"))
                self._take_counts(message.get("usage"), but="output_tokens")  # this count is only a first guess
                self._begin(message.get("id"), message.get("model"))
            case "message_delta":
                self._take_counts(value.get("usage"))
                self._stop(object_of(value.get("delta")))
                self._give_usage()
            case "message_stop":
                self._end()
            case "error":
                self._fail_with(value)
            case _:
                return False
        return True

    def _decode_whole(self, value: dict[str, Any]) -> bool:
        content = value.get("content")
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if value.get("type") != "message" or not isinstance(content, list):
            return False
        self._decode("message_start", {"message": value})
        self._take_counts(value.get("usage"))
        for index, block in enumerate(content):
            self._start(index, object_of(block))
        self._decode("message_delta", {"delta": value, "usage": value.get("usage")})
        if self.error is None:
            self._end()
        return True

    def _start(self, index: int | None, block: dict[str, Any]) -> None:
        self._stop_block(index)
        kind = text_of(block.get("type")) or next((name for name in ("text", "thinking") if name in block), "")
        match kind:
            case "tool_use":
                self._blocks[index] = _Block(kind, self._calls, block.get("input"))
                self._calls += 1
                self._call(self._calls - 1, "", name=text_of(block.get("name")), call_id=text_of(block.get("id")))
                return
            case "text":
                self._write(text_of(block.get("text")))
            case "thinking":
                self._write_thinking(text_of(block.get("thinking")))
            case _ if block:
                self._provide(index, block)
        if kind in _PIECES and (more := {name: block[name] for name in ("signature", "citations") if block.get(name)}):
            self._provide(index, {"type": kind, **more})
        self._blocks[index] = _Block(kind)

    def _delta(self, index: int | None, delta: dict[str, Any]) -> None:
        """Emit a piece of the block with this index, or of the latest block if there is none. Unknown fields are passed on unchanged."""
        if not self._blocks:
            self._blocks[index] = _Block("")
        if index not in self._blocks:
            index = next(reversed(self._blocks))
        kind, text = text_of(delta.get("type")), delta.get("text")
        if kind == "text_delta" and isinstance(text, str):
            self._write(self._join(index, text))
            return
        rest = {name: value for name, value in delta.items() if name != "type" and value not in _EMPTY}
        if kind in _PIECES and self._read_piece(index, _PIECES[kind], rest.get(_PIECES[kind])):
            return
        if not kind:
            rest = {name: value for name, value in rest.items() if not self._read_piece(index, name, value)}
        if rest:
            self._provide(index, {"type": self._blocks[index].kind or kind.removesuffix("_delta"), **whole_values(rest)})

    def _read_piece(self, index: int | None, name: str, piece: Any) -> bool:
        """Emit or hold a piece of a block, depending on its field's name. Returns False if the field is unknown or the piece is empty."""
        match name:
            case "text" if text_of(piece):
                self._write(self._join(index, piece))
            case "thinking" if text_of(piece):
                self._write_thinking(self._join(index, piece))
            case "partial_json" if text := json_text_of(piece):
                self._read_input(self._blocks[index], self._join(index, text))
            case "signature" if piece:
                self._provide(index, {"type": "thinking", "signature": piece})
            case "citation" if piece:
                self._provide(index, {"type": self._blocks[index].kind or "text", "citations": [piece]})
            case _:
                return False
        return True

    def _read_input(self, block: _Block, text: str) -> None:
        """Emit a piece of a call's input. The input of any other block is held until the block ends."""
        if block.call is not None and text:
            block.has_input = True
            self._call(block.call, text)
        elif text:
            block.pieces.append(text)
            self.has_progress = True
            self.ends.record_output()

    def _stop_block(self, index: int | None) -> None:
        """Emit what is held of a block. The input that came with its start is used if no pieces followed."""
        self._end_text(index)
        block = self._blocks.pop(index, None)
        if block is None:
            return
        if block.call is not None:
            if not block.has_input:
                self._call(block.call, msgspec.json.encode(block.given or {}).decode(), is_new=False)
        elif block.pieces:
            self._provide(index, {"type": block.kind or "tool_use", "input": _read_json("".join(block.pieces))})

    def _end_text(self, index: int | None) -> None:
        """If a block's text or input ends with half a character, emit the replacement character for it."""
        half, block = self._halves.give_up(index), self._blocks.get(index)
        if not half:
            return
        if block is not None and block.call is not None:
            block.has_input = True
            self._call(block.call, half, is_new=False)
        elif block is not None and block.pieces:
            block.pieces.append(half)
        elif block is not None and block.kind == "thinking":
            self._emit(ChoiceDelta(reasoning_content=half), is_new=False)
        else:
            self._emit(ChoiceDelta(content=half), is_new=False)

    def _close_parts(self) -> None:
        for index in list(self._blocks):
            self._stop_block(index)
        self._end_text(None)
        self._give_usage()

    def _give_usage(self) -> None:
        """Emit usage that came without a stop reason, or after the stop reason."""
        if self._counts != self._given and self._has_begun:
            self._emit(ChoiceDelta(), usage=self._usage())

    def _write(self, text: str) -> None:
        if text:
            self._emit_text(text)

    def _write_thinking(self, text: str) -> None:
        if text:
            self._emit(ChoiceDelta(reasoning_content=text))

    def _provide(self, index: int | None, part: dict[str, Any]) -> None:
        self._emit(with_further(ChoiceDelta(), {"content_blocks": [{"index": index or 0, **part}]}))

    def _call(self, number: int, arguments: str, *, name: str | None = None, call_id: str | None = None, is_new: bool = True) -> None:
        kind = None if call_id is None else "function"
        function = FunctionDelta(name=name, arguments=arguments)
        self._emit(ChoiceDelta(tool_calls=[ToolCallDelta(index=number, id=call_id, type=kind, function=function)]), is_new=is_new)

    def _stop(self, delta: dict[str, Any]) -> None:
        reason = read_reason(delta.get("stop_reason"))
        if reason is None:
            return
        stop = text_of(delta.get("stop_sequence")) or None
        self._emit(ChoiceDelta(), _REASONS.get(reason, reason), usage=self._usage(), stop_reason=stop)

    def _take_counts(self, usage: Any, *, but: str = "") -> None:
        found = object_of(usage)
        for name, names in _COUNTS.items():
            if name != but and (count := next((count for each in names if (count := count_of(found.get(each)))), 0)):
                self._counts[name] = count

    def _usage(self) -> CompletionUsage | None:
        """Return the usage so far, and record that the reader gets it with the next chunk."""
        counts = self._counts
        self._given = dict(counts)
        if not counts:
            return None
        cached = counts.get("cache_read_input_tokens", 0)
        prompt = counts.get("input_tokens", 0) + counts.get("cache_creation_input_tokens", 0) + cached
        completion = counts.get("output_tokens", 0)
        return CompletionUsage(prompt, completion, prompt + completion, PromptTokensDetails(cached_tokens=cached))


def _read_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text
