"""``kind: speculate``: a fleet of devices that draft and servers that verify, made from an experiment's options (DSD section 3).

The speculation machines, their policies and the servers' scheduler are the live ones. Devices and servers take the time that is predicted
for their hardware, or that the experiment sets. Servers don't refuse requests here: all requests wait, as in DSD.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from types import MappingProxyType
from typing import Any

import simpy
from msgspec import Struct
from msgspec.structs import replace

from streamco.client.modes.speculation.options import SpeculationOptions, SpeculationTuning
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.prior import EstimatesPrior
from streamco.core.verifier.events import SendVerdict
from streamco.core.verifier.options import SchedulerOptions
from streamco.emulation.profiles import load_step_times
from streamco.errors import ConfigError
from streamco.policies.serving.routing import routing_policy
from streamco.policies.window import DEFAULT, Dynamic
from streamco.sim.driver import call_at
from streamco.sim.experiment.metrics import Metric, RequestRow, Sink
from streamco.sim.experiment.scenario import Named, Scenario
from streamco.sim.experiment.yaml_document import Location
from streamco.sim.fleet.answer_routing import AnswerRouting
from streamco.sim.fleet.batch_policies import batch_policy
from streamco.sim.fleet.fleet import AnswerOutcome, DeviceModel, Fleet, FleetDevice
from streamco.sim.fleet.offload_profile import OffloadProfile, profile_offloading
from streamco.sim.fleet.options import DevicePool, PolicyOptions, ServerPool, WorldOptions
from streamco.sim.fleet.recorded_answer import END
from streamco.sim.fleet.target_server import CoLocatedDraft, ForwardPass, PassLimits, TargetServer
from streamco.sim.fleet.topology import Device, Topology, auto_topology, describe_topology
from streamco.sim.fleet.totals import FleetTotals
from streamco.sim.hardware.forward_pass_times import Hardware, memory_tokens, predictor
from streamco.sim.hardware.link_capacity import read_link_trace
from streamco.sim.hardware.links import LinkOptions, simulated_link
from streamco.sim.workload.trace_files import read_gaps, read_lengths, read_trace
from streamco.sim.workload.workload import ArrivalOptions, SimulatedRequest, WorkloadOptions, read_requests

__all__ = ["KIND", "SpeculateOptions", "device_model", "forward_pass"]

_SEQUENCES = 6  # maximum sequences that a device drafts at once
_ONE_MORE = 0.05  # share of a step that each further sequence adds, if only rates are known
_PREFILL = 5.0  # default for the prompt tokens read in the time of one written token; see ``DevicePool``
_CONTEXT = 512  # tokens in the cache for which a device's step time is computed
_UNBOUNDED = 1 << 22  # tokens in a cache of unknown size
_LONGEST_DRAFT = 12  # tokens, with a policy that chooses the window
_PATIENCE = 3600.0  # seconds; the simulation never gives up on a slow reply


class SpeculateOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All options of an experiment of this kind."""

    world: WorldOptions
    workload: WorkloadOptions
    policy: PolicyOptions = PolicyOptions()


def device_model(pool: DevicePool) -> DeviceModel:
    """Return the speed and energy of a pool's devices.

    Raises:
        ConfigError: there is no such hardware.
    """
    energy = {"prompt_joules": pool.prompt_joules, "token_joules": pool.token_joules}
    if pool.model is not None and pool.gpu is not None:
        hardware = Hardware(model=pool.model, gpu=pool.gpu, tensor_parallel=pool.tensor_parallel, engine=pool.engine)
        forward = predictor(hardware)
        short, long = forward(0, 256, 0, 1), forward(0, 1024, 0, 1)
        slope = (long - short) / 768
        times = tuple(forward(count, 0, count * _CONTEXT, 1) for count in range(1, _SEQUENCES + 1))
        return DeviceModel(
            name=f"{pool.model} on {pool.gpu}", step_times=times, seconds_per_token=slope, overhead=max(0.0, short - 256 * slope), **energy
        )
    if pool.draft_tokens_per_s is None:
        raise AssertionError("a pool has its hardware or its rate")
    step = 1.0 / pool.draft_tokens_per_s
    return DeviceModel(
        name=f"{pool.draft_tokens_per_s:g} tokens/s",
        step_times=tuple(step * (1.0 + _ONE_MORE * index) for index in range(_SEQUENCES)),
        seconds_per_token=step / _PREFILL if pool.prefill_tokens_per_s is None else 1.0 / pool.prefill_tokens_per_s,
        overhead=pool.prefill_ms / 1000,
        **energy,
    )


