"""The site has every page and every public name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import streamco
from tests.test_documented_imports import SUBMODULES

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_every_page_is_in_the_index() -> None:
    listed = re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(name for page in DOCS.rglob("*.md") if (name := str(page.relative_to(DOCS).with_suffix(""))) != "index")


def test_every_public_name_is_in_the_reference() -> None:
    found = re.findall(r":: streamco\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(found) == sorted(name for name in streamco.__all__ if name != "__version__")


@pytest.mark.parametrize("module", [name for name in SUBMODULES if name.startswith("streamco.integrations.")])
def test_every_public_name_of_an_adapter_is_in_the_reference(module: str) -> None:
    found = re.findall(rf":: {re.escape(module)}\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(found) == sorted(import_module(module).__all__)
