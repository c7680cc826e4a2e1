"""New clients of a server that tells its first-token times, and their twins that aren't told."""

from __future__ import annotations

import pytest

from bench.counted.told import CLIENTS, SERVERS, compare, run_client
from streamco.sim.race.client import RaceOutcome
from streamco.sim.race.lengths import ALPACA, QuantileLengths


def first_answers(client: str, *, is_told: bool) -> list[RaceOutcome]:
    return run_client(CLIENTS[client], SERVERS["2 s, told 0.3 s"], QuantileLengths(*ALPACA), is_told=is_told, seed=7)


def test_a_client_is_told_after_its_first_answer() -> None:
    plans = [outcome.dispatched.plan.basis for outcome in first_answers("default", is_told=True)]
    assert "told" not in plans[0]
    assert plans[1].endswith(", 10 server times told by it")
    assert not any("told" in outcome.dispatched.plan.basis for outcome in first_answers("default", is_told=False))


def test_the_default_clients_first_ten_answers_are_the_same() -> None:
    told, other = ([outcome.ttft for outcome in first_answers("default", is_told=is_told)] for is_told in (True, False))
    assert told[:10] == other[:10]


def test_a_client_that_weighs_time_believes_what_it_is_told() -> None:
    told, other = (first_answers("Auto(time=1)", is_told=is_told) for is_told in (True, False))
    assert [outcome.draw for outcome in told] == [outcome.draw for outcome in other], "twins get the same requests"
    assert [outcome.ttft for outcome in told] != [outcome.ttft for outcome in other]


def test_the_interval_is_that_of_the_twins_differences() -> None:
    mean, low, high = compare([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 2.0, 2.0])
    assert mean == pytest.approx(1.5)
    assert low + high == pytest.approx(3.0)
    assert high - mean == pytest.approx(1.96 * (1 / 3) ** 0.5 / 2, abs=1e-4)
