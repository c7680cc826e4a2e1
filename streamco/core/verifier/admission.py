"""Decides whether a session or draft can be admitted, and how long a refused device should wait.

The time for a draft is estimated by simulating the batch policy on the waiting requests. So the estimate is as good as the model of step
times, and a device that was served little doesn't wait for devices that were served much. The time for a prompt is the number of prompt
tokens read before it, in turns with other devices, times the measured pace. If recent verdicts were late, the limit on sessions falls below
the current number of sessions until verdicts are in time again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from streamco.core.verifier.load import MeasuredStep, PrefillPace, SessionLimit
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.sessions import HeldSession, SessionTable
from streamco.core.verifier.turns import Room, Turns
from streamco.policies.serving.batching import BatchContext, BatchPolicy, MayWait, Waiting

__all__ = ["Admission"]

_LATE_SHARE = 0.05  # of verdicts; the promise concerns the 95th percentile
_MAX_SIMULATED = 64  # batches


class Admission:
    """Admission control of one scheduler, which owns it. It returns the seconds to wait before a retry, or None to admit a request.

    Args:
        options: the limits of the load and the engine.
        policy: the policy that forms the batches.
        step: returns how many seconds a batch takes.
        pace: how long prompts take.
        sessions: all sessions, and the cache they share.

    Attributes:
        limit: the limit on sessions in use.
        turns: the devices that wait for a place.
    """

    def __init__(
        self, options: SchedulerOptions, policy: BatchPolicy, step: MeasuredStep, pace: PrefillPace, sessions: SessionTable
    ) -> None:
        self._options = options
        self._policy = policy
        self._step = step
        self._pace = pace
        self._sessions = sessions
        self.limit = SessionLimit(_LATE_SHARE)
        self.turns = Turns()

    def kept(self, session: HeldSession, *, now: float) -> Room:
        """Return the room that this session must leave for the devices that wait."""
        if not self.turns:
            return Room()
        held = self._sessions.places_by_device()
        if session.reserved_tokens:
            return self.turns.deprived(session.device, held, now=now)
        return self.turns.before(session.device, held, now=now)

    def leave(self, device: str) -> None:
        """Give up the turn of a device that is gone, and stop counting its sessions as waiting."""
        self.turns.end(device)
        self.limit.leave(device)

    def due(self, tokens: int, context: int, *, now: float) -> float:
        """Return the time after which a verdict is late, for a draft of ``tokens`` tokens after ``context`` cached ones."""
        return now + self._options.late_stretch * self._step.alone(tokens, context) + self._grace

    def until_verdict(self, work: Waiting, waiting: Sequence[Waiting], state: BatchContext, *, now: float) -> float | None:
        """Return how many seconds a draft must wait because its verdict would be too late, or None if it would be in time.

        Args:
            work: the requested verification.
            waiting: the other requests that wait.
            state: the policy's input as it will be when the running batch has finished.
        """
        options = self._options
        if options.draft_stretch == math.inf:
            return None
        latest = now + options.draft_stretch * self._step.alone(work.tokens, work.context) + self._grace
        return _positive(self._completion(work, waiting, state, latest) - latest)

    def until_open(
        self, waiting: Sequence[Waiting], tokens: int, *, device: str, now: float, surplus: HeldSession | None = None
    ) -> float | None:
        """Return how long a device must wait to open a session with a context of ``tokens`` tokens, or None if it may open it now.

        If there is a ``surplus`` session, the new one takes its place. The limit on sessions never keeps a device below its share.
        Otherwise a device could make verdicts late and then keep its sessions in use without sending drafts. That would keep all other
        devices out, because nothing would raise the limit again.
        """
        if len(self._sessions) >= self._options.sessions and surplus is None:
            return self.until_forgotten(now=now)
        in_use = self._sessions.in_use_by_device(now=now, surplus=surplus)
        share = self.limit.limit / len(in_use.keys() | {device})
        full = None
        if in_use[device] + 1 > share:
            full = self.limit.wait(in_use.total(), device=device, now=now, max_wait=self._options.max_retry)
        return full if full is not None else self.until_prefilled(waiting, tokens, device=device)

    def until_prefilled(self, waiting: Sequence[Waiting], tokens: int, *, device: str) -> float | None:
        """Return how long a prompt of ``tokens`` tokens must wait, or None if it may be read now.

        Devices take turns, so a prompt waits for its own device's prompts, and for as many tokens of each other device. If it waited
        for all of them, a device that sends prompts without pause would keep every other one out.
        """
        prompts: Counter[str] = Counter()
        for work in waiting:
            prompts[work.device] += work.tokens if work.kind == "prefill" else 0
        own = prompts[device] + tokens
        before = prompts.total() - sum(max(0, count - own) for other, count in prompts.items() if other != device)
        return _positive((before + tokens) * self._pace.seconds_per_token - self._options.prefill_within) if before else None

    def until_free_tokens(self, waiting: Sequence[Waiting], *, now: float) -> float:
        """Return the seconds until an idle session may lose its cache, or until the waiting requests are done if all sessions are busy."""
        idle = self._sessions.next_idle(now=now)
        if idle is not None:
            return idle - now
        return sum(work.tokens for work in waiting) * self._pace.seconds_per_token

    def until_room(self, session: HeldSession, tokens: int, waiting: Sequence[Waiting], *, batch_ends: float, now: float) -> float:
        """Return how long a session must wait, because ``tokens`` tokens couldn't be reserved for it.

        If the session has no place in the cache, its device waits for its turn from now on.

        Args:
            session: the session.
            tokens: number of tokens that it needs.
            waiting: the requests that wait.
            batch_ends: when the running batch ends, in seconds; ``now`` if no batch is running.
            now: the current time in seconds.
        """
        wait = self.until_free_tokens(waiting, now=now)
        if session.reserved_tokens:
            return wait
        if not self._sessions.places_by_device()[session.device]:
            victims = self._sessions.victims(session, tokens, now=now, kept=self.kept(session, now=now), has_drafts=True)
            if victims is not None:  # they make room at the end of the batch; see to_evict
                wait = max(0.0, batch_ends - now) if any(each.is_running for each in victims) else 0.0
        self.turns.wait(session.device, tokens, min(wait, self._options.max_retry), now=now)
        return wait

    def to_evict(self, *, now: float) -> list[HeldSession]:
        """Return the sessions that must lose their places to waiting devices that have none, except sessions in the running batch.

        A device may have drafts from all its sessions in every batch. Then no session would ever be at rest when another device asks. So
        as soon as a batch has ended, a place is freed for the other device, and kept until that device asks again.
        """
        if not self.turns:
            return []
        held = self._sessions.places_by_device()
        victims: list[HeldSession] = []
        kept = Room()
        for device, tokens in self.turns.without_place(held, now=now):
            found = self._sessions.victims(HeldSession("", device, (), now=now), tokens, now=now, kept=kept, has_drafts=True)
            if found is None:
                break
            victims, kept = found, Room(kept.places + 1, kept.tokens + tokens)
        return [each for each in victims if not each.is_running]

    def until_forgotten(self, *, now: float) -> float:
        """Return how many seconds it takes until a session is forgotten, so that another one can be remembered."""
        time = self._sessions.next_forgotten()
        return self._options.max_retry if time is None else time - now

    @property
    def _grace(self) -> float:
        """How many seconds a verdict may take in addition to a multiple of the time it takes without other load."""
        options = self._options
        return max(options.late_grace, options.shared_batches * self._step(self._policy.batch_tokens, 0))

    def _completion(self, work: Waiting, waiting: Sequence[Waiting], state: BatchContext, latest: float) -> float:
        """Return when this verification will be done if no other request arrives. The simulation stops after ``latest``."""
        left = {each.session: each for each in (*waiting, work)}
        served = dict(state.served)
        time, verified = state.now, state.verified
        for _ in range(_MAX_SIMULATED):
            ordered = sorted(left.values(), key=lambda each: each.since)
            batch = self._policy.choose(ordered, replace(state, now=time, served=served, verified=verified))
            if batch is None:
                assert isinstance(self._policy, MayWait), "the draft waits"
                time = max(time, self._policy.ready_at(ordered, replace(state, now=time)) or time)
                continue
            time += self._step(sum(part.tokens for part in batch.portions), sum(left[part.session].context for part in batch.portions))
            verified = 0 if batch.kind == "prefill" else verified + 1
            for part in batch.portions:
                each = left.pop(part.session)
                served[each.device] += part.tokens
                if part.tokens < each.tokens:
                    left[part.session] = replace(each, tokens=each.tokens - part.tokens, context=each.context + part.tokens)
            if work.session not in left or time > latest:
                break
        return time


def _positive(seconds: float) -> float | None:
    return seconds if seconds > 0 else None
