"""Do trees of drafts pay? Chains against trees on recorded ranks of a real pair, by what the verifier's rows cost.

Virtual time, so results don't depend on the machine. The text is the target's greedy one. A round drafts a window of tokens, one step each.
The tree has siblings beside them, chosen by ``choose_siblings`` from what the draft model gave at each position. Costs of rows are a
CPU's staircase, as measured for the 1.5B on one thread, and those of a GPU on which rows are free. Each contender has its own best window.
Confidence intervals are of the mean over prompts (bootstrap, 95 %).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.report import Row, add_arguments, emit
from streamco.policies.drafts.confidence_calibration import ConfidenceCalibration
from streamco.policies.drafts.tree_drafts import choose_siblings
from streamco.policies.rejection import chain_rejection
from streamco.profiles.row_costs import RowCosts, padded_costs

__all__ = ["PRICES", "Recorded", "main", "play", "read_recorded"]

RANKS = Path(__file__).resolve().parents[1] / "data" / "pair_ranks.jsonl"
CHOICES = 8
WINDOWS = range(1, 13)
MAX_SIBLINGS = 7
DRAFT_STEP = 0.018  # seconds of the 0.5B, one thread
RESAMPLES = 1000
Q4_0 = {1: 38, 2: 75, 3: 108, 4: 81, 5: 113, 6: 145, 8: 149, 12: 195, 16: 190, 32: 367}  # ms, repacked
Q4_K_M = {1: 39, 2: 91, 3: 124, 4: 151, 5: 185, 6: 211, 8: 232, 12: 237, 16: 243, 32: 375}


def _in_seconds(costs: dict[int, int]) -> RowCosts:
    return RowCosts(padded_costs({rows: milliseconds / 1000 for rows, milliseconds in costs.items()}))


PRICES: dict[str, tuple[RowCosts, float, float]] = {  # seconds of rows, of a draft step, and of a round trip
    "CPU, Q4_0 repacked": (_in_seconds(Q4_0), DRAFT_STEP, 0.0),
    "CPU, Q4_K_M": (_in_seconds(Q4_K_M), DRAFT_STEP, 0.0),
    "GPU, rows free": (RowCosts({1: 0.030, 32: 0.0301}), DRAFT_STEP, 0.0),
    "GPU, rows free, RTT 60 ms": (RowCosts({1: 0.030, 32: 0.0301}), DRAFT_STEP, 0.060),
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One answer: rank of the target's token at each position (8: none of the draft model's), and the shares of its eight choices."""

    task: str
    ranks: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]


@dataclass(slots=True)
class Played:
    """What an answer took."""

    tokens: int = 0
    rounds: int = 0
    rows: int = 0
    seconds: float = 0.0


def read_recorded(path: Path = RANKS) -> list[Recorded]:
    """The recorded answers."""
    with path.open(encoding="ascii") as file:
        lines = [json.loads(line) for line in file][1:]
    found = []
    for line in lines:
        ranks = tuple(map(int, line["ranks"]))
        flat = [byte / 255 for byte in bytes.fromhex(line["shares"])]
        found.append(Recorded(line["task"], ranks, tuple(tuple(flat[at * CHOICES :][:CHOICES]) for at in range(len(ranks)))))
    return found


def play(answer: Recorded, window: int, price: tuple[RowCosts, float, float], siblings: int, calibration: ConfidenceCalibration) -> Played:
    """Write an answer in rounds; ``siblings``: most that a round may have, 0: chains. The calibration learns on."""
    costs, step, rtt = price
    played, position = Played(), 0
    while position < len(answer.ranks):
        drafted = min(window, len(answer.ranks) - position)
        places = range(position, position + drafted)
        candidates = [[(rank, share) for rank, share in enumerate(answer.shares[place])] for place in places]
        forecast = chain_rejection([calibration.acceptance(answer.shares[place][0]) for place in places])
        worth = played.seconds / played.tokens if played.tokens else step + costs.seconds(window + 1) / 2
        chosen = choose_siblings(forecast, [0] * drafted, candidates, row_seconds=costs.seconds, token_seconds=worth, max_siblings=siblings)
        accepted = next((place for place in range(drafted) if answer.ranks[position + place]), drafted)
        is_hit = (
            any((each.position, each.token) == (accepted, answer.ranks[position + accepted]) for each in chosen)
            if accepted < drafted
            else False
        )
        for place in range(min(accepted + 1, drafted)):
            calibration.record(answer.shares[position + place][0], is_accepted=place < accepted)
        gained = min(accepted + 1 + is_hit, len(answer.ranks) - position)
        rows = drafted + len(chosen) + 1
        played.tokens += gained
        played.rounds += 1
        played.rows += rows
        played.seconds += drafted * step + rtt + costs.seconds(rows)
        position += gained
    return played


