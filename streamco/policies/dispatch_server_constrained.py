"""Server-constrained dispatch: the device always starts, and the server joins for long prompts (DiSCo section 4.2, Algorithm 3).

The server's time to first token hardly depends on the prompt, while the device's grows with it. So the server helps most with long prompts,
and it joins for prompts longer than l_th (equation 3). Lengths are whole numbers, so the prompts of length l_th may have more tokens than
are left in the budget. To "consume exactly (1 - b)", this deviates from Algorithm 3: the server joins for a random *part* of them.
"""

from __future__ import annotations

from random import Random

from msgspec import Struct

from streamco.config import check_share
from streamco.lazy_numpy import np
from streamco.policies.dispatch import Decision, Outcomes
from streamco.profiles import LengthDistribution

__all__ = ["ServerConstrained"]

_ENDLESS = 1 << 62  # tokens; no prompt is that long
_DEVICE = Decision(0.0, None, "server-constrained", "short prompt, device alone")
_BOTH = Decision(0.0, 0.0, "server-constrained", "long prompt, both at once")


class ServerConstrained(Struct, frozen=True, tag="server-constrained"):
    """A plan of Algorithm 3.

    Args:
        threshold: l_th in tokens. Longer prompts go to both sides, shorter prompts only to the device.
        share_at_threshold: probability that a prompt of exactly this length goes to both sides, 0..1.
        planned_share: expected share of all prompt tokens that the server processes.
    """

    threshold: int
    share_at_threshold: float
    planned_share: float

    @property
    def name(self) -> str:
        """Name of the policy, ``server-constrained``."""
        return "server-constrained"

    @classmethod
    def plan(cls, lengths: LengthDistribution, budget: float) -> ServerConstrained:
        """Find l_th by equation 3. ``budget`` is the share of prompt tokens that the server may process, 0..1.

        Raises:
            ConfigError: the budget is outside 0..1.
        """
        check_share("budget", budget)
        if not budget:
            return cls(_ENDLESS, 0.0, 0.0)
        tokens = lengths.counts * lengths.lengths
        upto = np.cumsum(tokens)
        total = float(upto[-1])
        # Equation 3: the prompts up to l_th hold a share of 1 - b of all prompt tokens.
        index = min(int(np.searchsorted(upto, (1.0 - budget) * total, "right")), tokens.size - 1)
        beyond = total - float(upto[index])
        part = min(1.0, max(0.0, (budget * total - beyond) / float(tokens[index])))
        return cls(int(lengths.lengths[index]), part, float(budget))

    def outcomes(self, length: int) -> Outcomes:
        """Return the only decision for this prompt length, or the two possible ones at the threshold."""
        if length != self.threshold:
            return ((1.0, _BOTH if length > self.threshold else _DEVICE),)
        return ((self.share_at_threshold, _BOTH), (1.0 - self.share_at_threshold, _DEVICE))

    def decide(self, length: int, rng: Random) -> Decision:
        """Return a decision for this prompt length. ``rng`` is used only at the threshold."""
        if length == self.threshold:
            return _BOTH if rng.random() < self.share_at_threshold else _DEVICE
        return _BOTH if length > self.threshold else _DEVICE
