"""Streamed answers in MessagePack: text with packed token ids, in fewer bytes than server-sent events.

``streamco serve`` sends them to clients that accept this format, which has the number 2. The body is a sequence of MessagePack objects,
and the type of an object tells its meaning:

=======  ===========================================================================================================================
map      the beginning, once: ``id``, ``created``, ``model``, ``vocabulary`` (fingerprint of the vocabulary of all ids), ``format``: 2
array    ``[text, ids]`` or ``[text, ids, finish_reason]``: a piece of the answer; ids as ``TokenCodec.pack_bare`` packs them, and a
         checksum of 2 bytes
nil      a keep-alive
map      the end: ``finish_reason`` and ``usage``, or ``error``, OpenAI's error object
=======  ===========================================================================================================================

A third element is sent with the piece in which a stop string begins. That piece has no ids, because they would cover more than its text.

The checksum is the low half, little-endian, of the CRC-32 of all pieces so far. Each piece adds its text in UTF-8, its packed ids and its
finish reason. If a connection breaks inside an object and other bytes follow, they may look like a piece with other ids. An answer that is
continued from these ids would be wrong.

A beginning without ``format`` comes from an older server, which sends no checksums. Only the text of such an answer is read, because an
answer must not be continued from unchecked ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from streamco.config import Limits
from streamco.errors import EndpointError, EndpointProtocolError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from streamco.wire.answer_parser import AnswerParser
from streamco.wire.openai.errors import find_error, stream_error
from streamco.wire.openai.fast_decode import Api
from streamco.wire.openai.lenient_decode import build_usage
from streamco.wire.openai.msgpack_body import MSGPACK
from streamco.wire.openai.token_estimate import estimate_tokens
from streamco.wire.token_frames import TokenCodec

__all__ = ["ACCEPTED", "FORMAT", "KEEPALIVE", "MsgpackStreamParser", "PieceEncoder", "encode_ending", "encode_error", "encode_opening"]

FORMAT = 2  # of an answer; 1 had no checksums
ACCEPTED = f"{MSGPACK};v={FORMAT}"  # the value of a client's ``Accept``; short, because a hand-over must not be larger than its text
KEEPALIVE = b"\xc0"
_CHECKSUM_BYTES = 2
_FED = 64 << 10  # bytes that the unpacker's buffer holds in addition to an unfinished object
_MAX_LENGTH = 64  # elements of an array or map

_LIMITS = Limits()
_msgpack: Any = import_module("msgpack")  # it has no type hints
_pack: Any = _msgpack.packb


def encode_opening(name: str, created: int, model: str, vocabulary: str) -> bytes:
    """Encode the beginning of an answer: its id, its time in seconds since 1970, and the model's name and vocabulary fingerprint."""
    encoded: bytes = _pack({"id": name, "created": created, "model": model, "vocabulary": vocabulary, "format": FORMAT})
    return encoded


class _Checksum:
    """The running checksum of one answer's pieces."""

    def __init__(self) -> None:
        self._crc = 0

    def add(self, text: str, ids: bytes, finish_reason: str | None) -> bytes:
        """Add a piece, and return the bytes to append to its packed ids."""
        crc = zlib.crc32(ids, zlib.crc32(text.encode(), self._crc))
        self._crc = crc = crc if finish_reason is None else zlib.crc32(finish_reason.encode(), crc)
        return (crc & 0xFFFF).to_bytes(_CHECKSUM_BYTES, "little")


class PieceEncoder:
    """Encodes the pieces of one answer, in order."""

    def __init__(self) -> None:
        self._checksum = _Checksum()

    def encode(self, text: str, ids: bytes, finish_reason: str | None = None) -> bytes:
        """Encode the next piece of the answer. ``ids`` are packed already."""
        checked = ids + self._checksum.add(text, ids, finish_reason)
        encoded: bytes = _pack([text, checked] if finish_reason is None else [text, checked, finish_reason])
        return encoded


def encode_ending(finish_reason: str, usage: Mapping[str, Any] | None) -> bytes:
    """Encode the end of an answer. ``usage`` is OpenAI's usage object, or None if it wasn't requested."""
    encoded: bytes = _pack({"finish_reason": finish_reason, "usage": usage})
    return encoded


def encode_error(error: Mapping[str, Any]) -> bytes:
    """Encode the end of an answer that failed."""
    encoded: bytes = _pack({"error": error})
    return encoded


