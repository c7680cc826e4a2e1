"""``kind: split``: devices with the input layers and the head of a model, and a server with its middle layers (HAT).

The live policies determine chunk sizes, batches, the monitored load and the steps of parallel drafting. The times of devices and server are
set by the experiment, or predicted for the server's hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType

import simpy
from msgspec.structs import replace

from streamco.policies.serving.batching import Mixed
from streamco.profiles.row_costs import RowCosts
from streamco.sim.driver import call_at
from streamco.sim.experiment.metrics import Metric, RequestRow, Sink
from streamco.sim.experiment.scenario import Named, Scenario
from streamco.sim.hardware.forward_pass_times import Hardware, predictor
from streamco.sim.split.options import MiddleServerOptions, SplitKindOptions
from streamco.sim.split.split_answer import SimulatedSplitAnswer, SplitAnswerOutcome
from streamco.sim.split.split_device import make_devices
from streamco.sim.split.split_server import BatchSeconds, SimulatedSplitServer
from streamco.sim.split.split_totals import SplitTotals
from streamco.sim.workload.trace_files import read_gaps, read_lengths, read_trace
from streamco.sim.workload.workload import SimulatedRequest, WorkloadOptions, read_requests

__all__ = ["KIND", "SplitKind", "batch_seconds", "row_costs"]

_SIZES = tuple(1 << power for power in range(12))  # rows of batches that are measured before there is any load
_NO_LIMIT = 1 << 20  # rows of a batch if there is no ``room``


def batch_seconds(options: MiddleServerOptions) -> BatchSeconds:
    """Return the function that gives the seconds of a server's batch.

    Raises:
        ConfigError: there is no such hardware.
    """
    factor = options.time_factor
    if options.model is not None and options.gpu is not None:
        forward = predictor(Hardware(model=options.model, gpu=options.gpu, engine=options.engine))
        return lambda rows, context, sessions: factor * forward(0, rows, context, sessions)
    table = RowCosts({rows: milliseconds / 1e3 for rows, milliseconds in options.row_costs_ms})
    return lambda rows, context, sessions: factor * table.seconds(rows)


def row_costs(seconds: BatchSeconds) -> RowCosts:
    """Return how many seconds batches take, by number of rows, as measured on a server without load."""
    return RowCosts({rows: seconds(rows, 0, 1) for rows in _SIZES})


class SplitKind:
    """The kind ``split``; see ``scenario.Kind``."""

    options = SplitKindOptions
    metrics: Mapping[str, Metric] = MappingProxyType(
        {
            "round_tokens": Metric("tokens a round, the server's own included", "tokens", "higher"),
            "hit_rate": Metric("rounds with a draft that was begun before the verdict", "share", "higher"),
            "stage_mean": Metric("time of a batch in a stage, mean", "s", "lower"),
            "stage_deviation": Metric("time of a batch in a stage, standard deviation", "s", "lower"),
            "batch_rows": Metric("rows of a batch, mean", "rows"),
            "chunk_rows": Metric("rows of a prompt's chunk, mean", "rows"),
            "utilisation": Metric("busy share of a stage", "share"),
            "prompt_device": Metric("time of the device for a prompt", "s", "lower"),
            "prompt_link": Metric("time of a prompt's chunks on the link, together", "s", "lower"),
            "prompt_server": Metric("time of a prompt's chunks at the server, together", "s", "lower"),
            "server_rows": Metric("rows that the server computed after prompts, for each token", "rows", "lower"),
            "bytes_up": Metric("sent by devices, for each answer", "bytes", "lower"),
            "bytes_down": Metric("sent to devices, for each answer", "bytes", "lower"),
            "prefill_in_time": Metric("prompts within the limit for 128 tokens", "share", "higher"),
            "prefill_sla_p50": Metric("time for 128 prompt tokens, median", "s", "lower"),
            "prefill_sla_p90": Metric("time for 128 prompt tokens, 90th percentile", "s", "lower"),
            "prefill_sla_p99": Metric("time for 128 prompt tokens, 99th percentile", "s", "lower"),
            "decode_in_time": Metric("answers within the limit for 10 tokens", "share", "higher"),
            "decode_sla_p50": Metric("time for 10 tokens, median", "s", "lower"),
            "decode_sla_p90": Metric("time for 10 tokens, 90th percentile", "s", "lower"),
            "decode_sla_p99": Metric("time for 10 tokens, 99th percentile", "s", "lower"),
        }
    )
    columns = ("ttft_mean", "tpot_mean", "round_tokens", "stage_mean", "stage_deviation", "prefill_in_time", "decode_in_time")

    def describe(self, options: SplitKindOptions) -> str:
        """Return a description of devices, server and requests."""
        world, workload = options.world, options.workload
        devices = sum(pool.count for pool in world.device_pools)
        count = "requests" if workload.requests is None else f"{workload.requests} requests"
        stages = world.server.stages
        return f"{devices} device{'s' * (devices > 1)}, a server of {stages} stage{'s' * (stages > 1)}; {count}"

    def names(self, options: SplitKindOptions, scenario: Scenario) -> Iterator[Named]:
        """Yield the server's hardware and the workload's files."""
        server, workload = options.world.server, _located(options.workload, scenario)
        yield Named(("world", "server"), repr(server), partial(batch_seconds, server))
        if (trace := workload.trace) is not None:
            yield Named(("workload", "trace"), trace, lambda: next(read_trace(trace)))
        if (lengths := workload.lengths) is not None:
            yield Named(("workload", "lengths"), lengths, partial(read_lengths, lengths))
        if not isinstance(workload.arrivals, str) and (azure := workload.arrivals.azure) is not None:
            yield Named(("workload", "arrivals", "azure"), azure, partial(read_gaps, azure))

    def run(self, options: SplitKindOptions, scenario: Scenario, sink: Sink) -> Mapping[str, float]:
        """Run from the first request to the end of the last one."""
        return _World(options, scenario, sink).run()


KIND = SplitKind()


class _World:
    """One run of the kind: devices, server, requests and totals."""

    def __init__(self, options: SplitKindOptions, scenario: Scenario, sink: Sink) -> None:
        world, workload = options.world, _located(options.workload, scenario)
        self._options, self._scenario, self._sink = options, scenario, sink
        self._env = simpy.Environment()
        self._totals = SplitTotals(options.policy, world.server.stages)
        seconds = batch_seconds(world.server)
        self._server = SimulatedSplitServer(
            self._env,
            seconds,
            row_costs(seconds),
            Mixed(room=options.policy.room or _NO_LIMIT),
            stages=world.server.stages,
            is_merged=options.policy.is_merged,
            on_batch=self._totals.record_batch,
        )
        self._devices = make_devices(
            world.device_pools, world.link, pace_requests=world.pace_requests, is_shared=world.is_shared, seed=scenario.seed
        )
        self._requests = read_requests(workload, devices=len(self._devices), seed=scenario.seed)
        self._waits = workload.in_flight
        self._running = 0
        self._is_exhausted = False

    def run(self) -> Mapping[str, float]:
        for _ in range(self._waits or 1):
            self._expect_next()
        while not self._is_exhausted or self._running:
            if self._env.peek() == math.inf:
                raise AssertionError(f"expected the end of {self._running} requests, got a world where nothing happens any more")
            self._env.step()
        return {
            "utilisation": self._server.busy / self._env.now if self._env.now else 0.0,
            **self._totals.metrics(self._server.rows),
        }

    def _expect_next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._is_exhausted = True
        elif self._waits is not None:
            self._take(replace(request, arrival=self._env.now))
        else:
            call_at(self._env, max(0.0, request.arrival - self._env.now), partial(self._take_and_expect, request))

    def _take_and_expect(self, request: SimulatedRequest) -> None:
        self._take(request)
        self._expect_next()

    def _take(self, request: SimulatedRequest) -> None:
        if request.device is None:
            raise AssertionError("requests are read with their devices")
        self._running += 1
        SimulatedSplitAnswer(
            self._env,
            self._devices[request.device],
            self._server,
            request,
            self._options.policy,
            state_bytes=self._options.world.state_bytes,
            seed=self._scenario.seed,
            on_outcome=self._on_outcome,
        ).start()

    def _on_outcome(self, outcome: SplitAnswerOutcome) -> None:
        self._running -= 1
        self._totals.record(outcome)
        self._sink(_row(outcome))
        if self._waits is not None:
            self._expect_next()


def _row(outcome: SplitAnswerOutcome) -> RequestRow:
    request = outcome.request
    return RequestRow(
        number=request.number,
        arrival=request.arrival,
        tokens=outcome.tokens,
        prompt_tokens=request.prompt_tokens,
        seconds=outcome.ended - request.arrival,
        ttft=outcome.first - request.arrival,
        tpot=(outcome.ended - outcome.first) / (outcome.tokens - 1) if outcome.tokens > 1 else None,
        device=request.device,
        server=0,
        judged=outcome.judged,
        accepted=outcome.accepted,
        rounds=outcome.rounds,
    )


def _located(workload: WorkloadOptions, scenario: Scenario) -> WorkloadOptions:
    """Return the workload with files located next to the experiment's file. Other files may be packaged, or in ``$STREAMCO_DATA``."""

    def locate(path: str | None) -> str | None:
        return path if path is None or not (found := scenario.locate(path)).exists() else str(found)

    arrivals = workload.arrivals
    if not isinstance(arrivals, str):
        arrivals = replace(arrivals, azure=locate(arrivals.azure))
    return replace(workload, trace=locate(workload.trace), lengths=locate(workload.lengths), arrivals=arrivals)
