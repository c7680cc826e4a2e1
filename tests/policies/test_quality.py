"""Scores of a device's answer: between 0 and 1 whatever the facts are, learned from ratings alone, and a threshold that spends a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.quality import (
    MAX_LABELS,
    MIN_LABELS,
    AnswerFacts,
    LearnedScore,
    Perplexity,
    Score,
    SteeredThreshold,
    fit_logistic,
)
from streamco.profiles.rated_answer import RatedAnswer
from tests.support.examples import examples

probabilities = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 1.0, 1.0000001, math.nan]))
any_facts = st.builds(
    AnswerFacts,
    probabilities=st.lists(probabilities, min_size=1, max_size=20).map(tuple),
    is_complete=st.booleans(),
    prompt_tokens=st.integers(0, 1_000_000),
    task=st.one_of(st.none(), st.sampled_from("abc"), st.text(max_size=3)),
)


def facts(*sure: float, task: str | None = None, prompt_tokens: int = 100) -> AnswerFacts:
    return AnswerFacts(probabilities=sure, is_complete=False, prompt_tokens=prompt_tokens, task=task)


def rate(rng: Random, count: int, *, tasks: str = "a") -> list[tuple[AnswerFacts, bool]]:
    """Answers that are good as often as their tokens are likely."""
    found = []
    for _ in range(count):
        sure = rng.uniform(0.05, 0.95)
        found.append((facts(*[sure] * 8, task=rng.choice(tasks), prompt_tokens=rng.randint(10, 500)), rng.random() < sure))
    return found


def learn(rated: Sequence[tuple[AnswerFacts, bool]], *, min_labels: int = MIN_LABELS) -> LearnedScore:
    learned = LearnedScore(min_labels=min_labels)
    for each, good in rated:
        learned.observe(each, good)
    return learned


# Any score


@given(any_facts)
def test_a_score_is_between_0_and_1_whatever_the_facts_are(given_facts: AnswerFacts) -> None:
    scores: list[Score] = [Perplexity(), LearnedScore(), learn(rate(Random(1), 200, tasks="abc"))]
    for each in scores:
        assert 0.0 <= each.score(given_facts) <= 1.0


@settings(max_examples=examples(20, thorough=200), deadline=None)
@given(st.lists(st.tuples(any_facts, st.booleans()), min_size=2, max_size=40), any_facts)
def test_whatever_was_rated_the_score_is_between_0_and_1_and_the_same_again(
    rated: list[tuple[AnswerFacts, bool]], asked: AnswerFacts
) -> None:
    learned = learn(rated, min_labels=2)
    assert 0.0 <= learned.score(asked) <= 1.0
    assert learned.score(asked) == learn(rated, min_labels=2).score(asked)


def test_the_plain_score_is_the_geometric_mean_of_at_most_16_tokens() -> None:
    assert Perplexity().score(facts(0.5, 0.5)) == pytest.approx(0.5)
    assert Perplexity().score(facts(0.9, 0.1)) == pytest.approx(0.3)
    assert Perplexity().score(facts(*[0.5] * 16, 0.0)) == pytest.approx(0.5)
    assert Perplexity().score(facts(0.0)) == pytest.approx(1e-6)


# What is learned


def test_a_device_that_is_good_when_it_is_sure_gets_a_score_that_rises() -> None:
    learned = learn([(each, each.probabilities[0] > 0.5) for each, _ in rate(Random(2), 300)])
    scores = [learned.score(facts(*[sure / 100.0] * 8, task="a")) for sure in range(5, 100, 5)]
    assert scores == sorted(scores)
    assert scores[0] < 0.1
    assert scores[-1] > 0.9


def test_a_device_that_is_wrong_when_it_is_sure_gets_a_score_that_falls() -> None:
    learned = learn([(each, each.probabilities[0] < 0.5) for each, _ in rate(Random(2), 300)])
    assert learned.score(facts(*[0.9] * 8)) < 0.2
    assert learned.score(facts(*[0.1] * 8)) > 0.8


def test_a_score_is_a_probability() -> None:
    rng = Random(3)

    def draw(count: int) -> list[tuple[AnswerFacts, bool]]:
        found = []
        for _ in range(count):
            sure = rng.uniform(0.05, 0.95)
            found.append((facts(*[sure] * 8), rng.random() < 1.0 / (1.0 + math.exp(-1.0 - 1.5 * math.log(sure)))))
        return found

    learned, fresh = learn(draw(MAX_LABELS)), draw(4000)
    scored = sorted((learned.score(each), good) for each, good in fresh)
    for part in np.array_split(np.array(scored, dtype=float), 5):
        assert part[:, 0].mean() == pytest.approx(part[:, 1].mean(), abs=0.06)


def test_a_task_that_fails_more_often_is_scored_lower_and_an_unknown_one_counts_as_an_average_one() -> None:
    rated = [(facts(*[0.8] * 4, task="bad" if number % 2 else "fine"), number % 2 == 0 or number % 20 == 1) for number in range(200)]
    learned = learn(rated)
    bad, fine, unknown, none = (learned.score(facts(*[0.8] * 4, task=task)) for task in ("bad", "fine", "new", None))
    assert bad < 0.2 < unknown < 0.9 < fine
    assert unknown == none


def test_the_16_tasks_that_were_rated_most_often_have_a_weight() -> None:
    often = [(facts(0.8, task=f"often {number % 16}"), number % 3 == 0) for number in range(160)]
    learned = learn([*often, *((facts(0.8, task=f"once {number}"), False) for number in range(40))])
    assert learned.score(facts(0.8, task="once 3")) == learned.score(facts(0.8, task="never"))
    assert learned.score(facts(0.8, task="often 3")) != learned.score(facts(0.8, task="never"))


def test_what_was_never_seen_counts_as_the_most_extreme_that_was() -> None:
    learned = learn(rate(Random(4), 200))
    longest = max(each.prompt_tokens for each in learned.examples)
    assert learned.score(facts(0.5, prompt_tokens=longest)) == learned.score(facts(0.5, prompt_tokens=1_000_000))


# Its labels


def test_until_there_are_enough_ratings_of_both_kinds_the_score_is_the_plain_one() -> None:
    rated = rate(Random(5), MIN_LABELS)
    few = learn(rated[1:])
    assert not few.is_ready
    assert few.score(facts(0.9, 0.1)) == pytest.approx(0.3)
    assert learn(rated).is_ready
    alike = learn([(each, True) for each, _ in rate(Random(5), 3 * MIN_LABELS)])
    assert not alike.is_ready
    assert alike.score(facts(0.9, 0.1)) == pytest.approx(0.3)


def test_the_latest_ratings_count_and_no_more() -> None:
    learned = learn([*((facts(0.5), False) for _ in range(300)), *((facts(0.5), True) for _ in range(MAX_LABELS - 150))])
    assert learned.labels == len(learned.examples) == MAX_LABELS
    ready = []
    for _ in range(141):
        ready.append(learned.is_ready)
        learned.observe(facts(0.5), good=True)
    assert all(ready)
    assert not learned.is_ready
    assert sum(not each.good for each in learned.examples) == 9


def test_examples_are_numbers_and_a_score_made_of_them_is_the_same() -> None:
    learned = learn(rate(Random(6), 200, tasks="abc"))
    stored = msgspec.json.encode(learned.examples)
    again = LearnedScore(msgspec.json.decode(stored, type=list[RatedAnswer]))
    assert again.examples == learned.examples
    for asked, _ in rate(Random(7), 20, tasks="abcd"):
        assert again.score(asked) == learned.score(asked)
    kinds = {type(value) for each in learned.examples for value in msgspec.structs.asdict(each).values()}
    assert kinds == {float, int, bool, str}  # the only text is the task's name
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(stored.replace(b'"mean":0.', b'"mean":7.'), type=list[RatedAnswer])


def test_a_fit_is_made_again_when_a_twentieth_of_the_labels_is_new() -> None:
    learned, asked = learn(rate(Random(8), 200)), facts(0.6)
    before = learned.score(asked)
    for _ in range(10):
        learned.observe(asked, good=False)
        assert learned.score(asked) == before
    learned.observe(asked, good=False)
    assert learned.score(asked) < before


def test_two_labels_are_needed_at_least() -> None:
    with pytest.raises(ConfigError, match="expected min_labels of 2 or more, got 1"):
        LearnedScore(min_labels=1)


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_a_regression_ends_where_its_slope_is_0_also_for_labels_that_a_line_separates(scale: float, share: float) -> None:
    dice = np.random.default_rng(9)
    rows = np.column_stack([np.ones(100), scale * dice.normal(size=(100, 3))])
    labels, penalties = (rows[:, 1] > np.quantile(rows[:, 1], 1.0 - share)).astype(float), np.array([1e-3, 1.0, 1.0, 1.0])
    weights = fit_logistic(rows, labels, penalties)
    slope = rows.T @ (1.0 / (1.0 + np.exp(-rows @ weights)) - labels) + penalties * weights
    assert np.abs(slope).max() < 1e-3


# The threshold


answers = st.lists(
    st.tuples(st.none() | st.floats(0.0, 1.0), st.integers(1, 500)), min_size=60, max_size=120, unique_by=lambda each: each[0] or object()
)


def steered(recorded: Sequence[tuple[float | None, int]]) -> SteeredThreshold:
    threshold = SteeredThreshold()
    for score, tokens in recorded:
        threshold.record(score, tokens)
    return threshold


@given(answers, st.floats(0.0, 1.0))
def test_the_budget_is_spent_to_within_the_tokens_of_one_answer(recorded: list[tuple[float | None, int]], budget: float) -> None:
    known = [(score, tokens) for score, tokens in recorded if score is not None]
    found = steered(recorded).threshold(budget)
    if len(known) < 20:
        assert found == 0.5
        return
    assert 0.0 <= found <= 0.9
    left = budget * sum(tokens for _, tokens in recorded)
    below = sum(tokens for score, tokens in known if score < found)
    assert below <= left + 1e-3
    if found < 0.9:
        assert below + sum(tokens for score, tokens in known if score == found) > left


@given(answers)
def test_a_larger_budget_never_lowers_the_threshold(recorded: list[tuple[float | None, int]]) -> None:
    threshold = steered(recorded)
    found = [threshold.threshold(budget / 10.0) for budget in range(11)]
    assert found == sorted(found)


def test_a_threshold_is_a_half_until_20_scores_are_known() -> None:
    threshold = SteeredThreshold()
    for number in range(20):
        assert threshold.threshold(0.2) == 0.5
        threshold.record(None, 10)
        threshold.record(0.01 * number, 10)
    assert threshold.threshold(0.2) < 0.2


def test_answers_with_equal_scores_stay_on_one_side() -> None:
    assert steered([*[(0.1, 10)] * 20, *[(0.7, 10)] * 80]).threshold(0.5) == 0.7
    assert steered([(0.95, 10)] * 30).threshold(0.5) == 0.9


def test_a_threshold_follows_the_last_256_answers() -> None:
    assert steered([*[(0.1, 10)] * 300, *[(0.6, 10)] * 256]).threshold(0.5) == 0.6


def test_a_budget_is_a_share() -> None:
    with pytest.raises(ConfigError, match="budget"):
        SteeredThreshold().threshold(1.5)
