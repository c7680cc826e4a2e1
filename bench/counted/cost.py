"""What does moving answers to the cheaper endpoint save, all costs counted?

Figure 7's experiment, in virtual time: each recorded service at its list price, and the models of Table 8 at theirs, with each of the
paper's three phones, at budgets from 0 to 1; Alpaca prompts and the lengths of their answers, cut at 128 tokens. The client knows the first
halves (time to first token, lengths) and is evaluated on the second; its first 30 answers are not counted. Costs are money and energy of
all that was done: the losers' reading, tokens made after a cancel, and pre-copies. With and without migration the same requests have the
same random draws, so that the race and the time to first token are the same.

The paper has every answer moved. So every service can go on with an answer here, and any model is good enough. Contender "by default" moves
answers as a client does that was told nothing: to services whose providers can go on with them, and to no weaker model.

Energy is counted at Appendix E's lower rate where the server is to be spared and at the higher one where the device is. Of all pairs of a
service and a phone, those count that Algorithm 1 puts on that side by their costs. ``--policy optimal`` races by the optimum instead.
``--cells`` adds a row for each setting, ``--plot FILE`` draws it (needs matplotlib).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from statistics import fmean, median
from typing import NamedTuple

from bench.counted.worlds import PHONE_MODELS, Phone, RequestDraws, Service, World, recorded_lengths, services, with_table_8
from bench.report import Row, add_arguments, emit
from streamco.client.modes.race.migration import MigrationOptions
from streamco.core.race.learner import PolicyName
from streamco.policies.cost import RATE_DEVICE_CONSTRAINED, RATE_SERVER_CONSTRAINED, constraint, device_costs
from streamco.policies.dispatch import Side

__all__ = ["Cell", "main", "run_cell"]

BUDGETS = tuple(tenth / 10 for tenth in range(11))
RATES: dict[Side, float] = {"server": RATE_SERVER_CONSTRAINED, "device": RATE_DEVICE_CONSTRAINED}
FIRST = 30  # answers that are not counted
ANSWERS = 200  # a client
AGAIN = 8  # times as many answers for the settings that cost more
NOTHING = 1e-9  # per cent
BURST = 64
CONTENDERS: dict[str, tuple[bool, float | None]] = {  # can every service go on with an answer; min_quality
    "streamco": (True, 0.0),
    "by default": (False, None),
}
PAPER = {"server": 83.6, "device": 72.7}  # per cent, section 5.2: the most that migration saves


@dataclass(frozen=True, slots=True)
class Cell:
    """One client with one budget: US dollars an answer, seconds to the first token."""

    contender: str
    service: str
    phone: str
    side: Side
    budget: float
    stay: float
    move: float
    ttft_stay: float
    ttft_move: float
    moves: int
    answers: int

    @property
    def cut(self) -> float:
        """Per cent less with migration."""
        return 100.0 * (1.0 - self.move / self.stay)


@dataclass(frozen=True, slots=True)
class Job:
    """What one process is given."""

    service: Service
    phone: Phone
    side: Side
    budget: float
    policy: PolicyName
    answers: int


def run_cell(job: Job) -> list[Cell]:
    """The same answers without migration and with each contender's."""
    stay = _run(job, job.service, None)
    cells = []
    for contender, (is_able, min_quality) in CONTENDERS.items():
        move = _run(job, replace(job.service, can_continue=is_able), MigrationOptions(unpaced=True, min_quality=min_quality))
        cells.append(
            Cell(
                contender,
                job.service.name,
                job.phone.name,
                job.side,
                job.budget,
                stay=stay.cost,
                move=move.cost,
                ttft_stay=stay.ttft,
                ttft_move=move.ttft,
                moves=move.moves,
                answers=job.answers,
            )
        )
    return cells


class _Means(NamedTuple):
    cost: float
    ttft: float
    moves: int


