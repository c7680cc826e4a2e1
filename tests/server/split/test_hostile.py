"""Devices that send anything at all: documented refusals only, and the device beside them gets its own states, bit for bit."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import websockets

from streamco.wire.split.client import SplitClient
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import Refusal, Rows, SplitClientFrame, SplitOpen, SplitResume, States
from streamco.wire.verify.errors import VerifyProtocolError, error_for
from streamco.wire.verify.frames import SUBPROTOCOL, Close
from tests.server.split.serving_layers import PATIENT, WIDTH, SummingLayers, device_at, mark_of, serving_layers
from tests.server.split.test_sessions import open_patiently, patiently, some, sums
from tests.support.leaks import settled

MARK = mark_of(SummingLayers())
CODEC = SplitCodec(WIDTH)


def any_message(rng: random.Random) -> bytes:
    """A frame with random fields, perhaps damaged."""
    session = rng.randrange(6)
    rows = some(rng.randrange(1, 60), rng.randrange(100))
    frames: list[SplitClientFrame] = [
        SplitOpen(session, rng.randrange(400)),
        Rows(session, rng.randrange(8), rng.randrange(80), rng.randrange(len(rows) + 1), rng.choice(("f32", "f16", "i8")), rows),
        Rows(session, rng.randrange(8), 0, 1, "f32", np.full((2, WIDTH), 3e38, np.float32)),
        SplitResume(session, bytes(16)),
        Close(session),
    ]
    message = bytearray(CODEC.encode(rng.choice(frames)))
    if rng.random() < 0.3:
        message[rng.randrange(len(message))] = rng.randrange(256)
    return bytes(message[: rng.randrange(len(message))] if rng.random() < 0.1 else message)


async def attack(url: str, seed: int) -> int:
    """Send random frames on connection after connection; return how many refusals came back."""
    rng, refused = random.Random(seed), 0
    for _ in range(8):
        async with websockets.connect(url, subprotocols=[websockets.Subprotocol(SUBPROTOCOL)], compression=None) as socket:
            client = SplitClient(CODEC, MARK)
            for message in client.take_messages():
                await socket.send(message)
            try:
                for _ in range(60):
                    await socket.send(any_message(rng))
                if rng.random() < 0.5:
                    socket.transport.abort()
                while True:
                    async with asyncio.timeout(0.3):
                        message = await socket.recv(decode=False)
                    answer = CODEC.decode_down(message)
                    if isinstance(answer, Refusal):
                        assert type(error_for(answer.code, "")) is not VerifyProtocolError, answer.code
                        refused += 1
            except (TimeoutError, websockets.ConnectionClosed):
                continue
    return refused


async def test_random_frames_are_refused_by_documented_codes_and_touch_no_other_session() -> None:
    engine = SummingLayers(sequences=6)
    options = PATIENT.__class__(load=PATIENT.load, peer_connections=512, faults_per_minute=1_000_000, resume_s=0)
    async with serving_layers(engine, verify=options) as server, device_at(server.url, MARK) as good:
        session = await open_patiently(good)
        attacks = [asyncio.create_task(attack(server.url, seed)) for seed in range(4)]
        text, turns = some(0), 0
        while not all(task.done() for task in attacks) and turns < 70:
            text = np.concatenate([text, some(3, turns)])
            states = await patiently(good, session, text, 3)
            assert isinstance(states, States)
            assert np.array_equal(states.states, sums(text)[-3:])
            turns += 1
        assert sum(await asyncio.gather(*attacks)) > 100
        assert turns > 3
        await settled(lambda: server.figures["connections"] == 1 and server.figures["sessions"] == 1)
