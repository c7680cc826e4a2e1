"""What would drafting here and verifying there give with other links, models and devices? In virtual time; nothing here is a measurement.

The speculation machine, its policies and their defaults are the client's own; devices, servers and links are simulated. Every step of the
server takes what is said, 0.4 % more for each token it reads or verifies (as Llama-2-70B on two A100), and the prompt 0.2 s. The device's
steps on n sequences are to one another as SmolLM2-135M's in 4 bits on one core of a server (6.1, 13.8, 19.0, 22.6, 31.5, 35.5 ms) where one
takes 6.5 or 20 ms. Where it takes 0.65 ms, ten times less, as on a phone's NPU, six of them take 1.25 of one. What it has to read first,
after a part that came as a remote stream, takes for each token what one more sequence does in a step: on this processor nearly a whole step
(two cores read 512 tokens in 1.8 s, ``bench/timed/engine.py``).

A draft token is accepted with a chance of its own, drawn around the mean, and the draft model's confidence is that chance; ``blind`` is a
model with confidences that carry no information. Its second choice is right in three of five cases where the first is wrong. The client
begins each cell without knowing the pair and keeps what it learns: first answers and later ones have rows of their own. The server alone
has no surprises, its time is reckoned. Draft-then-wait knows acceptance and times from the beginning: of the windows 1 to 12 the four that
arithmetic ranks highest are run, and the one that was fastest over all answers counts.

Forecasts are compared with the large server and acceptances from 0.5 on, never leaving the tokens to the server: the learned one, Synera's
with all branches ranked, and Synera's as printed, of which one position and one correction are drawn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from random import Random

from bench.report import Row, add_arguments, emit, summarise
from streamco import Speculate
from streamco.core.speculation.estimates import Forecast, SpeculationEstimates
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.policies.mode_switch import RoundConditions, predict_rates
from streamco.policies.window import MAX_WINDOW, Static
from streamco.sim.fleet.drafting_device import DraftingDevice
from streamco.sim.single.answer import SpeculationOutcome, simulate_answer
from streamco.sim.single.faulty_verifier import FaultyLink, VerifyingServer
from streamco.sim.workload.token_models import DeterministicModel, TokenModel
from streamco.verifiers import SpeculationTuning

__all__ = ["Cell", "main"]

BENCH = "speculate_simulated"
RTTS = (0.01, 0.03, 0.06, 0.12)  # seconds, as all times
ACCEPTANCES = (0.3, 0.5, 0.7, 0.75, 0.9)
SERVER_STEPS = (0.01, 0.025, 0.055, 0.11)
DRAFT_STEPS = (0.00065, 0.0065, 0.02)
LARGE = 0.055  # the server step that is shown by itself
USUAL = 0.75  # and the acceptance
COMPARED = 0.5  # least acceptance at which forecasts are compared
CORE = tuple(each / 6.1 for each in (6.1, 13.8, 19.0, 22.6, 31.5, 35.5))  # of a step on one sequence
NPU = tuple(1.0 + 0.05 * place for place in range(6))
TOKENS = 256
PROMPT_TIME = 0.2
READING = 0.004  # of a server's step, for each token
CONCENTRATION = 2.0  # of the chances around their mean: of the smallest, most are near 0 or 1
AHEAD = SpeculationTuning().max_ahead
FORECASTS: Mapping[str, Forecast] = {
    "streamco": "learned",
    "the paper's forecast": "geometric",
    "the paper's forecast, one branch drawn": "sampled",
}
TRIED = 4  # windows of draft-then-wait
NEVER_BELOW = 0.95
IN_TURN = SpeculationMachineOptions(max_tokens=TOKENS, is_adaptive=False, is_parallel=False)


@dataclass(frozen=True, slots=True)
class Cell:
    """A place in the grid; ``is_blind``: the draft model's confidence says nothing."""

    rtt: float
    acceptance: float
    server_step: float
    draft_step: float
    is_blind: bool = False

    def __str__(self) -> str:
        """As rows name it."""
        times = f"RTT {self.rtt * 1000:g} ms, server step {self.server_step * 1000:g} ms, draft step {self.draft_step * 1000:g} ms"
        return f"{times}, acceptance {self.acceptance:g}{', blind' if self.is_blind else ''}"

    @property
    def alone(self) -> float:
        """Seconds of the server's own stream."""
        return self.rtt + PROMPT_TIME + TOKENS * self.server_step

    def run(self, pair: SpeculationEstimates, options: SpeculationMachineOptions, seed: int) -> SpeculationOutcome:
        """An answer; the seed says which."""
        target, draft = models(self.acceptance, seed, is_blind=self.is_blind)
        shape = NPU if self.draft_step < 0.001 else CORE
        steps = tuple(self.draft_step * each for each in shape)
        device = DraftingDevice(model=draft, step_times=steps, read_time=(steps[-1] - steps[0]) / (len(steps) - 1))
        server = VerifyingServer(model=target, step=self.server_step, read_time=READING * self.server_step, prompt_time=PROMPT_TIME)
        outcome = simulate_answer(pair, options, device, server, FaultyLink(rtt=self.rtt), seed=seed)
        if outcome is None or len(outcome.ids) != TOKENS:
            raise AssertionError(f"{self}: expected an answer of {TOKENS} tokens, got {outcome}")
        return outcome


