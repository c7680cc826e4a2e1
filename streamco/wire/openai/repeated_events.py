"""Copies instead of decoding events that differ from the one before only in their text, as most events of an answer do.

Such an event's chunk is a copy of the former one with another text. That takes half the time of decoding it, and equal strings (id, model
...) are shared. A server that sends something new with each event (OpenAI's ``obfuscation``) has no such events. Then learning stops after
some attempts, and everything is decoded.

Without the copies, an event of a bulk read costs the client 1.4 times the processor time with one stream and 1.2 times with a hundred, and
1.9 times the instructions in both cases (two cores, 2026-11-29: 30 interleaved pairs of ``bench stream``; cachegrind). Events that wake the
reader one by one are not copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from msgspec import Struct

from streamco._native import copy_events
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, with_text

__all__ = ["FEW", "CopiedEvents", "RepeatedEvents"]

FEW = 8
"""How many events learning a pattern must save, or it costs more than it saves."""

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
        chunks: the chunks, shape (events,).
        pieces: the text of each, shape (events,).
        longest: characters of the longest text.
        is_content: True if the texts are content, False if they are reasoning.
    """

    chunks: list[ChatCompletionChunk]
    pieces: list[str]
    longest: int
    is_content: bool


class _Pattern(Struct, frozen=True):
    """The bytes around the text of an event, a chunk like the event's, and the field of the delta that holds the text."""

    head: bytes
    tail: bytes
    chunk: ChatCompletionChunk
    field: str


class RepeatedEvents:
    """Copies the events of one answer that repeat an earlier one.

    Learning a pattern costs as much as decoding about ten events. So it uses up credit, which copied events give back.

    Args:
        decode: the fast decoder of these events.
    """

    __slots__ = ("_credit", "_decode", "_ending", "_pattern", "_read")

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._pattern: _Pattern | None = None
        self._credit = _MAX_CREDIT
        self._ending = b""  # of a read that is one event; empty if none has been learned
        self._read: tuple[bytes, bytes, ChatCompletionChunk] | None = None  # bytes around such a read's content, and the pattern's chunk

    @property
    def is_useful(self) -> bool:
        """True unless too few events repeat another one."""
        return self._credit >= 1

    def copy_after(self, payload: bytes, chunk: ChatCompletionChunk, payloads: list[bytes], start: int) -> CopiedEvents | None:
        """Return the chunks of consecutive events that differ from an earlier one only in their text, or None if the first doesn't.

        Args:
            payload: the event before them.
            chunk: its chunk.
            payloads: the events.
            start: index of the first one.
        """
        copied = self._copy(payloads, start)
        if copied is None and self.is_useful:
            self._learn(payload, chunk)
            copied = self._copy(payloads, start)
        return copied

    def read_alike(self, data: bytes) -> tuple[ChatCompletionChunk, str] | None:
        """Return the earlier chunk and the new content if a whole read is one event that differs only in its content, otherwise None.

        The earlier chunk isn't a reader's, and must not be changed.
        """
        found = self._match(data)
        if found is not None:
            self._credit = min(_MAX_CREDIT, self._credit + 1 / FEW)
        return found

    def learn_read(self, data: bytes, chunk: ChatCompletionChunk) -> None:
        """Have ``read_alike`` find reads like this one, whose chunk is given, if it is one event and its only text is content."""
        ending = next((each for each in _ENDINGS if data.endswith(each)), b"")
        if not (ending and data.startswith(_FIELD) and self.is_useful and _field_of_text(chunk) == "content"):
            return
        if self._match(data) is None:  # otherwise it is known, and came after something else
            self._ending = ending
            self._learn(data[len(_FIELD) : -len(ending)], chunk)

    def _learn(self, payload: bytes, chunk: ChatCompletionChunk) -> None:
        self._credit -= 1
        self._pattern = pattern = None if len(payload) > _MAX_BYTES else _find_pattern(payload, chunk, self._decode)
        self._read = None
        if pattern is not None and pattern.field == "content" and self._ending:
            self._read = _FIELD + pattern.head, pattern.tail + self._ending, pattern.chunk

    def _match(self, data: bytes) -> tuple[ChatCompletionChunk, str] | None:
        if self._read is None:
            return None
        head, tail, like = self._read
        if not (len(head) + len(tail) < len(data) <= _MAX_BYTES and data.startswith(head) and data.endswith(tail)):
            return None
        try:
            text = _read_text(data[len(head) - 1 : len(data) - len(tail) + 1])
        except (msgspec.DecodeError, ValueError):
            return None
        return (like, text) if text else None

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
    """Return the pattern of an event, or None if it can't be copied or its text isn't found.

    A string of the event is its text if another string in its place becomes the text of the chunk and changes nothing else. The pattern's
    chunk is a copy, because readers may change theirs.
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
    """Return the field of the first choice's delta that alone holds text, or None if the chunk has other values that can't be shared."""
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
    """Return True if all fields but one are numbers, strings or None, which no reader can change."""
    return all(name == but or isinstance(getattr(model, name), str | int | float | None) for name in model.__struct_fields__)
