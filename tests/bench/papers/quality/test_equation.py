"""Equation 7: what counts as true, as false, and as not decided."""

from __future__ import annotations

from itertools import chain

import pytest
from msgspec.structs import replace

from bench.papers.quality import equation
from bench.papers.quality.equation import Cell
from bench.papers.quality.measured import measured
from bench.tasks.records import CUTS, PAIRS, Answer
from tests.bench.papers.quality.answers import make_answers


def cells_of(answers: list[Answer]) -> list[Cell]:
    return equation.cells_of(measured(answers))


OWN = {"SmolLM2": 0.1, "0.5B": 0.3, "1.5B": 0.7}


def answers(moved: float, *, count: int = 20, own: dict[str, float] | None = None, lengths: int = 100) -> list[Answer]:
    return list(chain.from_iterable(make_answers("xsum", f"q{number}", own or OWN, moved, lengths=lengths) for number in range(count)))


def only(found: list[Cell], pair: tuple[str, str]) -> list[Cell]:
    return [cell for cell in found if cell.pair == pair]


def test_there_is_a_cell_for_each_pair_and_cut() -> None:
    found = cells_of(answers(0.5))
    assert [(cell.pair, cell.cut) for cell in found] == [(pair, cut) for pair in PAIRS for cut in CUTS]
    assert {(cell.task, cell.measure, cell.questions, cell.moved) for cell in found} == {("xsum", "Rouge-1", 20, 1.0)}


@pytest.mark.parametrize(
    ("moved", "verdict"), [(0.3, "holds"), (0.5, "holds"), (0.7, "holds"), (0.29, "fails below"), (0.71, "fails above")]
)
def test_the_bounds_are_the_models_own_qualities(moved: float, verdict: str) -> None:
    for cell in only(cells_of(answers(moved)), ("0.5B", "1.5B")) + only(cells_of(answers(moved)), ("1.5B", "0.5B")):
        assert cell.verdict == verdict
        assert cell.above_lower.value == pytest.approx(moved - 0.3)
        assert cell.below_upper.value == pytest.approx(0.7 - moved)


def test_first_and_second_are_not_mixed_up() -> None:
    (cell, *_) = only(cells_of(answers(0.5)), ("SmolLM2", "1.5B"))
    assert (cell.first.value, cell.second.value, cell.mean.value) == pytest.approx((0.1, 0.7, 0.5))


def test_a_value_outside_the_bounds_by_less_than_the_noise_is_open() -> None:
    mixed = list(chain.from_iterable(make_answers("xsum", f"q{n}", OWN, 0.0 if n % 3 else 0.85) for n in range(30)))
    (cell, *_) = only(cells_of(mixed), ("0.5B", "1.5B"))
    assert cell.mean.value < 0.3 < cell.mean.high
    assert cell.verdict == "open"


def test_an_answer_that_has_ended_before_the_cut_counts_as_it_is() -> None:
    found = only(cells_of(answers(0.9, lengths=10)), ("0.5B", "1.5B"))
    assert [(cell.cut, cell.moved) for cell in found] == [(4, 1.0), (16, 0.0), (64, 0.0)]
    assert [cell.mean.value for cell in found] == pytest.approx([0.9, 0.3, 0.3])
    assert [cell.verdict for cell in found] == ["fails above", "holds", "holds"]


def test_a_question_counts_only_when_all_its_answers_are_there() -> None:
    whole = answers(0.5, count=2)
    for missing in range(len(whole) // 2):
        assert list(measured(whole[:missing] + whole[missing + 1 :])["xsum"]) == ["q1"]
    assert {cell.questions for cell in cells_of(whole[1:])} == {1}
    assert cells_of(whole[: len(whole) // 2 - 1]) == []


def test_likelihoods_are_of_questions_whose_answers_all_have_one() -> None:
    pytest.importorskip("rouge_score")
    found = [answer for number in range(3) for answer in make_answers("alpaca", f"q{number}", OWN, 0.5)]
    with_all = [answer if answer.item == "q0" else replace(answer, likelihood=-1.0) for answer in found]
    cells = {cell.measure: cell for cell in cells_of(with_all)}
    assert {name: cell.questions for name, cell in cells.items()} == {"Rouge-1": 3, "Rouge-1 to the 1.5B's": 3, "log-likelihood": 2}
    assert cells["log-likelihood"].mean == (-1.0, -1.0, -1.0)
    assert cells["Rouge-1 to the 1.5B's"].first.value == 1.0  # the last pair begins with the 1.5B model, whose own answer it is
