"""``streamco demo --split``: what it says, what it refuses, and both prompts with real parts."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from streamco.cli.demo_split import PROMPTS, explain_split
from streamco.cli.main import main
from streamco.core.split.machine import SplitCounts
from streamco.engines.split.tally import SplitTally, SplitTraffic
from tests.cli.terminal import ROOT

pytestmark = pytest.mark.timeout(180)


def test_the_lines_after_an_answer_are_about_that_answer() -> None:
    tally = SplitTally(SplitCounts(trips=3), SplitTraffic(1100, 350, 10, 5, 3), drafted=4, accepted=2)
    lines = explain_split(tally.figures(tokens=5, input_layers=2, states="f32"))
    assert lines == (
        "up:    10 hidden states of prompt and answer, 1100 bytes",
        "down:  5 hidden states in 3 trips, 350 bytes",
        "trips: 3, 1.67 tokens a trip (2 of 4 drafted tokens were right)",
        "sent:  hidden states of layer 2, f32; no token id, no text",
    )


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
    assert len(re.findall(r"down:  [1-9]\d* hidden states in [1-6] trips", done.stdout)) == 2
    assert "They hide nothing from a server that looks for the text" in done.stdout
