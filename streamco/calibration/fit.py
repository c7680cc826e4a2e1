"""Fits a pair's profile to verified drafts (Synera section 5, "Synera offline profiling")."""

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
_MAX_CHUNKS = 256  # the same number of chunks that the budget's steering plans with


class VerifiedRound(Struct, frozen=True, kw_only=True):
    """A draft and its verdict.

    Args:
        ids: ids of the draft.
        confidences: the draft model's probability of each id.
        alternatives: the draft model's likeliest tokens at each position.
        next_id: the draft model's own token after the draft; None if it was not computed.
        importance: mean attention to the draft's tokens; None if not measured.
        accepted: number of accepted tokens.
        token: the token after them; None if the verifier's context was full.
        wait: seconds from sending the draft to its verdict; None if the verifier read a context in that time.
        server: how many seconds of ``wait`` the verifier reports as its own; None in the same case as ``wait``.
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
        """True if the whole draft was accepted."""
        return self.accepted == len(self.ids)

    @property
    def confidence(self) -> float:
        """Mean confidence of the draft's tokens."""
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
    """Return the profile of a draft model and its target model.

    Args:
        rounds: drafts of up to ``window`` tokens, all verified by the rule ``greedy``.
        window: tokens drafted in a round (gamma).
        step_times: seconds that a step of the draft model on 1, 2, ... sequences takes.
        rtt: round-trip time in seconds, as the link measured it; None uses the wait minus the verifier's own time.
        verify_times: (drafted tokens, seconds) of the verifier's batches.
        remote_step: seconds between two tokens of the remote stream; None if not measured.
        draft: name of the draft model.
        target: name of the target model.
        note: remark for readers of the profile.

    Raises:
        ConfigError: no round has a time, or none has a token after its accepted ones.
    """
    verified = [each for each in rounds if each.ids]
    waits = [each.wait for each in verified if each.wait is not None]
    acceptance = solve_acceptance((len(each.ids), each.accepted + (each.token is not None)) for each in verified if each.token is not None)
    if not waits or acceptance is None:
        raise ConfigError(f"calibration: expected verified drafts with times, got {len(verified)} drafts and {len(waits)} times")
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
    """Return pairs of a budget (0.1 to 0.9) and the i_th that this share of the chunks exceeds, or () if there are no chunks.

    This is the paper's own rule. At run time, ``Offload.plan`` computes i_th again, because P_conf keeps some of the chunks on the device.
    """
    if not importances:
        return ()
    cuts = np.quantile(np.asarray(importances), [1.0 - budget for budget in BUDGETS])
    return tuple(zip(BUDGETS, cuts.tolist(), strict=True))


def predicted_share(
    rounds: Sequence[VerifiedRound], acceptance: float, mean_confidence: float, *, wait: float, step_times: Sequence[float], window: int
) -> float | None:
    """Return the share of rounds in which a branch that could be drafted during the wait would have matched the verdict.

    Args:
        rounds: the measured rounds.
        acceptance: probability that a drafted token is accepted, 0..1.
        mean_confidence: mean confidence of draft tokens, 0..1.
        wait: seconds from sending a draft to its verdict.
        step_times: seconds that a step on 1, 2, ... sequences in one batch takes.
        window: tokens to draft along a branch.

    Returns:
        The share, 0..1; None if the draft model's own token after the draft is not known for any round.
    """
    hits: list[bool] = []
    for each in rounds:
        if each.next_id is not None and each.alternatives:
            forecast = forecast_rejection(acceptance, each.confidences, mean_confidence)
            ranked = rank_branches(forecast, each.ids, each.alternatives, acceptance)
            plan = schedule_branches(ranked, seconds=wait, step_times=step_times, window=window)
            hits.append(any(_matches(branch, each) for branch in plan.branches))
    return fmean(hits) if hits else None


def _matches(branch: Branch, each: VerifiedRound) -> bool:
    guess = each.next_id if branch.token is None else branch.token
    return branch.position == each.accepted and guess == each.token
