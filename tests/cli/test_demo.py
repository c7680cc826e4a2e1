from __future__ import annotations

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

from streamco.cli.demo import PRICES, _explain_drafts
from streamco.cli.demo_page import PROMPTS
from streamco.cli.main import main
from streamco.proxy.page.routes import KILL_PATH
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
    assert report["dispatch"]["policy"] == "server-constrained"
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
    lines = _explain_drafts(report, FIGURES)
    assert lines[0] == "tokens: 36 accepted, 8 corrected, 4 after drafts accepted whole, 30 not verified"
    assert lines[1].endswith("in 50% of them the next draft was there with the verdict")
    assert lines[2] == "the server's own answer: no; it computed 60 tokens for 132 of the answer"


def sides(address: str, prompt: str, *, kill_after: int | None = None) -> list[str]:
    """Ask as the page does, and return which side wrote each piece; the server is killed after so many of them."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "max_tokens": 60,
        "stream_options": {"include_origin": True},
    }
    headers = {"Content-Type": "application/json", "Origin": address, "x-streamco-reader": "person"}
    request = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(body).encode(), headers)
    written: list[str] = []
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            if line.startswith(b"data: {") and (endpoint := json.loads(line[6:]).get("streamco", {}).get("endpoint")):
                written.append(endpoint)
                if len(written) == kill_after:
                    urllib.request.urlopen(urllib.request.Request(f"{address}{KILL_PATH}", b""), timeout=60).close()
    return written


@pytest.mark.long
@pytest.mark.model
def test_the_page_serves_both_sides_until_ctrl_c(mark: str) -> None:
    with subprocess.Popen(
        [sys.executable, *DEMO, "--page"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("listening on ").strip()
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(f"{address}/page.js", timeout=30) as response:
                assert response.status == 200
            with urllib.request.urlopen(f"{address}/page.json", timeout=30) as response:
                assert json.load(response) == {"prompts": list(PROMPTS), "kills_server": True}
            written = sides(address, PROMPTS[0], kill_after=10)
            assert set(written[:10]) == {"server"}
            assert written[-1] == "device"
            assert set(sides(address, PROMPTS[0])) == {"server"}, "it runs again"
            assert sides(address, "What is the capital of France?")
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()  # a test that fails must not wait for it
    assert (process.returncode, rest) == (0, "")
    assert "open this address in a browser" in errors
    assert servers(mark) == []


@pytest.mark.parametrize(
    "words", [("--split",), ("--prompt", "Hi"), ("--json",), ("--system", "x"), ("--max-tokens", "3"), ("--temperature", "0")]
)
def test_what_has_no_effect_on_a_page_is_refused_beside_it(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--page", *words]) == 2
    assert f"{words[0]}: can't be combined with --page, got" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--port", "1"), ("--no-open",)])
def test_options_of_the_page_are_refused_without_it(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *words]) == 2
    assert f"{words[0]}: only valid with --page" in capsys.readouterr().err


@pytest.mark.model
def test_without_a_prompt_the_scenes_are_shown_and_summed_up(mark: str) -> None:
    done = subprocess.run(
        [sys.executable, *DEMO], text=True, capture_output=True, cwd=ROOT, timeout=150, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    scenes = (
        "server  SmolLM2-135M",
        "device  the same model",
        "1. The same prompt",
        "2. The server is killed",
        "3. A budget",
        "What you saw",
    )
    places = [done.stdout.index(words) for words in scenes]
    assert places == sorted(places)
    assert done.stdout.count("streamco: first word after") == 1
    assert re.search(r"first word +[0-9.]+ s with streamco, [0-9.]+ s from the server alone", done.stdout)
    assert re.search(r"failures +1 survived", done.stdout)
    assert re.search(r"money +\$[0-9.]+ for 8 answers, \$[0-9.]+ from the server alone, [0-9]+% less", done.stdout)
    assert "\x1b" not in done.stdout
    assert servers(mark) == []


@pytest.mark.long
@pytest.mark.pair
def test_two_models_are_named_and_the_gate_and_drafts_are_shown_too() -> None:
    words = ["--device", str(pair_model("0.5B")), "--server", str(pair_model("1.5B"))]
    done = subprocess.run(
        [sys.executable, *DEMO, *words], text=True, capture_output=True, cwd=ROOT, timeout=170, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert "device  Qwen2.5-Coder-0.5B-Instruct.Q4_K_M in this process" in done.stdout
    assert "server  Qwen2.5-Coder-1.5B-Instruct.Q4_K_M behind HTTP" in done.stdout
    assert "4. A quality gate" in done.stdout
    assert "the device was " in done.stdout
    assert re.search(r"drafts +whole answer after [0-9.]+ s, [0-9.]+ s from the server alone", done.stdout)


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
def test_on_a_terminal_answers_stand_side_by_side_and_the_chat_opens_afterwards() -> None:
    words = (*DEMO, "--max-tokens", "60")  # the small model may not find an end
    with terminal(*words, width=120, height=40, env={"XDG_STATE_HOME": os.environ.get("TMPDIR", "/tmp")}) as driven:
        driven.expect("1. The same prompt", limit=60)
        driven.expect("alone: first word after", limit=60)
        driven.expect("2. The server is killed", limit=60)
        driven.expect("Left, the answer ends after", limit=60)
        driven.expect("What you saw", limit=60)
        driven.expect("now you: ask anything", limit=60)
        driven.expect("Ctrl-D quits")
        driven.type("Hello!\r")
        driven.expect("first token", limit=60)
        driven.expect("answered · ", limit=60)
        driven.type("\x04")
        assert driven.wait() == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--json",), 2, "--json: only valid with --prompt TEXT"),
        (("--latency", "nosuch", "--prompt", "x"), 2, "expected a JSON file or one of"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(words: tuple[str, ...], code: int, message: str) -> None:
    done = subprocess.run([sys.executable, *DEMO, *words], text=True, capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_latency_profiles_are_listed() -> None:
    done = subprocess.run([sys.executable, *DEMO, "--latency", "list"], text=True, capture_output=True, cwd=ROOT, timeout=60, check=True)
    assert "openai-gpt-3.5-turbo-0125" in done.stdout.split("\n")


def test_the_price_is_that_of_the_model_whose_times_are_replayed() -> None:
    assert (PRICES.prompt, PRICES.completion) == (0.5e-6, 1.5e-6)
