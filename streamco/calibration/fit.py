"""From judged drafts to the figures of a pair (Synera section 5, "Synera offline profiling")."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from msgspec import Struct

from streamco.core.speculation.events import Candidates
from streamco.errors import ConfigError
from streamco.policies.acceptance import solve_acceptance
from streamco.policies.rejection import Branch, forecast_rejection, rank_branches, schedule_branches
from streamco.profiles import PairProfile

__all__ = ["BUDGETS", "VerifiedRound", "fit_pair", "importance_thresholds", "predicted_share"]

BUDGETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_MAX_CHUNKS = 256  # as many as the steering plans over


class VerifiedRound(Struct, frozen=True, kw_only=True):
    """A draft and what became of it.

    Args:
        ids: of the draft.
        confidences: the draft model's probability of each.
        alternatives: its likeliest tokens at each place.
        next_id: what it would have written behind them; None: it was not asked.
        importance: mean attention to the draft's tokens; None: not measured.
        accepted: how many stay.
        token: that follows them; None: the verifier's context was full.
        wait, server: seconds from sending to the verdict, and those that the verifier says were its own; None: a context was read in them.
    """

    ids: tuple[int, ...]
    confidences: tuple[float, ...]
    alternatives: tuple[Candidates, ...] = ()
    next_id: int | None = None
    importance: float | None = None
    accepted: int
    token: int | None
    wait: float | None = None
    server: float | None = None

    @property
    def is_whole(self) -> bool:
        """All of it was accepted."""
        return self.accepted == len(self.ids)

    @property
    def confidence(self) -> float:
        """Mean of its tokens."""
        return fmean(self.confidences)


def fit_pair(
    rounds: Sequence[VerifiedRound],
    *,
    window: int,
    step_times: Sequence[float],
    rtt: float | None = None,
    verify_times: Sequence[tuple[int, float]] = (),
    remote_step: float | None = None,
    draft: str = "",
    target: str = "",
    note: str = "",
) -> PairProfile:
    """Return all figures of a pair.

    Args:
        rounds: drafts of up to ``window`` tokens, every one judged greedily.
        window: gamma.
        step_times: of the draft model by sequences side by side.
        rtt: as the link measured it; None: what the verifier's own time leaves of the wait.
        verify_times: (drafted tokens, seconds).
        remote_step: of the verifier's model alone.
        draft, target, note: for the reader.

    Raises:
        ConfigError: no round with a time.
    """
    verified = [each for each in rounds if each.ids]
    waits = [each.wait for each in verified if each.wait is not None]
    acceptance = solve_acceptance((len(each.ids), each.accepted + (each.token is not None)) for each in verified if each.token is not None)
    if not waits or acceptance is None:
        raise ConfigError(f"calibration: expected judged drafts with times, got {len(verified)} drafts and {len(waits)} times")
    wait = median(waits)
    servers = [each.server for each in verified if each.server is not None]
    if rtt is None and servers:
        rtt = max(0.0, wait - median(servers))
    whole = [each.confidence for each in verified if each.is_whole]
    mean_confidence = fmean(confidence for each in verified for confidence in each.confidences)
    return PairProfile(
        draft=draft,
        target=target,
        window=window,
        rounds=len(verified),
        acceptance=acceptance,
        hit_rate=predicted_share(verified, acceptance, mean_confidence, wait=wait, step_times=step_times, window=window),
        mean_confidence=mean_confidence,
        confidence_threshold=fmean(whole) if whole else None,
        importance_thresholds=importance_thresholds([each.importance for each in verified if each.importance is not None]),
        chunks=tuple((each.confidence, each.importance) for each in verified[-_MAX_CHUNKS:]),
        rtt=rtt,
        wait=wait,
        step_times=tuple(step_times),
        verify_times=tuple(verify_times),
        remote_step=remote_step,
        note=note,
    )


def importance_thresholds(importances: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """(budget, i_th) for budgets of 0.1 to 0.9: i_th is where that share of the chunks lies above it; () for no chunks.

    At run time i_th is solved over chunks with what P_conf keeps back in the account (``Offload.plan``); this is the paper's own rule.
    """
    if not importances:
        return ()
    cuts = np.quantile(np.asarray(importances), [1.0 - budget for budget in BUDGETS])
    return tuple(zip(BUDGETS, cuts.tolist(), strict=True))


def predicted_share(
    rounds: Sequence[VerifiedRound], acceptance: float, mean_confidence: float, *, wait: float, step_times: Sequence[float], window: int
) -> float | None:
    """Share of rounds whose verdict one of the branches bets on that there is time for; None: nobody knows what came behind the drafts."""
    hits: list[bool] = []
    for each in rounds:
        if each.next_id is not None and each.alternatives:
            forecast = forecast_rejection(acceptance, each.confidences, mean_confidence)
            ranked = rank_branches(forecast, each.ids, each.alternatives, acceptance)
            plan = schedule_branches(ranked, seconds=wait, step_times=step_times, window=window)
            hits.append(any(_is_met(branch, each) for branch in plan.branches))
    return fmean(hits) if hits else None


def _is_met(branch: Branch, each: VerifiedRound) -> bool:
    guess = each.next_id if branch.token is None else branch.token
    return branch.position == each.accepted and guess == each.token
