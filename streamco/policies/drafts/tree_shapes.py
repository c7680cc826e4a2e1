"""Shapes of drafts: the parents of a draft's tokens, its paths and its leaves. It doesn't import numpy, because engines must not."""

from __future__ import annotations

from collections.abc import Sequence

from streamco.errors import ConfigError

__all__ = ["check_tree", "is_chain", "leaves", "longest_path", "path_to"]


def is_chain(parents: Sequence[int]) -> bool:
    """Return True if each node's parent is the node before it. An empty sequence stands for a chain, too."""
    return all(parent == number for number, parent in enumerate(parents))


def path_to(parents: Sequence[int], node: int) -> tuple[int, ...]:
    """Return the nodes on the path to ``node``, in order and with ``node`` itself, or () for node 0. Empty parents stand for a chain."""
    if not parents:
        return tuple(range(1, node + 1))
    path: list[int] = []
    while node:
        path.append(node)
        node = parents[node - 1]
    return tuple(reversed(path))


def leaves(parents: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes without children, in order, one for each path of the tree."""
    inner = set(parents)
    return tuple(node for node in range(1, len(parents) + 1) if node not in inner)


def longest_path(parents: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes on the longest path from the context, or on the first of several equally long ones. Empty if there are no nodes."""
    return max((path_to(parents, leaf) for leaf in leaves(parents)), key=len, default=())


def check_tree(draft: Sequence[int], parents: Sequence[int]) -> None:
    """Check that parents come before their children and that siblings are different tokens.

    Args:
        draft: tokens of the nodes.
        parents: parent of each node, or empty for a chain.

    Raises:
        ConfigError: the number of parents differs, a parent doesn't come before its child, or two siblings are the same token.
    """
    if not parents:
        return
    if len(parents) != len(draft):
        raise ConfigError(f"tree: expected a parent for each of {len(draft)} tokens, got {len(parents)}")
    seen: set[tuple[int, int]] = set()
    for number, (token, parent) in enumerate(zip(draft, parents, strict=True), 1):
        if not 0 <= parent < number:
            raise ConfigError(f"tree: expected a parent of node {number} from 0 to {number - 1}, got {parent}")
        if (parent, token) in seen:
            raise ConfigError(f"tree: expected different tokens after node {parent}, got {token} twice")
        seen.add((parent, token))
