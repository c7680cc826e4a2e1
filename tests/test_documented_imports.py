"""Users import from ``streamco``, ``streamco.testing`` and the submodules listed here: pages and examples show nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import streamco
import streamco.testing

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

SUBMODULES = {
    "streamco.cli.server_process": "docs/speculation.md",
    "streamco.core.race.learner": "docs/dispatch.md",
    "streamco.engines.llamacpp.gguf": "docs/speculation.md",
    "streamco.engines.llamacpp.model_parts": "docs/split.md",
    "streamco.engines.split.layers": "docs/research/split.md",
    "streamco.integrations.ai_sdk": "docs/integrations.md",
    "streamco.integrations.langchain": "docs/integrations.md",
    "streamco.integrations.pydantic_ai": "docs/integrations.md",
    "streamco.policies.budget_control": "docs/dispatch.md",
    "streamco.proxy.app": "docs/proxy.md",
    "streamco.proxy.callers.store": "docs/proxy.md",
    "streamco.server.app": "docs/serve.md",
    "streamco.sim.hardware.forward_pass_times": "docs/hardware.md",
    "streamco.wire.openai.msgpack_body": "docs/serve.md",
    "streamco.wire.token_frames": "docs/serve.md",
}
"""Public submodules, each with the page that explains it."""


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
    if module == "streamco":
        return name in streamco.__all__
    if module == "streamco.testing":
        return name in streamco.testing.__all__
    return module in SUBMODULES and name in import_module(module).__all__


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: path.name)
def test_what_pages_and_examples_import_is_public(path: Path) -> None:
    shown = [(module, name) for source in sources(path) for module, name in imports(source)]
    assert not [f"{module}.{name}" for module, name in shown if not is_public(module, name)]


def test_every_public_submodule_is_explained_by_its_page() -> None:
    for module, page in SUBMODULES.items():
        assert module in (ROOT / page).read_text(), f"{page}: expected {module}"


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
