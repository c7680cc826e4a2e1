"""Who can go on with an answer, who should, and how long trouble with the verifier is borne."""

from __future__ import annotations

from typing import Literal

from streamco.core.speculation.answer import ProvisionalAnswer
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.fallback_stream import RemoteStream, TimeAccount
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.verification import VerifierChannel
from streamco.policies.offload import is_past_exit

__all__ = ["GenerationMode", "ModeSelector"]

GenerationMode = Literal["speculate", "device", "remote", "judge"]
"""Judge: the verifier gives token by token, for nobody can draft or stream."""

_TOLD = 2.0  # rounds that are waited for a verifier, where somebody else would write meanwhile
_PROBE_AFTER = 64  # tokens the device settled alone, after which the verifier is tried again


class ModeSelector:
    """Looks at everybody and says who goes on.

    Attributes:
        present: the way that was taken last; None: none yet.
        unasked: tokens that the device settled alone since the last verdict.
    """

    def __init__(
        self,
        pair: SpeculationEstimates,
        options: SpeculationMachineOptions,
        *,
        answer: ProvisionalAnswer,
        drafting: DraftState,
        judging: VerifierChannel,
        remote: RemoteStream,
        ledger: TimeAccount,
    ) -> None:
        self.present: GenerationMode | None = None
        self.unasked = 0
        self._pair = pair
        self._options = options
        self._answer = answer
        self._drafting = drafting
        self._judging = judging
        self._remote = remote
        self._ledger = ledger

    def choose(self, *, now: float) -> GenerationMode | None:
        """Return the way of the next draft; None: nobody can go on. Asked once a settled boundary, for the mode switch counts."""
        can_draft, can_judge = not self._drafting.is_out, self._can_ask and self._judging.state != "gone"
        if not self._pair.is_lossless:
            if can_draft:
                return self._mode() if self.is_promising(now) and not self._is_past_exit else "device"
        elif can_draft and can_judge and not self._remote.is_able:
            self._pair.propose_window()
            return "speculate"
        elif can_draft and self.is_promising(now):
            return self._mode()
        if self._remote.is_able:
            return "remote"
        if can_judge:
            return "judge"
        return "device" if can_draft and self._options.may_use_device else None

    def pays_again(self, *, now: float) -> bool:
        """While the remote side streams: whether to draft again."""
        is_reachable = self._judging.state in {"closed", "open"} and self.is_promising(now)
        if not self._pair.is_lossless or self._drafting.is_out or not is_reachable:
            return False
        return self._mode() == "speculate"

    def is_promising(self, now: float) -> bool:
        """Return True if a draft would soon be verified: the first one opens the connection, because the server reads the prompt for it."""
        judging = self._judging
        if judging.state == "closed":
            return self._can_ask and now >= judging.refused_until
        if judging.state == "open":
            return now >= judging.refused_until
        return judging.state == "connecting" and judging.trouble_since is not None and now < judging.trouble_since + self.patience

    @property
    def has_help(self) -> bool:
        """Somebody can go on without the verifier."""
        return self._remote.is_able or (not self._pair.is_lossless and not self._drafting.is_out)

    @property
    def patience(self) -> float:
        """Seconds that trouble may last: a reader of device tokens need not wait as long as one who wants the target's.

        Other trouble may be over at any time, but a full server goes on being full. So an answer that may choose doesn't begin later for
        it than by two rounds, or a token of the stream where that is more; one that has begun would pay for the change.
        """
        if not self.has_help:
            return self._options.last_patience
        if self._judging.is_turned_away and self._options.is_adaptive and not self._ledger.is_begun:
            least = self._pair.remote_step if self._pair.is_lossless else 0.0
            return min(self._options.link_patience, max(_TOLD * self._pair.wait, least))
        if self._pair.is_lossless or not self._ledger.is_begun:
            return self._options.link_patience
        return min(self._options.link_patience, _TOLD * self._pair.wait)

    def is_refused_too_long(self, now: float) -> bool:
        """Return True if somebody else goes on at once, for the verifier says that it takes nothing until patience has ended."""
        since = self._judging.trouble_since
        return self.has_help and self._judging.refused_until >= (now if since is None else since) + self.patience

    def give_up_at(self) -> float | None:
        """When trouble has lasted too long for the round that waits; None: none does."""
        judging = self._judging
        if judging.round is None or judging.round.state == "out" or judging.trouble_since is None:
            return None
        return judging.trouble_since + self.patience

    @property
    def _can_ask(self) -> bool:
        return self._pair.steering.budget > 0.0

    @property
    def _is_past_exit(self) -> bool:
        return is_past_exit(self._answer.length, self._options.max_tokens, self._pair.steering.budget)

    @property
    def _must_look(self) -> bool:
        """True if the stream, which drafting has to be faster than, is to be measured first; not where an answer is drafted already."""
        return not self._pair.knows_remote or (self._pair.is_stale and (not self._ledger.is_begun or self._remote.version is not None))

    def _mode(self) -> GenerationMode:
        """Return what pays."""
        self._pair.propose_window()
        if not self._options.is_adaptive:
            return "speculate"
        if self._pair.is_lossless and self._remote.is_able and self._must_look:
            return "remote"
        pair, share = self._pair, self._pair.opening_share
        mode = pair.switch.choose(
            pair.conditions(),
            window=pair.proposal,
            policy_decides=pair.policy_decides,
            opening=share * self._ledger.prompt_time if self._judging.is_new else 0.0,
            return_time=0.0 if self._ledger.is_begun else share * pair.prompt_time,
        )
        return "speculate" if mode == "device" and self.unasked >= _PROBE_AFTER else mode
