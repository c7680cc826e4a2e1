"""``streamco simulate``: from a file to a table, a picture and figures, and what becomes of a run that is cut off."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'streamco[sim]'")

from streamco.sim.experiment.experiment import Experiment, read_experiment
from tests.cli.emulator import plain
from tests.cli.terminal import ROOT, terminal

TOY = """\
name: Does it pay when the server is far away?
kind: toy
repeats: 2
world: {devices: 3}
workload: {requests: 60}
sweep:
  world.link.rtt_ms: [10, 30, 60, 90]
  policy.window: [4, dynamic]
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    return path


def run(*words: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sim.toy_kind", "simulate", *map(str, words)]
    return subprocess.run(command, text=True, capture_output=True, cwd=folder, env={"PYTHONPATH": str(ROOT)}, timeout=60, check=False)


def test_a_run_gives_a_table_a_picture_and_all_figures(toy: Path, tmp_path: Path) -> None:
    done = run(toy, "--jobs", "1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path("results/toy")
    assert done.stdout.splitlines()[-2:] == [str(folder / "plot.png"), str(folder / "results.json")]
    assert "round trip of" in done.stdout
    assert len([line for line in done.stdout.splitlines() if "dynamic" in line]) == 4
    for said in ("Does it pay when the server is far away?", "3 devices, 60 requests", "8 points, 2 repeats of each", "16 of 16 scenarios"):
        assert said in done.stderr
    assert (tmp_path / folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((tmp_path / folder / "results.json").read_bytes())["scenarios"]) == 16


@pytest.mark.long
def test_the_same_file_and_seed_give_the_same_bytes_whatever_the_number_of_processes(toy: Path, tmp_path: Path) -> None:
    found = []
    for jobs in (1, 2):
        assert run(toy, "--jobs", jobs, "--out", tmp_path / str(jobs)).returncode == 0
        found.append([(tmp_path / str(jobs) / name).read_bytes() for name in ("results.json", "plot.png")])
    assert found[0] == found[1]
    assert run(toy, "--jobs", 1, "--seed", 9, "--out", tmp_path / "1").returncode == 0
    assert (tmp_path / "1" / "results.json").read_bytes() != found[0][0]


@pytest.mark.long
def test_a_longer_sweep_runs_only_what_is_new(toy: Path, tmp_path: Path) -> None:
    assert run(toy, "--jobs", 1, "--out", tmp_path / "out").returncode == 0
    toy.write_text(TOY.replace("[4, dynamic]", "[4, dynamic, 8]"))
    done = run(toy, "--jobs", 1, "--out", tmp_path / "out")
    assert "24 of 24 scenarios" in done.stderr
    assert "16 of them were finished before" in done.stderr
    assert len((tmp_path / "out" / "done.jsonl").read_bytes().splitlines()) == 24


def test_a_quick_look_has_a_folder_of_its_own(toy: Path, tmp_path: Path) -> None:
    done = run(toy, "--quick", "--jobs", 1, folder=tmp_path)
    assert done.returncode == 0
    assert "6 points\n" in done.stderr
    assert (tmp_path / "results" / "toy-quick" / "plot.png").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rtt_ms: [10", "rt_ms: [10", "line 7: sweep: world.link.rt_ms: expected one of rtt_ms, trace, got a key that is unknown"),
        ("kind: toy", "kind: tyo", "line 2: kind: expected race or speculate or split or toy, got 'tyo'; did you mean toy?"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_in_a_line_and_nothing_is_written(
    toy: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    toy.write_text(TOY.replace(old, new))
    done = run(toy, folder=tmp_path)
    assert done.returncode == 2
    assert f"streamco: {toy}, {message}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_folder_that_can_not_be_written_to_is_told(toy: Path) -> None:
    done = run(toy, "--out", toy)
    assert done.returncode == 2
    assert "--out: expected a folder to write to, got" in done.stderr


@pytest.mark.parametrize("jobs", [1, 2])
def test_after_ctrl_c_the_same_command_goes_on(toy: Path, tmp_path: Path, jobs: int) -> None:
    toy.write_text(TOY.replace("policy.window: [4, dynamic]", "policy.hangs: [false, true]"))
    out = tmp_path / "out"
    with terminal("-m", "tests.sim.toy_kind", "simulate", str(toy), "--out", str(out), "--jobs", str(jobs), width=100) as driven:
        driven.expect("of each", limit=30.0)
        if jobs == 1:
            driven.expect("2/16", limit=30.0)
        else:
            driven.expect("/16", limit=30.0)
        driven.type("\x03")
        assert driven.wait(30.0) == 128 + signal.SIGINT
        assert "the same command continues from there" in " ".join(plain(driven.raw).split())
        assert "Traceback" not in driven.raw
    if jobs == 1:
        assert len((out / "done.jsonl").read_bytes().splitlines()) == 2


def test_a_terminal_has_a_bar_and_keeps_the_table(toy: Path, tmp_path: Path) -> None:
    with terminal("-m", "tests.sim.toy_kind", "simulate", str(toy), "--out", str(tmp_path / "out"), "--jobs", "1", width=100) as driven:
        assert driven.wait(30.0) == 0
        text = plain(driven.raw)
    assert "16/16" in text
    assert "results.json" in text
    assert "16 of 16 scenarios" not in text


def experiments_of_the_page(folder: Path) -> list[Experiment]:
    """Those whose parts are in docs/simulate.md."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    *first, race, split = blocks
    found = []
    for name, parts in (("first", first), ("race", [race]), ("split", [split])):
        path = folder / f"{name}.yaml"
        path.write_text("".join(parts), encoding="utf-8")
        found.append(read_experiment(path))
    return found


def test_the_page_shows_the_file_that_lies_in_examples_and_two_more_that_can_be_run(tmp_path: Path) -> None:
    first, race, split = experiments_of_the_page(tmp_path)
    lying = read_experiment(ROOT / "examples" / "first.yaml")
    assert first.file == lying.file
    assert len(race.scenarios) == 10
    assert len(split.scenarios) == 6


@pytest.mark.long
def test_the_first_experiment_runs_and_drafting_pays_near_the_server_only(tmp_path: Path) -> None:
    done = run(ROOT / "examples" / "first.yaml", "--quick", "--jobs", 1, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "first-quick" / "plot.png").exists()
    results = json.loads((tmp_path / "results" / "first-quick" / "results.json").read_bytes())
    tpot = {tuple(scenario["point"].values()): scenario["system"]["tpot_mean"] for scenario in results["scenarios"]}
    alone, drafting = dict.fromkeys(who for _, who in tpot)
    assert tpot[10, drafting] < tpot[10, alone]
    assert tpot[120, drafting] > tpot[120, alone]


def test_help_loads_no_simulator() -> None:
    script = (
        "import sys; sys.argv = ['streamco', 'simulate', '--help']\n"
        "from streamco.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'simpy', 'matplotlib', 'numpy', 'yaml', 'rich', 'distributed', 'streamco.sim'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, cwd=ROOT, timeout=60, check=True)
    assert done.stderr.strip() == "[]"
    assert "--quick" in done.stdout
