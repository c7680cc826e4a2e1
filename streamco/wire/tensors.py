"""Hidden states as bytes: rows of floats in one of three formats (HAT, section 3.1).

The bytes of an array are its rows, one after the other without gaps, with little-endian numbers::

    format   bytes in a row of ``width`` numbers            what is lost
    f32      4 x width                                      nothing
    f16      2 x width                                      hardly ever the next token; with quantised weights it can change
    i8       2 + 32 for each block of 32 numbers            about 1 token in 100 changes, in each direction

A block of ``i8`` has a 16-bit float, the scale, and 32 signed bytes. Each number is its byte times the scale. The last block of a row may
hold fewer numbers. Use ``i8`` only if a different text is acceptable.

States are finite. NaN and infinity are refused on both sides, because a single one spoils all later states of a session. A state too
large for a 16-bit float is sent as ``f32``. The sender chooses the format of each array, and sends it with the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["BLOCK", "StateFormat", "StateFormatError", "decode_states", "encode_states", "state_bytes"]

StateFormat = Literal["f32", "f16", "i8"]

BLOCK = 32  # numbers that share a scale
_MAX_F16 = 65504.0
_MAX_BYTE = 127


class StateFormatError(ValueError):
    """The bytes or numbers aren't hidden states."""


def state_bytes(rows: int, width: int, form: StateFormat) -> int:
    """Return an array's size in bytes, which a receiver checks before it allocates memory.

    Raises:
        StateFormatError: the number of rows is negative, or a row has no numbers.
    """
    if rows < 0 or width < 1:
        raise StateFormatError(f"states: expected rows of at least 1 number, got {rows} rows of {width}")
    if form == "f32":
        return rows * width * 4
    if form == "f16":
        return rows * width * 2
    return rows * (width + 2 * -(-width // BLOCK))


def encode_states(states: NDArray[np.float32], form: StateFormat) -> tuple[StateFormat, bytes]:
    """Encode states, and return the format used and the bytes.

    Args:
        states: finite numbers, shape (rows, width).
        form: the wanted format. ``f32`` is used instead if a number is too large for it.

    Raises:
        StateFormatError: the shape is wrong, or a number is NaN or infinite.
    """
    import numpy as np

    if states.ndim != 2 or states.shape[1] < 1:
        raise StateFormatError(f"states: expected shape (rows, width), got {states.shape}")
    largest = float(np.abs(states).max(initial=0.0))
    if not np.isfinite(largest):
        raise StateFormatError("states: expected finite numbers, got NaN or infinity")
    limit = {"f32": np.inf, "f16": _MAX_F16, "i8": _MAX_F16 * _MAX_BYTE}[form]
    if form == "f32" or largest > limit:
        return "f32", states.astype("<f4", copy=False).tobytes()
    if form == "f16":
        return "f16", states.astype("<f2").tobytes()
    return "i8", _encode_blocks(states)


def decode_states(data: bytes | memoryview, rows: int, width: int, form: StateFormat) -> NDArray[np.float32]:
    """Decode states of shape (rows, width). In format ``f32`` they share the memory of ``data``.

    Raises:
        StateFormatError: the size isn't ``state_bytes``, or a number is NaN or infinite.
    """
    import numpy as np

    expected = state_bytes(rows, width, form)
    if len(data) != expected:
        raise StateFormatError(f"states: expected {expected} bytes for {rows} rows of {width} in {form}, got {len(data)}")
    if form == "i8":
        states = _decode_blocks(data, rows, width)
    else:
        states = np.frombuffer(data, dtype="<f4" if form == "f32" else "<f2").astype(np.float32, copy=False).reshape(rows, width)
    if not np.isfinite(states).all():
        raise StateFormatError("states: expected finite numbers, got NaN or infinity")
    return states


def _encode_blocks(states: NDArray[np.float32]) -> bytes:
    import numpy as np

    rows, width = states.shape
    blocks = -(-width // BLOCK)
    padded = np.zeros((rows, blocks, BLOCK), np.float32)
    padded.reshape(rows, blocks * BLOCK)[:, :width] = states
    scales = _scales(np.abs(padded).max(axis=2, initial=0.0))
    used = scales.astype(np.float32)[:, :, None]
    numbers = np.divide(padded, used, out=np.zeros_like(padded), where=used > 0)
    numbers = np.clip(np.rint(numbers), -_MAX_BYTE, _MAX_BYTE).astype(np.int8)
    packed = np.concatenate([scales[:, :, None].view(np.int8), numbers], axis=2).reshape(rows, blocks * (2 + BLOCK))
    return packed[:, : width + 2 * blocks].tobytes()


def _scales(largest: NDArray[np.float32]) -> NDArray[np.float16]:
    """Return a 16-bit scale for each block, rounded up so that no number is cut off."""
    import numpy as np

    exact = largest / np.float32(_MAX_BYTE)
    scales = exact.astype("<f2")
    return np.where(scales.astype(np.float32) < exact, np.nextafter(scales, np.float16(np.inf)), scales).astype("<f2")


def _decode_blocks(data: bytes | memoryview, rows: int, width: int) -> NDArray[np.float32]:
    import numpy as np

    blocks = -(-width // BLOCK)
    packed = np.zeros((rows, blocks * (2 + BLOCK)), np.int8)
    packed[:, : width + 2 * blocks] = np.frombuffer(data, dtype=np.int8).reshape(rows, width + 2 * blocks)
    split = packed.reshape(rows, blocks, 2 + BLOCK)
    scales = np.ascontiguousarray(split[:, :, :2]).view("<f2").astype(np.float32)
    with np.errstate(invalid="ignore"):  # zero times an infinite scale is NaN, which the caller refuses
        states = split[:, :, 2:].astype(np.float32) * scales
    return np.ascontiguousarray(states.reshape(rows, blocks * BLOCK)[:, :width])