def _run(job: Job, service: Service, migration: MigrationOptions | None) -> _Means:
    planned, judged = recorded_lengths()
    warm = RequestDraws(job.service.planned, planned, f"{job.service.name}/first")
    draws = RequestDraws(job.service.judged, judged, f"{job.service.name}/judged")
    cost, ttft, moves = 0.0, 0.0, 0
    world = World(
        service,
        job.phone,
        constrained=job.side,
        budget=job.budget,
        exchange_rate=RATES[job.side],
        policy=job.policy,
        migration=migration,
        pace=None,
        burst=BURST,
    )
    for index in range(FIRST):
        world.run(warm[index])
    for index in range(job.answers):
        outcome = world.run(draws[index])
        if outcome.cost is None:
            raise AssertionError("expected a service whose prices are known")
        cost += outcome.cost / job.answers
        ttft += outcome.ttft / job.answers
        moves += len(outcome.machine.hand_overs)
    return _Means(cost, ttft, moves)


def is_constrained(service: Service, phone: Phone, side: Side) -> bool:
    """Whether costs put a pair on this side by Algorithm 1."""
    return constraint(service.prices, device_costs(phone.shape, exchange_rate=RATES[side])) == side


def run_all(budgets: Sequence[float], *, every: int, answers: int, policy: PolicyName) -> list[Cell]:
    """All pairs that belong to a side."""
    jobs = [
        Job(service, phone, side, budget, policy, answers)
        for service in (*services()[::every], *with_table_8())
        for phone in PHONE_MODELS
        for side in RATES
        if is_constrained(service, phone, side)
        for budget in budgets
    ]
    return run_jobs(jobs)


def run_again(cells: Iterable[Cell], *, answers: int, policy: PolicyName) -> list[Cell]:
    """The settings that cost more, with more answers: a few answers that ended right behind the change decide over few answers."""
    found = {service.name: service for service in (*services(), *with_table_8())}
    phones = {phone.name: phone for phone in PHONE_MODELS}
    dearer = {
        (cell.contender, cell.service, cell.phone, cell.side, cell.budget): Job(
            found[cell.service], phones[cell.phone], cell.side, cell.budget, policy, answers
        )
        for cell in cells
        if cell.cut < -NOTHING
    }
    again = run_jobs([*dearer.values()])
    return [cell for cell in again if (cell.contender, cell.service, cell.phone, cell.side, cell.budget) in dearer]


