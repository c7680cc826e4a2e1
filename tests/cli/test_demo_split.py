"""``streamco demo --split``: what it says, what it refuses, and both prompts with real parts."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from streamco.cli.demo_split import PROMPTS, explain_traffic
from streamco.cli.main import main
from streamco.engines.split.tally import SplitTraffic
from tests.cli.terminal import ROOT

pytestmark = pytest.mark.timeout(180)


def test_the_lines_after_an_answer_are_about_that_answer() -> None:
    lines = explain_traffic(SplitTraffic(100, 50, 3, 1, 1), SplitTraffic(1100, 350, 10, 5, 3))
    assert lines[0] == "up: 7 hidden states of prompt and answer, 1000 bytes"
    assert lines[1].startswith("down: 4 hidden states in 2 trips, 300 bytes")


@pytest.mark.parametrize(
    "options", [["--mode", "speculate"], ["--budget", "0.5"], ["--policy", "server-only"], ["--no-migration"], ["--latency", "x"]]
)
def test_options_without_effect_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--split", *options]) != 0
    assert f"{options[0]}: expected none with --split" in capsys.readouterr().err


@pytest.mark.model
def test_both_prompts_are_answered_and_nothing_but_states_is_sent() -> None:
    pytest.importorskip("gguf")
    command = [sys.executable, "-m", "streamco", "demo", "--split", "--pace", "off", "--max-tokens", "6"]
    done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT, timeout=150, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    for number, prompt in enumerate(PROMPTS, 1):
        assert f"{number}. {prompt}" in done.stdout
    assert len(re.findall(r"down: [1-9]\d* hidden states in [1-6] trips", done.stdout)) == 2
    assert "They hide nothing from a server that looks for the text" in done.stdout
