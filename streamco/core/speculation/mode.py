"""Chooses how the next tokens are generated, and how long trouble with the verifier may last."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

from streamco.core.speculation.answer import SpeculativeAnswer
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken
from streamco.core.speculation.fallback_stream import RemoteStream, TimeAccount
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.verification import VerifierChannel
from streamco.policies.offload import is_past_exit

__all__ = ["GenerationMode", "ModeSelector"]

GenerationMode = Literal["speculate", "device", "remote", "verify one"]
"""How tokens are generated. With "speculate" the device drafts and the verifier verifies. With "device" the device commits its own chunks.
With "remote" the remote stream generates alone. With "verify one" the verifier gives one token at a time, because the device can't draft
and there is no remote stream."""

_PATIENCE_ROUNDS = 2.0  # how many rounds an answer waits for a verifier while another mode could continue it
_PROBE_AFTER = 64  # how many tokens the device commits alone before the verifier is tried again


class ModeSelector:
    """Chooses the generation mode of an answer, depending on which modes are available and which one pays.

    Attributes:
        current: the mode that was set last; None if no mode was set yet.
    """

    def __init__(
        self,
        estimates: SpeculationEstimates,
        options: SpeculationMachineOptions,
        *,
        answer: SpeculativeAnswer,
        draft_state: DraftState,
        verifier: VerifierChannel,
        remote: RemoteStream,
        time_account: TimeAccount,
    ) -> None:
        self.current: GenerationMode | None = None
        self._unverified_tokens = 0  # committed by the device alone since the last verdict
        self._empty_at = -1  # length of the answer at which a lookup found nothing worth a round
        self._estimates = estimates
        self._options = options
        self._answer = answer
        self._draft_state = draft_state
        self._verifier = verifier
        self._remote = remote
        self._time_account = time_account

    # What happened

    def set_current(self, mode: GenerationMode | None) -> None:
        """Record the mode in which the answer continues, or None if it can't continue."""
        self.current = mode

    def record_unverified(self, tokens: int) -> None:
        """Count tokens that the device committed alone since the last verdict."""
        self._unverified_tokens += tokens

    def next_window(self) -> int:
        """Return the length of the next draft in tokens. In a lossless answer this leaves room for the token that the verdict adds."""
        window, free_tokens = min(self._estimates.window, self._options.max_draft), self._answer.free_tokens
        is_one_added = self.current == "speculate" and self._estimates.is_lossless
        return window if free_tokens is None else min(window, free_tokens - is_one_added)

    def record_nothing_found(self) -> None:
        """Record that looking up what may follow the answer so far found no draft, or none that pays."""
        self._empty_at = self._answer.length

    def record_verdict(self) -> None:
        """Record that a verdict arrived, so that counting unverified tokens starts again from 0."""
        self._unverified_tokens = 0

    # Which mode

    def choose(self, *, now: float) -> GenerationMode | None:
        """Return the mode for the next tokens, or None if the answer can't continue.

        Call this only once each time all drafted tokens have been committed or dropped, because the mode switch counts the calls.
        """
        can_draft, can_verify = not self._draft_state.is_out, self._may_verify and self._verifier.state != "gone"
        if self._empty_at == self._answer.length and can_verify:
            return self._without_draft(now)
        if not self._estimates.is_lossless:
            if can_draft:  # offloading stops near the end of the answer (Synera 4.3)
                return self._best_mode() if self.can_verify_soon(now) and not self._is_past_exit else "device"
        elif can_draft and can_verify and not self._remote.is_usable:
            self._estimates.propose_window()
            return "speculate"
        elif can_draft and self.can_verify_soon(now):
            return self._best_mode()
        if self._remote.is_usable:
            self._answer.report.why_remote = "no verifier" if can_draft else "no draft"
            return "remote"
        if can_verify:
            return "verify one"
        return "device" if can_draft and self._options.may_use_device else None

    def _without_draft(self, now: float) -> GenerationMode:
        """Return the mode after a lookup that found nothing: the stream or "verify one".

        The stream must be usable. Unless the mode is adaptive, it is used only if no draft can be verified soon.
        """
        is_stream = self._remote.is_usable and (self._options.is_adaptive or not self.can_verify_soon(now))
        if is_stream and self._answer.report.why_remote is None:
            self._answer.report.why_remote = "nothing to look up"
        return "remote" if is_stream else "verify one"

    def is_worth(self, draft: Sequence[DraftToken], *, leaves_stream: bool = False) -> bool:
        """Return True if a looked-up draft should be sent.

        Args:
            draft: its tokens.
            leaves_stream: True if the stream is open and would have to be opened again if nothing is found after this draft.
        """
        if not self._options.is_adaptive or not self._remote.is_usable:
            return True
        conditions = self._estimates.conditions_of(draft, leaves_stream=leaves_stream)
        opening, return_time = self._prompt_times
        window = len(draft) + 1.0  # even one token is a draft here, while a policy's window of 1 means none
        mode = self._estimates.switch.choose(conditions, window=window, opening=opening, return_time=return_time, at_once=True)
        if mode == "remote":
            self._answer.report.why_remote = "drafting is slower"
        return mode == "speculate"

    @property
    def _prompt_times(self) -> tuple[float, float]:
        """Seconds that a first round takes to read the stream's tokens, and that a stream takes to begin after a failed draft."""
        share = self._estimates.opening_share
        opening = share * self._time_account.prompt_time if self._verifier.is_new else 0.0
        return opening, 0.0 if self._time_account.has_begun else share * self._estimates.prompt_time

    def pays_again(self, *, now: float) -> bool:
        """Return True if the answer should return from the remote stream to drafting."""
        is_reachable = self._verifier.state in {"closed", "open"} and self.can_verify_soon(now)
        if not self._estimates.is_lossless or self._draft_state.is_out or not is_reachable:
            return False
        return self._best_mode() == "speculate"

    def can_verify_soon(self, now: float) -> bool:
        """Return True if a draft would be verified soon. A closed session counts, because the first draft is what opens it."""
        verifier = self._verifier
        if verifier.state == "closed":
            return self._may_verify and now >= verifier.refused_until
        if verifier.state == "open":
            return now >= verifier.refused_until
        return verifier.state == "connecting" and verifier.trouble_since is not None and now < verifier.trouble_since + self.patience

    def is_offloaded(self, draft: Sequence[DraftToken], importance: float | None, rng: Random, *, now: float) -> bool:
        """Return True if a chunk should be verified. In a selective answer, only chunks that the offloading filters choose are (4.2).

        Args:
            draft: the chunk.
            importance: the chunk's importance; None if not measured.
            rng: decides which chunks are sent if the budget leaves a choice.
            now: the current time in seconds.
        """
        steering = self._estimates.steering
        if self._estimates.is_lossless:
            return self.current == "speculate"
        if self.current != "speculate" or not self.can_verify_soon(now):
            steering.keep(len(draft))
            return False
        confidence = sum(token.confidence for token in draft) / len(draft)
        return steering.decide(confidence, importance, len(draft), rng).is_offloaded

    def _best_mode(self) -> GenerationMode:
        """Return the mode that pays, which is fused mode if drafting is slower (DSD section 4.4)."""
        estimates = self._estimates
        estimates.propose_window()
        if not self._options.is_adaptive:
            return "speculate"
        if estimates.is_lossless and self._remote.is_usable and self.must_measure_stream:
            self._answer.report.why_remote = "its speed was measured"
            return "remote"
        if self._options.is_lookup:
            return "speculate"  # the draft found decides (``is_worth``)
        opening, return_time = self._prompt_times
        mode = estimates.switch.choose(
            estimates.conditions(),
            window=estimates.proposal,
            policy_decides=estimates.policy_decides,
            opening=opening,
            return_time=return_time,
        )
        if mode == "remote":
            self._answer.report.why_remote = "drafting is slower"
        # In mode "device" nothing shows whether the verifier would pay again, so it is tried now and then.
        return "speculate" if mode == "device" and self._unverified_tokens >= _PROBE_AFTER else mode

    @property
    def must_measure_stream(self) -> bool:
        """True if the stream's pace must be measured before drafting can be compared with it. An answer that drafts is not interrupted."""
        is_interruptible = not self._time_account.has_begun or self._remote.is_open
        return not self._estimates.has_remote_step or (self._estimates.is_remote_step_stale and is_interruptible)

    @property
    def _may_verify(self) -> bool:
        return self._estimates.steering.budget > 0.0

    @property
    def _is_past_exit(self) -> bool:
        return is_past_exit(self._answer.length, self._options.max_tokens, self._estimates.steering.budget)

    # How long trouble may last

    @property
    def has_fallback(self) -> bool:
        """True if the answer can continue without the verifier."""
        return self._remote.is_usable or (not self._estimates.is_lossless and not self._draft_state.is_out)

    @property
    def patience(self) -> float:
        """How many seconds trouble with the verifier may last.

        A selective answer waits less, because its reader accepts the device's tokens. A full verifier stays full for
        ``retry_after``, so an answer that has not begun waits for it at most two rounds, or one token of the stream if that is longer.
        Other trouble may end at any time, and a change of mode delays an answer in progress, so in these cases it waits longer.
        """
        options, estimates = self._options, self._estimates
        if not self.has_fallback:
            return options.last_patience
        if self._verifier.is_session_refused and options.is_adaptive and not self._time_account.has_begun:
            one_token = estimates.remote_step if estimates.is_lossless else 0.0
            return min(options.patience, max(_PATIENCE_ROUNDS * estimates.wait, one_token))
        if estimates.is_lossless or not self._time_account.has_begun:
            return options.patience
        return min(options.patience, _PATIENCE_ROUNDS * estimates.wait)

    def is_refused_too_long(self, now: float) -> bool:
        """Return True if the verifier will refuse everything until the patience ends, so that waiting for it is pointless."""
        since = self._verifier.trouble_since
        return self.has_fallback and self._verifier.refused_until >= (now if since is None else since) + self.patience

    def gives_up_at(self) -> float | None:
        """Return when to give up on the round that waits for the verifier, in seconds, or None if no round is in trouble."""
        verifier = self._verifier
        if verifier.round is None or verifier.round.state == "sent" or verifier.trouble_since is None:
            return None
        return verifier.trouble_since + self.patience
