"""How good are the windows that policies choose, beside the best fixed one, known afterwards?

As in ``bench/speculate.py``: SmolLM2 in four bits drafts for eight bits, each on one thread, the server in a process of its own over an
emulated link, with the step times of Llama-2-70B on two A100 imposed on it. All contenders draft on while the verdict is out and leave the
rest to the server where drafting doesn't pay. They differ in the window, and the learned one says by itself where drafting pays; for the
others arithmetic does. They take turns prompt by prompt.

Windows next to one another differ by one or two per cent, and the tokens of some hundred rounds by chance alone by five; the fastest of six
windows is then the luckiest. ``bench/windows_recorded.py`` has more rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.report import Row, add_arguments, emit, summarise
from bench.speculate import WIDE, Section, Tally, run_section
from streamco import SpeculationOptions, SpeculationTuning

__all__ = ["ALONE", "CHOSEN", "FIXED", "main", "rows_of"]

FIXED: dict[str, SpeculationOptions | None] = {f"window {window}": SpeculationOptions(window=window) for window in (2, 3, 4, 5, 6, 8)}
CHOSEN: dict[str, SpeculationOptions | None] = {
    "adaptive": SpeculationOptions(window="adaptive"),
    "adaptive, mode smoothed": SpeculationOptions(window="adaptive", tuning=SpeculationTuning(smooths_mode=True)),
    "dynamic": SpeculationOptions(window="dynamic"),
    "predicted": SpeculationOptions(window="predicted"),
    "confident": SpeculationOptions(window="confident"),
}
ALONE: dict[str, SpeculationOptions | None] = {"server alone": None}
SECTION = Section("windows", FIXED | CHOSEN | ALONE, links=WIDE, prompts=8, tokens=64)
QUICK = replace(SECTION, links=WIDE[1:2], prompts=1, tokens=32)
BENCH = "windows"
METRIC = "tokens/s relative to"

Cells = Sequence[tuple[str, Mapping[str, Tally]]]


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args()
    emit(rows_of(asyncio.run(measure(QUICK if options.quick else SECTION))), options.json)
    return 0


async def measure(section: Section) -> Cells:
    """Link by link."""
    return [(section.case(pair, link), tallies) async for pair, link, tallies in run_section(section)]


def rows_of(cells: Cells) -> Iterator[Row]:
    """Each link, then all of them together."""
    for case, tallies in cells:
        best = max(FIXED, key=lambda name: tallies[name].rate)
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
        together = {name: [tallies[name].rate / tallies["server alone"].rate for _, tallies in cells] for name in (*FIXED, *CHOSEN)}
        means = {name: statistics.fmean(values) for name, values in together.items()}
        best = max(FIXED, key=means.__getitem__)
        case = f"{cells[0][0].partition(':')[0]}: {len(cells)} links together"
        for name, mean in means.items():
            yield one(case, name, "mean of tokens/s relative to the server alone", "times", mean)
        for name in CHOSEN:
            yield one(case, name, f"{METRIC} the best single fixed one, {best}", "times", means[name] / means[best])


def compared(case: str, tallies: Mapping[str, Tally], best: str, said: str) -> Iterator[Row]:
    """What the policies give of the best fixed window's rate."""
    for name in CHOSEN:
        yield one(case, name, f"{METRIC} {said}", "times", tallies[name].rate / tallies[best].rate)


def one(case: str, name: str, metric: str, unit: str, value: float) -> Row:
    """A row of a single figure."""
    return Row(BENCH, case, name, metric, unit, value, value, value)


if __name__ == "__main__":
    sys.exit(main())
