"""``python -m streamco`` is the command."""

from __future__ import annotations

import subprocess
import sys

import streamco


def test_the_module_runs_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "streamco", "--version"], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert streamco.__version__ in done.stdout


def test_an_unknown_command_is_an_exit_status() -> None:
    done = subprocess.run([sys.executable, "-m", "streamco", "no-such-command"], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
