"""Answer routing: chooses the answers that are left entirely to the server, because the draft model's perplexity on them is high.

This is the input-level baseline in Synera's evaluation, EdgeFM-LLM (section 6.1): hard samples, with high perplexity, go to the server, and
the device answers the others alone. The paper doesn't say which text's perplexity is used. Here it is the perplexity of the first tokens
that the draft model writes itself, so that little time is lost if the answer is then left to the server.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from random import Random

from streamco.config import check_share

__all__ = ["PREFIX", "AnswerRouting", "perplexity"]

PREFIX = 16  # tokens that the draft model writes before the choice

_WINDOW = 256  # latest answers that determine the threshold
_ENOUGH = 8  # until this many answers are known, the choice is random
_HORIZON = 16  # answers within which a deviation from the budget is made up for
_LEAST = 1e-4  # stands for a probability that was rounded to 0


def perplexity(confidences: Sequence[float]) -> float:
    """Return the perplexity of greedy tokens, exp(-mean log c), which is at least 1, and exactly 1 if there are no tokens.

    Args:
        confidences: the draft model's probability of each token, 0..1.
    """
    if not confidences:
        return 1.0
    return math.exp(-sum(math.log(max(_LEAST, confidence)) for confidence in confidences) / len(confidences))


class AnswerRouting:
    """Chooses for each answer whether the server writes all of it, so that the share of such answers meets the budget.

    Args:
        budget: share of the answers that the server writes, 0..1.
        perplexities: perplexities of earlier answers, oldest first.

    Attributes:
        answers: number of answers so far.
        sent: how many of them the server writes.

    Raises:
        ConfigError: the budget is outside 0..1.
    """

    def __init__(self, budget: float, perplexities: Iterable[float] = ()) -> None:
        check_share("budget", budget)
        self.budget = budget
        self.answers = self.sent = 0
        self._seen = deque(perplexities, maxlen=_WINDOW)

    def choose(self, perplexity: float, rng: Random) -> bool:
        """Return True if the server writes this answer, and count it.

        Args:
            perplexity: perplexity of the draft model's first tokens, 1 or more.
            rng: used while too few answers are known.
        """
        aim = min(1.0, max(0.0, self.budget + (self.budget * self.answers - self.sent) / _HORIZON))
        if not 0.0 < self.budget < 1.0:
            is_sent = self.budget >= 1.0
        elif len(self._seen) < _ENOUGH:
            is_sent = rng.random() < aim
        else:
            is_sent = perplexity > self._threshold(aim)
        self._seen.append(perplexity)
        self.answers += 1
        self.sent += is_sent
        return is_sent

    def _threshold(self, share: float) -> float:
        """Return the perplexity that this share of the known answers exceeds."""
        ranked = sorted(self._seen)
        position = math.ceil((1.0 - share) * len(ranked) - 1e-9)
        return ranked[position - 1] if position else 0.0
