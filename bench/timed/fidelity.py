"""Does the simulator say what the live system does?

The same requests go through ``streamco serve`` over emulated links, with imposed step times and real clients side by side, and through the
simulator. The simulator's parameters were measured with one device alone (``streamco calibrate --pair``), and it is tested with loads of 2,
4 and 8 devices. A figure is right where it is off by no more than a tenth, or by no more than three live runs differ among themselves. A
client that a full server refuses asks again later, and then no two runs are alike: a load with refusals is run four times as often.

Imposed are the step times of Llama-2-70B on two A100. One core serves the target, and all of SmolLM2 takes 5 ms there for each token that
it verifies; so it is served with two of its 30 layers (``bench.timed.fidelity_records``), which keep to those times but in batches of many.
Late batches are counted, and the simulator uses the times of the idle core for them. One load has the whole model, and a real draft model:
nothing there is imposed on the device. Its pace is the machine's at that time, so it is calibrated before each of its runs.

These loads were looked at while the simulator was mended. ``--unseen 1`` has others: 3, 5 and 7 devices, other round trips, prompts and
rests; ``--draft Q2_K`` has another draft model. ``--pair 1`` has another pair: Qwen2.5-Coder 1.5B is served whole in its own time, on one
core, where each row of a batch costs, and the 0.5B drafts.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from bench.pairs import TARGET, model_file
from bench.report import Row, add_arguments, emit
from bench.timed.fidelity_figures import FIGURES, Deviation, Run, figures_of
from bench.timed.fidelity_live import CONTEXT, CORE_LAW, DeviceLaw, LiveCell, calibrate, run_live
from bench.timed.fidelity_paces import MANY, Looks, Pace, Points
from bench.timed.fidelity_records import Record, load_pair_records, load_records, pair_model, served_model
from bench.timed.fidelity_simulated import SERVE_EXACTLY, SimulatedCell, serve_pass, simulate
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationTuning
from streamco.client.modes.speculation.verifier_binding import HELD_SEQUENCES
from streamco.emulation.profiles import load_step_times
from streamco.endpoints.verifiers.base import VerifierFacts
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.policies.acceptance import expected_tokens
from streamco.profiles import PairProfile
from streamco.sim.fleet.target_server import SERVE, PassLimits

__all__ = ["Load", "main", "measure"]

BENCH = "fidelity"
LARGE = "llama2-70b-a100x2"
DRAFT = "Q4_0"
PHONE = CORE_LAW.slower(0.042 / CORE_LAW.step_times[0])  # some 24 tokens a second
PAIR_CORE = CORE_LAW.slower(0.0142 / CORE_LAW.step_times[0])  # the 0.5B on one core of an AMD EPYC, by bench.timed.pair
RUNS = 3  # of each load
MORE = 4  # times as many where answers are refused
SIMULATED = 4  # runs for each live one; where answers are refused no two are alike
REST = 1.0  # seconds at most between two answers of a device
# A refused device tries again.
TUNING = SpeculationTuning(last_patience=600.0, first_verdict_timeout=60.0, verdict_timeout=30.0)
DRAFTING = Speculate(is_adaptive=False, patience=600.0, tuning=TUNING)


class Load(Struct, frozen=True, kw_only=True):
    """A case.

    Args:
        devices: how many.
        rtt: of each link, seconds.
        drafts: they do; False: the target writes alone.
        is_real: the target is whole, and the draft model computes.
        is_pair: the fetched pair's larger model is served, in its own time.
    """

    devices: int
    rtt: float
    drafts: bool
    is_real: bool = False
    is_pair: bool = False

    @property
    def case(self) -> str:
        """As rows name it."""
        who = "1 device" if self.devices == 1 else f"{self.devices} devices"
        what = "drafting" if self.drafts else "the target alone"
        target = "Qwen2.5-Coder 1.5B" if self.is_pair else LARGE
        return f"{who}, {what}, {target}, RTT {1000 * self.rtt:g} ms" + (", real draft model" if self.is_real else "")

    @property
    def target(self) -> Path:
        """The served model."""
        if self.is_pair:
            return pair_model("1.5B")
        return model_file(TARGET) if self.is_real else served_model()

    @property
    def is_exact(self) -> bool:
        """It is served in exact mode."""
        return not (self.is_real or self.is_pair)

    @property
    def limits(self) -> PassLimits:
        """Of the server's passes."""
        return SERVE_EXACTLY if self.is_exact else SERVE

    @property
    def law(self) -> DeviceLaw:
        """Imposed on the devices, unless the draft model computes."""
        return PAIR_CORE if self.is_pair else PHONE

    @property
    def step_times(self) -> str | None:
        """Imposed on the server; None: none are."""
        return None if self.is_pair else LARGE


