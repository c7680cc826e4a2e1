"""The client must not block its caller's event loop: a call that would block is a failure of its test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from blockbuster import blockbuster_ctx

from tests.client.speculating import World


@pytest.fixture(autouse=True)
def _no_blocked_loop() -> Iterator[None]:
    # The virtual clock's loop runs whole tests, their own blocking calls too.
    with blockbuster_ctx("streamco", excluded_modules=["streamco.testing", "streamco.cli"]):
        yield


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A target and a draft model that agree now and then."""
    made = World()
    yield made
    made.close()
