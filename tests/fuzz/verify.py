"""Hostile peers of the verifier protocol, and nonsense for the compiled leaves; ``python -m tests.fuzz.verify --cases 10000000`` for long.

A case is one message to the codec or to one end of a connection, or one call of a leaf. Whatever comes in, what comes out is a frame, a
documented error, or, from a leaf and its twin, twice the same. The cases of a seed are always the same ones.
"""

from __future__ import annotations

import argparse
import math
import random
import struct
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import msgspec

from streamco import _native
from streamco._native import ssescan_py, tokenpack_py, topk_py
from streamco.errors import UsageError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.verify import checks as verify_checks
from streamco.wire.verify import codec as verify_codec
from streamco.wire.verify import topk as rows
from streamco.wire.verify.checks import prefix_hash
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.errors import VerifyProtocolError
from streamco.wire.verify.frames import (
    ClientFrame,
    Close,
    Draft,
    Extend,
    Follow,
    Hello,
    Open,
    Opened,
    Refusal,
    Resume,
    Resumed,
    ServerFrame,
    VerdictFrame,
    VerifyLimits,
    Welcome,
)
from streamco.wire.verify.server import VerifyServer
from streamco.wire.verify.topk import TopK, quantise
from tests.support.verify_frames import make_draft, make_verdict

SIZE = 1000
VOCABULARY = "1000:00"
KEY = bytes(16)
LIMITS = VerifyLimits(frame_bytes=1 << 15, context_tokens=60, draft_tokens=6, top_k=8, sessions=4, paths=3)
CODEC = VerifyCodec(SIZE, LIMITS)
CODES = frozenset(kind.code for kind in VerifyProtocolError.__subclasses__())

_VALUES: list[Any] = [None, True, -1, 0, 1, 2, 3, 5, 60, 61, 255, 256, 999, 1000, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 1.5, -0.0, math.nan]
_VALUES += [
    math.inf,
    1e300,
    "",
    "a",
    "x" * 300,
    "\U0001f600",
    b"",
    b"\0",
    b"\xff" * 4,
    KEY,
    KEY + b"\0",
    b"\1\0\0\1\0\2\0",
    [],
    {},
    [[]],
    [0],
]
_VALUES += [[1, 0.5], [2, 0, 0, 0, 0, 0.5], {"a": 1}, {1: [None] * 40}, msgspec.msgpack.Ext(5, b"x")]
_PIECES = [b"\xc0", b"\xc1", b"\xff", b"\0", b"\x90", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
_PIECES += [
    b"\xdb\x7f\xff\xff\xff",
    b"\x91" * 40,
    b"\xa3\xed\xa0\x80",
    b"\xca\x7f\xc0\0\0",
    b"\xcb\xff\xf0" + bytes(6),
    b"\xd9\x02\xc3\x28",
]

_pack_any = msgspec.msgpack.Encoder().encode


def some_ids(rng: random.Random, most: int = 12) -> tuple[int, ...]:
    return tuple(rng.randrange(SIZE) for _ in range(rng.randrange(most)))


def some_row(rng: random.Random, token: int) -> TopK:
    others = [other for other in dict.fromkeys(some_ids(rng, 8)) if other != token]
    return quantise([(token, 0.5), *((other, 0.5 / (2 + place)) for place, other in enumerate(others))], is_whole=rng.random() < 0.5)


def grow_up(rng: random.Random, latest: int = 4, turn: int = 0) -> ClientFrame:
    """A frame of a client, as a rule one that is allowed somewhere; ``latest`` is its last session, ``turn`` above its rounds."""
    session, base = max(0, latest - rng.randrange(3)), rng.choice([0, 0, 0, 1, 3, 8, 20, 61])
    if rng.random() < 0.1:
        session = rng.randrange(latest + 2)
    kind = rng.randrange(16)
    if kind == 0:
        return Hello(rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 9]), VOCABULARY, SIZE, rng.choice([None, "t"]))
    if kind <= 3:
        return Open(latest + 1, Rule(rng.choice(list(RuleKind)), 0.5), rng.choice([0, 3, 9]), rng.choice([0, 50, 70]), some_ids(rng))
    if kind <= 5:
        return Extend(session, base, some_ids(rng))
    if kind == 6:
        return Resume(latest + rng.randrange(2), KEY, base, prefix_hash(()))
    if kind == 7:
        return Close(session)
    ids = some_ids(rng, 8)
    given = rng.randrange(len(ids) + 1) if len(ids) <= 6 else 2
    rows = tuple(some_row(rng, token) for token in ids[given:]) if rng.random() < 0.5 else ()
    number = turn or rng.randrange(20)
    if kind >= 13:
        rows = tuple(some_row(rng, token) for token in ids) if rows else ()
        expected = (max(0, number - rng.choice([1, 1, 1, 2, 3])), rng.randrange(3), rng.choice([5, 5, 999]))
        return Follow(session, number, *expected, ids, rows, some_parents(rng, len(ids)))
    return make_draft(session, number, base, ids, given, rows, some_parents(rng, len(ids) - given))


