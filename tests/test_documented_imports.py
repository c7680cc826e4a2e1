"""Users import from the modules listed here: pages and examples show nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESEARCH = ROOT / "docs" / "research"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

WITH_SOURCES = (
    "design.md",
    "verifier-protocol.md",
    "split-protocol.md",
    "simulate.md",
    "workloads.md",
    "benchmarks.md",
)
"""Pages that name modules to say where something is: the design, specifications, settings of the simulator."""

PUBLIC = [
    "streamco",
    "streamco.calibration",
    "streamco.engines",
    "streamco.errors",
    "streamco.integrations.ai_sdk",
    "streamco.integrations.langchain",
    "streamco.integrations.pydantic_ai",
    "streamco.observers",
    "streamco.proxy",
    "streamco.reports",
    "streamco.server",
    "streamco.testing",
    "streamco.types",
    "streamco.verifiers",
]
"""Modules whose names are public; each but ``streamco.testing``, which has a page of its own, has a page of the reference."""

LAB = {
    "streamco.engines.split.layers": "docs/research/split.md",
    "streamco.sim.hardware.forward_pass_times": "docs/research/hardware.md",
}
"""Modules that programs of the research pages import, each with its page."""


def sources(path: Path) -> list[str]:
    """Return an example's source, or the Python blocks of a page."""
    text = path.read_text()
    return [text] if path.suffix == ".py" else re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import from this package; the blocks of pages needn't parse."""
    for module, listed in re.findall(r"^\s*from (streamco[\w.]*) import (\([^)]*\)|[^#\n]*)", source, flags=re.MULTILINE):
        statement = ast.parse(f"from {module} import {listed}").body[0]
        assert isinstance(statement, ast.ImportFrom)
        yield from ((module, alias.name) for alias in statement.names)
    for module in re.findall(r"^\s*import (streamco\.[\w.]+)", source, flags=re.MULTILINE):
        yield module, ""


def is_public(module: str, name: str) -> bool:
    return module in (*PUBLIC, *LAB) and (not name or name in import_module(module).__all__)


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: path.name)
def test_what_pages_and_examples_import_is_public(path: Path) -> None:
    shown = [(module, name) for source in sources(path) for module, name in imports(source)]
    assert not [f"{module}.{name}" for module, name in shown if not is_public(module, name)]


def test_pages_for_users_name_only_public_modules() -> None:
    pages = [path for path in PAGES if path.parent != RESEARCH and path.name not in WITH_SOURCES]
    found = {
        path.name: [name for name in re.findall(r"`(streamco(?:\.\w+)+)", path.read_text()) if not is_home_public(name)] for path in pages
    }
    assert {page: names for page, names in found.items() if names} == {}


def is_home_public(name: str) -> bool:
    """Return True for a public module, a name in one, or an attribute of such a name."""
    parts = name.split(".")
    homes = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    home = [each for each in homes if each in (*PUBLIC, *LAB)][-1]
    rest = name.removeprefix(home).split(".")[1:]
    return not rest or rest[0] in import_module(home).__all__ or any(each.startswith(f"{name}.") for each in PUBLIC)


@pytest.mark.parametrize(
    "source",
    ["from streamco.core.race.machine import RaceMachine\n", "from streamco import Clinet\n", "import streamco.engines.base\n"],
)
def test_an_import_that_is_not_public_is_found(source: str) -> None:
    assert [found for found in imports(source) if not is_public(*found)]


def test_an_import_over_several_lines_is_read() -> None:
    assert list(imports("from streamco.testing import (\n    Cut,\n    Faults,\n)\n")) == [
        ("streamco.testing", "Cut"),
        ("streamco.testing", "Faults"),
    ]
