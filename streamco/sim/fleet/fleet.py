"""A fleet of drafting devices that share target servers. Every answer is made by a live speculation machine.

A device answers one request at a time, and its other requests wait. It uses what it learns about its pair of models with every server,
but keeps the times of rounds for each server separately. It plans with the row costs of the server that it uses. The routing policy chooses
the server of a request when the request begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, assert_never

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
    RemoteEnded,
    RemoteTokensReceived,
    RetractIds,
    SendDraft,
    SpeculationCommand,
    SpeculationEvent,
)
from streamco.core.speculation.machine import SpeculationMachine
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.report import SpeculationReport
from streamco.core.verifier.events import SendVerdict
from streamco.errors import StreamcoError
from streamco.policies.serving.routing import RoutingPolicy
from streamco.profiles.row_costs import RowCosts
from streamco.sim.driver import SimulatedMachine, call_at
from streamco.sim.fleet.answer_routing import PREFIX, AnswerRouting
from streamco.sim.fleet.drafting_device import DraftingDevice, SimulatedDrafts
from streamco.sim.fleet.offload_profile import prefix_perplexity
from streamco.sim.fleet.recorded_answer import END, RecordedAnswer
from streamco.sim.fleet.remote_sessions import SimulatedRemoteStream, SimulatedVerifierSession, Traffic
from streamco.sim.fleet.target_server import TargetServer
from streamco.sim.hardware.links import SimulatedLink
from streamco.sim.workload.workload import SimulatedRequest

__all__ = ["AnswerOutcome", "Fleet", "DeviceModel", "Execution", "FleetDevice"]

Execution = Literal["distributed", "fused", "co-located", "auto"]
"""How answers are generated; see ``PolicyOptions.execution`` (DSD section 4.4, whose fused mode is ``co-located`` here)."""


class DeviceModel(Struct, frozen=True, kw_only=True):
    """The speed and energy of a kind of device. Times are in seconds.

    Args:
        name: name of the kind of device.
        step_times: time of the draft model's step with 1, 2, ... sequences.
        seconds_per_token, overhead: reading a prompt of l tokens takes seconds_per_token x l + overhead.
        prompt_joules, token_joules: energy to read a token, and to write one.
    """

    name: str
    step_times: tuple[float, ...]
    seconds_per_token: float = 0.0
    overhead: float = 0.0
    prompt_joules: float = 0.0
    token_joules: float = 0.0


class AnswerOutcome(Struct, kw_only=True):
    """The outcome of one request. Times are in seconds since the simulation began.

    Args:
        request: the request.
        device, server: numbers of the device and the server that answered it.
        began: time at which the device began to work on it.
        first: time of its first final token, or None if there was none.
        ended: time of its last token.
        tokens: tokens that were delivered to the reader.
        right: how many of these tokens, including the end token, the target model would have written itself, or None for all.
        report: the speculation machine's report, or None if the whole answer was a remote stream.
        windows: tokens of each draft that was verified.
        traffic: traffic on the link.
        drafted: tokens that the device wrote.
        joules: energy that the device used.
        mode: ``distributed``, ``fused``, or ``both`` if one followed the other.
        error: why it failed, or None if it didn't.
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
    """A device of the fleet.

    Args:
        number: index that identifies the device.
        model: its speed and energy.
        link: its own link.
        pair: what it learns about its pair of models. The times of rounds are kept for each server.
        answer_routing: decides which answers the server writes alone, or None if there are no such answers.
        rtt: round-trip time to the servers, in seconds, to assume before the first verdict; None to assume nothing.

    Attributes:
        has_read: how many tokens of the prompts' common prefix are in its cache.
    """

    __slots__ = ("answer_routing", "has_read", "is_busy", "link", "model", "number", "pair", "rtt", "waiting")

    def __init__(
        self,
        number: int,
        model: DeviceModel,
        link: SimulatedLink,
        pair: SpeculationEstimates,
        answer_routing: AnswerRouting | None = None,
        *,
        rtt: float | None = None,
    ) -> None:
        self.number = number
        self.model = model
        self.link = link
        self.pair = pair
        self.answer_routing = answer_routing
        self.rtt = rtt
        self.has_read = 0
        self.is_busy = False
        self.waiting: deque[SimulatedRequest] = deque()

    def estimates_at(self, server: str, row_costs: RowCosts | None) -> SpeculationEstimates:
        """Return the estimates to use for an answer from the server with this name."""
        estimates = self.pair.at(server)
        if self.rtt is not None:
            estimates.expect_rtt(self.rtt)
        estimates.expect_row_costs(row_costs)
        return estimates


