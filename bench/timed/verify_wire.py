"""What does a round with a verifier cost: bytes of each frame, beside whole distributions, and microseconds to write and read it?

A round is 4 drafted tokens. ``whole`` sends the draft's distributions as they are (float32 or float16, a number for each token of the
vocabulary), as a verifier without compression needs them. ``with everything`` adds what the link carries around the frame: WebSocket
header and mask, a TLS 1.3 record, TCP with timestamps, IPv4. The time's contenders carry the same fields, ids and weights as arrays, and
check nothing.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import msgpack  # type: ignore[import-untyped]
import numpy as np

from bench.report import Row, add_arguments, emit, interleave, per_call, rows_from
from bench.timed.tokenpack import DATA, encoding, texts
from streamco._native import HAS_NATIVE, top_k
from streamco.policies.acceptance import Rule
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import ClientFrame, Draft, Follow, Open, ServerFrame, VerdictFrame
from streamco.wire.verify.topk import TopK as Candidates
from streamco.wire.verify.topk import quantise

BENCH = "verify_wire"
SEED = 20_240_601
WINDOW = 4
AROUND = 2 + 4 + 22 + 32 + 20  # WebSocket header and mask, TLS 1.3 record, TCP with timestamps, IPv4
VOCABULARIES = {"Llama-2, 32,000": 32000, "SmolLM2, 49,152": 49152, "Llama-3, 128,256": 128256}

Calls = dict[str, Callable[[], object]]


def some_rows(size: int, count: int) -> tuple[Candidates, ...]:
    """Top-k of logits as peaked as a model's."""
    rng = np.random.default_rng(SEED)
    rows = (rng.gumbel(size=size) * 2 for _ in range(WINDOW + 1))
    return tuple(quantise(top_k(row.astype(np.float32), count), is_whole=True) for row in rows)


def some_draft(rows: tuple[Candidates, ...], *, with_rows: bool) -> Draft:
    return Draft(1, 200, 1200, 0, tuple(row.ids[0] for row in rows[:WINDOW]), rows[:WINDOW] if with_rows else ())


def size_rows() -> Iterator[Row]:
    """Bytes of a round, and what top-k takes off the probabilities."""
    for name, size in VOCABULARIES.items():
        codec = VerifyCodec(size)
        greedy = len(codec.encode(some_draft(some_rows(size, 1), with_rows=False)))
        sizes = {"greedy": greedy, "greedy, with everything": greedy + AROUND}
        for count in (1, 8, 20, 40):
            sizes[f"top {count}"] = len(codec.encode(some_draft(some_rows(size, count), with_rows=True)))
        sizes["whole, float16"], sizes["whole, float32"] = greedy + 2 * WINDOW * size, greedy + 4 * WINDOW * size
        ahead = Follow(1, 201, 200, WINDOW, 77, some_draft(some_rows(size, 1), with_rows=False).ids)
        sizes["greedy, sent ahead"] = len(codec.encode(ahead))
        for contender, total in sizes.items():
            yield Row(BENCH, f"draft of {WINDOW}, {name}", contender, "up", "bytes", total, total, total)
        for count in (8, 20, 40):
            saved = 100 * (1 - (sizes[f"top {count}"] - greedy) / (4 * WINDOW * size))
            yield Row(BENCH, f"draft of {WINDOW}, {name}", f"top {count}", "probabilities' bytes saved", "%", saved, saved, saved)
        for count in (0, 8, 20):
            rows = some_rows(size, count) if count else ()
            total = len(codec.encode(VerdictFrame(1, 200, 3, 77, 12, 350, 90_000, rows)))
            yield Row(BENCH, f"verdict on {WINDOW}, {name}", f"top {count}" if count else "no rows", "down", "bytes", total, total, total)


def deflate_rows() -> Iterator[Row]:
    """What permessage-deflate would make of rounds and of contexts: the reason why it is off."""
    codec, rng = VerifyCodec(100277), Random(SEED)
    ids = [token for text in encoding().encode_ordinary_batch(texts(400), num_threads=1) for token in text]
    shapes = {"a round": 4, "a context of 200": 200, "a context of 2,000": 2000, "a context of 20,000": 20000}
    for name, count in shapes.items():
        plain = shrunk = 0
        for _ in range(20):
            start = rng.randrange(len(ids) - count)
            piece = tuple(ids[start : start + count])
            message = codec.encode(Draft(1, 200, 1200, 0, piece) if count == WINDOW else Open(1, Rule(), 0, 0, piece))
            squeeze = zlib.compressobj(wbits=-15)
            plain += len(message)
            shrunk += len(squeeze.compress(message) + squeeze.flush(zlib.Z_SYNC_FLUSH)) - 4
        share = 100 * shrunk / plain
        yield Row(BENCH, f"{name}, cl100k", "deflate", "size, as it is = 100", "%", share, share, share)


def frames() -> dict[str, ClientFrame | ServerFrame]:
    rows, rng = some_rows(49152, 8), Random(SEED)
    return {
        "draft of 4, greedy": some_draft(rows, with_rows=False),
        "draft of 4, top 8": some_draft(rows, with_rows=True),
        "verdict": VerdictFrame(1, 200, 3, 77, 12, 350, 90_000),
        "verdict, 5 rows of 8": VerdictFrame(1, 200, 3, 77, 12, 350, 90_000, rows),
        "open, 2,000 ids": Open(1, Rule(), 0, 3000, tuple(rng.randrange(49152) for _ in range(2000))),
    }


def plain(frame: ClientFrame | ServerFrame) -> list[object]:
    """The fields as arrays of numbers."""
    values: list[object] = []
    for name in frame.__struct_fields__:
        value = getattr(frame, name)
        if name == "rule":
            value = [int(value.kind), value.temperature, value.top_k, value.top_p, value.min_p, value.threshold, value.seed]
        elif name == "rows":
            value = [[row.ids, row.weights, row.rest] for row in value]
        values.append(value)
    return values


def time_rows(rounds: int, *, quick: bool) -> Iterator[Row]:
    codec = VerifyCodec(49152)
    for name, frame in frames().items():
        message, values = codec.encode(frame), plain(frame)
        packed, text = msgpack.packb(values), json.dumps(values)
        read = codec.decode_down if isinstance(frame, VerdictFrame) else codec.decode_up
        assert read(message) == frame
        writing: Calls = {
            "streamco": partial(codec.encode, frame),
            "msgpack": partial(msgpack.packb, values),
            "json": partial(json.dumps, values),
        }
        reading: Calls = {
            "streamco": partial(read, message),
            "msgpack": partial(msgpack.unpackb, packed),
            "json": partial(json.loads, text),
        }
        repeats = (20 if quick else 100) if "open" in name else (500 if quick else 3000)
        for metric, calls in (("write", writing), ("read", reading)):
            measured = {contender: per_call(call, repeats, scale=1e6) for contender, call in calls.items()}
            yield from rows_from(BENCH, name, metric, "us", interleave(measured, rounds))
        for contender, size in (("streamco", len(message)), ("msgpack", len(packed)), ("json", len(text))):
            yield Row(BENCH, name, contender, "size", "bytes", size, size, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    if not HAS_NATIVE:
        parser.error("expected the compiled leaves, got none: build them with `make native`")
    rows = [*size_rows(), *time_rows(5 if options.quick else 21, quick=options.quick)]
    if DATA.exists():
        rows += deflate_rows()
    elif not options.json:
        print(f"deflate left out: no recorded data in {DATA}")
    emit(rows, options.json)


if __name__ == "__main__":
    main()
