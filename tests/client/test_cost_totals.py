"""Costs add up only if all are known; an answer ends in one of three manners."""

from __future__ import annotations

import pytest

from streamco.client.cost_totals import answer_ending, total_cost
from streamco.errors import EndpointError


@pytest.mark.parametrize(("costs", "total"), [([], 0.0), ([0.5, 0.25], 0.75), ([0.5, None], None), ([None, 0.5], None)])
def test_a_total_is_known_if_each_part_is(costs: list[float | None], total: float | None) -> None:
    assert total_cost(costs) == total


@pytest.mark.parametrize(
    ("was_left", "error", "finished", "ending"),
    [
        (False, None, None, None),
        (False, None, 0.0, "complete"),
        (False, EndpointError("gone"), 1.0, "failed"),
        (True, EndpointError("gone"), 1.0, "left"),
    ],
)
def test_leaving_comes_before_an_error_and_an_error_before_the_end(
    was_left: bool, error: Exception | None, finished: float | None, ending: str | None
) -> None:
    assert answer_ending(was_left=was_left, error=error, finished=finished) == ending
