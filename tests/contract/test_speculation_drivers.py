"""One speculator, two drivers: asyncio and SimPy command the same, each with its own clock, deadlines and order of events."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from streamco.client.modes.speculation.driver import SpeculationDriver, SpeculationLog
from streamco.client.modes.speculation.incremental_text import IncrementalText
from streamco.client.modes.speculation.output import SpeculativeOutput
from streamco.core.delivery import Delivery
from streamco.core.speculation.events import (
    CloseRemote,
    FailAnswer,
    FinishAnswer,
    OpenRemote,
    RemoteEnded,
    RemoteFailed,
    RemoteTokensReceived,
    SpeculationEvent,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.endpoints.base import EndpointStream
from streamco.errors import EndpointError, StreamcoError
from streamco.events import Origin, StreamEnded, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from streamco.sim.fleet.drafting_device import SimulatedDrafts
from streamco.sim.single.answer import simulate_answer
from streamco.sim.single.faulty_verifier import FaultyLink, FaultyVerifierSession, SimulatedRemote, VerifyingServer
from streamco.testing.virtual_clock import run_in_virtual_time
from tests.sim.single.test_answer import Scenario

NAMES: dict[Origin, str] = dict.fromkeys(("draft", "accepted", "corrected", "bonus", "device", "remote"), "model")


class LoopTime:
    """SimPy's clock and timeouts on an event loop; of what is due at once, what was asked first comes first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[float, int, Any]] = []
        self._count = 0

    @property
    def now(self) -> float:
        return self._loop.time()

    def timeout(self, delay: float) -> Any:
        waiting = type("Timeout", (), {"callbacks": []})()
        self._count += 1
        heapq.heappush(self._due, (self.now + delay, self._count, waiting))
        self._loop.call_at(self.now + delay, self._fire)
        return waiting

    def _fire(self) -> None:
        _, _, waiting = heapq.heappop(self._due)
        for function in waiting.callbacks:
            function(waiting)


class Drafts(SimulatedDrafts):
    """The simulated device, as a driver closes it."""

    async def aclose(self) -> None:
        """Nothing is held."""


class Session(FaultyVerifierSession):
    """The simulated verifier, as a driver closes it."""

    bytes_down = 0

    @property
    def rounds(self) -> int:
        return self.drafts

    async def aclose(self) -> None:
        """Nothing is held."""


class Stream:
    """The simulated remote side's stream, as an endpoint's."""

    def __init__(self, remote: RemoteSide, ids: tuple[int, ...], most: int | None) -> None:
        self._remote = remote
        self._news: asyncio.Queue[RemoteTokensReceived | RemoteEnded | RemoteFailed] = asyncio.Queue()
        self._version = remote.open(ids, most, self._news.put_nowait)

    async def receive(self) -> TokensReceived | StreamEnded:
        match await self._news.get():
            case RemoteTokensReceived(_, ids):
                choice = ChunkChoice(delta=ChoiceDelta(content="x"), token_ids=list(ids))
                return TokensReceived("model", [ChatCompletionChunk(choices=[choice])], len(ids))
            case RemoteEnded(_, reason):
                return StreamEnded("model", reason)
            case RemoteFailed(_, error):
                assert isinstance(error, EndpointError)
                raise error

    async def cancel(self) -> None:
        self._remote.run(CloseRemote(self._version))


class RemoteSide(SimulatedRemote):
    """The simulated remote side, one stream at a time."""

    def __init__(self, env: Any, server: VerifyingServer, link: FaultyLink, dice: Random) -> None:
        super().__init__(env, server, link, self._tell, dice)
        self._count = 0
        self._hear: Callable[[Any], None] = lambda _: None

    def open(self, ids: tuple[int, ...], most: int | None, hear: Callable[[Any], None]) -> int:
        self._count += 1
        self._hear = hear
        self.run(OpenRemote(self._count, ids, most))
        return self._count

    def _tell(self, event: Any) -> None:
        self._hear(event)


def live(scenario: Scenario) -> SpeculationLog:
    log: SpeculationLog = []

    async def drive() -> None:
        env: Any = LoopTime()
        dice = Random(scenario.seed)
        remote = RemoteSide(env, scenario.server, scenario.link, dice)

        def open_stream(ids: tuple[int, ...], most: int | None) -> EndpointStream:
            return Stream(remote, ids, most)

        driver = SpeculationDriver(
            SpeculationMachine(scenario.pair, scenario.options, Random(scenario.seed)),
            SpeculativeOutput(IncrementalText(lambda token: f" {token}".encode()), Delivery(None, 4.8), NAMES, number="1", model="m"),
            drafter=lambda tell: Drafts(env, scenario.device, tell, dice),
            session=lambda tell: Session(env, scenario.server, scenario.link, tell, dice),
            remote=open_stream,
            log=log,
        )
        driver.start()
        try:
            while await driver.next_batch() is not None:
                pass
        except StreamcoError:
            pass
        await driver.aclose()

    run_in_virtual_time(drive())
    return log


def simulated(scenario: Scenario) -> SpeculationLog:
    log: SpeculationLog = []
    simulate_answer(scenario.pair, scenario.options, scenario.device, scenario.server, scenario.link, seed=scenario.seed, log=log)
    return log


def what_was_said(log: SpeculationLog) -> list[tuple[type[SpeculationEvent] | None, list[Any]]]:
    """Events that changed something, and their commands, to the end of the answer."""
    said: list[Any] = []
    for _, event, commands in log:
        if commands:
            said.append((type(event) if event is not None else None, [_plain(command) for command in commands]))
        if any(isinstance(command, FinishAnswer | FailAnswer) for command in commands):
            break
    return said


def _plain(command: Any) -> Any:
    return type(command) if isinstance(command, FailAnswer) else command


@pytest.mark.parametrize("seed", range(100))
def test_both_drivers_command_the_same(seed: int) -> None:
    ours, theirs = live(Scenario(seed)), simulated(Scenario(seed))
    assert what_was_said(ours) == what_was_said(theirs)
    times = [[now for now, _, commands in log if commands] for log in (ours, theirs)]
    for one, other in zip(*times, strict=False):
        assert one == pytest.approx(other, abs=1e-6)
