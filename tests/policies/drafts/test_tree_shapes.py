"""Shapes of drafts: chains, paths and leaves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamco.policies.drafts.tree_shapes import is_chain, leaves, longest_path, path_to


@pytest.mark.parametrize(("parents", "chain"), [((), True), ((0, 1, 2), True), ((0, 0), False), ((0, 1, 1), False)])
def test_a_draft_without_siblings_is_a_chain(parents: tuple[int, ...], chain: bool) -> None:
    assert is_chain(parents) is chain


def test_paths_lead_from_the_root_to_a_node() -> None:
    parents = (0, 1, 1, 2)
    assert path_to(parents, 4) == (1, 2, 4)
    assert leaves(parents) == (3, 4)
    assert longest_path(parents) == (1, 2, 4)


def test_shapes_need_no_numpy() -> None:
    code = "import sys, streamco.policies.drafts.tree_shapes; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
