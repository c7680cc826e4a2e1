"""The site has every page and every public name."""

from __future__ import annotations

import re
from pathlib import Path

import streamco

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_every_page_is_in_the_index() -> None:
    listed = re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(name for page in DOCS.rglob("*.md") if (name := str(page.relative_to(DOCS).with_suffix(""))) != "index")


def test_every_public_name_is_in_the_reference() -> None:
    found = re.findall(r":: streamco\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(found) == sorted(name for name in streamco.__all__ if name != "__version__")
