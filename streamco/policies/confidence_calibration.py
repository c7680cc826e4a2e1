"""How often a draft token of some confidence is accepted: learned from verdicts.

A draft model's probability is no probability of acceptance: a greedy verifier accepts whatever it would have chosen too, so that tokens of
which the model is hardly sure are often right, and those of which it is rather sure nearly always. The paper's forecast of the rejection
(``rejection.forecast_rejection``) takes one rate for all tokens and bends it by confidence; with a rate for each range of confidences the
chance of every token is known by itself, and so is how far a draft is worth making (``window.Confident``).
"""

from __future__ import annotations

from bisect import bisect_right

from streamco.config import check_share

__all__ = ["ConfidenceCalibration"]

_EDGES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # between the ranges
_CENTRES = (0.1, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.925, 0.97, 1.0)
_PRIOR_TOKENS = 4.0  # that the prior stands for in each range
_MEMORY = 0.99  # what a token counts for after the next one of its range
_SUREST = 0.99  # nothing is believed beyond


class ConfidenceCalibration:
    """Of acceptance, by confidence.

    Args:
        acceptance: of tokens in general, believed at first, 0..1.
        mean_confidence: of tokens in general; None: as the acceptance.

    Raises:
        ConfigError: one of them outside 0..1.
    """

    def __init__(self, acceptance: float, mean_confidence: float | None = None) -> None:
        mean = acceptance if mean_confidence is None else mean_confidence
        check_share("acceptance", acceptance)
        check_share("mean confidence", mean)
        # As in section 4.4, a token is rejected in proportion to what its confidence leaves.
        slope = (1.0 - acceptance) / max(0.01, 1.0 - mean)
        believed = [min(_SUREST, max(0.0, 1.0 - slope * (1.0 - centre))) for centre in _CENTRES]
        self._tried = [_PRIOR_TOKENS] * len(_CENTRES)
        self._accepted = [_PRIOR_TOKENS * chance for chance in believed]

    def acceptance(self, confidence: float) -> float:
        """Of a token of this confidence to be accepted if it is judged, 0..1."""
        position = bisect_right(_EDGES, confidence)
        return min(_SUREST, self._accepted[position] / self._tried[position])

    def record(self, confidence: float, *, is_accepted: bool) -> None:
        """A token was judged for itself: everything in front of it had been accepted."""
        position = bisect_right(_EDGES, confidence)
        self._tried[position] = self._tried[position] * _MEMORY + 1.0
        self._accepted[position] = self._accepted[position] * _MEMORY + is_accepted
