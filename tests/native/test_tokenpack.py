"""The id codec, both twins: the bit order, every width, every kind of buffer, and what is refused."""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco import _native
from streamco._native import tokenpack_py

WIDTHS = range(1, 33)
SEED = 17


def as_one_number(ids: list[int], bits: int) -> bytes:
    """The specification's one line."""
    return sum(value << (place * bits) for place, value in enumerate(ids)).to_bytes((len(ids) * bits + 7) // 8, "little")


def some_ids(count: int, bits: int) -> list[int]:
    rng = random.Random(f"{SEED} {count} {bits}")
    return [rng.getrandbits(bits) for _ in range(count)]


@st.composite
def packings(draw: st.DrawFn) -> tuple[int, list[int]]:
    bits = draw(st.integers(1, 32))
    edges = st.sampled_from([0, 1, (1 << bits) - 1, 1 << (bits - 1)])
    return bits, draw(st.lists(edges | st.integers(0, (1 << bits) - 1), max_size=70))


@given(packings())
def test_packed_ids_are_one_little_endian_number(tokenpack: ModuleType, packing: tuple[int, list[int]]) -> None:
    bits, ids = packing
    packed = tokenpack.pack(ids, bits)
    assert packed == as_one_number(ids, bits)
    assert len(packed) == tokenpack.packed_size(len(ids), bits)
    assert tokenpack.unpack(packed, bits, len(ids)) == ids


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 255, 256, 257, 1000])
def test_every_width_comes_back_at_every_remainder(tokenpack: ModuleType, count: int) -> None:
    for bits in WIDTHS:
        ids = some_ids(count, bits)
        packed = tokenpack.pack(tuple(ids), bits)
        assert packed == as_one_number(ids, bits)
        assert tokenpack.unpack(packed, bits, count) == ids


def test_the_bit_order_is_least_significant_first(tokenpack: ModuleType) -> None:
    assert tokenpack.pack([1, 0, 1, 1], 1) == b"\x0d"
    assert tokenpack.pack([0x12345, 0x0ABCD], 17) == (0x12345 | 0x0ABCD << 17).to_bytes(5, "little")
    assert tokenpack.pack([0xDEADBEEF], 32) == b"\xef\xbe\xad\xde"


def test_seventeen_bits_of_cl100k_take_seventeen_bytes_for_eight_ids(tokenpack: ModuleType) -> None:
    assert tokenpack.packed_size(8, 17) == 17
    assert tokenpack.packed_size(4096, 17) == 8704


BUFFERS: dict[str, Callable[[list[int]], Any]] = {
    "numpy uint16": lambda ids: np.array(ids, np.uint16),
    "numpy int16": lambda ids: np.array(ids, np.int16),
    "numpy uint32": lambda ids: np.array(ids, np.uint32),
    "numpy int32": lambda ids: np.array(ids, np.int32),
    "numpy int64": lambda ids: np.array(ids, np.int64),
    "numpy uint64": lambda ids: np.array(ids, np.uint64),
    "numpy intp": lambda ids: np.array(ids, np.intp),
    "array I": lambda ids: array("I", ids),
    "array i": lambda ids: array("i", ids),
    "array L": lambda ids: array("L", ids),
    "array q": lambda ids: array("q", ids),
    "array H": lambda ids: array("H", ids),
    "ctypes int32": lambda ids: (ctypes.c_int32 * len(ids))(*ids),
    "ctypes uint64": lambda ids: (ctypes.c_uint64 * len(ids))(*ids),
    "cast memoryview": lambda ids: memoryview(bytearray(array("I", ids).tobytes())).cast("I"),
    "unaligned memoryview": lambda ids: memoryview(bytearray(b"\0" + array("I", ids).tobytes()))[1:].cast("I"),
}


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("count", [1, 8, 23, 300])
def test_every_kind_of_buffer_packs_as_its_list_does_and_is_filled_again(tokenpack: ModuleType, kind: str, count: int) -> None:
    for bits in (1, 7, 13, 15):
        ids = some_ids(count, bits)
        source = BUFFERS[kind](ids)
        packed = tokenpack.pack(source, bits)
        assert packed == as_one_number(ids, bits)
        out = BUFFERS[kind]([0] * count)
        tokenpack.unpack_into(packed, bits, out)
        assert bytes(memoryview(out).cast("B")) == bytes(memoryview(source).cast("B"))


