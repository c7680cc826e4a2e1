"""Hostile peers of the split protocol: frames, documented errors, and nothing else. See ``tests.fuzz.split`` for the long run."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import Rows, SplitHello, SplitOpen, SplitOpened
from streamco.wire.split.server import SplitServer
from streamco.wire.verify.errors import MalformedFrameError, VerifyProtocolError
from tests.fuzz.split import BATCHES, CODEC, COSTS, LIMITS, MARK, WIDTH, run
from tests.fuzz.verify import KEY
from tests.wire.verify.peers import msgpack

EXPECTED = {"codec: Rows", "codec: States", "codec: malformed", "codec: too_large", "server: Rows", "server: stale_round"}
EXPECTED |= {
    "server: wrong_base",
    "server: context_full",
    "server: overloaded",
    "client: States",
    "client: malformed",
    "client: unexpected",
}


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("seed", range(4))
def test_any_message_gives_a_frame_or_a_documented_error(seed: int) -> None:
    seen = run(5_000, seed)
    assert seen.total() == 5_000
    assert set(seen) >= EXPECTED


def test_a_seed_is_always_the_same_cases() -> None:
    assert run(3_000, 99) == run(3_000, 99)


@pytest.mark.parametrize("head", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"])
@pytest.mark.parametrize("start", [b"", b"\x91", b"\x93\x02\x00", b"\x97\x03\x00\x00\x00\x01\x01"])
def test_a_length_that_is_announced_takes_no_memory(head: bytes, start: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrameError):
            CODEC.decode_up(start + head)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("form", range(3))
def test_states_above_the_limit_of_rows_take_no_memory(form: int) -> None:
    codec = SplitCodec(8)  # its messages may be larger than 6 rows
    small = SplitCodec(8, LIMITS)
    bomb = msgpack.packb([3, 0, 0, 0, 0, form, bytes(small.frame_bytes - 100)])
    assert len(bomb) < codec.frame_bytes
    tracemalloc.start()
    try:
        with pytest.raises(VerifyProtocolError):
            small.decode_up(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_a_server_keeps_nothing_of_what_it_has_refused() -> None:
    server = SplitServer(CODEC, MARK, model="m", row_costs=COSTS, batches=BATCHES, max_faults=1 << 30)
    server.receive(CODEC.encode(SplitHello(2, 2, MARK)))
    server.welcome()
    server.receive(CODEC.encode(SplitOpen(0)))
    server.send(SplitOpened(0, KEY))
    refused = CODEC.encode(Rows(0, 0, 3, 0, "f32", np.ones((6, WIDTH), np.float32)))

    def send(times: int) -> None:
        for _ in range(times):
            server.receive(refused)
            server.take_messages()

    send(1000)
    tracemalloc.start()
    try:
        send(2000)
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now < 20_000
