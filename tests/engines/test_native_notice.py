"""The warning that Python twins run instead of the compiled leaves."""

from __future__ import annotations

import logging

import pytest

from streamco import Client, _native
from streamco.engines import native_notice
from streamco.testing.endpoint import ScriptedEndpoint


@pytest.fixture(autouse=True)
def fresh() -> None:
    native_notice.warn_if_pure.cache_clear()


def make_pure(monkeypatch: pytest.MonkeyPatch, *, is_wanted: bool = False) -> None:
    monkeypatch.setattr(_native, "HAS_NATIVE", False)
    monkeypatch.setattr(_native, "IS_PURE_WANTED", is_wanted)
    monkeypatch.setattr(_native, "WHY_PURE", "No module named 'streamco._native.ring'")


async def test_starting_clients_warns_once_that_the_extensions_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_pure(monkeypatch)
    for _ in range(2):
        async with Client(server=ScriptedEndpoint("server", [(0.0, "a")], kind="server")):
            pass
    records = [record for record in caplog.records if "compiled extensions" in record.getMessage()]
    assert [(record.name, record.levelno) for record in records] == [("streamco", logging.WARNING)]
    assert "slower" in records[0].getMessage()
    assert "No module named 'streamco._native.ring'" in records[0].getMessage()


def test_nothing_is_said_if_python_was_asked_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    make_pure(monkeypatch, is_wanted=True)
    native_notice.warn_if_pure()
    assert not caplog.records


def test_the_state_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pure(monkeypatch)
    assert native_notice.native_state() == "pure Python: No module named 'streamco._native.ring'"
    monkeypatch.setattr(_native, "HAS_NATIVE", True)
    assert native_notice.native_state() == "compiled extensions"