def some_parents(rng: random.Random, count: int) -> tuple[int, ...]:
    """A tree, as a rule one with few paths; nothing: a chain."""
    if rng.random() < 0.6:
        return ()
    return tuple(number if rng.random() < 0.7 else rng.randrange(number + 1) for number in range(count))


def grow_down(rng: random.Random) -> ServerFrame:
    """A frame of a server."""
    session = rng.randrange(3)
    kind = rng.randrange(7)
    if kind == 0:
        return Welcome(rng.choice([1, 1, 2]), "m", 7, LIMITS, 60, True)
    if kind == 1:
        return Opened(session, KEY, 0)
    if kind == 2:
        base = rng.randrange(4)
        return Resumed(session, base, prefix_hash(tuple(range(rng.choice([base, base, 0])))))
    if kind == 3:
        code = rng.choice([*sorted(CODES), "new"]) if rng.random() < 0.3 else "overloaded"
        return Refusal(code, "text", rng.choice([None, session]), rng.choice([None, 0, 1, 2]), rng.choice([None, 0, 100]))
    rows = tuple(some_row(rng, rng.randrange(SIZE)) for _ in range(rng.choice([0, 0, 3, 4])))
    return VerdictFrame(session, rng.choice([0, 0, 1, 2, 3]), rng.randrange(5), rng.choice([None, 5, 999, 999]), 1, 2, 3, rows)


def damage(message: bytes, rng: random.Random) -> bytes:
    """The message with bits turned, bytes put in or taken out, a field changed, or nothing left of it."""
    kind = rng.random()
    if kind < 0.3:
        raw = bytearray(message)
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        return bytes(raw)
    if kind < 0.5:
        at = rng.randrange(len(message) + 1)
        return message[:at] + rng.choice(_PIECES) + message[at + rng.randrange(3) :]
    if kind < 0.6:
        return message[: rng.randrange(len(message))]
    if kind < 0.95:
        fields = msgspec.msgpack.decode(message)
        fields[rng.randrange(len(fields))] = rng.choice(_VALUES)
        return _pack_any(fields + [rng.choice(_VALUES)] * (rng.random() < 0.1))
    return rng.randbytes(rng.randrange(40))


def check_codec(rng: random.Random) -> str:
    """One message to the codec: a frame that survives writing and reading again, or an error of the two that a codec has."""
    is_up = rng.random() < 0.5
    message = message_up(rng) if is_up else CODEC.encode(grow_down(rng))
    if rng.random() < 0.9:
        message = damage(message, rng)
    try:
        frame: ClientFrame | ServerFrame = CODEC.decode_up(message) if is_up else CODEC.decode_down(message)
    except VerifyProtocolError as error:
        if error.code in {"malformed", "too_large"}:
            return error.code
        raise
    written = CODEC.encode(frame)
    again = CODEC.decode_up(written) if is_up else CODEC.decode_down(written)
    assert again == frame, message
    return type(frame).__name__


def message_up(rng: random.Random, latest: int = 4, turn: int = 0) -> bytes:
    """A client's message; what is too large for a draft is made a close."""
    try:
        return CODEC.encode(grow_up(rng, latest, turn))
    except VerifyProtocolError:
        return CODEC.encode(Close(rng.randrange(5)))


