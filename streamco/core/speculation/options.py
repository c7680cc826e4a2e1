"""The speculation machine's settings for one answer."""

from __future__ import annotations

from msgspec import Struct

from streamco.core.speculation.answer import Emit
from streamco.core.speculation.draft import BranchKind
from streamco.errors import ConfigError
from streamco.policies.rejection import ALTERNATIVES

__all__ = ["SpeculationMachineOptions"]


class SpeculationMachineOptions(Struct, frozen=True, kw_only=True):
    """Settings that say how one answer is generated. Times are in seconds.

    Args:
        end_ids: tokens that end the text.
        max_tokens: maximum length of the answer; None for no limit.
        emit: whether the reader gets only final tokens, or also drafts at once.
        has_remote: whether the target model can generate alone.
        may_use_device: whether the device may finish a lossless answer that nothing else can continue.
        is_adaptive: choose the mode that pays; if False, speculate whether it pays or not.
        may_begin_by_stream: whether the remote stream may begin the answer while the device reads the prompt; needs ``is_adaptive``.
        is_parallel: whether to draft while the verdict is out (Synera section 4.4).
        branch_kinds: which verdicts branches may assume.
        max_branches: maximum number of branches side by side.
        alternatives: number of corrections to assume for each position.
        max_ahead: how many drafts per round may be sent before the verdict that they assume; 0 if the verifier accepts none.
        max_draft: maximum number of tokens that the verifier accepts in one round.
        max_siblings: how many of these tokens may be siblings of others (trees of drafts); 0 for chains only.
        is_lookup: whether drafts are looked up. They take no time, there may be none, and each is sent only if it pays by itself.
        patience: how long trouble with the verifier may last before another mode continues the answer. A selective answer that has
            begun waits for at most two rounds. An adaptive answer that has not begun waits no longer than that for a full verifier, or
            for one token of the stream if that is longer.
        last_patience: the same if no other mode can continue the answer.
        first_verdict_timeout: how long to wait for a connection's first verdict before the connection counts as dead.
        verdict_timeout: the same for later verdicts.
        first_silence: how long to wait for the first token before both the verifier and the stream are given up; None for no limit.
        silence: the same between two tokens.

    Raises:
        ConfigError: a setting is out of range.
    """

    end_ids: frozenset[int] = frozenset()
    max_tokens: int | None = None
    emit: Emit = "verified"
    has_remote: bool = True
    may_use_device: bool = False
    is_adaptive: bool = True
    may_begin_by_stream: bool = False
    is_parallel: bool = True
    branch_kinds: frozenset[BranchKind] = frozenset({"accept all", "reject"})
    max_branches: int = 6
    alternatives: int = ALTERNATIVES
    max_ahead: int = 0
    max_draft: int = 31
    max_siblings: int = 0
    is_lookup: bool = False
    patience: float = 2.0
    last_patience: float = 30.0
    first_verdict_timeout: float = 30.0
    verdict_timeout: float = 5.0
    first_silence: float | None = None
    silence: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings that are out of range."""
        if min(self.max_branches, self.alternatives, self.max_ahead, self.max_siblings) < 0 or self.max_draft < 1:
            raise ConfigError(
                "speculation machine: expected max_branches, alternatives, max_ahead and max_siblings >= 0 and max_draft >= 1, "
                f"got {self.max_branches}, {self.alternatives}, {self.max_ahead}, {self.max_siblings} and {self.max_draft}"
            )
        limits = [limit for limit in (self.first_silence, self.silence) if limit is not None]
        if min(self.patience, self.last_patience, self.first_verdict_timeout, self.verdict_timeout, *limits) <= 0.0:
            raise ConfigError("speculation machine: expected patience, last_patience, both verdict timeouts and both silences above 0 s")
