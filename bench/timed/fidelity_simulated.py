"""The simulated side of ``bench.timed.fidelity``: the same requests in a world of ``streamco.sim``, by the times that were calibrated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import simpy
from msgspec import Struct
from msgspec.structs import asdict, replace

from bench.timed.fidelity_figures import MeasuredAnswer, Run, Verdict
from bench.timed.fidelity_live import CONTEXT, PLACES, WARM_TOKENS, DeviceLaw
from bench.timed.fidelity_paces import Pace, between
from bench.timed.fidelity_records import Record
from streamco.client.modes.speculation.mode import Speculate
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.verifier.events import SendVerdict
from streamco.core.verifier.options import SchedulerOptions
from streamco.endpoints.verifiers.base import VerifierFacts
from streamco.events import common_prefix_length
from streamco.policies.serving.batching import CHUNK, Alternating
from streamco.policies.serving.routing import routing_policy
from streamco.profiles import PairProfile
from streamco.server.verify.options import VerifyOptions
from streamco.sim.driver import call_at
from streamco.sim.fleet.fleet import AnswerOutcome, DeviceModel, Fleet, FleetDevice
from streamco.sim.fleet.recorded_answer import END
from streamco.sim.fleet.target_server import ForwardPass, PassLimits, TargetServer
from streamco.sim.hardware.links import ConstantLink

__all__ = [
    "SERVE_EXACTLY",
    "SimulatedCell",
    "common_tokens",
    "recorded_device",
    "scheduler_options",
    "serve_pass",
    "simulate",
    "machine_options",
]

SERVE_EXACTLY = PassLimits(max_prompt=32, max_prompt_beside=32, max_part=32, writes_first=True, takes_turns=True)
"""As ``streamco serve --exact`` has it: the largest batch that is exact, which an engine finds when it is loaded."""

_TOKENS_EACH = 4  # contexts that sessions keep together: cli/serve.py
_BATCH = 128  # tokens of an engine's batch with 16 places and 16 answers


class SimulatedCell(Struct, frozen=True, kw_only=True):
    """What is simulated.

    Args:
        forward: seconds of the server's passes. limits: of a pass. rtt: of the links, with what sending and hearing take at both ends.
        law: of the devices. speculation, work, tokens, rests: as ``LiveCell`` has them.
        facts: what the server says of itself; None: nothing.
    """

    forward: ForwardPass
    limits: PassLimits
    rtt: float
    law: DeviceLaw
    speculation: Speculate | None
    work: Sequence[Sequence[Record]]
    tokens: int
    rests: Sequence[Sequence[float]]
    facts: VerifierFacts | None = None


def serve_pass(times: Callable[[int, int], float], pace: Pace, profile: PairProfile, *, drafts: bool) -> ForwardPass:
    """What a pass of ``streamco serve`` takes: imposed or real, whichever is longer, and what the calibration found beyond that.

    Streams write first, for as long as that is imposed to take; what else is in the pass is computed behind them (engines/loop.py). What
    a batch takes beyond the table is the server's, which hands it to the engine and hears of its end: a stream's prompt has none of that.

    Args:
        times: imposed, by rows that write and other tokens. pace: real. profile: as calibrated.
        drafts: prompts are read for sessions; False: for streams, whose last piece has the answer's first token behind it.
    """

    def real(tokens: int, sequences: int, *, drafts: bool) -> float:
        if drafts and tokens <= _DRAFT * sequences:
            return between(pace.judge, tokens)
        return between(pace.read if drafts or tokens == CHUNK else pace.end, tokens)

    def alone(rows: int, tokens: int, sequences: int, *, drafts: bool) -> float:
        written = max(times(rows, 0), between(pace.write, rows)) if rows else 0.0
        return written + (max(times(rows, tokens) - times(rows, 0), real(tokens, sequences, drafts=drafts)) if tokens else 0.0)

    judged = sorted(seconds - alone(0, size + 1, 1, drafts=True) for size, seconds in profile.verify_times if size > 1)
    batch = max(0.0, judged[len(judged) // 2])
    step = max(0.0, (profile.remote_step or 0.0) - alone(1, 0, 1, drafts=False))

    def forward(rows: int, tokens: int, _context: int, sequences: int) -> float:
        return alone(rows, tokens, sequences, drafts=drafts) + (batch if drafts and tokens and not rows else step)

    return forward


_DRAFT = 12  # tokens: more of each sequence are a prompt's


class _Watched(Fleet):
    """Notes when tokens come."""

    def __init__(self, env: simpy.Environment, measured: dict[int, MeasuredAnswer], **options: object) -> None:
        super().__init__(env, **options)  # type: ignore[arg-type]
        self._measured = measured
        self._clock = env

    def record_tokens(self, outcome: AnswerOutcome, count: int) -> None:
        """See ``Fleet.record_tokens``."""
        super().record_tokens(outcome, count)
        if count:
            self._measured[outcome.request.number].deliveries.append((self._clock.now, count))


class _World:
    def __init__(self, cell: SimulatedCell) -> None:
        self.env = simpy.Environment()
        self.measured: dict[int, MeasuredAnswer] = {}
        self.verdicts: list[Verdict] = []
        self._cell = cell
        self._seen_sessions: set[str] = set()
        self._common = common_tokens([record for records in cell.work for record in records])
        limits = replace(cell.limits, row_costs=None if cell.facts is None else cell.facts.row_costs)
        self._server = TargetServer(self.env, cell.forward, scheduler_options(), Alternating(batch_tokens=_BATCH), limits=limits)
        self._devices = [self._device(number) for number in range(len(cell.work))]

    def run(self) -> Run:
        """A short answer of everybody, which doesn't count, then all of them."""
        self._answer_all(range(1), WARM_TOKENS)
        warm, refused = len(self.measured), self._server.refused
        self.verdicts.clear()
        self._answer_all(range(1, len(self._cell.work[0])), self._cell.tokens)
        return Run(answers=list(self.measured.values())[warm:], verdicts=self.verdicts, refusals=self._server.refused - refused)

    def _answer_all(self, places: range, tokens: int) -> None:
        """Each device has its records of these places answered, one behind the other."""
        devices = len(self._devices)
        left = {position * devices + device for position in places for device in range(devices)}

        def rest(device: int, position: int) -> None:
            call_at(self.env, self._cell.rests[device][position], lambda: ask(device, position))

        def ask(device: int, position: int) -> None:
            number = position * devices + device
            self.measured[number] = MeasuredAnswer(began=self.env.now, deliveries=[])
            length = tokens if self._cell.speculation is None else None
            fleet.take(self._cell.work[device][position].request(number, device=device, tokens=length, common=self._common))

        def answer_next(outcome: AnswerOutcome) -> None:
            self._record(outcome)
            position, device = divmod(outcome.request.number, devices)
            left.discard(outcome.request.number)
            if position + 1 in places:
                rest(device, position + 1)

        fleet = _Watched(
            self.env,
            self.measured,
            devices=self._devices,
            servers=[self._server],
            routing=routing_policy("round-robin"),
            execution="fused" if self._cell.speculation is None else "distributed",
            options=machine_options(self._cell.speculation or Speculate(), tokens, self._cell.facts),
            rng=Random(0),
            on_outcome=answer_next,
            on_verdict=self._on_verdict,
        )
        for device in range(devices):
            rest(device, places.start)
        while left:
            self.env.step()

    def _record(self, outcome: AnswerOutcome) -> None:
        """See ``Run``."""
        if outcome.error is not None:
            raise outcome.error
        measured, report = self.measured[outcome.request.number], outcome.report
        if report is None:
            measured.deliveries.append((outcome.ended, 1))  # the last token comes with the end
        else:
            measured.judged, measured.accepted, measured.rounds, measured.hits = (
                report.verified,
                report.accepted,
                report.rounds,
                report.hits,
            )

    def _on_verdict(self, verdict: SendVerdict) -> None:
        if verdict.session in self._seen_sessions:
            self.verdicts.append(Verdict(self._cell.rtt + verdict.queued + verdict.compute, verdict.queued, verdict.compute))
        self._seen_sessions.add(verdict.session)

    def _device(self, number: int) -> FleetDevice:
        pair = (self._cell.speculation or Speculate()).estimates(1.0)
        return recorded_device(number, self._cell.law, self._cell.rtt, pair)