class Ends:
    """Both ends of connections that don't listen to each other, each fed with what a hostile peer might send, by turns."""

    def __init__(self) -> None:
        self.server = VerifyServer(CODEC, VOCABULARY)
        self.client = VerifyClient(CODEC, VOCABULARY)
        self.out: list[Draft] = []
        self.turn, self.latest = 0, -1

    def check_server(self, rng: random.Random) -> str:
        """One message to the server's end: it never raises, and says nothing but frames with documented codes."""
        server = self.server
        if server.is_closed or self.turn % 60 == 0:
            server = self.server = VerifyServer(CODEC, VOCABULARY, max_faults=rng.choice([1, 16, 1000, 1000]))
            self.out.clear()
            self.latest = -1
            if rng.random() < 0.8:
                server.receive(CODEC.encode(Hello(1, 1, VOCABULARY, SIZE)))
                server.welcome()
                server.take_messages()
        self.turn += 1
        message = message_up(rng, self.latest, self.turn)
        frame = server.receive(damage(message, rng) if rng.random() < 0.2 else message)
        if isinstance(frame, Open | Resume):
            self.latest = min(frame.session, 1 << 31)
        self._serve(frame, rng)
        assert len(server.sessions) <= LIMITS.sessions
        heard = [CODEC.decode_down(answer) for answer in server.take_messages()]
        codes = [said.code for said in heard if isinstance(said, Refusal)]
        assert CODES.issuperset(codes)
        return codes[0] if codes else type(frame).__name__

    def _serve(self, frame: ClientFrame | None, rng: random.Random) -> None:
        """What a shell would do, now or later."""
        match frame:
            case Hello():
                self.server.welcome()
            case Open():
                self.server.send(Opened(frame.session, KEY, 0))
            case Resume():
                self.server.resume(Resumed(frame.session, rng.randrange(5), KEY), Rule())
            case Draft():
                assert frame.base + len(frame.ids) <= LIMITS.context_tokens
                assert len(frame.pending) <= LIMITS.draft_tokens
                assert frame.paths <= LIMITS.paths
                assert all(parent < node for node, parent in enumerate(frame.parents, 1))
                self.out.append(frame)
            case _:
                pass
        if self.out and rng.random() < 0.5:
            draft = self.out.pop(0)
            accepted = rng.randrange(len(draft.pending) + 1)
            self.server.send(make_verdict(draft.session, draft.round_number, accepted, 5))
            for begun in self.server.take_begun_rounds():
                self._serve(begun, rng)

    def check_client(self, rng: random.Random) -> str:
        """One message to the client's end: a frame, nothing, or an error of the family."""
        client = self.client
        if client.is_closed:
            client = self.client = VerifyClient(CODEC, VOCABULARY)
            client.receive(CODEC.encode(Welcome(1, "m", 7, LIMITS, 60, True)))
            client.open((1, 2, 3), Rule(), top_k=rng.choice([0, 8]))
            client.open((1,), Rule())
            client.resume(KEY, (0, 1, 2))
            client.draft(0, 3, (4, 5, 6), given=rng.randrange(4))
            client.draft(1, 1, (), given=0)
        message = CODEC.encode(grow_down(rng))
        with suppress(UsageError):  # a round is out, or the session gone
            count = rng.randrange(4)
            client.draft(0, rng.randrange(4), (4, 5, 6)[:count], parents=some_parents(rng, count))
        with suppress(UsageError):  # none is, or there are enough already
            client.follow(0, rng.randrange(4), rng.choice([5, 999]), (7, 8)[: rng.randrange(3)])
        try:
            frame = client.receive(damage(message, rng) if rng.random() < 0.1 else message)
        except VerifyProtocolError as error:
            if error.code in CODES and client.is_closed:
                return error.code
            raise
        client.take_messages()
        return type(frame).__name__


# Leaves and their twins


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """What a call gives, or its error as far as a caller sees it."""
    try:
        return "value", call(*arguments)
    except (ValueError, TypeError, OverflowError) as error:
        return type(error).__name__, str(error)


