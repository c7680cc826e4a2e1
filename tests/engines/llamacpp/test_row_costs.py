"""Row costs: how they are measured, and what becomes of files in the cache."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from streamco.engines.llamacpp.cache_dir import cache_folder
from streamco.engines.llamacpp.row_costs import ROW_SIZES, MeasuredCosts, kept_costs, least_seconds, measured_costs

COSTS = {1: 0.01, 2: 0.02, 4: 0.015}


class Machine:
    """Computes batches on a clock of its own."""

    def __init__(self, per_row: float, *, disturbed: int = 0, cpu_share: float = 1.0) -> None:
        self.now = 0.0
        self.per_row = per_row
        self.disturbed = disturbed  # batches that take ten times as long
        self.cpu_share = cpu_share
        self.batches: list[int] = []

    def clock(self) -> float:
        return self.now

    def cpu_clock(self) -> float:
        return self.cpu_share * self.now

    def compute(self, rows: int) -> float | None:
        self.batches.append(rows)
        seconds = self.per_row * rows * (10 if len(self.batches) <= self.disturbed else 1)
        self.now += seconds
        return seconds

    def measure(self) -> MeasuredCosts:
        return measured_costs(self.compute, clock=self.clock, cpu_clock=self.cpu_clock)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "streamco" / "rows"


def steady() -> MeasuredCosts:
    return MeasuredCosts(dict(COSTS), 1.02)


def fail() -> MeasuredCosts:
    raise AssertionError("measured although it is known")


def test_a_quick_model_is_measured_three_times_and_the_least_counts() -> None:
    machine = Machine(0.0001, disturbed=len(ROW_SIZES) + 8)
    costs, spread, cpu_share = machine.measure()
    assert costs == {rows: pytest.approx(0.0001 * rows) for rows in ROW_SIZES}
    assert spread == pytest.approx(10)
    assert cpu_share == pytest.approx(1)
    assert [machine.batches.count(rows) for rows in ROW_SIZES] == [3] * len(ROW_SIZES)


def test_a_slow_model_is_measured_within_two_seconds() -> None:
    machine = Machine(0.02)
    costs, spread, _ = machine.measure()
    assert list(machine.batches)[:6] == [1, 8, 16, 4, 2, 3]
    assert machine.now <= 2.0
    assert set(costs) == {*range(1, 9), 16, 32}
    assert machine.batches.count(1) == 3
    assert spread == pytest.approx(1)


@pytest.mark.parametrize(("per_row", "sizes", "seconds"), [(0.2, [1, 8], 1.8), (0.4, [1, 8], 3.6), (0.6, [1, 4], 3.0), (1.2, [1, 2], 3.6)])
def test_of_a_very_slow_model_two_sizes_are_measured(per_row: float, sizes: list[int], seconds: float) -> None:
    machine = Machine(per_row)
    costs = machine.measure().seconds
    assert machine.batches[:2] == sizes
    assert machine.now == pytest.approx(seconds, abs=per_row)
    assert costs[32] == pytest.approx(32 * per_row), "on the line through the others"


def test_a_model_that_needs_seconds_for_a_row_is_not_measured() -> None:
    machine = Machine(2.5)
    assert machine.measure().seconds == {}
    assert machine.batches == [1]


def test_rows_beyond_the_last_stair_that_was_measured_are_not_free() -> None:
    seconds = {1: 0.2, 4: 0.7, 8: 0.7}
    clock = [0.0]

    def compute(rows: int) -> float:
        clock[0] += seconds[rows]
        return seconds[rows]

    costs = measured_costs(compute, [1, 4, 8, 16, 32], clock=lambda: clock[0], cpu_clock=None)
    assert costs.seconds == {1: 0.2, 4: 0.7, 8: 0.7, 32: pytest.approx(0.7 + 24 * 0.5 / 7)}


def test_a_constant_load_shows_by_the_time_without_a_core() -> None:
    measured = Machine(0.001, cpu_share=0.75).measure()
    assert measured.spread == pytest.approx(1)
    assert measured.cpu_share == pytest.approx(0.75)
    assert measured.trouble == "other programs took 25 % of the time"
    assert Machine(0.001, cpu_share=0.95).measure().trouble == ""
    machine = Machine(0.001, cpu_share=0.0)
    assert measured_costs(machine.compute, clock=machine.clock, cpu_clock=None).trouble == "", "a GPU computes"


def test_what_was_stopped_says_nothing() -> None:
    assert measured_costs(lambda rows: None if rows == 4 else 0.1, clock=lambda: 0.0, cpu_clock=None).seconds == {}


def test_the_least_of_several_computations_counts() -> None:
    seconds = iter((0.3, 0.1, 0.2))
    assert least_seconds(lambda: next(seconds)) == 0.1
    assert least_seconds(lambda: 0.0) > 0


def test_costs_are_measured_once_for_a_key(cache: Path) -> None:
    assert kept_costs("one", steady) == COSTS
    assert kept_costs("one", fail) == COSTS
    assert kept_costs("other", lambda: MeasuredCosts({1: 2.0}, 1.0)) == {1: 2.0}
    assert sorted(file.name for file in cache.iterdir()) == ["one.json", "other.json"]


def test_what_was_stopped_is_not_kept() -> None:
    assert kept_costs("one", lambda: MeasuredCosts({}, 1.0)) == {}
    assert kept_costs("one", steady) == COSTS


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        (MeasuredCosts({1: 5.0}, spread=1.6), "times differ by 60 %"),
        (MeasuredCosts({1: 5.0}, cpu_share=0.7), "other programs took 30 % of the time"),
    ],
)
def test_what_was_measured_on_a_busy_machine_is_used_and_not_kept(
    measured: MeasuredCosts, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "streamco.engine"):
        assert kept_costs("one", lambda: measured) == {1: 5.0}
    assert f"the machine is busy ({why})" in caplog.text
    assert kept_costs("one", steady) == COSTS


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b'{"key":"one","seconds":{}}',
        b'{"key":"one","seconds":{"1":-1.0}}',
        b'{"key":"one","seconds":{"0":1.0}}',
        b'{"key":"one","seconds":{"1":1.0},"version":2}',
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    file = cache_folder("rows") / "one.json"
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING, "streamco.engine"):
        assert kept_costs("one", steady) == COSTS
    assert "is damaged" in caplog.text
    assert json.loads(file.read_bytes())["seconds"] == {"1": 0.01, "2": 0.02, "4": 0.015}


def test_a_file_about_another_machine_is_ignored_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    kept_costs("theirs", lambda: MeasuredCosts({1: 9.0}, 1.0))
    (cache_folder("rows") / "theirs.json").rename(cache_folder("rows") / "one.json")
    with caplog.at_level(logging.WARNING, "streamco.engine"):
        assert kept_costs("one", steady) == COSTS
    assert "about another machine" in caplog.text
    assert kept_costs("one", fail) == COSTS


def test_without_a_cache_they_are_measured_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "streamco").touch()
    with caplog.at_level(logging.INFO, "streamco.engine"):
        assert kept_costs("one", steady) == COSTS
        assert kept_costs("one", lambda: MeasuredCosts({1: 3.0}, 1.0)) == {1: 3.0}
    assert "can't be saved" in caplog.text
