"""A score that is fitted on hidden states."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.papers.gate.hidden import hidden_table, read_states
from bench.papers.gate.recording import read_answers
from bench.papers.gate.routing import gains_of


def test_states_that_tell_the_gain_are_ahead_of_the_perplexity(tmp_path: Path) -> None:
    answers, file = read_answers()[::4], tmp_path / "states.npy"
    rng = np.random.default_rng(1)
    np.save(file, np.column_stack([gains_of(answers), rng.normal(size=(len(answers), 3))]).astype(np.float32))
    rows = {line.split("|")[1].strip(): line for line in hidden_table(answers, read_states(answers, file))}
    assert float(rows["hidden state"].split("|")[2].split()[0]) > 0.8
    assert "hidden state, fitted on other tasks" in rows
