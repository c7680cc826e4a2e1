"""Predictions from rows of logits."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from streamco.config import SamplingOptions
from streamco.engines.base import Prediction
from streamco.engines.sampling import Sampler, top_probabilities
from streamco.errors import ConfigError
from streamco.wire.verify.topk import MAX_IDS, TopK, quantise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Logits = NDArray[np.float32]

__all__ = ["MAX_ALTERNATIVES", "Predictor"]

MAX_ALTERNATIVES = 1024  # for each position; an exact residual needs as many as the sampling options' top_k


class Predictor:
    """Makes the predictions of one task.

    Args:
        sampling: the options for drawing tokens.
        top: number of alternatives for each position.
        row_ids: maximum number of ids in a row. Tokens are then drawn from rows with whole numbers as weights. 0 for no rows.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(self, sampling: SamplingOptions, top: int, row_ids: int = 0) -> None:
        if not 0 <= top <= MAX_ALTERNATIVES:
            raise ConfigError(f"top: expected 0 to {MAX_ALTERNATIVES}, got {top}")
        if not 0 <= row_ids <= MAX_IDS:
            raise ConfigError(f"row_ids: expected 0 to {MAX_IDS}, got {row_ids}")
        if names := sampling.adjustments():
            raise ConfigError(f"{names[0]}: expected none for tokens that are drafted, got {getattr(sampling, names[0])}")
        self._sampler = Sampler(sampling)
        self._greedy = Sampler(SamplingOptions(temperature=0))
        self._top = top
        self._row_ids = row_ids

    def read_row(self, logits: Logits, position: int, token: int | None) -> Prediction:
        """Return the prediction for a position that holds ``token``.

        Raises:
            EngineError: the logits are not numbers.
        """
        if not self._top:
            return Prediction(position=position, greedy=self._greedy.draw(logits), token=token)
        ids, weights = self._sampler.distribution(logits)
        return self._predict(logits, position, token, ids, weights)

    def draw(self, logits: Logits, position: int) -> Prediction:
        """Return the prediction for a position, with a token drawn from it.

        Raises:
            EngineError: the logits are not numbers.
        """
        ids, weights = self._sampler.distribution(logits)
        if not self._row_ids:
            return self._predict(logits, position, self._sampler.draw_from(ids, weights), ids, weights)
        pairs = zip(ids[: self._row_ids].tolist(), weights[: self._row_ids].tolist(), strict=True)
        row = quantise([(choice, weight) for choice, weight in pairs if weight > 0.0], is_whole=True)
        return self._predict(logits, position, self._sampler.draw_weighted(row.ids, row.weights), ids, weights, row=row)

    def _predict(
        self,
        logits: Logits,
        position: int,
        token: int | None,
        ids: NDArray[np.int64],
        weights: NDArray[np.float64],
        *,
        row: TopK | None = None,
    ) -> Prediction:
        top = self._top
        likeliest = top_probabilities(logits, max(2, top))
        best, highest = likeliest[0]
        return Prediction(
            position=position,
            greedy=best,
            token=token,
            probability=None if token is None else float(weights[ids == token].sum()),
            drawable=tuple(zip(ids[:top].tolist(), weights[:top].tolist(), strict=True)),
            is_complete=len(ids) <= top,
            likeliest=likeliest,
            logits=tuple(logits[[choice for choice, _ in likeliest]].tolist()),
            share=None if token is None else highest * exp(float(logits[token]) - float(logits[best])),
            row=row,
        )
