"""Confidence calibration: how often a draft token of a certain confidence is accepted, learned from verdicts.

The probability c that the draft model gives its token is not the probability that the token is accepted. A greedy verifier accepts every
token that it would have chosen too, so tokens of low confidence are often right, and tokens of rather high confidence are nearly always
right.

No paper has this calibration. Synera's rejection forecast (section 4.4, ``rejection.forecast_rejection``) has one acceptance rate alpha for
all tokens and adjusts it by confidence. Here each range of confidences has its own rate. So the acceptance of every single token is known,
which tells how long a draft is worth continuing (``window.Confident``).
"""

from __future__ import annotations

from bisect import bisect_right

from streamco.config import check_share

__all__ = ["ConfidenceCalibration"]

_EDGES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # between the ranges
_CENTRES = (0.1, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.925, 0.97, 1.0)
_PRIOR_TOKENS = 4.0  # weight of the prior in each range
_MEMORY = 0.99  # weight of a token once the next token in its range has come
_MAX_ACCEPTANCE = 0.99  # upper limit of an estimate


class ConfidenceCalibration:
    """Learns acceptance rates by confidence. Each pair of models has its own object.

    Args:
        acceptance: alpha, the prior mean acceptance of draft tokens, 0..1.
        mean_confidence: mean confidence of draft tokens, 0..1. None means the same as ``acceptance``.

    Raises:
        ConfigError: ``acceptance`` or ``mean_confidence`` is outside 0..1.
    """

    def __init__(self, acceptance: float, mean_confidence: float | None = None) -> None:
        mean = acceptance if mean_confidence is None else mean_confidence
        check_share("acceptance", acceptance)
        check_share("mean confidence", mean)
        # As in Synera section 4.4, the probability of a rejection is proportional to 1 - c.
        slope = (1.0 - acceptance) / max(0.01, 1.0 - mean)
        prior = [min(_MAX_ACCEPTANCE, max(0.0, 1.0 - slope * (1.0 - centre))) for centre in _CENTRES]
        self._tried = [_PRIOR_TOKENS] * len(_CENTRES)
        self._accepted = [_PRIOR_TOKENS * share for share in prior]

    def acceptance(self, confidence: float) -> float:
        """Return the probability that a token of this confidence is accepted if all tokens before it are, 0..1."""
        position = bisect_right(_EDGES, confidence)
        return min(_MAX_ACCEPTANCE, self._accepted[position] / self._tried[position])

    def record(self, confidence: float, *, is_accepted: bool) -> None:
        """Record the verdict on a token. All tokens before it in the draft must have been accepted."""
        position = bisect_right(_EDGES, confidence)
        self._tried[position] = self._tried[position] * _MEMORY + 1.0
        self._accepted[position] = self._accepted[position] * _MEMORY + is_accepted
