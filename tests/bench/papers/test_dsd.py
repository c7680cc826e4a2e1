"""DSD's Table 2 from what a simulation left."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from bench.papers.dsd import (
    FIGURES,
    OTHERS,
    PAPER_THROUGHPUT,
    PAPER_TPOT,
    PAPER_TTFT,
    POLICIES,
    change,
    interval,
    main,
    seeds_of,
    tables,
)
from streamco.sim.experiment.experiment import read_experiment
from streamco.sim.experiment.scenario import run_scenario

CASE = "gsm8k, 600 drafters, 10 ms"


def results(adaptive: float = 12.0, seeds: int = 3) -> dict[str, Any]:
    """One case, in which the policies differ by the same share with every seed."""
    rates = {"static 4": 10.0, "dynamic": 8.0, "adaptive": adaptive, OTHERS[0]: 11.0, OTHERS[1]: 9.0}
    scenarios = [
        {
            "point": {"case": CASE, "window": window},
            "seed": seed,
            "system": {"finished": rate + seed * rate / 10, "ttft_mean": 3.0 / rate, "tpot_mean": 0.4 / rate},
        }
        for seed in range(seeds)
        for window, rate in rates.items()
    ]
    return {"name": "which?", "repeats": seeds, "sweep": {"case": [], "window": []}, "scenarios": scenarios}


def test_the_paper_s_table_has_all_cells_but_the_one_that_its_text_lacks() -> None:
    assert [*PAPER_THROUGHPUT] == [*PAPER_TTFT] == [*PAPER_TPOT]
    assert len(PAPER_TPOT) == 12
    missing = [(case, index) for cells in (PAPER_THROUGHPUT, PAPER_TTFT, PAPER_TPOT) for case, row in cells.items() for index in _gaps(row)]
    assert missing == [("cnn_dailymail, 1000 drafters, 10 ms", 1)]


def _gaps(row: tuple[float | None, ...]) -> list[int]:
    return [index for index, cell in enumerate(row) if cell is None]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_the_paper_s_adaptive_column_differs_from_static_by_what_it_prints_at_most(figure: Any) -> None:
    for row in figure.paper.values():
        assert abs(row[2] / row[0] - 1.0) < 0.11, "the paper's largest change is 10.7 per cent"


def test_an_interval_is_student_s_over_the_seeds() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.303 / 3**0.5)
    assert interval([1.0]).half is None
    wide = interval([1.0, 3.0] * 6).half
    assert wide is not None
    assert wide > 2.2 * stdev([1.0, 3.0] * 6) / 12**0.5, "1.96 is for a known spread; twelve seeds need 2.201"
    assert (found.show(1), interval([1.0]).show(2)) == ("2.0 ± 2.5", "1.00")


def test_a_change_is_that_of_each_seed() -> None:
    found = change({1: 11.0, 2: 22.0, 3: 1.0}, {1: 10.0, 2: 20.0})
    assert found.mean == pytest.approx(10.0)
    assert found.half == pytest.approx(0.0, abs=1e-9)


def test_a_line_has_the_paper_ours_and_what_the_adaptive_window_changes() -> None:
    lines = [*tables(results())]
    line = next(line for line in lines if line.startswith("| gsm8k"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:2] == [CASE, "25.8 / 26.1 / 28.3"]
    assert cells[2].startswith("11.0 ± 2.5 / 8.8 ± 2.0 / 13.2 ± 3.0")
    assert cells[3:5] == ["+20.0 ± 0.0 %", "+50.0 ± 0.0 %"]
    assert cells[7] == "+9.1 ± 0.0 %"
    assert sum(line.startswith("**") for line in lines) == 3


@pytest.mark.parametrize(("adaptive", "better", "worse"), [(12.0, 1, 0), (9.0, 0, 1)])
def test_better_and_worse_are_counted_in_the_figure_s_own_direction(adaptive: float, better: int, worse: int) -> None:
    said = [line for line in tables(results(adaptive)) if line.startswith("Adaptive against static 4")]
    assert len(said) == 3
    assert all(line.startswith(f"Adaptive against static 4: better in {better} of 1, worse in {worse}.") for line in said)


def test_cases_that_miss_a_policy_are_left_out() -> None:
    some = results()
    some["scenarios"] = [each for each in some["scenarios"] if each["point"]["window"] != POLICIES[1]]
    assert not [line for line in tables(some) if line.startswith("| gsm8k")]
    assert set(seeds_of(some["scenarios"], "tpot_mean")[CASE]["adaptive"]) == {0, 1, 2}


def test_the_tables_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text(json.dumps(results()))
    assert main([str(tmp_path)]) == 0
    assert "| gsm8k, 600 drafters, 10 ms |" in capsys.readouterr().out


def test_results_of_another_experiment_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"name": "dsd_figure7", "sweep": {"drafters": [], "policy.routing": []}}))
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    said = capsys.readouterr().err
    assert "expected results of dsd_table2.yaml, which sweeps 'case' and 'window', got a sweep of drafters, policy.routing" in said


def test_a_quick_look_at_table_2_measures_its_first_requests() -> None:
    """50 requests come before the warm-up of the whole run has ended."""
    experiment = read_experiment(Path("bench/papers/dsd_table2.yaml"), is_quick=True)
    assert len(experiment.scenarios) == 9
    last = next(each for each in experiment.scenarios if each.point["window"] == OTHERS[1])
    found = run_scenario(last).system
    assert found["completed"] == 50
    assert found["tpot_mean"] > 0.0
    assert set(PAPER_TPOT) >= {each.point["case"] for each in experiment.scenarios}
