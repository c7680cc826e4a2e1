"""What every test gets: a Hypothesis profile, Ctrl-C as a terminal gives it, and what ``long`` means."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import PROFILE

_CHECKS = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, suppress_health_check=_CHECKS, print_blob=True, max_examples=30)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(PROFILE)

# A shell starts a background job with SIGINT ignored, and children inherit that: the tests of Ctrl-C need the usual handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before ``-m`` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the first case of a test that is ``long("after the first case")`` among those that aren't long."""
    seen: set[str] = set()
    for item in items:
        mark = item.get_closest_marker("long")
        name = item.nodeid.partition("[")[0]
        if mark is not None and mark.args and name not in seen:
            seen.add(name)
            item.own_markers = [each for each in item.own_markers if each.name != "long"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what is there for all tests: neither while they are collected nor, because it is frozen, in the tests.

    Many tests begin a search for garbage, which took half a second each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
