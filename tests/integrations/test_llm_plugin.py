"""How ``llm`` finds the model streamco, and what happens in one that is too old for it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

llm = pytest.importorskip("llm")

from streamco.integrations import llm_plugin  # noqa: E402

pytestmark = pytest.mark.peer

ROOT = Path(__file__).parents[2]


def test_llm_finds_the_model_by_the_entry_point_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["llm"] == {"streamco": llm_plugin.__name__}
    llm.load_plugins()
    if not llm.pm.is_registered(llm_plugin):
        llm.pm.register(llm_plugin, name="streamco")
    assert "streamco: streamco" in [str(model) for model in llm.get_models()]
    assert "streamco: streamco" in [str(model) for model in llm.get_async_models()]


def test_an_older_llm_goes_on_without_the_model(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "llm.parts", None)
    registered: list[Any] = []
    llm_plugin.register_models(lambda *models: registered.append(models))
    assert registered == []
    assert "the model streamco needs llm 0.32 or newer, got " in caplog.text
