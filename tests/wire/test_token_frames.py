"""Frames of token ids: round trips, the format byte by byte, and an error of its own for every way a frame can be wrong."""

from __future__ import annotations

import random
import struct
import zlib
from array import array
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import EndpointProtocolError
from streamco.wire import token_frames as tokens
from streamco.wire.token_frames import TokenCodec, bits_for, vocabulary_fingerprint

FINGERPRINT = "100277:0123456789abcdef"
CODEC = TokenCodec(FINGERPRINT, 100277, max_tokens=1000)


def with_checksum(header: bytes, packed: bytes) -> bytes:
    return header + struct.pack("<I", zlib.crc32(header + packed)) + packed


def altered(frame: bytes, place: int, value: int) -> bytes:
    """The frame with one header byte changed and the checksum made right again."""
    header = bytearray(frame[:16])
    header[place] = value
    return with_checksum(bytes(header), frame[20:])


@given(st.integers(1, 1 << 32), st.data())
def test_any_ids_of_any_vocabulary_come_back(size: int, data: st.DataObject) -> None:
    codec = TokenCodec(f"{size}:00", size)
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    frame = codec.encode(ids)
    assert codec.decode(frame) == ids
    assert len(frame) == 20 + -(-len(ids) * codec.bits // 8)


def test_the_format_is_as_written_down() -> None:
    ids = [1, 100276, 77]
    packed = (1 | 100276 << 17 | 77 << 34).to_bytes(7, "little")
    header = b"TK" + bytes([1, 17]) + (3).to_bytes(4, "little") + sha256(FINGERPRINT.encode()).digest()[:8]
    assert CODEC.encode(ids) == with_checksum(header, packed)


def test_no_ids_are_a_frame_too() -> None:
    frame = CODEC.encode([])
    assert len(frame) == 20
    assert CODEC.decode(frame) == []


def test_tuples_and_buffers_make_the_same_frame_as_lists() -> None:
    ids = [5, 6, 100000]
    assert CODEC.encode(tuple(ids)) == CODEC.encode(array("I", ids)) == CODEC.encode(ids)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_frames_are_read_from_anything_bytes_like(wrap: type[bytes]) -> None:
    assert CODEC.decode(wrap(CODEC.encode([1, 2, 3]))) == [1, 2, 3]


def test_every_truncation_is_reported_as_truncation() -> None:
    frame = CODEC.encode(list(range(20)))
    for length in range(len(frame)):
        with pytest.raises(tokens.TokenTruncatedError, match=f"got {length}"):
            CODEC.decode(frame[:length])


@pytest.mark.parametrize("extra", [1, 3, 500])
def test_bytes_after_the_ids_are_reported_as_trailing(extra: int) -> None:
    with pytest.raises(tokens.TokenTrailingError, match=rf"expected 27 bytes \(3 ids of 17 bits\), got {extra} more"):
        CODEC.decode(CODEC.encode([1, 2, 3]) + bytes(extra))


def test_set_bits_after_the_last_id_are_reported_as_trailing() -> None:
    frame = CODEC.encode([1, 2, 3])
    spoiled = with_checksum(frame[:16], frame[20:-1] + bytes([frame[-1] | 0x80]))
    with pytest.raises(tokens.TokenTrailingError, match="zero bits after the last of 3 ids"):
        CODEC.decode(spoiled)


def test_a_frame_of_something_else_is_reported_as_such() -> None:
    with pytest.raises(tokens.TokenVersionError, match=r"must begin with b'TK', got b'da'"):
        CODEC.decode(b'data: {"choices": []}')


@pytest.mark.parametrize("start", [b"X", b"TX", b"\0" * 20])
def test_a_short_beginning_of_something_else_is_not_called_truncated(start: bytes) -> None:
    with pytest.raises(tokens.TokenVersionError):
        CODEC.decode(start)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_named(version: int) -> None:
    with pytest.raises(tokens.TokenVersionError, match=f"expected version 1, got {version}"):
        CODEC.decode(altered(CODEC.encode([1]), 2, version))


@pytest.mark.parametrize("width", [0, 33, 255])
def test_a_width_that_cannot_be_is_named(width: int) -> None:
    with pytest.raises(tokens.TokenWidthError, match=f"expected ids of 1 to 32 bits, got a width of {width}"):
        CODEC.decode(altered(CODEC.encode([1]), 3, width))


def test_more_ids_than_the_limit_are_refused_before_they_are_there() -> None:
    header = struct.pack("<2sBBI8s", b"TK", 1, 17, 1001, bytes(8))
    with pytest.raises(tokens.TokenCountError, match="expected at most 1000 ids, got 1001"):
        CODEC.decode(header + bytes(4))
    with pytest.raises(tokens.TokenCountError, match="expected at most 1000 ids, got 4294967295"):
        CODEC.decode(struct.pack("<2sBBI8s", b"TK", 1, 32, 0xFFFFFFFF, bytes(8)) + bytes(4))


def test_more_ids_than_the_limit_are_not_written() -> None:
    assert len(CODEC.decode(CODEC.encode([7] * 1000))) == 1000
    with pytest.raises(tokens.TokenCountError, match="expected at most 1000 ids, got 1001"):
        CODEC.encode([7] * 1001)


def test_every_flipped_bit_is_noticed() -> None:
    frame = CODEC.encode([1, 2, 3, 100276])
    for place in range(len(frame)):
        for bit in range(8):
            spoiled = bytearray(frame)
            spoiled[place] ^= 1 << bit
            with pytest.raises(tokens.TokenFrameError):
                CODEC.decode(spoiled)


@pytest.mark.parametrize("place", [8, 15, 16, 19, 20, -1])
def test_a_flipped_bit_in_vocabulary_checksum_or_ids_is_reported_as_a_wrong_checksum(place: int) -> None:
    spoiled = bytearray(CODEC.encode(list(range(16))))
    spoiled[place] ^= 1
    with pytest.raises(tokens.TokenChecksumError, match=r"token frame of 16 ids: expected checksum 0x.{8}, got 0x.{8}"):
        CODEC.decode(spoiled)


def test_ids_of_another_vocabulary_are_refused() -> None:
    other = TokenCodec("100277:fedcba9876543210", 100277)
    with pytest.raises(tokens.TokenVocabularyError, match=rf"fingerprint {FINGERPRINT}\), got .{{16}} of another"):
        CODEC.decode(other.encode([1, 2, 3]))


@pytest.mark.parametrize("value", [100277, 131071, 1 << 17, 1 << 32, -1, 1 << 80])
def test_an_id_outside_the_vocabulary_is_not_written(value: int) -> None:
    with pytest.raises(tokens.TokenIdError, match=rf"id 2: expected .*, got {value}$") as caught:
        CODEC.encode([3, 100276, value])
    assert isinstance(caught.value, ValueError)


def test_an_id_outside_the_vocabulary_is_not_read() -> None:
    larger = TokenCodec(FINGERPRINT, 131072)
    with pytest.raises(tokens.TokenIdError, match="id 1: expected one of the vocabulary's 100277 ids, got 100277"):
        CODEC.decode(larger.encode([5, 100277, 131071]))


def test_the_width_on_the_wire_counts_not_the_readers() -> None:
    wide = TokenCodec(FINGERPRINT, 1 << 20)
    assert CODEC.decode(wide.encode([5, 100276])) == [5, 100276]


def test_every_error_is_a_protocol_error() -> None:
    names = [name for name in tokens.__all__ if name.endswith("Error")]
    assert len(names) == 9
    assert all(issubclass(getattr(tokens, name), EndpointProtocolError) for name in names)
    with pytest.raises(EndpointProtocolError):
        CODEC.decode(b"")


@given(st.binary(max_size=80))
def test_noise_is_refused_and_nothing_else_happens(noise: bytes) -> None:
    with pytest.raises(tokens.TokenFrameError):
        CODEC.decode(noise)


@pytest.mark.parametrize("seed", range(20))
def test_a_believable_header_before_noise_is_refused_too(seed: int) -> None:
    rng = random.Random(seed)
    header = struct.pack("<2sBBI8s", b"TK", 1, rng.randint(0, 40), rng.randint(0, 30), CODEC.encode([])[8:16])
    with pytest.raises(tokens.TokenFrameError):
        CODEC.decode(with_checksum(header, rng.randbytes(rng.randint(0, 120))) + b"\0")


@pytest.mark.parametrize(
    ("size", "bits"),
    [(1, 1), (2, 1), (3, 2), (49152, 16), (65536, 16), (65537, 17), (100277, 17), (131072, 17), (131073, 18), (262144, 18), (1 << 32, 32)],
)
def test_bits_for_a_vocabulary_hold_its_last_id_and_no_bit_more(size: int, bits: int) -> None:
    assert bits_for(size) == bits


@pytest.mark.parametrize("size", [0, -1, (1 << 32) + 1])
def test_a_vocabulary_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"vocabulary size: expected 1 to 2\*\*32 tokens, got {size}"):
        bits_for(size)