def grid(devices: Sequence[int], rtts: Sequence[float], *, is_pair: bool = False) -> tuple[Load, ...]:
    """Drafting and not, of each number and round trip."""
    return tuple(
        Load(devices=count, rtt=rtt, drafts=drafts, is_pair=is_pair) for rtt in rtts for count in devices for drafts in (True, False)
    )


REAL = Load(devices=1, rtt=0.03, drafts=True, is_real=True)
FULL = (*grid([2, 4, 8], [0.01, 0.03, 0.06]), REAL)
QUICK = grid([2], [0.03])
UNSEEN = grid([3, 5, 7], [0.02, 0.045])  # loads that the simulator was never mended by
PAIR = (
    *grid([2, 3, 4], [0.02, 0.045], is_pair=True),
    Load(devices=1, rtt=0.03, drafts=True, is_real=True, is_pair=True),
    Load(devices=1, rtt=0.03, drafts=False, is_pair=True),
)  # nothing of the simulator was mended by these, either
USED = 32  # prompts of ``FULL``, the first ones that are fit


class Setting(Struct, frozen=True, kw_only=True):
    """How much of everything."""

    loads: tuple[Load, ...]
    runs: int  # of each load, the loads in turns; ``MORE`` times as many where answers are refused
    answers: int  # of all devices of a load together
    tokens: int  # of an answer
    rounds: int  # of a calibration
    seed: int = 0  # of the rests between answers


Found = tuple[Load, list[Run], list[Run]]
"""A load, its live runs, and the simulated ones."""


class Known(Struct, frozen=True, kw_only=True):
    """What the simulator knows of a load.

    Args:
        profile: as calibrated with one device.
        law: how long a device's draft model takes.
        pace: how long the server's model takes where nothing is imposed.
        facts: what the server says of itself.
    """

    profile: PairProfile
    law: DeviceLaw
    pace: Pace
    facts: VerifierFacts


class Site(Struct, frozen=True, kw_only=True):
    """What all loads share.

    Args:
        words: the draft model.
        records: of the prompts.
    """

    words: LlamaEngine
    records: Sequence[Record]
    setting: Setting

    async def look(self, load: Load) -> Known:
        """Calibrate with one device, and how long the models take at this time."""
        pace, law = self._pace(load), self._law(load)
        profile, facts = await calibrate(self.live(load, None), rounds=self.setting.rounds)
        _log(f"calibrated for {load.case}: {_describe(profile)}")
        return Known(profile=profile, law=replace(law, step_times=profile.step_times), pace=pace, facts=facts)

    def _law(self, load: Load) -> DeviceLaw:
        if not load.is_real:
            return load.law
        (few, low), *_, (many, high) = Looks(self.words, self.records).reading()
        return replace(load.law, seconds_per_token=max(0.0, (high - low) / (many - few)))

    def _pace(self, load: Load) -> Pace:
        options = replace(_options(), exact=load.is_exact, measure_rows=load.is_pair)  # so that it pads batches as the server does
        with closing(LlamaEngine(load.target, options)) as engine:
            looks = Looks(engine, self.records, pause=0.0, counts=MANY) if load.is_pair else Looks(engine, self.records)
            pace = looks.taken()
        kinds = {"judges": pace.judge, "writes": pace.write, "reads": pace.read, "ends a prompt": pace.end}
        _log(f"{load.target.name}, tokens and ms: " + "; ".join(f"{kind} {_ms(points)}" for kind, points in kinds.items()))
        return pace

    def live(self, load: Load, profile: PairProfile | None, run: int = 0) -> LiveCell:
        """For the live side; without a profile for the calibration."""
        return LiveCell(
            target=load.target,
            is_exact=load.is_exact,
            step_times=load.step_times,
            words=self.words,
            law=None if load.is_real else load.law,
            rtt=load.rtt,
            speculation=DRAFTING.with_profile(profile) if load.drafts else None,
            work=self.work(load),
            tokens=self.setting.tokens,
            rests=self.rests(load, run),
        )

    def simulated(self, load: Load, known: Known, run: int) -> SimulatedCell:
        """For the simulator: what the calibration found, and what was imposed."""
        profile = known.profile
        imposed = _nothing if load.step_times is None else load_step_times(load.step_times)
        forward = serve_pass(imposed, known.pace, profile, drafts=load.drafts)
        verdict = dict(profile.verify_times)[profile.window]
        return SimulatedCell(
            forward=forward,
            limits=load.limits,
            rtt=profile.wait - verdict,
            law=known.law,
            speculation=DRAFTING.with_profile(profile) if load.drafts else None,
            work=self.work(load),
            tokens=self.setting.tokens,
            rests=self.rests(load, run),
            facts=known.facts,
        )

    def work(self, load: Load) -> list[list[Record]]:
        """Records of each device: one that doesn't count, and those that do."""
        each = self.setting.answers // load.devices + 1
        return [list(self.records[number * each : (number + 1) * each]) for number in range(load.devices)]

    def rests(self, load: Load, run: int) -> list[list[float]]:
        """Before each of them, in this run."""
        seed = self.setting.seed
        rng = Random(f"{seed} {load.devices} {run}" if seed else f"{load.devices} {run}")
        return [[rng.uniform(0.0, REST) for _ in records] for records in self.work(load)]