@dataclass(frozen=True, slots=True)
class Found:
    """Of a cell, answer by answer: tokens a second against the server alone and against waiting, and the rounds."""

    cell: Cell
    first: list[float]
    later: list[float]
    waiting: list[float]  # of later ones
    window: int  # of the best of those that wait
    rounds: int
    hits: int


@cache
def models(acceptance: float, seed: int, *, is_blind: bool) -> tuple[TokenModel, TokenModel]:
    """A target, and a model that drafts for it."""
    target = DeterministicModel(seed)

    @cache
    def drafted(length: int, last: int) -> Mapping[int, float]:
        rng, right = Random(f"draft {seed} {length} {last}"), target.next_token(length, last)
        chance = rng.betavariate(CONCENTRATION * acceptance, CONCENTRATION * (1.0 - acceptance))
        wrong, other = rng.sample(range(1000, 2000), 2)
        is_right, is_second = rng.random() < chance, rng.random() < 0.6
        said_of = rng.betavariate(CONCENTRATION * acceptance, CONCENTRATION * (1.0 - acceptance)) if is_blind else chance
        sure = min(0.995, max(0.05, said_of))
        rest = min(0.6 * (1.0 - sure), 0.9 * sure)
        return {right: sure, wrong: rest} if is_right else {wrong: sure, (right if is_second else other): rest}

    return target, lambda ids: drafted(len(ids), ids[-1] if ids else 0)


def compare_forecasts(cell: Cell, *, seeds: int, answers: int) -> tuple[Cell, dict[str, tuple[float, float]]]:
    """Each forecast's tokens a second over the server's own, and its share of adopted branches; later answers, never the server alone."""
    options = SpeculationMachineOptions(max_tokens=TOKENS, max_ahead=AHEAD, is_adaptive=False)
    found = {}
    for name, forecast in FORECASTS.items():
        later = []
        for seed in range(seeds):
            pair = Speculate(tuning=SpeculationTuning(forecast=forecast)).estimates(1.0)
            pair.expect_rtt(cell.rtt)
            later += [cell.run(pair, options, seed * answers + number) for number in range(answers)][1:]
        rounds, seconds = sum(outcome.report.rounds for outcome in later), sum(outcome.seconds for outcome in later)
        found[name] = (len(later) * cell.alone / seconds, sum(outcome.report.hits for outcome in later) / rounds)
    return cell, found


def forecast_rows(compared: Sequence[tuple[Cell, dict[str, tuple[float, float]]]], about: str) -> Iterator[Row]:
    """By round trip and kind of draft model: each forecast's mean over cells, and its rate over that of the default."""
    for is_blind, rtt in sorted({(cell.is_blind, cell.rtt) for cell, _ in compared}):
        among = [found for cell, found in compared if (cell.is_blind, cell.rtt) == (is_blind, rtt)]
        case = f"simulated: forecasts, RTT {rtt * 1000:g} ms{', blind' if is_blind else ''}, {len(among)} cells, {about}"
        for name in FORECASTS:
            shares = [found[name][1] for found in among]
            ratios = [found[name][0] / found["streamco"][0] for found in among]
            for metric, unit, values in (
                ("rounds whose branch was adopted, mean", "share", shares),
                ("tokens/s relative to the learned forecast, mean", "times", ratios),
            ):
                yield Row(BENCH, case, name, metric, unit, statistics.fmean(values), min(values), max(values))


def simulate(cell: Cell, *, seeds: int, answers: int) -> Found:
    """All of a cell: a new pair for every seed, so many answers of each."""
    options = SpeculationMachineOptions(max_tokens=TOKENS, max_ahead=AHEAD)
    outcomes = []
    for seed in range(seeds):
        pair = Speculate().estimates(1.0)
        pair.expect_rtt(cell.rtt)
        outcomes.append([cell.run(pair, options, seed * answers + number) for number in range(answers)])
    later = [outcome for of_seed in outcomes for outcome in of_seed[1:]]
    window, waits = waited(
        replace(cell, is_blind=False), tuple(seed * answers + number for seed in range(seeds) for number in range(1, answers))
    )
    return Found(
        cell,
        first=[cell.alone / of_seed[0].seconds for of_seed in outcomes],
        later=[cell.alone / outcome.seconds for outcome in later],
        waiting=[seconds / outcome.seconds for seconds, outcome in zip(waits, later, strict=True)],
        window=window,
        rounds=sum(outcome.report.rounds for outcome in later),
        hits=sum(outcome.report.hits for outcome in later),
    )


