from __future__ import annotations

from pathlib import Path

import pytest

from bench.papers.disco_loading import drop_from_cache, loading_lines, loading_rows
from streamco.engines.llamacpp.bundled_model import packaged_model


@pytest.mark.long
@pytest.mark.model
def test_a_model_is_loaded_cold_and_cached_and_says_its_first_token() -> None:
    rows = loading_rows(models=[packaged_model()], runs=1)
    assert [row["is_cold"] for row in rows] == [True, False]
    assert all(len(row["load"]) == len(row["first_token"]) == 1 for row in rows)
    assert all(0 < row["load"][0] < 60 for row in rows)


def test_a_line_has_medians_and_the_extremes() -> None:
    row = {"model": "small", "bytes": 98_400_000, "is_cold": False, "load": [0.3, 0.2, 0.25], "first_token": [0.1, 0.15, 0.1]}
    assert [*loading_lines({"rows": [row]})][2] == "| small | 98 | cached | 0.25 (0.20 to 0.30) | 0.10 (0.10 to 0.15) |"


def test_dropping_a_file_from_the_cache_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    drop_from_cache(path)
    assert path.read_bytes() == b"content"