def forward_pass(pool: ServerPool, scenario: Scenario) -> tuple[ForwardPass, int]:
    """Return the function that gives the seconds of a pass on a pool's servers, and the number of tokens that fit in their cache.

    Raises:
        ConfigError: there is no such hardware or table.
    """
    if pool.model is not None and pool.gpu is not None:
        hardware = Hardware(model=pool.model, gpu=pool.gpu, tensor_parallel=pool.tensor_parallel, engine=pool.engine)
        return predictor(hardware), memory_tokens(hardware)
    if (costs := pool.row_costs) is not None:
        return lambda rows, tokens, context, sequences: costs.seconds(rows + tokens), _UNBOUNDED
    if pool.step_times is None:
        raise AssertionError("a pool has its hardware, its step times or its row costs")
    found = scenario.locate(pool.step_times)
    times = load_step_times(str(found) if found.exists() else pool.step_times)
    return lambda rows, tokens, context, sequences: times(rows, tokens), _UNBOUNDED


def _co_located(pool: ServerPool, policy: PolicyOptions) -> CoLocatedDraft | None:
    """Return the draft model of a pool's servers, or None if they don't draft.

    Raises:
        ConfigError: they should draft but no model is given, or there is no such hardware.
    """
    if policy.execution != "co-located":
        return None
    if pool.draft_model is None or pool.gpu is None or not isinstance(policy.window, int):
        raise ConfigError("server_pools: draft_model: expected the name of a model with execution 'co-located', got none")
    hardware = Hardware(model=pool.draft_model, gpu=pool.gpu, tensor_parallel=pool.tensor_parallel, engine=pool.engine)
    return CoLocatedDraft(predictor(hardware), policy.window)


