"""What a client owes, by the rows of its answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from bench.counted.arrivals import BUDGET, owed
from streamco.sim.experiment.scenario import Outcome


def outcome(*rows: tuple[int, bool]) -> Outcome:
    return cast("Outcome", SimpleNamespace(requests=[SimpleNamespace(prompt_tokens=tokens, is_spent=spent) for tokens, spent in rows]))


def test_a_first_answer_by_the_server_is_no_debt() -> None:
    assert owed(outcome((100, True), (100, False), (100, False), (100, False))) == 0.0


def test_what_the_server_reads_beyond_the_budget_and_one_mean_prompt_is_owed_at_most_once() -> None:
    found = owed(outcome((100, True), (100, True), (100, True), *[(100, False)] * 50))
    assert found == pytest.approx(300 - (BUDGET + 0.01) * 300 - 100)
