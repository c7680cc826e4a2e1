"""What every endpoint has: prices that can be."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.endpoints.base import TokenPrices
from streamco.errors import ConfigError
from streamco.proxy.callers.base import to_nanos

MOST_TOKENS = 1 << 24  # that a usage may claim


@pytest.mark.parametrize("name", ["prompt", "completion", "cached_prompt"])
@pytest.mark.parametrize("price", [math.nan, math.inf, -math.inf, -1e-9, -1, 100.1, 10**400, "0.5", True, 1j])
def test_a_price_that_cannot_be_is_an_error_that_names_it(name: str, price: Any) -> None:
    with pytest.raises(ConfigError, match=f"prices: {name}: expected 0 to 100 US dollars a token, got"):
        TokenPrices(**{name: price})


@given(st.floats(0, 100))
def test_any_other_price_is_one_that_accounts_can_keep(price: float) -> None:
    prices = TokenPrices(prompt=price, completion=price, cached_prompt=price)
    assert prices.prompt is not None
    assert 0 <= to_nanos(2 * MOST_TOKENS * prices.prompt) < 1 << 63


def test_a_price_may_be_unknown() -> None:
    assert TokenPrices() == TokenPrices(prompt=None, completion=None, cached_prompt=None)
