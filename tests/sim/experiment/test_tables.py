from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamco.sim.experiment.experiment import Experiment, read_experiment
from streamco.sim.experiment.metrics import Metric
from streamco.sim.experiment.result_store import ResultStore
from streamco.sim.experiment.runner import run_sweep
from streamco.sim.experiment.scenario import KINDS
from streamco.sim.experiment.tables import Table, format_number, format_table, name_of_path, scale_of, summarise, table_of, write_results
from tests.sim.toy_kind import LOCATION

TOY = """\
name: Does it pay?
kind: toy
repeats: 2
world: {devices: 3}
sweep:
  world.link.rtt_ms: [10, 30]
  who: {one: {policy.window: 1}, both: {policy.window: 2}}
"""


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "toy", LOCATION)


def finish(folder: Path, text: str = TOY, *, name: str = "toy", backwards: bool = False) -> tuple[Experiment, ResultStore]:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    experiment = read_experiment(path)
    store = ResultStore(folder / f"{name}.jsonl", code="c")
    scenarios = experiment.scenarios[::-1] if backwards else experiment.scenarios
    run_sweep(scenarios, store, jobs=1, progress=lambda _done, _total: None)
    return experiment, store


def test_a_point_has_the_mean_and_the_reach_of_its_repeats(tmp_path: Path) -> None:
    experiment, store = finish(tmp_path)
    points = summarise(experiment, store)
    assert [point.labels for point in points] == experiment.points
    ttft = points[0].metrics["ttft_mean"]
    assert ttft.low < ttft.mean < ttft.high
    assert points[0].metrics["waiting"].low == points[0].metrics["waiting"].high == pytest.approx(0.01 / 3)
    assert "acceptance" not in points[0].metrics


def test_results_have_the_same_bytes_in_whatever_order_they_were_found(tmp_path: Path) -> None:
    found = []
    for name, backwards in (("a", False), ("b", True)):
        experiment, store = finish(tmp_path, name=name, backwards=backwards)
        write_results(tmp_path / f"{name}.json", experiment, store)
        found.append((tmp_path / f"{name}.json").read_bytes())
    assert found[0] == found[1]
    results = json.loads(found[0])
    assert results["name"] == "Does it pay?"
    assert results["figures"]["waiting"] == {"text": "time that requests wait", "unit": "s", "better": "lower"}
    assert [scenario["seed"] for scenario in results["scenarios"]] == [1, 2] * 4
    assert results["scenarios"][2]["point"] == {"world.link.rtt_ms": 10, "who": "both"}
    assert results["scenarios"][0]["system"]["completed"] == 4
    assert "requests" not in results["scenarios"][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.jsonl", "a.yaml", "b.json", "b.jsonl", "b.yaml"]


def test_requests_are_told_one_by_one_where_they_are_wanted(tmp_path: Path) -> None:
    experiment, store = finish(tmp_path, f"{TOY}requests: true\n")
    write_results(tmp_path / "results.json", experiment, store)
    (first, *_) = json.loads((tmp_path / "results.json").read_bytes())["scenarios"]
    assert [row["number"] for row in first["requests"]] == [0, 1, 2, 3]
    assert set(first["requests"][0]) == {"number", "arrival", "tokens", "prompt_tokens", "seconds", "ttft", "tpot"}


def test_the_table_has_a_row_for_each_point_in_units_that_fit(tmp_path: Path) -> None:
    experiment, store = finish(tmp_path, f"{TOY}table: [waiting, acceptance, completed]\n")
    table = table_of(experiment, summarise(experiment, store))
    assert table.heads == ("round trip of the link (ms)", "who", "time that requests wait (ms)", "answers that were finished")
    assert table.rows[0] == ("10", "one", "3.33", "4")
    assert len(table.rows) == 4


def test_a_table_is_aligned_and_what_is_long_is_wrapped() -> None:
    rows = (("one", "3.33", "7"), ("everybody who is there, and some who aren't", "-", "12"))
    table = Table(("who", "time to the whole answer (ms)", "answers"), rows, 1)
    assert format_table(table).splitlines() == [
        "                              time to the",
        "                             whole answer",
        "who                                  (ms)  answers",
        "───────────────────────────  ────────────  ───────",
        "one                                  3.33        7",
        "everybody who is there, and             -       12",
        "some who aren't",
    ]


def test_the_last_figures_are_left_out_where_there_is_no_room() -> None:
    table = Table(("who", "first", "second", "third"), (("one", "1", "2", "3"),), 1)
    assert [format_table(table, max_width).splitlines()[0] for max_width in (25, 23, 18, 10, 3)] == [
        "who  first  second  third",
        "who  first  second",
        "who  first  second",
        "who  first",
        "who  first",  # one figure is always told
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (1.0, "1.00"), (12.345, "12.3"), (99.99, "100"), (123.4, "123"), (4567.8, "4568"), (0.00123, "0.00123")],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_seconds_below_one_are_told_in_milliseconds() -> None:
    seconds = Metric("time", "s")
    assert scale_of(seconds, [0.01, 0.5]) == ("ms", 1e3)
    assert scale_of(seconds, [0.01, 1.5]) == ("s", 1.0)
    assert scale_of(Metric("throughput", "requests/s"), [0.1]) == ("requests/s", 1.0)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("world.link.rtt_ms", "round trip of the link (ms)"),
        ("world.link.up_mbps", "up (Mbit/s)"),
        ("world.device_pools.0.draft_tokens_per_s", "draft (tokens/s)"),
        ("policy.batching", "batching"),
        ("who writes", "who writes"),
    ],
)
def test_paths_are_told_as_people_call_them(path: str, name: str) -> None:
    assert name_of_path(path) == name
