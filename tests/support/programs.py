"""Third-party programs for tests, of pinned versions, each in a folder of its own in the user's cache.

Run as a module it installs them: ``python -m tests.support.programs [NAME ...]``, for ``make recipes``. Nothing goes into the project's own
environment. Tests only look for them; ``AI_SDK``, which is small, is installed by the test that needs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from msgspec import Struct

from streamco.engines.llamacpp.cache_dir import cache_folder

__all__ = ["AI_SDK", "PROGRAMS", "Program", "command_of", "folder_of", "install"]

READY = ".ready"  # a file that a folder has when everything is in it


class Program(Struct, frozen=True):
    """A program in a package index.

    Args:
        index: the index, by its client.
        package: its name there.
        version: its version.
        command: words that run it; paths are relative to its folder.
        beside: what is installed with it, at versions that keep it small.
        is_large: it is installed only if it is named.
    """

    index: Literal["npm", "pip"]
    package: str
    version: str
    command: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    is_large: bool = False


AI_SDK = Program("npm", "ai", "6.0.326")

PROGRAMS = {
    "aider": Program("pip", "aider-chat", "0.86.2", ("bin/python", "-m", "aider")),
    "Continue": Program("npm", "@continuedev/cli", "1.5.47", ("node_modules/.bin/cn",)),
    "Codex CLI": Program("npm", "@openai/codex", "0.169.0", ("node_modules/.bin/codex",)),
    "Claude Code": Program(
        "npm", "@anthropic-ai/claude-code", "2.1.328", ("node", "node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs")
    ),
    "Open WebUI": Program("pip", "open-webui", "0.12.4", ("bin/open-webui",), beside=("torch==2.13.0",), is_large=True),  # 2.9 GB
    "LibreChat": Program("npm", "librechat-data-provider", "0.8.524"),  # its settings' schema alone
}
"""The programs of docs/frontends.md, by the names of its sections."""


def folder_of(program: Program) -> Path:
    """Return the folder that a program is in, or would be."""
    name = program.package.strip("@").replace("/", "-")
    return cache_folder("programs") / f"{name}-{program.version}"


def command_of(name: str) -> list[str]:
    """Return the words that run a program; skips the calling test, with a reason, when it isn't there."""
    program = PROGRAMS[name]
    folder = folder_of(program)
    if program.index == "npm" and shutil.which("node") is None:
        pytest.skip("needs node")
    if not (folder / READY).is_file():
        how = "make recipes LARGE=1" if program.is_large else "make recipes"
        pytest.skip(f"{program.package} {program.version} is not in {folder.parent}: `{how}` installs it")
    return [str(folder / word) if (folder / word).exists() else word for word in program.command]


def install(program: Program, *, limit: float | None = None) -> Path:
    """Install a program, unless it is there; return its folder.

    Args:
        program: the program.
        limit: seconds; None: as long as it takes.

    Raises:
        OSError: the index' client isn't there.
        subprocess.CalledProcessError: the client could not install it.
        subprocess.TimeoutExpired: it took longer than the limit.
    """
    target = folder_of(program)
    if (target / READY).is_file():
        return target
    if program.index == "pip":  # an environment can't be moved
        shutil.rmtree(target, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(target)], limit)
        _run(
            [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", *program.beside, f"{program.package}=={program.version}"],
            limit,
        )
        (target / READY).touch()
        return target
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as made:
        options = ["--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error"]
        npm = shutil.which("npm") or "npm"
        _run([npm, "install", "--prefix", made, *options, f"{program.package}@{program.version}"], limit)
        (Path(made) / READY).touch()
        if not (target / READY).is_file():  # another process may have been faster
            shutil.rmtree(target, ignore_errors=True)
            Path(made).rename(target)
            Path(made).mkdir()  # for the end of the block
    return target


def _run(words: Sequence[str], limit: float | None) -> None:
    environ = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(words, check=True, capture_output=True, timeout=limit, env=environ)


def main(arguments: Sequence[str] | None = None) -> None:
    """Install the programs that aren't large, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*PROGRAMS, []], help="these (default: all that aren't large)")
    for name in parser.parse_args(arguments).names or [name for name, program in PROGRAMS.items() if not program.is_large]:
        try:
            print(f"{name}: {install(PROGRAMS[name])}", flush=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{name}: expected it to be installed, got:\n{error.stderr.decode(errors='replace')}") from error


if __name__ == "__main__":
    main()
