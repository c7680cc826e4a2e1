"""Rows by format: what an engine measures when it loads a file for the first time."""

from __future__ import annotations

import os

import pytest

from bench.row_formats import ROWS, measured, rows_of
from streamco.engines.llamacpp.bundled_model import packaged_model


@pytest.mark.model
def test_rows_are_measured_apart_from_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "kept")
    costs = measured(packaged_model())
    assert os.environ["XDG_CACHE_HOME"] == "kept"
    assert all(costs[rows] > 0.0 for rows in ROWS)


@pytest.mark.model
def test_there_is_a_row_for_each_number_and_format() -> None:
    rows = [*rows_of({"Q4_1": packaged_model()}, 1)]
    assert [(row.case, row.contender) for row in rows] == [(f"{count} rows", "Q4_1") for count in ROWS]
