"""Each attack on a proxy with callers, in short: none does harm."""

from __future__ import annotations

import pytest

from tests.attack.attack import table
from tests.attack.campaign import CAMPAIGNS


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_no_attack_on_a_proxy_with_callers_does_harm() -> None:
    outcomes = [outcome async for outcome in CAMPAIGNS["callers"](0)]
    assert all(outcome.is_harmless for outcome in outcomes), "\n" + table(outcomes)
