"""Does an answer that changes endpoints lose anything?

Hand-overs at random places, greedy, the same model on both sides; what the reader gets is compared with the uninterrupted answer, token by
token and character by character.

- simulated: the session machine in virtual time among models that know one answer and break anywhere; several hand-overs an answer,
  failures and planned moves, by ids and by text between two vocabularies, paced and not.
- live: the packaged model on two engines in the exact mode, each as a device and as ``streamco serve``; endpoints break after any token,
  streams are cut at any byte. Like the simulated ones these must not differ at all: the bench fails if one does.
- peers: llama-cpp-python's and xllamacpp's servers on the same file, as sources and as targets. Their kernels round otherwise, so answers
  may part where the decision is close; share of tokens at which they do, and the margin between the two best logits there, beside the
  largest difference that our own context makes of one position in batches of another shape.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
from pathlib import Path

from bench.counted.migration_live import PROMPTS, hand_over_live
from bench.counted.migration_peers import FORMS, FROM_PEER, Form, Judge, PeerTally, hand_over_to_peer, measure_shapes
from bench.counted.migration_simulated import simulate
from bench.report import Row, add_arguments, emit
from streamco.engines.llamacpp.bundled_model import packaged_model

__all__ = ["main"]

PARTS = ("simulated", "live", "peers")
MODULES = {"llama-cpp-python": "llama_cpp", "xllamacpp": "xllamacpp"}


def main() -> int:
    """Print the rows; 1 if an answer that must be the uninterrupted one is not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be given again")
    options = parser.parse_args()
    parts = options.part or PARTS
    rows: list[Row] = []
    wrong: list[str] = []
    if "simulated" in parts:
        simulated(rows, wrong, 4_000 if options.quick else 100_000)
    if "live" in parts:
        live(rows, wrong, packaged_model(), 40 if options.quick else 1_000, prompts=4 if options.quick else len(PROMPTS))
    if "peers" in parts:
        peers(rows, packaged_model(), prompts=1 if options.quick else 8, cuts=2 if options.quick else 6)
    emit(rows, options.json)
    for difference in wrong:
        print(difference, file=sys.stderr)
    return bool(wrong)


def row(case: str, metric: str, unit: str, value: float, *, contender: str = "streamco") -> Row:
    """A figure that is counted once."""
    return Row("migration", case, contender, metric, unit, value, value, value)


def simulated(rows: list[Row], wrong: list[str], hand_overs: int) -> None:
    tally = simulate(hand_overs)
    for metric, value in {
        "hand-overs": tally.hand_overs,
        "by ids": tally.by_ids,
        "planned": tally.planned,
        "paced": tally.paced,
        "most an answer": tally.most,
        "answers": tally.answers,
        "answers with nobody left": tally.unfinished,
        "answers that differ": len(tally.wrong),
    }.items():
        rows.append(row("simulated", metric, "", value))
    wrong += tally.wrong


def live(rows: list[Row], wrong: list[str], path: Path, hand_overs: int, *, prompts: int) -> None:
    tally = asyncio.run(hand_over_live(path, hand_overs, prompts=prompts))
    counts = {f"hand-overs, {way}": count for way, count in sorted((*tally.ways.items(), *tally.broken.items()))}
    for metric, value in {**counts, "hand-overs": tally.hand_overs, "answers": tally.answers, "tokens": tally.tokens}.items():
        rows.append(row("live, exact mode", metric, "", value))
    rows.append(row("live, exact mode", "answers that differ", "", len(tally.wrong)))
    wrong += tally.wrong


def peers(rows: list[Row], path: Path, *, prompts: int, cuts: int) -> None:
    from tests.support.peer_servers import running_peer

    judge = Judge(path)
    try:
        shapes = asyncio.run(measure_shapes(path, judge, prompts))
        rows += [row("batch shapes", f"largest logit difference, {shape}", "logits", value) for shape, value in shapes.items()]
        made: list[tuple[Form, str, PeerTally]] = []
        for form in FORMS:
            if importlib.util.find_spec(MODULES[form.peer]) is None:
                print(f"not installed: {form.peer}", file=sys.stderr)
                continue
            with running_peer(form.peer) as url:
                tallies = asyncio.run(hand_over_to_peer(path, url, form, judge, prompts=prompts, cuts=cuts))
            made += [(form, way, tally) for way, tally in tallies.items()]
    finally:
        judge.close()
    for form, way, tally in made:
        rows += form_rows(form, way, tally)
    for peer in dict.fromkeys(form.peer for form, _, _ in made):
        rows += peer_rows(peer, [(way, tally) for form, way, tally in made if form.peer == peer], max(shapes.values()))


def form_rows(form: Form, way: str, tally: PeerTally) -> list[Row]:
    """How often and how closely answers of one form part, from either side's uninterrupted one."""
    case = f"{form.peer}, {form.name}, {way}"
    rows = [
        row(case, "hand-overs", "", tally.hand_overs, contender=form.peer),
        row(case, "beginnings read in other tokens", "", tally.otherwise, contender=form.peer),
    ]
    names = {"ours": "from our uninterrupted answer", "theirs": "from theirs"}
    if way == FROM_PEER:
        names["uninterrupted"] = "theirs from ours, both uninterrupted"
    for what, name in names.items():
        margins, compared = tally.margins[what], tally.compared[what]
        share = len(margins) / compared if compared else 0.0
        rows.append(row(case, f"tokens at which answers part, {name}", "share", share, contender=form.peer))
        rows.append(row(case, f"largest margin there, {name}", "logits", max(margins, default=0.0), contender=form.peer))
    return rows


def peer_rows(peer: str, tallies: list[tuple[str, PeerTally]], largest: float) -> list[Row]:
    """All forms together, against the uninterrupted answer of the one who began it."""
    whose = [(tally, "theirs" if way == FROM_PEER else "ours") for way, tally in tallies]
    margins = [margin for tally, what in whose for margin in tally.margins[what]]
    compared = sum(tally.compared[what] for tally, what in whose)
    figures = {
        ("hand-overs", ""): sum(tally.hand_overs for tally, _ in whose),
        ("tokens", ""): compared,
        ("tokens at which answers part, from the source's uninterrupted answer", "share"): len(margins) / compared if compared else 0.0,
        ("largest margin there", "logits"): max(margins, default=0.0),
        ("margins above the largest difference of shapes", ""): sum(margin > largest for margin in margins),
        ("answers with a broken character", ""): sum(len(tally.broken) for tally, _ in whose),
    }
    return [row(f"{peer}, all", metric, unit, value, contender=peer) for (metric, unit), value in figures.items()]


if __name__ == "__main__":
    sys.exit(main())
