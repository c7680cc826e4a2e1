"""Turns verifier frames into bytes and back. They are msgpack arrays with bit-packed ids. Each size is checked against its limit first.

An id takes ``bits`` bits: ceil(log2) of the vocabulary's size, at least 8. The number of ids isn't sent, because it follows from the number
of bytes: n ids take ceil(n x bits / 8) bytes, and no other n takes as many. An array may have more elements than this version knows. Extra
elements are ignored.

msgspec decodes a message directly into a frame, whose ids, rows and parents are bytes at first. They are then unpacked in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from streamco._native import pack, unpack
from streamco.errors import ConfigError
from streamco.wire.token_frames import bits_for
from streamco.wire.verify.checks import check_draft, check_follow, check_rule, check_verdict
from streamco.wire.verify.errors import FrameSizeError, MalformedFrameError
from streamco.wire.verify.frames import (
    ClientFrame,
    Draft,
    Extend,
    Follow,
    Number,
    Open,
    ServerFrame,
    VerdictFrame,
    VerifyLimits,
)
from streamco.wire.verify.topk import pack_rows, unpack_rows

__all__ = ["HELLO", "MIN_FRAME_BYTES", "VerifyCodec", "frame_number", "hello_versions", "raise_malformed"]

HELLO = 1
"""The number of the hello frame."""

MIN_FRAME_BYTES = 1 << 15
"""Every peer must accept frames of up to this many bytes."""

_OPEN, _EXTEND, _DRAFT, _FOLLOW, _VERDICT = (each.__struct_config__.tag for each in (Open, Extend, Draft, Follow, VerdictFrame))


class _Head(Struct, frozen=True, array_like=True, gc=False):
    number: Number


class _Versions(Struct, frozen=True, array_like=True, gc=False):
    number: Number
    first: Number
    last: Number


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_versions = msgspec.msgpack.Decoder(_Versions).decode
_decode_up = msgspec.msgpack.Decoder(ClientFrame).decode
_decode_down = msgspec.msgpack.Decoder(ServerFrame).decode


def frame_number(message: bytes) -> int:
    """Return the number that tells a message's type of frame, without reading the rest.

    Raises:
        MalformedFrameError: the message isn't a msgpack array that begins with a number.
    """
    try:
        return _decode_head(message).number
    except (ValueError, RecursionError) as error:
        raise_malformed("frame", error)


def hello_versions(message: bytes) -> tuple[int, int]:
    """Return the first and the last protocol version that a hello offers. It can read hellos of any version.

    Raises:
        MalformedFrameError: the versions can't be read.
    """
    try:
        offer = _decode_versions(message)
    except (ValueError, RecursionError) as error:
        raise_malformed("hello", error)
    return offer.first, offer.last


class VerifyCodec:
    """Encodes and decodes the frames for one vocabulary.

    Args:
        vocabulary_size: number of ids in the vocabulary, 1 to 2**32.
        limits: largest sizes in both directions. None means the defaults of ``VerifyLimits``.

    Raises:
        ConfigError: ``frame_bytes`` is below 32 KiB, so that not every hello would fit.
        ValueError: ``vocabulary_size`` is out of range.

    All methods raise FrameSizeError beyond the limits, and MalformedFrameError for anything else that isn't a valid frame. If the session
    and the round of a draft could be read, the error names them.
    """

    __slots__ = ("bits", "limits", "vocabulary_size")

    def __init__(self, vocabulary_size: int, limits: VerifyLimits | None = None) -> None:
        self.vocabulary_size = vocabulary_size
        self.bits = max(8, bits_for(vocabulary_size))
        self.limits = limits or VerifyLimits()
        if self.limits.frame_bytes < MIN_FRAME_BYTES:
            raise ConfigError(f"frame_bytes: expected at least {MIN_FRAME_BYTES}, got {self.limits.frame_bytes}")

    def within(self, limits: VerifyLimits) -> VerifyCodec:
        """Return a codec whose limits are each the smaller of this codec's and the given ones. ``frame_bytes`` stays at least 32 KiB."""
        ours = self.limits
        smaller = VerifyLimits(
            frame_bytes=max(MIN_FRAME_BYTES, min(ours.frame_bytes, limits.frame_bytes)),
            context_tokens=min(ours.context_tokens, limits.context_tokens),
            draft_tokens=min(ours.draft_tokens, limits.draft_tokens),
            top_k=min(ours.top_k, limits.top_k),
            sessions=min(ours.sessions, limits.sessions),
            paths=min(ours.paths, limits.paths),
        )
        return VerifyCodec(self.vocabulary_size, smaller)

    def encode(self, frame: ClientFrame | ServerFrame) -> bytes:
        """Encode a frame as one message."""
        match frame:
            case Draft():
                check_draft(frame, self.limits)
                head = (frame.session, frame.round_number, frame.base, frame.given, self._pack(frame.ids))
                message = _encode((_DRAFT, *head, *self._tail(frame)))
            case Follow():
                check_follow(frame, self.limits, self.vocabulary_size)
                expected = (frame.session, frame.round_number, frame.after, frame.accepted, frame.token)
                message = _encode((_FOLLOW, *expected, self._pack(frame.ids), *self._tail(frame)))
            case VerdictFrame():
                check_verdict(frame, self.limits, self.vocabulary_size)
                result = (frame.session, frame.round_number, frame.accepted, frame.token)
                times = (frame.queue_depth, frame.queue_us, frame.compute_us)
                rows = (pack_rows(frame.rows, self.bits),) if frame.rows else ()
                message = _encode((_VERDICT, *result, *times, *rows))
            case Extend():
                message = _encode((_EXTEND, frame.session, frame.base, self._pack(frame.ids)))
            case Open():
                check_rule(frame.rule)
                message = _encode((_OPEN, frame.session, frame.rule, frame.top_k, frame.reserve, self._pack(frame.ids)))
            case _:
                message = _encode(frame)
        self._check_size(message)
        return message

    def decode_up(self, message: bytes) -> ClientFrame:
        """Decode a message from the client."""
        self._check_size(message)
        try:
            frame: ClientFrame = _decode_up(message)
        except (ValueError, RecursionError) as error:
            raise_malformed("frame from the client", error)
        match frame:
            case Draft() | Follow():
                self._unpack_round(frame)
            case Extend():
                self._unpack_ids(frame)
            case Open():
                check_rule(frame.rule)
                self._unpack_ids(frame)
        return frame

    def decode_down(self, message: bytes) -> ServerFrame:
        """Decode a message from the server."""
        self._check_size(message)
        try:
            frame: ServerFrame = _decode_down(message)
        except (ValueError, RecursionError) as error:
            raise_malformed("frame from the server", error)
        if isinstance(frame, VerdictFrame):
            if frame.rows != ():
                self._unpack_rows(frame, self.limits.draft_tokens + 1)
            check_verdict(frame, self.limits, self.vocabulary_size)
        return frame

    def _unpack_round(self, frame: Draft | Follow) -> None:
        """Unpack the fields of a ``Draft`` or a ``Follow``, unless they were left out, and check it. Errors name the session and round."""
        try:
            self._unpack_ids(frame)
            if frame.rows != ():
                self._unpack_rows(frame, self.limits.draft_tokens)
            if frame.parents != ():
                force_setattr(frame, "parents", tuple(frame.parents))
            if isinstance(frame, Draft):
                check_draft(frame, self.limits)
            else:
                check_follow(frame, self.limits, self.vocabulary_size)
        except (FrameSizeError, MalformedFrameError) as error:
            error.session, error.round_number = frame.session, frame.round_number
            raise

    def _check_size(self, message: bytes) -> None:
        if len(message) > self.limits.frame_bytes:
            raise FrameSizeError(f"frame: expected at most {self.limits.frame_bytes} bytes, got {len(message)}")

    def _pack(self, ids: Sequence[int]) -> bytes:
        self._check_count(len(ids))
        if ids and not 0 <= min(ids) <= max(ids) < self.vocabulary_size:
            raise MalformedFrameError(f"ids: expected 0 to {self.vocabulary_size - 1}, got {min(ids)} to {max(ids)}")
        return pack(ids, self.bits)

    def _unpack_ids(self, frame: Open | Extend | Draft | Follow) -> None:
        packed: Any = frame.ids
        count = len(packed) * 8 // self.bits
        self._check_count(count)
        try:
            ids = tuple(unpack(packed, self.bits, count))
        except ValueError as error:
            raise MalformedFrameError(str(error)) from None
        if ids and max(ids) >= self.vocabulary_size:
            raise MalformedFrameError(f"ids: expected 0 to {self.vocabulary_size - 1}, got {max(ids)}")
        force_setattr(frame, "ids", ids)

    def _tail(self, frame: Draft | Follow) -> tuple[bytes, ...]:
        """Return the optional fields at the end of a ``Draft`` or a ``Follow``."""
        if frame.parents:
            return pack_rows(frame.rows, self.bits), bytes(frame.parents)
        return (pack_rows(frame.rows, self.bits),) if frame.rows else ()

    def _unpack_rows(self, frame: Draft | Follow | VerdictFrame, max_rows: int) -> None:
        packed: Any = frame.rows
        size, max_ids = self.vocabulary_size, self.limits.top_k
        rows = unpack_rows(packed, self.bits, vocabulary_size=size, max_rows=max_rows, max_ids=max_ids) if packed else ()
        force_setattr(frame, "rows", rows)

    def _check_count(self, count: int) -> None:
        if count > self.limits.context_tokens:
            raise FrameSizeError(f"ids: expected at most {self.limits.context_tokens}, got {count}")


def raise_malformed(what: str, error: Exception) -> NoReturn:
    """Raise MalformedFrameError for a message that msgspec couldn't decode.

    Args:
        what: the kind of frame that was expected.
        error: msgspec's error.

    Raises:
        MalformedFrameError: always.
    """
    if isinstance(error, RecursionError):
        raise MalformedFrameError(f"{what}: arrays are nested too deeply") from None
    if isinstance(error, UnicodeDecodeError):
        raise MalformedFrameError(f"{what}: expected text in UTF-8, got bytes that aren't valid UTF-8") from None
    text = str(error)
    raise MalformedFrameError(f"{what}: {text[:1].lower()}{text[1:]}") from None