def main() -> int:
    """Print the rows."""
    options = _parse()
    setting, skipped = _setting(options)
    count = skipped + setting.answers + max(load.devices for load in setting.loads)
    if options.pair is None:
        kind = options.draft or DRAFT
        drafter, records = model_file(kind), load_records(count, setting.tokens, kind, options.records)[skipped:]
    else:
        drafter, records = pair_model("0.5B"), load_pair_records(count, setting.tokens, options.records)
    with closing(LlamaEngine(drafter, _options())) as words:
        found = asyncio.run(measure(Site(words=words, records=records, setting=setting)))
    rows = [row for load, runs, simulations in found for row in rows_of(load, runs, simulations)]
    emit(rows, options.json, against="live")
    if options.table is not None:
        options.table.write_text("\n".join(table_of(found)) + "\n", encoding="utf-8")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--records", type=Path, metavar="FILE", help="keep the prompts and their answers there, for the next time")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write a table in Markdown there")
    parser.add_argument("--runs", type=int, default=None, metavar="N", help="of each load")
    parser.add_argument("--only", default="", metavar="TEXT", help="loads whose case holds this")
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--unseen", type=_seed, metavar="SEED", help="loads, prompts and rests that the simulator was not built with")
    others.add_argument("--pair", type=_seed, metavar="SEED", help="loads of the fetched pair (make models), with such rests")
    parser.add_argument("--draft", metavar="KIND", help="draft model: another quantisation of the packaged one, or pruned")
    options = parser.parse_args()
    if options.pair is not None and options.draft is not None:
        parser.error(f"--draft: expected none beside --pair, whose draft model is the 0.5B, got {options.draft}")
    return options


