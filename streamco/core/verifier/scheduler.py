"""The verifier's scheduler, which serves the sessions of many devices on one engine (Synera 4.5).

One batch runs at a time. When it has finished, the policy (``policies.serving.batching``) forms the next one from the requests that are
waiting then. So a verdict takes as long as the rest of the running batch, perhaps a step of prefill, and its own batch.

The queue is bounded. A session is refused if its device has too many sessions, or if the cache is full of sessions in use. It is also
refused if its prompt would wait too long, or if more than a twentieth of the recent verdicts were late. A draft is refused if its verdict
would be too late to be useful. Every refusal says when to retry, if a retry may succeed (``core.verifier.admission``).

::

    SessionOpened ──▶ accepted ──▶ prefill ⟲ ──▶ at rest ◀─────────────────┐
          │                          ▲             │  DraftReceived          │ SendVerdict, TruncateSequence
          ▼                          │             ▼                         │
       refused           evicted, a draft arrives  verification in chunks ⟲ ─┘
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import assert_never

from msgspec.structs import replace

from streamco.core.verifier.admission import Admission
from streamco.core.verifier.draft_checks import why_invalid
from streamco.core.verifier.events import (
    AcceptSession,
    BatchFailed,
    BatchFinished,
    BatchPart,
    CancelPart,
    DraftReceived,
    DraftVerdict,
    DropSequence,
    ForgetSession,
    Reason,
    RefuseDraft,
    RefuseSession,
    RunBatch,
    SchedulerCommand,
    SchedulerEvent,
    SendVerdict,
    SessionClosed,
    SessionExtended,
    SessionOpened,
    TruncateSequence,
)
from streamco.core.verifier.load import MeasuredStep, PrefillPace
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.sessions import HeldSession, RunningBatch, SessionTable
from streamco.policies.serving.batching import (
    CHUNK,
    Alternating,
    BatchContext,
    BatchPolicy,
    MayWait,
    Portion,
    StepSeconds,
    Waiting,
    raised_counter,
)

__all__ = ["VerificationScheduler"]

_TURNS = 2.0  # how many times longer a prompt token takes than without other load, until that is measured


class VerificationScheduler:
    """The scheduler's state machine, without IO. Its drivers feed it the events of ``core.verifier.events`` and carry out its commands.

    Args:
        options: the limits of the load and the engine.
        step: returns how many seconds a batch takes; measured times correct it.
        policy: chooses the requests of a batch; None for ``Alternating``.
    """

    def __init__(self, options: SchedulerOptions, step: StepSeconds, policy: BatchPolicy | None = None) -> None:
        self._options = options
        self._policy = policy or Alternating()
        self._patient = self._policy if isinstance(self._policy, MayWait) else None
        self._step = MeasuredStep(step)
        tokens = self._policy.batch_tokens
        self._pace = PrefillPace(_TURNS * step(tokens, 0) / tokens)
        self._sessions = SessionTable(
            tokens=options.kv_tokens, places=options.places, idle_after=options.idle_after, forget_after=options.forget_after
        )
        self._admission = Admission(options, self._policy, self._step, self._pace, self._sessions)
        self._busy: dict[str, HeldSession] = {}  # sessions that are waiting or running
        self._served: dict[str, float] = {}  # tokens served to each device that has a session
        self._running: RunningBatch | None = None
        self._ready_at: float | None = None  # when a policy that waits for more requests will have a batch
        self._numbers = 0
        self._verified = 0  # batches since the last prefill
        self._commands: list[SchedulerCommand] = []

    # What a driver calls

    def start(self, *, now: float) -> None:
        """Start the scheduler. It gives no command before the first event."""

    def receive(self, event: SchedulerEvent, *, now: float) -> None:
        """Handle an event."""
        match event:
            case SessionOpened():
                self._open(event, now)
            case SessionExtended():
                self._extend(event, now)
            case DraftReceived():
                self._take_draft(event, now)
            case SessionClosed(name):
                self._close(name, now)
            case BatchFinished():
                self._finish(event, now)
            case BatchFailed(number):
                self._fail(number, now)
            case _:
                assert_never(event)
        self._make_room(now)
        self._run_next(now)

    def take_commands(self) -> list[SchedulerCommand]:
        """Return the commands to carry out, in order."""
        commands, self._commands = self._commands, []
        return commands

    def next_deadline(self) -> float | None:
        """Return when to call ``handle_deadline`` to forget a session or begin a waiting batch, or None if neither is due."""
        forgotten = self._sessions.next_forgotten()
        return forgotten if self._ready_at is None else min(self._ready_at, math.inf if forgotten is None else forgotten)

    def handle_deadline(self, *, now: float) -> None:
        """Forget the sessions that were silent for too long, and begin a batch that has waited long enough."""
        for session in self._sessions.overdue(now=now):
            self._forget(session)
        if self._ready_at is not None and self._ready_at <= now:
            self._run_next(now)

    def leave(self, device: str) -> None:
        """Stop keeping a turn for a device, because it is gone. Its sessions stay."""
        self._admission.leave(device)

    # What a driver may ask

    @property
    def depth(self) -> int:
        """Number of verifications that are waiting."""
        return sum(session.pending is not None and not session.is_running for session in self._busy.values())

    @property
    def reserved(self) -> int:
        """Number of reserved tokens in the cache."""
        return self._sessions.reserved

    @property
    def session_limit(self) -> int | None:
        """Maximum number of sessions in use before new ones are refused, or None if verdicts have always been in time."""
        limit = self._admission.limit.limit
        return None if limit == math.inf else int(limit)

    def text(self, name: str) -> tuple[int, ...] | None:
        """Return a session's committed ids, for comparison when a device resumes, or None if the session is not known."""
        session = self._sessions.get(name)
        return None if session is None or session.is_closed else tuple(session.text)

    # Sessions

    def _open(self, event: SessionOpened, now: float) -> None:
        options, name = self._options, event.session
        if self._sessions.get(name) is not None:
            raise AssertionError(f"{name}: a session's name is used once")
        if len(event.ids) >= options.context_tokens:
            self._refuse_session(name, "too long")
            return
        if self._sessions.of(event.device) >= options.sessions_per_device:
            self._refuse_session(name, "device limit", self._admission.until_forgotten(now=now))
            return
        surplus = self._sessions.surplus(event.device, now=now) if len(self._sessions) >= options.sessions else None
        wait = self._admission.until_open(self._waiting(), len(event.ids), device=event.device, now=now, surplus=surplus)
        session = HeldSession(name, event.device, event.ids, now=now)
        if wait is None:
            wait = self._until_reserved(session, session.need, now, surplus)
        if wait is not None:
            self._refuse_session(name, "overloaded", wait)
            return
        if surplus is not None:
            self._forget(surplus, is_silent=False)
        self._sessions.add(session)
        self._served.setdefault(event.device, 0.0)
        self._commands.append(AcceptSession(name))
        self._enqueue(session, now)

    def _extend(self, event: SessionExtended, now: float) -> None:
        session = self._sessions.get(event.session)
        if session is None or session.is_closed:
            self._refuse_session(event.session, "unknown session")
        elif session.pending is not None:
            self._refuse_session(event.session, "busy", self._options.min_retry)
        elif not 0 <= event.base <= len(session.text):
            self._refuse_session(event.session, "gap")
        elif event.base + len(event.ids) >= self._options.context_tokens:
            self._refuse_session(event.session, "too long")
        elif tuple(session.text[event.base :]) != event.ids:  # an extension that changes nothing does not end the silence
            wait = self._until_extended(session, event, now) if session.reserved_tokens else None
            if wait is not None and session.is_running:
                self._refuse_session(event.session, "overloaded", wait)
                return
            if wait is not None:
                self._evict(session)  # its ids are read again with a later draft, once there are free tokens
            self._sessions.touch(session, now=now)
            self._rewrite(session, event.base, event.ids)
            if session.reserved_tokens:
                session.prompt_end = max(0, len(session.text) - 1)
                self._enqueue(session, now)

    def _until_extended(self, session: HeldSession, event: SessionExtended, now: float) -> float | None:
        """Reserve tokens for an extension, or return how many seconds to wait before trying again.

        An extension with many unread tokens is admitted like a prompt.
        """
        end = event.base + len(event.ids)
        unread = end - 1 - min(session.cached, event.base)
        if unread > max(CHUNK, session.prompt_end - session.cached):
            others = [work for work in self._waiting() if work.session != session.name]
            wait = self._admission.until_prefilled(others, unread, device=session.device)
            if wait is not None:
                return wait
        return self._until_reserved(session, max(1, end), now)

    def _close(self, name: str, now: float) -> None:
        session = self._sessions.get(name)
        if session is None or session.is_closed:
            return
        self._admission.limit.record_end(now=now)
        if session.is_running:
            session.is_closed, session.pending = True, None
            session.following.clear()
            self._commands.append(CancelPart(name))
        else:
            self._remove(session)

    def _forget(self, session: HeldSession, *, is_silent: bool = True) -> None:
        self._remove(session)
        self._commands.append(ForgetSession(session.name, is_silent))

    def _remove(self, session: HeldSession) -> None:
        """Remove a session and drop its sequence."""
        self._evict(session)
        self._sessions.remove(session)
        if not self._sessions.of(session.device):
            del self._served[session.device]

    def _evict(self, session: HeldSession) -> None:
        self._busy.pop(session.name, None)
        if session.reserved_tokens:
            self._sessions.evict(session)
            self._commands.append(DropSequence(session.name))

    def _until_reserved(self, session: HeldSession, tokens: int, now: float, surplus: HeldSession | None = None) -> float | None:
        """Reserve tokens, evicting sessions if necessary, or return how long to wait if that fails. ``surplus`` counts as removed."""
        had_place = bool(session.reserved_tokens)
        victims = self._sessions.reserve(session, tokens, now=now, kept=self._admission.kept(session, now=now), surplus=surplus)
        if victims is None:
            ends = now if self._running is None else self._running.ends
            return self._admission.until_room(session, tokens, self._waiting(), batch_ends=ends, now=now)
        if not had_place:
            self._admission.turns.end(session.device)
        for victim in victims:
            self._busy.pop(victim.name, None)  # one that waited for its context is read again with its next draft
            self._commands.append(DropSequence(victim.name))
        return None

    def _make_room(self, now: float) -> None:
        """Take places from devices that have several, for waiting devices that have none. Drafts of the evicted sessions are refused."""
        for victim in self._admission.to_evict(now=now):
            if victim.is_evictable:
                self._evict(victim)
            else:
                self._give_up(victim, "overloaded", now)

    def _rewrite(self, session: HeldSession, base: int, ids: tuple[int, ...]) -> None:
        if session.rewrite(base, ids):
            self._commands.append(TruncateSequence(session.name, session.cached))

    # Drafts

    def _take_draft(self, event: DraftReceived, now: float) -> None:
        session = self._sessions.get(event.session)
        if session is None or session.is_closed:
            self._refuse(event, "unknown session")
            return
        if event.follows and session.pending is not None:
            session.following.append(event)
            self._take_following(session, now)
            return
        reason = why_invalid(session, event, context_tokens=self._options.context_tokens)
        if reason is not None:
            self._refuse(event, reason, self._options.min_retry if reason == "busy" else None)
            return
        wait, due = self._until_verdict(session, event, now)
        if wait is None:
            wait = self._until_reserved(session, event.length + 1, now)
        if wait is not None:
            self._refuse(event, "overloaded", wait)
            return
        self._sessions.touch(session, now=now)
        session.retracted = session.text[event.base :]
        self._rewrite(session, event.base, event.given)
        session.pending, session.round, session.asked, session.due = event, event.round, now, due
        session.started, session.compute = None, 0.0
        self._enqueue(session, now)

    def _take_following(self, session: HeldSession, now: float) -> None:
        """Start on the drafts that follow in a session: the next one after a verdict, or prompts that continue the pending prompt."""
        while session.following and (session.pending is None or self._may_join(session, session.following[0], now)):
            event = session.following.popleft()
            if session.pending is not None:
                session.join(event)
                continue
            self._take_draft(event, now)
            if session.pending is None:
                self._refuse_following(session)

    def _may_join(self, session: HeldSession, event: DraftReceived, now: float) -> bool:
        """Return True if a prompt can be read together with the session's pending one, and reserve tokens for it."""
        end = event.base + len(event.given)
        if not session.is_continued_by(event) or end >= self._options.context_tokens:
            return False
        return self._until_verdict(session, event, now)[0] is None and self._until_reserved(session, end + 1, now) is None

    def _until_verdict(self, session: HeldSession, event: DraftReceived, now: float) -> tuple[float | None, float]:
        """Return how many seconds to wait before a retry (None if the draft is admitted) and when its verdict is late."""
        length = event.base + len(event.given)
        if not session.reserved_tokens:
            return self._admission.until_prefilled(self._waiting(), length, device=session.device), math.inf
        if session.cached < session.prompt_end:
            return None, math.inf  # the draft waits for its own prompt, which was admitted
        if event.is_prompt:
            return self._admission.until_prefilled(self._waiting(), len(event.given), device=session.device), math.inf
        work = session.verification(event, now=now)
        work = replace(work, due=self._admission.due(work.tokens, work.context, now=now))
        start = self._running.ends if self._running is not None and not self._running.is_dropped else now
        served = {**self._served, session.device: self._lifted(session.device)}
        state = BatchContext(now=max(now, start), served=served, verified=self._verified, step=self._step)
        return self._admission.until_verdict(work, self._waiting(), state, now=now), work.due

    # Batches

    def _enqueue(self, session: HeldSession, now: float) -> None:
        """Add a session to the waiting sessions if it has tokens to read."""
        work = session.work()
        if work is None or session.name in self._busy:
            return
        if work.kind == "prefill" and not any(each.kind == "prefill" for each in self._waiting()):
            self._pace.begin(now=now)
        self._served[session.device] = self._lifted(session.device)
        self._busy[session.name] = session
        session.since = now

    def _lifted(self, device: str) -> float:
        """Return a device's counter of served tokens, raised to the level of the devices that have work."""
        return raised_counter(self._served, {session.device for session in self._busy.values()}, device)

    def _waiting(self) -> list[Waiting]:
        """Return the work of all sessions in order of arrival, with the running batch counted as done."""
        return sorted((work for session in self._busy.values() if (work := session.work()) is not None), key=attrgetter("since"))

    def _run_next(self, now: float) -> None:
        if self._running is not None:
            return
        waiting = self._waiting()
        state = BatchContext(now=now, served=self._served, verified=self._verified, step=self._step)
        batch = self._policy.choose(waiting, state)
        self._ready_at = None
        if batch is None:
            if self._patient is not None:
                self._ready_at = self._patient.ready_at(waiting, state)
            return
        self._numbers += 1
        self._verified = 0 if batch.kind == "prefill" else self._verified + 1
        sessions = tuple(self._busy[portion.session] for portion in batch.portions)
        prompts = {work.session for work in waiting if work.kind == "prefill"}
        context = sum(session.cached for session in sessions)
        parts = tuple(self._begin(session, portion, now) for session, portion in zip(sessions, batch.portions, strict=True))
        tokens = sum(portion.tokens for portion in batch.portions)
        prefilled = sum(portion.tokens for portion in batch.portions if portion.session in prompts)
        command = RunBatch(self._numbers, batch.kind, parts)
        self._running = RunningBatch(command, sessions, tokens, prefilled, context, now + self._step(tokens, context))
        self._commands.append(command)

    def _begin(self, session: HeldSession, portion: Portion, now: float) -> BatchPart:
        """Return a session's part of a batch, and count its tokens as read."""
        work = session.work()
        assert work is not None, "a policy chooses among the sessions that wait"
        self._served[session.device] += portion.tokens
        session.is_running, session.keeps = True, math.inf
        if work.verify_rows and session.started is None:
            session.started = now
        start = session.cached
        return BatchPart(session.name, start, session.read(portion.tokens), work.verify_rows if portion.tokens == work.tokens else 0)

    def _finish(self, event: BatchFinished, now: float) -> None:
        running = self._take_running(event.number)
        read = running.tokens - event.found
        if read > 0 and not event.is_cut:
            self._step.observe(read, running.context + event.found, event.seconds)
        verdicts = {verdict.session: verdict for verdict in event.verdicts}
        for session, part in zip(running.sessions, running.command.parts, strict=True):
            if session.name in event.failed:
                self._give_up(session, "engine failed", now)
                continue
            session.is_running = False
            session.compute += event.seconds
            if session.is_closed:
                self._remove(session)
                continue
            self._sessions.touch(session, now=now)
            if session.keep(session.keeps):
                self._commands.append(TruncateSequence(session.name, session.cached))
            if part.verify_rows and not session.to_verify():  # not if more of the prompt has arrived in the meantime
                self._conclude(session, verdicts[session.name], now)
                self._take_following(session, now)
            if session.work() is None:
                del self._busy[session.name]
        if running.prefilled and event.is_cut:
            self._pace.begin(now=now)  # the time of a batch that was cut short isn't a measurement
        elif running.prefilled:
            waits_on = any(work.kind == "prefill" for work in self._waiting())
            self._pace.observe(min(read, running.prefilled), waits_on=waits_on, now=now)

    def _conclude(self, session: HeldSession, verdict: DraftVerdict, now: float) -> None:
        """Commit the accepted tokens of a draft and send the verdict."""
        draft, accepted = session.pending, verdict.accepted
        assert draft is not None, "a closed session has no verdict"
        assert session.started is not None, "a session with a verdict has run"
        if not 0 <= accepted <= len(draft.draft):
            raise AssertionError(f"{session.name}: expected 0 to {len(draft.draft)} accepted tokens, got {accepted}")
        kept = session.accept(accepted)
        if verdict.token is None:
            kept = min(kept, len(session.text) - 1)  # the next draft's first row belongs to the text's last token
        else:
            session.text.append(verdict.token)
        session.pending = None
        if session.keep(kept):
            self._commands.append(TruncateSequence(session.name, kept))
        session.prompt_end = min(session.prompt_end, kept)
        self._sessions.shrink(session)
        if session.due < math.inf:
            present = self._sessions.in_use(now=now)
            self._admission.limit.observe(is_late=now > session.due, present=present, asked=session.asked, now=now)
        self._commands.append(
            SendVerdict(
                verdict=verdict,
                round=draft.round,
                position=len(session.text),
                depth=self.depth,
                queued=session.started - session.asked,
                compute=session.compute,
            )
        )

    def _fail(self, number: int, now: float) -> None:
        for session in self._take_running(number).sessions:
            self._give_up(session, "engine failed", now)

    def _give_up(self, session: HeldSession, reason: Reason, now: float) -> None:
        """Drop a session's sequence, and let the device retry."""
        session.is_running = False
        if session.is_closed:
            self._remove(session)
            return
        draft = session.pending
        self._sessions.touch(session, now=now)
        self._evict(session)
        session.restore()
        if draft is not None:
            self._refuse(draft, reason, self._options.min_retry)
        self._refuse_following(session)

    def _refuse_following(self, session: HeldSession) -> None:
        """Refuse the drafts that should have followed a refused one, because the text before them is missing."""
        while session.following:
            self._refuse(session.following.popleft(), "gap")

    def _take_running(self, number: int) -> RunningBatch:
        running, self._running = self._running, None
        if running is None or running.command.number != number:
            raise AssertionError(f"expected the end of batch {self._numbers}, got that of {number}")
        return running

    # Refusals

    def _clip(self, wait: float | None) -> float | None:
        return None if wait is None else min(max(self._options.min_retry, wait), self._options.max_retry)

    def _refuse_session(self, name: str, reason: Reason, retry_after: float | None = None) -> None:
        self._commands.append(RefuseSession(name, reason, self._clip(retry_after)))

    def _refuse(self, draft: DraftReceived, reason: Reason, retry_after: float | None = None) -> None:
        self._commands.append(RefuseDraft(draft.session, draft.round, reason, self._clip(retry_after)))
