"""Names: every file stem, class name and docstring keeps the rules that CONTRIBUTING.md states.

Each rule is a function over source text that returns what it found, so that a test can show it failing on a bad example.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(path for path in (ROOT / "streamco").rglob("*.py") if "__pycache__" not in path.parts)
NATIVE = sorted((ROOT / "streamco" / "_native").glob("*.pyx"))

PROTOCOL = frozenset({"client", "codec", "frames", "server"})
"""The files of a protocol: its frames, their bytes and both ends of a connection."""

SERVICE = frozenset({"batches", "service", "sessions", "stats"})
"""File names of a server's side of a protocol: server/verify and server/split."""

MODE = frozenset({"log", "mode", "notes", "plan"})
"""Files of a mode of the client: each mode has the same ones."""

ROLES = PROTOCOL | SERVICE | MODE | {"__init__", "base", "driver", "errors", "events", "kind", "machine", "options", "report", "session"}
"""File names that say a role and not a subject: each folder may have one."""

FEWEST_WORDS = 3
MOST_LINES = 500
MOST_ATTRIBUTES = 20
MOST_NAMES = 20


class LargePart(UserWarning):
    """A file, class or folder has grown beyond the size at which to ask why."""


def repeated_stems(paths: Iterable[str]) -> list[str]:
    """Return the file stems that a layer (the first folder below the package) uses twice, except those that name a role."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in paths:
        parts = Path(path).parts
        stem = Path(path).stem
        if stem not in ROLES:
            found[parts[1] if len(parts) > 2 else "", stem].append(path)
    return [f"{stem}: {' and '.join(where)}" for (_, stem), where in sorted(found.items()) if len(where) > 1]


def repeated_classes(sources: Mapping[str, str]) -> list[str]:
    """Return the public class names that are defined more than once."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return [f"{name}: {' and '.join(where)}" for name, where in sorted(found.items()) if len(where) > 1]


def short_docstrings(source: str) -> list[str]:
    """Return the docstrings of public names whose first paragraph has fewer than ``FEWEST_WORDS`` words."""
    found = []
    for node, name in documented(ast.parse(source)):
        text = ast.get_docstring(node)
        if text and len(text.split("\n\n")[0].split()) < FEWEST_WORDS:
            found.append(f"{name}: {text.splitlines()[0]!r} has fewer than {FEWEST_WORDS} words")
    return found


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    """Yield the module and each public class, function and method with its dotted name; overridden dunders are left out."""
    yield tree, "module"
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        parent, prefix = pending.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield node, prefix + node.name
                if isinstance(node, ast.ClassDef):
                    pending.append((node, f"{prefix}{node.name}."))


def missing_pages(source: str, root: Path) -> list[str]:
    """Return the docs/ paths that a source mentions and that don't exist."""
    return [page for page in sorted(set(re.findall(r"\bdocs/[\w./-]+\.(?:md|svg|png|csv)", source))) if not (root / page).is_file()]


def is_store_on_self(node: ast.Attribute) -> bool:
    """Return True for the target of ``self.name = ...``."""
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def large_classes(source: str) -> list[str]:
    """Return the classes that store more than ``MOST_ATTRIBUTES`` attributes on ``self``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and is_store_on_self(each)}
            if len(names) > MOST_ATTRIBUTES:
                found.append(f"{node.name}: {len(names)} attributes")
    return found


def test_a_file_stem_is_used_once_in_a_layer() -> None:
    assert not repeated_stems(str(path.relative_to(ROOT)) for path in MODULES)
    assert repeated_stems(["streamco/server/failures.py", "streamco/server/verify/failures.py", "streamco/wire/failures.py"])


def test_a_public_class_name_is_used_once_in_the_package() -> None:
    assert not repeated_classes({str(path.relative_to(ROOT)): path.read_text() for path in MODULES})
    assert repeated_classes({"a.py": "class Line: ...\n", "b.py": "class Line: ...\n"})


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "streamco")))
def test_a_docstring_is_a_sentence(path: Path) -> None:
    assert not short_docstrings(path.read_text())
    assert short_docstrings('"""The module of drafts."""\n\n\nclass Draft:\n    """Its figures."""\n')


def test_each_page_that_code_mentions_exists() -> None:
    missing = {str(path.relative_to(ROOT)): pages for path in MODULES if (pages := missing_pages(path.read_text(), ROOT))}
    assert not missing
    assert missing_pages("see docs/engine.md", ROOT) == ["docs/engine.md"]


def large_parts() -> Iterator[str]:
    """Yield files, classes and folders that are large enough to ask why, unless the head of the file says it ("600 lines, because ...")."""
    for path in MODULES:
        source, name = path.read_text(), path.relative_to(ROOT)
        if (size := len(source.splitlines())) > MOST_LINES and not gives_a_reason(source):
            yield f"{name}: {size} lines"
        yield from (f"{name}: {found}" for found in large_classes(source))
    for folder in sorted({path.parent for path in MODULES}):
        if (size := len([each for each in folder.iterdir() if is_listed(each)])) > MOST_NAMES:
            yield f"{folder.relative_to(ROOT)}: {size} names"


def gives_a_reason(source: str) -> bool:
    """Return True if the module's docstring says how long it is, and why."""
    return bool(re.search(r"\b\d+ lines,? because\b", ast.get_docstring(ast.parse(source)) or ""))


@pytest.mark.filterwarnings("default::tests.test_names.LargePart")
def test_what_is_large_is_named() -> None:
    """Large parts are no failure: pytest prints the warning below the results."""
    assert gives_a_reason('"""A parser.\n\n600 lines, because its states only make sense side by side.\n"""\n')
    assert large_classes("class Pair:\n    def __init__(self):\n" + "".join(f"        self.x{index} = 0\n" for index in range(21)))
    if found := [*large_parts()]:
        warnings.warn(f"worth a look: {'; '.join(found)}", LargePart, stacklevel=1)


def is_listed(path: Path) -> bool:
    """Return True for a module or folder that has a name to be found by: no package marker, no build product, no cache."""
    return not path.name.startswith("__") and path.suffix not in {".so", ".pyd", ".c", ".typed"}