def test_a_fingerprint_is_size_and_hash_of_the_pieces() -> None:
    expected = sha256(b"1:a2: b0:").hexdigest()[:16]
    assert vocabulary_fingerprint([b"a", b" b", b""]) == f"3:{expected}"


def test_fingerprints_differ_where_pieces_are_cut_or_ordered_differently() -> None:
    vocabularies = [[b"ab", b"c"], [b"a", b"bc"], [b"c", b"ab"], [b"abc"], [b"ab", b"c", b""], [b"1:a"], [b"a"], []]
    assert len({vocabulary_fingerprint(pieces) for pieces in vocabularies}) == len(vocabularies)


# The short form


@given(st.integers(1, 1 << 32), st.data())
def test_a_short_frame_brings_any_ids_back_with_a_header_of_four_bytes(size: int, data: st.DataObject) -> None:
    codec = TokenCodec(f"{size}:00", size)
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    frame = codec.encode_short(ids)
    width = max(8, max(ids, default=0).bit_length())
    assert codec.decode(frame) == ids
    assert len(frame) == 4 + -(-len(ids) * width // 8)


def test_the_short_format_is_as_written_down() -> None:
    packed = (1 | 100276 << 17 | 77 << 34).to_bytes(7, "little")
    check = zlib.crc32(sha256(FINGERPRINT.encode()).digest()[:8] + bytes([0x80 + 17]) + packed)
    assert CODEC.encode_short([1, 100276, 77]) == bytes([0x80 + 17]) + struct.pack("<I", check)[:3] + packed


def test_ids_of_eight_bits_take_a_byte_each() -> None:
    assert len(CODEC.encode_short([1, 255, 77])) == 4 + 3
    assert len(CODEC.encode_short([1, 256, 77])) == 4 + 4


def test_a_run_beyond_1024_ids_has_the_long_form() -> None:
    codec = TokenCodec(FINGERPRINT, 100277)
    assert codec.encode_short([5] * 1024)[0] == 0x80 + 8
    assert codec.encode_short([5] * 1025) == codec.encode([5] * 1025)


def test_every_changed_bit_and_every_truncation_of_a_short_frame_is_refused() -> None:
    frame = CODEC.encode_short([1, 100276, 77, 4])
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(tokens.TokenFrameError):
            CODEC.decode(damaged)
    for length in range(len(frame)):
        with pytest.raises(tokens.TokenFrameError):
            CODEC.decode(frame[:length])
    with pytest.raises(tokens.TokenFrameError):
        CODEC.decode(frame + b"\0")


def test_a_short_frame_of_another_vocabulary_is_refused() -> None:
    other = TokenCodec("100277:fedcba9876543210", 100277)
    with pytest.raises(tokens.TokenChecksumError, match=f"got [0-9a-f]{{6}} from its bytes and the vocabulary {FINGERPRINT}"):
        CODEC.decode(other.encode_short([1, 2, 3]))


def short_frame(head: int, packed: bytes) -> bytes:
    """A frame with a right check around whatever bytes."""
    check = zlib.crc32(sha256(FINGERPRINT.encode()).digest()[:8] + bytes([head]) + packed)
    return bytes([head]) + struct.pack("<I", check)[:3] + packed


@pytest.mark.parametrize(
    ("frame", "kind", "message"),
    [
        (short_frame(0x80 + 7, b""), tokens.TokenWidthError, "ids of 8 to 32 bits, got a width of 7"),
        (short_frame(0x80 + 33, b""), tokens.TokenWidthError, "ids of 8 to 32 bits, got a width of 33"),
        (b"\x91\0", tokens.TokenTruncatedError, "a header of 4 bytes, got 2 bytes in all"),
        (short_frame(0x80 + 8, bytes(1025)), tokens.TokenCountError, "at most 1000 ids, got 1025|at most 1024 ids, got 1025"),
        (short_frame(0x80 + 8, bytes(1001)), tokens.TokenCountError, "at most 1000 ids, got 1001"),
        (short_frame(0x80 + 17, bytes(4)), tokens.TokenTrailingError, "expected 3 bytes .1 ids of 17 bits., got 4"),
        (short_frame(0x80 + 17, b"\1\0\2"), tokens.TokenTrailingError, "zero bits after the last of 1 ids"),
        (short_frame(0x80 + 17, (100277).to_bytes(3, "little")), tokens.TokenIdError, "the vocabulary's 100277 ids, got 100277"),
    ],
)
def test_a_short_frame_that_is_wrong_says_how(frame: bytes, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        CODEC.decode(frame)


@pytest.mark.parametrize("ids", [[100277], [-1], [1 << 40]])
def test_a_short_frame_of_an_id_beyond_the_vocabulary_is_not_written(ids: list[int]) -> None:
    for encode in (CODEC.encode_short, CODEC.pack_bare):
        with pytest.raises(tokens.TokenIdError):
            encode(ids)


@given(st.integers(1, 1 << 32), st.data())
def test_bare_ids_come_back_and_have_no_header(size: int, data: st.DataObject) -> None:
    codec = TokenCodec(f"{size}:00", size)
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    packed = codec.pack_bare(ids)
    assert codec.unpack_bare(packed) == ids
    assert len(packed) == -(-len(ids) * max(8, codec.bits) // 8)


@given(st.binary(max_size=64))
def test_any_bytes_are_ids_or_a_token_frame_error(data: bytes) -> None:
    for decode in (CODEC.decode, CODEC.unpack_bare):
        try:
            ids = decode(data)
        except tokens.TokenFrameError:
            continue
        assert all(0 <= token < CODEC.vocabulary_size for token in ids)
