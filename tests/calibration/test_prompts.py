"""Prompts for a calibration: the packaged ones, and those of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamco.calibration.prompts import PROMPTS, read_prompts
from streamco.errors import ConfigError


def test_the_packaged_prompts_are_different_and_one_line_each() -> None:
    assert len(set(PROMPTS)) == len(PROMPTS) > 10
    assert all(prompt == prompt.strip() and "\n" not in prompt for prompt in PROMPTS)


def test_a_file_has_a_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("  Why?  \n\n\nÜber was?\n", encoding="utf-8")
    assert read_prompts(file) == ["Why?", "Über was?"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b" \n\n", "got 0 in 3"), (b"\xff\xfe", "expected a text file"), (b"x\n" * (1 << 19) + b"x", "at most 1048576 bytes")],
    ids=["empty", "no text", "too large"],
)
def test_what_holds_no_prompts_is_refused(tmp_path: Path, data: bytes, expected: str) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=expected):
        read_prompts(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.txt: expected a text file of prompts"):
        read_prompts(tmp_path / "nowhere.txt")
