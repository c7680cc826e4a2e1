"""Runs a speculator in virtual time: the same object as on asyncio, between a simulated device, verifier and remote stream."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import assert_never

import simpy
from msgspec import Struct

from streamco.core.report import SpeculationReport
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
    Origin,
    RetractIds,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.errors import StreamcoError
from streamco.sim.driver import SimulatedMachine
from streamco.sim.fleet.drafting_device import DraftingDevice, SimulatedDrafts
from streamco.sim.single.faulty_verifier import FaultyLink, FaultyVerifierSession, SimulatedRemote, VerifyingServer

__all__ = ["SimulatedReader", "SimulatedSpeculation", "SpeculationOutcome", "simulate_answer"]

Log = list[tuple[float, SpeculationEvent | None, list[SpeculationCommand]]]


class SimulatedReader:
    """Who is told tokens.

    Attributes:
        final: tokens that stay, with who vouches for them.
        provisional: those behind them.
        times: when each final token was first shown, and stayed.
        shown, retracted: tokens delivered, and taken back.
    """

    def __init__(self) -> None:
        self.final: list[tuple[int, Origin]] = []
        self.provisional: list[int] = []
        self.times: list[float] = []
        self.shown = self.retracted = 0

    def receive(self, command: DeliverIds | CommitIds | RetractIds, *, now: float) -> None:
        """Take a command in.

        Raises:
            AssertionError: what it says doesn't fit what was said before.
        """
        match command:
            case DeliverIds(ids, "draft"):
                self.provisional += ids
            case DeliverIds(ids, origin):
                if self.provisional:
                    raise AssertionError(f"final tokens can't come behind the provisional {self.provisional}")
                self.final += [(token, origin) for token in ids]
            case CommitIds(count, origin):
                if not 0 < count <= len(self.provisional):
                    raise AssertionError(f"of {len(self.provisional)} provisional tokens {count} can't be settled")
                self.final += [(token, origin) for token in self.provisional[:count]]
                del self.provisional[:count]
            case RetractIds(count):
                if not 0 < count <= len(self.provisional):
                    raise AssertionError(f"of {len(self.provisional)} provisional tokens {count} can't be taken back")
                del self.provisional[-count:]
                del self.times[-count:]
                self.retracted += count
        if isinstance(command, DeliverIds):
            self.shown += len(command.ids)
            self.times += [now] * len(command.ids)


class SpeculationOutcome(Struct, frozen=True, kw_only=True):
    """What came of an answer.

    Args:
        ids: settled, the end of the text included where it was settled.
        reason: stop or length; None: it failed.
        error: why.
        seconds: until its end.
        reader: what it was told.
        report: the speculator's.
        made: tokens the device wrote.
        bytes_up: of drafts.
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
        """Of the whole answer, the first token's wait included."""
        return len(self.ids) / self.seconds


class SimulatedSpeculation(SimulatedMachine[SpeculationEvent, SpeculationCommand]):
    """One answer between its parties.

    Args:
        rng: for everything that is left to chance.
        log: collects (now, event or None, commands) of every step.

    Attributes:
        outcome: None until the end.
        session: the verifier's.
    """

    def __init__(
        self,
        env: simpy.Environment,
        speculator: SpeculationMachine,
        device: DraftingDevice,
        server: VerifyingServer,
        link: FaultyLink,
        *,
        rng: Random,
        log: Log | None = None,
    ) -> None:
        super().__init__(env, speculator, log)
        self.outcome: SpeculationOutcome | None = None
        self.reader = SimulatedReader()
        self._speculator = speculator
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
                    if not self._drafts.has_failed:  # what was sent ahead may be sent again without the device
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
        """Whoever goes on must hold all of the settled answer, and nothing else before its own."""
        settled = self._speculator.answer.ids
        if ids[: len(settled)] != settled[: len(ids)]:
            raise AssertionError(f"{name}: expected to begin with {settled}, got {ids}")

    def _check_draft(self, ids: tuple[int, ...]) -> None:
        """A draft is what the device's own sequence has behind the settled tokens."""
        length = len(self._speculator.answer.ids)
        if self._drafts.ids[length : length + len(ids)] != list(ids):
            raise AssertionError(f"expected a draft of {self._drafts.ids[length:]}, got {ids}")

    def _end(self, reason: str | None, error: StreamcoError | None) -> None:
        if self.outcome is not None:
            raise AssertionError("an answer ends once")
        self.outcome = SpeculationOutcome(
            ids=list(self._speculator.answer.ids),
            reason=reason,
            error=error,
            seconds=self._env.now - self._began,
            reader=self.reader,
            report=self._speculator.report,
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
    """Return one answer from its beginning to its end; None: nothing more happened and it hadn't ended.

    Args:
        pair: told what the answer shows.
        seed: of all chance.
        log: see ``SimulatedSpeculation``.
        before: is given both before the answer begins, to make things happen in its time.
    """
    env, rng = simpy.Environment(), Random(seed)
    run = SimulatedSpeculation(env, SpeculationMachine(pair, options, Random(seed)), device, server, link, rng=rng, log=log)
    if before is not None:
        before(env, run)
    run.start()
    while run.outcome is None and env.peek() < float("inf"):
        env.step()
    return run.outcome
