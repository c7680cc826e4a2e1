"""The site has every page and every public name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.test_documented_imports import PUBLIC

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_every_page_is_in_the_index() -> None:
    listed = re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(name for page in DOCS.rglob("*.md") if (name := str(page.relative_to(DOCS).with_suffix(""))) != "index")


def page_of(module: str) -> str:
    name = module.removeprefix("streamco").removeprefix(".").partition(".")[0]
    return f"api/{name}.md" if name else "api.md"


@pytest.mark.parametrize("module", [name for name in PUBLIC if name != "streamco.testing"])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    found = re.findall(rf":: {re.escape(module)}\.(\w+)$", (DOCS / page_of(module)).read_text(encoding="utf-8"), flags=re.MULTILINE)
    home = import_module(module)
    shown = [name for name in home.__all__ if name != "__version__" and (module != "streamco.errors" or is_error(getattr(home, name)))]
    assert sorted(found) == sorted(shown)


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)
