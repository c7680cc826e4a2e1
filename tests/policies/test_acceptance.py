"""What the verifier accepts: the target's own tokens, the target's distribution, or what is good enough."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.acceptance import (
    Distribution,
    Rule,
    RuleKind,
    Verdict,
    expected_tokens,
    residual,
    solve_acceptance,
    verify,
    verify_greedy,
    verify_sampled,
    verify_threshold,
)
from tests.support.examples import examples
from tests.support.surprise import surprise

VOCABULARY = 4
ids = st.lists(st.integers(0, 9), max_size=8)
weights = st.lists(st.integers(0, 20), min_size=VOCABULARY, max_size=VOCABULARY).filter(any)


def whole(*probabilities: float) -> Distribution:
    """Of the ids 0, 1, 2 ..."""
    return Distribution(None, np.array(probabilities) / sum(probabilities))


def sure(token: int) -> Distribution:
    return Distribution([token], [1.0])


class Logits:
    """A target row of which ``verify`` asks what its rule needs. Implements ``TargetRow``."""

    def __init__(self, *probabilities: float) -> None:
        self.probabilities = probabilities
        self.rules: list[Rule] = []

    @property
    def best(self) -> int:
        return self.probabilities.index(max(self.probabilities))

    def distribution(self, rule: Rule, /) -> Distribution:
        self.rules.append(rule)
        return whole(*(share ** (1 / rule.temperature) for share in self.probabilities))


# Each rule


def test_the_greedy_rule_compares_the_best_ids_and_no_distribution() -> None:
    rows = [Logits(0.2, 0.8), Logits(0.6, 0.4)]
    rng = Random(1)
    assert verify(Rule(), [1], [], rows, rng) == verify_greedy([1], [1, 0]) == Verdict(1, 0)
    assert not any(row.rules for row in rows)
    assert rng.random() == Random(1).random()


def test_the_sample_rule_compares_what_its_own_temperature_and_filters_leave() -> None:
    rule = Rule(RuleKind.SAMPLE, temperature=0.5)
    rows = [Logits(0.2, 0.8), Logits(0.6, 0.4)]
    drafted_from = [whole(0.7, 0.3)]
    filtered = [whole(0.04, 0.64), whole(0.36, 0.16)]
    for seed in range(50):
        verdict = verify(rule, [0], drafted_from, rows, Random(seed))
        assert verdict == verify_sampled([0], drafted_from, filtered, Random(seed))
    assert {*rows[0].rules, *rows[1].rules} == {rule}


def test_the_threshold_rule_compares_the_targets_own_distribution_whatever_the_temperature() -> None:
    rule = Rule(RuleKind.THRESHOLD, temperature=0.5, threshold=0.7)
    rows = [Logits(0.3, 0.4, 0.3), Logits(0.1, 0.7, 0.2)]
    assert verify(rule, [0], [], rows, Random(1)) == Verdict(1, 1, is_exact=False)  # at temperature 0.5: 0.09 of 0.16, and rejected
    assert verify(rule, [0, 0], [], [*rows, rows[0]], Random(1)) == Verdict(1, 1, is_exact=False)
    assert {each.temperature for row in rows for each in row.rules} == {1.0}
    assert {(each.top_k, each.top_p, each.min_p) for row in rows for each in row.rules} == {(0, 1.0, 0.0)}


@pytest.mark.parametrize("kind", RuleKind)
def test_each_rule_needs_a_row_after_the_draft(kind: RuleKind) -> None:
    with pytest.raises(ConfigError, match=r"expected 2 .* for 1 draft tokens, got 1"):
        verify(Rule(kind, temperature=1.0), [0], [sure(0)], [Logits(0.5, 0.5)], Random(1))


# Greedy


def test_greedy_accepts_what_the_target_would_have_chosen() -> None:
    assert verify_greedy([5, 6, 7, 8], [5, 6, 9, 8, 1]) == Verdict(2, 9)
    assert verify_greedy([5, 6], [5, 6, 7]) == Verdict(2, 7)
    assert verify_greedy([5], [4, 3]) == Verdict(0, 4)
    assert verify_greedy([], [3]) == Verdict(0, 3)


@given(st.lists(st.integers(0, 3), min_size=30, max_size=30), st.integers(0, 6), st.randoms(use_true_random=False))
def test_greedy_rounds_write_the_targets_own_answer_whatever_is_drafted(noise: list[int], window: int, rng: Random) -> None:
    def target(text: list[int]) -> int:
        return (sum(text) * 7 + len(text) + noise[len(text) % 30]) % 4

    own: list[int] = []
    while len(own) < 40:
        own.append(target(own))
    text: list[int] = []
    while len(text) < 40:
        draft = [own[len(text) + place] if len(text) + place < 40 and rng.random() < 0.7 else rng.randrange(4) for place in range(window)]
        choices = [target(text + draft[:place]) for place in range(window + 1)]
        verdict = verify_greedy(draft, choices)
        text += [*draft[: verdict.accepted], verdict.token]
    assert text[:40] == own


def test_greedy_needs_a_choice_behind_the_draft() -> None:
    with pytest.raises(ConfigError, match="expected 3 choices for 2 draft tokens, got 2"):
        verify_greedy([1, 2], [1, 2])


# Sampling


@given(ids, ids)
def test_certain_distributions_make_sampling_greedy(draft: list[int], choices: list[int]) -> None:
    choices = (choices + [0] * 9)[: len(draft) + 1]
    verdict = verify_sampled(draft, [sure(token) for token in draft], [sure(token) for token in choices], Random(0))
    assert verdict == verify_greedy(draft, choices)


@settings(max_examples=examples(20, thorough=60))
@given(weights, weights, st.integers(0, 1000))
def test_the_first_token_has_the_targets_probability_for_any_pair(wanted: list[int], offered: list[int], seed: int) -> None:
    """By the sum over all draft tokens: q(y) a(y) + (rejections) (p - q)+ / |p - q|+ = p(y), with rejections drawn many times."""
    target, drafted_from = whole(*wanted), whole(*offered)
    p, q = target.probabilities, drafted_from.probabilities
    accepted = np.minimum(p, q)
    rejected = 1.0 - accepted.sum()
    residual = np.maximum(p - q, 0.0)
    exact = accepted + (residual / residual.sum() * rejected if residual.sum() > 0 else 0.0)
    assert exact == pytest.approx(p)
    rng = Random(seed)
    for _ in range(20):
        token = drafted_from.draw(rng)
        verdict = verify_sampled([token], [drafted_from], [target, target], rng)
        assert verdict.is_exact
        assert p[verdict.token] > 0.0
        if not verdict.accepted:
            assert residual[verdict.token] > 0.0


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("wanted", "offered"),
    [((0.5, 0.3, 0.15, 0.05), (0.1, 0.2, 0.3, 0.4)), ((0.97, 0.01, 0.01, 0.01), (0.25,) * 4), ((0.25,) * 4, (0.7, 0.1, 0.1, 0.1))],
)
def test_a_chi_square_finds_the_targets_distribution(wanted: tuple[float, ...], offered: tuple[float, ...], seed: int) -> None:
    target, drafted_from, rng, draws = whole(*wanted), whole(*offered), Random(seed), 10_000
    seen: Counter[int] = Counter()
    for _ in range(draws):
        token = drafted_from.draw(rng)
        verdict = verify_sampled([token], [drafted_from], [target, target], rng)
        seen[token if verdict.accepted else verdict.token] += 1
    assert surprise(seen, dict(enumerate(target.probabilities)), draws) < 1.0


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("window", [1, 2, 3])
def test_whole_texts_have_the_targets_distribution(window: int) -> None:
    """Three tokens of a context-dependent target over 4 ids: 64 texts with exact probabilities, written in rounds of any window."""
    dice = np.random.default_rng(17)
    targets = {text: whole(*dice.dirichlet([0.8] * 4)) for size in range(3) for text in product(range(4), repeat=size)}
    drafts = {text: whole(*dice.dirichlet([0.8] * 4)) for text in targets}
    anything = whole(1, 1, 1, 1)  # behind the third token, where nobody looks
    exact = {
        text: math.prod(targets[text[:place]].probabilities[text[place]] for place in range(3)) for text in product(range(4), repeat=3)
    }
    rng, draws = Random(18), 8_000
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(draws):
        text: tuple[int, ...] = ()
        while len(text) < 3:
            draft: list[int] = []
            for _ in range(window):
                draft.append(drafts.get((*text, *draft), anything).draw(rng))
            behind = [(*text, *draft[:place]) for place in range(window + 1)]
            rows = [drafts.get(place, anything) for place in behind[:window]]
            verdict = verify_sampled(draft, rows, [targets.get(place, anything) for place in behind], rng)
            text = (*text, *draft[: verdict.accepted], verdict.token)
        seen[text[:3]] += 1
    assert surprise(seen, exact, draws) < 1.0


def test_the_chi_square_would_find_a_wrong_residual() -> None:
    """Corrections drawn from p instead of (p - q)+: the test above must be able to fail."""
    target, drafted_from, rng, draws = whole(0.5, 0.3, 0.15, 0.05), whole(0.1, 0.2, 0.3, 0.4), Random(1), 10_000
    seen: Counter[int] = Counter()
    for _ in range(draws):
        token = drafted_from.draw(rng)
        verdict = verify_sampled([token], [drafted_from], [target, target], rng)
        seen[token if verdict.accepted else target.draw(rng)] += 1
    assert surprise(seen, dict(enumerate(target.probabilities)), draws) > 10.0


def test_drafting_from_a_top_k_stays_exact_because_what_is_sent_is_what_was_drawn_from() -> None:
    target, rng, draws = whole(0.4, 0.3, 0.2, 0.1), Random(4), 10_000
    top_two = Distribution([3, 1], [0.75, 0.25])
    seen: Counter[int] = Counter()
    for _ in range(draws):
        token = top_two.draw(rng)
        verdict = verify_sampled([token], [top_two], [target, target], rng)
        assert verdict.is_exact
        seen[token if verdict.accepted else verdict.token] += 1
    assert surprise(seen, dict(enumerate(target.probabilities)), draws) < 1.0


def test_cut_distributions_are_said_to_be_approximate() -> None:
    cut = Distribution([0, 1], [0.5, 0.3])
    full = whole(0.5, 0.3, 0.2)
    assert not cut.is_whole
    assert not verify_sampled([0], [full], [cut, full], Random(0)).is_exact
    assert not verify_sampled([0], [full], [full, cut], Random(0)).is_exact
    assert not verify_sampled([0], [cut], [full, full], Random(0)).is_exact
    assert verify_sampled([0], [full], [full, full], Random(0)).is_exact


def test_a_residual_of_nothing_known_falls_back_on_the_targets_other_ids() -> None:
    target = Distribution([2, 1], [0.1, 0.05])  # most of p isn't listed
    verdict = verify_sampled([2], [Distribution([2, 1], [0.9, 0.1])], [target, target], Random(3))
    assert verdict == Verdict(0, 1, is_exact=False)
    lonely = Distribution([2], [0.1])
    assert verify_sampled([2], [sure(2)], [lonely, lonely], Random(3)) == Verdict(0, 2, is_exact=False)


def test_a_residual_doesnt_check_the_ids_of_a_whole_vocabulary_again(monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafted = Distribution(None, [0.5, 0.3, 0.2]), Distribution([0], [1.0])
    monkeypatch.setattr(Distribution, "__init__", lambda *_: pytest.fail("which takes long"))
    left = residual(target, drafted, 0)
    assert left is not None
    assert left.ids is target.ids
    assert left.is_whole
    assert left.probabilities == pytest.approx([0.0, 0.6, 0.4])


def test_the_targets_own_bonus_is_taken() -> None:
    row = whole(0.5, 0.5)
    assert verify_sampled([0, 1], [row, row], [row, row], Random(0), bonus=77) == Verdict(2, 77)


def test_equal_distributions_accept_everything_without_dice() -> None:
    row, rng = whole(0.1, 0.2, 0.7), Random(0)
    before = rng.getstate()
    assert verify_sampled([0, 1, 2], [row] * 3, [row] * 3, rng, bonus=1).accepted == 3
    assert rng.getstate() == before


@pytest.mark.parametrize(("wanted", "offered"), [((0.6, 0.3, 0.1), (0.3, 0.3, 0.4)), ((0.9, 0.1), (0.2, 0.8))])
def test_the_acceptance_rate_is_the_overlap_of_the_distributions(wanted: tuple[float, ...], offered: tuple[float, ...]) -> None:
    target, drafted_from, rng = whole(*wanted), whole(*offered), Random(5)
    accepted = [verify_sampled([drafted_from.draw(rng)], [drafted_from], [target, target], rng).accepted for _ in range(10_000)]
    assert np.mean(accepted) == pytest.approx(np.minimum(target.probabilities, drafted_from.probabilities).sum(), abs=0.016)


def test_a_large_vocabulary_is_corrected_like_a_small_one() -> None:
    dice = np.random.default_rng(6)
    p = dice.dirichlet(np.full(50_000, 0.01))
    top = np.argsort(-p)[:40][::-1]
    offered = Distribution(top, np.full(40, 1 / 40))
    target = Distribution(None, p)
    residual = p.copy()
    residual[top] -= 1 / 40
    worst = int(top[0])
    for seed in range(40):
        verdict = verify_sampled([worst], [offered], [target, target], Random(seed))
        assert verdict.accepted or residual[verdict.token] > 0


def test_rows_that_do_not_fit_are_refused() -> None:
    row = whole(0.5, 0.5)
    with pytest.raises(ConfigError, match="a distribution for each of 2 draft tokens, got 1"):
        verify_sampled([0, 1], [row], [row] * 3, Random(0))
    with pytest.raises(ConfigError, match="expected 2 target distributions"):
        verify_sampled([0], [row], [row], Random(0))
    with pytest.raises(ConfigError, match="draft token 0 to be in its distribution, got id 9"):
        verify_sampled([9], [row], [row, row], Random(0))


@pytest.mark.parametrize(
    ("tokens", "probabilities"),
    [([], []), ([1, 2], [0.5]), ([1, 1], [0.5, 0.5]), ([1, 2], [1.5, -0.5]), ([1], [1.1]), ([1], [0.0]), ([1], [math.nan])],
)
def test_what_is_no_distribution_is_refused(tokens: list[int], probabilities: list[float]) -> None:
    with pytest.raises(ConfigError, match="distribution: expected"):
        Distribution(tokens, probabilities)


# The threshold rule


def test_the_threshold_is_relative_to_the_targets_best() -> None:
    rows = [whole(0.5, 0.3, 0.2), whole(0.4, 0.35, 0.25), whole(0.9, 0.1)]
    assert verify_threshold([1, 1], rows, 0.6) == Verdict(2, 0, is_exact=False)
    assert verify_threshold([2, 1], rows, 0.6) == Verdict(0, 0, is_exact=False)
    assert verify_threshold([1, 2], rows, 0.6) == Verdict(2, 0, is_exact=False)
    assert verify_threshold([1, 9], rows, 0.6) == Verdict(1, 0, is_exact=False)


@given(st.lists(weights, min_size=1, max_size=6), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.randoms(use_true_random=False))
def test_a_stricter_threshold_never_accepts_more(rows: list[list[int]], one: float, other: float, rng: Random) -> None:
    target = [whole(*row) for row in rows]
    draft = [rng.randrange(VOCABULARY) for _ in rows[1:]]
    low, high = sorted((one, other))
    assert verify_threshold(draft, target, low).accepted >= verify_threshold(draft, target, high).accepted
    assert verify_threshold(draft, target, 0.0).accepted == len(draft)


@given(st.lists(st.permutations(range(1, VOCABULARY + 1)), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_threshold_of_1_is_greedy_where_nothing_ties(rows: list[list[int]], rng: Random) -> None:
    target = [whole(*row) for row in rows]
    draft = [rng.choice([row.best, rng.randrange(VOCABULARY)]) for row in target[1:]]
    greedy = verify_greedy(draft, [row.best for row in target])
    assert verify_threshold(draft, target, 1.0) == Verdict(greedy.accepted, greedy.token, is_exact=False)


def test_a_threshold_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ConfigError, match="threshold: expected a share"):
        verify_threshold([], [whole(1.0)], 2.0)


# The acceptance rate


def test_expected_tokens_are_the_papers_formula() -> None:
    for alpha, window in product((0.0, 0.3, 0.7, 0.95), (0, 1, 4, 12)):
        assert expected_tokens(alpha, window) == pytest.approx((1 - alpha ** (window + 1)) / (1 - alpha))
    assert expected_tokens(0.7, 4) == pytest.approx(2.7731)
    assert expected_tokens(1.0, 4) == 5.0


@given(st.floats(0.0, 1.0), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_the_solved_rate_gives_the_tokens_that_were_counted(alpha: float, windows: list[int]) -> None:
    rng = Random(f"{alpha} {windows}")
    rounds = []
    for window in windows * 20:
        accepted = next((place for place in range(window) if rng.random() >= alpha), window)
        rounds.append((window, accepted + 1))
    solved = solve_acceptance(rounds)
    assert solved is not None
    assert sum(expected_tokens(solved, window) for window, _ in rounds) == pytest.approx(sum(tokens for _, tokens in rounds))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.75, 0.9])
def test_the_solved_rate_is_the_true_one_after_many_rounds(alpha: float) -> None:
    rng = Random(9)
    rounds = [(4, 1 + next((place for place in range(4) if rng.random() >= alpha), 4)) for _ in range(10_000)]
    assert solve_acceptance(rounds) == pytest.approx(alpha, abs=0.015)


def test_rates_at_the_ends_are_solved_too() -> None:
    assert solve_acceptance([(4, 1)] * 3) == pytest.approx(0.0, abs=1e-9)
    assert solve_acceptance([(4, 5)] * 3) == pytest.approx(1.0, abs=1e-9)
    assert solve_acceptance([]) is None
    assert solve_acceptance([(0, 1)]) is None


@pytest.mark.parametrize("impossible", [(4, 0), (4, 6), (0, 2)])
def test_a_round_that_cannot_be_is_refused(impossible: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="rounds of 1 to window"):
        solve_acceptance([impossible])


def test_the_chi_squares_limit_is_the_tables() -> None:
    """99.9 % points: 16.27 of 3 degrees of freedom, 103.44 of 63."""
    for cells, limit in ((4, 16.266), (64, 103.442)):
        even = dict.fromkeys(range(cells), 1.0 / cells)
        seen = Counter(dict.fromkeys(range(cells), 100)) + Counter({0: 10})
        seen[1] -= 10
        assert surprise(seen, even, 100 * cells) == pytest.approx(2.0 / limit, rel=0.02)
