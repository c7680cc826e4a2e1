"""Which commit and which machine a run is of."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

__all__ = ["commit", "is_same_code", "machine"]

ROOT = Path(__file__).resolve().parents[1]
_CODE = ("streamco", "bench", "tests/support", "setup.py", "pyproject.toml")  # what the page's runs depend on
_NOT_CODE = tuple(
    f":(exclude)bench/{each}" for each in ("results", "papers", "tasks", "release", "page.py", "page_tables.py", "timed/fidelity_tables.py")
)
_RESULTS = ("docs/", "bench/results/")  # may change while a bench runs


def machine() -> str:
    """Processor, cores and Python, in a line."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        cpu = found.group(1).strip() if found else cpu
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, check=False, capture_output=True, text=True)


def commit(root: Path = ROOT) -> str:
    """The checked-out commit, which others can check out, too. Results and pages may be changed.

    Args:
        root: the checkout.

    Raises:
        SystemExit: there is no commit, files were changed since, or the branch upstream doesn't have it, so that a rebase may still rename
            it. Without such a branch any commit will do.
    """
    git = partial(_git, root)
    short = git("rev-parse", "--short", "HEAD").stdout.strip()
    if not short:
        raise SystemExit(f"expected a git checkout, got none at {root}")
    found = [line[3:] for line in git("status", "--porcelain", "--no-renames").stdout.splitlines()]
    changed = [path for path in found if not path.startswith(_RESULTS)]
    if changed:
        raise SystemExit(f"expected a tree without changes, got some in {', '.join(changed)}: commit them first")
    upstream = git("rev-parse", "--abbrev-ref", "@{upstream}")
    if not upstream.returncode and git("merge-base", "--is-ancestor", "HEAD", "@{upstream}").returncode:
        raise SystemExit(
            f"expected a commit that {upstream.stdout.strip()} has, got {short}: push it first, because a rebase would rename it"
        )
    return short


def is_same_code(one: str, other: str, root: Path = ROOT, code: Sequence[str] = (*_CODE, *_NOT_CODE)) -> bool:
    """Return True if streamco, its benches and its build are the same in both commits; False, too, if one isn't there.

    Args:
        one, other: the commits.
        root: the checkout.
        code: which files, as ``git diff`` takes them.
    """
    return one == other or not _git(root, "diff", "--quiet", one, other, "--", *code).returncode
