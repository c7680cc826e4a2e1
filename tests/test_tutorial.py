"""The tutorial's blocks of Python run as they stand, one after the other, and print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
SHOWN = (
    r"^answer\n  answered by +device$",
    r"^device \[\('device', 'won'\), \('server', 'lost'\)\]$",
    r"^server .*\w",
    r"^The connection is cut here\.\ntwo took over from one after token \d+$",
    r"^\d+\.\d+$",  # tokens a second
)


@pytest.mark.model
def test_every_block_of_the_tutorial_runs_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "DEEPSEEK_", "MODEL"))}
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        cwd=tmp_path,
        env=kept | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    for pattern in SHOWN:
        assert re.search(pattern, run.stdout, flags=re.MULTILINE), f"{pattern} in:\n{run.stdout}"
