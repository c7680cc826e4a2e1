"""Verification of tree drafts: several tokens may be drafted for one position, and the verdict follows one path through the tree.

The tokens of a draft are its *nodes*, numbered from 1. Node 0 is the last token of the context. Each node has a parent with a lower number,
so a draft consists of its tokens and their parents. If the parents are 0, 1, 2 ..., the draft is a *chain*. Nodes with the same parent are
*siblings*, which are different tokens for one position. The target has a row after node 0 and after each node. A row sees only the nodes on
the path to it.

A verdict names the last accepted node. The nodes on the path to it are accepted, too. For a chain this is the number of accepted tokens.

- Greedy: the path continues to the node that is the target's likeliest token.
- Sampled: the siblings are offered one after the other (recursive rejection sampling: SpecInfer, Miao et al., 2024, algorithm 2; Sequoia,
  Chen et al., 2024, algorithm 2). Sibling x is accepted with probability min(1, p(x) / q(x)). If it is rejected, p becomes max(0, p - q),
  normalised, for the next sibling. After the last one the correction is drawn from p.
- Threshold: the path continues to the first sibling that the target finds good enough.

The answer keeps the target's distribution for any q, as long as q is the distribution that x was drawn from, given the siblings before it.
After each rejection, the token still has to come from the new p, by the same argument as for a chain. Two ways to draw siblings are valid:

- Without replacement: q is the draft model's distribution without the earlier siblings, normalised.
- The draft model's best other token, which isn't random: q is 1 at x. Then x is accepted with probability p(x), and the residual is p
  without x. Such a sibling costs nothing, because the draft model needs no additional step for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import assert_never

from streamco.config import check_share
from streamco.errors import ConfigError
from streamco.policies.acceptance import UNCHANGED, Distribution, Rule, RuleKind, TargetRow, Verdict, residual, verify
from streamco.policies.drafts.tree_shapes import check_tree, is_chain, leaves, longest_path, path_to

__all__ = [
    "check_tree",
    "is_chain",
    "leaves",
    "longest_path",
    "path_to",
    "verify_tree",
    "verify_tree_greedy",
    "verify_tree_sampled",
    "verify_tree_threshold",
]


def verify_tree(
    rule: Rule,
    draft: Sequence[int],
    parents: Sequence[int],
    drafted_from: Sequence[Distribution],
    rows: Sequence[TargetRow],
    *,
    rng: Random,
) -> Verdict:
    """Return the verdict that ``rule`` gives on a tree. ``Verdict.accepted`` is the number of the last accepted node.

    Args:
        rule: how tokens are accepted.
        draft: tokens of the nodes, shape (nodes,).
        parents: parent of each node, shape (nodes,), or empty for a chain, on which ``acceptance.verify`` decides.
        drafted_from: q of each node, given its earlier siblings, shape (nodes,). Only ``SAMPLE`` reads it.
        rows: the target's row after the context and after each node, shape (nodes + 1,).
        rng: random source for ``SAMPLE``. The other rules draw nothing.

    Raises:
        ConfigError: the shapes don't fit, the parents don't form a tree, or a node can't have been drawn from its q.
    """
    if not parents:
        return verify(rule, draft, drafted_from, rows, rng)
    match rule.kind:
        case RuleKind.GREEDY:
            return verify_tree_greedy(draft, parents, [row.best for row in rows])
        case RuleKind.SAMPLE:
            return verify_tree_sampled(draft, parents, drafted_from, [row.distribution(rule) for row in rows], rng)
        case RuleKind.THRESHOLD:
            return verify_tree_threshold(draft, parents, [row.distribution(UNCHANGED) for row in rows], rule.threshold)
        case _ as never:
            assert_never(never)


def verify_tree_greedy(draft: Sequence[int], parents: Sequence[int], choices: Sequence[int]) -> Verdict:
    """Follow the target's own choices as far as the tree contains them; see ``verify_tree``.

    Args:
        draft, parents: as for ``verify_tree``.
        choices: the target's argmax after the context and after each node, shape (nodes + 1,).
    """
    children = _children(draft, parents, len(choices))
    node = 0
    while (child := next((each for each in children[node] if draft[each - 1] == choices[node]), None)) is not None:
        node = child
    return Verdict(node, choices[node])


def verify_tree_sampled(
    draft: Sequence[int], parents: Sequence[int], drafted_from: Sequence[Distribution], target: Sequence[Distribution], rng: Random
) -> Verdict:
    """Accept a path so that the answer has the target's distribution; see ``verify_tree`` and the module's docstring.

    For a chain it draws and decides like ``verify_sampled``. The result is exact under the same conditions.
    """
    if len(drafted_from) != len(draft):
        raise ConfigError(f"tree: expected a distribution for each of {len(draft)} draft tokens, got {len(drafted_from)}")
    children = _children(draft, parents, len(target))
    is_exact = all(row.is_whole for row in (*drafted_from, *target))
    node, left = 0, target[0]
    waiting = list(children[0])
    while waiting:
        child = waiting.pop(0)
        after = _after_rejection(left, drafted_from[child - 1], draft[child - 1], child, rng)
        if after is None:
            node, left, waiting = child, target[child], list(children[child])
        else:
            left = after
    return Verdict(node, left.draw(rng), is_exact)


def _after_rejection(left: Distribution, offered_from: Distribution, token: int, node: int, rng: Random) -> Distribution | None:
    """Decide on one node. Returns None if it is accepted, otherwise the distribution that is left for its siblings."""
    wanted, offered = left.probability(token), offered_from.probability(token)
    if offered <= 0.0:
        raise ConfigError(f"tree: expected node {node} to be in its distribution, got id {token} with probability 0")
    # Accept x with probability min(1, p(x) / q(x)).
    if wanted >= offered or (wanted > 0.0 and rng.random() < wanted / offered):
        return None
    return residual(left, offered_from, token)  # None, which means accepted, if the target can draw nothing else apart from rounding


def verify_tree_threshold(draft: Sequence[int], parents: Sequence[int], target: Sequence[Distribution], threshold: float) -> Verdict:
    """Follow the first sibling that is at least ``threshold`` times as likely as the target's best token, which is also the correction.

    Args:
        draft, parents: as for ``verify_tree``.
        target: p after the context and after each node, shape (nodes + 1,). An id that isn't listed has probability 0.
        threshold: 0..1.
    """
    check_share("threshold", threshold)
    children = _children(draft, parents, len(target))
    node = 0
    while True:
        row = target[node]
        least = threshold * float(row.probabilities.max())
        child = next((each for each in children[node] if row.probability(draft[each - 1]) >= least), None)
        if child is None:
            return Verdict(node, row.best, is_exact=False)
        node = child


def _children(draft: Sequence[int], parents: Sequence[int], rows: int) -> list[list[int]]:
    """Return the children of node 0 and of each node, in order."""
    check_tree(draft, parents)
    if rows != len(draft) + 1:
        raise ConfigError(f"tree: expected {len(draft) + 1} target rows for {len(draft)} draft tokens, got {rows}")
    children: list[list[int]] = [[] for _ in range(rows)]
    for number, parent in enumerate(parents or range(len(draft)), 1):
        children[parent].append(number)
    return children
