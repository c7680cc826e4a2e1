"""A callers' file without callers, and a proxy with figures that are complete as soon as an answer is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proxy.callers.support import new_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = new_store(tmp_path / "callers.sqlite")
    store.close()
    return store.path


@pytest.fixture(autouse=True)
def patient_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let answers wait for their settling on slow machines too."""
    monkeypatch.setattr("streamco.proxy.callers.access._SETTLING", 60.0)
