"""How many tokens to draft before the verifier is asked (DSD sections 3.4 and 4).

A policy looks at the last rounds (``WindowState``) and names the next window. A window of 1 or less means fused mode: drafting doesn't pay,
and the remote side generates alone (section 4.4; ``streamco.policies.mode_switch`` makes the change and finds the way back).

``Static`` and ``Dynamic`` are the paper's baselines. ``Confident`` has no fixed window: a draft goes on while its next token is worth the
step, by the rounds' rate and the tokens' chances. Whatever proposes real numbers goes through ``Stabiliser``, the paper's clamping and
smoothing, so a policy that learned to predict windows needs to bring its prediction only.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from msgspec import Struct

from streamco.errors import ConfigError

__all__ = [
    "MAX_WINDOW",
    "MIN_WINDOW",
    "Confident",
    "Dynamic",
    "DecidesFusedMode",
    "Stabiliser",
    "Static",
    "EndsDraftsEarly",
    "WindowPolicy",
    "WindowState",
    "is_fused",
]

MIN_WINDOW, MAX_WINDOW = 1, 12  # tokens; section 4.4
DEFAULT = 4  # tokens; DSD section 5.2, Synera section 5
SMOOTHING = 0.4  # section 4.4, alpha there


class WindowState(Struct, frozen=True, kw_only=True):
    """What the paper's predictor looks at (section 4.1), and, from ``draft_step`` on, what arithmetic needs beside it.

    Args:
        previous: window of the last round (gamma_prev), tokens, as ``Stabiliser`` gave it.
        acceptance: share of recent draft tokens that were accepted, 0..1 (alpha_recent); None: no round yet.
        queue_depth: recent utilisation of the verifier's queue, 0..1 (q_depth).
        rtt: recent round trip of the link, seconds (RTT_recent).
        tpot: recent time per token of the target, seconds (TPOT_recent).
        draft_step: of the draft model for a token, seconds; 0: not known.
        wait: from sending a draft to its verdict, seconds; 0: not known.
        hit_rate: share of rounds whose pre-drafted branch is adopted, 0..1.
        slowdown: how many times longer a step on all branches together takes than one of the draft alone.
        rate: tokens a second that drafting gives; 0: not known.
        rounds: whose verdicts have told what confidence is worth, those of drafts that were only overheard included; older ones count less.
        chance: of a draft token to be accepted, by what its confidence is worth: the recent mean, 0..1.
    """

    previous: int
    acceptance: float | None = None
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


class WindowPolicy(Protocol):
    """What every window policy offers."""

    @property
    def name(self) -> str:
        """What reports and settings call it."""
        ...

    @property
    def first(self) -> int:
        """Window of the first round, tokens."""
        ...

    def propose(self, state: WindowState) -> float:
        """Return the window of the next round, tokens, not yet rounded; 1 or less: fused mode."""
        ...


@runtime_checkable
class DecidesFusedMode(Protocol):
    """A policy that weighs fused mode itself: where it proposes a window, drafting pays.

    Of another policy's windows ``fallback.ModeSwitch`` asks its arithmetic whether they do.
    """

    @property
    def may_fuse(self) -> bool:
        """True if it does so at present."""
        ...


@runtime_checkable
class EndsDraftsEarly(Protocol):
    """A policy that ends drafts where they are doubtful."""

    def max_draft_tokens(self, state: WindowState, window: int) -> int:
        """Return how far a draft goes that is never doubtful, tokens; ``window`` is rounded (``Stabiliser.settle``)."""
        ...

    def min_acceptance(self, state: WindowState, window: float) -> float:
        """Return the chance of full acceptance, 0..1, below which a draft ends with its last token; 0: no draft ends early.

        ``window`` is smoothed, and not rounded (``Stabiliser.smoothed``).
        """
        ...


class Static(Struct, frozen=True, tag="static"):
    """The same window always.

    Args:
        window: tokens.
    """

    window: int = DEFAULT

    def __post_init__(self) -> None:
        """Refuse a window out of range."""
        _check("static window", self.window)

    @property
    def name(self) -> str:
        """``static``."""
        return "static"

    @property
    def first(self) -> int:
        """The window."""
        return self.window

    def propose(self, state: WindowState) -> float:
        """Return the window."""
        return float(self.window)


class Dynamic(Struct, frozen=True, tag="dynamic"):
    """One token more while nearly everything is accepted, one less while hardly anything is (section 5.2).

    Args:
        first: tokens of the first round.
        min_window, max_window: tokens; ``min_window`` 2 never falls into fused mode.
        raise_above: acceptance, 0..1.
        lower_below: acceptance, 0..1.
    """

    first: int = DEFAULT
    min_window: int = MIN_WINDOW
    max_window: int = MAX_WINDOW
    raise_above: float = 0.75
    lower_below: float = 0.25

    def __post_init__(self) -> None:
        """Refuse bounds that exclude each other."""
        _check("dynamic window", self.min_window, self.first, self.max_window)
        if not 0.0 <= self.lower_below <= self.raise_above <= 1.0:
            raise ConfigError(
                f"dynamic window: expected 0 <= lower_below <= raise_above <= 1, got {self.lower_below} and {self.raise_above}"
            )

    @property
    def name(self) -> str:
        """``dynamic``."""
        return "dynamic"

    def propose(self, state: WindowState) -> float:
        """Return the previous window, one more or one less."""
        change = 0
        if state.acceptance is not None:
            change = (state.acceptance > self.raise_above) - (state.acceptance < self.lower_below)
        return float(min(self.max_window, max(self.min_window, state.previous + change)))


class Confident(Struct, frozen=True, tag="confident"):
    """As far as a draft is likely enough to be accepted.

    Neither paper has it. A token more costs a draft step, in which drafting gives rate x step tokens anyway, and it adds a token with the
    chance that all of the draft is accepted, that one included. The longer the draft the more verdicts are possible too, and the fewer are
    foreseen by branches, which is why the chance has to be ``worth`` more than the step; by how much hardly matters around what it is.

    Args:
        first: what drafts are taken to have before there were any, and where the times aren't known, tokens.
        max_window: tokens.
        worth: steps that a token has to be worth.
        surest: no higher chance is asked for, 0..1: the first tokens are always worth a round.
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
        """``confident``."""
        return "confident"

    def propose(self, state: WindowState) -> float:
        """Return the longest, once the times are known."""
        return float(self.max_window if state.rate > 0.0 and state.draft_step > 0.0 else self.first)

    def max_draft_tokens(self, state: WindowState, window: int) -> int:
        """Return the window is a limit."""
        return window

    def min_acceptance(self, state: WindowState, window: float) -> float:
        """Return what a step is worth in tokens."""
        return min(self.surest, self.worth * state.rate * state.draft_step)


