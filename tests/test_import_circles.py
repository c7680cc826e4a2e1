"""Circles of imports: no module of the package needs another one that needs it, directly or through others.

Imports for types alone and imports inside of functions count, too: they make a circle work, but you still can't read the one file before
the other.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

GATHERING = frozenset({"streamco", "streamco.calibration", "streamco.engines", "streamco.proxy", "streamco.server"})
"""Packages whose ``__init__`` gathers public names, and loads each with its first use: their own imports are left out."""


def sources() -> dict[str, str]:
    """Return the source of each module of the package, by its dotted name."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "streamco").rglob("*.py")}
    return {name.removesuffix(".__init__"): path.read_text() for name, path in paths.items()}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements below a node, without their expressions, which have no imports."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, field, ()):
            yield node
            yield from statements(node)


def imported(source: str, modules: Collection[str]) -> set[str]:
    """Return those of the modules that a source imports."""
    found: set[str] = set()
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import would go unseen here"
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= {name if name in modules else str(node.module) for name in names}
    return found.intersection(modules)


def circle(modules: Mapping[str, str]) -> list[str]:
    """Return modules that import each other in a circle, of which the first one is also the last; [] if there are none."""
    graph = {name: set() if name in GATHERING else imported(source, modules) - {name} for name, source in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_modules_import_each_other() -> None:
    assert circle(sources()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import a",
        "from a import A",
        "if TYPE_CHECKING:\n    from a import A",
        "def f():\n    try:\n        pass\n    finally:\n        import a",
        "class C:\n    def f(self, x):\n        match x:\n            case 1:\n                from a import A",
    ],
)
def test_a_circle_is_found_wherever_its_imports_are(source: str) -> None:
    modules = {"a": "from b import B", "b": "from p import c", "p": "", "p.c": source}
    assert set(circle(modules)) == {"a", "b", "p.c"}
    assert not circle({**modules, "p.c": "import p"})
