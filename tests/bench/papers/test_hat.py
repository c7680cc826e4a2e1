"""HAT's tables from what simulations left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.papers.hat import (
    FIGURES,
    FRAMEWORKS,
    PARTS,
    TABLES,
    Table,
    batch_growth,
    chunked_steps,
    less_than,
    lines_of,
    main,
    tables_of,
)

EXPERIMENTS = Path(__file__).parents[3] / "bench" / "papers"
VALUES = {"U-shape": 0.8, "U-Medusa": 0.6, "U-Sarathi": 0.5, "HAT": 0.4, "HAT, last row only": 0.3}


def scenarios(case: Mapping[str, Any], column: str, values: Mapping[str, float], **system: float) -> list[dict[str, Any]]:
    """Two seeds of one case; all figures have a framework's value, except those that are given."""
    names = ("ttft_mean", "tpot_mean", "round_tokens", "stage_mean", "stage_deviation", "prefill_in_time")
    slas = [f"{phase}_sla_{rank}" for phase in ("prefill", "decode") for rank in ("p50", "p90", "p99")]
    return [
        {"point": {**case, column: each}, "system": {**dict.fromkeys((*names, *slas), value + seed), **system}}
        for each, value in values.items()
        for seed in (-0.1, 0.1)
    ]


def test_a_rate_has_the_papers_numbers_beside_the_means_over_the_seeds() -> None:
    found = [each for rate in (4, 6, 9) for each in scenarios({"workload.arrivals.poisson_per_s": rate}, "framework", VALUES)]
    ttft, _, beside, less, rise, stage = tables_of("hat_figure6", found)
    assert ttft.head == ["", "4", "6", "9"]
    assert ttft.lines[0] == ["U-shape", "800.0", "800.0", "800.0"]
    assert beside.lines[3] == ["HAT", "384.2", "400.0"]
    assert beside.lines[4] == ["HAT, last row only", "", "300.0"]
    assert less.lines == [["U-shape", "41.3", "50.0"], ["U-Medusa", "22.5", "33.3"], ["U-Sarathi", "31.9", "20.0"]]
    assert rise.lines[0] == ["U-shape", "44", "0.0"]
    assert stage.lines[2] == ["U-Sarathi", "6.5 ± 1.2", "500.0 ± 500.0"]


def test_limits_have_shares_in_per_cent() -> None:
    shares, limits, ours = tables_of("hat_figure9", scenarios({}, "framework", VALUES, prefill_in_time=0.75))
    assert shares.lines[0] == ["U-shape", "86.6", "75.0"]
    assert limits.lines[3] == ["HAT", "489.3", "400.0"]
    assert ours.lines[1][1:] == ["600"] * 6


def test_stages_have_the_papers_one_stage_or_its_four() -> None:
    found = [each for stages in (1, 4) for each in scenarios({"world.server.stages": stages}, "framework", VALUES)]
    assert tables_of("hat_figure11", found)[2].lines[3] == ["HAT", "431.4", "400.0"]
    assert tables_of("hat_figure12", found)[3].lines[0] == ["U-shape", "47.1", "50.0"]


def test_table_4_has_speedups_and_table_5_shares_of_the_u_shape() -> None:
    data = ("SpecBench, 7B", "CNN/DM, 13B", "another")
    tries = {"U-shape": 0.8, "U-Medusa": 0.4, "HAT": 0.2, "HAT without PD": 0.25}
    (table4,) = tables_of("hat_table4", [each for name in data for each in scenarios({"data set": name}, "framework", tries)])
    assert table4.lines[2] == ["SpecBench, 7B, HAT", "2.06", "0.20", "1.65", "4.00"]
    assert table4.lines[3] == ["SpecBench, 7B, HAT without PD", "", "0.25", "", "3.20"]
    parts = {**{part: 0.8 - 0.1 * index for index, part in enumerate(PARTS)}, "more": 0.1}
    (table5,) = tables_of("hat_table5", [each for name in data for each in scenarios({"data set": name}, "parts", parts)])
    assert table5.lines[1] == ["SpecBench, 7B: PC", "384", "700", "39.4", "700.0", "0.75", "0.88"]
    assert table5.lines[6][1::2] == ["", "", ""]
    assert table5.lines[14][:3] == ["another: none (U-shape)", "", "800"]


def test_a_batch_grows_with_the_prompt_and_chunks_take_longer_for_it() -> None:
    assert 5.0 < batch_growth(32) < 20.0  # the paper: 10.1 %
    assert batch_growth(1) == 0.0
    whole, first = chunked_steps(2048, 2048)
    chunked, reading = chunked_steps(2048, 32)
    assert chunked < whole
    assert 5.0 < reading / first < 10.0  # the paper: 6.6 times
    assert less_than({"HAT": 0.5, "U-shape": 2.0}, "U-shape") == 75.0


def test_a_live_split_has_shares_of_the_u_shapes_times() -> None:
    drafting = {"none (U-shape)": 0.1, "acceptance 0.35": 0.08, "acceptance 0.60": 0.05}
    (pace,) = tables_of("split_tbt", [each for rtt in (10, 80) for each in scenarios({"world.link.rtt_ms": rtt}, "drafting", drafting)])
    assert pace.head == ["", "acceptance 0.35", "acceptance 0.60"]
    assert pace.lines == [["tokens a round", "0.08", "0.05"], ["10 ms", "0.80", "0.50"], ["80 ms", "0.80", "0.50"]]
    ways = {"whole, all rows back": 0.6, "whole, last row": 0.3}
    (first,) = tables_of("split_ttft", scenarios({"workload.prompt": 1024, "world.link.rtt_ms": 10}, "prompt", ways))
    assert first.head[1:] == ["U-shape [ms]", "whole, last row"]
    assert first.lines == [["1,024, 10 ms", "600", "0.50"]]


def test_a_page_has_each_table_under_its_title() -> None:
    lines = [*lines_of([Table("rise of a, per cent", ["", "ours"], [["HAT", "1"]]), Table("B", ["", "paper"], [])])]
    assert lines == ["Rise of a, per cent:", "", "|  | ours |", "|---|---|", "| HAT | 1 |", "", "B:", "", "|  | paper |", "|---|---|"]


def test_each_experiment_has_its_tables() -> None:
    assert {path.stem for kind in ("hat", "split") for path in EXPERIMENTS.glob(f"{kind}_*.yaml")} == {*TABLES} == {*FIGURES}
    assert len(FRAMEWORKS) == 4


def test_a_folder_of_another_experiment_is_refused_and_a_known_one_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "dsd_table2")])
    assert "expected a folder named hat_figure1," in capsys.readouterr().err
    folder = tmp_path / "hat_figure9"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"repeats": 2, "scenarios": scenarios({}, "framework", VALUES)}))
    assert main([str(folder)]) == 0
    assert main(["batches"]) == 0
    printed = capsys.readouterr().out
    assert "| HAT | 489.3 | 400.0 |" in printed
    assert "Figure 1c" in printed
