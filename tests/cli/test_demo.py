from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path

import pytest

from streamco.cli.demo import PRICES, SCENES, _change_line, _endpoint_line, _explain, _migration, _why_unmoved, add_arguments
from streamco.cli.main import main
from streamco.core.report_parts import EndpointReport, HandOver, Outcome
from tests.cli.terminal import ROOT, terminal
from tests.core.test_report_text import FIGURES, make_report
from tests.support.pair import pair_model

DEMO = ("-m", "streamco", "demo")
pytestmark = pytest.mark.timeout(180)


def servers(mark: str) -> list[int]:
    """Process ids of everything that inherited this mark in its environment and still runs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"STREAMCO_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Marks what this test starts."""
    value = uuid.uuid4().hex
    monkeypatch.setenv("STREAMCO_TEST_MARK", value)
    return value


@pytest.mark.long
@pytest.mark.model
def test_one_prompt_as_json_is_the_text_and_the_whole_report(mark: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            *DEMO,
            "--prompt",
            "What is the capital of France?",
            "--json",
            "--pace",
            "off",
            "--max-tokens",
            "12",
            "--temperature",
            "0",
        ],
        text=True,
        capture_output=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert answer["text"].strip()  # which words depends on the processor, and on the side that answers
    report = answer["report"]
    assert {part["name"] for part in report["endpoints"]} == {"device", "server"}
    assert report["winner"] in {"device", "server"}
    assert report["tokens"] <= 12
    assert report["cost_usd"] >= 0
    assert report["dispatch"]["policy"] == "device-constrained"
    assert servers(mark) == []


