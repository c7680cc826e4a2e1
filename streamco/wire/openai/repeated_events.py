"""Copies chunks instead of decoding events that differ from an earlier event only in their text, as most events of an answer do.

The chunk of such an event is a copy of the earlier chunk with another text. Copying takes half as long as decoding, and equal strings (id,
model ...) are shared. If a server sends something new with each event (OpenAI's ``obfuscation``), nothing can be copied. Then learning
stops after some attempts, and everything is decoded.

Without the copies, an event of a bulk read costs the client 1.4 times the processor time with one stream and 1.2 times with a hundred, and
1.9 times the instructions in both cases (two cores, 2026-11-29: 30 interleaved pairs of ``bench stream``; cachegrind). Events that wake the
reader one by one are not copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec import Struct

from streamco._native import copy_events
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, with_text

__all__ = ["FEW", "CopiedEvents", "RepeatedEvents"]

FEW = 8
"""Learning a pattern pays only if at least this many events are copied with it."""

_MAX_CREDIT = 4.0
_MAX_BYTES = 768  # of an event whose pattern is learned
_MAX_STRINGS = 4  # strings of an event that may be its text
_find_strings = re.compile(rb'"(?:content|reasoning_content|reasoning|text)"\s*:\s*"((?:[^"\\]|\\.)*)"').finditer
_PROBE = "\x7fstreamco"
_FIELD, _ENDINGS = b"data: ", (b"\n\n", b"\r\n\r\n")
_TEXTS = ("content", "reasoning_content", "reasoning")

_read_text = msgspec.json.Decoder(str).decode

Decode = Callable[[bytes], ChatCompletionChunk]


class CopiedEvents(Struct, frozen=True, gc=False):
    """Chunks of consecutive events, with their texts.

    Args:
        chunks: one chunk for each event, shape (events,).
        pieces: the text of each event, shape (events,).
        longest: number of characters in the longest text.
        is_content: True if the texts are content, False if they are reasoning.
    """

    chunks: list[ChatCompletionChunk]
    pieces: list[str]
    longest: int
    is_content: bool


class _Pattern(Struct, frozen=True):
    """The bytes before and after an event's text, a copy of the event's chunk, and the field of the delta that holds the text."""

    head: bytes
    tail: bytes
    chunk: ChatCompletionChunk
    field: str


class _Read(NamedTuple):
    """A read that is one event: the bytes around its content, their number, the place of the content as a JSON string, and the chunk."""

    head: bytes
    tail: bytes
    around: int
    text_at: slice
    chunk: ChatCompletionChunk


class RepeatedEvents:
    """Copies chunks for the events of one answer that repeat an earlier event except for the text.

    Learning a pattern costs as much as decoding about ten events. So it uses up credit, which copied events give back.

    Args:
        decode: the fast decoder for the answer's events.
    """

    __slots__ = ("_credit", "_decode", "_ending", "_pattern", "_read")

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._pattern: _Pattern | None = None
        self._credit = _MAX_CREDIT
        self._ending = b""  # ending of a read that is one event; empty if none has been learned
        self._read: _Read | None = None

    @property
    def is_useful(self) -> bool:
        """False if so few events repeat an earlier one that learning doesn't pay."""
        return self._credit >= 1

    def copy_after(self, payload: bytes, chunk: ChatCompletionChunk, payloads: list[bytes], start: int) -> CopiedEvents | None:
        """Copy chunks for consecutive events that differ from an earlier event only in their text. Returns None if the first one doesn't.

        Args:
            payload: the event before the first one.
            chunk: the chunk of ``payload``.
            payloads: the events of one read.
            start: index of the first event to copy.
        """
        copied = self._copy(payloads, start)
        if copied is None and self.is_useful:
            self._learn(payload, chunk)
            copied = self._copy(payloads, start)
        return copied

    def read_alike(self, data: bytes) -> tuple[ChatCompletionChunk, str] | None:
        """Return the earlier chunk and the new content if a read is one event that differs only in its content, otherwise None.

        The earlier chunk is the pattern's own copy, and must not be changed.
        """
        if self._read is None:
            return None
        head, tail, around, text_at, like = self._read
        if not (around < len(data) <= _MAX_BYTES and data.startswith(head) and data.endswith(tail)):
            return None
        try:
            text = _read_text(data[text_at])
        except (msgspec.DecodeError, ValueError):
            return None
        if not text:
            return None
        if self._credit < _MAX_CREDIT:
            self._credit += 1 / FEW
        return like, text

    def learn_read(self, data: bytes, chunk: ChatCompletionChunk) -> None:
        """Learn a read and its chunk, so that ``read_alike`` finds similar reads. Only a single event with only content is learned."""
        ending = next((each for each in _ENDINGS if data.endswith(each)), b"")
        if not (ending and data.startswith(_FIELD) and self.is_useful and _field_of_text(chunk) == "content"):
            return
        if self.read_alike(data) is None:  # otherwise it is already known, and came after another event
            self._ending = ending
            self._learn(data[len(_FIELD) : -len(ending)], chunk)

    def _learn(self, payload: bytes, chunk: ChatCompletionChunk) -> None:
        self._credit -= 1
        self._pattern = pattern = None if len(payload) > _MAX_BYTES else _find_pattern(payload, chunk, self._decode)
        self._read = None
        if pattern is not None and pattern.field == "content" and self._ending:
            head, tail = _FIELD + pattern.head, pattern.tail + self._ending
            self._read = _Read(head, tail, len(head) + len(tail), slice(len(head) - 1, 1 - len(tail) or None), pattern.chunk)

    def _copy(self, payloads: list[bytes], start: int) -> CopiedEvents | None:
        pattern = self._pattern
        if pattern is None:
            return None
        chunks, pieces, longest = copy_events(
            payloads, start, pattern.head, pattern.tail, chunk=pattern.chunk, field=pattern.field, read_text=_read_text
        )
        if not chunks:
            return None
        self._credit = min(_MAX_CREDIT, self._credit + len(chunks) / FEW)
        return CopiedEvents(chunks, pieces, longest, pattern.field == "content")


