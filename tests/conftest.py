"""What every test gets: a Hypothesis profile, and a group for parallel runs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import PROFILE

_CHECKS = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, suppress_health_check=_CHECKS, print_blob=True, max_examples=30)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(PROFILE)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep the tests of a file on one worker, because they share fixtures, and all tests with a real model, because engines share cores."""
    group = "models" if item.get_closest_marker("model") else item.nodeid.split("::")[0]
    item.add_marker(pytest.mark.xdist_group(group))
