"""Which answers are left to the server whole."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.sim.fleet.answer_routing import AnswerRouting, perplexity


def test_perplexity_is_the_inverse_of_the_geometric_mean() -> None:
    assert perplexity([0.5, 0.125]) == pytest.approx(4.0)
    assert perplexity([1.0] * 5) == pytest.approx(1.0)
    assert perplexity([]) == 1.0
    assert perplexity([0.0]) == pytest.approx(1e4)


def test_the_answers_that_perplex_most_go_to_the_server() -> None:
    rng = Random(1)
    known = [1.0 + rng.random() for _ in range(200)]
    routing = AnswerRouting(0.25, known)
    drawn = [1.0 + rng.random() for _ in range(400)]
    sent = [value for value in drawn if routing.choose(value, rng)]
    assert len(sent) / len(drawn) == pytest.approx(0.25, abs=0.02)
    assert min(sent) > 1.5
    assert (routing.answers, routing.sent) == (400, len(sent))


@given(budget=st.floats(0.0, 1.0), values=st.lists(st.floats(1.0, 50.0), min_size=60, max_size=120), seed=st.integers(0, 99))
def test_the_share_stays_near_the_budget_whatever_comes(budget: float, values: list[float], seed: int) -> None:
    routing, rng = AnswerRouting(budget, [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0]), Random(seed)
    for value in values:
        routing.choose(value, rng)
    assert abs(routing.sent - budget * routing.answers) <= 17


@pytest.mark.parametrize(("budget", "sends"), [(0.0, 0), (1.0, 10)])
def test_at_the_ends_nothing_is_asked(budget: float, sends: int) -> None:
    routing = AnswerRouting(budget)
    assert sum(routing.choose(float(value), Random(1)) for value in range(1, 11)) == sends


def test_before_enough_answers_are_known_chance_decides() -> None:
    found = [AnswerRouting(0.5).choose(2.0, Random(seed)) for seed in range(200)]
    assert sum(found) == pytest.approx(100, abs=30)


def test_a_share_outside_0_and_1_is_refused() -> None:
    with pytest.raises(ConfigError, match="budget"):
        AnswerRouting(1.5)