class MsgpackStreamParser(AnswerParser):
    """Turns a streamed answer in MessagePack into chat chunks. It has the attributes and methods of ``ChatStreamParser``.

    Args:
        codec: unpacks the ids. Chunks have no ids if the server's vocabulary has changed or its format is older.
        endpoint: the endpoint's name in errors.
        limits: of these, ``event_bytes`` and ``answer_bytes`` are used.
        api: with "chat", the first chunk has the role.
    """

    def __init__(self, codec: TokenCodec, *, endpoint: str = "", limits: Limits = _LIMITS, api: Api = "chat") -> None:
        super().__init__(endpoint=endpoint, limits=limits)
        self._codec = codec
        self._api = api
        self._unpacker: Any = _msgpack.Unpacker(
            max_buffer_size=limits.event_bytes + _FED,
            max_array_len=_MAX_LENGTH,
            max_map_len=_MAX_LENGTH,
            max_ext_len=0,
        )
        self._opening: tuple[str, int, str] | None = None  # id, created, model
        self._has_ids = False
        self._checksum: _Checksum | None = _Checksum()  # None if pieces have none

    def _take(self, data: bytes, chunks: list[ChatCompletionChunk]) -> None:
        """Append the chunks of the objects that the bytes complete.

        Raises:
            EndpointError: the bytes aren't MessagePack, exceed a limit, aren't an answer, or are the server's error.
        """
        try:
            for start in range(0, len(data), _FED):
                self._unpacker.feed(data[start : start + _FED])
                for frame in self._unpacker:
                    if type(frame) is list:
                        self._read_piece(frame, chunks)
                    else:
                        chunks += self._read(frame)
                    if self.is_done:  # bytes after the end mean nothing
                        return
        except EndpointError:  # some of them are a ValueError too
            raise
        except _msgpack.BufferFull:
            raise EndpointProtocolError(f"expected an object of at most {self.limits.event_bytes} bytes, got more", is_limit=True) from None
        except (ValueError, RecursionError) as error:
            raise EndpointProtocolError(f"expected MessagePack, got {str(error)[:200] or 'a byte that begins no object'}") from error

    def _read(self, frame: Any) -> Sequence[ChatCompletionChunk]:
        if frame is None:
            return ()
        if not isinstance(frame, dict):
            raise EndpointProtocolError(f"expected an array, a map or nil in the stream, got {type(frame).__name__}")
        if (error := find_error(frame)) is not None:
            raise stream_error({"error": error})
        return self._read_ending(frame) if self._opening is not None else self._read_opening(frame)

    def _read_opening(self, fields: dict[str, Any]) -> Sequence[ChatCompletionChunk]:
        match fields:
            case {"id": str(name), "created": int(created), "model": str(model), "vocabulary": str(vocabulary)}:
                self._opening = name, created, model
            case _:
                raise EndpointProtocolError(f"expected id, created, model and vocabulary first, got {str(fields)[:200]}")
        match fields.get("format"):
            case None:
                self._checksum = None
            case number if number == FORMAT:
                self._has_ids = vocabulary == self._codec.vocabulary
            case other:
                raise EndpointProtocolError(f"expected an answer in format {FORMAT}, got {str(other)[:100]}")
        return (self._chunk(ChoiceDelta("", "assistant")),) if self._api == "chat" else ()

    def _read_piece(self, piece: list[Any], chunks: list[ChatCompletionChunk]) -> None:
        """Append a chunk for a piece of the answer. An empty piece gets none, because 6 bytes must not become a chunk of half a kilobyte.

        Raises:
            EndpointError: the array isn't a piece, or its finish reason means a failure, in which case its text is kept.
        """
        text, checked, reason = piece if len(piece) == 3 else (*piece, None) if len(piece) == 2 else (None, None, None)
        if type(text) is not str or type(checked) is not bytes or not (reason is None or type(reason) is str):
            raise EndpointProtocolError(f"expected a piece of text and ids, got {str(piece)[:200]}")
        if self._opening is None:
            raise EndpointProtocolError("expected id, created, model and vocabulary first, got a piece of text")
        packed = b"" if self._checksum is None else checked[:-_CHECKSUM_BYTES]
        if self._checksum is not None and self._checksum.add(text, packed, reason) != checked[-_CHECKSUM_BYTES:]:
            raise EndpointProtocolError(
                "expected a piece with the checksum of its text and ids, got a different checksum: bytes were changed on the way"
            )
        if not (text or packed or reason):
            return
        ids = self._codec.unpack_bare(packed) if self._has_ids and packed else None
        if ids:
            self.tokens += len(ids)
        elif text:
            self.tokens += estimate_tokens(text)
            self.is_estimated = True
        if ids or text:
            self.has_progress = True
            self.ends.record_output()
        self._text.append(text)
        chunk = self._chunk(ChoiceDelta(text), ids=ids)
        if text or packed:
            chunks.append(chunk)
        chunk.choices[0].finish_reason = known = self._record_reason(reason)
        if known is not None and not (text or packed):
            chunks.append(chunk)

    def _read_ending(self, fields: dict[str, Any]) -> Sequence[ChatCompletionChunk]:
        reason = fields.get("finish_reason")
        if not isinstance(reason, str):
            raise EndpointProtocolError(f"expected a finish_reason at the end, got {str(fields)[:200]}")
        had_reason = self.ends.has_reason
        reason = self._record_reason(reason)
        self.usage = build_usage(fields.get("usage"))
        self._record_end(self.ends.record_end())
        self.is_done = True
        chunks = [] if had_reason or reason is None else [self._chunk(ChoiceDelta(), reason)]
        if self.usage is not None:
            chunks.append(self._chunk(None))
        return chunks

    def _chunk(self, delta: ChoiceDelta | None, reason: str | None = None, ids: list[int] | None = None) -> ChatCompletionChunk:
        name, created, model = self._opening or ("", 0, "")
        choices = [] if delta is None else [ChunkChoice(delta, 0, reason, None, ids)]
        return ChatCompletionChunk(name, choices, created, model, usage=self.usage if delta is None else None)
