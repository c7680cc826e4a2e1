"""While a verdict is out: what the device drafts along the likeliest ones, and what of that is sent before the verdict is here.

A branch's draft that is sent ahead says on which verdict it bets. The verifier judges it as soon as it has decided just that, while the
verdict is still on its way to the device; a draft whose bet is lost is forgotten there and costs its bytes. So where a bet is won, the link
costs nothing. The device goes on behind a draft that won its bet on the same sequence, which is then the bet that all of it stays.
"""

from __future__ import annotations

from streamco.core.speculation.answer import ProvisionalAnswer
from streamco.core.speculation.backpressure import Backpressure
from streamco.core.speculation.draft import DraftSequence, Round, plan_branches
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.verification import VerifierChannel
from streamco.policies.rejection import Branch

__all__ = ["PreDrafter"]

_FURTHER = 1  # tokens more than a usual draft has: many go further than the mean


class PreDrafter:
    """Bets on the verdict of the round that is out."""

    def __init__(
        self,
        pair: SpeculationEstimates,
        options: SpeculationMachineOptions,
        *,
        answer: ProvisionalAnswer,
        drafting: DraftState,
        judging: VerifierChannel,
        rest: Backpressure,
    ) -> None:
        self._pair = pair
        self._options = options
        self._answer = answer
        self._drafting = drafting
        self._judging = judging
        self._rest = rest

    def begin(self, waiting: Round, *, now: float) -> None:
        """Draft on along the likeliest verdicts of this round."""
        options, window = self._options, min(self._pair.reach(_FURTHER), self._options.max_draft)
        if not waiting.draft or not options.is_parallel or self._drafting.is_out:
            return
        own = self._bet_on_all(waiting, window, now) if waiting.was_ahead else None
        plan = plan_branches(
            waiting.draft,
            self._pair,
            seconds=self._expected(waiting) - now if waiting.was_ahead else None,
            window=window,
            most=options.max_branches,
            max_ahead=options.max_ahead,
            kinds=options.branch_kinds,
            end_ids=options.end_ids,
            alternatives=options.alternatives,
        )

        def room(branch: Branch) -> int:
            if own is not None and branch.position == len(waiting.draft) and branch.token is None:
                return 0
            return min(plan.steps, self._room(branch.position))

        self._drafting.branch(self._answer.length, plan.branches, room, width=plan.width, lead=plan.lead, now=now)
        waiting.branches = len(self._drafting.branches)
        if own is not None:
            self.look_ahead(own, now=now)

    def look_ahead(self, line: DraftSequence, *, now: float) -> None:
        """Send a branch's draft before the verdict is here, once another token would cost more time than it is worth."""
        waiting, most = self._judging.round, self._options.max_ahead
        if waiting is None or waiting.state != "out" or len(waiting.ahead) >= most or not self._pair.is_lossless:
            return
        foreseen = line.foresees()
        if foreseen is None or line.guess is None or self._rest.is_wanted:
            return
        (token, draft), accepted = foreseen, line.guess.position
        room, ends = self._room(accepted), self._options.end_ids
        draft = draft[: next((place + 1 for place, each in enumerate(draft) if each.id in ends), len(draft))][:room]
        if not draft or room < 1 or token in ends or (accepted, token) in waiting.ahead:
            return
        confidences = [each.confidence for each in draft]
        is_whole = (
            line.is_finished or draft[-1].id in ends or len(draft) >= min(room, self._pair.window) or self._pair.is_enough(confidences)
        )
        if is_whole or not self._pair.is_worth_waiting(confidences, arrival=now + self._pair.rtt - self._expected(waiting)):
            self._judging.send_ahead(draft, accepted, token, self._answer.ids, now=now)

    def _bet_on_all(self, waiting: Round, window: int, now: float) -> DraftSequence | None:
        """Return the device drafts on behind what is judged; None: nothing comes there."""
        room = min(window, self._room(len(waiting.draft)))
        if room < 1 or waiting.draft[-1].id in self._options.end_ids:
            self._drafting.rest(now=now)
            return None
        return self._drafting.bet_on(len(waiting.draft), room + 1, now=now)

    def _room(self, accepted: int) -> int:
        """Tokens that a draft may have behind a verdict of so many and its own; lossless, the next verdict adds one. 0 or less: none."""
        left, most = self._answer.left, self._options.max_draft
        return most if left is None else min(most, left - accepted - 1 - self._pair.is_lossless)

    def _expected(self, waiting: Round) -> float:
        return waiting.expected(self._pair.wait, self._pair.rtt)