@pytest.mark.parametrize("kind", [kind for kind in BUFFERS if "memoryview" not in kind])
def test_an_empty_buffer_is_no_ids(tokenpack: ModuleType, kind: str) -> None:
    assert tokenpack.pack(BUFFERS[kind]([]), 9) == b""
    tokenpack.unpack_into(b"", 9, BUFFERS[kind]([]))


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64])
def test_wide_buffers_hold_every_width(tokenpack: ModuleType, dtype: type[np.unsignedinteger[Any]]) -> None:
    for bits in WIDTHS:
        ids = np.array(some_ids(77, bits), dtype)
        out = np.zeros(77, dtype)
        tokenpack.unpack_into(tokenpack.pack(ids, bits), bits, out)
        assert (out == ids).all()


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda packed: np.frombuffer(packed, np.uint8)])
def test_packed_ids_are_read_from_anything_bytes_like(tokenpack: ModuleType, wrap: Callable[[bytes], Any]) -> None:
    ids = some_ids(19, 17)
    assert tokenpack.unpack(wrap(tokenpack.pack(ids, 17)), 17, 19) == ids


def test_nothing_beside_the_output_is_touched(tokenpack: ModuleType) -> None:
    for bits in WIDTHS:
        for count in (1, 7, 8, 9, 17):
            around = np.full(count + 2, 0xAAAAAAAA, np.uint32)
            tokenpack.unpack_into(tokenpack.pack([0] * count, bits), bits, around[1:-1])
            assert around[0] == around[-1] == 0xAAAAAAAA
            assert not around[1:-1].any()


@pytest.mark.parametrize("bits", [-1, 0, 33, 64, 1 << 40])
def test_a_width_outside_1_to_32_is_refused(tokenpack: ModuleType, bits: int) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: tokenpack.pack([1], bits),
        lambda: tokenpack.pack(np.ones(1, np.uint32), bits),
        lambda: tokenpack.unpack(b"\0", bits, 1),
        lambda: tokenpack.unpack_into(b"\0", bits, np.ones(1, np.uint32)),
        lambda: tokenpack.packed_size(1, bits),
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"bits: expected a width of 1 to 32, got {bits}"):
            call()


@pytest.mark.parametrize("count", [-1, sys.maxsize])
def test_an_impossible_count_is_refused(tokenpack: ModuleType, count: int) -> None:
    with pytest.raises(ValueError, match=f"count: expected 0 to .* ids, got {count}"):
        tokenpack.unpack(b"", 8, count)
    with pytest.raises(ValueError, match="count"):
        tokenpack.packed_size(count, 8)


@pytest.mark.parametrize("value", [1 << 17, -1, -(1 << 40), 1 << 32, 1 << 63, 1 << 64, -(1 << 70), 1 << 200])
def test_an_id_that_does_not_fit_is_named_with_its_place(tokenpack: ModuleType, value: int) -> None:
    with pytest.raises(ValueError, match=rf"^id 300: expected 0 to 131071 \(17 bits\), got {value}$"):
        tokenpack.pack([5] * 300 + [value] + [7] * 10, 17)


@pytest.mark.parametrize("place", [0, 7, 8, 15, 16, 20])
@pytest.mark.parametrize(("dtype", "bits", "value"), [
    (np.uint16, 15, 1 << 15), (np.int16, 15, -1), (np.int16, 16, -1), (np.uint32, 17, 1 << 17), (np.uint32, 31, 1 << 31),
    (np.int32, 17, -1), (np.int32, 32, -1), (np.int64, 32, 1 << 32), (np.int64, 17, -1), (np.int64, 32, -(1 << 40)),
    (np.uint64, 32, 1 << 63),
])  # fmt: skip
def test_an_id_in_a_buffer_that_does_not_fit_is_named_too(tokenpack: ModuleType, place: int, dtype: Any, bits: int, value: int) -> None:
    ids = np.ones(21, dtype)
    ids[place] = value
    with pytest.raises(ValueError, match=rf"^id {place}: expected 0 to {(1 << bits) - 1} \({bits} bits\), got {value}$"):
        tokenpack.pack(ids, bits)


@pytest.mark.parametrize("size", [0, 33, 35, 1000])
def test_a_string_of_another_length_is_refused(tokenpack: ModuleType, size: int) -> None:
    expected = rf"packed ids: expected 34 bytes \(16 ids of 17 bits\), got {size}"
    with pytest.raises(ValueError, match=expected):
        tokenpack.unpack(bytes(size), 17, 16)
    with pytest.raises(ValueError, match=expected):
        tokenpack.unpack_into(bytes(size), 17, np.zeros(16, np.uint32))


def test_set_bits_after_the_last_id_are_refused(tokenpack: ModuleType) -> None:
    packed = bytearray(tokenpack.pack([1, 2, 3], 17))  # 51 bits in 7 bytes
    for bit in range(3, 8):
        spoiled = bytes(packed[:-1]) + bytes([packed[-1] | 1 << bit])
        with pytest.raises(ValueError, match=f"expected zero bits after the last of 3 ids, got {spoiled[-1]:#04x}"):
            tokenpack.unpack(spoiled, 17, 3)
        with pytest.raises(ValueError, match="zero bits"):
            tokenpack.unpack_into(bytearray(spoiled), 17, np.zeros(3, np.int32))


