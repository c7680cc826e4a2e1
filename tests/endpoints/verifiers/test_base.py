"""Facts of a verifier about its rules, and the seeds of continuations."""

from __future__ import annotations

import pytest

from streamco.endpoints.verifiers.base import VerifierFacts, continuation_seed
from streamco.policies.acceptance import Rule, RuleKind


@pytest.mark.parametrize(
    ("rule", "samples_exactly", "expected"),
    [
        (Rule(), False, True),
        (Rule(RuleKind.SAMPLE, 1.0, top_k=20), False, True),
        (Rule(RuleKind.SAMPLE, 1.0, top_k=21), False, False),
        (Rule(RuleKind.SAMPLE, 1.0), False, False),
        (Rule(RuleKind.SAMPLE, 1.0), True, True),
        (Rule(RuleKind.THRESHOLD, threshold=0.1), True, False),
    ],
)
def test_an_answer_is_the_targets_own_by_greedy_and_exact_sampling(rule: Rule, samples_exactly: bool, expected: bool) -> None:
    facts = VerifierFacts(model="m", rules=frozenset(RuleKind), draft_tokens=8, top_k=20, samples_exactly=samples_exactly)
    assert facts.is_exact(rule) is expected


@pytest.mark.parametrize("seed", [0, 3, (1 << 32) - 1])
def test_seeds_differ_by_the_length_of_the_answer_and_fit_their_place(seed: int) -> None:
    seeds = [continuation_seed(seed, tokens) for tokens in range(5000)]
    assert seeds[0] == seed
    assert len(set(seeds)) == len(seeds)
    assert all(found is not None and 0 <= found < 1 << 32 for found in seeds)
    assert continuation_seed(None, 5) is None
    assert continuation_seed(-1, 0) == -1
