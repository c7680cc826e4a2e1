"""Simulates one speculated answer, with the same machine as on asyncio and a simulated device, verifier and remote stream."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import assert_never

import simpy
from msgspec import Struct

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import (
    AdoptBranch,
    CloseRemote,
    CloseVerifier,
    CommitIds,
    ConnectVerifier,
    DeliverIds,
    DraftBranch,
    DraftTokens,
    DropDrafts,
    FailAnswer,
    FinishAnswer,
    OpenRemote,
    RetractIds,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.report import SpeculationReport
from streamco.errors import StreamcoError
from streamco.events import Origin
from streamco.sim.driver import SimulatedMachine
from streamco.sim.fleet.drafting_device import DraftingDevice, SimulatedDrafts
from streamco.sim.single.faulty_verifier import FaultyLink, FaultyVerifierSession, SimulatedRemote, VerifyingServer

__all__ = ["SimulatedReader", "SimulatedSpeculation", "SpeculationOutcome", "simulate_answer"]

Log = list[tuple[float, SpeculationEvent | None, list[SpeculationCommand]]]


class SimulatedReader:
    """A reader that checks everything that is delivered to it.

    Attributes:
        final: committed tokens, with their origins.
        provisional: the draft tokens shown after them.
        times: time at which each token that wasn't retracted was first shown.
        shown, retracted: number of tokens delivered, and of tokens retracted.
    """

    def __init__(self) -> None:
        self.final: list[tuple[int, Origin]] = []
        self.provisional: list[int] = []
        self.times: list[float] = []
        self.shown = self.retracted = 0

    def receive(self, command: DeliverIds | CommitIds | RetractIds, *, now: float) -> None:
        """Receive a command.

        Raises:
            AssertionError: the command contradicts the ones before it.
        """
        match command:
            case DeliverIds(ids, "draft"):
                self.provisional += ids
            case DeliverIds(ids, origin):
                if self.provisional:
                    raise AssertionError(f"expected final tokens when none are provisional, got them after {self.provisional}")
                self.final += [(token, origin) for token in ids]
            case CommitIds(count, origin):
                if not 0 < count <= len(self.provisional):
                    raise AssertionError(f"expected to commit 1 to {len(self.provisional)} provisional tokens, got {count}")
                self.final += [(token, origin) for token in self.provisional[:count]]
                del self.provisional[:count]
            case RetractIds(count):
                if not 0 < count <= len(self.provisional):
                    raise AssertionError(f"expected to retract 1 to {len(self.provisional)} provisional tokens, got {count}")
                del self.provisional[-count:]
                del self.times[-count:]
                self.retracted += count
        if isinstance(command, DeliverIds):
            self.shown += len(command.ids)
            self.times += [now] * len(command.ids)


class SpeculationOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of an answer.

    Args:
        ids: committed tokens, including the end token if it was committed.
        reason: "stop" or "length", or None if the answer failed.
        error: why it failed, or None if it didn't.
        seconds: time from its start to its end.
        reader: the reader, with the tokens that were delivered.
        report: the speculation machine's report.
        made: tokens that the device wrote.
        bytes_up: bytes of all drafts.
    """

    ids: list[int]
    reason: str | None
    error: StreamcoError | None
    seconds: float
    reader: SimulatedReader
    report: SpeculationReport
    made: int
    bytes_up: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over the whole answer, from its start."""
        return len(self.ids) / self.seconds


class SimulatedSpeculation(SimulatedMachine[SpeculationEvent, SpeculationCommand]):
    """One answer with its device, verifier and remote stream.

    Args:
        rng: random source of all three.
        log: collects (now, event or None, commands) of every step.

    Attributes:
        outcome: outcome of the answer, or None until its end.
        session: the verifier's session.
    """

    def __init__(
        self,
        env: simpy.Environment,
        speculation: SpeculationMachine,
        device: DraftingDevice,
        server: VerifyingServer,
        link: FaultyLink,
        *,
        rng: Random,
        log: Log | None = None,
    ) -> None:
        super().__init__(env, speculation, log)
        self.outcome: SpeculationOutcome | None = None
        self.reader = SimulatedReader()
        self._speculation = speculation
        self._drafts = SimulatedDrafts(env, device, self.receive, rng)
        self.session = FaultyVerifierSession(env, server, link, self.receive, rng)
        self._remote = SimulatedRemote(env, server, link, self.receive, rng)
        self._began = env.now

    def _do(self, command: SpeculationCommand) -> None:
        match command:
            case DraftTokens() | AdoptBranch():
                self._drafts.run(command)
                self._check("the device's sequence", self._drafts.ids)
            case DraftBranch() | DropDrafts():
                self._drafts.run(command)
            case ConnectVerifier() | CloseVerifier():
                self.session.run(command)
            case SendDraft():
                self.session.run(command)
                if command.if_verdict is None:
                    self._check("the verifier's context", [*self.session.ids[: command.base], *command.given, *command.ids])
                    if not self._drafts.has_failed:  # drafts that were sent in advance may be sent again without the device
                        self._check_draft(command.ids)
            case OpenRemote() | CloseRemote():
                self._remote.run(command)
            case DeliverIds() | CommitIds() | RetractIds():
                self.reader.receive(command, now=self._env.now)
            case FinishAnswer(reason):
                self._end(reason, None)
            case FailAnswer(error):
                self._end(None, error)
            case _:
                assert_never(command)

    def _check(self, name: str, ids: list[int]) -> None:
        """Check that a sequence that continues the answer begins with the committed tokens."""
        settled = self._speculation.answer.ids
        if ids[: len(settled)] != settled[: len(ids)]:
            raise AssertionError(f"{name}: expected to begin with {settled}, got {ids}")

    def _check_draft(self, ids: tuple[int, ...]) -> None:
        """Check that a draft matches the tokens after the committed ones in the device's own sequence."""
        length = len(self._speculation.answer.ids)
        if self._drafts.ids[length : length + len(ids)] != list(ids):
            raise AssertionError(f"expected a draft of {self._drafts.ids[length:]}, got {ids}")

    def _end(self, reason: str | None, error: StreamcoError | None) -> None:
        if self.outcome is not None:
            raise AssertionError("an answer ends once")
        self.outcome = SpeculationOutcome(
            ids=list(self._speculation.answer.ids),
            reason=reason,
            error=error,
            seconds=self._env.now - self._began,
            reader=self.reader,
            report=self._speculation.report,
            made=self._drafts.made,
            bytes_up=self.session.bytes_up,
        )


def simulate_answer(
    pair: SpeculationEstimates,
    options: SpeculationMachineOptions,
    device: DraftingDevice,
    server: VerifyingServer,
    link: FaultyLink,
    *,
    seed: int,
    log: Log | None = None,
    before: Callable[[simpy.Environment, SimulatedSpeculation], None] | None = None,
) -> SpeculationOutcome | None:
    """Simulate one answer, and return its outcome, or None if the simulation stops before the answer has ended.

    Args:
        pair: estimates that the answer updates.
        options: options of the speculation machine.
        device, server, link: the simulated parts.
        seed: seed of all random draws.
        log: see ``SimulatedSpeculation``.
        before: called before the answer begins, to schedule events during the answer.
    """
    env, rng = simpy.Environment(), Random(seed)
    run = SimulatedSpeculation(env, SpeculationMachine(pair, options, Random(seed)), device, server, link, rng=rng, log=log)
    if before is not None:
        before(env, run)
    run.start()
    while run.outcome is None and env.peek() < float("inf"):
        env.step()
    return run.outcome
