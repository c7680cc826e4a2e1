"""Names and words: every file stem, class name and docstring keeps the rules that CONTRIBUTING.md states.

Each rule is a function over source text that returns what it found, so that a test can show it failing on a bad example.
"""

from __future__ import annotations

import ast
import re
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

ROLES = PROTOCOL | SERVICE | {"__init__", "base", "driver", "errors", "events", "kind", "machine", "options", "report", "session"}
"""File names that say a role and not a subject: each folder may have one."""

HEADLESS = frozenset(
    {"As", "At", "Because", "Behind", "By", "For", "From", "If", "In", "It", "Its", "Likewise", "Of", "So", "Somebody", "Something"}
    | {"That", "Their", "They", "Those", "To", "Until", "When", "Where", "Whether", "Which", "Who", "Whom", "Whose", "With"}
)
"""First words of a docstring whose subject stands elsewhere."""

FEWEST_WORDS = 3
MOST_LINES = 500
MOST_ATTRIBUTES = 20
MOST_NAMES = 20


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


def headless_docstrings(source: str) -> list[str]:
    """Return the docstrings of public names that begin with a word of ``HEADLESS`` or have fewer than ``FEWEST_WORDS`` words."""
    found = []
    for node, name in documented(ast.parse(source)):
        text = ast.get_docstring(node)
        if not text:
            continue
        words = text.split("\n\n")[0].split()
        if words[0] in HEADLESS:
            found.append(f"{name}: begins with {words[0]!r}")
        elif len(words) < FEWEST_WORDS:
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
def test_a_docstring_has_a_head(path: Path) -> None:
    assert not headless_docstrings(path.read_text())


@pytest.mark.parametrize("docstring", ["Of the draft.", "Seconds.", "For the next round, if there is one.", "Its figures."])
def test_a_headless_docstring_is_found(docstring: str) -> None:
    assert headless_docstrings(f'"""The module of drafts."""\n\n\nclass Draft:\n    """{docstring}"""\n')


def test_each_page_that_code_mentions_exists() -> None:
    missing = {str(path.relative_to(ROOT)): pages for path in MODULES if (pages := missing_pages(path.read_text(), ROOT))}
    assert not missing
    assert missing_pages("see docs/engine.md", ROOT) == ["docs/engine.md"]


def test_no_file_is_longer_than_500_lines() -> None:
    assert not [f"{path.relative_to(ROOT)}: {size}" for path in MODULES if (size := len(path.read_text().splitlines())) > MOST_LINES]


def test_no_class_has_more_than_20_attributes() -> None:
    assert not {str(path.relative_to(ROOT)): found for path in MODULES if (found := large_classes(path.read_text()))}
    assert large_classes("class Pair:\n    def __init__(self):\n" + "".join(f"        self.x{index} = 0\n" for index in range(21)))


def test_no_folder_lists_more_than_20_names() -> None:
    folders = {path.parent for path in MODULES}
    sizes = {str(folder.relative_to(ROOT)): len([each for each in folder.iterdir() if is_listed(each)]) for folder in folders}
    assert not {folder: size for folder, size in sizes.items() if size > MOST_NAMES}


def is_listed(path: Path) -> bool:
    """Return True for a module or folder that has a name to be found by: no package marker, no build product, no cache."""
    return not path.name.startswith("__") and path.suffix not in {".so", ".pyd", ".c", ".typed"}