@pytest.mark.long
@pytest.mark.model
def test_the_device_drafts_for_the_cloud_where_that_is_asked_for(mark: str) -> None:
    done = subprocess.run(
        [sys.executable, *DEMO, "--mode", "speculate", "--prompt", "Name a colour.", "--json", "--pace", "off", "--max-tokens", "12"],
        text=True,
        capture_output=True,
        cwd=ROOT,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["report"]
    assert report["mode"] == "speculate", report["dispatch"]["reason"]
    assert report["winner"] in {"device with server", "server"}
    assert report["speculation"]["offloaded_share"] == 1.0
    assert report["speculation"]["remote"] == 0
    assert servers(mark) == []


def test_drafts_are_explained_in_plain_lines() -> None:
    report = make_report(speculation=FIGURES)
    lines = _explain(report)
    assert lines[0] == "  tokens: 36 accepted, 8 corrected, 4 after drafts accepted whole, 30 not verified"
    assert lines[1].endswith("in 50% of them the next draft was there with the verdict")
    assert lines[2] == "  the server's own answer: no; it computed 60 tokens for 132 of the answer"


@pytest.mark.long
@pytest.mark.model
def test_the_page_serves_both_sides_until_ctrl_c(mark: str) -> None:
    with subprocess.Popen(
        [sys.executable, *DEMO, "--page", "--pace", "off"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("listening on ").strip()
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(f"{address}/page.js", timeout=30) as response:
                assert response.status == 200
            body = {
                "messages": [{"role": "user", "content": "What is the capital of France?"}],
                "stream": True,
                "max_tokens": 12,
                "temperature": 0,
                "stream_options": {"include_origin": True},
            }
            headers = {"Content-Type": "application/json", "Origin": address}
            request = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=60) as response:
                text = response.read().decode()
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()  # a test that fails must not wait for it
    assert re.search(r'"content":"[^"]*\w', text), "which words depends on the processor, and on the side that answers"
    assert '"streamco":{"endpoint":' in text
    assert (process.returncode, rest) == (0, "")
    assert "open the address below in a browser" in errors
    assert servers(mark) == []


@pytest.mark.parametrize(
    "words", [("--split",), ("--prompt", "Hi"), ("--json",), ("--system", "x"), ("--max-tokens", "3"), ("--temperature", "0")]
)
def test_what_has_no_effect_on_a_page_is_refused_beside_it(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--page", *words]) == 2
    assert f"{words[0]}: expected none with --page, got" in capsys.readouterr().err


@pytest.mark.model
def test_without_a_prompt_the_built_in_ones_show_both_sides_and_explain_it() -> None:
    done = subprocess.run(
        [sys.executable, *DEMO, "--pace", "off", "--max-tokens", "16"],
        text=True,
        capture_output=True,
        cwd=ROOT,
        timeout=150,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    for scene in SCENES:
        assert scene.title in text
    for words in (
        "device  SmolLM2-135M",
        "server  the same model",
        "plan: device at once, server at once",
        "the server alone would have cost $",
    ):
        assert words in text
    assert "answered · first token" in text
    assert "\x1b" not in text


@pytest.mark.pair
def test_other_models_are_named_and_answer() -> None:
    words = ["--device", str(pair_model("0.5B")), "--server", str(pair_model("1.5B")), "--pace", "off", "--max-tokens", "8"]
    done = subprocess.run(
        [sys.executable, *DEMO, *words], text=True, capture_output=True, cwd=ROOT, timeout=150, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert "device  Qwen2.5-Coder-0.5B-Instruct.Q4_K_M on this machine" in done.stdout
    assert "server  Qwen2.5-Coder-1.5B-Instruct.Q4_K_M behind HTTP" in done.stdout
    assert "The capital of France is Paris." in done.stdout
    assert "deriving" not in done.stderr


@pytest.mark.parametrize("name", ["--device", "--server"])
def test_a_model_that_is_not_there_is_refused_before_anything_starts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", name, "missing.gguf"]) == 2
    assert f"{name}: expected a GGUF file, got nothing at missing.gguf" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.model
def test_ctrl_c_at_any_time_leaves_no_server_behind(mark: str) -> None:
    for delay in (0.5, 4.0):
        with subprocess.Popen(
            [sys.executable, *DEMO, "--prompt", "Count to one hundred.", "--pace", "2"],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        ) as process:
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        # Before its first line Python ends by the signal itself, which a shell tells as 130 too.
        assert process.returncode in {130, -signal.SIGINT}
        assert servers(mark) == []


@pytest.mark.long
@pytest.mark.model
def test_on_a_terminal_the_chat_opens_after_the_built_in_prompts() -> None:
    with terminal(
        *DEMO, "--pace", "off", "--max-tokens", "8", width=200, env={"XDG_STATE_HOME": os.environ.get("TMPDIR", "/tmp")}
    ) as driven:
        driven.expect("1. a short prompt", limit=60)
        driven.expect("2. a long prompt", limit=60)
        driven.expect("now you: ask anything", limit=60)
        driven.expect("Ctrl-D quits")
        driven.expect("policy device-constrained")
        driven.type("Hello!\r")
        driven.expect("answered · first token", limit=60)
        driven.expect("policy device-constrained")
        driven.type("\x04")
        assert driven.wait() == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--json",), 2, "--json: expected --prompt TEXT beside it"),
        (("--latency", "nosuch", "--prompt", "x"), 2, "expected a JSON file or one of"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(words: tuple[str, ...], code: int, message: str) -> None:
    done = subprocess.run([sys.executable, *DEMO, *words], text=True, capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("won", "device: asked after 900 ms, first token 95 ms later; done after 88 tokens"),
        ("lost", "stopped after 88 tokens"),
        ("failed", "failed after 88 tokens"),
        ("took over", "went on, done after 88 tokens"),
        ("read ahead", "device: read prompt and answer ahead after 900 ms, 54 tokens"),
    ],
)
def test_each_part_in_an_answer_is_told_in_a_line(outcome: Outcome, words: str) -> None:
    part = EndpointReport(name="device", kind="device", outcome=outcome, opened=0.9, ttft=0.095, prompt_tokens=54, completion_tokens=88)
    assert words in _endpoint_line(part)


def test_a_hand_over_is_told_with_its_reason() -> None:
    change = HandOver(source="server", target="device", position=12, at=1.5, reason="cheaper", is_planned=True, buffered=8, pause=0.095)
    assert _change_line(change).startswith("hand-over: after token 12, first token 95 ms later; 8 tokens were in hand")
    assert _change_line(change).endswith("saved unknown")
    failed = HandOver(source="server", target="device", position=12, at=1.5, reason="EndpointTimeoutError")
    assert _change_line(failed).endswith("waited for 0 tokens; EndpointTimeoutError")


def test_the_latency_profiles_are_listed() -> None:
    done = subprocess.run([sys.executable, *DEMO, "--latency", "list"], text=True, capture_output=True, cwd=ROOT, timeout=60, check=True)
    assert "openai-gpt-3.5-turbo-0125" in done.stdout.split("\n")


def test_the_price_is_that_of_the_model_whose_times_are_replayed() -> None:
    assert (PRICES.prompt, PRICES.completion) == (0.5e-6, 1.5e-6)


def test_the_demos_answers_move_whatever_the_models_quality_unless_the_user_says_otherwise() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert _migration(parser.parse_args([])).min_quality == 0.0
    assert _migration(parser.parse_args(["--min-quality", "90%"])).min_quality == 0.9


def test_an_answer_that_does_not_move_says_why() -> None:
    moves, stays = argparse.Namespace(no_migration=False), argparse.Namespace(no_migration=True)
    idle = EndpointReport(name="device", kind="device", outcome="not started")
    late = EndpointReport(name="device", kind="device", outcome="lost", opened=0.7)
    assert _why_unmoved(make_report(), stays) == "--no-migration forbids it"
    assert "the device had the first word" in _why_unmoved(make_report(), moves)
    assert "before the device had started" in _why_unmoved(make_report(winner="server", endpoints=[idle]), moves)
    assert "too short" in _why_unmoved(make_report(winner="server", endpoints=[late]), moves)
