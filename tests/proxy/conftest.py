"""Whatever the proxy does while it serves, it may not block its event loop: a call that would is a failure of the test that made it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture
def no_blocked_loop() -> Iterator[None]:
    """For tests of the serving itself; building a client reads files, and may, before anybody is served."""
    with blockbuster_ctx("streamco", excluded_modules=["streamco.testing", "streamco.cli"]):
        yield
