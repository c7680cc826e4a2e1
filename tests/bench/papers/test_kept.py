"""Results of simulated experiments are kept small, and the pages' tables are made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.papers.kept import KEPT, REGRET, ROWS, RUNS, TABLES, Cell, compact, crossed, load, main
from bench.tables import replace_table
from streamco.sim.experiment.experiment import read_experiment


def results() -> dict[str, Any]:
    scenarios = [
        {"point": {"trace": trace, "routing": routing}, "seed": seed, "system": {"tpot_mean": pace + seed / 1000, "throughput": 1234.5}}
        for trace, routing, pace in (("gsm8k", "random", 0.0401), ("gsm8k", "jsq", 0.03), ("xsum", "jsq", 0.1234))
        for seed in (1, 2)
    ]
    return {"name": "which?", "seed": 1, "repeats": 2, "settings": {}, "sweep": {"trace": [], "routing": []}, "scenarios": scenarios}


def test_a_kept_file_has_the_figures_of_its_tables_only(tmp_path: Path) -> None:
    text = compact(results(), ("tpot_mean",), {"commit": "1dc1f62", "date": "2026-11-27"})
    (tmp_path / "dsd_figure7.json").write_text(text)
    found = load("dsd_figure7", tmp_path)
    assert (found["commit"], found["repeats"], len(found["scenarios"])) == ("1dc1f62", 2, 6)
    assert found["scenarios"][0] == {"point": {"trace": "gsm8k", "routing": "random"}, "seed": 1, "system": {"tpot_mean": 0.0411}}
    assert sum(line.startswith('{"point"') for line in text.splitlines()) == 6, "a line for each"


def test_a_table_has_the_means_over_seeds_and_an_empty_cell_where_nothing_was_run() -> None:
    lines = [*crossed(results(), "routing", (Cell("tpot_mean", "a pace", 1000.0), Cell("throughput", "a rate")), corner="trace")]
    assert lines[0] == "| trace | random | jsq |"
    assert lines[2] == "| gsm8k | 41.6 / 1,230 | 31.5 / 1,230 |"
    assert lines[3] == "| xsum |  | 125 / 1,230 |"


def test_a_table_takes_the_place_of_the_one_between_its_marks() -> None:
    page = "before\n<!-- a: begin -->\nold\n<!-- a: end -->\nafter\n"
    assert replace_table(page, "a", "new\n") == "before\n<!-- a: begin -->\n\nnew\n\n<!-- a: end -->\nafter\n"
    with pytest.raises(ValueError, match="expected the marks <!-- b: begin -->"):
        replace_table(page, "b", "new")


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("name", sorted({*RUNS} - {*ROWS}))
def test_what_is_kept_is_all_of_an_experiment_as_its_file_has_it(name: str) -> None:
    experiment, found = read_experiment(Path("bench/papers") / f"{name}.yaml"), load(name)
    file = experiment.file
    settings = {part: getattr(file, part) for part in found["settings"]}
    assert json.loads(json.dumps([settings, file.sweep, file.seed])) == [found["settings"], found["sweep"], found["seed"]]
    kept = [(each["point"], each["seed"]) for each in found["scenarios"]]
    assert kept == [(json.loads(json.dumps(each.point)), each.seed) for each in experiment.scenarios]
    shown = TABLES[name].figures
    assert all(set(each["system"]) <= set(shown) for each in found["scenarios"])
    assert {figure for each in found["scenarios"] for figure in each["system"]} == set(shown)


def test_windows_stand_beside_the_best_fixed_one() -> None:
    paces = {"the server alone": 0.04, "fixed, 1": 0.05, "fixed, 3": 0.03, "predicted": 0.024}
    cases = [(rows, trace) for rows in ("stairs", "flat") for trace in ("humaneval", "gsm8k")]
    scenarios = [
        {"point": {"rows of the target": rows, "workload.trace": trace, "window": window}, "system": {"tpot_mean": pace + shift}}
        for rows, trace in cases
        for window, pace in paces.items()
        for shift in (-0.001, 0.001)
    ]
    lines = [*TABLES["row_costs"].lines({"scenarios": scenarios})]
    assert lines[0] == "| window | stairs: humaneval | stairs: gsm8k | flat: humaneval | flat: gsm8k |"
    assert lines[2] == "| the server alone |" + " 40.0 (0.75) |" * 4
    assert lines[5] == "| predicted |" + " 24.0 (1.25) |" * 4


def test_policies_are_compared_in_both_modes() -> None:
    rows = [
        {"mode": mode, "among": among, "policy": policy, "mean": 0.9, "median": 0.91234, "5th": 0.5}
        for mode in ("windows alone", "with the mode switch")
        for among in ("all worlds (3)", "worlds to draft in (2)")
        for policy in ("static 4", "adaptive")
    ]
    lines = [*TABLES[REGRET].lines({"rows": rows})]
    assert lines[0].startswith("|  | windows alone: mean | windows alone: median |")
    assert lines[2] == "| *all worlds (3)* |  |  |  |  |  |  |"
    assert lines[3] == "| static 4 | 0.900 | 0.912 | 0.500 | 0.900 | 0.912 | 0.500 |"
    assert len(lines) == 2 + 6


def test_nothing_is_kept_that_no_page_shows() -> None:
    assert {path.stem for path in KEPT.glob("*.json")} == set(RUNS)


def test_the_pages_are_of_what_is_kept() -> None:
    assert main(["pages", "--check"]) == 0, "python -m bench.papers.kept pages"
