"""What the device drafts: the trunk behind the settled answer, the round that is out, and the branches that bet on its verdict.

A branch guesses where the verifier rejects and what it puts there. It is adopted if the verdict is just that, with as many tokens as it has
by then, and dropped otherwise; nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken
from streamco.policies.rejection import ALTERNATIVES, Branch, PreDraft, rank_branches, schedule_branches

__all__ = ["BranchKind", "DraftSequence", "Round", "plan_branches"]

BranchKind = Literal["accept all", "reject"]


@dataclass(slots=True)
class DraftSequence:
    """A draft in the making.

    Args:
        version: of the command it comes from.
        asked: tokens that were asked for.
        began: when.
        guess: the verdict it bets on; None: it stands behind settled tokens.
        tokens: so far, without the guessed token but where the model wrote that itself.
        is_finished: nothing more comes.
        importance: mean of its tokens, as far as told.
        earlier: tokens of earlier commands, in front.
        earlier_importance: mean of those.
        is_timed: how long it takes as a whole says how fast the device is; it has little to read first.
        first_at: when the first tokens of the present command came.
        first: how many those were.
        is_paced: its pace says how fast the device is.
        is_branch: its sequence began beside the device's own; room that it lacks the device may have.
        is_own: it bets on a verdict, and stands on the device's own sequence.
        wanted: tokens that it is to have then.
    """

    version: int
    asked: int
    began: float
    guess: Branch | None = None
    tokens: list[DraftToken] = field(default_factory=list)
    is_finished: bool = False
    importance: float | None = None
    earlier: int = 0
    earlier_importance: float | None = None
    is_timed: bool = False
    first_at: float = 0.0
    first: int = 0
    is_paced: bool = True
    is_branch: bool = False
    is_own: bool = False
    wanted: int = 0

    @property
    def made(self) -> int:
        """Tokens of the present command."""
        return len(self.tokens) - self.earlier

    @property
    def is_out_of_room(self) -> bool:
        """Fewer tokens came than the device's own sequence was asked for; but for the end of the text it has no room for more."""
        return self.is_finished and not self.is_branch and self.made < self.asked

    @property
    def ids(self) -> list[int]:
        """Of its tokens."""
        return [token.id for token in self.tokens]

    def pace(self, *, now: float) -> tuple[int, float] | None:
        """Tokens, and the seconds they took; without the first ones where much had to be read for those. None: it can't be told.

        Several that came at once may have come late: a single token behind them then seems to take no time.
        """
        if not self.is_paced:
            return None
        if self.is_timed:
            return self.made, now - self.began
        behind = self.made - self.first
        return (behind, now - self.first_at) if behind > (self.first > 1) else None

    def take(self, tokens: Sequence[DraftToken], importance: float | None, *, now: float, is_finished: bool) -> None:
        """More of it came; ``importance`` is that of the present command's tokens."""
        if not self.made:
            self.first_at, self.first = now, len(tokens)
        self.tokens += tokens
        self.is_finished = is_finished
        if importance is not None:
            earlier = 0 if self.earlier_importance is None else self.earlier
            self.importance = (earlier * (self.earlier_importance or 0.0) + self.made * importance) / max(1, earlier + self.made)

    def go_on(self, version: int, count: int, *, now: float) -> None:
        """So many tokens more were asked for, on the device's own sequence."""
        self.version, self.asked, self.began = version, count, now
        self.earlier, self.earlier_importance = len(self.tokens), self.importance
        self.is_finished, self.is_branch, self.first = False, False, 0
        self.is_timed = self.is_paced = True

    def fits(self, accepted: int, token: int | None) -> bool:
        """Return True if a verdict is what it bets on; a guess that is the model's own next token must be there by now.

        Args:
            accepted: draft tokens that stay.
            token: that follows them; None: nobody said, and the model's own will do.
        """
        if self.guess is None or self.guess.position != accepted:
            return False
        if token is None or self.guess.token is not None:
            return self.guess.token == token
        return bool(self.tokens) and self.tokens[0].id == token

    def foresees(self) -> tuple[int, list[DraftToken]] | None:
        """Return the token that the verdict ends with, as it bets, and its draft behind that; None: it doesn't know yet."""
        if self.guess is None or not self.tokens:
            return None
        if self.guess.token is None:
            return self.tokens[0].id, self.tokens[1:]
        return self.guess.token, self.tokens

    def bet_on(self, judged: int, wanted: int) -> None:
        """Its first tokens are judged: from now on it bets that all of them are accepted, and goes on behind those."""
        self._forget(judged)
        self.guess = Branch(judged, None, 1.0)
        self.is_own, self.wanted = True, wanted

    def win(self, token: int | None) -> None:
        """The verdict is what it bets on: it goes on behind settled tokens, ``token`` among them."""
        if self.guess is not None and self.guess.token is None and token is not None:
            self._forget(1)
        self.guess = None
        self.is_paced = self.is_own = False

    def _forget(self, count: int) -> None:
        """Its first tokens belong to somebody else from now on."""
        of_earlier = min(count, self.earlier)
        self.earlier -= of_earlier
        self.asked -= count - of_earlier
        del self.tokens[:count]


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
        given: tokens that were sent with it to be read as settled.
        is_first: of its connection: a prompt is read in it.
        retry_at: when it may be sent again, once refused.
        branches: how many bet on its verdict.
        ahead: drafts that were sent ahead of its verdict, by what they bet on: how many tokens it accepts, and the one behind them.
        begun: when the verdict was here that it had been sent ahead of, and on which it had bet; None: it was sent behind that.
    """

    draft: list[DraftToken]
    number: int = -1
    state: RoundState = "cut"
    sent: float = 0.0
    given: int = 0
    is_first: bool = False
    retry_at: float = 0.0
    branches: int = 0
    ahead: dict[tuple[int, int], Round] = field(default_factory=dict)
    begun: float | None = None

    @property
    def was_ahead(self) -> bool:
        """It was at the verifier before the round in front of it was decided."""
        return self.begun is not None

    @property
    def since(self) -> float:
        """When its verdict began to be waited for."""
        return self.sent if self.begun is None else self.begun

    def expected(self, wait: float, rtt: float) -> float:
        """When its verdict should be here, where one takes ``wait`` seconds, and of those ``rtt`` on the link."""
        alone = self.sent + wait
        return alone if self.begun is None else max(alone, self.begun + wait - rtt)

    @property
    def ids(self) -> tuple[int, ...]:
        """Of the draft."""
        return tuple(token.id for token in self.draft)

    @property
    def confidences(self) -> list[float]:
        """Of the draft."""
        return [token.confidence for token in self.draft]


def plan_branches(
    draft: Sequence[DraftToken],
    pair: SpeculationEstimates,
    *,
    window: int,
    most: int,
    seconds: float | None = None,
    max_ahead: int = 0,
    kinds: frozenset[BranchKind],
    end_ids: frozenset[int],
    alternatives: int = ALTERNATIVES,
) -> PreDraft:
    """Return which branches to draft while this draft is judged, and how far.

    Args:
        draft: that is judged.
        pair: what is known of acceptance and times.
        window: tokens of the next draft.
        most: branches.
        seconds: until the verdict is expected; None: as long as verdicts take.
        max_ahead: of the next drafts may be sent ahead of the verdict.
        kinds: of branches wanted.
        end_ids: nothing is drafted behind one of these.
        alternatives: of each position.
    """
    forecast = pair.forecast([token.confidence for token in draft])
    rows = [token.alternatives for token in draft]
    branches = [
        branch
        for branch in rank_branches(forecast, [token.id for token in draft], rows, pair.acceptance, alternatives)
        if ("accept all" if branch.position == len(draft) else "reject") in kinds
        and branch.token not in end_ids
        and not (branch.position == len(draft) and draft[-1].id in end_ids)
    ]
    rtt = pair.rtt if max_ahead else 0.0
    seconds = pair.wait if seconds is None else seconds
    return schedule_branches(branches, seconds=seconds, step_times=pair.step_times[:most], window=window, rtt=rtt, max_ahead=max_ahead)
