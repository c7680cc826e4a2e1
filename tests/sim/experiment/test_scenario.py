from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamco.errors import ConfigError
from streamco.sim.experiment import scenario as module
from streamco.sim.experiment.scenario import Outcome, Scenario, kind_location, load_kind, metrics_of, run_scenario
from tests.sim.toy_kind import KIND, LOCATION


def toy(**changes: Any) -> Scenario:
    return Scenario(**{"kind": "toy", "kind_location": LOCATION, "seed": 1, "world": {"devices": 2}, **changes})


def test_the_same_scenario_gives_the_same_outcome_and_another_seed_another_one() -> None:
    first, again, other = (run_scenario(each) for each in (toy(), toy(), toy(seed=2)))
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert first.system["ttft_mean"] != other.system["ttft_mean"]
    assert first.requests == []


def test_rows_come_by_number_where_they_are_wanted() -> None:
    outcome = run_scenario(toy(requests=True))
    assert [row.number for row in outcome.requests] == [0, 1, 2, 3]
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome).system == outcome.system


def test_figures_are_the_sinks_and_the_kinds_own() -> None:
    system = run_scenario(toy(world={"link": {"rtt_ms": 30}})).system
    assert system["completed"] == 4
    assert system["waiting"] == pytest.approx(0.01)
    assert set(system) <= set(metrics_of(KIND))


def test_a_figure_that_was_not_declared_is_a_defect_of_the_kind() -> None:
    with pytest.raises(AssertionError, match="expected metrics that it has declared, got undeclared too"):
        run_scenario(toy(kind_location="tests.sim.toy_kind:BROKEN"))


def test_the_key_is_that_of_the_content_alone() -> None:
    usual = toy()
    assert usual.key == toy(point={"a": 1}, folder="/elsewhere").key
    assert usual.key == msgspec.json.decode(msgspec.json.encode(usual), type=Scenario).key
    for other in (toy(seed=2), toy(requests=True), toy(world={"devices": 3}), toy(policy={"window": 4}), toy(kind="race")):
        assert other.key != usual.key
    assert toy(world={"a": 1, "b": 2}).key == toy(world={"b": 2, "a": 1}).key


def test_files_are_found_beside_the_experiment_and_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACES", "/data")
    here = toy(folder="/somewhere")
    assert here.locate("a.csv") == Path("/somewhere/a.csv")
    assert here.locate("$TRACES/a.csv") == Path("/data/a.csv")
    assert here.locate("~/a.csv") == Path.home() / "a.csv"


def test_an_unknown_kind_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"kind: expected race or speculate or split, got 'speculat'; did you mean speculate\?"):
        kind_location("speculat")


def test_a_package_that_is_missing_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs the package nowhere_to_be_found: pip install 'streamco\[sim\]'"):
        load_kind("needy:KIND")
    with pytest.raises(ModuleNotFoundError, match=r"streamco\.sim\.nonsense"):
        load_kind("streamco.sim.nonsense:KIND")


def test_options_that_do_not_fit_are_told_by_their_place_in_the_file() -> None:
    with pytest.raises(ConfigError, match=r"toy: Expected `int`, got `str` - at `\$.world.devices`"):
        run_scenario(toy(world={"devices": "two"}))


def test_the_registry_loads_no_simulator() -> None:
    script = f"import sys, {module.__name__}; print(sorted({{'simpy', 'matplotlib', 'numpy', 'yaml', 'rich'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