class _SpeculatedAnswer(SimulatedMachine[SpeculationEvent, SpeculationCommand]):
    """One speculated answer, between a device and a server."""

    def __init__(
        self,
        env: simpy.Environment,
        fleet: Fleet,
        *,
        device: FleetDevice,
        server: TargetServer,
        answer: RecordedAnswer,
        outcome: AnswerOutcome,
        options: SpeculationMachineOptions,
    ) -> None:
        seed = answer.request.number
        estimates = device.estimates_at(f"server{outcome.server}", server.row_costs)
        speculation = SpeculationMachine(estimates, options, Random(seed))
        super().__init__(env, speculation)
        model, request = device.model, answer.request
        self._unread = max(1, request.prompt_tokens - min(device.has_read, request.common_tokens))
        drafting = DraftingDevice(
            model=answer.draft,
            writes=answer.write,
            importance=None if device.pair.is_lossless else answer.importance,
            step_times=model.step_times,
            read_time=model.seconds_per_token,
            prompt_time=model.overhead + model.seconds_per_token * self._unread,
            end_ids=frozenset({END}),
        )
        self._fleet = fleet
        self._device = device
        self._answer = answer
        self._outcome = outcome
        self._speculation = speculation
        self._drafts = SimulatedDrafts(env, drafting, self.receive, Random(seed))
        self._session = SimulatedVerifierSession(
            env,
            server,
            device.link,
            traffic=outcome.traffic,
            device=f"device{device.number}",
            answer=answer,
            emit=self.receive,
            on_verdict=fleet.on_verdict,
            token_bytes=fleet.token_bytes,
        )
        self._remote = SimulatedRemoteStream(env, server, device.link, traffic=outcome.traffic, answer=answer, emit=self.receive)

    def _do(self, command: SpeculationCommand) -> None:
        match command:
            case DraftTokens() | AdoptBranch() | DraftBranch() | DropDrafts():
                self._drafts.run(command)
            case SendDraft():
                if command.if_verdict is None:
                    self._outcome.windows.append(len(command.ids))
                self._session.run(command)
            case ConnectVerifier() | CloseVerifier():
                self._session.run(command)
            case OpenRemote() | CloseRemote():
                self._remote.run(command)
            case DeliverIds(ids, origin):
                if origin != "draft":
                    self._fleet.record_tokens(self._outcome, len(ids))
            case CommitIds(count):
                self._fleet.record_tokens(self._outcome, count)
            case RetractIds():
                pass
            case FinishAnswer():
                self._end(None)
            case FailAnswer(error):
                self._end(error)
            case _:
                assert_never(command)

    def _end(self, error: StreamcoError | None) -> None:
        outcome, model, report = self._outcome, self._device.model, self._speculation.report
        outcome.report = report
        if not self._device.pair.is_lossless:
            outcome.right = sum(token == self._answer.right(position) for position, token in enumerate(self._speculation.answer.ids))
        outcome.drafted = self._drafts.made
        if outcome.drafted:
            self._device.has_read = max(self._device.has_read, min(outcome.request.common_tokens, outcome.request.prompt_tokens))
        outcome.joules = model.prompt_joules * self._unread + model.token_joules * self._drafts.made
        outcome.mode = "distributed" if not report.remote else "both" if report.rounds else "fused"
        self._fleet.end(self._device, outcome, error)


