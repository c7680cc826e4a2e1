"""Turns split protocol frames into bytes and back. They are msgpack arrays, with states in the layout of ``streamco.wire.tensors``.

The size of a message is checked against the limits before its states are read. msgspec decodes a message directly into a frame, and the
states are then unpacked in place. States of 32-bit floats share the message's memory.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
from msgspec.structs import force_setattr

from streamco.wire.split.frames import (
    FORMATS,
    Rows,
    SplitClientFrame,
    SplitLimits,
    SplitServerFrame,
    States,
)
from streamco.wire.tensors import StateFormatError, decode_states, encode_states, state_bytes
from streamco.wire.verify.codec import MIN_FRAME_BYTES, raise_malformed
from streamco.wire.verify.errors import FrameSizeError, MalformedFrameError

__all__ = ["SplitCodec"]

_ROWS, _STATES = (each.__struct_config__.tag for each in (Rows, States))
_encode = msgspec.msgpack.Encoder().encode
_decode_up = msgspec.msgpack.Decoder(SplitClientFrame).decode
_decode_down = msgspec.msgpack.Decoder(SplitServerFrame).decode


class SplitCodec:
    """Encodes and decodes the frames for one model.

    Args:
        width: count of numbers in a state, 1 or more.
        limits: largest sizes in both directions. None means the defaults of ``SplitLimits``.

    All methods raise FrameSizeError beyond the limits, and MalformedFrameError for anything else that isn't a valid frame, including NaN
    and infinity in the states. If the session and the round could be read, the error names them.
    """

    __slots__ = ("frame_bytes", "limits", "width")

    def __init__(self, width: int, limits: SplitLimits | None = None) -> None:
        self.width = width
        self.limits = limits or SplitLimits()
        self.frame_bytes = max(MIN_FRAME_BYTES, state_bytes(self.limits.rows, width, "f32") + 64)
        """Maximum size of a message in bytes."""

    def within(self, limits: SplitLimits) -> SplitCodec:
        """Return a codec whose limits are each the smaller of this codec's and the given ones."""
        ours = self.limits
        smaller = SplitLimits(
            context_rows=min(ours.context_rows, limits.context_rows),
            rows=min(ours.rows, limits.rows),
            sessions=min(ours.sessions, limits.sessions),
            rounds=min(ours.rounds, limits.rounds),
        )
        return SplitCodec(self.width, smaller)

    def encode(self, frame: SplitClientFrame | SplitServerFrame) -> bytes:
        """Encode a frame as one message. States that don't fit their format are written as f32."""
        match frame:
            case Rows():
                self._check_rows(frame)
                form, data = self._pack(frame)
                message = _encode((_ROWS, frame.session, frame.round_number, frame.position, frame.wanted, form, data))
            case States():
                self._check_count(len(frame.states), frame)
                form, data = self._pack(frame)
                figures = (frame.queue_us, frame.compute_us, frame.load_rows, frame.steady_rows)
                costs = (frame.row_costs,) if frame.row_costs else ()
                message = _encode((_STATES, frame.session, frame.round_number, form, data, *figures, *costs))
            case _:
                message = _encode(frame)
        self._check_size(message)
        return message

    def decode_up(self, message: bytes) -> SplitClientFrame:
        """Decode a message from the client."""
        self._check_size(message)
        try:
            frame: SplitClientFrame = _decode_up(message)
        except (ValueError, RecursionError) as error:
            raise_malformed("frame from the client", error)
        if isinstance(frame, Rows):
            self._unpack(frame)
            self._check_rows(frame)
        return frame

    def decode_down(self, message: bytes) -> SplitServerFrame:
        """Decode a message from the server."""
        self._check_size(message)
        try:
            frame: SplitServerFrame = _decode_down(message)
        except (ValueError, RecursionError) as error:
            raise_malformed("frame from the server", error)
        if isinstance(frame, States):
            self._unpack(frame)
        return frame

    def _pack(self, frame: Rows | States) -> tuple[int, bytes]:
        if frame.states.ndim != 2 or frame.states.shape[1] != self.width:
            _refuse(frame, f"expected shape (rows, {self.width}), got {frame.states.shape}")
        try:
            form, data = encode_states(frame.states, frame.form)
        except StateFormatError as error:
            _refuse(frame, str(error))
        return FORMATS.index(form), data

    def _unpack(self, frame: Rows | States) -> None:
        """Replace a decoded frame's format number by the format's name, and its bytes by the states."""
        number: Any = frame.form
        packed: Any = frame.states
        form = FORMATS[number]
        count, rest = divmod(len(packed), state_bytes(1, self.width, form))
        if rest:
            _refuse(frame, f"expected rows of {state_bytes(1, self.width, form)} bytes in {form}, got {len(packed)} bytes")
        self._check_count(count, frame)
        try:
            states = decode_states(packed, count, self.width, form)
        except StateFormatError as error:
            _refuse(frame, str(error))
        force_setattr(frame, "form", form)
        force_setattr(frame, "states", states)

    def _check_rows(self, rows: Rows) -> None:
        count = len(rows.states)
        self._check_count(count, rows)
        if not count or rows.wanted > count:
            _refuse(rows, f"expected at least 1 row and no more wanted than there are, got {count} rows and {rows.wanted} wanted")

    def _check_count(self, count: int, frame: Rows | States) -> None:
        if count > self.limits.rows:
            message = f"states: expected at most {self.limits.rows} rows, got {count}"
            raise FrameSizeError(message, session=frame.session, round_number=frame.round_number)

    def _check_size(self, message: bytes) -> None:
        if len(message) > self.frame_bytes:
            raise FrameSizeError(f"frame: expected at most {self.frame_bytes} bytes, got {len(message)}")


def _refuse(frame: Rows | States, text: str) -> NoReturn:
    text = text if text.startswith("states: ") else f"states: {text}"
    raise MalformedFrameError(text, session=frame.session, round_number=frame.round_number)
