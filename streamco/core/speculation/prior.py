"""Assumptions about a draft model and its verifier, used before anything is measured."""

from __future__ import annotations

from msgspec import Struct

from streamco.config import check_share
from streamco.errors import ConfigError

__all__ = ["EstimatesPrior"]


class EstimatesPrior(Struct, frozen=True, kw_only=True):
    """Values assumed before anything is measured. A calibrated profile gives better ones. Times are in seconds.

    Args:
        acceptance: probability that a drafted token is accepted (alpha), 0..1.
        step_times: how long a step of the draft model on 1, 2, ... sequences in one batch takes, up to the number of branches wanted.
        wait: time from sending a draft to its verdict.
        remote_step: time between two tokens of the remote stream. If None, it is measured before anything is drafted.
        hit_rate: share of rounds in which a pre-drafted branch is adopted, 0..1; None to assume the acceptance rate, as with real models.
        mean_confidence: mean confidence of draft tokens, 0..1; None if not measured.

    Raises:
        ConfigError: a value is out of range.
    """

    acceptance: float = 0.7
    step_times: tuple[float, ...] = (0.02, 0.021, 0.022, 0.023, 0.024, 0.025)
    wait: float = 0.1
    remote_step: float | None = None
    hit_rate: float | None = None
    mean_confidence: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        check_share("prior acceptance", self.acceptance)
        check_share("prior hit rate", self.hit_rate or 0.0)
        times = (*self.step_times, self.wait, *(() if self.remote_step is None else (self.remote_step,)))
        if not self.step_times or min(times) <= 0.0:
            raise ConfigError(
                f"prior: expected times above 0 s and at least one step time, got {self.step_times}, {self.wait} and {self.remote_step}"
            )
