"""Devices that draft for one another's servers: every answer is the live speculator's, in a world that they share.

A device answers one request at a time; others wait for it. What it learns of its pair it keeps. A request goes to the server that the
routing policy chooses when it begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, assert_never

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
    RemoteEnded,
    RemoteTokensReceived,
    RetractIds,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.verifier.events import SendVerdict
from streamco.errors import StreamcoError
from streamco.sim.driver import SimulatedMachine, call_at
from streamco.sim.fleet.drafting_device import DraftingDevice, SimulatedDrafts
from streamco.sim.fleet.recorded_answer import END, RecordedAnswer
from streamco.sim.fleet.remote_sessions import SimulatedRemoteStream, SimulatedVerifierSession, Traffic
from streamco.sim.fleet.routing import RoutingPolicy
from streamco.sim.fleet.target_server import TargetServer
from streamco.sim.hardware.links import SimulatedLink
from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["AnswerOutcome", "Fleet", "DeviceModel", "Execution", "FleetDevice"]

Execution = Literal["distributed", "fused", "auto"]
"""Always draft; never, the target writes alone; what pays (DSD section 4.4, fused mode as the remote side alone)."""


class DeviceModel(Struct, frozen=True, kw_only=True):
    """What a device is. Times in seconds.

    Args:
        name: of its kind.
        step_times: of the draft model for a token on each of 1, 2, ... sequences side by side.
        seconds_per_token, overhead: to read a prompt of l tokens takes seconds_per_token x l + overhead.
        prompt_joules, token_joules: energy to read a token, and to write one.
    """

    name: str
    step_times: tuple[float, ...]
    seconds_per_token: float = 0.0
    overhead: float = 0.0
    prompt_joules: float = 0.0
    token_joules: float = 0.0


class AnswerOutcome(Struct, kw_only=True):
    """What became of a request. Times in seconds since the world began.

    Args:
        request: as it came.
        device, server: who answered; numbers.
        began: when the device began with it.
        first: when its first final token came; None: none did.
        ended: when its last did.
        tokens: that the reader got.
        right: of these and the text's end, those that the target itself would have said; None: all.
        report: the speculator's; None: the target wrote it alone.
        windows: tokens of each draft that was judged.
        traffic: on the link.
        drafted: tokens the device wrote.
        joules: that the device took.
        mode: distributed, fused, or both of them one after the other.
        error: why it failed; None: it didn't.
    """

    request: SimulatedRequest
    device: int
    server: int
    began: float
    first: float | None = None
    ended: float = 0.0
    tokens: int = 0
    right: int | None = None
    report: SpeculationReport | None = None
    windows: list[int]
    traffic: Traffic
    drafted: int = 0
    joules: float = 0.0
    mode: str = "fused"
    error: StreamcoError | None = None


class FleetDevice:
    """A device of the crowd.

    Args:
        number: of the device.
        model: what it is.
        link: its own.
        pair: what it knows, and learns.

    Attributes:
        has_read: tokens with which all prompts begin, and which are in its cache.
    """

    __slots__ = ("has_read", "is_busy", "link", "model", "number", "pair", "waiting")

    def __init__(self, number: int, model: DeviceModel, link: SimulatedLink, pair: SpeculationEstimates) -> None:
        self.number = number
        self.model = model
        self.link = link
        self.pair = pair
        self.has_read = 0
        self.is_busy = False
        self.waiting: deque[SimulatedRequest] = deque()


class _Speculated(SimulatedMachine[SpeculationEvent, SpeculationCommand]):
    """One answer by speculation, between a member and a server."""

    def __init__(
        self,
        env: simpy.Environment,
        crowd: Fleet,
        *,
        member: FleetDevice,
        server: TargetServer,
        answer: RecordedAnswer,
        answered: AnswerOutcome,
        options: SpeculationMachineOptions,
    ) -> None:
        seed = answer.request.number
        speculator = SpeculationMachine(member.pair, options, Random(seed))
        super().__init__(env, speculator)
        model, request = member.model, answer.request
        self._unread = max(1, request.prompt_tokens - min(member.has_read, request.common_tokens))
        device = DraftingDevice(
            model=answer.draft,
            writes=answer.write,
            step_times=model.step_times,
            read_time=model.seconds_per_token,
            prompt_time=model.overhead + model.seconds_per_token * self._unread,
            end_ids=frozenset({END}),
        )
        self._crowd = crowd
        self._member = member
        self._answer = answer
        self._answered = answered
        self._speculator = speculator
        self._drafts = SimulatedDrafts(env, device, self.receive, Random(seed))
        self._session = SimulatedVerifierSession(
            env,
            server,
            member.link,
            traffic=answered.traffic,
            device=f"device{member.number}",
            answer=answer,
            emit=self.receive,
            on_verdict=crowd.on_verdict,
            token_bytes=crowd.token_bytes,
        )
        self._remote = SimulatedRemoteStream(env, server, member.link, traffic=answered.traffic, answer=answer, emit=self.receive)

    def _do(self, command: SpeculationCommand) -> None:
        match command:
            case DraftTokens() | AdoptBranch() | DraftBranch() | DropDrafts():
                self._drafts.run(command)
            case SendDraft():
                if command.if_verdict is None:
                    self._answered.windows.append(len(command.ids))
                self._session.run(command)
            case ConnectVerifier() | CloseVerifier():
                self._session.run(command)
            case OpenRemote() | CloseRemote():
                self._remote.run(command)
            case DeliverIds(ids, origin):
                if origin != "draft":
                    self._crowd.note_tokens(self._answered, len(ids))
            case CommitIds(count):
                self._crowd.note_tokens(self._answered, count)
            case RetractIds():
                pass
            case FinishAnswer():
                self._end(None)
            case FailAnswer(error):
                self._end(error)
            case _:
                assert_never(command)

    def _end(self, error: StreamcoError | None) -> None:
        answered, model, report = self._answered, self._member.model, self._speculator.report
        answered.report = report
        if not self._member.pair.is_lossless:
            answered.right = sum(token == self._answer.right(place) for place, token in enumerate(self._speculator.answer.ids))
        answered.drafted = self._drafts.made
        if answered.drafted:
            self._member.has_read = max(self._member.has_read, min(answered.request.common_tokens, answered.request.prompt_tokens))
        answered.joules = model.prompt_joules * self._unread + model.token_joules * self._drafts.made
        answered.mode = "distributed" if not report.remote else "both" if report.rounds else "fused"
        self._crowd.end(self._member, answered, error)


class Fleet:
    """Devices, servers, and the requests between them.

    Args:
        members: the devices.
        servers: the targets.
        routing: which server a request goes to.
        execution: whether to draft.
        options: of the speculators.
        dice: for routing, and for which device draws a request that names none.
        on_answered: is told every request's end.
        on_verdict: is told every verdict that a server sends.
        token_bytes: of a drafted token on its way.

    Attributes:
        on_verdict, token_bytes: as given.
        in_flight: requests that came and haven't ended.
    """

    def __init__(
        self,
        env: simpy.Environment,
        *,
        members: Sequence[FleetDevice],
        servers: Sequence[TargetServer],
        routing: RoutingPolicy,
        execution: Execution,
        options: SpeculationMachineOptions,
        dice: Random,
        on_answered: Callable[[AnswerOutcome], None],
        on_verdict: Callable[[SendVerdict], None] = lambda _: None,
        token_bytes: float = 2.0,
    ) -> None:
        self.on_verdict = on_verdict
        self.token_bytes = token_bytes
        self.in_flight = 0
        self._env = env
        self._members = members
        self._servers = servers
        self._routing = routing
        self._execution = execution
        self._options = options
        self._dice = dice
        self._on_answered = on_answered

    def take(self, request: SimulatedRequest) -> None:
        """A request comes now."""
        self.in_flight += 1
        number = self._dice.randrange(len(self._members)) if request.device is None else request.device % len(self._members)
        member = self._members[number]
        if member.is_busy:
            member.waiting.append(request)
        else:
            self._begin(member, request)

    def _begin(self, member: FleetDevice, request: SimulatedRequest) -> None:
        member.is_busy = True
        number = self._routing.choose([server.load for server in self._servers], self._dice)
        server = self._servers[number]
        server.load += 1
        answer = RecordedAnswer(request)
        answered = AnswerOutcome(request=request, device=member.number, server=number, began=self._env.now, windows=[], traffic=Traffic())
        if self._execution == "fused":
            self._stream(member, server, answer, answered)
        else:
            _Speculated(self._env, self, member=member, server=server, answer=answer, answered=answered, options=self._options).start()

    def _stream(self, member: FleetDevice, server: TargetServer, answer: RecordedAnswer, answered: AnswerOutcome) -> None:
        def hear(event: RemoteTokensReceived | RemoteEnded) -> None:
            match event:
                case RemoteTokensReceived(_, ids):
                    self.note_tokens(answered, len(ids))
                case RemoteEnded():
                    self.end(member, answered, None)

        SimulatedRemoteStream(self._env, server, member.link, traffic=answered.traffic, answer=answer, emit=hear).run(
            OpenRemote(1, (), None)
        )

    # What answers say

    def note_tokens(self, answered: AnswerOutcome, count: int) -> None:
        """A reader got final tokens."""
        if answered.first is None and count:
            answered.first = self._env.now
        answered.tokens += count

    def end(self, member: FleetDevice, answered: AnswerOutcome, error: StreamcoError | None) -> None:
        """An answer is over."""
        answered.ended = self._env.now
        answered.error = error
        server = self._servers[answered.server]
        server.load -= 1
        call_at(self._env, 0.0, lambda: self._next(member, server, answered))

    def _next(self, member: FleetDevice, server: TargetServer, answered: AnswerOutcome) -> None:
        self.in_flight -= 1
        server.forget(answered.request.number)
        if member.waiting:
            self._begin(member, member.waiting.popleft())
        else:
            member.is_busy = False
        self._on_answered(answered)
