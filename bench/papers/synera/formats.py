"""Does Synera still raise the quality if the device's model has fewer bits (Table 6)?

    make models
    python -m bench.papers.synera.formats run DIR [--kinds Q8_0 Q4_0 Q2_K] [--items 50]
    python -m bench.papers.synera.formats package DIR      # adds the scores to bench/papers/synera/formats.jsonl, without texts
    python -m bench.papers.synera.formats table [--update docs/research/synera.md]

As in Table 4, the device alone and chunks by both filters at a budget of 0.2 answer the questions of XSum, with Qwen2.5-Coder 0.5B in each
format and 1.5B in Q4_0. The paper has XSum with Yi-6B and 34B, 16 bits, bitsandbytes' four bits, and AWQ. All formats are made from the
published Q4_K_M, so Q8_0 is as good as that and no better. A run goes on where it was broken off.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from bench.pairs import model_file
from bench.papers.synera.answers import load_models
from bench.papers.synera.quality import qualities
from bench.papers.synera.recording import read_results, record
from bench.papers.synera.results import Result, add_to_package, read_package
from bench.papers.synera.rules import Cell
from bench.tables import replace_table, table_lines

__all__ = ["FORMATS", "PACKAGED", "lines_of", "main"]

TASK, DRAFT, TARGET, TARGET_FORMAT = "xsum", "0.5B", "1.5B", "Q4_0"
FORMATS = ("Q8_0", "Q4_0", "Q2_K")
CELLS = (Cell("device", 0.0), Cell("combined", 0.2))
CONTEXT, TOKENS = 2048, 256
PACKAGED = Path(__file__).resolve().parent / "formats.jsonl"
PAPER = (("16 bits", "13.81", "20.36", "1.47"), ("bitsandbytes, 4 bits", "12.89", "18.84", "1.46"), ("AWQ", "10.90", "15.83", "1.45"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, package, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "package", "table"])
    parser.add_argument("folder", type=Path, nargs="?", help="of the recordings")
    parser.add_argument("--kinds", nargs="*", default=FORMATS, help="formats of the device's model (default: all three)")
    parser.add_argument("--items", type=int, default=50, help="questions of each (default: %(default)s)")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    options = parser.parse_args(arguments)
    if options.action != "table" and options.folder is None:
        parser.error("expected a folder, got none")
    match options.action:
        case "run":
            for kind in options.kinds:
                _run(options.folder / kind, kind, options.items)
        case "package":
            for kind in options.kinds:
                if (options.folder / kind / f"{TASK}.jsonl").exists():
                    count = add_to_package(f"{TASK} {kind}", read_results(options.folder / kind, TASK), PACKAGED)
                    print(f"{kind}: {count} questions")
        case "table":
            lines = "\n".join(lines_of(read_package(PACKAGED)))
            if options.update:
                page = options.update.read_text(encoding="utf-8")
                options.update.write_text(replace_table(page, "formats", lines), encoding="utf-8")
            else:
                print(lines)


def _run(folder: Path, kind: str, items: int) -> None:
    began = time.monotonic()
    models = load_models(model_file(DRAFT, kind), model_file(TARGET, TARGET_FORMAT), cells=len(CELLS), context_tokens=CONTEXT, exact=False)
    with closing(models):
        for _, count in record(folder, {TASK: items}, CELLS, models, max_tokens=TOKENS, ends=math.inf):
            sys.stderr.write(f"{kind}: {count} questions, {time.monotonic() - began:.0f} s\n")


def lines_of(packaged: Mapping[str, Mapping[str, Mapping[str, Result]]]) -> Iterator[str]:
    """Yield the table: each format's score alone and with the server, of the questions that all formats have."""
    found = {kind: packaged[f"{TASK} {kind}"] for kind in FORMATS if f"{TASK} {kind}" in packaged}
    common = sorted(set.intersection(*map(set, found.values()))) if found else []
    rows = []
    for kind, questions in found.items():
        if not common:
            break
        device, combined = qualities([questions[each] for each in common], [cell.name for cell in CELLS])
        ratio = "" if combined.ratio is None else combined.ratio.show(2)
        rows.append([kind, device.score.show(), combined.score.show(), ratio, f"{combined.server_share:.2f}"])
    rows += [[f"*paper, {name}*", device, score, ratio, ""] for name, device, score, ratio in PAPER]
    head = [f"device's model, {len(common)} questions", "device alone", "both filters, budget 0.2", "times the device's", "server's tokens"]
    yield from table_lines(head, rows)


if __name__ == "__main__":
    main()
