"""Installed programs: into the cache, whole or not at all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.programs import AI_SDK, PROGRAMS, Program, command_of, folder_of, install, main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "streamco" / "programs"


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command ``npm`` that keeps its arguments and makes a folder ``node_modules``, or fails if a file ``fails`` is beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "npm"
    command.write_text('#!/bin/sh\ntest -e "$0.fails" && exit 1\necho "$@" >> "$0.asked"\nmkdir "$3/node_modules"\n')
    command.chmod(0o755)
    (folder / "node").symlink_to(command)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return command


def test_a_package_is_installed_once_without_its_scripts(cache: Path, npm: Path) -> None:
    folder = install(AI_SDK)
    assert folder == install(AI_SDK) == cache / f"ai-{AI_SDK.version}"
    (asked,) = Path(f"{npm}.asked").read_text().splitlines()
    assert "--ignore-scripts" in asked
    assert asked.endswith(f" ai@{AI_SDK.version}")
    assert (folder / "node_modules").is_dir()
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_a_package_that_could_not_be_installed_leaves_nothing(cache: Path, npm: Path) -> None:
    Path(f"{npm}.fails").touch()
    with pytest.raises(subprocess.CalledProcessError):
        install(AI_SDK)
    assert not list(cache.iterdir())
    with pytest.raises(SystemExit, match="Codex CLI: expected it to be installed"):
        main(["Codex CLI"])


def test_a_program_runs_from_its_folder_and_is_skipped_where_there_is_none(npm: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"@openai/codex .* is not in .*: `make recipes` installs it"):
        command_of("Codex CLI")
    main(["Codex CLI", "Claude Code"])
    command = folder_of(PROGRAMS["Codex CLI"]) / "node_modules" / ".bin" / "codex"
    command.parent.mkdir()
    command.touch()
    assert command_of("Codex CLI") == [str(command)]
    assert command_of("Claude Code")[0] == "node"
    assert npm.is_file()


def test_a_python_program_has_an_environment_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    target = cache / "tool-1.0"
    target.mkdir(parents=True)  # an attempt that was broken off
    (target / "half").touch()

    def run(words: Sequence[str], limit: float | None) -> None:
        asked.append(words)
        if "venv" in words:
            target.mkdir()

    monkeypatch.setattr("tests.support.programs._run", run)
    program = Program("pip", "tool", "1.0", ("bin/python", "-m", "tool"), beside=("part==2",))
    assert install(program) == install(program) == target
    assert not (target / "half").exists()
    venv, pip = asked
    assert venv[1:] == ["-m", "venv", str(target)]
    assert (pip[0], pip[-2:]) == (str(target / "bin" / "python"), ["part==2", "tool==1.0"])


def test_large_programs_are_installed_only_if_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    monkeypatch.setattr("tests.support.programs.install", lambda program: installed.append(program.package))
    main([])
    assert installed == [program.package for program in PROGRAMS.values() if not program.is_large]
    main(["Open WebUI"])
    assert installed[-1] == "open-webui"
    with pytest.raises(pytest.skip.Exception, match="`make recipes LARGE=1` installs it"):
        command_of("Open WebUI")