def common_tokens(records: Sequence[Record]) -> int:
    """With which all of their prompts begin."""
    return min(common_prefix_length(records[0].prompt, record.prompt) for record in records)


def simulate(cell: SimulatedCell) -> Run:
    """The run, in no time."""
    return _World(cell).run()


def recorded_device(number: int, law: DeviceLaw, rtt: float, pair: SpeculationEstimates) -> FleetDevice:
    """A device that says what was recorded in the time of ``law``, behind a link of ``rtt`` seconds.

    Engines read a prompt's last token in the step that writes the answer's first one.
    """
    each = law.seconds_per_token
    model = DeviceModel(name="recorded", step_times=law.step_times, seconds_per_token=each, overhead=-each)
    return FleetDevice(number, model, ConstantLink(rtt), pair)


def machine_options(speculation: Speculate, tokens: int, facts: VerifierFacts | None = None) -> SpeculationMachineOptions:
    """Return the options that the client makes of its settings and of what the server says, for an answer of at most so many tokens."""
    return SpeculationMachineOptions(
        end_ids=frozenset({END}),
        max_tokens=tokens,
        may_use_device=True,
        is_adaptive=speculation.is_adaptive,
        is_parallel=speculation.is_parallel,
        max_branches=speculation.max_branches,
        max_ahead=speculation.tuning.max_ahead,
        max_siblings=facts.max_paths - 1 if facts is not None and speculation.tuning.has_trees else 0,
        branch_kinds=speculation.tuning.branch_kinds,
        max_draft=VerifyOptions().draft_tokens,
        verdict_timeout=speculation.verdict_timeout,
        first_verdict_timeout=speculation.first_verdict_timeout,
        patience=speculation.patience,
        last_patience=speculation.last_patience,
    )


def scheduler_options() -> SchedulerOptions:
    """As ``server.verify.sessions`` makes them of what the server was started with."""
    return SchedulerOptions(
        kv_tokens=_TOKENS_EACH * CONTEXT + 1,
        places=PLACES,
        context_tokens=CONTEXT + 1,
        **asdict(VerifyOptions().load),
    )
