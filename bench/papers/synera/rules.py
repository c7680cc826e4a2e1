"""The contenders of Synera's Table 4 and Figures 11 and 12, for the live client, for answers written in one process, and for the simulator.

| contender | what it does |
|---|---|
| device | the draft model writes alone (edge-centric) |
| server | the target writes alone (cloud-centric) |
| answers | whole answers go to the target if their beginning perplexes the draft model (EdgeFM-LLM) |
| hybrid | single tokens of which the draft model isn't confident go to the target; the device waits (Hybrid) |
| combined | chunks go to the target by both filters (Synera) |
| confidence, importance | by one of its filters |
| tolerant | both filters without a profile; tokens that are 0.3 times as likely as the target's best are accepted (not in the paper) |

The paper's Hybrid takes the target's token in place of an uncertain one. Here that token is verified: if it is the target's own, the
target's next token comes with it. So our Hybrid is a little better off than the paper's.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from streamco.client.modes.speculation.mode import Speculate
from streamco.policies.offload import OffloadRule

__all__ = ["OURS", "RULES", "Cell", "RuleName", "cells_of", "live_options", "simulated_policy"]

RuleName = Literal["device", "server", "answers", "hybrid", "combined", "confidence", "importance", "tolerant"]
OURS: RuleName = "tolerant"
"""What the live client did by default before the others were measured beside it."""
RULES: tuple[RuleName, ...] = ("combined", "confidence", "importance", "hybrid", "answers")
_WINDOW = 4  # tokens of a chunk (section 5)
_BRANCHES = 6


class Cell(Struct, frozen=True, order=True):
    """A contender at a budget.

    Args:
        rule: the contender.
        budget: share of the drafted tokens (with ``answers``: of the answers) that the target verifies or writes, 0..1.
    """

    rule: RuleName
    budget: float

    @property
    def name(self) -> str:
        """Name of the cell in a recording."""
        return self.rule if self.rule in {"device", "server"} else f"{self.rule} {self.budget:g}"

    @property
    def window(self) -> int:
        """Tokens of a chunk."""
        return 1 if self.rule == "hybrid" else _WINDOW

    @property
    def is_profiled(self) -> bool:
        """True if the filters begin with what was measured of the pair before."""
        return self.window > 1 and self.rule != "tolerant"

    @property
    def threshold(self) -> float:
        """A token is accepted that is so many times as likely as the target's best; 1: the best alone."""
        return 0.3 if self.rule == "tolerant" else 1.0

    @property
    def offload_rule(self) -> OffloadRule:
        """The rule that chooses chunks."""
        match self.rule:
            case "tolerant":
                return "combined"
            case "combined" | "confidence" | "importance":
                return self.rule
            case _:
                return "confidence"


def cells_of(rules: tuple[RuleName, ...], budgets: tuple[float, ...], *, has_ends: bool = True) -> list[Cell]:
    """Return device and server, if both ends are wanted, and each rule at each budget between them."""
    ends = [Cell("device", 0.0), Cell("server", 1.0)] if has_ends else []
    return [*ends, *(Cell(rule, budget) for budget in budgets if 0.0 < budget < 1.0 for rule in rules)]


def live_options(cell: Cell) -> Speculate:
    """Return the options of a live client that does what a cell does; ``answers`` has none, because a client doesn't choose answers.

    Raises:
        ValueError: the rule is ``answers``.
    """
    if cell.rule == "answers":
        raise ValueError("answers: expected a rule of the live client, got one of the simulator alone")
    return Speculate(
        budget=cell.budget,
        window=cell.window,
        offload=cell.offload_rule,
        max_branches=0 if cell.rule == "hybrid" else _BRANCHES,
        threshold=cell.threshold,
        is_adaptive=False,
    )


def simulated_policy(cell: Cell) -> dict[str, Any]:
    """Return the ``policy`` of an experiment that does what a cell does."""
    if cell.rule == "server":
        return {"execution": "fused"}
    offload = "answers" if cell.rule == "answers" else cell.offload_rule
    return {"budget": cell.budget, "window": cell.window, "offload": offload, "branches": 0 if cell.rule == "hybrid" else _BRANCHES}
