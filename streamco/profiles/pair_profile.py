"""Measurements of a draft model and its verifier, as data."""

from __future__ import annotations

import math

from msgspec import Struct

from streamco.errors import ConfigError

__all__ = ["PairProfile"]


class PairProfile(Struct, frozen=True, kw_only=True):
    """The figures of a draft and a target model as measured by ``streamco calibrate --pair`` (Synera section 5). Times are in seconds;
    None if a figure isn't known.

    Args:
        draft, target: names of the models.
        window: number of tokens in each verified draft (gamma).
        rounds: number of verified drafts.
        acceptance: probability that a draft token is accepted (alpha), solved from E = (1 - alpha^(gamma + 1)) / (1 - alpha).
        hit_rate: share of rounds for which a pre-drafted branch would have matched the verdict, with the times below.
        mean_confidence: mean confidence of draft tokens.
        confidence_threshold: mean confidence of chunks that were accepted whole (c_th).
        importance_thresholds: pairs (budget, i_th), in which the share ``budget`` of the chunks is more important than i_th.
        chunks: (confidence, importance) of each chunk, for the first plan with a budget.
        rtt: round-trip time of the link.
        wait: time from sending a draft to its verdict.
        step_times: the draft model's time to decode one token for each of 1, 2, ... sequences in one batch.
        verify_times: pairs (drafted tokens, time of the verifier's batch).
        remote_step: time between two tokens of the target model when it generates alone.
        note: remarks for a reader of the figures.

    Raises:
        ConfigError: a figure is impossible.
    """

    draft: str = ""
    target: str = ""
    window: int
    rounds: int
    acceptance: float
    hit_rate: float | None = None
    mean_confidence: float | None = None
    confidence_threshold: float | None = None
    importance_thresholds: tuple[tuple[float, float], ...] = ()
    chunks: tuple[tuple[float, float | None], ...] = ()
    rtt: float | None = None
    wait: float
    step_times: tuple[float, ...]
    verify_times: tuple[tuple[int, float], ...] = ()
    remote_step: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse impossible figures."""
        for field in ("acceptance", "hit_rate", "mean_confidence", "confidence_threshold"):
            value = getattr(self, field)
            if value is not None and not 0.0 <= value <= 1.0:
                raise ConfigError(f"pair: {field}: expected 0 to 1, got {value!r}")
        if self.window < 1 or self.rounds < 1:
            raise ConfigError(f"pair: expected a window and rounds of at least 1, got {self.window} and {self.rounds}")
        times = [self.wait, *self.step_times, *([] if self.remote_step is None else [self.remote_step])]
        if not self.step_times or not all(0.0 < time < math.inf for time in times):
            raise ConfigError(f"pair: expected times above 0 s and at least one step time, got {times}")
        if self.rtt is not None and not 0.0 <= self.rtt < math.inf:
            raise ConfigError(f"pair: rtt: expected seconds >= 0, got {self.rtt!r}")
