"""The ratio of two sums over texts, and its standard error."""

from __future__ import annotations

import numpy as np
import pytest

from bench.ratio import ratio


def test_the_standard_error_is_that_of_texts_drawn_again() -> None:
    random = np.random.default_rng(1)
    rounds = random.integers(20, 60, 200)
    counts = [(int(number * random.uniform(1, 3)), int(number)) for number in rounds]
    mean, error = ratio(counts)
    assert mean == pytest.approx(sum(tokens for tokens, _ in counts) / sum(rounds))
    again = [ratio([counts[place] for place in random.integers(0, 200, 200)])[0] for _ in range(2000)]
    assert error == pytest.approx(np.std(again), rel=0.1)
    assert ratio([(6, 3)]) == (2.0, 0.0)
    assert ratio([]) == (0.0, 0.0)
