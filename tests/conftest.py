"""What every test gets: a Hypothesis profile."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.support.examples import PROFILE

_CHECKS = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, suppress_health_check=_CHECKS, print_blob=True, max_examples=30)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(PROFILE)
