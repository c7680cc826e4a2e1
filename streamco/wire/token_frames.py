"""Frames of packed token ids. Engines with the same vocabulary exchange them, so that no text has to be tokenised again.

Version 1 of the format, with all numbers little-endian::

    offset  bytes  field
    0       2      magic, 0x54 0x4B ("TK")
    2       1      version, 1
    3       1      width: bits of one id, 1 to 32
    4       4      count: number of ids
    8       8      vocabulary: the first 8 bytes of the SHA-256 of the vocabulary's fingerprint (UTF-8)
    16      4      checksum: CRC-32 (as zlib's) of bytes 0 to 15 and of the ids
    20      n      ids: count x width bits, least significant bit first, zero bits up to a whole byte; n = ceil(count * width / 8)

Nothing follows the ids. The width is ceil(log2(size)) for the vocabulary's size, which is 17 for cl100k (DiSCo section 4.3: 54.40 % fewer
bytes than the text). ``streamco._native.tokenpack_py`` specifies the bit order.

A run of up to 1024 ids has a short form, because a header of 20 bytes is larger than the ids of most hand-overs::

    offset  bytes  field
    0       1      128 + width: bits of one id, 8 to 32
    1       3      check: the low 3 bytes of the CRC-32 of the vocabulary's 8 bytes (as above), byte 0 and the ids
    4       n      ids, packed as above

The width is the smallest that holds the run's largest id, so a run of common tokens is shorter still. The transport (HTTP, MessagePack)
says where the frame ends, and an id has 8 bits or more, so the count is floor(8 * n / width). The check covers the vocabulary: ids of
another vocabulary are refused like damaged ids, except for one frame in 16 million.

Where both ends know the vocabulary, and damage is impossible or noticed on a lower layer (the body of an HTTP response), ``pack_bare``
packs ids without any header, in the vocabulary's width but at least 8 bits.

The fingerprint of a vocabulary is ``SIZE:HASH``. HASH is the first 16 hex digits of the SHA-256 over every piece's bytes, each preceded by
its length in decimal and a colon. Names and sizes alone don't prove that two models mean the same tokens by the same ids.

A reader checks in this order, and each check has its own error: magic and version, a whole header, width, count against the reader's limit,
missing bytes, trailing bytes, checksum, vocabulary, the bits after the last id, each id against the vocabulary's size. The first byte
shows which form a frame has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from hashlib import sha256
from struct import Struct

from streamco._native import pack, packed_size, unpack
from streamco.errors import EndpointProtocolError

__all__ = [
    "TokenChecksumError",
    "TokenCodec",
    "TokenCountError",
    "TokenFrameError",
    "TokenIdError",
    "TokenTrailingError",
    "TokenTruncatedError",
    "TokenVersionError",
    "TokenVocabularyError",
    "TokenWidthError",
    "bits_for",
    "vocabulary_fingerprint",
]

_MAGIC = b"TK"
_VERSION = 1
_HEADER = Struct("<2sBBI8s")
_CHECKSUM = Struct("<I")
_IDS = _HEADER.size + _CHECKSUM.size
_SHORT_MARK = 0x80
_SHORT_IDS = 4
_SHORT_COUNT = 1024  # above it a header of 20 bytes is less than 1 %
_MIN_SHORT_BITS = 8  # so that a length in bytes has one count of ids


class TokenFrameError(EndpointProtocolError):
    """A frame of token ids that this side can't read or write."""


class TokenVersionError(TokenFrameError):
    """The bytes aren't a token frame, or are one of a different version."""


class TokenTruncatedError(TokenFrameError):
    """The frame ends before the ids that its header announces."""


class TokenTrailingError(TokenFrameError):
    """Extra bytes follow the last id, or the unused bits of its last byte aren't zero."""


class TokenWidthError(TokenFrameError):
    """The width of the frame's ids is not 1 to 32 bits."""


class TokenCountError(TokenFrameError):
    """The frame has more ids than the limit."""


class TokenChecksumError(TokenFrameError):
    """The frame's bytes changed on the way."""


class TokenVocabularyError(TokenFrameError):
    """The ids belong to a different vocabulary."""


class TokenIdError(TokenFrameError, ValueError):
    """An id lies outside the vocabulary."""


def bits_for(vocabulary_size: int) -> int:
    """Return the number of bits that hold every id of a vocabulary: ceil(log2(size)), at least 1.

    Raises:
        ValueError: the size is not 1 to 2**32.
    """
    if not 1 <= vocabulary_size <= 1 << 32:
        raise ValueError(f"vocabulary size: expected 1 to 2**32 tokens, got {vocabulary_size}")
    return max(1, (vocabulary_size - 1).bit_length())


