"""The AMX question: asked only where it can matter, answered by a child that may die, remembered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamco.engines.llamacpp import amx_probe as probe
from streamco.engines.llamacpp import trials
from streamco.engines.llamacpp.amx_probe import advertises_amx, allows_repacking, allows_tiles, choose_repacking, lacks_tiles, tiled_weights

PLAIN = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse2 avx512f\n\nprocessor\t: 1\n"
AMX = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse2 avx512f amx_bf16 amx_tile amx_int8\n\nprocessor\t: 1\n"


class Child:
    """A child process that ends as it is told."""

    def __init__(self, status: int | None) -> None:
        self.status = status
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> int | None:
        self.commands.append(command)
        return self.status


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def library(tmp_path: Path) -> Any:
    package = tmp_path / "llama_cpp"
    (package / "lib").mkdir(parents=True)
    (package / "lib" / "libggml-cpu.so").write_bytes(b"one build")
    return SimpleNamespace(__file__=str(package / "__init__.py"), __version__="0.3.36")


def cpu(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_flags_tell_whether_amx_is_advertised(tmp_path: Path) -> None:
    assert advertises_amx(cpu(tmp_path, AMX))
    assert not advertises_amx(cpu(tmp_path, PLAIN))
    assert not advertises_amx(cpu(tmp_path, "no flags here"))
    assert not advertises_amx(tmp_path / "nothing")


def test_a_cpu_without_amx_is_never_probed(model: Path, library: Any, tmp_path: Path) -> None:
    child = Child(-11)
    assert allows_repacking(model, library, cpuinfo=cpu(tmp_path, PLAIN), run=child)
    assert child.commands == []


@pytest.mark.parametrize(("status", "allowed"), [(0, True), (-11, False), (-4, False)])
def test_the_childs_end_is_the_answer_and_it_is_remembered(model: Path, library: Any, tmp_path: Path, status: int, allowed: bool) -> None:
    child = Child(status)
    for _ in range(3):
        assert allows_repacking(model, library, cpuinfo=cpu(tmp_path, AMX), run=child) is allowed
    assert child.commands == [[sys.executable, "-m", "streamco.engines.llamacpp.trial_child", str(model)]]


@pytest.mark.parametrize("status", [1, None])
def test_a_child_that_could_not_tell_means_no_and_is_asked_again(model: Path, library: Any, tmp_path: Path, status: int | None) -> None:
    child = Child(status)
    assert not allows_repacking(model, library, cpuinfo=cpu(tmp_path, AMX), run=child)
    assert not allows_repacking(model, library, cpuinfo=cpu(tmp_path, AMX), run=child)
    assert len(child.commands) == 2


def test_another_build_machine_or_model_is_asked_anew(model: Path, library: Any, tmp_path: Path) -> None:
    child = Child(0)
    allows_repacking(model, library, cpuinfo=cpu(tmp_path, AMX), run=child)
    library.__version__ = "0.3.37"
    allows_repacking(model, library, cpuinfo=cpu(tmp_path, AMX), run=child)
    allows_repacking(model, library, cpuinfo=cpu(tmp_path, AMX.replace("Some", "Other")), run=child)
    other = model.with_name("other.gguf")
    other.write_bytes(b"GGUF")
    allows_repacking(other, library, cpuinfo=cpu(tmp_path, AMX), run=child)
    assert len(child.commands) == 4


def test_an_application_bundle_is_not_started_again(model: Path, library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    child = Child(0)
    assert not allows_repacking(model, library, cpuinfo=cpu(tmp_path, AMX), run=child)
    assert child.commands == []


def test_a_cache_that_cannot_be_written_only_costs_the_memory(
    model: Path, library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    child = Child(-11)
    for _ in range(2):
        assert not allows_repacking(model, library, cpuinfo=cpu(tmp_path, AMX), run=child)
    assert len(child.commands) == 2


def test_a_child_killed_by_a_signal_shows_as_its_number() -> None:
    command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    assert trials._run(command) == -11
    assert trials._run([sys.executable, "-c", "import streamco.errors"]) == 0


def test_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_arguments: Any, **options: Any) -> None:
        raise subprocess.TimeoutExpired("python", options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    assert trials._run(["python"]) is None


Q4_0, Q8_0 = 2, 8
WEIGHTS = {"blk.0.attn_q.weight": Q4_0, "blk.0.ffn_up.weight": Q8_0, "blk.0.attn_norm.weight": 0, "token_embd.weight": Q4_0}


@pytest.fixture
def amx(tmp_path: Path) -> Path:
    return cpu(tmp_path, AMX)


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A file's weights by type, in a build that has kernels for tiles."""
    types = dict(WEIGHTS)
    monkeypatch.setattr(probe, "tensor_types", lambda _path, _library: types)
    monkeypatch.setattr(probe, "extra_buffer", lambda _library, name: 1 if name == "CPU_REPACK" else None)
    return types


def test_weights_of_the_layers_that_tiles_exist_for_are_named(model: Path, library: Any, tiles: dict[str, int]) -> None:
    assert tiled_weights(model, library) == ["blk.0.attn_q.weight"]


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(("status", "allowed"), [(0, True), (-11, False)])
def test_tiles_are_tried_in_a_child_of_their_own(model: Path, library: Any, amx: Path, status: int, allowed: bool) -> None:
    allows_repacking(model, library, cpuinfo=amx, run=Child(-11))
    child = Child(status)
    for _ in range(2):
        assert allows_tiles(model, library, cpuinfo=amx, run=child) is allowed
    assert child.commands == [[sys.executable, "-m", "streamco.engines.llamacpp.trial_child", str(model), "tiles"]]


def test_without_weights_or_kernels_for_tiles_nothing_is_tried(
    model: Path, library: Any, amx: Path, tiles: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child(0)
    monkeypatch.setattr(probe, "extra_buffer", lambda _library, _name: None)
    assert not allows_tiles(model, library, cpuinfo=amx, run=child)
    tiles["blk.0.attn_q.weight"] = Q8_0
    monkeypatch.setattr(probe, "extra_buffer", lambda _library, _name: 1)
    assert not allows_tiles(model, library, cpuinfo=amx, run=child)
    assert child.commands == []


@pytest.mark.parametrize(("allowed", "chosen"), [((True, True), True), ((False, True), "tiles"), ((False, False), False)])
def test_as_much_is_repacked_as_is_safe(
    model: Path, library: Any, monkeypatch: pytest.MonkeyPatch, allowed: tuple[bool, bool], chosen: object
) -> None:
    monkeypatch.setattr(probe, "allows_repacking", lambda _path, _library: allowed[0])
    monkeypatch.setattr(probe, "allows_tiles", lambda _path, _library: allowed[1])
    assert choose_repacking(model, library) == chosen


def test_a_model_lacks_tiles_if_most_of_its_layers_are_in_another_format(
    model: Path, library: Any, tiles: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "load_library", lambda: library)
    assert not lacks_tiles(model)
    tiles["blk.1.ffn_up.weight"] = Q8_0
    assert lacks_tiles(model)
    monkeypatch.setattr(probe, "extra_buffer", lambda _library, _name: None)
    assert not lacks_tiles(model)
