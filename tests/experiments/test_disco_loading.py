from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from experiments.disco_loading import drop_from_cache, show_loading


@pytest.mark.model
def test_a_model_is_loaded_cold_and_cached_and_says_its_first_token(capsys: pytest.CaptureFixture[str]) -> None:
    show_loading(argparse.Namespace(quick=True))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| SmolLM2")]
    assert [row.split(" | ")[2] for row in rows] == ["cold", "cached"]


def test_dropping_a_file_from_the_cache_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    drop_from_cache(path)
    assert path.read_bytes() == b"content"