def check_pack(rng: random.Random) -> str:
    """Packing and unpacking of anything."""
    bits = rng.choice([rng.randrange(1, 33), rng.randrange(1, 33), rng.choice([-1, 0, 33, 64])])
    if rng.random() < 0.5:
        ids: Any = [rng.getrandbits(rng.choice([1, 8, 16, 32, 33, 70])) for _ in range(rng.randrange(20))]
        if rng.random() < 0.3 and ids:
            ids[rng.randrange(len(ids))] = rng.choice([-1, True, None, 1.5, "x", 2**64])
        if rng.random() < 0.2:
            ids = rng.choice([tuple(ids), array("I", [value & 0xFFFF for value in ids if type(value) is int]), b"abcd", None])
        ours, theirs = outcome(_native.pack, ids, bits), outcome(tokenpack_py.pack, ids, bits)
        assert ours == theirs, (ids, bits, ours, theirs)
    else:
        count = rng.randrange(-1, 20)
        length = max(0, (count * bits + 7) // 8) if rng.random() < 0.8 else rng.randrange(40)
        data: Any = (
            rng.randbytes(length) if rng.random() < 0.9 else rng.choice([bytearray(length), None, "text", memoryview(bytes(length))])
        )
        ours, theirs = outcome(_native.unpack, data, bits, count), outcome(tokenpack_py.unpack, data, bits, count)
        assert ours == theirs, (data, bits, count, ours, theirs)
    return ours[0]


def check_row(rng: random.Random) -> str:
    """Rows of any bits taken for floats."""
    size = rng.randrange(12)
    row = array(
        "f", struct.pack(f"={size}I", *(rng.choice([rng.getrandbits(32), 0x7F800000, 0xFF800000, 0x7FC00000, 0]) for _ in range(size)))
    )
    best, best_twin = outcome(_native.argmax, row), outcome(topk_py.argmax, row)
    assert best == best_twin, (row, best, best_twin)
    k = rng.randrange(-1, 14)
    ours, theirs = outcome(_native.top_k, row, k), outcome(topk_py.top_k, row, k)
    assert ours[0] == theirs[0], (row, k, ours, theirs)
    if ours[0] != "value":
        assert ours == theirs
        return ours[0]
    assert [token for token, _ in ours[1]] == [token for token, _ in theirs[1]], (row, k)
    assert all(math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-37) for (_, one), (_, other) in zip(ours[1], theirs[1], strict=True)), (
        row,
        k,
    )
    return "value"


def check_scan(rng: random.Random) -> str:
    """Bytes in which events are looked for."""
    data = b"".join(
        rng.choice([b"data: ", b"data:", b"\n", b"\n\n", b"\r", b"\r\n", b": x", b"{}", b"event: x", b"x"])
        for _ in range(rng.randrange(16))
    )
    limit = rng.randrange(len(data) + 1)
    ours, theirs = outcome(_native.scan_events, data, limit), outcome(ssescan_py.scan_events, data, limit)
    assert ours == theirs, (data, limit, ours, theirs)
    return ours[0]


# Runs


@contextmanager
def on_twins(is_pure: bool) -> Iterator[None]:
    """The protocol on the pure twins of its leaves."""
    with ExitStack() as stack:
        if is_pure:
            for module, name in ((rows, "pack"), (rows, "unpack"), (rows, "packed_size"), (verify_codec, "pack"), (verify_codec, "unpack")):
                stack.enter_context(patch.object(module, name, getattr(tokenpack_py, name)))
            stack.enter_context(patch.object(verify_checks, "pack", tokenpack_py.pack))
        yield


def run(cases: int, seed: int, *, is_pure: bool = False) -> Counter[str]:
    """So many cases of a seed; how often each kind came to what. Raises what should not have come."""
    rng, ends, seen = random.Random(f"verify {seed}"), Ends(), Counter[str]()
    checks: dict[str, Callable[[random.Random], str]] = {
        "codec": check_codec,
        "server": ends.check_server,
        "client": ends.check_client,
        "pack": check_pack,
        "row": check_row,
        "scan": check_scan,
    }
    names = ["codec", "codec", "codec", "server", "server", "client", "pack", "pack", "row", "scan"]
    with on_twins(is_pure):
        for number in range(cases):
            name = names[number % len(names)]
            try:
                seen[f"{name}: {checks[name](rng)}"] += 1
            except Exception as error:
                error.add_note(f"seed {seed}, case {number}, {name}, {'pure' if is_pure else 'native'}")
                raise
    return seen


def main() -> None:
    """Cases over several seeds and both twins, in processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    portion = 50_000
    portions = [min(portion, options.cases - start) for start in range(0, options.cases, portion)]
    started, seen = time.perf_counter(), Counter[str]()
    with ProcessPoolExecutor(options.jobs) as pool:
        running = [pool.submit(run, cases, options.seed + number, is_pure=bool(number % 2)) for number, cases in enumerate(portions)]
        for future in running:
            seen += future.result()
    for name, count in sorted(seen.items()):
        print(f"{count:>10,}  {name}")
    leaves = "compiled and pure" if _native.HAS_NATIVE else "pure alone"
    took = time.perf_counter() - started
    print(f"{seen.total():,} cases from seed {options.seed}, leaves {leaves}, {took:.0f} s: frames and documented errors only")


if __name__ == "__main__":
    main()
