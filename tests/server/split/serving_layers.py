"""A split server for the tests, over layers without weights or over real ones, and a device that speaks the protocol to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import websockets
from aiohttp import web
from numpy.typing import NDArray

from streamco.core.verifier.options import LoadLimits
from streamco.engines.llamacpp.model_parts import PartInfo
from streamco.engines.split.middle_engine import LayerEngine, RowsBatch
from streamco.errors import EngineError
from streamco.server.http.listening import make_runner
from streamco.server.options import ServeOptions
from streamco.server.split.service import SPLIT, SplitService, make_split_app
from streamco.server.verify.options import VerifyOptions
from streamco.wire.split.client import SplitClient
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import LayersMark, Refusal, SplitOpened, SplitResumed, SplitServerFrame, SplitWelcome, States
from streamco.wire.tensors import StateFormat
from streamco.wire.verify.frames import PATH, SUBPROTOCOL

WIDTH = 8
PATIENT = VerifyOptions(load=LoadLimits(draft_stretch=1e6, late_stretch=1e5, prefill_within=1e6, idle_after=0.0))


class SummingLayers:
    """Layers whose state at a position is the sum of all states up to it: what a session has read shows in every answer."""

    def __init__(self, *, sequences: int = 4, cells: int = 256, batch_rows: int = 256, width: int = WIDTH, is_manual: bool = False) -> None:
        self.info = PartInfo("middle", "digest", 2, 28, 30, width, "llama")
        self.sequences, self.cells, self.batch_rows = sequences, cells, batch_rows
        self.is_exact = False
        self.batches: list[list[tuple[int, int, int]]] = []  # (sequence, position, rows) of each
        self.waiting: list[RowsBatch] = []
        self.failures = 0  # batches that will fail
        self.seconds = 0.001  # that each batch says it took
        self._is_manual = is_manual
        self._read: dict[int, NDArray[np.float32]] = {}

    def submit(self, batch: RowsBatch) -> None:
        self.batches.append([(run.sequence, run.position, len(run.states)) for run in batch.runs])
        assert sum(len(run.states) for run in batch.runs) <= self.batch_rows
        self.waiting.append(batch)
        if not self._is_manual:
            asyncio.get_running_loop().call_soon(self.compute)

    def compute(self) -> None:
        """Compute the oldest batch."""
        batch = self.waiting.pop(0)
        batch.seconds = self.seconds
        if self.failures:
            self.failures -= 1
            batch.error = EngineError("layers: expected to compute, got a failure")
        else:
            batch.states = [self._sums(run.sequence, run.position, run.states) for run in batch.runs]
        batch.on_end()

    def _sums(self, sequence: int, position: int, states: NDArray[np.float32]) -> NDArray[np.float32]:
        before = self._read.get(sequence, np.zeros((0, self.info.width), np.float32))
        assert len(before) >= position, "rows begin at the end of a sequence or before it"
        assert position + len(states) <= self.cells
        self._read[sequence] = np.concatenate([before[:position], states])
        with np.errstate(over="ignore"):  # a test sends numbers that overflow
            return np.cumsum(self._read[sequence], axis=0, dtype=np.float32)[position:]

    def row_costs(self) -> Mapping[int, float]:
        return {1: 0.005, 64: 0.02}

    def ping(self, wake: Callable[[], None]) -> None:
        wake()


def mark_of(engine: LayerEngine) -> LayersMark:
    info = engine.info
    return LayersMark(info.source, info.first_layer, info.layers, info.width)


class Serving:
    """A server under test."""

    def __init__(self, url: str, service: SplitService, runner: web.AppRunner) -> None:
        self.url = url
        self.service = service
        self.runner = runner

    @property
    def figures(self) -> dict[str, Any]:
        return self.service.manager.figures()


@asynccontextmanager
async def serving_layers(
    engine: LayerEngine, *, verify: VerifyOptions = PATIENT, room: int = 128, port: int = 0, **options: Any
) -> AsyncIterator[Serving]:
    """A split server on a free port."""
    settings = ServeOptions(verify=verify, port=port, **options)
    app = make_split_app(engine, settings, room=room)
    runner = make_runner(app, settings)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield Serving(f"ws://127.0.0.1:{runner.addresses[0][1]}{PATH}", app[SPLIT], runner)
    finally:
        await runner.cleanup()


class SplitDevice:
    """One connection to a split server."""

    def __init__(self, socket: Any, client: SplitClient) -> None:
        self.socket = socket
        self.client = client

    async def say(self) -> None:
        """Send what waits."""
        for message in self.client.take_messages():
            await self.socket.send(message)

    async def take(self) -> SplitServerFrame:
        """The next frame that matters."""
        while True:
            frame = self.client.receive(await self.socket.recv())
            if frame is not None:
                return frame

    async def open(self) -> tuple[int, SplitOpened]:
        session = self.client.open()
        await self.say()
        opened = await self.take()
        assert isinstance(opened, SplitOpened), opened
        return session, opened

    async def send(self, session: int, position: int, states: NDArray[np.float32], *, wanted: int = 1, form: StateFormat = "f32") -> int:
        number = self.client.rows(session, position, states, wanted=wanted, form=form)
        await self.say()
        return number

    async def rows(self, session: int, position: int, states: NDArray[np.float32], *, wanted: int = 1, form: StateFormat = "f32") -> States:
        """One round and its answer."""
        number = await self.send(session, position, states, wanted=wanted, form=form)
        answer = await self.take()
        assert isinstance(answer, States), answer
        assert answer.round_number == number
        return answer

    async def refused(self) -> Refusal:
        answer = await self.take()
        assert isinstance(answer, Refusal), answer
        return answer

    async def resume(self, key: bytes) -> tuple[int, SplitResumed]:
        session = self.client.resume(key)
        await self.say()
        resumed = await self.take()
        assert isinstance(resumed, SplitResumed), resumed
        return session, resumed

    async def lose(self) -> None:
        """As a network does: without a word."""
        self.socket.transport.abort()
        await self.socket.wait_closed()


@asynccontextmanager
async def device_at(url: str, mark: LayersMark, *, token: str | None = None) -> AsyncIterator[SplitDevice]:
    """A device that was welcomed."""
    protocols = [websockets.Subprotocol(SUBPROTOCOL)]
    async with websockets.connect(url, subprotocols=protocols, max_size=None, compression=None, open_timeout=60) as socket:
        device = SplitDevice(socket, SplitClient(SplitCodec(mark.width), mark, token=token))
        await device.say()
        welcome = await device.take()
        assert isinstance(welcome, SplitWelcome), welcome
        yield device
