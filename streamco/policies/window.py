"""Window policies, which choose gamma, the number of tokens to draft in a round (DSD sections 3.4 and 4).

A policy proposes the next window from the last rounds (``WindowState``). A window of 1 or less means fused mode: drafting doesn't pay, and
the target generates alone (section 4.4). ``streamco.policies.mode_switch`` changes the mode, and returns to drafting when it pays again.

``Static`` and ``Dynamic`` are the paper's baselines (section 5.2). ``Threshold`` is HAT's rule. ``Confident`` is not in a paper and has no
fixed window: a draft continues while its next token is worth the step. All proposals go through ``Stabiliser``, the paper's clamping and
smoothing, so a learned policy only has to predict.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.profiles.row_costs import RowCosts

__all__ = [
    "MAX_WINDOW",
    "MIN_WINDOW",
    "DEFAULT",
    "Confident",
    "Dynamic",
    "DecidesFusedMode",
    "EndsAtDoubtfulToken",
    "Stabiliser",
    "Static",
    "EndsDraftsEarly",
    "Threshold",
    "WindowPolicy",
    "WindowState",
    "is_fused",
    "stair_surcharges",
]

MIN_WINDOW, MAX_WINDOW = 1, 12  # tokens; section 4.4
DEFAULT = 4  # tokens; DSD section 5.2, Synera section 5
SMOOTHING = 0.4  # section 4.4, alpha there


class WindowState(Struct, frozen=True, kw_only=True):
    """The inputs of a window policy. Up to ``tpot`` they are the inputs of the paper's predictor (section 4.1), then come additional ones.

    Args:
        previous: window of the last round in tokens (gamma_prev), as returned by ``Stabiliser``.
        acceptance: share of recent draft tokens that were accepted, where each draft is counted up to its first rejected token, 0..1
            (alpha_recent). None if there has been no round.
        drafted_acceptance: the same share of all draft tokens, where tokens after a rejected one count as not accepted. None if there has
            been no round.
        queue_depth: recent utilisation of the verifier's queue, 0..1 (q_depth).
        rtt: recent round trip of the link in seconds (RTT_recent).
        tpot: the target's recent time per token in seconds (TPOT_recent).
        draft_step: seconds that the draft model takes for a token, or 0 if not known.
        wait: seconds from sending a draft to its verdict, or 0 if not known.
        hit_rate: share of rounds after which a pre-drafted branch is adopted, 0..1.
        slowdown: time of a step on all branches together, as a multiple of a step on the draft alone.
        rate: tokens per second that drafting gives, or 0 if not known.
        rounds: number of rounds that calibrated confidences, including shadow drafts. Older rounds count less.
        calibrated_acceptance: recent mean of the acceptance that draft tokens' confidences predict, 0..1.
        row_costs: seconds that the verifier takes for a round, by its number of rows (the draft's tokens plus one). None if not known.
        fixed_wait: seconds of ``wait`` for the link and the queue, which ``row_costs`` doesn't include.
    """

    previous: int
    acceptance: float | None = None
    drafted_acceptance: float | None = None
    queue_depth: float = 0.0
    rtt: float = 0.0
    tpot: float = 0.0
    draft_step: float = 0.0
    wait: float = 0.0
    hit_rate: float = 0.0
    slowdown: float = 1.0
    rate: float = 0.0
    rounds: float = 0.0
    calibrated_acceptance: float = 0.0
    row_costs: RowCosts | None = None
    fixed_wait: float = 0.0


class WindowPolicy(Protocol):
    """The interface of every window policy."""

    @property
    def name(self) -> str:
        """Name of the policy in reports and settings."""
        ...

    @property
    def first(self) -> int:
        """Window of the first round in tokens."""
        ...

    def propose(self, state: WindowState) -> float:
        """Return the window of the next round in tokens, not yet rounded. 1 or less means fused mode."""
        ...


@runtime_checkable
class DecidesFusedMode(Protocol):
    """A window policy that decides on fused mode itself, so that a proposed window above 1 means that drafting pays.

    For any other policy, ``mode_switch.ModeSwitch`` decides by its speedup model whether drafting with the proposed window pays.
    """

    @property
    def may_fuse(self) -> bool:
        """True if the policy may propose fused mode."""
        ...


@runtime_checkable
class EndsDraftsEarly(Protocol):
    """A window policy that ends a draft early when its acceptance becomes unlikely."""

    def max_draft_tokens(self, state: WindowState, window: int) -> int:
        """Return the maximum length of a draft in tokens. ``window`` is the rounded window (``Stabiliser.settle``)."""
        ...

    def min_acceptance(self, state: WindowState, window: float) -> float:
        """Return the probability of full acceptance, 0..1, below which a draft ends. 0 means that no draft ends early.

        ``window`` is the smoothed window, not rounded (``Stabiliser.smoothed``).
        """
        ...


@runtime_checkable
class EndsAtDoubtfulToken(Protocol):
    """A window policy that ends a draft after a token of low confidence, whatever the tokens before it were."""

    @property
    def min_confidence(self) -> float:
        """A token whose confidence is below this, 0..1, is the last of its draft. 0 means that no draft ends early."""
        ...


def stair_surcharges(state: WindowState, max_window: int) -> list[float]:
    """Return how much must be added to the required acceptance of a draft of 1, 2, ... tokens, because more tokens cost the verifier rows.

    In the time for these rows, drafting gives rate x seconds tokens anyway. The tokens of the rows are added with the probability that the
    draft so far is accepted. Climbing a stair of the costs may pay only if all rows are used, so the best number of rows counts. Within a
    stair the surcharge is 0, so that a draft fills it. Where costs are flat, it is 0 everywhere.

    Args:
        state: the last rounds. If its costs or rate aren't known, [] is returned.
        max_window: length of the longest draft in tokens. Such a draft never continues, so it has no surcharge.
    """
    costs = state.row_costs
    if costs is None or state.rate <= 0.0:
        return []
    each = min(0.99, max(0.05, state.calibrated_acceptance or state.acceptance or 0.0))
    seconds = [costs.seconds(tokens + 1) for tokens in range(max_window + 1)]
    found = []
    for length in range(1, max_window):
        more, gained, best = 1.0, 0.0, math.inf
        for further in range(length + 1, max_window + 1):
            more *= each
            gained += more
            best = min(best, state.rate * (seconds[further] - seconds[length]) / gained)
        found.append(best)
    return found


class Static(Struct, frozen=True, tag="static"):
    """Always proposes the same window (section 5.2).

    Args:
        window: the window in tokens.
    """

    window: int = DEFAULT

    def __post_init__(self) -> None:
        """Refuse a window below 1."""
        _check("static window", self.window)

    @property
    def name(self) -> str:
        """Name of the policy, ``static``."""
        return "static"

    @property
    def first(self) -> int:
        """Window of the first round in tokens."""
        return self.window

    def propose(self, state: WindowState) -> float:
        """Return the fixed window."""
        return float(self.window)


class Dynamic(Struct, frozen=True, tag="dynamic"):
    """Makes the window one token longer while acceptance is high, and one token shorter while it is low (section 5.2).

    The paper doesn't say whether its acceptance rate is a share of all drafted tokens or of the verified ones. As a share of all
    drafted tokens, it stays above 0.75 only with short drafts, so the window settles. As a share of the tokens up to the first rejection,
    it doesn't depend on the window. With good models it is above 0.75 at any length, and the window grows to its bound.

    Args:
        acceptance_of: the tokens that the acceptance is a share of, either all drafted tokens or only the verified ones, up to the first
            rejection.
        first: window of the first round in tokens.
        min_window, max_window: bounds of the window in tokens. With ``min_window`` 2 it never proposes fused mode.
        raise_above: acceptance above which the window grows, 0..1.
        lower_below: acceptance below which the window shrinks, 0..1.
    """

    first: int = DEFAULT
    min_window: int = MIN_WINDOW
    max_window: int = MAX_WINDOW
    raise_above: float = 0.75
    lower_below: float = 0.25
    acceptance_of: Literal["drafted", "verified"] = "drafted"

    def __post_init__(self) -> None:
        """Refuse bounds that exclude each other."""
        _check("dynamic window", self.min_window, self.first, self.max_window)
        if not 0.0 <= self.lower_below <= self.raise_above <= 1.0:
            raise ConfigError(
                f"dynamic window: expected 0 <= lower_below <= raise_above <= 1, got {self.lower_below} and {self.raise_above}"
            )

    @property
    def name(self) -> str:
        """Name of the policy, ``dynamic``."""
        return "dynamic"

    def propose(self, state: WindowState) -> float:
        """Return the previous window, or one token more or less."""
        share, change = state.acceptance, 0
        if self.acceptance_of == "drafted" and state.drafted_acceptance is not None:
            share = state.drafted_acceptance
        if share is not None:
            change = (share > self.raise_above) - (share < self.lower_below)
        return float(min(self.max_window, max(self.min_window, state.previous + change)))


class Threshold(Struct, frozen=True, tag="threshold"):
    """Ends a draft after the first token whose probability is below a threshold, and keeps that token (HAT section 3.4, equation 5).

    The equation prints a maximum over the length n, but means the token's own probability.

    Args:
        min_confidence: the threshold (eta), 0..1. The paper uses 0.6.
        max_window: maximum window in tokens. Not in the paper.
    """

    min_confidence: float = 0.6
    max_window: int = 8

    def __post_init__(self) -> None:
        """Refuse a threshold or a window out of range."""
        _check("threshold window", self.max_window)
        if not 0.0 <= self.min_confidence <= 1.0:
            raise ConfigError(f"threshold window: expected a confidence of 0..1, got {self.min_confidence}")

    @property
    def name(self) -> str:
        """Name of the policy, ``threshold``."""
        return "threshold"

    @property
    def first(self) -> int:
        """Window of the first round in tokens."""
        return self.max_window

    def propose(self, state: WindowState) -> float:
        """Return the maximum window."""
        return float(self.max_window)


class Confident(Struct, frozen=True, tag="confident"):
    """Continues a draft while it is likely enough to be accepted whole. No paper has this policy.

    One more token costs a draft step, in which drafting gives rate x step tokens anyway. It adds a token with the probability that the
    whole draft is accepted, including this token. A longer draft also has more possible verdicts, of which branches cover a smaller share.
    Therefore the token must be ``worth`` more than one step. The exact value matters little around the default.

    Args:
        first: window in tokens for the first round, and as long as the times aren't known.
        max_window: maximum window in tokens.
        worth: number of steps that a token must be worth, above 0.
        surest: upper limit of the required probability, 0..1, so that the first tokens are always drafted.
    """

    first: int = DEFAULT
    max_window: int = 10
    worth: float = 1.8
    surest: float = 0.6

    def __post_init__(self) -> None:
        """Refuse bounds that exclude each other."""
        _check("confident window", 1, self.first, self.max_window)
        if self.worth <= 0.0 or not 0.0 <= self.surest <= 1.0:
            raise ConfigError(f"confident window: expected worth > 0 and surest of 0..1, got {self.worth} and {self.surest}")

    @property
    def name(self) -> str:
        """Name of the policy, ``confident``."""
        return "confident"

    def propose(self, state: WindowState) -> float:
        """Return the maximum window, or ``first`` as long as the times aren't known."""
        return float(self.max_window if state.rate > 0.0 and state.draft_step > 0.0 else self.first)

    def max_draft_tokens(self, state: WindowState, window: int) -> int:
        """Return ``window``, because it is the maximum length here."""
        return window

    def min_acceptance(self, state: WindowState, window: float) -> float:
        """Return how many tokens drafting gives in ``worth`` steps, because one more token must be at least that likely."""
        return min(self.surest, self.worth * state.rate * state.draft_step)


class Stabiliser:
    """Clamps, smooths and rounds proposals (section 4.4, techniques 1 and 2). Each pair of models has one.

    With ``smoothing`` 1, the whole numbers of ``Static`` and ``Dynamic`` pass unchanged.

    Args:
        smoothing: alpha of section 4.4, the weight of the newest proposal, above 0 up to 1.
        min_window, max_window: bounds of the window in tokens.

    Attributes:
        smoothed: moving average of the clamped proposals in tokens, before rounding, or None if there has been no proposal.

    Raises:
        ConfigError: the smoothing or the bounds are out of range.
    """

    def __init__(self, smoothing: float = SMOOTHING, *, min_window: int = MIN_WINDOW, max_window: int = MAX_WINDOW) -> None:
        _check("stabiliser", min_window, max_window)
        if not 0.0 < smoothing <= 1.0:
            raise ConfigError(f"stabiliser: expected a smoothing above 0 up to 1, got {smoothing}")
        self._smoothing = smoothing
        self._min_window, self._max_window = min_window, max_window
        self.smoothed: float | None = None

    def settle(self, proposal: float) -> int:
        """Take a proposal, and return the window to use in tokens."""
        # Section 4.4: clamp to the bounds, then smooth exponentially.
        clamped = min(float(self._max_window), max(float(self._min_window), proposal))
        self.smoothed = clamped if self.smoothed is None else self._smoothing * clamped + (1.0 - self._smoothing) * self.smoothed
        return int(self.smoothed + 0.5)


def is_fused(window: float) -> bool:
    """Return True if a window means fused mode, in which the target generates alone (gamma <= 1)."""
    return window <= 1.0


def _check(name: str, *windows: int) -> None:
    """Raise ConfigError unless the windows are at least 1 and ascending."""
    if windows[0] < 1 or list(windows) != sorted(windows):
        raise ConfigError(f"{name}: expected 1 <= min_window <= first <= max_window, got {', '.join(map(str, windows))}")
