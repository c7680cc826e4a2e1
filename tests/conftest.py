"""What every test gets: a Hypothesis profile, and Ctrl-C as a terminal gives it."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

from tests.support.examples import PROFILE

_CHECKS = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, suppress_health_check=_CHECKS, print_blob=True, max_examples=30)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(PROFILE)

# A shell starts a background job with SIGINT ignored, and children inherit that: the tests of Ctrl-C need the usual handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