class SpeculateKind:
    """The kind ``speculate``; see ``scenario.Kind``."""

    options = SpeculateOptions
    metrics: Mapping[str, Metric] = MappingProxyType(
        {
            "finished": Metric("answers finished after the warm-up and before the horizon", "requests/s", "higher"),
            "utilisation": Metric("busy share of the servers", "share"),
            "verdict_mean": Metric("time a verification takes at the server, mean", "s", "lower"),
            "verdict_p95": Metric("time a verification takes at the server, 95th percentile", "s", "lower"),
            "verdict_queue": Metric("of that, waiting for its batch, mean", "s", "lower"),
            "network_delay": Metric("time a message is under way, mean", "s", "lower"),
            "device_wait": Metric("time a request waits for its device, mean", "s", "lower"),
            "window_mean": Metric("drafted tokens a round, mean", "tokens"),
            "hit_rate": Metric("rounds whose draft was begun before the verdict", "share", "higher"),
            "drafted_unused": Metric("drafted tokens that were of no use, for each of an answer", "tokens", "lower"),
            "offloaded_share": Metric("drafted tokens that were sent to be judged", "share"),
            "agreement": Metric("tokens that the server's model would have said too", "share", "higher"),
            "by_server_alone": Metric("tokens of the answers that the server wrote alone", "share"),
            "bytes_up": Metric("sent by devices, for each token of an answer", "bytes/token", "lower"),
            "device_joules": Metric("energy of the devices, for each token of an answer", "J/token", "lower"),
            "cloud_share": Metric("tokens that servers judged, corrected or wrote, for each of an answer", "tokens", "lower"),
            "drafted": Metric("tokens that devices wrote, for each of an answer", "tokens", "lower"),
            "server_tokens": Metric("tokens that servers computed, for each of an answer", "tokens", "lower"),
            "events": Metric("events of the simulation"),
        }
    )
    columns = ("throughput", "tpot_mean", "ttft_mean", "acceptance", "window_mean", "utilisation")

    def describe(self, options: SpeculateOptions) -> str:
        """Return a description of devices, servers and requests."""
        return f"{describe_topology(auto_topology(options.world))}; {_describe_workload(options.workload)}"

    def names(self, options: SpeculateOptions, scenario: Scenario) -> Iterator[Named]:
        """Yield the hardware, step times and recordings that the options name."""
        world, workload = (options := _located(options, scenario)).world, options.workload
        for number, device in enumerate(world.device_pools):
            yield Named(("world", "device_pools", number), repr(device), partial(device_model, device))
            yield from _recordings_of(device.link, ("world", "device_pools", number, "link"))
        for number, server in enumerate(world.server_pools):
            yield Named(("world", "server_pools", number), repr(server), partial(forward_pass, server, scenario))
        yield from _recordings_of(world.link, ("world", "link"))
        if (trace := workload.trace) is not None:
            yield Named(("workload", "trace"), trace, lambda: next(read_trace(trace)))
        yield Named(("policy", "offload"), repr((workload.trace, options.policy)), partial(_check_importance, options))
        if (lengths := workload.lengths) is not None:
            yield Named(("workload", "lengths"), lengths, partial(read_lengths, lengths))
        if not isinstance(workload.arrivals, str) and (azure := workload.arrivals.azure) is not None:
            yield Named(("workload", "arrivals", "azure"), azure, partial(read_gaps, azure))

    def run(self, options: SpeculateOptions, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        """Run from the first request to the end of the last one."""
        return _World(options, scenario, sink).run()


KIND = SpeculateKind()


class _World:
    """One run of the kind: the fleet, its requests and the totals."""

    def __init__(self, options: SpeculateOptions, scenario: Scenario, sink: Sink) -> None:
        self._options = options = _located(options, scenario)
        _check_importance(options)
        self._scenario = scenario
        self._sink = sink
        self._env = simpy.Environment()
        self._totals = FleetTotals()
        topology = auto_topology(options.world)
        self._servers = self._make_servers(self._env, topology)
        devices = self._make_devices(topology)
        self._fleet = self._make_fleet(
            self._env, devices, self._servers, draws="routing", on_outcome=self._on_outcome, on_verdict=self._totals.record_verdict
        )
        workload = options.workload
        self._requests: Iterator[SimulatedRequest] = read_requests(workload, devices=options.world.devices, seed=scenario.seed)
        self._in_flight = workload.in_flight
        self._is_exhausted = False
        self._last = 0.0
        self._finished = 0  # requests that finished after the warm-up and before the horizon

    def run(self) -> Mapping[str, float]:
        for _ in range(self._in_flight or 1):
            self._expect_next()
        env, fleet, events = self._env, self._fleet, 0
        while not self._is_exhausted or fleet.in_flight:
            if env.peek() == math.inf:
                raise AssertionError(f"expected the end of {fleet.in_flight} requests, got a world where nothing happens any more")
            env.step()
            events += 1
        busy = [server.busy for server in self._servers]
        computed = sum(server.made + server.verified + server.read for server in self._servers)
        return {
            **self._finished_rate(),
            "utilisation": sum(busy) / len(busy) / self._last if self._last else 0.0,
            **self._totals.metrics(computed),
            "events": float(events),
        }

    def _finished_rate(self) -> Mapping[str, float]:
        workload = self._options.workload
        if workload.horizon_s is None:
            return {}
        return {"finished": self._finished / (workload.horizon_s - workload.warm_up_s)}

    # Requests and outcomes

    def _expect_next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._is_exhausted = True
        elif self._in_flight is not None:
            self._fleet.take(replace(request, arrival=self._env.now))
        else:
            call_at(self._env, max(0.0, request.arrival - self._env.now), lambda: self._take(request))

    def _take(self, request: SimulatedRequest) -> None:
        self._fleet.take(request)
        self._expect_next()

    def _on_outcome(self, outcome: AnswerOutcome) -> None:
        self._last = max(self._last, outcome.ended)
        workload = self._options.workload
        if workload.warm_up_s <= outcome.ended < (workload.horizon_s or math.inf) and outcome.error is None:
            self._finished += 1
        if outcome.request.arrival >= workload.warm_up_s:
            self._totals.record(outcome)
            self._sink(_row(outcome))
        if self._in_flight is not None:
            self._expect_next()

    # Devices and servers

    def _make_fleet(
        self,
        env: simpy.Environment,
        devices: Sequence[FleetDevice],
        servers: Sequence[TargetServer],
        *,
        draws: str,
        on_outcome: Callable[[AnswerOutcome], None] = lambda _: None,
        on_verdict: Callable[[SendVerdict], None] = lambda _: None,
    ) -> Fleet:
        """Return a fleet with the experiment's policy. ``draws`` names its random source."""
        policy = self._options.policy
        return Fleet(
            env,
            devices=devices,
            servers=servers,
            routing=routing_policy(policy.routing),
            execution=policy.execution,
            options=self._machine_options(),
            rng=Random(f"{self._scenario.seed} {draws}"),
            on_outcome=on_outcome,
            on_verdict=on_verdict,
            token_bytes=policy.draft_token_bytes,
        )

    def _make_servers(self, env: simpy.Environment, topology: Topology) -> list[TargetServer]:
        policy = self._options.policy
        servers = []
        for server in topology.servers:
            forward, cache_tokens = forward_pass(server.options, self._scenario)
            options = SchedulerOptions(
                kv_tokens=cache_tokens,
                places=1 << 20,
                context_tokens=cache_tokens,
                sessions=1 << 20,
                sessions_per_device=1 << 20,
                prefill_within=math.inf,
                late_stretch=math.inf,
                draft_stretch=math.inf,
            )
            batching = batch_policy(policy.batching, **policy.batching_options)
            limits = PassLimits(drafting=_co_located(server.options, policy), row_costs=server.options.row_costs)
            servers.append(TargetServer(env, forward, options, batching, limits=limits, is_padded=policy.is_padded))
        return servers

    def _make_devices(self, topology: Topology) -> list[FleetDevice]:
        policy = self._options.policy
        models = [device_model(pool) for pool in self._options.world.device_pools]
        step = None  # a client that may switch to the remote stream measures the stream's step itself
        if policy.execution == "distributed" or policy.is_calibrated:
            steps = [forward_pass(pool, self._scenario)[0](1, 0, _CONTEXT, 1) for pool in self._options.world.server_pools]
            step = fmean(steps[server.pool] for server in topology.servers)
        profile = self._profile()

        def make(device: Device) -> FleetDevice:
            return self._make_device(device, models[device.pool], step, profile)

        devices = [make(device) for device in topology.devices]
        if policy.answers_before:
            first = {device.pool: device for device in reversed(topology.devices)}
            learned = self._learn({pool: make(device) for pool, device in first.items()}, topology)
            for device in topology.devices:
                devices[device.number].pair = deepcopy(learned[device.pool])
        return devices

    def _make_device(self, device: Device, model: DeviceModel, step: float | None, profile: OffloadProfile) -> FleetDevice:
        policy, seed = self._options.policy, self._scenario.seed
        options = SpeculationOptions(
            window=Dynamic(acceptance_of="verified") if policy.window == "dynamic-verified" else policy.window,
            is_adaptive=policy.execution != "distributed",
            offload="random" if policy.offload == "answers" else policy.offload,
            tuning=SpeculationTuning(
                prior=EstimatesPrior(step_times=model.step_times, remote_step=step),
                forecast=policy.forecast,
                confidence_threshold=profile.confidence_threshold,
                chunks=profile.chunks,
            ),
        )
        link = simulated_link(device.link, Random(f"{seed} link {device.number}"))
        routing = AnswerRouting(policy.budget, profile.perplexities) if policy.offload == "answers" else None
        pair = options.estimates(policy.budget if routing is None else 0.0)
        return FleetDevice(device.number, model, link, pair, routing, rtt=device.link.rtt_ms / 1000)

    def _learn(self, devices: Mapping[int, FleetDevice], topology: Topology) -> Mapping[int, SpeculationEstimates]:
        """Return, by the keys of ``devices``, what each device has learned after ``answers_before`` answers with otherwise idle servers."""
        env = simpy.Environment()
        fleet = self._make_fleet(env, [*devices.values()], self._make_servers(env, topology), draws="before")
        count = self._options.policy.answers_before * len(devices)
        workload = replace(self._options.workload, requests=count, horizon_s=None, warm_up_s=0.0, arrivals=ArrivalOptions(closed=1))
        for request in read_requests(workload, seed=-1 - self._scenario.seed):  # in a different order from the measured requests
            fleet.take(replace(request, device=request.number))
        while fleet.in_flight:
            env.step()
        return {key: device.pair for key, device in devices.items()}

    def _profile(self) -> OffloadProfile:
        """Return the devices' profile of their pair of models; with a budget below 1 it comes from the workload (Synera section 5)."""
        policy = self._options.policy
        if not 0.0 < policy.budget < 1.0:
            return OffloadProfile()
        window = policy.window if isinstance(policy.window, int) else DEFAULT
        return profile_offloading(read_requests(self._options.workload, seed=self._scenario.seed), window)

    def _machine_options(self) -> SpeculationMachineOptions:
        policy = self._options.policy
        return SpeculationMachineOptions(
            end_ids=frozenset({END}),
            has_remote=policy.execution != "distributed",
            is_adaptive=policy.execution != "distributed",
            is_parallel=policy.branches > 0,
            max_branches=min(policy.branches, _SEQUENCES),
            max_ahead=policy.ahead,
            max_siblings=policy.siblings,
            verdict_timeout=_PATIENCE,
            first_verdict_timeout=_PATIENCE,
            patience=_PATIENCE,
            last_patience=_PATIENCE,
        )


def _check_importance(options: SpeculateOptions) -> None:
    """Check that the workload's record has the attention data that the offloading rule needs.

    Raises:
        ConfigError: it has none, or none for drafts of this length.
    """
    policy = options.policy
    if not policy.needs_importance:
        return
    first = next(read_requests(options.workload), None)
    depth = 0 if first is None else len(first.attention) // first.output_tokens
    longest = policy.window if isinstance(policy.window, int) else _LONGEST_DRAFT
    if not depth:
        others = "confidence, random or answers"
        raise ConfigError(f"offload: expected {others}, or a trace with attention, got {policy.offload} without attention")
    if longest > depth + 1:
        raise ConfigError(f"window: expected at most {depth + 1} tokens, as far as the trace has attention, got {policy.window}")


def _describe_workload(workload: WorkloadOptions) -> str:
    """Return a description of the number, the kind and the arrivals of the requests."""
    what = f"of {Path(workload.trace).stem}" if workload.trace is not None else "of generated lengths"
    if workload.system_prompt:
        what += f" after a system prompt of {workload.system_prompt} tokens"
    count = f"{workload.requests} requests" if workload.requests is not None else "requests"
    match workload.arrivals:
        case str():
            when = "as recorded"
        case arrivals if arrivals.poisson_per_s is not None:
            when = f"{arrivals.poisson_per_s:g} a second"
        case arrivals if arrivals.azure is not None:
            faster = "" if arrivals.rate_scale == 1.0 else f", {arrivals.rate_scale:g} times as fast"
            when = f"arriving as in {Path(arrivals.azure).stem}{faster}"
        case arrivals:
            when = f"{arrivals.closed} at a time"
    return f"{count} {what}, {when}"


def _located(options: SpeculateOptions, scenario: Scenario) -> SpeculateOptions:
    """Return the options with files located next to the experiment's file. Other files may be packaged, or in ``$STREAMCO_DATA``."""

    def beside(path: str | None) -> str | None:
        return None if path is None else str(scenario.locate(path))

    def locate(path: str | None) -> str | None:
        found = beside(path)
        return found if found is not None and Path(found).exists() else path

    def link(of: LinkOptions) -> LinkOptions:
        return replace(of, up_trace=beside(of.up_trace), down_trace=beside(of.down_trace))

    world, workload = options.world, options.workload
    pools = tuple(replace(pool, link=None if pool.link is None else link(pool.link)) for pool in world.device_pools)
    arrivals = workload.arrivals
    if not isinstance(arrivals, str):
        arrivals = replace(arrivals, azure=locate(arrivals.azure))
    return replace(
        options,
        world=replace(world, link=link(world.link), device_pools=pools),
        workload=replace(workload, trace=locate(workload.trace), lengths=locate(workload.lengths), arrivals=arrivals),
    )


def _recordings_of(link: LinkOptions | None, location: Location) -> Iterator[Named]:
    for way in ("up_trace", "down_trace"):
        path = None if link is None else getattr(link, way)
        if path is not None:
            yield Named((*location, way), path, partial(read_link_trace, Path(path)))


def _row(outcome: AnswerOutcome) -> RequestRow:
    request, report = outcome.request, outcome.report
    after_first = outcome.tokens - 1
    first = outcome.first
    metrics: dict[str, Any] = {}
    if report is not None:
        metrics = {"judged": report.verified, "accepted": report.accepted, "rounds": report.rounds}
    return RequestRow(
        number=request.number,
        arrival=request.arrival,
        tokens=outcome.tokens,
        prompt_tokens=request.prompt_tokens,
        seconds=outcome.ended - request.arrival,
        ttft=None if first is None else first - request.arrival,
        tpot=None if first is None or after_first < 1 else (outcome.ended - first) / after_first,
        device=outcome.device,
        server=outcome.server,
        windows=tuple(outcome.windows),
        mode=outcome.mode,
        failed=None if outcome.error is None else str(outcome.error),
        **metrics,
    )