def vocabulary_fingerprint(pieces: Iterable[bytes]) -> str:
    """Return a vocabulary's fingerprint, ``SIZE:HASH``, from its pieces in the order of their ids. Equal pieces give equal fingerprints."""
    digest = sha256()
    size = 0
    for piece in pieces:
        digest.update(b"%d:%b" % (len(piece), piece))
        size += 1
    return f"{size}:{digest.hexdigest()[:16]}"


class TokenCodec:
    """Writes and reads the frames of one vocabulary.

    Args:
        vocabulary: fingerprint of the vocabulary.
        vocabulary_size: number of ids in the vocabulary, 1 to 2**32.
        max_tokens: maximum number of ids in one frame, written or read. A frame that announces more is refused before it is unpacked.

    Raises:
        ValueError: ``vocabulary_size`` is out of range.
    """

    __slots__ = ("_bare_bits", "_bare_bytes", "_mark", "bits", "max_tokens", "vocabulary", "vocabulary_size")

    def __init__(self, vocabulary: str, vocabulary_size: int, *, max_tokens: int = 1 << 20) -> None:
        self.vocabulary = vocabulary
        self.vocabulary_size = vocabulary_size
        self.bits = bits_for(vocabulary_size)
        self._bare_bits = max(_MIN_SHORT_BITS, self.bits)
        self._bare_bytes = packed_size(1, self._bare_bits)
        self.max_tokens = max_tokens
        self._mark = sha256(vocabulary.encode()).digest()[:8]

    def encode(self, ids: Sequence[int]) -> bytes:
        """Encode ids (a list, a tuple or a buffer of integers) as one frame of the long form.

        Raises:
            TokenCountError: there are more than ``max_tokens``.
            TokenIdError: an id is negative or outside the vocabulary.
        """
        packed = self._pack(ids, self.bits)
        header = _HEADER.pack(_MAGIC, _VERSION, self.bits, len(ids), self._mark)
        return header + _CHECKSUM.pack(zlib.crc32(packed, zlib.crc32(header))) + packed

    def encode_short(self, ids: Sequence[int]) -> bytes:
        """Encode ids as one frame of the short form, or of the long form if there are more than 1024.

        Raises:
            TokenCountError: there are more than ``max_tokens``.
            TokenIdError: an id is negative or outside the vocabulary.
        """
        if len(ids) > _SHORT_COUNT:
            return self.encode(ids)
        bits = max(_MIN_SHORT_BITS, int(max(ids, default=0)).bit_length())
        packed = self._pack(ids, min(bits, self._bare_bits))  # an id outside the vocabulary fits no width
        head = bytes([_SHORT_MARK + bits])
        return head + self._short_check(head, packed) + packed

    def pack_bare(self, ids: Sequence[int]) -> bytes:
        """Pack ids without a header, for a transport that has agreed on the vocabulary.

        Raises:
            TokenCountError: there are more than ``max_tokens``.
            TokenIdError: an id is negative or outside the vocabulary.
        """
        return self._pack(ids, self._bare_bits)

    def unpack_bare(self, data: bytes) -> list[int]:
        """Return the ids that ``pack_bare`` packed.

        Raises:
            TokenFrameError: the bytes aren't whole ids, there are too many ids, or an id is outside the vocabulary.
        """
        if len(data) == self._bare_bytes and (token := int.from_bytes(data, "little")) < self.vocabulary_size:
            return [token]  # this many bytes hold exactly one id, as in nearly all streams
        return self._unpack_all(data, self._bare_bits)

    def decode(self, frame: bytes | bytearray | memoryview) -> list[int]:
        """Decode the ids of one whole frame, in either form.

        Raises:
            TokenFrameError: the frame is refused. The subclass says why.
        """
        data = bytes(frame)
        if data and data[0] & 0xC0 == _SHORT_MARK:
            return self._decode_short(data)
        bits, count, mark = self._read_header(data)
        _check_length(data, count, bits)
        packed = data[_IDS:]
        (stated,) = _CHECKSUM.unpack_from(data, _HEADER.size)
        computed = zlib.crc32(packed, zlib.crc32(data[: _HEADER.size]))
        if stated != computed:
            raise TokenChecksumError(f"token frame of {count} ids: expected checksum {stated:#010x}, got {computed:#010x} from its bytes")
        if mark != self._mark:
            raise TokenVocabularyError(
                f"token frame: expected vocabulary {self._mark.hex()} (fingerprint {self.vocabulary}), got {mark.hex()} of another"
            )
        return self._unpack(packed, bits, count)

    def _decode_short(self, data: bytes) -> list[int]:
        bits = data[0] - _SHORT_MARK
        if not _MIN_SHORT_BITS <= bits <= 32:
            raise TokenWidthError(f"short token frame: expected ids of {_MIN_SHORT_BITS} to 32 bits, got a width of {bits}")
        if len(data) < _SHORT_IDS:
            raise TokenTruncatedError(f"short token frame: expected a header of {_SHORT_IDS} bytes, got {len(data)} bytes in all")
        packed = data[_SHORT_IDS:]
        count = len(packed) * 8 // bits
        if count > _SHORT_COUNT:
            raise TokenCountError(f"short token frame: expected at most {_SHORT_COUNT} ids, got {count}")
        self._check_count(count)
        stated, computed = data[1:_SHORT_IDS], self._short_check(data[:1], packed)
        if stated != computed:
            got = f"got {computed.hex()} from its bytes and the vocabulary {self.vocabulary}"
            raise TokenChecksumError(f"short token frame of {count} ids: expected check {stated.hex()}, {got}")
        return self._unpack_all(packed, bits)

    def _short_check(self, head: bytes, packed: bytes) -> bytes:
        return _CHECKSUM.pack(zlib.crc32(packed, zlib.crc32(self._mark + head)))[:3]

    def _pack(self, ids: Sequence[int], bits: int) -> bytes:
        self._check_count(len(ids))
        try:
            packed = pack(ids, bits)
        except ValueError as error:
            raise TokenIdError(f"token frame, {error}") from None
        self._check_ids(ids)
        return packed

    def _unpack_all(self, packed: bytes, bits: int) -> list[int]:
        """Unpack ids whose number follows from the number of bytes."""
        count = len(packed) * 8 // bits
        self._check_count(count)
        if len(packed) != packed_size(count, bits):
            expected = f"expected {packed_size(count, bits)} bytes ({count} ids of {bits} bits)"
            raise TokenTrailingError(f"token frame: {expected}, got {len(packed)}")
        return self._unpack(packed, bits, count)

    def _unpack(self, packed: bytes, bits: int, count: int) -> list[int]:
        try:
            ids = unpack(packed, bits, count)
        except ValueError as error:
            raise TokenTrailingError(f"token frame, {error}") from None
        self._check_ids(ids)
        return ids

    def _read_header(self, data: bytes) -> tuple[int, int, bytes]:
        """Return a frame's width, count and vocabulary mark, after all checks that need only the header."""
        if data[:2] != _MAGIC[: len(data)]:
            raise TokenVersionError(f"token frame: must begin with {_MAGIC!r}, got {data[:2]!r}")
        if len(data) > 2 and data[2] != _VERSION:
            raise TokenVersionError(f"token frame: expected version {_VERSION}, got {data[2]}")
        if len(data) < _IDS:
            raise TokenTruncatedError(f"token frame: expected a header of {_IDS} bytes, got {len(data)} bytes in all")
        _, _, bits, count, mark = _HEADER.unpack_from(data)
        if not 1 <= bits <= 32:
            raise TokenWidthError(f"token frame: expected ids of 1 to 32 bits, got a width of {bits}")
        self._check_count(count)
        return bits, count, mark

    def _check_count(self, count: int) -> None:
        if count > self.max_tokens:
            raise TokenCountError(f"token frame: expected at most {self.max_tokens} ids, got {count}")

    def _check_ids(self, ids: Sequence[int]) -> None:
        if max(ids, default=0) >= self.vocabulary_size:
            position, value = next((position, value) for position, value in enumerate(ids) if value >= self.vocabulary_size)
            raise TokenIdError(f"token frame, id {position}: expected one of the vocabulary's {self.vocabulary_size} ids, got {value}")


def _check_length(data: bytes, count: int, bits: int) -> None:
    expected = _IDS + packed_size(count, bits)
    if len(data) < expected:
        raise TokenTruncatedError(f"token frame: expected {expected} bytes ({count} ids of {bits} bits), got {len(data)}")
    if len(data) > expected:
        raise TokenTrailingError(f"token frame: expected {expected} bytes ({count} ids of {bits} bits), got {len(data) - expected} more")
