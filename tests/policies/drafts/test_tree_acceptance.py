"""What the verifier accepts of a tree: a path of the target's own tokens, or of tokens with the target's distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.acceptance import Distribution, Rule, RuleKind, Verdict, verify_greedy, verify_sampled, verify_threshold
from streamco.policies.drafts.tree_acceptance import (
    check_tree,
    is_chain,
    leaves,
    path_to,
    verify_tree,
    verify_tree_greedy,
    verify_tree_sampled,
    verify_tree_threshold,
)
from tests.policies.test_acceptance import Logits, sure, whole
from tests.support.examples import examples
from tests.support.surprise import surprise

VOCABULARY = 4
weights = st.lists(st.integers(0, 20), min_size=VOCABULARY, max_size=VOCABULARY).filter(any)
COMB = (0, 1, 2, 0, 1, 2)  # three tokens, and a sibling of each


@st.composite
def trees(draw: st.DrawFn, ids: int = 5) -> tuple[list[int], list[int]]:
    """Tokens and parents."""
    draft: list[int] = []
    parents: list[int] = []
    for number in range(draw(st.integers(0, 9))):
        parent = draw(st.integers(0, number))
        free = set(range(ids)) - {token for token, other in zip(draft, parents, strict=True) if other == parent}
        if free:
            draft.append(draw(st.sampled_from(sorted(free))))
            parents.append(parent)
        else:
            return draft, parents
    return draft, parents


# Trees


def test_a_path_is_the_nodes_from_the_context_to_a_node() -> None:
    assert [path_to(COMB, node) for node in range(7)] == [(), (1,), (1, 2), (1, 2, 3), (4,), (1, 5), (1, 2, 6)]
    assert path_to((), 3) == (1, 2, 3)
    assert leaves(COMB) == (3, 4, 5, 6)
    assert leaves((0, 1, 2)) == (3,)


def test_a_chain_is_each_token_after_the_one_before_it() -> None:
    assert [is_chain(parents) for parents in ((), (0,), (0, 1, 2), COMB, (0, 0))] == [True, True, True, False, False]


@given(trees())
def test_the_paths_to_the_leaves_are_the_whole_tree(tree: tuple[list[int], list[int]]) -> None:
    draft, parents = tree
    check_tree(draft, parents)
    paths = [path_to(parents, leaf) for leaf in leaves(parents)]
    assert {node for path in paths for node in path} == set(range(1, len(draft) + 1))
    assert all([*path] == sorted(path) for path in paths)


@pytest.mark.parametrize(
    ("draft", "parents", "error"),
    [
        ([1, 2], [0], "expected a parent for each of 2 tokens, got 1"),
        ([1, 2], [0, 2], "expected a parent of node 2 from 0 to 1, got 2"),
        ([1, 2], [-1, 0], "expected a parent of node 1 from 0 to 0, got -1"),
        ([1, 1], [0, 0], "expected different tokens after node 0, got 1 twice"),
    ],
)
def test_what_is_no_tree_is_refused(draft: list[int], parents: list[int], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check_tree(draft, parents)


@pytest.mark.parametrize("kind", RuleKind)
def test_each_rule_needs_a_row_after_each_node(kind: RuleKind) -> None:
    with pytest.raises(ConfigError, match="expected 3 target rows for 2 draft tokens, got 2"):
        verify_tree(Rule(kind, temperature=1.0), [0, 1], [0, 0], [sure(0), sure(1)], [Logits(0.5, 0.5)] * 2, rng=Random(1))


# Each rule on a chain


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_on_a_chain_the_greedy_verdict_is_that_of_chains(draft: list[int], choices: list[int]) -> None:
    choices = choices[: len(draft) + 1]
    assert verify_tree_greedy(draft, range(len(draft)), choices) == verify_greedy(draft, choices)


@given(st.lists(st.tuples(weights, weights), min_size=1, max_size=5), st.integers(0, 1000))
def test_on_a_chain_the_sampled_verdict_is_that_of_chains_draw_by_draw(rows: list[tuple[list[int], list[int]]], seed: int) -> None:
    targets, drafts = [whole(*wanted) for wanted, _ in rows], [whole(*offered) for _, offered in rows[1:]]
    rng = Random(seed)
    draft = [row.draw(rng) for row in drafts]
    ours = verify_tree_sampled(draft, range(len(draft)), drafts, targets, Random(seed))
    assert ours == verify_sampled(draft, drafts, targets, Random(seed))


@given(st.lists(weights, min_size=1, max_size=5), st.lists(st.integers(0, 3), min_size=4, max_size=4), st.floats(0, 1))
def test_on_a_chain_the_threshold_verdict_is_that_of_chains(rows: list[list[int]], draft: list[int], threshold: float) -> None:
    targets = [whole(*row) for row in rows]
    draft = draft[: len(rows) - 1]
    assert verify_tree_threshold(draft, range(len(draft)), targets, threshold) == verify_threshold(draft, targets, threshold)


# Greedy


def test_greedy_follows_the_targets_choices_as_far_as_the_tree_has_them() -> None:
    draft = [5, 6, 7, 8, 9, 10]
    assert verify_tree_greedy(draft, COMB, [5, 6, 7, 1, 2, 3, 4]) == Verdict(3, 1)
    assert verify_tree_greedy(draft, COMB, [8, 6, 7, 1, 2, 3, 4]) == Verdict(4, 2)  # the first token's sibling, and the target's next
    assert verify_tree_greedy(draft, COMB, [5, 9, 7, 1, 2, 3, 4]) == Verdict(5, 3)
    assert verify_tree_greedy(draft, COMB, [5, 6, 4, 1, 2, 3, 4]) == Verdict(2, 4)
    assert verify_tree_greedy(draft, COMB, [0, 6, 7, 1, 2, 3, 4]) == Verdict(0, 0)


@given(st.lists(st.integers(0, 4), min_size=30, max_size=30), st.data())
def test_greedy_rounds_of_trees_write_the_targets_own_answer_whatever_is_drafted(noise: list[int], data: st.DataObject) -> None:
    def target(text: list[int]) -> int:
        return (sum(text) * 7 + len(text) + noise[len(text) % 30]) % 5

    own: list[int] = []
    while len(own) < 30:
        own.append(target(own))
    text: list[int] = []
    while len(text) < 30:
        draft, parents = data.draw(trees())
        paths = [path_to(parents, node) for node in range(len(draft) + 1)]
        choices = [target([*text, *(draft[node - 1] for node in path)]) for path in paths]
        verdict = verify_tree_greedy(draft, parents, choices)
        text += [*(draft[node - 1] for node in paths[verdict.accepted]), verdict.token]
    assert text[:30] == own


@given(st.lists(st.integers(0, 4), min_size=10, max_size=10), trees())
def test_a_tree_never_accepts_less_than_any_of_its_paths_alone(choices: list[int], tree: tuple[list[int], list[int]]) -> None:
    draft, parents = tree
    choices = choices[: len(draft) + 1]
    verdict = verify_tree_greedy(draft, parents, choices)
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        alone = verify_greedy([draft[node - 1] for node in path], [choices[node] for node in (0, *path)])
        assert len(path_to(parents, verdict.accepted)) >= alone.accepted


# Threshold


def test_threshold_follows_the_first_sibling_that_is_good_enough() -> None:
    row = whole(0.5, 0.3, 0.2)
    assert verify_tree_threshold([2, 1], [0, 0], [row, row, row], 0.5) == Verdict(2, 0, is_exact=False)
    assert verify_tree_threshold([2, 1], [0, 0], [row, row, row], 0.4) == Verdict(1, 0, is_exact=False)
    assert verify_tree_threshold([2, 1], [0, 0], [row, row, row], 0.9) == Verdict(0, 0, is_exact=False)


# Sampled


def without(row: Distribution, gone: list[int]) -> Distribution:
    """A row without the ids that were drawn before."""
    shares = np.where(np.isin(row.ids, gone), 0.0, row.probabilities)
    return Distribution(None, shares / shares.sum())


def drawn_without_replacement(row: Distribution, count: int, rng: Random) -> tuple[list[int], list[Distribution]]:
    draft: list[int] = []
    rows: list[Distribution] = []
    while len(draft) < min(count, sum(share > 0.0 for share in row.probabilities.tolist())):
        rows.append(without(row, draft))
        draft.append(rows[-1].draw(rng))
    return draft, rows


def drawn_and_best(row: Distribution, count: int, rng: Random) -> tuple[list[int], list[Distribution]]:
    """One is drawn; its siblings are the likeliest others, which no chance decides."""
    first = row.draw(rng)
    others = [int(token) for token in np.argsort(-row.probabilities, kind="stable") if token != first and row.probabilities[token] > 0]
    return [first, *others[: count - 1]], [row, *map(sure, others[: count - 1])]


def all_best(row: Distribution, count: int, rng: Random) -> tuple[list[int], list[Distribution]]:
    """None is drawn."""
    order = [int(token) for token in np.argsort(-row.probabilities, kind="stable")]
    best = [token for token in order[:count] if row.probabilities[token] > 0]
    return best, [sure(token) for token in best]


Way = Callable[[Distribution, int, Random], tuple[list[int], list[Distribution]]]
WAYS: list[Way] = [drawn_without_replacement, drawn_and_best, all_best]
PAIRS = [((0.5, 0.3, 0.15, 0.05), (0.1, 0.2, 0.3, 0.4)), ((0.97, 0.01, 0.01, 0.01), (0.25,) * 4), ((0.25,) * 4, (0.7, 0.1, 0.1, 0.1))]


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("siblings", [2, 3, 4])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("wanted", "offered"), PAIRS)
def test_a_chi_square_finds_the_targets_distribution_among_siblings(
    wanted: tuple[float, ...],
    offered: tuple[float, ...],
    way: Way,
    siblings: int,
) -> None:
    target, drafted_from, rng, draws = whole(*wanted), whole(*offered), Random(siblings), 8_000
    seen: Counter[int] = Counter()
    for _ in range(draws):
        draft, rows = way(drafted_from, siblings, rng)
        verdict = verify_tree_sampled(draft, [0] * len(draft), rows, [target] * (len(draft) + 1), rng)
        assert verdict.is_exact
        seen[draft[verdict.accepted - 1] if verdict.accepted else verdict.token] += 1
    assert surprise(seen, dict(enumerate(target.probabilities)), draws) < 1.0


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_whole_texts_written_in_rounds_of_trees_have_the_targets_distribution(way: Way) -> None:
    """Three tokens of a context-dependent target over 4 ids: 64 texts with exact probabilities; a round has two tokens with siblings."""
    dice = np.random.default_rng(17)
    targets = {text: whole(*dice.dirichlet([0.8] * 4)) for size in range(3) for text in product(range(4), repeat=size)}
    drafts = {text: whole(*dice.dirichlet([0.8] * 4)) for text in targets}
    anything = whole(1, 1, 1, 1)
    exact = {
        text: math.prod(targets[text[:place]].probabilities[text[place]] for place in range(3)) for text in product(range(4), repeat=3)
    }
    rng, draws = Random(18), 8_000
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(draws):
        text: tuple[int, ...] = ()
        while len(text) < 3:
            first, first_rows = way(drafts.get(text, anything), 2, rng)
            second, second_rows = way(drafts.get((*text, first[0]), anything), 2, rng)
            draft, rows = [*first, *second], [*first_rows, *second_rows]
            parents = [0] * len(first) + [1] * len(second)
            texts = [(*text, *(draft[node - 1] for node in path_to(parents, each))) for each in range(len(draft) + 1)]
            verdict = verify_tree_sampled(draft, parents, rows, [targets.get(each, anything) for each in texts], rng)
            text = (*texts[verdict.accepted], verdict.token)
        seen[text[:3]] += 1
    assert surprise(seen, exact, draws) < 1.0


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["each sibling against p", "a best token by its share"])
def test_the_chi_square_would_find_a_wrong_rule(wrong: str) -> None:
    """Siblings tried against p itself, or a token that was not drawn taken for a drawn one: the tests above must be able to fail."""
    target, drafted_from, rng, draws = whole(0.5, 0.3, 0.15, 0.05), whole(0.1, 0.2, 0.3, 0.4), Random(1), 8_000
    seen: Counter[int] = Counter()
    for _ in range(draws):
        if wrong == "each sibling against p":
            draft, rows = drawn_without_replacement(drafted_from, 2, rng)
            tries = [verify_sampled([token], [row], [target, target], rng) for token, row in zip(draft, rows, strict=True)]
            seen[next((token for token, each in zip(draft, tries, strict=True) if each.accepted), tries[-1].token)] += 1
        else:
            draft, _ = drawn_and_best(drafted_from, 2, rng)
            verdict = verify_tree_sampled(draft, [0, 0], [drafted_from, drafted_from], [target] * 3, rng)
            seen[draft[verdict.accepted - 1] if verdict.accepted else verdict.token] += 1
    assert surprise(seen, dict(enumerate(target.probabilities)), draws) > 3.0


@settings(max_examples=examples(60, thorough=600))
@given(weights, weights, st.integers(1, 4))
def test_siblings_without_chance_have_the_targets_probability_by_the_sum(wanted: list[int], offered: list[int], count: int) -> None:
    """P(sibling i) by the rule: (1 - p of those before it) x residual(i) = p(i); the rest of p is left for the correction."""
    target = whole(*wanted)
    draft, rows = all_best(whole(*offered), count, Random(0))
    left, chance = target, 1.0
    for token, row in zip(draft, rows, strict=True):
        probability = left.probability(token)
        assert chance * probability == pytest.approx(target.probability(token))
        verdict = verify_tree_sampled([token], [0], [row], [left, left], Random(1))
        if probability > 1.0 - 1e-9:
            assert verdict.accepted
            return
        chance *= 1.0 - probability
        left = without(left, [token])
    assert chance == pytest.approx(1.0 - sum(target.probability(token) for token in draft), abs=1e-9)


@settings(max_examples=examples(100, thorough=1000))
@given(trees(VOCABULARY), st.lists(weights, min_size=10, max_size=10), st.integers(0, 1000))
def test_what_a_sampled_verdict_names_is_possible(tree: tuple[list[int], list[int]], rows: list[list[int]], seed: int) -> None:
    draft, parents = tree
    targets = [whole(*row) for row in rows[: len(draft) + 1]]
    verdict = verify_tree_sampled(draft, parents, [sure(token) for token in draft], targets, Random(seed))
    assert targets[verdict.accepted].probability(verdict.token) > 0.0
    children = [token for token, parent in zip(draft, parents, strict=True) if parent == verdict.accepted]
    assert verdict.token not in children  # else a longer path would have been accepted
    for node in path_to(parents, verdict.accepted):
        assert targets[parents[node - 1]].probability(draft[node - 1]) > 0.0


def test_cut_distributions_are_said_to_be_approximate() -> None:
    cut, full = Distribution([0, 1], [0.5, 0.3]), whole(0.5, 0.3, 0.2)
    assert not verify_tree_sampled([0, 1], [0, 0], [full, sure(1)], [cut, full, full], Random(0)).is_exact
    assert verify_tree_sampled([0, 1], [0, 0], [full, sure(1)], [full, full, full], Random(0)).is_exact


def test_a_token_that_its_distribution_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected node 1 to be in its distribution, got id 2"):
        verify_tree_sampled([2], [0], [sure(1)], [whole(0.5, 0.5)] * 2, Random(0))


def test_verify_chooses_by_the_kind_of_rule() -> None:
    rows = [Logits(0.2, 0.8), Logits(0.6, 0.4), Logits(0.5, 0.5)]
    assert verify_tree(Rule(), [0, 1], [0, 0], [], rows, rng=Random(1)) == Verdict(2, 0)
    assert verify_tree(Rule(RuleKind.THRESHOLD, threshold=0.2), [0, 1], [0, 0], [], rows, rng=Random(1)) == Verdict(1, 0, is_exact=False)
    sampled = verify_tree(Rule(RuleKind.SAMPLE, temperature=1.0), [0, 1], [0, 0], [whole(0.5, 0.5), sure(1)], rows, rng=Random(1))
    assert sampled.accepted in {1, 2}