class Fleet:
    """Devices, servers, and the requests between them.

    Args:
        devices: the devices.
        servers: the target servers.
        routing: chooses the server of a request.
        execution: whether to draft.
        options: options of the speculation machines.
        rng: random source for routing, and for the device of a request that doesn't name one.
        on_outcome: called with the outcome of every request.
        on_verdict: called with every verdict that a server sends.
        token_bytes: bytes of a drafted token in a frame.

    Attributes:
        on_verdict, token_bytes: see the arguments.
        in_flight: number of requests that have arrived and haven't ended.
    """

    def __init__(
        self,
        env: simpy.Environment,
        *,
        devices: Sequence[FleetDevice],
        servers: Sequence[TargetServer],
        routing: RoutingPolicy,
        execution: Execution,
        options: SpeculationMachineOptions,
        rng: Random,
        on_outcome: Callable[[AnswerOutcome], None],
        on_verdict: Callable[[SendVerdict], None] = lambda _: None,
        token_bytes: float = 2.0,
    ) -> None:
        self.on_verdict = on_verdict
        self.token_bytes = token_bytes
        self.in_flight = 0
        self._env = env
        self._devices = devices
        self._servers = servers
        self._routing = routing
        self._execution = execution
        self._options = options
        self._rng = rng
        self._on_outcome = on_outcome

    def take(self, request: SimulatedRequest) -> None:
        """Accept a request that arrives now."""
        self.in_flight += 1
        number = self._rng.randrange(len(self._devices)) if request.device is None else request.device % len(self._devices)
        device = self._devices[number]
        if device.is_busy:
            device.waiting.append(request)
        else:
            self._begin(device, request)

    def _begin(self, device: FleetDevice, request: SimulatedRequest) -> None:
        device.is_busy = True
        number = self._routing.choose([server.load for server in self._servers], self._rng)
        server = self._servers[number]
        server.load += 1
        answer = RecordedAnswer(request)
        outcome = AnswerOutcome(request=request, device=device.number, server=number, began=self._env.now, windows=[], traffic=Traffic())
        routing = device.answer_routing
        if self._execution in {"fused", "co-located"}:
            self._stream(device, server, answer, outcome)
        elif routing is not None and routing.choose(prefix_perplexity(request), self._rng):
            self._stream_after_prefix(device, server, answer, outcome)
        else:
            _SpeculatedAnswer(self._env, self, device=device, server=server, answer=answer, outcome=outcome, options=self._options).start()

    def _stream_after_prefix(self, device: FleetDevice, server: TargetServer, answer: RecordedAnswer, outcome: AnswerOutcome) -> None:
        """Stream an answer after the device has read the prompt and written the first tokens, whose perplexity was high."""
        model, request = device.model, outcome.request
        outcome.drafted = min(PREFIX, request.output_tokens)
        outcome.joules = model.prompt_joules * request.prompt_tokens + model.token_joules * outcome.drafted
        seconds = model.overhead + model.seconds_per_token * request.prompt_tokens + model.step_times[0] * outcome.drafted
        call_at(self._env, seconds, lambda: self._stream(device, server, answer, outcome))

    def _stream(self, device: FleetDevice, server: TargetServer, answer: RecordedAnswer, outcome: AnswerOutcome) -> None:
        def emit(event: RemoteTokensReceived | RemoteEnded) -> None:
            match event:
                case RemoteTokensReceived(_, ids):
                    self.record_tokens(outcome, len(ids))
                case RemoteEnded():
                    self.end(device, outcome, None)

        SimulatedRemoteStream(self._env, server, device.link, traffic=outcome.traffic, answer=answer, emit=emit).run(
            OpenRemote(1, (), None)
        )

    # Reports of the answers

    def record_tokens(self, outcome: AnswerOutcome, count: int) -> None:
        """Record final tokens that were delivered."""
        if outcome.first is None and count:
            outcome.first = self._env.now
        outcome.tokens += count

    def end(self, device: FleetDevice, outcome: AnswerOutcome, error: StreamcoError | None) -> None:
        """End an answer, and start the device's next request."""
        outcome.ended = self._env.now
        outcome.error = error
        server = self._servers[outcome.server]
        server.load -= 1
        call_at(self._env, 0.0, lambda: self._next(device, server, outcome))

    def _next(self, device: FleetDevice, server: TargetServer, outcome: AnswerOutcome) -> None:
        self.in_flight -= 1
        server.forget(outcome.request.number)
        if device.waiting:
            self._begin(device, device.waiting.popleft())
        else:
            device.is_busy = False
        self._on_outcome(outcome)
