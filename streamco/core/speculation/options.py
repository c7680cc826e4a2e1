"""Settings of the speculation machine for one answer."""

from __future__ import annotations

from msgspec import Struct

from streamco.core.speculation.answer import Emit
from streamco.core.speculation.draft import BranchKind
from streamco.errors import ConfigError
from streamco.policies.rejection import ALTERNATIVES

__all__ = ["SpeculationMachineOptions"]


class SpeculationMachineOptions(Struct, frozen=True, kw_only=True):
    """How one answer is made; times in seconds.

    Args:
        end_ids: tokens that end the text.
        max_tokens: the answer's longest length; None: no limit.
        emit: what the reader gets: final tokens, or drafts at once.
        has_remote: the remote side can generate alone.
        may_use_device: the device may finish a lossless answer that nobody else can.
        is_adaptive: False: speculate whether it pays or not.
        is_parallel: draft while the verdict is out.
        branch_kinds: which verdicts branches may bet on.
        max_branches: side by side.
        alternatives: of each position.
        max_ahead: drafts that may be sent before the verdict that they bet on, each round; 0: the verifier takes none.
        max_draft: tokens that the verifier judges in one round.
        verdict_patience: until a verdict that doesn't come means a dead connection.
        prompt_patience: the same for the first verdict of a connection.
        link_patience: that trouble with the verifier may last before somebody else goes on. A selective answer, once it has begun, waits
            for two rounds at most. Nor does an adaptive one begin later than that, or than a token of the stream takes, where the verifier
            says for how long it has no room.
        last_patience: the same where nobody else can.
    """

    end_ids: frozenset[int] = frozenset()
    max_tokens: int | None = None
    emit: Emit = "verified"
    has_remote: bool = True
    may_use_device: bool = False
    is_adaptive: bool = True
    is_parallel: bool = True
    branch_kinds: frozenset[BranchKind] = frozenset({"accept all", "reject"})
    max_branches: int = 6
    alternatives: int = ALTERNATIVES
    max_ahead: int = 0
    max_draft: int = 31
    verdict_patience: float = 5.0
    prompt_patience: float = 30.0
    link_patience: float = 2.0
    last_patience: float = 30.0

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        if min(self.max_branches, self.alternatives, self.max_ahead) < 0 or self.max_draft < 1:
            raise ConfigError(
                "speculator: expected max_branches, alternatives and max_ahead >= 0 and max_draft >= 1, "
                f"got {self.max_branches}, {self.alternatives}, {self.max_ahead} and {self.max_draft}"
            )
        if min(self.verdict_patience, self.prompt_patience, self.link_patience, self.last_patience) <= 0.0:
            raise ConfigError("speculator: expected every patience above 0 s")
