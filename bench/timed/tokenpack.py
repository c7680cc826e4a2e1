"""What does it cost to pack token ids, and what does it save?

- Time at 4096 ids of 17 bits, from and to buffers (a numpy uint32 row), and at 16, a verification's draft, from and to lists. With buffers
  a contender gets the form of ids that it likes best for nothing. Those of one format are checked against each other first.
- Size: Alpaca's prompts and answers in cl100k tokens, against their text in UTF-8.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import bitstruct.c  # type: ignore[import-untyped]
import numpy as np
import tiktoken
import zstandard
from bitarray import bitarray
from bitarray.util import zeros
from numpy.typing import NDArray

from bench.report import Row, add_arguments, emit, interleave, per_call, rows_from, summarise
from streamco._native import HAS_NATIVE, pack, packed_size, tokenpack_py, unpack, unpack_into

SEED = 17
BITS = 17
VOCABULARY = 100_277  # cl100k
PATTERN = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
DATA = Path(os.environ.get("STREAMCO_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")

Ids = NDArray[np.uint32]
Calls = dict[str, Callable[[], object]]


def numpy_bits_pack(ids: Ids) -> bytes:
    """One bit a byte in between."""
    bits = np.unpackbits(ids.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")[:, :BITS]
    return np.packbits(bits, bitorder="little").tobytes()


def numpy_bits_unpack(data: bytes, out: Ids) -> None:
    whole = np.zeros((len(out), 32), np.uint8)
    whole[:, :BITS] = np.unpackbits(np.frombuffer(data, np.uint8), count=len(out) * BITS, bitorder="little").reshape(-1, BITS)
    out[:] = np.packbits(whole, axis=1, bitorder="little").view(np.uint32).ravel()


def numpy_words_pack(ids: Ids) -> bytes:
    """Eight ids at a time in two 64-bit words and a byte, all blocks side by side (a multiple of 8 ids)."""
    a, b, c, d, e, f, g, h = ids.reshape(-1, 8).T.astype(np.uint64)
    words = np.empty((len(a), 2), np.uint64)
    words[:, 0] = a | b << np.uint64(17) | c << np.uint64(34) | d << np.uint64(51)
    words[:, 1] = d >> np.uint64(13) | e << np.uint64(4) | f << np.uint64(21) | g << np.uint64(38) | h << np.uint64(55)
    out = np.empty((len(a), BITS), np.uint8)
    out[:, :16] = words.view(np.uint8)
    out[:, 16] = h >> np.uint64(9)
    return out.tobytes()


def numpy_words_unpack(data: bytes, out: Ids) -> None:
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BITS)
    low, high = np.ascontiguousarray(np.ascontiguousarray(blocks[:, :16]).view(np.uint64).T)
    rows = np.empty((8, len(blocks)), np.uint64)
    rows[0] = low
    for place, source, shift in ((1, low, 17), (2, low, 34), (4, high, 4), (5, high, 21), (6, high, 38)):
        np.right_shift(source, np.uint64(shift), out=rows[place])
    rows[3] = low >> np.uint64(51) | high << np.uint64(13)
    rows[7] = high >> np.uint64(55) | blocks[:, 16].astype(np.uint64) << np.uint64(9)
    rows &= np.uint64((1 << BITS) - 1)
    out.reshape(-1, 8)[:] = rows.T


def three_bytes_pack(ids: Ids) -> bytes:
    return ids.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


def three_bytes_unpack(data: bytes, out: Ids) -> None:
    rows = out.view(np.uint8).reshape(-1, 4)
    rows[:, :3] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    rows[:, 3] = 0


class BitarrayCodec:
    """Bitarray's fastest way found: a mask takes the 17 low bits of each 32, or puts them back."""

    def __init__(self, count: int) -> None:
        self._mask = bitarray("1" * BITS + "0" * (32 - BITS), endian="little") * count
        self._count = count

    def pack(self, ids: bytes) -> bytes:
        """Ids of four bytes each, packed."""
        bits = bitarray(endian="little")
        bits.frombytes(ids)
        return bits[self._mask].tobytes()

    def unpack(self, data: bytes) -> bytes:
        """Ids of four bytes each again."""
        bits, whole = bitarray(endian="little"), zeros(32 * self._count, endian="little")
        bits.frombytes(data)
        whole[self._mask] = bits[: self._count * BITS]
        return whole.tobytes()


def buffer_cases(count: int) -> tuple[Calls, Calls]:
    """Packing and unpacking, from and to a numpy row."""
    ids = np.array(some_ids(count), np.uint32)
    values, out, packed = ids.tolist(), np.zeros(count, np.uint32), pack(ids, BITS)
    masked, fixed, copy = BitarrayCodec(count), bitstruct.c.compile(f"u{BITS}" * count), ids.tobytes()
    reordered, three = fixed.pack(*values), three_bytes_pack(ids)
    room, source = memoryview(bytearray(packed_size(count, BITS))), memoryview(packed)

    def copy_over() -> None:
        room[:] = source

    packing: Calls = {
        "numpy packbits": lambda: numpy_bits_pack(ids),
        "numpy uint64": lambda: numpy_words_pack(ids),
        "bitarray": lambda: masked.pack(copy),
        "bitstruct (C)": lambda: fixed.pack(*values),
        "3 bytes an id (numpy)": lambda: three_bytes_pack(ids),
        "memcpy of the result": copy_over,
        "streamco": lambda: pack(ids, BITS),
        "streamco, pure twin": lambda: tokenpack_py.pack(ids, BITS),
    }
    unpacking: Calls = {
        "numpy packbits": lambda: numpy_bits_unpack(packed, out),
        "numpy uint64": lambda: numpy_words_unpack(packed, out),
        "bitarray": lambda: masked.unpack(packed),
        "bitstruct (C)": lambda: fixed.unpack(reordered),
        "3 bytes an id (numpy)": lambda: three_bytes_unpack(three, out),
        "memcpy of the ids": lambda: np.copyto(out, ids),
        "streamco": lambda: unpack_into(packed, BITS, out),
        "streamco, pure twin": lambda: tokenpack_py.unpack_into(packed, BITS, out),
    }
    assert masked.unpack(packed) == copy
    check(packing, ("numpy packbits", "numpy uint64", "bitarray", "streamco, pure twin"), packed)
    for name in ("numpy packbits", "numpy uint64", "3 bytes an id (numpy)", "streamco", "streamco, pure twin"):
        out[:] = 0
        unpacking[name]()
        assert (out == ids).all(), name
    return packing, unpacking


