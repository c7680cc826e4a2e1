from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamco.errors import ConfigError
from streamco.sim.experiment import result_store
from streamco.sim.experiment.result_store import ResultStore, code_digest, name_of
from streamco.sim.experiment.scenario import Outcome, Scenario
from tests.sim.toy_kind import LOCATION


def outcome(metric: float) -> bytes:
    return msgspec.json.encode(Outcome(system={"throughput": metric}))


def toy(**changes: Any) -> Scenario:
    return Scenario(**{"kind": "toy", "kind_location": LOCATION, "seed": 1, "world": {"link": {"trace": "fade.csv"}}, **changes})


def test_what_was_added_is_there_now_and_later(tmp_path: Path) -> None:
    path = tmp_path / "done.jsonl"
    first = ResultStore(path, code="c")
    first.add("a", outcome(1.0))
    first.add("b", outcome(2.0))
    for store in (first, ResultStore(path, code="c")):
        assert "a" in store
        assert "c" not in store
        assert (store.read("a").system, store.read("b").system) == ({"throughput": 1.0}, {"throughput": 2.0})
        assert store.read_json("b") == outcome(2.0)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_cut_away_and_the_next_one_stands_alone(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "done.jsonl"
    store = ResultStore(path, code="c")
    store.add("a", outcome(1.0))
    whole = path.stat().st_size
    store.add("b", outcome(2.0))
    path.write_bytes(path.read_bytes()[: whole + cut])
    again = ResultStore(path, code="c")
    assert ("a" in again, "b" in again) == (True, False)
    again.add("b", outcome(3.0))
    assert ResultStore(path, code="c").read("b").system == {"throughput": 3.0}
    assert len(path.read_bytes().splitlines()) == 2


def test_lines_of_other_code_count_only_where_that_is_wanted_and_never_before_our_own(tmp_path: Path) -> None:
    path = tmp_path / "done.jsonl"
    ResultStore(path, code="old").add("a", outcome(1.0))
    assert "a" not in ResultStore(path, code="new")
    assert ResultStore(path, code="new", takes_any=True).read("a").system == {"throughput": 1.0}
    ResultStore(path, code="new").add("a", outcome(2.0))
    ResultStore(path, code="old").add("a", outcome(3.0))
    assert ResultStore(path, code="new", takes_any=True).read("a").system == {"throughput": 2.0}


def test_a_file_that_is_no_ledger_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "done.jsonl"
    path.write_text("something else\nof somebody\n")
    with pytest.raises(ConfigError, match=r"done.jsonl, line 1: expected a finished scenario, got .* delete it"):
        ResultStore(path, code="c")
    assert path.read_text() == "something else\nof somebody\n"


def test_a_name_changes_with_what_is_in_the_files_that_a_scenario_names(tmp_path: Path) -> None:
    here = toy(folder=str(tmp_path))
    without = name_of(here)
    assert without == name_of(toy(folder="/elsewhere"))
    (tmp_path / "fade.csv").write_text("1\n")
    with_file = name_of(here)
    assert with_file != without
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "fade.csv").write_text("2\n")
    assert name_of(toy(folder=str(tmp_path / "other"))) not in {with_file, without}
    assert name_of(toy(folder=str(tmp_path), seed=2)) != with_file


def test_the_code_is_the_packages_and_the_kinds_own() -> None:
    assert code_digest(LOCATION) != code_digest("streamco.sim.experiment.scenario:KINDS")
    assert len(code_digest(LOCATION)) == 16


def test_the_digest_is_of_the_whole_package_without_what_no_outcome_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(result_store.PACKAGE, tmp_path / "streamco", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    monkeypatch.setattr(result_store, "PACKAGE", tmp_path / "streamco")

    def digest() -> str:
        code_digest.cache_clear()
        result_store._digest.cache_clear()
        return code_digest(LOCATION)

    whole = digest()
    for name, counts in (("cli/main.py", False), ("testing/engine.py", False), ("core/meter.py", True), ("sim/driver.py", True)):
        with (tmp_path / "streamco" / name).open("a") as file:
            file.write("# another line\n")
        assert (digest() != whole) == counts, name
        whole = digest()
    code_digest.cache_clear()
