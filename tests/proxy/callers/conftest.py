"""A callers' file without callers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proxy.callers.support import new_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = new_store(tmp_path / "callers.sqlite")
    store.close()
    return store.path
