"""What a verifier bears, and how long who asks for more has to wait.

A draft's time is found by letting the policy run ahead on what waits, so the answer is as good as the model of step times, and a device
that was served little is not told to wait for those who were served much. A prompt's is what waits before it times the measured pace.
Where the last verdicts were late, fewer sessions are let in than there were, until they are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from streamco.core.verifier.load import MeasuredStep, PrefillPace, SessionLimit
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.sessions import SessionTable
from streamco.policies.batching import BatchContext, BatchPolicy, MayWait, Waiting

__all__ = ["Admission"]

_LATE_SHARE = 0.05  # of verdicts; the promise is about the 95th percentile
_FORESIGHT = 64  # batches the policy runs ahead at most


class Admission:
    """Says how many seconds to wait before asking again; None: no wait, it is admitted.

    Args:
        options: what is borne.
        policy: that forms the batches.
        step: how long they take.
        pace: how long prompts take.
        residency: who is there.

    Attributes:
        limit: of sessions in use.
    """

    def __init__(
        self, options: SchedulerOptions, policy: BatchPolicy, step: MeasuredStep, pace: PrefillPace, residency: SessionTable
    ) -> None:
        self._options = options
        self._policy = policy
        self._step = step
        self._pace = pace
        self._sessions = residency
        self.limit = SessionLimit(_LATE_SHARE)

    def due(self, tokens: int, context: int, *, now: float) -> float:
        """When a verification of ``tokens`` behind ``context`` is late."""
        return now + self._options.late_stretch * self._step.alone(tokens, context) + self._options.late_grace

    def until_verdict(self, work: Waiting, waiting: Sequence[Waiting], state: BatchContext, *, now: float) -> float | None:
        """For a draft.

        Args:
            work: the verification that is asked for.
            waiting: what else waits.
            situation: of the next choice, when what runs has finished.
        """
        options = self._options
        if options.draft_stretch == math.inf:
            return None
        most = now + options.draft_stretch * self._step.alone(work.tokens, work.context) + options.late_grace
        return _positive(self._foresee(work, waiting, state, most) - most)

    def until_open(self, waiting: Sequence[Waiting], tokens: int, *, now: float) -> float | None:
        """For a session with a context of ``tokens``."""
        if len(self._sessions) >= self._options.sessions:
            return self.until_forgotten(now=now)
        full = self.limit.wait(self._sessions.in_use(now=now), now=now, most=self._options.max_retry)
        return full if full is not None else self.until_prefilled(waiting, tokens)

    def until_prefilled(self, waiting: Sequence[Waiting], tokens: int) -> float | None:
        """For a prompt of ``tokens``."""
        before = sum(work.tokens for work in waiting if work.kind == "prefill")
        return _positive((before + tokens) * self._pace.seconds_per_token - self._options.prefill_within) if before else None

    def until_free_tokens(self, waiting: Sequence[Waiting], *, now: float) -> float:
        """For room in the cache: until a session may lose its own, or, if all are busy, until what waits is done."""
        idle = self._sessions.next_idle(now=now)
        if idle is not None:
            return idle - now
        return sum(work.tokens for work in waiting) * self._pace.seconds_per_token

    def until_forgotten(self, *, now: float) -> float:
        """For a place among those that are remembered."""
        time = self._sessions.next_forgotten()
        return self._options.max_retry if time is None else time - now

    def _foresee(self, work: Waiting, waiting: Sequence[Waiting], state: BatchContext, most: float) -> float:
        """When this verification will be done if nothing else comes; not followed further than ``most``."""
        left = {each.session: each for each in (*waiting, work)}
        served = dict(state.served)
        time, verified = state.now, state.verified
        for _ in range(_FORESIGHT):
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
            if work.session not in left or time > most:
                break
        return time


def _positive(seconds: float) -> float | None:
    return seconds if seconds > 0 else None
