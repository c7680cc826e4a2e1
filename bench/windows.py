"""How good are the windows that policies choose, beside the best fixed one, known afterwards?

SmolLM2 in four bits drafts for eight bits, the server in a process of its own behind an emulated link, with the step times of Llama-2-70B
on two A100 imposed on it. All contenders draft on while the verdict is out and leave the rest to the server where drafting doesn't pay.
They differ in the window, and the learned one says by itself where drafting pays; for the others arithmetic does.

Windows next to one another differ by one or two per cent, and the tokens of some hundred rounds by chance alone by five; who is the fastest
of six windows is then who had most luck. So the figures that count are of a recorded draft model, with which many rounds can be had
(``bench.windows_recorded``). Beside them stand some contenders with both models computed, as in ``bench/speculate.py``, where they take
turns prompt by prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.report import Row, add_arguments, emit, summarise
from bench.speculate import LARGE, WIDE, Section, Tally, run_section
from bench.windows_recorded import run_recorded
from streamco import SpeculationOptions

__all__ = ["main"]

BENCH = "windows"
FIXED: dict[str, SpeculationOptions | None] = {f"window {window}": SpeculationOptions(window=window) for window in (2, 3, 4, 5, 6, 8)}
CHOSEN: dict[str, SpeculationOptions | None] = {
    "adaptive": SpeculationOptions(window="adaptive"),
    "dynamic": SpeculationOptions(window="dynamic"),
    "predicted": SpeculationOptions(window="predicted"),
    "confident": SpeculationOptions(window="confident"),
}
ALONE: dict[str, SpeculationOptions | None] = {"server alone": None}
SOME = ("window 4", "adaptive")
COMPUTED = Section(
    "windows, both models computed",
    {name: setting for name, setting in (FIXED | CHOSEN).items() if name in SOME} | ALONE,
    links=WIDE,
    prompts=8,
    tokens=64,
)
RECORDED = Section("windows, recorded drafts", FIXED | CHOSEN | ALONE, links=WIDE, prompts=48, tokens=64)
CLIENTS = 4  # of each contender, with a recorded draft model
SIDE_BY_SIDE = 6
METRIC = "tokens/s relative to"

Cells = Sequence[tuple[str, Mapping[str, Tally]]]


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--only", choices=("recorded", "computed"), help="this part")
    parser.add_argument("--records", type=Path, metavar="FILE", help="keep the prompts and their answers there, for the next time")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.only != "computed":
        section = replace(RECORDED, links=WIDE[1:2], prompts=2, tokens=12) if options.quick else RECORDED
        rows += rows_of(measure_recorded(section, options.records))
    if options.only == "computed" or not (options.only or options.quick):
        section = replace(COMPUTED, links=WIDE[1:2], prompts=1, tokens=32) if options.quick else COMPUTED
        rows += rows_of(asyncio.run(measure_computed(section)))
    emit(rows, options.json)
    return 0


def measure_recorded(section: Section, kept: Path | None) -> Cells:
    """Link by link."""
    cells = []
    found = run_recorded(
        section.contenders,
        section.links,
        prompts=section.prompts,
        clients=min(CLIENTS, section.prompts),
        tokens=section.tokens,
        speed=LARGE,
        side_by_side=SIDE_BY_SIDE,
        kept=kept,
    )
    for link, step, tallies in found:
        case = section.case(section.pairs[0], link)
        print(f"{case}: a draft step of {1000 * step:.1f} ms", file=sys.stderr, flush=True)
        cells.append((case, tallies))
    return cells


async def measure_computed(section: Section) -> Cells:
    """Link by link."""
    return [(section.case(pair, link), tallies) async for pair, link, tallies in run_section(section)]


def rows_of(cells: Cells) -> Iterator[Row]:
    """Each link, then all of them together."""
    for case, tallies in cells:
        best = max((each for each in FIXED if each in tallies), key=lambda name: tallies[name].rate)
        yield from compared(case, tallies, best, f"the best fixed one there, {best}")
        for name, tally in tallies.items():
            yield summarise(tally.rates, bench=BENCH, case=case, contender=name, metric="tokens a second", unit="tokens/s")
            if tally.figures:
                rounds = sum(each.rounds for each in tally.figures)
                given = sum(each.accepted + each.corrected + each.bonus for each in tally.figures)
                yield one(case, name, "by the server alone", "tokens", float(sum(each.remote for each in tally.figures)))
                if rounds:
                    yield one(case, name, "tokens a round", "tokens", given / rounds)
            if tally.verdicts:
                yield one(case, name, "rounds that took longer than imposed", "share", tally.late / tally.verdicts)
    if len(cells) > 1:
        names = [name for name in cells[0][1] if name not in ALONE]
        together = {name: [tallies[name].rate / tallies["server alone"].rate for _, tallies in cells] for name in names}
        means = {name: statistics.fmean(values) for name, values in together.items()}
        best = max((each for each in FIXED if each in means), key=means.__getitem__)
        case = f"{cells[0][0].partition(':')[0]}: {len(cells)} links together"
        for name, mean in means.items():
            yield one(case, name, "mean of tokens/s relative to the server alone", "times", mean)
        for name in [each for each in CHOSEN if each in means]:
            yield one(case, name, f"{METRIC} the best single fixed one, {best}", "times", means[name] / means[best])


def compared(case: str, tallies: Mapping[str, Tally], best: str, said: str) -> Iterator[Row]:
    """What the policies give of the best fixed window's rate."""
    for name in [each for each in CHOSEN if each in tallies]:
        yield one(case, name, f"{METRIC} {said}", "times", tallies[name].rate / tallies[best].rate)


def one(case: str, name: str, metric: str, unit: str, value: float) -> Row:
    """A row of a single figure."""
    return Row(BENCH, case, name, metric, unit, value, value, value)


if __name__ == "__main__":
    sys.exit(main())
