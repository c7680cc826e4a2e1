from __future__ import annotations

from pathlib import Path

import pytest

from streamco.errors import ConfigError
from streamco.sim.experiment.experiment import Experiment, merge, read_experiment
from streamco.sim.experiment.scenario import KINDS
from tests.sim.toy_kind import LOCATION, LOOKED_UP

TOY = """\
name: Does it pay?
kind: toy
seed: 7
repeats: 2
world:
  devices: 3
  link: {rtt_ms: 5}
workload: {requests: 60}
policy: {window: 4}
sweep:
  policy.window: [4, dynamic]
  world.link.rtt_ms: [10, 30, 60, 90, 120]
"""


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "toy", LOCATION)


def load(folder: Path, text: str = TOY, *, seed: int | None = None, is_quick: bool = False) -> Experiment:
    path = folder / "toy.yaml"
    path.write_text(text)
    return read_experiment(path, seed=seed, is_quick=is_quick)


def test_every_combination_is_run_with_each_seed(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    scenarios = experiment.scenarios
    assert len(scenarios) == 2 * 5 * 2
    assert [scenario.seed for scenario in scenarios] == [7, 8] * 10
    assert scenarios[0].point == {"policy.window": 4, "world.link.rtt_ms": 10}
    assert scenarios[-1].point == {"policy.window": "dynamic", "world.link.rtt_ms": 120}
    assert scenarios[-1].policy == {"window": "dynamic"}
    assert scenarios[-1].world == {"devices": 3, "link": {"rtt_ms": 120}}
    assert experiment.points == [scenario.point for scenario in scenarios[::2]]
    assert len({scenario.key for scenario in scenarios}) == len(scenarios)
    assert experiment.describe() == "3 devices, 60 requests"


def test_another_seed_can_be_told(tmp_path: Path) -> None:
    assert [scenario.seed for scenario in load(tmp_path, seed=40).scenarios[:2]] == [40, 41]


def test_a_quick_look_has_less_of_everything(tmp_path: Path) -> None:
    experiment = load(tmp_path, is_quick=True)
    assert len(experiment.scenarios) == 2 * 3
    assert {scenario.workload["requests"] for scenario in experiment.scenarios} == {50}
    assert [value.label for value in experiment.axes[1].values] == [10, 60, 120]
    unsaid = load(tmp_path, TOY.replace("workload: {requests: 60}", "workload: {}"), is_quick=True)
    assert unsaid.scenarios[0].workload == {"requests": 50}
    held = f"{TOY}plot: {{x: policy.window, y: waiting, where: {{world.link.rtt_ms: 30}}}}\n"
    assert [value.label for value in load(tmp_path, held, is_quick=True).axes[1].values] == [10, 30, 60, 120]


def test_without_a_sweep_there_is_one_point_and_no_plot(tmp_path: Path) -> None:
    experiment = load(tmp_path, "name: a\nkind: toy\nworld: {devices: 1}\n")
    assert (len(experiment.scenarios), experiment.points, experiment.plots) == (1, [{}], ())


def test_the_table_shows_what_is_drawn_first_unless_it_is_told(tmp_path: Path) -> None:
    drawn = f"{TOY}plot: {{x: policy.window, y: waiting, line: world.link.rtt_ms}}\n"
    assert load(tmp_path, drawn).columns == ("waiting", "throughput", "ttft_mean")
    assert load(tmp_path, f"{drawn}table: [seconds_p99]\n").columns == ("seconds_p99",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: toy", "kind: toi", r"line 2: kind: expected .* got 'toi'; did you mean toy\?"),
        ("repeats: 2", "repeats: 0", "line 4: repeats: expected a whole number of 1 or more, got 0"),
        ("seed: 7", "sede: 7", r"line 3: sede: expected one of name, .* got a key that is unknown; did you mean seed\?"),
        ("name: Does it pay?\n", "", "line 1: name: expected a string, got nothing"),
        ("{rtt_ms: 5}", "{trace: nowhere}", "line 7: world.link.trace: trace: expected a file that is there, got nowhere"),
        ("world.link.rtt_ms: [10,", "world.link.trace: [nowhere,", "line 12: sweep: world.link.trace: trace: expected a file that"),
        ("{rtt_ms: 5}", "{rtt: 5}", r"line 7: world.link.rtt: expected one of rtt_ms, trace, .* did you mean rtt_ms\?"),
        ("devices: 3", "devices: 3000", "line 5: world: devices: expected 1000 at most, got 3000"),
        ("requests: 60", "requests: many", "line 8: workload.requests: expected a whole number, got 'many'"),
        ("[4, dynamic]", "[4, dynamc]", r"line 11: sweep: policy.window: expected .* got 'dynamc'; did you mean dynamic\?"),
        ("policy.window: [4,", "policy.widow: [4,", r"line 11: sweep: policy.widow: .* did you mean window\?"),
        ("[10, 30,", "[10, fast,", "line 12: sweep: world.link.rtt_ms: expected a number of 0 or more, got 'fast'"),
        ("sweep:", "plot: {x: policy.window, y: wating}\nsweep:", r"line 10: plot.y: .* did you mean waiting\?"),
        ("sweep:", "table: [waitin]\nsweep:", r"table.0: expected one of throughput, .* did you mean waiting\?"),
    ],
)
def test_an_error_names_file_line_and_path(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TOY
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, TOY.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path / 'toy.yaml'}, line ")


def test_an_error_in_what_a_part_of_a_setting_names_is_where_the_sweep_set_it(tmp_path: Path) -> None:
    text = TOY.replace("  devices: 3\n", "  devices: 3\n  pools: [{share: 1}]\n").replace(
        "world.link.rtt_ms: [10, 30, 60, 90, 120]", "world.pools.0.model: [small, nowhere]"
    )
    with pytest.raises(ConfigError, match=r"line 13: sweep: world\.pools\.0\.model: .*got nowhere"):
        load(tmp_path, text)


def test_what_several_points_name_is_looked_up_once(tmp_path: Path) -> None:
    LOOKED_UP.clear()
    load(tmp_path, TOY.replace("world.link.rtt_ms: [10, 30, 60, 90, 120]", "world.link.trace: [home, train]"))
    assert LOOKED_UP == ["home", "train"]


@pytest.mark.parametrize("text", ["", "- a\n", "just a text\n"])
def test_a_file_that_holds_something_else_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="expected name, kind, world and so on, got "):
        load(tmp_path, text)


def test_what_differs_between_points_is_told_with_all_its_values(tmp_path: Path) -> None:
    experiment = load(tmp_path, TOY.replace("world.link.rtt_ms: [10, 30, 60, 90, 120]", "world.devices: [3, 30]"))
    assert experiment.describe() == "3/30 devices, 60 requests"
    assert experiment.describe({"world.devices": 30}) == "30 devices, 60 requests"


def test_descriptions_are_merged_word_by_word() -> None:
    assert merge(["one (a), of x", "one (a), of y"]) == "one (a), of x/y"
    assert merge(["4, then", "8, then"]) == "4/8, then"
    assert merge(["two (1 a)", "four (3 a)"]) == "two/four (1/3 a)"
    assert merge([f"{count} devices" for count in range(5)]) == "0...4 devices"
    assert merge(["two words", "and these three"]) == "two words, for example"
