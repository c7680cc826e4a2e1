"""The sentences of docs/research/quality.md say what the packaged scores say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from statistics import fmean

import pytest

from experiments.quality.equation import Cell, cells_of
from experiments.quality.measured import read_package
from tests.support.words import fraction, page_words

NAMES = {"gsm8k": "GSM8K", "humaneval": "HumanEval", "xsum": "XSum", "alpaca": "Alpaca"}
STRONGER_FIRST = ("1.5B", "0.5B")


@cache
def cells() -> list[Cell]:
    return cells_of(read_package())


def found(task: str, pair: tuple[str, str], cut: int) -> list[Cell]:
    """Return the cells of all measures."""
    return [cell for cell in cells() if (cell.task, cell.pair, cell.cut) == (task, pair, cut)]


def way(task: str, cut: int) -> float:
    """Return how far an answer that the 1.5B begins is from the 0.5B to the 1.5B, a mean over the measures."""
    return fmean(
        (cell.mean.value - cell.second.value) / (cell.first.value - cell.second.value) for cell in found(task, STRONGER_FIRST, cut)
    )


def equation_sentences() -> Iterator[str]:
    verdicts = [cell.verdict for cell in cells()]
    holds, open_ones = verdicts.count("holds"), verdicts.count("open")
    assert holds + open_ones == len(verdicts), "no cell of the table contradicts it"
    yield f"Of {len(verdicts)} cells {holds} hold, and {open_ones} are outside the bounds by less than the noise."
    most = max(cell.questions for cell in cells())
    whole = [cell.verdict for cell in cells() if cell.questions == most]
    assert {*whole} == {"holds"}
    yield f"All {len(whole)} cells with {most} questions hold."


def question_sentences() -> Iterator[str]:
    counts = {task: len(questions) for task, questions in read_package().items()}
    (count,) = {counts[task] for task in NAMES}
    *names, last = NAMES.values()
    yield f"{count} questions of {', '.join(names)} and {last} are recorded. So are all {counts['cnndm']} of CNN/DM"
    halves = [(cell.mean.high - cell.mean.low) / 2 for cell in cells() if cell.measure in {"right answers", "pass@1"}]
    yield f"With {count} questions pass@1 and right answers are known to {max(halves):.1f}."


def table_lines() -> Iterator[str]:
    for task, pair, cut in (
        ("humaneval", ("SmolLM2", "1.5B"), 16),
        ("humaneval", ("SmolLM2", "1.5B"), 64),
        ("gsm8k", ("0.5B", "1.5B"), 4),
        ("gsm8k", ("1.5B", "0.5B"), 4),
    ):
        (cell,) = found(task, pair, cut)
        weaker, stronger = sorted([cell.first.value, cell.second.value])
        right = " | ".join(f"{100 * each:.0f}" for each in (cell.mean.value, stronger, weaker))
        yield f"| {NAMES[task]}, {' → '.join(pair)} | {cut} | {right} |"


def move_sentences() -> Iterator[str]:
    cut = 4
    (weaker_first,) = found("gsm8k", ("0.5B", "1.5B"), cut)
    lost = 1 - weaker_first.mean.value / weaker_first.second.value
    yield f"On GSM8K the first {cut} tokens of the 0.5B cost the 1.5B {fraction(lost)} of its right answers."
    (stronger_first,) = found("gsm8k", STRONGER_FIRST, cut)
    assert stronger_first.above_lower.low > 0
    assert all(way(task, cut) < way("gsm8k", cut) / 2 for task in {cell.task for cell in cells()} - {"gsm8k"})
    yield f"its first {cut} tokens help the 0.5B on GSM8K. On the other tasks they help little."
    cut = 64
    ways = {task: fraction(way(task, cut)) for task in ("alpaca", "gsm8k", "humaneval")}
    yield f"After {cut} tokens, 1.5B → 0.5B is {ways['alpaca']} of the way from the 0.5B to the 1.5B on Alpaca,"
    yield f"on Alpaca, and {ways['gsm8k']} of it on GSM8K."
    yield f"On HumanEval it is {ways['humaneval']}, because there the end decides."


PARTS = (equation_sentences, question_sentences, table_lines, move_sentences)


@pytest.mark.parametrize("part", PARTS)
def test_the_page_says_what_was_scored(part: Callable[[], Iterator[str]]) -> None:
    words = page_words("docs/research/quality.md")
    assert not [sentence for sentence in part() if sentence not in words]
