"""Inputs of the window's network: the table, and where the worlds are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.papers import window_inputs
from bench.papers.window_inputs import input_lines, make_worlds


def test_a_line_has_the_number_of_inputs_and_a_spread_where_networks_differ() -> None:
    row = {"inputs": "the paper's five", "loss": "l1", "error": 1.94, "wrong": 0.251, "regret": 0.1061, "without_fused": 0.061}
    rows = [row | {"regret_spread": 0.0019, "without_fused_spread": 0.004}, row | {"loss": "regret", "inputs": "these without the RTT"}]
    rows[1] |= {"regret_spread": 0.0, "without_fused_spread": 0.0}
    lines = [*input_lines({"rows": rows})]
    assert lines[2] == "| the paper's five: 5 | distance (the paper's) | 1.9 | 25 % | 10.6 % | 6.1 % ± 0.4 |"
    assert lines[3] == "| these without the RTT: 7 | cost | 1.9 | 25 % | 10.6 % | 6.1 % |"


@pytest.mark.long
def test_worlds_that_are_there_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_inputs, "DATA", tmp_path)
    monkeypatch.setattr(window_inputs, "WORLDS", 2)
    path = make_worlds(1, every=2)
    made = path.read_text()
    assert len(made.splitlines()) == 1
    assert make_worlds(1, every=2) == path
    assert path.read_text() == made
    assert make_worlds(1).read_text().startswith(made)
    assert len(path.read_text().splitlines()) == 2