def play_all(answers: Sequence[Recorded], window: int, price: tuple[RowCosts, float, float], siblings: int) -> list[Played]:
    """All answers, one after the other, with one calibration, as a client has it."""
    calibration = ConfidenceCalibration(0.7, None)
    return [play(answer, window, price, siblings, calibration) for answer in answers]


def best_window(answers: Sequence[Recorded], price: tuple[RowCosts, float, float], siblings: int) -> tuple[int, list[Played]]:
    """The window with the most tokens a second, and what it took."""
    tried = {window: play_all(answers, window, price, siblings) for window in WINDOWS}
    window = max(tried, key=lambda each: rate(tried[each]))
    return window, tried[window]


def rate(played: Sequence[Played]) -> float:
    """Tokens a second."""
    return sum(each.tokens for each in played) / sum(each.seconds for each in played)


def a_round(played: Sequence[Played]) -> float:
    """Tokens a round."""
    return sum(each.tokens for each in played) / sum(each.rounds for each in played)


def rows_a_round(played: Sequence[Played]) -> float:
    """Rows a round."""
    return sum(each.rows for each in played) / sum(each.rounds for each in played)


def interval(first: Sequence[Played], second: Sequence[Played], of: Callable[[Sequence[Played]], float]) -> tuple[float, float, float]:
    """The ratio second / first, and its 95 % interval over prompts."""
    rng = Random(1)
    ratios = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(range(len(first)), k=len(first))
        ratios.append(of([second[each] for each in drawn]) / of([first[each] for each in drawn]))
    ratios.sort()
    return of(second) / of(first), ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES)]


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args()
    answers = read_recorded()
    rows: list[Row] = []
    for task in sorted({answer.task for answer in answers}):
        of_task = [answer for answer in answers if answer.task == task]
        for name, price in list(PRICES.items())[: 2 if options.quick else None]:
            rows += _compare(f"{task}, {name}, {len(of_task)} prompts", of_task, price)
        rows += _equal_rows(f"{task}, {len(of_task)} prompts", of_task)
    emit(rows, options.json)
    return 0


def _compare(case: str, answers: Sequence[Recorded], price: tuple[RowCosts, float, float]) -> list[Row]:
    found: list[Row] = []
    chain_window, chain = best_window(answers, price, 0)
    tree_window, tree = best_window(answers, price, MAX_SIBLINGS)
    found.append(Row("trees", case, "tree / chain", "tokens/s", "x", *interval(chain, tree, rate)))
    for contender, window, played in (("chain", chain_window, chain), ("tree", tree_window, tree)):
        figures = {
            "window": float(window),
            "tokens a round": a_round(played),
            "rows a round": rows_a_round(played),
            "tokens/s": rate(played),
        }
        found += [Row("trees", case, contender, metric, "", value, value, value) for metric, value in figures.items()]
    return found


def _equal_rows(case: str, answers: Sequence[Recorded]) -> list[Row]:
    """Tokens a round at equal rows: a longer chain against siblings."""
    found: list[Row] = []
    free = (RowCosts({1: 1.0, 32: 1.0}), 1e-9, 0.0)
    for rows in (4, 8, 16):
        chain = play_all(answers, rows - 1, free, 0)
        best, tree = max(
            ((window, play_all(answers, window, free, rows - 1 - window)) for window in range(1, rows - 1)),
            key=lambda each: a_round(each[1]),
        )
        found.append(
            Row(
                "trees",
                f"{case}, {rows} rows",
                f"window {best} with siblings / chain",
                "tokens a round",
                "x",
                *interval(chain, tree, a_round),
            )
        )
        found.append(Row("trees", f"{case}, {rows} rows", "chain", "tokens a round", "", *([a_round(chain)] * 3)))
    return found


if __name__ == "__main__":
    sys.exit(main())