def _seed(text: str) -> int:
    if (seed := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected a seed above 0, got {seed}")
    return seed


def _setting(options: argparse.Namespace) -> tuple[Setting, int]:
    """Return what is asked for, and how many prompts are left out, because the simulator was built with them."""
    loads, seed, skipped = (QUICK if options.quick else FULL), 0, 0
    if options.pair is not None:
        loads, seed = PAIR, options.pair
    elif options.unseen is not None:
        loads, seed, skipped = UNSEEN, options.unseen, USED
    chosen = tuple(load for load in loads if options.only in load.case)
    if not options.quick:
        return Setting(loads=chosen, runs=options.runs or RUNS, answers=24, tokens=40, rounds=24, seed=seed), skipped
    most = max(load.devices for load in chosen)
    return Setting(loads=chosen, runs=options.runs or 1, answers=most, tokens=16, rounds=8, seed=seed), skipped


async def measure(site: Site) -> list[Found]:
    """Calibrate, then every load, in turns; then the same runs simulated, and ``SIMULATED`` times as many with other rests."""
    known: dict[float, Known] = {}
    for load in site.setting.loads:
        if not load.is_real and load.rtt not in known:
            known[load.rtt] = await site.look(load)
    lived: dict[Load, list[tuple[Known, Run]]] = {load: [] for load in site.setting.loads}
    while waiting := [load for load, lives in lived.items() if len(lives) < wanted(site.setting, [run for _, run in lives])]:
        for load in waiting:
            number = len(lived[load])
            knows = await site.look(load) if load.is_real else known[load.rtt]
            run = await run_live(site.live(load, knows.profile, number))
            lived[load].append((knows, run))
            _log(f"run {number + 1}: {load.case}: {_brief(run)}")
    return [(load, [run for _, run in lives], simulated(site, load, [knows for knows, _ in lives])) for load, lives in lived.items()]


def simulated(site: Site, load: Load, known: Sequence[Known]) -> list[Run]:
    """Runs with what was known in each live one, the first of them with its rests."""
    return [simulate(site.simulated(load, known[number % len(known)], number)) for number in range(SIMULATED * len(known))]


def wanted(setting: Setting, runs: Sequence[Run]) -> int:
    """How many runs a load is to have that has these."""
    return setting.runs * (MORE if any(run.refusals for run in runs) else 1)


def rows_of(load: Load, runs: Sequence[Run], simulations: Sequence[Run]) -> Iterator[Row]:
    """Live, simulated, and by how much that is off."""
    for name, (live, simulated) in compare(runs, simulations).items():
        for contender, values in (("live", live), ("simulated", simulated)):
            yield Row(BENCH, load.case, contender, name, FIGURES[name], statistics.median(values), min(values), max(values))
        yield _row(load, "simulated", f"{name}: off by", "share", off(live, simulated))
        yield _row(load, "live", f"{name}: off by", "share", spread(live))
    if load.drafts and load.step_times is not None:
        late = [run.late for run in runs]
        yield Row(BENCH, load.case, "live", "rounds that took longer than imposed", "share", statistics.median(late), min(late), max(late))
    if not load.is_real or load.is_pair:  # what all of SmolLM2 says is recorded nowhere
        yield _row(load, "live", "answers other than recorded", "", sum(run.others for run in runs))
    for contender, which in (("live", runs), ("simulated", simulations)):
        yield _row(load, contender, "refused, a run", "", statistics.fmean(run.refusals for run in which))


def compare(runs: Sequence[Run], simulations: Sequence[Run]) -> dict[str, tuple[list[float], list[float]]]:
    """Each figure, of the live runs and of the simulated ones."""
    live, simulated = [figures_of(run) for run in runs], [figures_of(run) for run in simulations]
    return {name: ([each[name] for each in live], [each[name] for each in simulated]) for name in FIGURES if name in simulated[0]}


def off(live: Sequence[float], simulated: Sequence[float]) -> float:
    """By how much the simulator says too much, medians of both."""
    return _relative(statistics.median(simulated) - statistics.median(live), statistics.median(live))


def spread(live: Sequence[float]) -> float:
    """Of three runs, relative to the median of all: the mean of every three in turn, so that more runs don't make it larger."""
    turns = [live[at : at + RUNS] for at in range(max(1, len(live) - RUNS + 1))]
    return _relative(statistics.fmean(max(turn) - min(turn) for turn in turns), statistics.median(live))


def _relative(difference: float, whole: float) -> float:
    if not difference:
        return 0.0
    return difference / whole if whole else math.copysign(math.inf, difference)


def table_of(found: Sequence[Found]) -> Iterator[str]:
    """A line for each figure of each load."""
    yield "| load | figure | live | runs | simulated | off by | spread | |"
    yield "|---|---|---|---|---|---|---|---|"
    for load, runs, simulations in found:
        for name, (live, simulated) in compare(runs, simulations).items():
            deviation = Deviation(off(live, simulated), spread(live))
            sign = "yes" if deviation.is_right else "**no**"
            figures = f"{statistics.median(live):.4g} | {min(live):.4g} to {max(live):.4g} | {statistics.median(simulated):.4g}"
            errors = f"{100 * deviation.off:+.1f} % | {100 * deviation.spread:.1f} %"
            yield f"| {load.case} | {name} [{FIGURES[name]}] | {figures} | {errors} | {sign} |"


def _row(load: Load, contender: str, metric: str, unit: str, value: float) -> Row:
    return Row(BENCH, load.case, contender, metric, unit, value, value, value)


def _options() -> EngineOptions:
    return EngineOptions(threads=1, context_tokens=CONTEXT, max_sequences=1, held_sequences=2 * HELD_SEQUENCES)


def _describe(profile: PairProfile) -> str:
    verdicts = " ".join(f"{size}: {1000 * seconds:.1f}" for size, seconds in profile.verify_times)
    round_tokens = expected_tokens(profile.acceptance, profile.window)
    remote = 1000 * (profile.remote_step or 0.0)
    return f"verdicts [ms] {verdicts}; wait {1000 * profile.wait:.1f} ms; remote step {remote:.1f} ms; {round_tokens:.2f} tokens a round"


def _brief(run: Run) -> str:
    figures: Mapping[str, float] = figures_of(run)
    simulated = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return f"{simulated}; late {run.late:.2f}, {run.others} answers other than recorded, {run.refusals} refused"


def _ms(points: Points) -> str:
    return " ".join(f"{tokens}: {1000 * seconds:.1f}" for tokens, seconds in points)


def _nothing(_rows: int, _tokens: int) -> float:
    """Seconds that are imposed where none are."""
    return 0.0


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
