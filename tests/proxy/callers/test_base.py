"""A caller's name and limits, and money in whole nanodollars."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.proxy.callers.base import MAX_BUDGET, MAX_RATE, Caller, from_nanos, to_nanos


@pytest.mark.parametrize("name", ["", "a b", "a\r\nX-Header: 1", 'a"b', "ä", "a" * 65, "a/b", "\x1b[2J", "a\n"])
def test_a_name_that_a_header_a_log_or_a_label_could_not_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="callers: name: expected 1 to 64"):
        Caller(name=name)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"budget": -1}, "budget: expected 0 to"),
        ({"budget": to_nanos(MAX_BUDGET) + 1}, "budget: expected 0 to"),
        ({"rate": 0}, "rate: expected 1 to"),
        ({"rate": MAX_RATE + 1}, "rate: expected 1 to"),
        ({"sides": ()}, "sides: expected device, server or both, got none"),
        ({"sides": ("cloud",)}, "sides: expected device, server or both, got cloud"),
    ],
)
def test_a_limit_out_of_range_is_refused(limits: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Caller(name="alice", **limits)


@pytest.mark.parametrize(("usd", "nanos"), [(0, 0), (0.5, 500_000_000), (0.1, 100_000_000), (16e-6, 16_000), (1e-12, 1), (7.5e-8, 75)])
def test_dollars_are_rounded_up_to_whole_nanodollars(usd: float, nanos: int) -> None:
    assert to_nanos(usd) == nanos


@pytest.mark.parametrize("usd", [-0.01, math.inf, math.nan])
def test_what_is_no_amount_is_refused(usd: float) -> None:
    with pytest.raises(ConfigError, match="expected US dollars >= 0"):
        to_nanos(usd)


@given(st.integers(0, to_nanos(MAX_BUDGET)))
def test_an_amount_comes_back_as_it_was(nanos: int) -> None:
    assert to_nanos(from_nanos(nanos)) == pytest.approx(nanos, abs=1, rel=1e-15)
