"""The documentation names things that exist."""

from __future__ import annotations

import ast
import re
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import streamco

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
OTHER_DOTTED_WORDS = {  # begin with "streamco.", and are no names of Python
    "streamco.engine": "a logger",
    "streamco.example.org": "a host",
    "streamco.toml": "a file",
    "streamco.winner": "an attribute of spans",
}


def name_of(page: Path) -> str:
    """The page's path within the repository."""
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def resolve(dotted: str) -> object:
    """The object behind a dotted name; the longest importable part is the module, which may need a package that isn't installed."""
    parts = dotted.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:size]))
        except ModuleNotFoundError as error:
            if size == len(parts) and not f"{dotted}.".startswith(f"{error.name}."):
                return find_spec(dotted)
            continue
        for name in parts[size:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nothing_is_left_to_be_filled_in(page: Path) -> None:
    found = re.findall(r"@@\w+|\b(?:TODO|FIXME|TBD|XXX)\b", page.read_text(encoding="utf-8"))
    assert not found, f"{page.name}: expected a finished page, got {found}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_dotted_name_and_file_exists(page: Path) -> None:
    text = text_of(page)
    for name in set(re.findall(r"(?<![\w/.@-])(?:streamco|bench)(?:\.[A-Za-z_]\w*)+", text)) - set(OTHER_DOTTED_WORDS):
        assert resolve(name) is not None, f"{page.name} names {name}"
    for path in re.findall(r"`((?:streamco|tests|bench|examples|docs)/[\w/.]+\.(?:py|md|pyx))`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_dotted_words_that_are_no_names_are_in_a_page_and_can_not_be_imported() -> None:
    text = "\n".join(map(text_of, PAGES))
    for word in OTHER_DOTTED_WORDS:
        assert word in text
        with pytest.raises(AttributeError):
            resolve(word)


@pytest.mark.parametrize("name", ["streamco.client.race.driver", "streamco.Clent", "streamco.client.settings.Settings", "bench.cost"])
def test_a_wrong_name_is_found(name: str) -> None:
    with pytest.raises(AttributeError):
        resolve(name)


@pytest.mark.parametrize("page", [ROOT / "docs" / "design.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_every_file_that_a_map_of_the_code_names_is_there(page: Path) -> None:
    for path in re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page.read_text()):
        inside = [folder for folder in (ROOT, ROOT / "streamco", *(ROOT / "streamco").glob("*/")) if (folder / path).exists()]
        assert inside, f"{page.name}: expected a file or folder {path}, got none"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_block_parses_and_uses_public_names(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        source = re.sub(r"=\[\.\.\.\]", "=[]", block)
        tree = ast.parse(f"async def main():\n    client = None\n{indent(source)}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "streamco":
                assert hasattr(streamco, node.attr), f"{page.name} uses streamco.{node.attr}"


def test_the_tests_that_the_page_on_testing_shows_pass() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), flags=re.DOTALL)
    shown: dict[str, Any] = {}
    for block in blocks:
        if "def test_" in block:
            exec(block, shown)
    tests = [value for name, value in shown.items() if name.startswith("test_")]
    assert len(tests) >= 2
    for test in tests:
        test()


def indent(source: str) -> str:
    return "".join(f"    {line}" for line in source.splitlines(keepends=True))


def test_the_sequence_diagrams_name_events_and_commands_that_exist() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    homes = ["streamco.events", "streamco.core.race.commands", "streamco.core.speculation.events", "streamco.core.race.machine"]
    homes += ["streamco.core.speculation.machine", "streamco.core.split.events", "streamco.core.split.machine", "streamco.client.client"]
    known = {name for home in homes for name in vars(import_module(home))}
    diagrams = [block for block in re.findall(r"```\n(.*?)```", text, flags=re.DOTALL) if "────▶" in block]
    assert len(diagrams) > 3
    named = {name for block in diagrams for name in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", block)}
    assert named >= {"OpenStream", "PrepareStream", "VerdictReceived"}
    assert not named - known


def test_every_paper_names_functions_that_exist() -> None:
    names = re.findall(r"`(streamco\.[\w.]+)`", (ROOT / "docs" / "research" / "papers.md").read_text())
    assert len(names) > 15
    for name in names:
        assert resolve(name) is not None


SEARCHED = (
    "bot",
    "Flask",
    "FastAPI",
    "structured output",
    "sync client",
    "many users",
    "Windows",
    "macOS",
    "GPU",
    "offline",
    "cost",
    "Telegram",
)
"""Words that users look for, each of which stands in a heading."""


def headings(text: str) -> list[str]:
    """The headings of a page, without the comments in its blocks of code."""
    return re.findall(r"^#{1,6} (.+)$", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE), flags=re.MULTILINE)


@pytest.mark.parametrize("word", SEARCHED)
def test_a_word_that_users_look_for_stands_in_a_heading(word: str) -> None:
    pages = [page for page in PAGES if page.parent.name != "research"]
    found = [heading for page in pages for heading in headings(text_of(page)) if re.search(rf"\b{word}s?\b", heading, flags=re.IGNORECASE)]
    assert found, f"expected a heading with {word!r}, got none"


def test_comments_in_code_are_no_headings() -> None:
    assert headings("# One\n```sh\n# two\n```\n## Three `x`\n") == ["One", "Three `x`"]


def commits_named(text: str) -> set[str]:
    """Short names of this project's commits; eight digits and more are those of other projects."""
    return {
        word for word in re.findall(r"(?<![\w/])[0-9a-f]{7}(?!\w)", text) if re.search(r"[a-f]", word) and re.search(r"\d", word)
    } | set(re.findall(r"commits? ([0-9a-f]{7})(?!\w)", text))


def test_every_commit_that_a_page_names_is_in_the_history() -> None:
    git = ["git", "-C", str(ROOT)]
    is_shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], check=False, capture_output=True, text=True)
    if is_shallow.stdout.strip() != "false":
        pytest.skip("needs a clone with its history")
    known = subprocess.run([*git, "rev-list", "HEAD"], check=True, capture_output=True, text=True).stdout.split()
    short = {name[:7] for name in known}
    missing = {(page.name, name) for page in PAGES for name in commits_named(page.read_text(encoding="utf-8")) if name not in short}
    assert not missing, f"expected results of commits that can be checked out, got others: {sorted(missing)}"


def test_names_of_commits_are_told_from_other_words() -> None:
    text = "commit 1dc1f62; (e425581, at most) commit 1234567; https://x.org/ab/8f99e7d, 8f99e7dc, 1000000, defaced and 6fea51a."
    assert commits_named(text) == {"1dc1f62", "e425581", "1234567", "6fea51a"}
