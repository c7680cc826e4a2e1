"""Stochastic dispatch, the paper's baseline, in which the constrained side joins with a fixed probability (DiSCo section 5.1)."""

from __future__ import annotations

from random import Random

from msgspec import Struct

from streamco.config import check_share
from streamco.policies.dispatch import Decision, Outcomes, Side

__all__ = ["Stochastic"]

_DEVICE = Decision(0.0, None, "stochastic", "device alone")
_SERVER = Decision(None, 0.0, "stochastic", "server alone")
_BOTH = Decision(0.0, 0.0, "stochastic", "both at once")


class Stochastic(Struct, frozen=True, tag="stochastic"):
    """A policy that starts the constrained side at random, at the same time as the other side.

    Args:
        constrained: the side that joins at random. The other side always runs.
        probability: b, the budget, 0..1.
    """

    constrained: Side
    probability: float

    @property
    def name(self) -> str:
        """Name of the policy, ``stochastic``."""
        return "stochastic"

    @property
    def planned_share(self) -> float:
        """Expected share of all prompt tokens that the constrained side processes, 0..1."""
        return self.probability

    @classmethod
    def plan(cls, constrained: Side, budget: float) -> Stochastic:
        """Return a policy that spends the whole budget.

        Raises:
            ConfigError: the budget is outside 0..1.
        """
        check_share("budget", budget)
        return cls(constrained, budget)

    def outcomes(self, length: int) -> Outcomes:
        """Return the two possible decisions, which are the same for every prompt length."""
        return ((self.probability, _BOTH), (1.0 - self.probability, self._alone))

    def decide(self, length: int, rng: Random) -> Decision:
        """Return one of the two decisions at random."""
        return _BOTH if rng.random() < self.probability else self._alone

    @property
    def _alone(self) -> Decision:
        return _SERVER if self.constrained == "device" else _DEVICE
