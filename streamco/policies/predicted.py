"""The window that the arithmetic of a round speaks for.

Neither paper has it: DSD's baselines know one window, or one more and one less, and its learned policy has to be trained. Here it is the
window with the highest predicted rate (``fallback.best_window``), for the acceptance rate, the times and the hit rate as measured lately.
In virtual time that comes within 10 % of the best fixed window, whatever the link, the acceptance rate and the step times.
"""

from __future__ import annotations

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.policies.mode_switch import Conditions, best_window
from streamco.policies.window import DEFAULT, LONGEST, WindowState

__all__ = ["Predicted"]


class Predicted(Struct, frozen=True, tag="predicted"):
    """The best window by ``predict_rates``.

    Args:
        first: tokens of the first round, and while the times aren't known.
        shortest, longest: tokens. Below 2 is fused mode, which is for ``ModeSwitch`` to say.
    """

    first: int = DEFAULT
    shortest: int = 2
    longest: int = LONGEST

    def __post_init__(self) -> None:
        """Refuse bounds that exclude each other."""
        if not 1 <= self.shortest <= self.first <= self.longest:
            raise ConfigError(
                f"predicted window: expected 1 <= shortest <= first <= longest, got {self.shortest}, {self.first} and {self.longest}"
            )

    @property
    def name(self) -> str:
        """``predicted``."""
        return "predicted"

    def propose(self, state: WindowState) -> float:
        """The window with the highest predicted rate."""
        if state.acceptance is None or state.draft_step <= 0.0 or state.wait <= 0.0 or state.tpot <= 0.0:
            return float(self.first)
        conditions = Conditions(
            acceptance=state.acceptance,
            window=state.previous,
            draft_step=state.draft_step,
            remote_step=state.tpot,
            verify=state.wait,
            hit_rate=state.hit_rate,
            slowdown=state.slowdown,
        )
        return float(max(self.shortest, best_window(conditions, is_parallel=True, longest=self.longest)))
