"""``streamco demo --split``: what it says, what it refuses, and both prompts with real parts."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from msgspec import structs

from streamco.cli.demo_split import PROMPTS, comparison, emulation_text, verdict_text
from streamco.cli.main import main
from streamco.cli.ui.answer import ShownAnswer
from tests.cli.terminal import ROOT
from tests.core.test_report_text import TRIPS, make_report

pytestmark = pytest.mark.timeout(180)


def answer(text: str, tokens_per_second: float | None, **changes: object) -> ShownAnswer:
    return ShownAnswer(text=text, report=make_report(tokens=40, ttft=0.2, tokens_per_second=tokens_per_second, **changes))


def three_answers(*, drafting: float = 25.0) -> dict[str, ShownAnswer]:
    plain = structs.replace(TRIPS, trips=40, tokens_per_trip=1.0, drafted=0, accepted=0)
    return {
        "without drafts": answer("blue", 16.0, split=plain),
        "with drafts": answer("blue", drafting, split=structs.replace(TRIPS, trips=24, tokens_per_trip=40 / 24)),
        "whole model here": answer("sky", 100.0),
    }


def test_the_three_answers_stand_beside_one_another() -> None:
    table = comparison(three_answers())
    assert table.heads == ("", "without drafts", "with drafts", "whole model here")
    assert table.rows == [
        ("time between tokens", "62 ms", "40 ms", "10 ms"),
        ("first token after", "200 ms", "200 ms", "200 ms"),
        ("tokens, trips", "40, 40", "40, 24", "40, none"),
        ("tokens a trip", "1.00", "1.67", "-"),
        ("drafted, of these right", "-", "91, 7", "-"),
        ("bytes up, down", "345854, 265359", "345854, 265359", "0, 0"),
        ("text", "-", "the same", "another"),
    ]


def test_it_is_said_plainly_that_the_whole_model_is_faster() -> None:
    assert verdict_text(three_answers()) == (
        "With drafts a token takes 0.64 of the time without them. "
        "The split takes 4.0 times as long a token as the whole model on this machine."
    )
    assert verdict_text(three_answers(drafting=200.0)) == "With drafts a token takes 0.08 of the time without them."
    assert verdict_text(three_answers(drafting=8.0)).startswith(
        "With drafts a token takes 2.00 of the time without them. They took longer to make and check than the trips that they saved"
    )
    assert verdict_text({**three_answers(), "with drafts": answer("x", None)}) == ""
    assert verdict_text(three_answers(), is_paced=True).startswith("Answers shown at a pace have the pace's time between tokens.")


def test_what_is_emulated_is_said() -> None:
    assert emulation_text(30) == (
        "Emulated: a round trip of 30 ms, 7.5 MB/s up and 12.5 MB/s down; and a 7B's times on a GPU, 18 ms a batch and 0.13 ms a row."
    )
    assert emulation_text(0).startswith("Nothing is emulated.")


def test_a_round_trip_is_for_a_split_model_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--rtt-ms", "10"]) != 0
    assert "--rtt-ms: only valid with --split" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--mode", "speculate"],
        ["--budget", "0.5"],
        ["--policy", "server-only"],
        ["--no-migration"],
        ["--latency", "x"],
        ["--device", "x.gguf"],
        ["--server", "x.gguf"],
    ],
)
def test_options_without_effect_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--split", *options]) != 0
    assert f"{options[0]}: can't be combined with --split" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize(("rtt", "emulated"), [((), "Emulated: a round trip of 30 ms"), (("--rtt-ms", "0"), "Nothing is emulated.")])
def test_both_prompts_are_answered_in_three_ways_with_one_text(rtt: tuple[str, ...], emulated: str) -> None:
    pytest.importorskip("gguf")
    command = [sys.executable, "-m", "streamco", "demo", "--split", *rtt, "--max-tokens", "6"]
    done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT, timeout=150, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    for number, prompt in enumerate(PROMPTS, 1):
        assert f"{number}. {prompt}" in done.stdout
    assert emulated in done.stdout
    assert len(re.findall(r"tokens, trips +6, 6 +6, [1-6] +6, none", done.stdout)) == 2
    assert len(re.findall(r"text +- +the same +the same", done.stdout)) == 2
    assert "They hide nothing from a server that looks for the text" in done.stdout
    assert "A split is for models that don't fit the device." in done.stdout


@pytest.mark.long
@pytest.mark.model
def test_one_prompt_as_json_is_the_split_answer_alone() -> None:
    pytest.importorskip("gguf")
    command = [sys.executable, "-m", "streamco", "demo", "--split", "--rtt-ms", "0", "--json", "--max-tokens", "4", "--prompt", "Hello"]
    done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT, timeout=150, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"]["mode"] == "split"
    assert "Nothing is emulated." in done.stderr
