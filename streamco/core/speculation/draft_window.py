"""Applies a window policy to the measured figures: how long the next draft may be, and where it should end early."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from streamco.core.speculation.averages import DecayedRatio, Ewma
from streamco.policies.window import (
    DecidesFusedMode,
    EndsAtDoubtfulToken,
    EndsDraftsEarly,
    Stabiliser,
    Static,
    WindowPolicy,
    WindowState,
    stair_surcharges,
)
from streamco.profiles.row_costs import RowCosts

__all__ = ["DraftWindow"]

_DECAY = 0.98  # the weight of a drafted token after the next one


class DraftWindow:
    """Holds a window policy and its stabilised proposals, and tracks how long drafts really are.

    Args:
        policy: proposes windows; None for always four tokens.
        stabiliser: smooths and rounds the proposals; if None, they are only rounded.
        mode_stabiliser: smooths and rounds the proposals that the mode is chosen by; if None, the last proposal is used unchanged.

    Attributes:
        tokens: maximum length of the next draft.
        proposal: the window by which the mode is chosen, which is the policy's last proposal or the stabilised one.
    """

    def __init__(self, policy: WindowPolicy | None, stabiliser: Stabiliser | None, mode_stabiliser: Stabiliser | None = None) -> None:
        self._policy: WindowPolicy = policy or Static()
        # Looked up once, because an isinstance check of a Protocol costs more than the arithmetic of a round.
        self._ends_early = self._policy if isinstance(self._policy, EndsDraftsEarly) else None
        self._min_confidence = self._policy.min_confidence if isinstance(self._policy, EndsAtDoubtfulToken) else 0.0
        self._decides_fused = self._policy if isinstance(self._policy, DecidesFusedMode) else None
        self._stabiliser = stabiliser or Stabiliser(1.0)
        self._mode_stabiliser = mode_stabiliser
        self.proposal = float(self._policy.first)
        self.tokens = self.settled = self._policy.first
        self._min_chance = 0.0
        self._surcharges: list[float] = []  # on the required chance, by the length of a draft, for the rows that it adds
        self._rate = 0.0  # tokens per second
        self._costs: RowCosts | None = None  # of the verifier's rows, if the policy ends drafts early
        self._length = Ewma(float(self.tokens))  # of drafts that end before the window
        self._drafted = DecayedRatio(_DECAY)  # share of all drafted tokens that were accepted

    @property
    def decides_mode(self) -> bool:
        """True if the policy itself proposes fused mode when that is faster, so that the rates needn't be compared."""
        return self._decides_fused is not None and self._decides_fused.may_fuse

    @property
    def usual_tokens(self) -> int:
        """Usual length of a draft: the window, or the mean of the recent lengths if the policy ends drafts early."""
        return self.tokens if not self.may_end_early else max(1, min(self.tokens, round(self._length.value)))

    def propose(self, state: WindowState) -> int:
        """Ask the policy for the next window, stabilise it, and return it (DSD section 4.4)."""
        proposal = self._policy.propose(state)
        self.proposal = proposal if self._mode_stabiliser is None else float(self._mode_stabiliser.settle(proposal))
        self.tokens = self.settled = self._stabiliser.settle(proposal)
        if self._ends_early is not None:
            assert self._stabiliser.smoothed is not None, "it has just settled a proposal"
            self.tokens = self._ends_early.max_draft_tokens(state, self.settled)
            self._min_chance = self._ends_early.min_acceptance(state, self._stabiliser.smoothed)
            self._surcharges = stair_surcharges(state, self.tokens)
            self._rate, self._costs = state.rate, state.row_costs
        return self.tokens

    def should_end(self, chance: float, confidence: float = 1.0, *, length: int = 1) -> bool:
        """Return True if a draft should end after ``length`` tokens.

        Args:
            chance: probability that all of its tokens are accepted.
            confidence: the confidence of its last token.
            length: its number of tokens.
        """
        return chance < self._min_chance + self._surcharge(length) or confidence < self._min_confidence

    def should_have_ended(self, chances: Sequence[float]) -> bool:
        """Return True if a draft should have ended before its last token, at the end of a stair of the verifier's costs.

        This can happen because several tokens may arrive at a time.

        Args:
            chances: probability that the first 1, 2, ... tokens are all accepted.
        """
        return any(self._is_stair_end(chance, length) for length, chance in enumerate(chances[:-1], 1))

    def useful_length(self, chances: Sequence[float], *, is_sampled: bool) -> int:
        """Return how many tokens of an existing draft are worth their rows at the verifier, or all of them if its costs aren't known.

        Each additional token adds its chance to the round's tokens, but it also adds seconds to the verification, and ``rate`` tokens are
        lost in each of these seconds.

        Args:
            chances: probability that the first 1, 2, ... tokens are all accepted.
            is_sampled: True if the tokens were sampled. Then a token must not decide whether the tokens before it are sent without it, or
                the answer wouldn't have the target's distribution, because some tokens would follow the sent ones more often than others.
                So the draft ends where it should have ended judging by the tokens up to there.
        """
        if self._costs is None or not chances:
            return len(chances)
        if is_sampled:
            return next((length for length in range(1, len(chances)) if self._is_stair_end(chances[length - 1], length)), len(chances))
        gained, best = accumulate(chances), []
        for length, tokens in enumerate(gained, 1):
            best.append((tokens - self._rate * self._costs.seconds(length + 1), length))
        return max(best)[1]

    def _is_stair_end(self, chance: float, length: int) -> bool:
        """Return True if the next token starts rows that cost more than their expected gain."""
        surcharge = self._surcharge(length)
        return surcharge > 0.0 and chance < self._min_chance + surcharge

    def _surcharge(self, length: int) -> float:
        """Return how much higher a draft's chance must be to continue after ``length`` tokens, because of the rows of one more token."""
        return self._surcharges[length - 1] if 1 <= length <= len(self._surcharges) else 0.0

    @property
    def may_end_early(self) -> bool:
        """True if a draft may end before its window."""
        return self._min_chance > 0.0 or self._min_confidence > 0.0 or any(surcharge > 0.0 for surcharge in self._surcharges)

    @property
    def drafted_acceptance(self) -> float | None:
        """Share of recent drafted tokens that were accepted, 0..1, including all tokens after a rejected one. None before any round."""
        return self._drafted.value if self._drafted.events else None

    def record_accepted(self, tokens: int, accepted: int) -> None:
        """Record that ``accepted`` of a draft's ``tokens`` tokens were accepted."""
        for position in range(tokens):
            self._drafted.record(position < accepted)

    def record_length(self, length: int, *, has_ended: bool) -> None:
        """Record the length of a verified draft. A shorter one than usual counts only if the policy ended it (``has_ended``)."""
        if length >= min(self._length.value, self.tokens) or has_ended:
            self._length.record(length)
