"""Which figures of several verifiers are shown."""

from __future__ import annotations

import asyncio

from bench.speculate import Tally
from bench.trees import Recorded
from bench.verifier_pool import DEVICES, Seen, answer_all, rows_of

SHARES = (0.6, 0.3, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_a_contender_with_late_rounds_has_no_other_figures() -> None:
    seen = {
        "jsq": Seen(Tally(seconds=[1.0, 2.0], tokens=[20, 20], verdicts=100, late=1), [1, 3]),
        "random": Seen(Tally(seconds=[1.0], tokens=[20], verdicts=100, late=9), [2, 2]),
    }
    found = {(row.contender, row.metric): row.median for row in rows_of("case", seen)}
    assert found == {
        ("jsq", "rounds that took longer than imposed"): 0.01,
        ("jsq", "a token, mean of answers"): 75.0,
        ("jsq", "a token, slowest tenth of answers"): 100.0,
        ("jsq", "sessions at the busy server"): 0.25,
        ("random", "rounds that took longer than imposed"): 0.09,
    }


def test_every_device_says_every_prompt_at_one_of_two_servers() -> None:
    answers = [Recorded("code", (0,) * 6, (SHARES,) * 6)] * 3
    seen = asyncio.run(answer_all("round-robin", answers, 1))
    assert seen.tally.tokens == [6] * DEVICES, "two of three answers are warm-ups"
    assert len(seen.answers) == 2
    assert min(seen.answers) >= 1
