"""Drafts along the likeliest verdicts while a verdict is out, which is called pre-drafting (Synera section 4.4).

Unlike in the paper, a branch's draft may be sent early, together with the verdict that it assumes. The verifier starts on it as soon as it
has reached this verdict, while the verdict is still on its way to the device. So a correct assumption hides the link's round trip. A draft
with a wrong assumption is ignored by the verifier and costs only its bytes. If the assumption was correct, the device continues drafting on
the same sequence, which then becomes the branch that assumes that the whole draft is accepted.
"""

from __future__ import annotations

from streamco.core.speculation.answer import SpeculativeAnswer
from streamco.core.speculation.backpressure import Backpressure
from streamco.core.speculation.draft import DraftSequence, Round, plan_branches
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.verification import VerifierChannel
from streamco.policies.rejection import Branch

__all__ = ["PreDrafter"]

_FURTHER = 1  # tokens to add to the usual window, because many drafts are longer than the mean


class PreDrafter:
    """Starts branches for the round that is out, and sends their drafts before its verdict arrives."""

    def __init__(
        self,
        estimates: SpeculationEstimates,
        options: SpeculationMachineOptions,
        *,
        answer: SpeculativeAnswer,
        draft_state: DraftState,
        verifier: VerifierChannel,
        backpressure: Backpressure,
    ) -> None:
        self._estimates = estimates
        self._options = options
        self._answer = answer
        self._draft_state = draft_state
        self._verifier = verifier
        self._backpressure = backpressure

    def start(self, out: Round, *, now: float) -> None:
        """Draft along the likeliest verdicts on this round."""
        options, window = self._options, min(self._estimates.window_with(_FURTHER), self._options.max_draft)
        if not out.draft or not options.is_parallel or self._draft_state.is_out:
            return
        trunk_branch = self._continue_trunk(out, window, now) if out.was_ahead else None
        plan = plan_branches(
            out.draft,
            self._estimates,
            seconds=self._expected_at(out) - now if out.was_ahead else None,
            window=window,
            max_branches=options.max_branches,
            max_ahead=options.max_ahead,
            kinds=options.branch_kinds,
            end_ids=options.end_ids,
            alternatives=options.alternatives,
        )

        def count(branch: Branch) -> int:
            if trunk_branch is not None and branch.position == len(out.draft) and branch.token is None:
                return 0  # the trunk branch is already drafted
            return min(plan.steps, self._free_tokens(branch.position))

        self._draft_state.start_branches(self._answer.length, plan.branches, count, width=plan.width, first_width=plan.first_width, now=now)
        out.record_branches(len(self._draft_state.branches))
        if trunk_branch is not None:
            self.send_ahead_if_ready(trunk_branch, now=now)

    def send_ahead_if_ready(self, branch: DraftSequence, *, now: float) -> None:
        """Send a branch's draft before the verdict arrives, once another token would cost more time than it is worth."""
        out, options = self._verifier.round, self._options
        if out is None or out.state != "sent" or len(out.ahead) >= options.max_ahead:
            return
        if not options.is_parallel or not self._estimates.is_lossless:
            return
        predicted = branch.predicted_verdict()
        if predicted is None or branch.branch is None or self._backpressure.is_requested:
            return
        (token, draft), accepted = predicted, branch.branch.position
        free_tokens, end_ids = self._free_tokens(accepted), options.end_ids
        draft = draft[: next((position + 1 for position, each in enumerate(draft) if each.id in end_ids), len(draft))][:free_tokens]
        number = out.number_of(accepted, token)
        if number is not None and draft:  # the verdict would accept this sibling, and add another token after it
            accepted, token, draft, free_tokens = number, draft[0].id, draft[1:], free_tokens - 1
        if not draft or free_tokens < 1 or token in end_ids or (accepted, token) in out.ahead:
            return
        confidences = [each.confidence for each in draft]
        draft = draft[: self._estimates.useful_length(draft)]
        is_complete = (
            branch.is_finished
            or draft[-1].id in end_ids
            or len(draft) >= min(free_tokens, self._estimates.window)
            or self._estimates.should_end(confidences)
        )
        lateness = now + self._estimates.rtt - self._expected_at(out)
        if is_complete or not self._estimates.should_draft_more(confidences, lateness=lateness):
            self._verifier.send_ahead(draft, accepted, token, self._answer.ids, now=now)

    def _continue_trunk(self, out: Round, window: int, now: float) -> DraftSequence | None:
        """Turn the trunk into the branch that assumes that the whole round is accepted, or return None if nothing can follow it."""
        free_tokens = min(window, self._free_tokens(len(out.draft)))
        if free_tokens < 1 or out.draft[-1].id in self._options.end_ids:
            self._draft_state.stop_trunk(now=now)
            return None
        return self._draft_state.assume_accepted(len(out.draft), free_tokens + 1, now=now)

    def _free_tokens(self, accepted: int) -> int:
        """Return how many tokens a draft may have after a verdict that accepts ``accepted`` tokens and adds one. 0 or less means none.

        In a lossless answer, room is also left for the token that the next verdict adds.
        """
        free_tokens, limit = self._answer.free_tokens, self._options.max_draft
        return limit if free_tokens is None else min(limit, free_tokens - accepted - 1 - self._estimates.is_lossless)

    def _expected_at(self, out: Round) -> float:
        return out.expected_at(self._estimates.wait, self._estimates.rtt)
