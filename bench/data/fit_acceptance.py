"""How well does the generator's chain match recorded acceptance sequences? Fits it to traces and sets the figures side by side.

    python -m bench.data.fit_acceptance [TRACE ...]

For each trace (default: the packaged ones): the fitted settings, and figures of the recording, of the fitted chain, and of tokens that are
independent with the same mean, which is what closed formulas of speculative decoding assume. The recording's figures have their standard
error, from drawing its requests again. Last, what ``streamco.sim.workload.acceptance_model`` has of the recordings: confidences of accepted
and of rejected tokens at even quantiles, in 255ths, and the ranks of the right tokens that were missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from random import Random

import numpy as np

from streamco.sim.workload.acceptance_model import AcceptanceMetrics, AcceptanceOptions, describe, draw_accepted, fit_acceptance
from streamco.sim.workload.trace_files import TraceRow, packaged_traces, read_trace

__all__ = ["main"]

SEED = 1
MADE = 40  # sequences of the chain for each that was recorded, as long as it
DRAWN = 100  # times, for the standard error
QUANTILES = 17

FIGURES: dict[str, Callable[[AcceptanceMetrics], float]] = {
    "accepted": lambda figures: figures.mean,
    "spread of requests": lambda figures: figures.spread,
    "autocorrelation at 1": lambda figures: figures.autocorrelation[0],
    "autocorrelation at 2": lambda figures: figures.autocorrelation[1],
    "autocorrelation at 4": lambda figures: figures.autocorrelation[3],
    "accepted in a row": lambda figures: figures.accepted_runs,
    "more than 8 in a row": lambda figures: figures.long_runs,
    "rejected in a row": lambda figures: figures.rejected_runs,
    "tokens a round, window 2": lambda figures: figures.round_tokens[2],
    "tokens a round, window 4": lambda figures: figures.round_tokens[4],
    "tokens a round, window 8": lambda figures: figures.round_tokens[8],
    "tokens a round, window 12": lambda figures: figures.round_tokens[12],
}


def table(name: str, rows: Sequence[TraceRow]) -> list[str]:
    """Of one trace, in Markdown."""
    recorded = [row.accepted for row in rows]
    fitted = fit_acceptance(recorded)
    independent = AcceptanceOptions(mean=describe(recorded).mean, concentration=None, persistence=0.0)
    rng = Random(SEED)
    drawn = [describe(rng.choices(recorded, k=len(recorded))) for _ in range(DRAWN)]
    columns = [describe(recorded), describe(made(fitted, recorded)), describe(made(independent, recorded))]
    tokens = sum(map(len, recorded))
    settings = f"mean {fitted.mean:g}, concentration {fitted.concentration:g}, persistence {fitted.persistence:g}"
    lines = [f"{name}: {len(rows)} requests, {tokens} tokens; {settings}", ""]
    lines += ["| | recorded | fitted chain | independent |", "|---|---:|---:|---:|"]
    for label, figure in FIGURES.items():
        error = statistics.stdev(map(figure, drawn))
        first, *others = map(figure, columns)
        lines.append(f"| {label} | {first:.3f} ± {error:.3f} | {' | '.join(f'{other:.3f}' for other in others)} |")
    return [*lines, ""]


def made(options: AcceptanceOptions, recorded: Iterable[bytes]) -> list[bytes]:
    """Sequences as long as these."""
    rng = Random(SEED)
    return [draw_accepted(options, len(each), rng) for each in recorded for _ in range(MADE)]


def shared(rows: Sequence[TraceRow]) -> list[str]:
    """What is taken from all traces together."""
    confidences, accepted, ranks = (
        np.frombuffer(b"".join(getattr(row, name) for row in rows), np.uint8) for name in ("confidences", "accepted", "ranks")
    )
    places = np.linspace(0.0, 1.0, QUANTILES)
    lines = [
        f"confidences of {name}: {tuple(np.quantile(confidences[accepted == kind], places).round().astype(int).tolist())}"
        for name, kind in (("accepted", 1), ("rejected", 0))
    ]
    shares = [float((ranks[accepted == 0] == rank).mean()) for rank in (1, 2, 3)]
    return [*lines, f"of the rejected: second {shares[0]:.3f}, third {shares[1]:.3f}, behind that {shares[2]:.3f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", default=packaged_traces(), help="names or files (default: those that come with the package)")
    traces = {name: list(read_trace(name)) for name in parser.parse_args(arguments).traces}
    lines = [line for name, rows in traces.items() for line in table(name, rows)]
    recorded = [row for rows in traces.values() for row in rows if row.confidences and row.ranks]
    sys.stdout.write("\n".join([*lines, *(shared(recorded) if recorded else [])]) + "\n")


if __name__ == "__main__":
    main()
