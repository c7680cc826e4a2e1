"""A link to a middle part in the same process that loses sessions when it is told to, and answers by the driver that uses it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from time import monotonic, sleep
from typing import cast

import numpy as np
from numpy.typing import NDArray

from streamco.core.split.events import OpenSession, SendRows, SessionLost, SessionReady
from streamco.endpoints.split.base import DeepStates, LinkEvent, LinkFailed
from streamco.endpoints.split.driver import SplitDriver
from streamco.engines.base import GenerationEnd, GenerationRequest, TextPiece
from streamco.engines.llamacpp.model_parts import PartFiles
from streamco.engines.split.engine import SplitEngine
from streamco.engines.split.layers import MiddlePart
from streamco.engines.split.tally import SplitTraffic
from streamco.errors import EndpointConnectError
from streamco.policies.chunking import PromptPlan
from streamco.profiles.row_costs import RowCosts

CELLS = 256


class LocalSession:
    """One answer's session at a middle part."""

    def __init__(self, link: LocalLink, emit: Callable[[LinkEvent], None], sequence: int) -> None:
        self.link, self.emit, self.sequence = link, emit, sequence
        self.loop = asyncio.get_running_loop()
        self.traffic = SplitTraffic()
        self.attempt = -1
        self.is_closed = False

    def open(self, command: OpenSession) -> None:
        self.attempt = command.attempt
        if self.link.is_dead:
            self.emit(LinkFailed(EndpointConnectError("expected a connection, got Connection refused", endpoint="split")))
            return
        if not command.may_resume:
            self.link.lengths[self.sequence] = 0
            self.link.middle.truncate(0, self.sequence)
        self.emit(SessionReady(command.attempt, self.link.lengths[self.sequence]))

    def send(self, command: SendRows, states: NDArray[np.float32]) -> None:
        self.link.frames.append((command, states))
        assert command.start <= self.link.lengths[self.sequence], "no gap"
        self.link.middle.truncate(command.start, self.sequence)
        deep = self.link.middle.run(states, command.start, self.sequence)
        self.link.lengths[self.sequence] = command.stop
        if self.link.is_slow is None:
            self._answer(command, deep)
        else:
            threading.Thread(target=self._answer_late, args=(command, deep, self.link.is_slow)).start()

    def _answer_late(self, command: SendRows, deep: NDArray[np.float32], is_slow: Callable[[], bool]) -> None:
        until = monotonic() + 60
        sleep(0.002)  # until the engine's thread has gone on
        while is_slow() and monotonic() < until:
            sleep(0.001)
        self.loop.call_soon_threadsafe(self._answer, command, deep)

    def _answer(self, command: SendRows, deep: NDArray[np.float32]) -> None:
        if self.is_closed:
            return
        if self.link.losses and command.stop >= self.link.losses[0][0]:
            _, may_resume = self.link.losses.pop(0)
            self.link.is_dead = self.link.dies_after_loss
            self.emit(SessionLost(command.attempt, may_resume=may_resume))
            return
        self.emit(DeepStates(command.attempt, deep[len(deep) - command.wanted :]))

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True
        self.link.free.append(self.sequence)


class LocalLink:
    """A ``SplitLink`` without a network. ``losses``: (rows, may_resume) at which a session is lost instead of answered, in order."""

    max_rows = 64
    max_positions = CELLS

    def __init__(self, files: PartFiles, *, size: int = 64, sequences: int = 4) -> None:
        self.middle = MiddlePart(files.middle, cells=CELLS, sequences=sequences)
        self.size = size
        self.losses: list[tuple[int, bool]] = []
        self.is_dead = self.dies_after_loss = False
        self.cost = 0.0  # seconds of a row
        self.round_trip = 0.0  # seconds
        self.is_slow: Callable[[], bool] | None = None  # answers wait while this is true
        self.frames: list[tuple[SendRows, NDArray[np.float32]]] = []
        self.plans: list[tuple[int, int, RowCosts | None]] = []  # what was known
        self.lengths = [0] * sequences
        self.free = list(range(sequences))

    def plan(self, rows: int, *, computed: int = 0, input_costs: RowCosts | None = None) -> PromptPlan:
        self.plans.append((rows, computed, input_costs))
        return PromptPlan(min(rows, self.size))

    def row_seconds(self, rows: int) -> float:
        return self.cost

    def session(self, emit: Callable[[LinkEvent], None], reserve: int) -> LocalSession:
        assert reserve <= CELLS
        return LocalSession(self, emit, self.free.pop())

    def close(self) -> None:
        self.middle.close()


class Answering:
    """One answer of a split engine with a local link."""

    def __init__(self, engine: SplitEngine, request: GenerationRequest) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self.driver = SplitDriver(engine, cast(LocalLink, engine.link))
        self.driver.start()
        self.generation = self.driver.submit(request, self._wake)

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._woken.set)

    async def batches(self) -> AsyncIterator[tuple[list[TextPiece], GenerationEnd | None]]:
        """Give what is generated, as it comes; with the last of it the end."""
        while True:
            pieces, end = self.generation.take()
            yield pieces, end
            if end is not None:
                return
            async with asyncio.timeout(60):
                await self._woken.wait()
            self._woken.clear()

    async def read(self) -> tuple[str, list[int], GenerationEnd]:
        """Return text, ids and end."""
        text, ids = "", list[int]()
        async for pieces, end in self.batches():
            text += "".join(piece.text for piece in pieces)
            ids += [token for piece in pieces for token in piece.ids]
            if end is not None:
                while not self.driver.is_over:
                    await asyncio.sleep(0)
                return text, ids, end
        raise AssertionError("an answer has an end")


def read_answer(engine: SplitEngine, request: GenerationRequest) -> tuple[str, list[int], GenerationEnd]:
    """Return text, ids and end of an answer in an event loop of its own."""

    async def read() -> tuple[str, list[int], GenerationEnd]:
        return await Answering(engine, request).read()

    return asyncio.run(read())


class Woken:
    """A consumer's wake-up."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self) -> None:
        self.event.set()

    def wait(self) -> None:
        assert self.event.wait(60), "the engine did not wake its consumer"
        self.event.clear()
