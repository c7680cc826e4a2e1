"""Every example runs as it stands, without a network, and prints what it says it does."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

PRINTS = {
    "ai_sdk_chat": [r'^data: {"type":"start"}$', r'^data: {"type":"text-delta","id":"text-1","delta":"\w'],
    "battery": [
        r"^(no battery in use|battery at \d+ %): a million GFLOPs cost \$[0-5]\.\d\d$",
        r"^the (device|server) answered, and the budget limits the (device|server)$",
    ],
    "callers": [r"^alice: server won, budget not used up$", r"^bob: device won, budget used up$"],
    "errors": [
        r"^device: won $",
        r"^127\.0\.0\.1:9/gpt-4o-mini: failed .*expected a connection to 127\.0\.0\.1:9",
        r"^EndpointConnectError: .*; text so far: ''$",
    ],
    "fastapi_chat": [r'^data: ".*"$'],
    "flask_chat": [r'^data: ".*"$', r"^(stop|length)$"],
    "failover": [r"^The connection is cut here\.$", r"^second took over from first after token \d+: EndpointProtocolError$"],
    "langchain_chain": [r"\w{3}", r"^device won, [1-9]\d* tokens$"],
    "lookup": [
        r"def area\(",
        r"^[1-9]\d* tokens were looked up, \d+ the server's in [1-9]\d* rounds$",
    ],
    "many": [r"^What is rain\? \w", r"^What is snow\? \w", r"^What is wind\? \w"],
    "migration": [
        r"^server: The sea \w",
        r"^device:.*\w",  # a part may begin in the middle of a word
        r"^device went on after token \d+, \d+ tokens ahead of the reader: cheaper$",
        r"^saved \$0\.00\d{3}, paid \$0\.00\d{3}$",
        r"^\d+ of (5\d|60) tokens late$",
    ],
    "paced": [r"^median gap 0\.\d{3} s, \d+ tokens late, score [01]\.\d\d$"],
    "proxy_client": [r"^device won$"],
    "pydantic_agent": [r"^name='(ant|cat|hen)' legs=[246]$", r"^device won, [1-9]\d* tokens$"],
    "quickstart": [r"^device won, first token after \d+\.\d\d s, \d+ tokens$"],
    "reasoning": [
        r"^\[reasoning\] 9\.11 has 11 hundredths, 9\.8 has 80\.$",
        r"^\[content\] 9\.8 is larger\.$",
        r"^21 tokens, \$0\.000013$",
    ],
    "speculate": [
        r"\b(sky|light)\b",
        r"^[1-9]\d* tokens the device's, \d+ the server's, 0 by the server alone$",  # the first run drafts
        r"^[1-9]\d* rounds, [1-9]\d* bytes up, [1-9]\d*% accepted, exact: True$",
    ],
    "split": [
        r"^1\. The \w",
        r"^[1-9]\d* states up in [1-9]\d+ bytes, [1-9]\d+ states down in [1-9]\d+ bytes$",
    ],
    "speech_bot": [r"^ *\d+\.\d\d s: \w", r"^\d+ tokens$"],
    "two_servers": [r"^ Here at once\.$", r"^two won: one first, two after half a second$"],
    "weights": [r"^money counts: 4 by the device$", r"^quality counts: 4 by the server$", r"^  server <  .* 0\.70 "],
    "web_chat": [r'^data: "\w+"$', r"^1 left: \d{1,2} of 500 tokens were made$"],
}


FIRST = ("errors", "failover", "quickstart", "two_servers")


def run(example: Path) -> str:
    """Its output; no key and no endpoint of whoever runs the tests reaches it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "DEEPSEEK_", "MODEL"))}
    environment["PYTHONPATH"] = str(ROOT)
    finished = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::RuntimeWarning", str(example)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    for trouble in ("Traceback", "never awaited", "Unclosed", "was destroyed but it is pending"):
        assert trouble not in finished.stderr, finished.stderr
    return finished.stdout


def case_of(example: Path) -> ParameterSet:
    """Return the case that runs an example. ``make test`` runs those of the first pages."""
    return pytest.param(example, id=example.stem, marks=() if example.stem in FIRST else pytest.mark.long)


def test_every_example_is_checked() -> None:
    assert {example.stem for example in EXAMPLES} == set(PRINTS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_shows(example: Path) -> None:
    source = example.read_text()
    assert len(source.splitlines()) <= 40
    assert ast.get_docstring(ast.parse(source))
    assert '__name__ == "__main__"' in source


@pytest.mark.model
@pytest.mark.timeout(600)  # that of the split model takes a minute of processor time
@pytest.mark.parametrize("example", [case_of(path) for path in EXAMPLES])
def test_an_example_runs_and_prints_what_it_should(example: Path) -> None:
    output = run(example)
    for pattern in PRINTS[example.stem]:
        assert re.search(pattern, output, re.MULTILINE), f"expected {pattern!r} in {output!r}"
