"""What the device drafts: the trunk behind the settled answer, the round that is out, and the branches that bet on its verdict.

A branch guesses where the verifier rejects and what it puts there. It is adopted if the verdict is just that, with as many tokens as it has
by then, and dropped otherwise; nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from streamco.core.pair import Pair
from streamco.core.speculation import DraftToken
from streamco.policies.rejection import ALTERNATIVES, Branch, PreDraft, allot, forecast_rejection, rank_branches

__all__ = ["BranchKind", "Line", "Round", "bet"]

BranchKind = Literal["accept all", "reject"]


@dataclass(slots=True)
class Line:
    """A draft in the making.

    Args:
        version: of the command it comes from.
        asked: tokens that were asked for.
        began: when.
        guess: the verdict it bets on; None: it stands behind settled tokens.
        tokens: so far, without the guessed token but where the model wrote that itself.
        is_finished: nothing more comes.
        importance: mean of its tokens, as told last.
        earlier: tokens of earlier commands, in front.
    """

    version: int
    asked: int
    began: float
    guess: Branch | None = None
    tokens: list[DraftToken] = field(default_factory=list)
    is_finished: bool = False
    importance: float | None = None
    earlier: int = 0

    @property
    def made(self) -> int:
        """Tokens of the present command."""
        return len(self.tokens) - self.earlier

    @property
    def is_full(self) -> bool:
        """Fewer tokens came than were asked for: the text ends, or the device has no room for more."""
        return self.is_finished and self.made < self.asked

    @property
    def ids(self) -> list[int]:
        """Of its tokens."""
        return [token.id for token in self.tokens]

    def fits(self, accepted: int, token: int | None) -> bool:
        """Whether a verdict is what it bets on; a guess that is the model's own next token must be there by now."""
        if self.guess is None or token is None or self.guess.position != accepted:
            return False
        if self.guess.token is not None:
            return self.guess.token == token
        return bool(self.tokens) and self.tokens[0].id == token

    def settle_guess(self) -> int:
        """Its bet is won: it goes on behind settled tokens; gives how many tokens it has beyond them."""
        if self.guess is not None and self.guess.token is None:
            del self.tokens[0]
            self.asked -= 1
        self.guess = None
        return len(self.tokens)


RoundState = Literal["out", "held", "cut"]
"""Sent; refused and to be sent again; waiting for the connection."""


@dataclass(slots=True)
class Round:
    """A draft to be judged.

    Args:
        draft: its tokens.
        number: of the last ``SendDraft``; -1: not sent.
        state: where it is.
        sent: when.
        due: when patience with its state ends; None: never.
        branches: that bet on its verdict.
        wanted_branches: sequences in their batch.
    """

    draft: list[DraftToken]
    number: int = -1
    state: RoundState = "cut"
    sent: float = 0.0
    due: float | None = None
    branches: dict[int, Line] = field(default_factory=dict)
    has_timed_branches: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """Of the draft."""
        return tuple(token.id for token in self.draft)

    @property
    def confidences(self) -> list[float]:
        """Of the draft."""
        return [token.confidence for token in self.draft]


def bet(
    draft: Sequence[DraftToken],
    pair: Pair,
    *,
    window: int,
    most: int,
    kinds: frozenset[BranchKind],
    end_ids: frozenset[int],
    alternatives: int = ALTERNATIVES,
) -> PreDraft:
    """Which branches to draft while this draft is judged, and how far.

    Args:
        draft: that is judged.
        pair: what is known of acceptance and times.
        window: tokens of the next draft.
        most: branches side by side.
        kinds: of branches wanted.
        end_ids: nothing is drafted behind one of these.
        alternatives: of each position.
    """
    sure = [token.confidence for token in draft]
    forecast = forecast_rejection(pair.acceptance, sure, pair.mean_confidence)
    rows = [token.alternatives for token in draft]
    branches = [
        branch
        for branch in rank_branches(forecast, [token.id for token in draft], rows, pair.acceptance, alternatives)
        if ("accept all" if branch.position == len(draft) else "reject") in kinds
        and branch.token not in end_ids
        and not (branch.position == len(draft) and draft[-1].id in end_ids)
    ]
    return allot(branches, seconds=pair.wait, step_times=pair.step_times[:most], window=window)
