"""Hostile peers of the verifier protocol: frames, documented errors, and nothing else. See ``tests.fuzz.verify`` for the long run."""

from __future__ import annotations

import tracemalloc

import pytest

from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.errors import MalformedFrameError, VerifyProtocolError
from streamco.wire.verify.frames import VerifyLimits
from tests.fuzz.verify import CODEC, VOCABULARY, Ends, run
from tests.wire.verify.peers import msgpack


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_any_message_gives_a_frame_or_a_documented_error(seed: int, is_pure: bool) -> None:
    seen = run(16_000, seed, is_pure=is_pure)
    assert seen.total() == 16_000
    assert {"codec: Draft", "codec: malformed", "server: Draft", "server: stale_round", "client: VerdictFrame", "client: malformed"} <= set(
        seen
    )


def test_a_seed_is_always_the_same_cases_on_both_twins() -> None:
    assert run(3_000, 99) == run(3_000, 99, is_pure=True)


@pytest.mark.parametrize("head", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"])
@pytest.mark.parametrize("start", [b"", b"\x91", b"\x95\x03\x00\x00", b"\x92\x06", b"\x97\x02\x00"])
def test_a_length_that_is_announced_takes_no_memory(head: bytes, start: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrameError):
            CODEC.decode_up(start + head)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_the_largest_frame_of_nothing_takes_little_memory() -> None:
    codec = VerifyCodec(1000, VerifyLimits(context_tokens=1000))
    bombs = [
        msgpack.packb([6, 1, *([[]] * 1_000_000)]),
        msgpack.packb([3, 0, 0, bytes(1_000_000)]),
        msgpack.packb([4, 0, 0, 0, 0, b"", b"\1" * 1_000_000]),
    ]
    for bomb in bombs:
        tracemalloc.start()
        try:
            codec.decode_up(bomb)
        except VerifyProtocolError:
            pass
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 3_000_000


def test_a_server_keeps_nothing_of_what_it_has_refused() -> None:
    ends = Ends()
    message = b"\x96\x02\x00\x90\x00\x00\xc4\x64" + bytes(100)
    ends.server = ends.server.__class__(CODEC, VOCABULARY, max_faults=1 << 30)
    for _ in range(1000):
        ends.server.receive(message)
        ends.server.take_messages()
    tracemalloc.start()
    try:
        for _ in range(2000):
            ends.server.receive(message)
            ends.server.take_messages()
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now < 20_000
