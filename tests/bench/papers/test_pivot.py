"""Tables from what a simulation left."""

from __future__ import annotations

from typing import Any

import pytest

from bench.papers.pivot import pivot


def scenario(routing: str, drafters: str, throughput: float) -> dict[str, Any]:
    """One run."""
    return {"point": {"drafters": drafters, "policy.routing": routing}, "system": {"throughput": throughput}}


FOUND = [scenario("random", "400", 1.0), scenario("random", "400", 2.0), scenario("jsq", "400", 3.0), scenario("jsq", "800", 12345.0)]


def test_columns_are_one_settings_values_and_lines_the_others() -> None:
    head, lines = pivot(FOUND, "policy.routing", "throughput")
    assert head == ["drafters", "random", "jsq"]
    assert lines == [["400", "1.5", "3"], ["800", "", "12,345"]]


@pytest.mark.parametrize(("column", "figure"), [("routing", "throughput"), ("policy.routing", "speed")])
def test_an_unknown_name_is_an_error(column: str, figure: str) -> None:
    with pytest.raises(KeyError):
        pivot(FOUND, column, figure)
