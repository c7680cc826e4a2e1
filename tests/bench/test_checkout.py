"""Results are recorded of a commit that others can check out, or not at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.checkout import commit, is_same_code


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone with one commit, which its upstream has."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "--quiet")
    for name in ("docs/benchmarks.md", "bench/results/topk.jsonl"):
        (origin / name).parent.mkdir(parents=True)
        (origin / name).write_text("figures")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "first")
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    return clone


def test_a_pushed_commit_is_named_even_if_the_results_are_being_written(checkout: Path) -> None:
    (checkout / "docs" / "benchmarks.md").write_text("new figures")
    (checkout / "bench" / "results" / "topk.jsonl").write_text("{}")
    assert commit(checkout) == git(checkout, "rev-parse", "--short", "HEAD")


@pytest.mark.parametrize("name", ["README.md", "a_new_file.py"])
def test_a_tree_with_changes_is_refused(checkout: Path, name: str) -> None:
    (checkout / name).write_text("changed")
    with pytest.raises(SystemExit, match=f"expected a tree without changes, got some in {name}: commit them first"):
        commit(checkout)


def test_a_commit_that_upstream_does_not_have_is_refused(checkout: Path) -> None:
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "second")
    short = git(checkout, "rev-parse", "--short", "HEAD")
    with pytest.raises(SystemExit, match=f"expected a commit that origin/main has, got {short}: push it first"):
        commit(checkout)


def test_a_checkout_without_an_upstream_records_its_own_commits(checkout: Path) -> None:
    git(checkout, "remote", "remove", "origin")
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "second")
    assert commit(checkout) == git(checkout, "rev-parse", "--short", "HEAD")


def test_commits_of_results_and_texts_are_of_the_same_code(checkout: Path) -> None:
    commits = [git(checkout, "rev-parse", "HEAD")]
    for name in ("bench/results/topk.jsonl", "docs/benchmarks.md", "bench/page.py", "bench/timed/topk.py", "streamco/a.py"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(f"changed after {commits[-1]}")
        git(checkout, "add", ".")
        git(checkout, "commit", "--quiet", "-m", name)
        commits.append(git(checkout, "rev-parse", "HEAD"))
    assert [is_same_code(commits[0], commit, checkout) for commit in commits] == [True] * 4 + [False] * 2
    assert not is_same_code("1dc1f62", commits[0], checkout), "a commit that isn't there"


def test_a_folder_without_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="expected a git checkout"):
        commit(tmp_path)
