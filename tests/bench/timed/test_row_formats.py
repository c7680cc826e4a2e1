"""Rows by format: what an engine measures when it loads a file for the first time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.timed.row_formats import ROWS, measured, rows_of
from streamco.engines.llamacpp.bundled_model import packaged_model


@pytest.mark.long
@pytest.mark.model
def test_rows_are_measured_again_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packaged_model()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs = measured(model)
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path)
    assert not [*tmp_path.rglob("*")], "another folder was used"
    assert all(costs[rows] > 0.0 for rows in ROWS)


@pytest.mark.long
@pytest.mark.model
def test_there_is_a_row_for_each_number_and_format() -> None:
    rows = [*rows_of({"Q4_1": packaged_model()}, 1)]
    assert [(row.case, row.contender) for row in rows] == [(f"{count} rows", "Q4_1") for count in ROWS]