def run_jobs(jobs: Sequence[Job]) -> list[Cell]:
    """On all processors."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return [cell for found in pool.map(run_cell, jobs, chunksize=4) for cell in found]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--policy", choices=("auto", "optimal"), default="auto", help="who races: the paper's algorithms, or the optimum")
    parser.add_argument("--plot", metavar="FILE", help="draw the costs over budgets (needs matplotlib)")
    parser.add_argument("--cells", action="store_true", help="a row for each service, phone and budget as well")
    options = parser.parse_args(arguments)
    quick = {"every": 5, "answers": ANSWERS // 6} if options.quick else {"every": 1, "answers": ANSWERS}
    cells = run_all(BUDGETS[::5] if options.quick else BUDGETS, policy=options.policy, **quick)
    again = run_again(cells, answers=AGAIN * quick["answers"], policy=options.policy)
    rows = []
    for contender in CONTENDERS:
        own = [cell for cell in cells if cell.contender == contender]
        rows += [row for side in RATES for row in rows_of(side, [cell for cell in own if cell.side == side], contender)]
        rows += rows_of_again([cell for cell in again if cell.contender == contender], contender)
    rows += [one_row(f"{side}-constrained", "cost cut, best", "%", [PAPER[side]], "paper") for side in RATES]
    if options.cells:
        rows += [
            one_row(f"{cell.side}, {cell.service}, {cell.phone}, budget {cell.budget:g}", "cost cut", "%", [cell.cut], cell.contender)
            for cell in cells
        ]
    emit(rows, options.json)
    if options.plot:
        plot([cell for cell in cells if cell.contender == "streamco"], options.plot)


def one_row(case: str, metric: str, unit: str, values: Sequence[float], contender: str) -> Row:
    """What stands in one line."""
    return Row("cost", case, contender, metric, unit, median(values), min(values), max(values))


def rows_of(side: Side, cells: Sequence[Cell], contender: str) -> list[Row]:
    """Cuts by budget, over services and phones; what the extremes are."""
    case = f"{side}-constrained"

    def row(case: str, metric: str, unit: str, values: Sequence[float]) -> Row:
        return one_row(case, metric, unit, values, contender)

    rows = []
    for budget in sorted({cell.budget for cell in cells}):
        found = [cell for cell in cells if cell.budget == budget]
        rows.append(row(f"{case}, budget {budget:g}", "cost cut", "%", [cell.cut for cell in found]))
    best, worst = max(cells, key=lambda cell: cell.cut), min(cells, key=lambda cell: cell.cut)
    rows += [
        row(f"{case}, best: {describe(best)}", "cost cut", "%", [best.cut]),
        row(f"{case}, worst: {describe(worst)}", "cost cut", "%", [worst.cut]),
    ]
    whole = [whole_cut([cell for cell in cells if cell.budget == budget]) for budget in sorted({cell.budget for cell in cells})]
    rows.append(row(f"{case}, all services and phones together, by budget", "cost cut", "%", whole))
    for names, value in (("service", lambda cell: cell.service), ("phone", lambda cell: cell.phone)):
        groups = group(cells, value)
        rows.append(row(f"{case}, by {names}, all budgets", "cost cut", "%", [whole_cut(found) for found in groups.values()]))
    higher = [cell for cell in cells if cell.cut < -NOTHING]
    rows += [
        row(f"{case}", f"of {len(cells)} settings, those that cost more", "settings", [len(higher)]),
        row(f"{case}", "cost more there", "%", [-cell.cut for cell in higher] or [0.0]),
        row(f"{case}", "mean time to first token, with / without", "ratio", [cell.ttft_move / cell.ttft_stay for cell in cells]),
        row(f"{case}", "answers that moved", "%", [100.0 * cell.moves / cell.answers for cell in cells]),
    ]
    return rows


def rows_of_again(cells: Sequence[Cell], contender: str) -> list[Row]:
    """What the settings that cost more come to with more answers."""
    if not cells:
        return []
    case = f"settings that cost more, with {AGAIN} times as many answers"
    higher = [-cell.cut for cell in cells if cell.cut < -NOTHING]
    return [
        one_row(case, "cost cut", "%", [cell.cut for cell in cells], contender),
        one_row(case, f"of {len(cells)}, those that still cost more", "settings", [len(higher)], contender),
        one_row(case, "cost more there", "%", higher or [0.0], contender),
    ]


def whole_cut(cells: Iterable[Cell]) -> float:
    """Per cent less with migration, each cell's cost without it counting as one: dear services would drown the others."""
    return fmean(cell.cut for cell in cells)


def group(cells: Iterable[Cell], key: Callable[[Cell], str]) -> dict[str, list[Cell]]:
    """By what ``key`` tells."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups


def describe(cell: Cell) -> str:
    """A setting in words."""
    return f"{cell.service}, {cell.phone}, budget {cell.budget:g}"


def plot(cells: Iterable[Cell], file: str) -> None:
    """The cut over budgets: a thin line a service with a phone, a thick one their mean."""
    import_module("matplotlib").use("Agg")
    plt = import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(1, len(RATES), figsize=(10, 4), sharey=True)
    for axis, side in zip(axes, RATES, strict=True):
        found = [cell for cell in cells if cell.side == side]
        budgets = sorted({cell.budget for cell in found})
        for colour, phone in enumerate(PHONE_MODELS):
            for line in group([cell for cell in found if cell.phone == phone.name], lambda cell: cell.service).values():
                axis.plot([cell.budget for cell in line], [cell.cut for cell in line], color=f"C{colour}", linewidth=0.5, alpha=0.6)
            means = [fmean(cell.cut for cell in found if cell.phone == phone.name and cell.budget == budget) for budget in budgets]
            axis.plot(budgets, means, color=f"C{colour}", linewidth=2.5, label=f"{phone.name}, mean")
        axis.axhline(PAPER[side], color="black", linestyle=":", label="paper, best")
        axis.set(title=f"{side}-constrained", xlabel="budget", ylabel="cost cut by migration [%]")
        axis.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(file, dpi=80)


if __name__ == "__main__":
    main()
