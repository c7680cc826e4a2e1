"""The device drafts, the cloud verifies: one answer's machine (Synera section 4).

The device drafts a window of tokens; ``SpeculationEstimates`` says whether the verifier is asked (always, where the answer must be the
target's), and while it is, the device drafts on along the likeliest verdicts. Nothing waits for such a branch: a verdict adopts the one
that foresaw it with as many tokens as it has by then, or the draft begins anew.

Three ways to go on: *speculate*; *remote*, the remote side streams alone; *device*, chunks are settled without asking. The way is chosen at
every settled boundary, by what pays (``ModeSwitch``) and by who is there. Trouble with the verifier is borne for a while (patience), then
somebody else goes on and the verifier may come back. Lossless, the verifier or the remote side vouches for every settled token,
but where both are gone and ``may_use_device`` lets the device go on; then ``report.is_exact`` is False.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random
from typing import assert_never

from streamco.core.report import SpeculationReport
from streamco.core.speculation.answer import ProvisionalAnswer, Settling
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
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.core.speculation.predraft import PreDrafter
from streamco.core.speculation.shadow import ShadowDrafter
from streamco.core.speculation.verification import VerifierChannel
from streamco.errors import AllEndpointsFailed, StreamcoError, VerifierError
from streamco.events import ReaderLeft

__all__ = ["SpeculationMachine"]

_CATCH_UP = 64  # given tokens that a verdict may have to read first and still say how long verdicts take
_ASK_EVERY = 4  # tokens of the remote stream between two looks at whether drafting pays


class SpeculationMachine:
    """One answer, without IO, clock or dice.

    Args:
        pair: what is known of the models; kept over answers, and told what this one shows.
        options: of this answer.
        rng: for which chunks are sent, where the budget leaves a choice.

    Attributes:
        report: what it took so far.
        answer: settled tokens.
        is_done: finished, failed or left; nothing more is said.
    """

    def __init__(self, pair: SpeculationEstimates, options: SpeculationMachineOptions, rng: Random) -> None:
        self.report = SpeculationReport()
        self.is_done = False
        self.answer = ProvisionalAnswer(options.emit, options.end_ids, options.max_tokens)
        self._pair = pair
        pair.expect_rounds(branches=options.max_branches if options.is_parallel else 0, ahead=options.max_ahead)
        self._options = options
        self._rng = rng
        self._commands: list[SpeculationCommand] = []
        say, number = self._commands.append, count(1).__next__
        self._settling = Settling(self.answer, self.report, say)
        self._drafting = DraftState(pair, self.report, say, number)
        self._judging = VerifierChannel(say, verdict_patience=options.verdict_patience, prompt_patience=options.prompt_patience)
        self._remote = RemoteStream(options.has_remote, say, number)
        self._overhearing = ShadowDrafter(self._drafting, pair)
        self._ledger = TimeAccount(pair)
        self._rest = Backpressure(self._ledger)
        self._betting = PreDrafter(pair, options, answer=self.answer, drafting=self._drafting, judging=self._judging, rest=self._rest)
        self._ways = ModeSelector(
            pair, options, answer=self.answer, drafting=self._drafting, judging=self._judging, remote=self._remote, ledger=self._ledger
        )
        self._window = 0  # tokens of the present draft
        self._unlooked = 0  # tokens of the remote stream since drafting was considered
        self._is_turning = False  # it pays, and the stream goes on until everybody is there

    def start(self, *, now: float) -> None:
        """Begin; called once, before anything else."""
        self._ledger.start(now=now)
        self._go_on(now)

    def take_commands(self) -> list[SpeculationCommand]:
        """Return what to do, in order; each command is handed out once."""
        commands = self._commands[:]
        self._commands.clear()
        return commands

    def receive(self, event: SpeculationEvent, *, now: float) -> None:
        """Take note of what happened."""
        if self.is_done:
            return
        match event:
            case TokensDrafted():
                line = self._drafting.take(event, now=now)
                if line is not None and line is self._drafting.trunk:
                    self._on_trunk(now)
                elif line is not None:
                    self._betting.look_ahead(line, now=now)
            case DeviceFailed(error):
                self._on_device_failed(error, now)
            case VerifierConnected() | VerifierLost() | VerifierFailed():
                self._on_link(event, now)
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

    def _on_reader(self, event: ReaderFellBehind | ReaderCaughtUp | ReaderLeft, now: float) -> None:
        match event:
            case ReaderFellBehind():
                self._rest.want(is_streaming=self._remote.version is not None, now=now)
            case ReaderCaughtUp():
                is_idle = self._remote.version is None and self._judging.round is None
                if not self._rest.end(now=now) or not is_idle:
                    return
                if self._drafting.trunk is None:
                    self._go_on(now)
                else:
                    self._look_at_trunk(now)
            case ReaderLeft():
                self._close()

    def next_deadline(self) -> float | None:
        """When ``handle_deadline`` wants to be called; None: never, unless something happens."""
        times = (self._judging.due(), self._ways.give_up_at())
        return None if self.is_done else min((time for time in times if time is not None), default=None)

    def handle_deadline(self, *, now: float) -> None:
        """The deadline has come; earlier calls do nothing."""
        due, give_up_at = self._judging.due(), self._ways.give_up_at()
        if self.is_done:
            return
        if give_up_at is not None and now >= give_up_at:
            self._go_without(now)
        elif due is not None and now >= due:
            self._retry(now)

    # The next step

    def _go_on(self, now: float, line: DraftSequence | None = None, token: int | None = None) -> None:
        """All that was drafted and judged is settled: what next? ``line``: a branch that foresaw the verdict, with ``token`` behind it."""
        if self.answer.ended is not None:
            self._finish(self.answer.ended)
            return
        way = self._ways.choose(now=now)
        self._take(way)
        if way in {"speculate", "judge"} and self._judging.state == "closed":
            self._judging.connect(self.answer.ids, now=now)
        match way:
            case "remote":
                self._drafting.drop()
                self._is_turning = False
                if not self._rest.begins(now=now):
                    self._remote.open(self.answer.ids, self.answer.left)
                    self._ledger.note_opened(now=now)
            case "judge":
                self._ask_for_one(now)
            case "speculate" | "device":
                self._draft(line, token, now)
            case None:
                self._end_without_help()

    def _take(self, way: GenerationMode | None) -> None:
        self.report.fallbacks += way == "remote" and self._ways.present not in {None, "remote"}
        if way == "device" and self._pair.is_lossless:
            self.report.is_exact = False
        self._ways.present = way

    def _go_without(self, now: float) -> None:
        """The verifier is gone, or its trouble has lasted too long: somebody else goes on from the round's beginning."""
        if not self._ways.has_help:
            self._judging.close()
            self._judging.fail(VerifierError("verifier: expected verdicts, got none for longer than anybody waits"))
        waiting = self._judging.abandon()
        if self._pair.is_lossless or waiting is None:
            is_drafting = not self._pair.is_lossless and self._drafting.trunk is not None
            if self._remote.version is None and not is_drafting:
                self._go_on(now)
            return
        if waiting.draft:
            self._pair.steering.withdraw(len(waiting.draft))
            self.report.offloaded -= len(waiting.draft)
            self._keep(waiting.draft, now)
        line = self._drafting.find(len(waiting.draft), None)
        self._go_on(now, line)

    # The device's side

    def _draft(self, line: DraftSequence | None, token: int | None, now: float) -> None:
        """Draft the next window; the branch that foresaw the verdict has its beginning."""
        self._window = self._next_window()
        if not self._window:
            self._ask_for_one(now)
            return
        if line is None:
            self._drafting.begin(self.answer.ids, self._window, now=now)
        else:
            self._drafting.adopt(line, self.answer.ids, token)
        self._look_at_trunk(now)

    def _next_window(self) -> int:
        """Lossless, the verifier adds a token of its own, for which there must be room."""
        window, left = min(self._pair.window, self._options.max_draft), self.answer.left
        return window if left is None else min(window, left - (self._ways.present == "speculate" and self._pair.is_lossless))

    def _on_trunk(self, now: float) -> None:
        if self._remote.version is None:
            self._look_at_trunk(now)
        elif self._is_turning:
            self._turn_back(now)

    def _look_at_trunk(self, now: float) -> None:
        """Judge or keep the trunk's tokens if they are enough, else see that more come."""
        trunk = self._drafting.trunk
        if trunk is None:
            raise AssertionError("tokens of the trunk come while there is one")
        ids = trunk.ids
        end = next((place + 1 for place, token in enumerate(ids) if token in self._options.end_ids), None)
        is_enough = len(ids) >= self._window or self._pair.is_enough([token.confidence for token in trunk.tokens])
        if end is not None or is_enough or (ids and trunk.is_out_of_room):
            self._close_chunk(trunk, end or len(ids), now)
        elif trunk.is_out_of_room:
            self._drafting.is_full = True
            self._go_on(now)
        else:
            if ids:
                self._settling.propose(ids)
            if trunk.is_finished:
                self._drafting.extend(trunk, self._window - len(ids), now=now)

    def _close_chunk(self, trunk: DraftSequence, length: int, now: float) -> None:
        """The chunk is whole: send it, or keep it."""
        if self._rest.begins(now=now):
            return
        draft = trunk.tokens[:length]
        self._drafting.rest(now=now)
        self._settling.propose([token.id for token in draft])
        is_sent = self._is_sent(draft, trunk.importance, now)
        self.report.chunks += len(draft)
        self.report.offloaded += len(draft) if is_sent else 0
        if is_sent:
            self._submit(draft, now)
        else:
            self._keep(draft, now)
            self._go_on(now)

    def _is_sent(self, draft: Sequence[DraftToken], importance: float | None, now: float) -> bool:
        if self._pair.is_lossless:
            return self._ways.present == "speculate"
        if self._ways.present != "speculate" or not self._ways.is_promising(now):
            self._pair.steering.keep(len(draft))
            return False
        confidence = sum(token.confidence for token in draft) / len(draft)
        return self._pair.steering.decide(confidence, importance, len(draft), self._rng).is_offloaded

    def _keep(self, draft: Sequence[DraftToken], now: float) -> None:
        """Settle without asking."""
        self._ways.unasked += self._settling.keep(draft)
        self._ledger.note_device(now=now)

    def _on_device_failed(self, error: StreamcoError, now: float) -> None:
        was_drafting = self._drafting.trunk is not None and self._remote.version is None
        self._drafting.failure = error
        self._drafting.drop()
        if was_drafting:
            self._go_on(now)

    # The verifier's side

    def _submit(self, draft: Sequence[DraftToken], now: float) -> None:
        """Have a draft judged, and draft on meanwhile along the likeliest verdicts."""
        if self._judging.state == "closed":  # refused while this was drafted
            self._judging.connect(self.answer.ids, now=now)
        waiting = self._judging.submit(draft, self.answer.ids, now=now)
        self._betting.begin(waiting, now=now)

    def _ask_for_one(self, now: float) -> None:
        """The verifier's next token, without a draft."""
        self._drafting.drop()
        if not self._rest.begins(now=now):
            self._submit([], now)

    def _on_link(self, event: VerifierConnected | VerifierLost | VerifierFailed, now: float) -> None:
        judging = self._judging
        match event:
            case VerifierConnected():
                judging.connected(event, self.answer.ids, now=now)
                if self._is_turning and self._remote.version is not None:
                    self._turn_back(now)
            case VerifierLost(retry_after):
                if judging.state == "open":
                    self._on_lost(retry_after, now)
            case VerifierFailed(error):
                if judging.state != "gone":
                    judging.fail(error)
                    self._go_without(now)

    def _on_lost(self, retry_after: float | None, now: float) -> None:
        self.report.losses += 1
        if retry_after is not None:
            self._judging.turn_away(retry_after, now=now)
        if self._remote.version is not None and self._judging.round is None:
            self._judging.forget()
            self._is_turning = False
            return
        if retry_after is not None and self._ways.is_refused_too_long(now):
            self._judging.forget()
            self._go_without(now)
            return
        self._judging.connect(self.answer.ids, now=now)
        self._bear(now)

    def _retry(self, now: float) -> None:
        """A refused draft is sent again; a verdict that doesn't come costs the connection."""
        waiting = self._judging.round
        if waiting is not None and waiting.state == "out":
            self._pair.note_wait(now - waiting.since, queue_depth=self._pair.queue_depth, server_seconds=0.0)
            self.report.losses += 1
        self._judging.retry(self.answer.ids, now=now)
        self._bear(now)

    def _bear(self, now: float) -> None:
        """A round that is lost again when trouble has lasted long enough isn't tried a third time before somebody else goes on."""
        give_up_at = self._ways.give_up_at()
        if give_up_at is not None and now >= give_up_at:
            self._go_without(now)

    def _on_refused(self, event: DraftRefused, now: float) -> None:
        if not self._judging.refuse(event, now=now):
            return
        self.report.refusals += 1
        if self._ways.is_refused_too_long(now):
            self._go_without(now)

    def _on_verdict(self, event: VerdictReceived, now: float) -> None:
        waiting = self._judging.accept(event, self.answer.ids)
        if waiting is None:
            self.report.stale_verdicts += 1
            return
        self._ways.unasked = 0
        tokens = self._settling.judge(waiting, event)
        line = self._drafting.find(event.accepted, event.token) if self.answer.ended is None else None
        if waiting.given <= _CATCH_UP and not waiting.is_first:
            seconds = event.queue_seconds + event.compute_seconds
            waited = self._pair.rtt + seconds if waiting.was_ahead else now - waiting.sent
            self._pair.note_wait(waited, queue_depth=event.queue_depth, server_seconds=seconds)
        elif waiting.is_first and self._ledger.prompt_time > 0.0:
            self._pair.note_opening(max(0.0, now - waiting.sent - self._pair.wait) / self._ledger.prompt_time)
        self._pair.note_verdict(waiting.confidences, event.accepted, is_hit=line is not None if waiting.branches else None)
        if self._options.max_ahead and waiting.branches:
            self._pair.note_ahead(self._judging.round is not None)
        if self._remote.failure is None:
            self._ledger.note_round(tokens, now=now)
        else:
            self._ledger.note_forced(now=now)
        if self._judging.round is not None and self.answer.ended is None:
            self._go_on_ahead(self._judging.round, line, event.token, now)
        else:
            self._go_on(now, line, event.token)

    def _go_on_ahead(self, waiting: Round, line: DraftSequence | None, token: int | None, now: float) -> None:
        """The next draft was sent ahead, and is being judged."""
        self.report.ahead += 1
        is_going_on = self._ways.choose(now=now) == "speculate"
        waiting.begun = now
        self.report.chunks += len(waiting.draft)
        self.report.offloaded += len(waiting.draft)
        if line is not None:
            self._drafting.adopt(line, self.answer.ids, token)
            self._settling.propose(waiting.ids)
        if is_going_on:
            self._betting.begin(waiting, now=now)
        else:
            self._drafting.rest(now=now)  # the round is judged, and then somebody else goes on

    # The remote side

    def _on_remote(self, event: RemoteTokensReceived | RemoteEnded | RemoteFailed, now: float) -> None:
        match event:
            case RemoteTokensReceived(ids=ids):
                self._on_remote_tokens(ids, now)
            case RemoteEnded(reason=reason):
                self._remote.version = None
                self._ledger.note_ended(self._remote.tokens, now=now)
                self._finish(reason)
            case RemoteFailed(error=error):
                self._remote.version, self._remote.failure = None, error
                self._ledger.skip(now=now)
                self._go_on(now)

    def _on_remote_tokens(self, ids: Sequence[int], now: float) -> None:
        is_first = not self._remote.tokens
        self._remote.tokens += len(ids)
        self._settling.stream(ids)
        self._ledger.note_stream(len(ids), is_first=is_first, now=now)
        if self.answer.ended is not None:
            self._finish(self.answer.ended)
            return
        if self._pair.is_lossless and self._options.is_adaptive and self._judging.state != "gone":
            self._overhearing.follow(self.answer.ids, len(ids), now=now)
        self._unlooked += len(ids)
        if self._unlooked >= _ASK_EVERY:
            self._unlooked = 0
            self._is_turning = self._ways.pays_again(now=now) or (self._is_turning and self._judging.state == "connecting")
            if self._is_turning:
                self._turn_back(now)

    def _turn_back(self, now: float) -> None:
        """From the stream to drafting, as soon as the verifier is there and the device has read the answer: it goes on until then."""
        if self._judging.state == "closed":
            self._judging.connect(self.answer.ids, now=now)
        if not self._overhearing.has_caught_up(self.answer.ids):
            self._overhearing.catch_up(self.answer.ids, now=now)
        elif self._judging.state == "open":
            self._is_turning = False
            self._remote.close()
            self._take("speculate")
            self._draft(None, None, now)

    # The end

    def _finish(self, reason: str) -> None:
        self._close()
        self._settling.finish(reason)

    def _end_without_help(self) -> None:
        """Nobody can go on. A device that is merely full has come to the end of its length, where that is the answer's."""
        if self._drafting.is_full and not self._pair.is_lossless and self._drafting.failure is None:
            self._finish("length")
            return
        errors = {"device": self._drafting.failure, "verifier": self._judging.failure, "remote": self._remote.failure}
        known = {name: error for name, error in errors.items() if error is not None}
        self._close()
        self._settling.fail(AllEndpointsFailed(known) if len(known) > 1 else next(iter(known.values())))

    def _close(self) -> None:
        """Stop everybody."""
        self.is_done = True
        self._drafting.drop()
        self._judging.close()
        self._remote.close()