def list_cases(count: int) -> tuple[Calls, Calls]:
    """Packing and unpacking, from and to lists of ints."""
    ids = some_ids(count)
    packed, masked, fixed = pack(ids, BITS), BitarrayCodec(count), bitstruct.c.compile(f"u{BITS}" * count)
    reordered = fixed.pack(*ids)
    packing: Calls = {
        "bitarray": lambda: masked.pack(array("I", ids).tobytes()),
        "bitstruct (C)": lambda: fixed.pack(*ids),
        "streamco": lambda: pack(ids, BITS),
        "streamco, pure twin": lambda: tokenpack_py.pack(ids, BITS),
    }
    unpacking: Calls = {
        "bitarray": lambda: array("I", masked.unpack(packed)).tolist(),
        "bitstruct (C)": lambda: fixed.unpack(reordered),
        "streamco": lambda: unpack(packed, BITS, count),
        "streamco, pure twin": lambda: tokenpack_py.unpack(packed, BITS, count),
    }
    check(packing, ("bitarray", "streamco, pure twin"), packed)
    check(unpacking, ("bitarray", "streamco", "streamco, pure twin"), ids)
    return packing, unpacking


def check(calls: Calls, names: tuple[str, ...], expected: object) -> None:
    for name in names:
        assert calls[name]() == expected, f"{name}: expected what streamco gives"


def some_ids(count: int) -> list[int]:
    rng = Random(SEED)
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def time_rows(rounds: int, *, quick: bool) -> Iterator[Row]:
    for count, make, kind in ((4096, buffer_cases, "buffers"), (16, list_cases, "lists")):
        for calls, metric in zip(make(count), ("pack", "unpack"), strict=True):
            fast = (400_000 if quick else 4_000_000) // count
            measured = {
                name: per_call(call, max(1, fast // 50) if "twin" in name else fast, scale=1e9 / count) for name, call in calls.items()
            }
            yield from rows_from("tokenpack", f"{count} ids, {kind}", metric, "ns a token", interleave(measured, rounds))


def encoding() -> tiktoken.Encoding:
    """cl100k from the recorded ranks, so that nothing is fetched."""
    with gzip.open(DATA / "tokenizers" / "cl100k_base.tiktoken.gz", "rt") as lines:
        ranks = {base64.b64decode(piece): int(rank) for piece, rank in (line.split() for line in lines if line.strip())}
    return tiktoken.Encoding("cl100k_base", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})


def texts(limit: int) -> list[str]:
    with gzip.open(DATA / "prompts" / "alpaca_5000.jsonl.gz", "rt") as lines:
        records = [json.loads(line) for _, line in zip(range(limit), lines, strict=False)]
    return ["\n".join(part for part in (record["instruction"], record["input"], record["output"]) if part) for record in records]


def size_rows(limit: int) -> Iterator[Row]:
    """Bytes a hundred bytes of text, each text by itself, as a hand-over sends it."""
    compress = zstandard.ZstdCompressor(level=3).compress
    ours: list[float] = []
    sizes: dict[str, list[int]] = {name: [] for name in ("UTF-8", "UTF-8, zstd", "3 bytes an id", "17 bits, zstd", "streamco")}
    for text, ids in zip(plain := texts(limit), encoding().encode_ordinary_batch(plain, num_threads=1), strict=True):
        packed = pack(ids, BITS)
        found = (len(text.encode()), len(compress(text.encode())), 3 * len(ids), len(compress(packed)), len(packed))
        for kept, size in zip(sizes.values(), found, strict=True):
            kept.append(size)
        ours.append(100 * len(packed) / found[0])
    utf8 = sum(sizes["UTF-8"])
    for name, found_sizes in sizes.items():
        share = 100 * sum(found_sizes) / utf8
        yield Row("tokenpack", f"{len(ours)} Alpaca texts", name, "size of all, UTF-8 = 100", "%", share, share, share)
    yield summarise(ours, bench="tokenpack", case="each Alpaca text", contender="streamco", metric="size, its UTF-8 = 100", unit="%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    if not HAS_NATIVE:
        parser.error("expected the compiled leaves, got none: build them with `make native`")
    rows = list(time_rows(5 if options.quick else 21, quick=options.quick))
    if DATA.exists():
        rows += size_rows(1000 if options.quick else 5000)
    elif not options.json:
        print(f"sizes left out: no recorded data in {DATA}")
    emit(rows, options.json)


if __name__ == "__main__":
    main()