@pytest.mark.parametrize("item", [1.0, "1", None, np.int64(1), b"1"])
def test_a_list_holds_ints_only(tokenpack: ModuleType, item: object) -> None:
    with pytest.raises(TypeError, match=f"id 2: expected an int, got {type(item).__name__}"):
        tokenpack.pack([1, 2, item], 17)


@pytest.mark.parametrize(("source", "expected"), [
    ("text", "expected a list, a tuple or a buffer of 16, 32 or 64-bit integers, got str"),
    ({1}, "got set"),
    (range(3), "got range"),
    (b"12345678", "got format 'B'"),
    (np.ones(4, np.float32), "got format 'f'"),
    (np.ones(4, np.bool_), "got format '?'"),
    (np.ones(4, np.uint8), "got format 'B'"),
    (np.ones(4, ">u4" if sys.byteorder == "little" else "<u4"), "expected items of 16, 32 or 64-bit integers, got format"),
    (np.ones((2, 2), np.uint32), "expected one dimension, got 2"),
    (np.ones(4, np.uint32)[::2], "expected a contiguous buffer, got a strided ndarray"),
])  # fmt: skip
def test_what_is_not_a_row_of_integers_is_refused(tokenpack: ModuleType, source: Any, expected: str) -> None:
    with pytest.raises(TypeError) as caught:
        tokenpack.pack(source, 17)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("ids: ")
    with pytest.raises(TypeError) as caught:
        tokenpack.unpack_into(b"", 17, source)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("out: ")


def test_what_is_not_bytes_like_is_not_unpacked(tokenpack: ModuleType) -> None:
    with pytest.raises(TypeError, match="data: expected bytes, got str"):
        tokenpack.unpack("\0", 8, 1)
    with pytest.raises(TypeError, match="data: expected a contiguous buffer"):
        tokenpack.unpack(memoryview(b"\0\0\0\0")[::2], 8, 2)
    with pytest.raises(TypeError, match="data: expected bytes, got list"):
        tokenpack.unpack_into([0], 8, np.zeros(1, np.uint32))


def test_a_read_only_output_is_refused(tokenpack: ModuleType) -> None:
    out = np.zeros(4, np.uint32)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="out: expected a writable buffer, got a read-only ndarray"):
        tokenpack.unpack_into(bytes(4), 8, out)


@pytest.mark.parametrize(("dtype", "bits", "room"), [(np.int16, 16, 15), (np.uint16, 17, 16), (np.int32, 32, 31)])
def test_an_output_too_narrow_for_the_width_is_refused(tokenpack: ModuleType, dtype: Any, bits: int, room: int) -> None:
    with pytest.raises(ValueError, match=f"out: expected items of at least {bits} bits, got {room}"):
        tokenpack.unpack_into(bytes(tokenpack.packed_size(4, bits)), bits, np.zeros(4, dtype))


def test_buffers_are_released_after_success_and_after_refusal(tokenpack: ModuleType) -> None:
    source, packed, out = array("I", [1, 2, 1 << 20]), bytearray(3), array("I", [0, 0, 0])
    tokenpack.unpack_into(packed, 8, out)
    calls: tuple[Callable[[], object], ...] = (
        lambda: tokenpack.pack(source, 17),
        lambda: tokenpack.pack(source, 99),
        lambda: tokenpack.unpack(packed, 17, 3),
        lambda: tokenpack.unpack_into(packed, 17, out),
    )
    for call in calls:
        with pytest.raises(ValueError, match="expected"):
            call()
    source.append(1)  # an exported buffer can't grow
    packed.append(1)
    out.append(1)


def test_references_are_counted_exactly(tokenpack: ModuleType) -> None:
    ids = [1 << 20, 77777, 300]
    before = [sys.getrefcount(value) for value in ids]
    packed = tokenpack.pack(ids, 21)
    counted = sys.getrefcount(packed)
    for _ in range(20):
        tokenpack.pack(ids, 21)
        tokenpack.unpack(packed, 21, 3)
    assert [sys.getrefcount(value) for value in ids] == before
    assert sys.getrefcount(packed) == counted


@given(st.binary(max_size=40), st.integers(0, 34), st.integers(-1, 80))
def test_the_twins_agree_on_any_bytes_refusals_included(data: bytes, bits: int, count: int) -> None:
    if not _native.HAS_NATIVE:
        pytest.skip("the compiled leaves are not built, or STREAMCO_NO_NATIVE is set")
    from streamco._native import tokenpack as compiled

    def outcome(codec: Any) -> object:
        try:
            return codec.unpack(data, bits, count)
        except ValueError as error:
            return str(error)

    assert outcome(compiled) == outcome(tokenpack_py)