def _find_pattern(payload: bytes, chunk: ChatCompletionChunk, decode: Decode) -> _Pattern | None:
    """Return the pattern of an event, or None if the event can't be copied or its text isn't found.

    To find the text, each string in the event is replaced by another one. If only the chunk's text changes, that string is the text. The
    pattern has its own copy of the chunk, because readers may change theirs.
    """
    field = _field_of_text(chunk)
    if field is None or b"\n" in payload or b"\r" in payload:  # line ends stand for several lines, or for a second event of the read
        return None
    expected = with_text(chunk, _PROBE, field)
    for number, found in enumerate(_find_strings(payload)):
        if number == _MAX_STRINGS:
            break
        head, tail = payload[: found.start(1)], payload[found.end(1) :]
        try:
            if decode(head + _PROBE.encode() + tail) == expected:
                return _Pattern(head, tail, expected, field)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
    return None


def _field_of_text(chunk: ChatCompletionChunk) -> str | None:
    """Return the delta's only field that holds text. Returns None if several fields or none do, or if other values can't be shared."""
    if type(chunk) is not ChatCompletionChunk or len(chunk.choices) != 1:
        return None
    choice = chunk.choices[0]
    delta = choice.delta
    if type(choice) is not ChunkChoice or type(delta) is not ChoiceDelta:
        return None
    if not (_is_shareable(chunk, "choices") and _is_shareable(choice, "delta") and _is_shareable(delta, "")):
        return None
    texts = [name for name in _TEXTS if getattr(delta, name)]
    return texts[0] if len(texts) == 1 else None


def _is_shareable(model: Struct, but: str) -> bool:
    """Return True if all fields except ``but`` are numbers, strings or None, which no reader can change."""
    return all(name == but or isinstance(getattr(model, name), str | int | float | None) for name in model.__struct_fields__)