@cache
def waited(cell: Cell, numbers: tuple[int, ...]) -> tuple[int, list[float]]:
    """The best window of draft-then-wait, and what each answer took; confidence is nothing to it, so that blind cells share it."""
    seconds = {
        window: [cell.run(SpeculationEstimates(window=Static(window)), IN_TURN, number).seconds for number in numbers]
        for window in likely(cell)
    }
    best = min(seconds, key=lambda window: sum(seconds[window]))
    return best, seconds[best]


def likely(cell: Cell) -> list[int]:
    """Windows that draft-then-wait may do best with."""

    def rate(window: int) -> float:
        verify = cell.server_step * (1.0 + READING * window)
        conditions = RoundConditions(
            acceptance=cell.acceptance,
            window=window,
            draft_step=cell.draft_step,
            remote_step=cell.server_step,
            verify=verify,
            rtt=cell.rtt,
        )
        return predict_rates(conditions).waiting

    return sorted(range(1, MAX_WINDOW + 1), key=rate, reverse=True)[:TRIED]


def rows_of(found: Sequence[Found], about: str) -> Iterator[Row]:
    """The cell that stands for the usual pair, device by device; the whole grid; and where it is worst."""
    for each in found:
        if each.cell.server_step == LARGE and each.cell.acceptance == USUAL and not each.cell.is_blind:
            yield from figures(f"simulated: {each.cell}, {about}", [each])
            window = float(each.window)
            yield Row(BENCH, f"simulated: {each.cell}, {about}", "draft, then wait", "best window", "tokens", window, window, window)
    for is_blind, rtt in sorted({(each.cell.is_blind, each.cell.rtt) for each in found}):
        among = [each for each in found if each.cell.rtt == rtt and each.cell.is_blind == is_blind]
        case = f"simulated: RTT {rtt * 1000:g} ms{', blind' if is_blind else ''}, {len(among)} cells, {about}"
        yield from figures(case, among, whole=statistics.fmean)
    yield from smallest(found, about)


def figures(case: str, found: Sequence[Found], *, whole: Callable[[list[float]], float] | None = None) -> Iterator[Row]:
    """Of answers, or with ``whole`` of cells, each of them made one figure."""
    parts: dict[str, list[list[float]]] = {
        "tokens/s relative to the server alone, first answer": [each.first for each in found],
        "tokens/s relative to the server alone, later answers": [each.later for each in found],
        "tokens/s relative to draft, then wait, its best window; later answers": [each.waiting for each in found],
        "rounds whose branch was adopted": [[each.hits / each.rounds] for each in found if each.rounds],
    }
    for metric, of_cells in parts.items():
        values = [value for one in of_cells for value in one] if whole is None else [whole(one) for one in of_cells]
        if values:
            yield summarise(
                values, bench=BENCH, case=case, contender="streamco", metric=metric, unit="share" if "rounds" in metric else "times"
            )


def smallest(found: Sequence[Found], about: str) -> Iterator[Row]:
    """The worst cell and the worst single answer, first and later; and how many cells are below what is promised."""
    kinds: dict[str, Callable[[Found], list[float]]] = {"first": lambda each: each.first, "later": lambda each: each.later}
    for kind, of in kinds.items():
        means: list[float] = [statistics.fmean(of(each)) for each in found]
        for name, values in (("cell", means), ("single answer", [min(of(each)) for each in found])):
            worst = min(range(len(found)), key=values.__getitem__)
            case = f"simulated: smallest of {len(found)} cells, {kind} answers, {about}; {name}: {found[worst].cell}"
            yield Row(BENCH, case, "streamco", "tokens/s relative to the server alone", "times", *[values[worst]] * 3)
        below = float(sum(value < NEVER_BELOW for value in means))
        yield Row(
            BENCH, f"simulated: {len(found)} cells, {kind} answers, {about}", "streamco", f"below {NEVER_BELOW:g}", "cells", *[below] * 3
        )


def cells(*, quick: bool) -> list[Cell]:
    """The grid; all of it again for a blind model, but not in a quick run."""
    if quick:
        return [Cell(*place) for place in product(RTTS[1:3], (0.3, USUAL), SERVER_STEPS[1:3], DRAFT_STEPS)]
    return [Cell(*place) for place in product(RTTS, ACCEPTANCES, SERVER_STEPS, DRAFT_STEPS, (False, True))]


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--seeds", type=int, default=2, help="pairs that are begun with in each cell (default: %(default)s)")
    parser.add_argument("--answers", type=int, default=3, help="of each pair, the first included; 2 or more (default: %(default)s)")
    options = parser.parse_args()
    seeds = 1 if options.quick else options.seeds
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # virtual time: who computes beside whom changes no figure
        found = list(pool.map(partial(simulate, seeds=seeds, answers=options.answers), cells(quick=options.quick), chunksize=4))
        alike = [cell for cell in cells(quick=options.quick) if cell.server_step == LARGE and cell.acceptance >= COMPARED]
        compared = list(pool.map(partial(compare_forecasts, seeds=seeds, answers=options.answers), alike))
    about = f"{seeds} x {options.answers} answers of {TOKENS} tokens"
    emit([*rows_of(found, about), *forecast_rows(compared, about)], options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
