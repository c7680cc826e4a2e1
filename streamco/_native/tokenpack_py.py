"""Packs integer ids of a fixed width into bits. This is the specification and pure twin of ``tokenpack.pyx``.

Bit order: the ids are written one after the other into one little-endian number, least significant bit first. Bit j of id i is bit
(i * bits + j) of that number. Byte k of the result holds bits 8k to 8k + 7, where bit 8k is the least significant. The last byte is padded
with zero bits, and a reader refuses any other padding, so equal ids always give equal bytes. In one line::

    sum(id << (i * bits) for i, id in enumerate(ids)).to_bytes((len(ids) * bits + 7) // 8, "little")

Ids are passed as a list or tuple of ints, or as a contiguous one-dimensional buffer of 16, 32 or 64-bit integers in native order (numpy,
array.array, ctypes, a cast memoryview). Plain bytes are refused as ids, because they don't say how wide an item is. Eight ids of b bits are
b whole bytes, and both twins work in blocks of this size.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any, Literal

__all__ = ["pack", "packed_size", "unpack", "unpack_into"]

_Code = Literal["h", "H", "i", "I", "q", "Q"]
_CODES: dict[tuple[int, bool], _Code] = {  # by size in bytes, and whether signed
    (2, False): "H",
    (2, True): "h",
    (4, False): "I",
    (4, True): "i",
    (8, False): "Q",
    (8, True): "q",
}
_ORDERS = {"@", "=", "<"} if sys.byteorder == "little" else {"@", "=", ">", "!"}


def packed_size(count: int, bits: int, /) -> int:
    """Return how many bytes ``count`` ids of ``bits`` bits each take.

    Raises:
        ValueError: bits is not 1 to 32, or count is negative or too large.
    """
    if not 1 <= bits <= 32:
        raise ValueError(f"bits: expected a width of 1 to 32, got {bits}")
    if not 0 <= count <= sys.maxsize // 32:
        raise ValueError(f"count: expected 0 to {sys.maxsize // 32} ids, got {count}")
    return (count * bits + 7) // 8


def pack(ids: Any, bits: int, /) -> bytes:
    """Pack ids, each 0 <= id < 2**bits, into ``packed_size(len(ids), bits)`` bytes.

    Raises:
        ValueError: bits is not 1 to 32, or an id is negative or too large.
        TypeError: ids is neither a list or tuple of ints nor a contiguous buffer of integers.
    """
    values: list[int] | tuple[int, ...] = ids if isinstance(ids, (list, tuple)) else _integers(ids, "ids").tolist()
    packed = bytearray()
    packed_size(len(values), bits)
    for start in range(0, len(values), 8):
        block = values[start : start + 8]
        number = 0
        for index, value in enumerate(block):
            if not isinstance(value, int):
                raise TypeError(f"id {start + index}: expected an int, got {type(value).__name__}")
            if not 0 <= value < 1 << bits:
                raise ValueError(f"id {start + index}: expected 0 to {(1 << bits) - 1} ({bits} bits), got {value}")
            number |= value << (index * bits)
        packed += number.to_bytes(packed_size(len(block), bits), "little")
    return bytes(packed)


def unpack(data: Any, bits: int, count: int, /) -> list[int]:
    """Return the ``count`` ids that ``pack`` wrote into data (anything bytes-like).

    Raises:
        ValueError: bits is not 1 to 32, data isn't ``packed_size(count, bits)`` bytes long, or bits after the last id are set.
        TypeError: data is not bytes-like.
    """
    raw = bytes(_buffer(data, "data", "bytes"))
    if len(raw) != packed_size(count, bits):
        raise ValueError(f"packed ids: expected {packed_size(count, bits)} bytes ({count} ids of {bits} bits), got {len(raw)}")
    if raw and raw[-1] >> ((count * bits - 1) % 8 + 1):
        raise ValueError(f"packed ids: expected zero bits after the last of {count} ids, got {raw[-1]:#04x} as the last byte")
    mask = (1 << bits) - 1
    ids: list[int] = []
    for start in range(0, count, 8):
        number = int.from_bytes(raw[start // 8 * bits : (start // 8 + 1) * bits], "little")
        ids += [number >> index * bits & mask for index in range(min(8, count - start))]
    return ids


def unpack_into(data: Any, bits: int, out: Any, /) -> None:
    """Unpack ids into ``out``, a writable buffer of integers with one item for each id. It must not share memory with data.

    Raises:
        ValueError: as in ``unpack``, or ids of this width don't fit the items of ``out``.
        TypeError: data is not bytes-like, or out is not a writable contiguous buffer of integers.
    """
    view = _integers(out, "out")
    if view.readonly:
        raise TypeError(f"out: expected a writable buffer, got a read-only {type(out).__name__}")
    ids = unpack(data, bits, len(view))
    item_bits = 8 * view.itemsize - (view.format in {"h", "i", "q"})
    if bits > item_bits:
        raise ValueError(f"out: expected items of at least {bits} bits, got {item_bits}")
    for index, value in enumerate(ids):
        view[index] = value


def _buffer(source: Any, name: str, wanted: str) -> memoryview:
    try:
        view = memoryview(source)
    except TypeError:
        raise TypeError(f"{name}: expected {wanted}, got {type(source).__name__}") from None
    if not view.c_contiguous:
        raise TypeError(f"{name}: expected a contiguous buffer, got a strided {type(source).__name__}")
    return view


def _integers(source: Any, name: str) -> memoryview:
    """Return the items of a one-dimensional buffer of integers."""
    view = _buffer(source, name, "a list, a tuple or a buffer of 16, 32 or 64-bit integers")
    if view.ndim != 1:
        raise TypeError(f"{name}: expected one dimension, got {view.ndim}")
    code = view.format[1:] if view.format[:1] in _ORDERS else view.format
    if code not in {"h", "H", "i", "I", "l", "L", "q", "Q"}:
        raise TypeError(f"{name}: expected items of 16, 32 or 64-bit integers, got format {view.format!r}")
    native = _CODES[view.itemsize, code.islower()]
    if not view.nbytes:  # an empty view can't be cast
        empty = memoryview(array(native))
        return empty.toreadonly() if view.readonly else empty
    return view.cast("B").cast(native)
