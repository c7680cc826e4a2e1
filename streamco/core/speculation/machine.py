"""The machine of one speculated answer, in which the device drafts and the verifier verifies (Synera section 4, Figure 8).

Whenever nothing is left to verify or commit, ``ModeSelector`` chooses a mode that is available and pays:

    speculate    draft a window ── SendDraft ──> VerdictReceived: commit accepted tokens and one of the target model's
                 while the verdict is out, draft along the likeliest verdicts; the right branch is adopted (4.4)
    device       draft a chunk and commit it without verification (offloading, 4.2; only in a selective answer)
    remote       the target model generates alone and its tokens are committed; drafting may start again (DSD 4.4)
    verify one   SendDraft without a draft, so that the verdict is the target model's next token

The events that come in and the commands that go out, by the part that sends or gets them:

    device       TokensDrafted, DeviceFailed                             DraftTokens, DraftBranch, AdoptBranch, DropDrafts
    verifier     VerifierConnected, VerifierLost, VerifierFailed,        ConnectVerifier, SendDraft, CloseVerifier
                 VerdictReceived, DraftRefused
    remote       RemoteTokensReceived, RemoteEnded, RemoteFailed         OpenRemote, CloseRemote
    reader       ReaderFellBehind, ReaderCaughtUp, ReaderLeft            DeliverIds, CommitIds, RetractIds, FinishAnswer, FailAnswer

A round calls these methods:

    _next_step ─> _draft ─> _check_draft (again for each TokensDrafted) ─> _end_chunk ─┬─> _send ─> _on_verdict ─> _next_step
                                                                                       └─> _commit_unverified ─> _next_step

Trouble with the verifier (a lost connection, a refusal, no verdict in time) is tolerated for ``ModeSelector.patience``. Then another mode
continues from the beginning of the round, and the verifier may come back later. ``SilenceLimit`` limits all these waits together.

A lossless answer (budget 1) contains only tokens that the verifier or the remote stream made or accepted. If both are gone, the device may
continue alone (``may_use_device``), but then ``report.is_exact`` is False. A selective answer also has chunks that the device committed
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import assert_never

from streamco.core.speculation.answer import SpeculativeAnswer
from streamco.core.speculation.backpressure import Backpressure
from streamco.core.speculation.draft import DraftSequence, Round
from streamco.core.speculation.draft_state import DraftState
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import (
    DeviceFailed,
    DraftRefused,
    DraftToken,
    ReaderCaughtUp,
    ReaderFellBehind,
    RemoteEnded,
    RemoteFailed,
    RemoteTokensReceived,
    SpeculationCommand,
    SpeculationEvent,
    TokensDrafted,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.core.speculation.fallback_stream import RemoteStream, TimeAccount
from streamco.core.speculation.mode import GenerationMode, ModeSelector
from streamco.core.speculation.opening_stream import OpeningStream
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.predraft import PreDrafter
from streamco.core.speculation.report import SpeculationReport
from streamco.core.speculation.shadow import ShadowDrafter
from streamco.core.speculation.sibling_choice import siblings_for
from streamco.core.speculation.silence import SilenceLimit
from streamco.core.speculation.stream_lookup import StreamLookup
from streamco.core.speculation.verification import VerifierChannel, record_outcome, record_wait
from streamco.errors import AllEndpointsFailed, StreamcoError
from streamco.events import ReaderLeft

__all__ = ["SpeculationMachine"]

_CHECK_EVERY = 4  # how many tokens of the remote stream to wait between two decisions whether drafting pays


class SpeculationMachine:
    """Generates one speculated answer, without IO or a clock.

    Args:
        estimates: measurements of the two models, kept across answers; this answer adds its own.
        options: settings for this answer.
        rng: decides which chunks are sent if the budget leaves a choice.

    Attributes:
        report: counts of the answer's tokens and rounds so far.
        answer: the committed tokens.
        is_done: True if the answer is complete, has failed or was left by its reader. No more commands follow.
    """

    def __init__(self, estimates: SpeculationEstimates, options: SpeculationMachineOptions, rng: Random) -> None:
        self.report = SpeculationReport()
        self.is_done = False
        self._estimates, self._options, self._rng = estimates, options, rng
        estimates.expect_rounds(branches=options.max_branches if options.is_parallel else 0, ahead=options.max_ahead)
        self._commands: list[SpeculationCommand] = []
        emit, next_version = self._commands.append, count(1).__next__
        shows_drafts = options.emit == "draft"
        answer = SpeculativeAnswer(emit, self.report, shows_drafts=shows_drafts, end_ids=options.end_ids, max_tokens=options.max_tokens)
        draft_state = DraftState(estimates, self.report, emit, next_version, is_lookup=options.is_lookup)
        verifier = VerifierChannel(emit, first_verdict_timeout=options.first_verdict_timeout, verdict_timeout=options.verdict_timeout)
        remote = RemoteStream(options.has_remote, emit, next_version)
        time_account = TimeAccount(estimates)
        backpressure = Backpressure(time_account)
        self._pre_drafter = PreDrafter(
            estimates, options, answer=answer, draft_state=draft_state, verifier=verifier, backpressure=backpressure
        )
        self._mode_selector = ModeSelector(
            estimates, options, answer=answer, draft_state=draft_state, verifier=verifier, remote=remote, time_account=time_account
        )
        self._shadow = ShadowDrafter(draft_state, estimates)
        self._lookup = StreamLookup(draft_state, estimates) if options.is_lookup else None
        self._opening_stream = OpeningStream(
            estimates, options, answer=answer, draft_state=draft_state, remote=remote, time_account=time_account, backpressure=backpressure
        )
        self._silence = SilenceLimit(options, answer=answer, verifier=verifier, remote=remote, backpressure=backpressure)
        self.answer, self._draft_state, self._verifier, self._remote = answer, draft_state, verifier, remote
        self._time_account, self._backpressure = time_account, backpressure
        self._window = 0  # tokens of the current draft
        self._unchecked = 0  # tokens of the remote stream since the last decision on whether drafting pays
        self._is_returning = False  # drafting pays; the stream continues until verifier and device are ready

    def start(self, *, now: float) -> None:
        """Start the answer."""
        self._time_account.start(now=now)
        self._next_step(now)
        self._silence.watch(now=now)

    def take_commands(self) -> list[SpeculationCommand]:
        """Return the commands to carry out, in order."""
        commands = self._commands[:]
        self._commands.clear()
        return commands

    def receive(self, event: SpeculationEvent, *, now: float) -> None:
        """Handle an event. Events of drafts, rounds and streams that have ended change nothing."""
        if self.is_done:
            return
        match event:
            case TokensDrafted():
                draft = self._draft_state.record_tokens(event, now=now)
                if draft is not None and draft is self._draft_state.trunk:
                    self._on_trunk_tokens(now)
                elif draft is not None:
                    self._pre_drafter.send_ahead_if_ready(draft, now=now)
            case DeviceFailed(error):
                self._on_device_failed(error, now)
            case VerifierConnected() | VerifierLost() | VerifierFailed():
                self._on_connection(event, now)
            case VerdictReceived():
                self._on_verdict(event, now)
            case DraftRefused():
                self._on_refused(event, now)
            case RemoteTokensReceived() | RemoteEnded() | RemoteFailed():
                if event.version == self._remote.version:
                    self._on_remote(event, now)
            case ReaderFellBehind() | ReaderCaughtUp() | ReaderLeft():
                self._on_reader(event, now)
            case _:
                assert_never(event)
        self._silence.watch(now=now)

    def next_deadline(self) -> float | None:
        """Return when to call ``handle_deadline``, in seconds, or None if nothing is due before another event."""
        return None if self.is_done else min((time for time, _ in self._deadlines() if time is not None), default=None)

    def handle_deadline(self, *, now: float) -> None:
        """Do the work that is due at a deadline."""
        if self.is_done:
            return
        act = next((act for time, act in self._deadlines() if time is not None and now >= time), None)
        if act is not None:
            act(now)
        self._silence.watch(now=now)

    def _deadlines(self) -> tuple[tuple[float | None, Callable[[float], None]], ...]:
        """Return pairs of a time in seconds and the method to call then, the most important first."""
        return (
            (self._silence.deadline(), self._end_silence),
            (self._mode_selector.gives_up_at(), self._continue_without_verifier),
            (self._verifier.next_deadline(), self._retry),
            (self._opening_stream.due(), self._begin_without_draft),
        )

    def _end_silence(self, now: float) -> None:
        self._silence.give_up()
        self._time_account.skip(now=now)
        self._continue_without_verifier(now)

    # The next step

    def _next_step(self, now: float, branch: DraftSequence | None = None, token: int | None = None) -> None:
        """Choose a mode and start it. By now, all drafted and verified tokens have been committed or dropped.

        Args:
            now: the current time in seconds.
            branch: the draft that assumed the verdict; None if no branch did.
            token: the verdict's last token.
        """
        if self.answer.ended is not None:
            self._finish(self.answer.ended)
            return
        mode = self._mode_selector.choose(now=now)
        self._set_mode(mode)
        if mode in {"speculate", "verify one"} and self._verifier.state == "closed" and self._lookup is None:
            self._verifier.connect(self.answer.ids, now=now)
        match mode:
            case "remote":
                self._draft_state.drop()
                self._is_returning = False
                if not self._backpressure.should_hold(now=now):
                    self._remote.open(self.answer.ids, self.answer.free_tokens)
                    self._time_account.record_opened(now=now)
            case "verify one":
                self._request_one_token(now)
            case "speculate" | "device":
                self._draft(branch, token, now)
            case None:
                self._end_without_endpoints()

    def _set_mode(self, mode: GenerationMode | None) -> None:
        has_drafted = self._lookup is None or self.report.rounds > 0  # looking up isn't a change
        self.report.fallbacks += mode == "remote" and self._mode_selector.current not in {None, "remote"} and has_drafted
        if mode == "device" and self._estimates.is_lossless:
            self.report.is_exact = False
        self._mode_selector.set_current(mode)

    def _continue_without_verifier(self, now: float) -> None:
        """Continue in another mode from the round's beginning, because the verifier is gone or has had trouble for too long."""
        if not self._mode_selector.has_fallback:
            self._verifier.give_up()
        out = self._verifier.abandon_round()
        if self._estimates.is_lossless or out is None:
            is_drafting = not self._estimates.is_lossless and self._draft_state.trunk is not None
            if not self._remote.is_open and not is_drafting:
                self._next_step(now)
            return
        if out.draft:  # a selective answer may keep the draft that could not be verified
            self._estimates.steering.withdraw(len(out.draft))
            self.report.offloaded -= len(out.draft)
            self._commit_unverified(out.draft, now)
        branch = self._draft_state.find_branch(len(out.draft), None)
        self._next_step(now, branch)

    def _begin_without_draft(self, now: float) -> None:
        """Request one token while the device reads the prompt. The device's draft becomes a branch that guesses this token itself."""
        self._opening_stream.record_asked()
        self._draft_state.assume_accepted(0, self._window + 1, now=now)
        self._send([], now)

    # Drafting

    def _draft(self, branch: DraftSequence | None, token: int | None, now: float) -> None:
        """Draft the next window. If a branch assumed the verdict, the draft begins with it (4.4 "merge the local and cloud results")."""
        self._window = self._mode_selector.next_window()
        if not self._window:
            self._request_one_token(now)
            return
        if branch is None:
            self._draft_state.start(self.answer.ids, self._window, now=now)
        else:
            self._draft_state.adopt(branch, self.answer.ids, token)
        self._check_draft(now)

    def _on_trunk_tokens(self, now: float) -> None:
        if not self._remote.is_open:
            self._check_draft(now)
        elif self._lookup is not None:
            self._leave_stream(self._lookup.found(self.answer.ids), now)
        elif self._is_returning:
            self._return_to_drafting(now)

    def _check_draft(self, now: float) -> None:
        """End the chunk if the trunk has enough tokens, otherwise request more."""
        trunk = self._draft_state.trunk
        if trunk is None:
            raise AssertionError("a draft is checked while there is a trunk")
        ids = trunk.ids
        end = next((position + 1 for position, token in enumerate(ids) if token in self._options.end_ids), None)
        is_enough = len(ids) >= self._window or self._estimates.should_end([token.confidence for token in trunk.tokens])
        if end is not None or is_enough or (ids and (trunk.is_context_full or trunk.is_exhausted)):
            self._end_chunk(trunk, min(end or len(ids), self._window) if trunk.is_lookup else end or len(ids), now)
        elif trunk.is_exhausted:
            self._go_on_without_draft(now)
        elif trunk.is_context_full:
            self._draft_state.record_full()
            self._next_step(now)
        else:
            if ids:
                self.answer.propose(ids)
            if trunk.is_finished:
                self._draft_state.extend(trunk, self._window - len(ids), now=now)

    def _end_chunk(self, trunk: DraftSequence, length: int, now: float) -> None:
        """Send the trunk's first ``length`` tokens to the verifier, or commit them unverified."""
        if self._backpressure.should_hold(now=now):
            return
        draft = trunk.tokens[: self._estimates.useful_length(trunk.tokens[:length])]
        if trunk.is_lookup and not self._mode_selector.is_worth(draft):
            self._go_on_without_draft(now)
            return
        self._draft_state.stop_trunk(now=now)
        self.answer.propose([token.id for token in draft])
        self._count_chunk(draft)
        if self._mode_selector.is_offloaded(draft, trunk.importance, self._rng, now=now):
            self.report.offloaded += len(draft)
            self._send(draft, now)
        else:
            self._commit_unverified(draft, now)
            self._next_step(now)

    def _go_on_without_draft(self, now: float) -> None:
        """Continue after a lookup that found nothing, or nothing that pays."""
        self._mode_selector.record_nothing_found()
        self._next_step(now)

    def _count_chunk(self, draft: Sequence[DraftToken]) -> None:
        self.report.chunks += len(draft)
        self.report.drafted += len(draft) * (self._lookup is not None)  # other drafts were counted when they were written

    def _commit_unverified(self, draft: Sequence[DraftToken], now: float) -> None:
        self._mode_selector.record_unverified(self.answer.commit_unverified(draft))
        self._time_account.record_device(now=now)

    def _on_device_failed(self, error: StreamcoError, now: float) -> None:
        was_drafting = self._draft_state.trunk is not None and not self._remote.is_open
        self._draft_state.record_failure(error)
        if was_drafting:
            self._next_step(now)

    # Verifying

    def _send(self, draft: Sequence[DraftToken], now: float) -> None:
        """Send a draft to the verifier, and meanwhile draft along the likeliest verdicts (4.4)."""
        if self._verifier.state == "closed":  # the session was refused while this was drafted
            self._verifier.connect(self.answer.ids, now=now)
        siblings = siblings_for(draft, self._estimates, self._options)
        self._pre_drafter.start(self._verifier.submit(draft, self.answer.ids, siblings=siblings, now=now), now=now)

    def _request_one_token(self, now: float) -> None:
        """Request the target model's next token, without a draft."""
        self._draft_state.drop()
        if not self._backpressure.should_hold(now=now):
            self._send([], now)

    def _on_verdict(self, event: VerdictReceived, now: float) -> None:
        out = self._verifier.accept_verdict(event, self.answer.ids)
        if out is None:
            self.report.stale_verdicts += 1
            return
        self._mode_selector.record_verdict()
        tokens = self.answer.commit_verdict(out, event)
        branch = self._draft_state.find_branch_of(out, event) if self.answer.ended is None else None
        record_wait(self._estimates, out, event, prompt_time=self._time_account.prompt_time, now=now)
        record_outcome(self._estimates, out, event, is_hit=branch is not None if out.branches else None)
        if self._options.max_ahead and out.branches:
            self._estimates.record_ahead(self._verifier.round is not None)
        if self._remote.failure is None and out.draft:
            self._time_account.record_round(tokens, now=now)
        else:
            self._time_account.record_forced_round(now=now)
        if self._verifier.round is not None and self.answer.ended is None:
            self._continue_ahead(self._verifier.round, branch, event.token, now)
        elif self.answer.ended is None and self._opening_stream.open(now=now):
            self._shadow.take_trunk()
            self._mode_selector.set_current("remote")
            self._is_returning = True
        else:
            self._next_step(now, branch, event.token)

    def _continue_ahead(self, out: Round, branch: DraftSequence | None, token: int | None, now: float) -> None:
        """Continue with the round that was sent before the verdict arrived and is already being verified."""
        self.report.ahead += 1
        is_speculating = self._mode_selector.choose(now=now) == "speculate"
        out.record_ahead(now)
        self._count_chunk(out.draft)
        self.report.offloaded += len(out.draft)
        if branch is not None:
            self._draft_state.adopt(branch, self.answer.ids, token)
            self.answer.propose(out.ids)
        if is_speculating:
            self._pre_drafter.start(out, now=now)
        else:  # another mode continues after this round's verdict
            self._draft_state.stop_trunk(now=now)

    # Trouble with the verifier

    def _on_connection(self, event: VerifierConnected | VerifierLost | VerifierFailed, now: float) -> None:
        match event:
            case VerifierConnected():
                self._verifier.record_connected(event, self.answer.ids, now=now)
                if self._is_returning and self._remote.is_open:
                    self._return_to_drafting(now)
            case VerifierLost(retry_after):
                if self._verifier.state == "open":
                    self._on_lost(retry_after, now)
            case VerifierFailed(error):
                if self._verifier.state != "gone":
                    self._verifier.fail(error)
                    self._continue_without_verifier(now)

    def _on_lost(self, retry_after: float | None, now: float) -> None:
        self.report.losses += 1
        if retry_after is not None:
            self._verifier.record_session_refused(retry_after, now=now)
        if self._remote.is_open and self._verifier.round is None:  # the session isn't needed now
            self._verifier.record_lost()
            self._is_returning = False
        elif retry_after is not None and self._mode_selector.is_refused_too_long(now):
            self._verifier.record_lost()
            self._continue_without_verifier(now)
        else:
            self._verifier.connect(self.answer.ids, now=now)
            self._check_patience(now)

    def _on_refused(self, event: DraftRefused, now: float) -> None:
        if not self._verifier.record_refusal(event, now=now):
            return
        self.report.refusals += 1
        if self._mode_selector.is_refused_too_long(now):
            self._continue_without_verifier(now)

    def _retry(self, now: float) -> None:
        """Send a refused draft again. If a verdict didn't arrive in time, open a new connection for its draft."""
        out = self._verifier.round
        if out is not None and out.state == "sent":
            self._estimates.record_lost_round(now - out.awaited_since)
            self.report.losses += 1
        self._verifier.retry(self.answer.ids, now=now)
        self._check_patience(now)

    def _check_patience(self, now: float) -> None:
        """Continue without the verifier if its trouble has lasted too long, so that a round that is lost twice isn't tried again."""
        give_up_at = self._mode_selector.gives_up_at()
        if give_up_at is not None and now >= give_up_at:
            self._continue_without_verifier(now)

    # The remote stream

    def _on_remote(self, event: RemoteTokensReceived | RemoteEnded | RemoteFailed, now: float) -> None:
        match event:
            case RemoteTokensReceived(ids=ids):
                self._on_remote_tokens(ids, now)
            case RemoteEnded(reason=reason):
                self._remote.record_ended()
                self._time_account.record_ended(self._remote.tokens, now=now)
                self._finish(reason)
            case RemoteFailed(error=error):
                self._remote.record_failure(error)
                self._time_account.skip(now=now)
                self._next_step(now)

    def _on_remote_tokens(self, ids: Sequence[int], now: float) -> None:
        self.answer.commit_remote(ids)
        is_first = self._remote.record_tokens(len(ids))
        self._time_account.record_stream(len(ids), is_first=is_first, is_beside_draft=self._shadow.is_drafting, now=now)
        if self.answer.ended is not None:
            self._time_account.record_ended(self._remote.tokens, now=now)
            self._finish(self.answer.ended)
            return
        if self._estimates.is_lossless and self._options.is_adaptive and self._verifier.state != "gone":
            if self._lookup is not None:
                self._lookup.follow(self.answer.ids, now=now)
            else:
                self._shadow.follow(self.answer.ids, len(ids), now=now)
        self._unchecked += len(ids)
        if self._unchecked >= _CHECK_EVERY:
            self._unchecked = 0
            if self._lookup is not None:
                self._estimates.propose_window()
                return
            self._is_returning = self._mode_selector.pays_again(now=now) or (self._is_returning and self._verifier.state == "connecting")
            if self._is_returning:
                self._return_to_drafting(now)

    def _leave_stream(self, found: Sequence[DraftToken], now: float) -> None:
        """Leave the stream for a looked-up draft, if that pays. The stream continues until the session is open."""
        window, selector = self._mode_selector.next_window(), self._mode_selector
        free_tokens = self.answer.free_tokens
        draft = found[: window if free_tokens is None else min(window, free_tokens - 1)]
        draft = draft[: self._estimates.useful_length(draft)]
        is_possible = selector.can_verify_soon(now) and not selector.must_measure_stream and not self._backpressure.is_requested
        if not draft or not is_possible or self._verifier.state == "connecting" or not selector.is_worth(draft, leaves_stream=True):
            return
        if self._verifier.state == "closed":
            self._verifier.connect(self.answer.ids, now=now)
        else:
            self._remote.close()
            self._set_mode("speculate")
            self._window = self._mode_selector.next_window()
            self._check_draft(now)

    def _return_to_drafting(self, now: float) -> None:
        """Return to drafting once the session is open and the device has read the answer. The stream continues until then."""
        if self._verifier.state == "closed":
            self._verifier.connect(self.answer.ids, now=now)
        if not self._shadow.has_caught_up(self.answer.ids):
            self._shadow.catch_up(self.answer.ids, now=now)
        elif self._verifier.state == "open":
            self._is_returning = False
            self._remote.close()
            self._set_mode("speculate")
            self._draft(None, None, now)

    # The reader

    def _on_reader(self, event: ReaderFellBehind | ReaderCaughtUp | ReaderLeft, now: float) -> None:
        match event:
            case ReaderFellBehind():
                self._backpressure.request(is_streaming=self._remote.is_open, now=now)
            case ReaderCaughtUp():
                if not self._backpressure.release(now=now) or self._remote.is_open or self._verifier.round is not None:
                    return
                if self._draft_state.trunk is None:
                    self._next_step(now)
                else:
                    self._check_draft(now)
            case ReaderLeft():
                self._close()

    # The end

    def _finish(self, reason: str) -> None:
        self._close()
        self.answer.finish(reason)

    def _end_without_endpoints(self) -> None:
        """End the answer, because no mode can continue it. A selective answer counts as complete if the device's context is full."""
        if self._draft_state.is_full and not self._estimates.is_lossless and self._draft_state.failure is None:
            self._finish("length")
            return
        failures = (("device", self._draft_state.failure), ("verifier", self._verifier.failure), ("remote", self._remote.failure))
        known = {name: failure for name, failure in failures if failure is not None}
        self._close()
        self.answer.fail(AllEndpointsFailed(known) if len(known) > 1 else next(iter(known.values())))

    def _close(self) -> None:
        self.is_done = True
        self._draft_state.drop()
        self._verifier.close()
        self._remote.close()
