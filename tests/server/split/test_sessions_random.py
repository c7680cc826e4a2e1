"""Many devices at one split server, with all that goes wrong at once: each gets the states of its own rows, and memory stays flat."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import streamco
from streamco.wire.split.frames import Refusal, SplitOpened, SplitResumed, States
from tests.server.split.serving_layers import PATIENT, Serving, SplitDevice, SummingLayers, device_at, mark_of, serving_layers
from tests.server.split.test_sessions import some, sums
from tests.support.leaks import settled

MARK = mark_of(SummingLayers())
OPTIONS = replace(PATIENT, load=replace(PATIENT.load, min_retry=0.001, sessions_per_device=4), resume_s=1)


class Life:
    """One device's session: it grows, is cut, lost, resumed, closed and opened again, and its states are compared with its own rows."""

    def __init__(self, server: Serving, engine: SummingLayers, number: int, seed: int) -> None:
        self.rng = random.Random(f"{seed} {number}")
        self.server, self.engine, self.number = server, engine, number
        self.text = some(0)
        self.key = b""
        self.seeds = 1000 * number
        self.answers = self.resumes = 0

    async def live(self, connections: int) -> None:
        """Use so many connections, one after the other."""
        for _ in range(connections):
            async with device_at(self.server.url, MARK) as device:
                session, held = await self.begin(device)
                for _ in range(self.rng.randrange(1, 6)):
                    self.engine.failures += self.rng.random() < 0.03
                    held = await self.grow(device, session, held)
                    if not held:  # too many failures ended the session
                        self.forget()
                        session, held = await self.begin(device)
                await self.leave(device, session)

    async def begin(self, device: SplitDevice) -> tuple[int, int]:
        """Resume the session if there is one, else open another; return its number and the rows that the server holds."""
        if self.key:
            session = device.client.resume(self.key)
            await device.say()
            answer = await device.take()
            if isinstance(answer, SplitResumed):
                self.resumes += 1
                return session, min(answer.length, len(self.text))
        self.forget()
        while True:
            session = device.client.open()
            await device.say()
            answer = await device.take()
            if isinstance(answer, SplitOpened):
                self.key = answer.key
                return session, 0
            await asyncio.sleep(0.002)

    def forget(self) -> None:
        """Begin again with another session."""
        self.key, self.text = b"", some(0)

    async def grow(self, device: SplitDevice, session: int, held: int) -> int:
        """Drop some of the last rows, add others, and compare all states that come back. Return the rows held; 0: the session is over."""
        self.seeds += 1
        kept = self.rng.randrange(max(0, len(self.text) - 3), len(self.text) + 1)
        new = some(self.rng.choice((1, 3, 5, 50)), self.seeds)
        self.text = np.concatenate([self.text[:kept], new])
        if len(self.text) > 200:
            self.text = new
        start = min(held, kept, len(self.text) - len(new))
        while True:
            rows = self.text[start:]
            await device.send(session, start, rows, wanted=len(rows))
            answer = await device.take()
            if isinstance(answer, States):
                break
            assert isinstance(answer, Refusal), answer
            if answer.round_number is None:
                assert answer.code == "failed", answer
                return 0
            start = 0 if answer.code in {"evicted", "failed"} else start
            await asyncio.sleep(0.002)
        self.answers += 1
        assert np.array_equal(answer.states, sums(self.text)[start:]), f"device {self.number}: the states of other rows"
        return len(self.text)

    async def leave(self, device: SplitDevice, session: int) -> None:
        """Close the session, or lose the connection, sometimes with rows on the way."""
        if self.rng.random() < 0.4:
            device.client.close(session)
            await device.say()
            self.forget()
            return
        if self.rng.random() < 0.5:
            await device.send(session, len(self.text), some(40, self.seeds), wanted=1)
        await device.lose()


async def lives(server: Serving, engine: SummingLayers, count: int, seed: int, connections: int) -> list[Life]:
    """Let so many devices use the server at once."""
    found = [Life(server, engine, number, seed) for number in range(count)]
    await asyncio.gather(*(each.live(connections) for each in found))
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_no_states_are_mixed_whatever_is_cut_evicted_failed_lost_and_resumed(seed: int) -> None:
    engine = SummingLayers(sequences=12)
    async with serving_layers(engine, verify=OPTIONS, room=64) as server:
        found = await lives(server, engine, 32, seed, 3)
        assert all(each.answers for each in found)
        assert sum(each.resumes for each in found) > 3
        assert server.figures["evicted"]
        assert server.figures["failed_batches"]
        assert max(sequence for batch in engine.batches for sequence, _, _ in batch) < 12


def allocated() -> int:
    """Bytes that the sessions, the scheduler and the protocol have allocated and not freed.

    aiohttp keeps a lost WebSocket until its next ping, which is 20 s away, so what its handler has allocated doesn't count.
    """
    gc.collect()
    package = Path(streamco.__file__).parent
    filters = [tracemalloc.Filter(True, f"{package / folder}/*") for folder in ("server/split", "core", "wire", "policies")]
    return sum(each.size for each in tracemalloc.take_snapshot().filter_traces(filters).statistics("filename"))


@pytest.mark.long
async def test_memory_is_flat_while_32_devices_come_and_go() -> None:
    engine, options = SummingLayers(sequences=12), replace(OPTIONS, resume_s=0)
    async with serving_layers(engine, verify=options, room=64) as server:
        sizes = []
        for seed in range(5):
            await lives(server, engine, 32, seed, 2)
            await settled(lambda: server.figures["sessions"] == 0 and server.figures["connections"] == 0)
            engine.batches.clear()
            if not seed:  # the first ones fill caches
                tracemalloc.start()
            sizes.append(allocated())
        tracemalloc.stop()
    assert max(sizes[3:]) - sizes[2] < 20_000, f"bytes after each 64 connections: {sizes}"
    assert server.figures["cached_rows"] == 0
