"""A server for the tests of verifiers that speak streamco's protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamco.testing import ScriptedVerifier
from tests.endpoints.verifiers.support import scripted
from tests.support.leaks import holding_nothing_new


@pytest.fixture
async def server() -> AsyncIterator[ScriptedVerifier]:
    async with holding_nothing_new(), scripted() as server:
        yield server
