"""The bench of rows on a GPU: which passes it times, what is made of the times, and the forecasts beside them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench.report import Row
from bench.timed import gpu_rows
from bench.timed.gpu_rows import FORECASTS, SHAPES, TIME, Point, compared, forecasts, kept, launched_plan, main, plan, predicted
from streamco.sim.hardware.forward_pass_times import Hardware, predictor
from streamco.sim.hardware.operators import MODELS

H100 = "NVIDIA H100 80GB HBM3, PyTorch 2.11.0+cu130, CUDA 13.0, Python 3.12.3"


def timed(case: str, times: dict[str, float]) -> list[Row]:
    return [Row("gpu_rows", case, contender, TIME, "ms", each, 0.9 * each, 1.1 * each) for contender, each in times.items()]


def by_point(rows: list[Row]) -> dict[tuple[str, str], float]:
    return {(row.contender, row.metric): row.median for row in rows}


def test_a_plan_has_drafts_batches_and_prompts() -> None:
    points = plan("llama2-7b")
    assert Point("llama2-7b, one sequence, context 2048", "3 rows", 1, 3, 2048) in points
    assert Point("llama2-7b, 4 rows of each sequence, context 512", "1 sequence", 1, 4, 512) in points
    assert Point("llama2-7b, prompt", "512 tokens", 1, 512, 0, is_prompt=True) in points
    assert len({(point.case, point.contender) for point in points}) == len(points)


def test_a_quick_plan_and_one_without_graphs_are_parts_of_the_plan() -> None:
    points = set(plan("llama2-7b"))
    assert set(plan("llama2-7b", is_quick=True)) < points
    assert set(launched_plan("llama2-7b")) < points


@pytest.mark.parametrize("model", [name for name in SHAPES if name in MODELS])
def test_sizes_are_those_that_the_simulator_has(model: str) -> None:
    shape, known = SHAPES[model], MODELS[model]
    assert shape[:6] == (known.layers, known.width, known.feed_forward, known.vocabulary, known.heads, known.kv_heads)


@pytest.mark.parametrize(("model", "billions"), [("qwen2.5-coder-0.5b", 0.49), ("qwen2.5-coder-1.5b", 1.54), ("llama2-13b", 13.0)])
def test_other_sizes_have_the_models_number_of_parameters(model: str, billions: float) -> None:
    shape = SHAPES[model]
    of_heads = shape.width + shape.width * shape.kv_heads // shape.heads
    layer = 2 * shape.width * of_heads + 3 * shape.width * shape.feed_forward
    parameters = shape.layers * layer + shape.vocabulary * shape.width * (1 if shape.is_tied else 2)
    assert parameters == pytest.approx(billions * 1e9, rel=0.01)


def test_times_are_compared_with_that_of_one_row() -> None:
    rows = by_point(compared(timed("a case", {"1 row": 2.0, "4 rows": 2.1, "8 rows": 3.0, "16 rows": 5.0})))
    assert rows["8 rows", "time over that of one row"] == 1.5
    assert rows["largest", "rows within 10 % of one's time"] == 4
    assert rows["interpolated", "rows in twice one's time"] == 12


def test_a_time_that_falls_again_counts_where_it_last_doubles() -> None:
    rows = by_point(compared(timed("a case", {"1 row": 2.0, "2 rows": 6.0, "4 rows": 2.0, "8 rows": 6.0})))
    assert rows["largest", "rows within 10 % of one's time"] == 4
    assert rows["interpolated", "rows in twice one's time"] == 6


def test_a_time_that_never_doubles_has_no_such_place() -> None:
    rows = by_point(compared(timed("a case", {"1 sequence": 2.0, "64 sequences": 3.0})))
    assert not [metric for _, metric in rows if "twice" in metric]


def test_prompts_are_not_compared() -> None:
    assert not compared(timed("a case", {"512 tokens": 2.0, "2048 tokens": 3.0}))


def test_forecasts_are_the_simulators() -> None:
    seconds = predictor(Hardware(model="llama2-7b", gpu="h100", engine="graphs"))
    draft, batch = Point("", "", 1, 8, 512), Point("", "", 16, 1, 512)
    assert predicted("llama2-7b", "h100", draft, "graphs") == 1e3 * seconds(0, 8, 512)
    assert predicted("llama2-7b", "h100", batch, "graphs") == 1e3 * seconds(16, 0, 16 * 512)
    assert predicted("llama2-7b", "h100", batch, "eager") > predicted("llama2-7b", "h100", batch, "graphs")
    gaps = predicted("llama2-7b", "h100", draft, "graphs") - predicted("llama2-7b", "h100", draft, "graphs without gaps")
    assert gaps == pytest.approx(32 * 0.1207)


def test_a_forecast_is_a_share_of_the_measured_time() -> None:
    point = plan("llama2-7b")[0]
    exact = predicted("llama2-7b", "h100", point, "graphs")
    rows = by_point(forecasts(timed(point.case, {point.contender: exact / 1.5}), H100))
    assert rows["1 row", "forecast (graphs) over time"] == pytest.approx(1.5)
    assert rows["graphs", "mean absolute error of the forecast"] == pytest.approx(50.0)
    assert not [metric for _, metric in rows if "eager" in metric], "no time without graphs was measured"


@pytest.mark.parametrize("machine", ["NVIDIA GeForce RTX 4090, PyTorch 2.11.0", "NVIDIA H1000"])
def test_an_unknown_gpu_has_no_forecast(machine: str) -> None:
    assert not forecasts(timed("llama2-7b, prompt", {"512 tokens": 2.0}), machine)


def test_a_model_without_a_profile_has_no_forecast() -> None:
    point = plan("llama2-13b")[0]
    assert not forecasts(timed(point.case, {point.contender: 10.0}), H100)


def test_what_was_saved_elsewhere_is_kept_with_commit_and_forecasts() -> None:
    point = plan("llama2-7b")[0]
    measured = timed(point.case, {point.contender: 6.0})
    saved = {"bench": "gpu_rows", "machine": H100, "date": "2026-11-27", "options": []}
    head, rows = kept([json.dumps(saved), *(json.dumps(asdict(row)) for row in measured)], at="1dc1f62")
    assert head == {**saved, "commit": "1dc1f62"}
    assert rows[0] == measured[0]
    assert {row.metric for row in rows[1:]} >= {f"forecast ({name}) over time" for name in FORECASTS if FORECASTS[name] == TIME}


def test_a_saved_run_is_kept_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = timed("llama2-13b, prompt", {"512 tokens": 25.0})
    file = tmp_path / "saved.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in ({"machine": H100}, asdict(measured[0]))))
    written: list[Any] = []
    monkeypatch.setattr(gpu_rows, "save", lambda *values: written.extend(values))
    monkeypatch.setattr("bench.checkout.commit", lambda: "1dc1f62")
    monkeypatch.setattr("sys.argv", ["gpu_rows", "--keep", str(file)])
    assert main() == 0
    assert written == ["gpu_rows", measured, {"machine": H100, "commit": "1dc1f62"}]


def test_without_pytorch_the_bench_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_rows, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["gpu_rows"])
    with pytest.raises(SystemExit):
        main()
    assert "expected PyTorch, got no package torch" in capsys.readouterr().err


def test_without_a_gpu_the_bench_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_rows"])
    with pytest.raises(SystemExit):
        main()
    assert "expected a GPU that PyTorch can use by CUDA, got none" in capsys.readouterr().err
