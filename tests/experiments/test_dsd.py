"""DSD's Table 2 from what a simulation left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.dsd import PAPER_THROUGHPUT, WINDOW, count_won, main, table2
from experiments.tables import means_of


def scenarios(adaptive: float) -> Iterator[dict[str, Any]]:
    """Two seeds of one case."""
    for seed in (1, 2):
        for window, throughput in (("static 4", 10.0), ("dynamic", 8.0), ("adaptive", adaptive + seed)):
            point = {"workload.trace": "gsm8k", "clients": "600 drafters", "world.link.rtt_ms": 10, "window": window}
            yield {"point": point, "system": {"throughput": throughput, "tpot_mean": 0.04}}


def test_a_line_has_means_over_the_seeds_and_what_the_adaptive_window_changes() -> None:
    found = [*scenarios(10.5)]
    (line,) = table2(means_of(found, WINDOW, "throughput"), means_of(found, WINDOW, "tpot_mean"))
    assert line == [
        "gsm8k, 600 drafters, 10 ms",
        "25.8 / 26.1 / 28.3",
        "10.0 / 8.0 / 12.0",
        "+20.0 %",
        "+50.0 %",
        "40.1 / 38.9 / 36.2",
        "40.0 / 40.0 / 40.0",
        "+0.0 %",
    ]


def test_cases_that_miss_a_policy_are_left_out() -> None:
    found = [scenario for scenario in scenarios(10.5) if scenario["point"]["window"] != "dynamic"]
    throughput = means_of(found, WINDOW, "throughput")
    assert [*table2(throughput, throughput)] == []
    assert count_won(throughput, "static 4") == 1
    assert count_won(throughput, "dynamic") == 0


def test_wins_are_counted_by_case() -> None:
    assert count_won(means_of([*scenarios(6.0)], WINDOW, "throughput"), "static 4") == 0
    assert len(PAPER_THROUGHPUT) == 12


def test_results_of_another_experiment_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"name": "dsd_figure7", "sweep": {"drafters": [], "policy.routing": []}}))
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "expected results of dsd_table2.yaml, which sweeps 'window', got a sweep of drafters, policy.routing" in capsys.readouterr().err