class Stabiliser:
    """Makes proposals steady: clamped, smoothed, then rounded (section 4.4, techniques 1 and 2). One for each pair of models.

    Whole proposals of ``Static`` and ``Dynamic`` go through unsmoothed with ``smoothing`` 1.

    Args:
        smoothing: weight of the newest proposal, above 0 up to 1.
        min_window, max_window: tokens.

    Attributes:
        smoothed: the mean of proposals, before rounding; None: none yet.

    Raises:
        ConfigError: a smoothing or bounds out of range.
    """

    def __init__(self, smoothing: float = SMOOTHING, *, min_window: int = MIN_WINDOW, max_window: int = MAX_WINDOW) -> None:
        _check("stabiliser", min_window, max_window)
        if not 0.0 < smoothing <= 1.0:
            raise ConfigError(f"stabiliser: expected a smoothing above 0 up to 1, got {smoothing}")
        self._smoothing = smoothing
        self._min_window, self._max_window = min_window, max_window
        self.smoothed: float | None = None

    def settle(self, proposal: float) -> int:
        """Return the window to use, tokens."""
        clamped = min(float(self._max_window), max(float(self._min_window), proposal))
        self.smoothed = clamped if self.smoothed is None else self._smoothing * clamped + (1.0 - self._smoothing) * self.smoothed
        return int(self.smoothed + 0.5)


def is_fused(window: float) -> bool:
    """Return True if a window says that the remote side should generate alone (gamma <= 1)."""
    return window <= 1.0


def _check(name: str, *windows: int) -> None:
    """Windows of at least 1, ascending."""
    if windows[0] < 1 or list(windows) != sorted(windows):
        raise ConfigError(f"{name}: expected 1 <= min_window <= first <= max_window, got {', '.join(map(str, windows))}")
