"""Options for drafting and verifying: a user's settings, settings for benchmarks and measured profiles, and the policies they name."""

from __future__ import annotations

from typing import Literal, Self, cast, get_args

from msgspec.structs import replace

from streamco.client.modes.current_rate import RateName, RateSetting, check_rate_setting
from streamco.config import Options, Timeouts, check_share
from streamco.core.speculation.draft import BranchKind
from streamco.core.speculation.estimates import Forecast, SpeculationEstimates
from streamco.core.speculation.prior import EstimatesPrior
from streamco.errors import ConfigError
from streamco.policies.learned_window import MIN_DRAFT, Adaptive
from streamco.policies.mode_switch import Predicted
from streamco.policies.offload import CONFIDENCE_THRESHOLD, OffloadRule
from streamco.policies.window import MIN_WINDOW, SMOOTHING, Confident, Dynamic, Stabiliser, Static, WindowPolicy
from streamco.profiles import PairProfile

__all__ = ["SECOND", "Drafter", "SpeculationOptions", "SpeculationTuning"]

Drafter = Literal["device", "lookup"]
"""The device's model drafts, or drafts are looked up in the prompt and the answer so far, which needs no device."""

SECOND = RateName("speculate", "joules_per_second_saved", "joules")

_LOOKUPS = EstimatesPrior(acceptance=0.5, step_times=(1e-4,), mean_confidence=0.5)  # a lookup takes one iteration of the event loop

_DEVICE_PATIENCES = 2.0  # multiples of the patience until the device finishes an answer that neither verifier nor stream can continue
_LAST_PATIENCES = 15.0  # multiples of the patience until an answer that only the verifier can continue gives up
_VERDICT_TIMEOUTS = 15.0  # multiples of the patience until a connection without a verdict counts as lost
_FIRST_VERDICT_TIMEOUTS = 30.0  # the same for the first verdict, which includes reading the prompt


class SpeculationTuning(Options, frozen=True, kw_only=True):
    """Speculation settings for experiments and measured profiles; the defaults suit every pair of models.

    Args:
        smoothing: weight of a window policy's newest proposal, 0..1; 1 means no smoothing (DSD section 4.4, alpha). The default is 0.4
            for "adaptive" and 1 otherwise.
        is_parallel: True if the device continues to draft while waiting for the verdict (Synera section 4.4).
        max_ahead: how many drafts per round are sent before the verdict that they assume, so that the verifier doesn't have to wait for the
            network; 0 for none. Not in the papers.
        has_trees: True if drafts may carry siblings when the verifier accepts them and its price list says that they pay off
            (docs/speculation.md). Not in the papers.
        may_begin_by_stream: True if the server's stream begins an answer while the device is still reading the prompt, and drafts follow
            afterwards (docs/speculation.md). Not in the papers.
        branch_kinds: which verdicts branches may assume: "accept all", "reject".
        forecast: how verdicts are forecast: "learned" (from how often tokens of similar confidence were accepted), "geometric" (Synera
            section 4.4) or "sampled" (the same, but one branch is drawn, as in the paper).
        smooths_mode: True to smooth the window proposals before choosing the generation mode from them, as printed in DSD section 4.4;
            False to choose it from the last proposal, without smoothing.
        confidence_threshold: c_th of the confidence filter (Synera section 4.2).
        chunks: (confidence, importance) of chunks that were measured before, for the first plan under a budget below 1.
        row_tokens: how many tokens of its distribution the device samples from and sends, 1 to 64. Exact sampling needs whole
            distributions.
        prior: what is assumed about the pair before anything is measured.
        last_patience: how many seconds trouble with the verifier may last if nothing else can continue the answer. After that, the device
            finishes the verifier's part, or the answer fails. The default is twice ``Speculate.patience`` if the device may finish,
            otherwise 15 times, and at most the verifier's ``next_token``.
        first_verdict_timeout: seconds until a connection without a first verdict counts as lost; by default 30 times the patience.
        verdict_timeout: the same for later verdicts; by default 15 times the patience. If you raise the verifier's own ``timeouts``, raise
            these two as well.

    Raises:
        ConfigError: a setting is out of range.
    """

    smoothing: float | None = None
    is_parallel: bool = True
    max_ahead: int = 3
    has_trees: bool = True
    may_begin_by_stream: bool = True
    branch_kinds: frozenset[BranchKind] = frozenset({"accept all", "reject"})
    forecast: Forecast = "learned"
    smooths_mode: bool = False
    confidence_threshold: float = CONFIDENCE_THRESHOLD
    chunks: tuple[tuple[float, float | None], ...] = ()
    row_tokens: int = 20
    prior: EstimatesPrior | None = None
    last_patience: float | None = None
    first_verdict_timeout: float | None = None
    verdict_timeout: float | None = None

    def __post_init__(self) -> None:
        """Reject settings that are out of range."""
        if self.forecast not in get_args(Forecast):
            raise ConfigError(f"speculate: forecast: expected one of {', '.join(get_args(Forecast))}, got {self.forecast!r}")
        if self.smoothing is not None:
            check_share("speculate: smoothing", self.smoothing)
        if self.max_ahead < 0 or not 1 <= self.row_tokens <= 64:
            raise ConfigError(f"speculate: expected max_ahead >= 0 and row_tokens of 1 to 64, got {self.max_ahead} and {self.row_tokens}")
        limits = {name: getattr(self, name) for name in ("last_patience", "first_verdict_timeout", "verdict_timeout")}
        for name, seconds in limits.items():
            if seconds is not None and seconds <= 0.0:
                raise ConfigError(f"speculate: {name}: expected more than 0 s, got {seconds:g}")


class SpeculationOptions(Options, frozen=True, kw_only=True):
    """The settings of ``Speculate`` that estimates and machines depend on; ``Speculate`` describes them."""

    drafter: Drafter = "device"
    budget: float | None = None
    window: int | Literal["dynamic", "adaptive", "predicted", "confident"] | WindowPolicy | None = None
    max_branches: int = 6
    patience: float = 2.0
    offload: OffloadRule = "confidence"
    threshold: float = 1.0
    is_adaptive: bool = True
    joules_per_second_saved: RateSetting | None = None
    tuning: SpeculationTuning = SpeculationTuning()

    def __post_init__(self) -> None:
        """Reject settings that are out of range."""
        if self.drafter not in get_args(Drafter):
            raise ConfigError(f"speculate: drafter: expected one of {', '.join(get_args(Drafter))}, got {self.drafter!r}")
        if self.budget is not None:
            check_share("speculate: budget", self.budget)
            if self.is_lookup and self.budget < 1.0:
                raise ConfigError(
                    f'speculate: budget: expected 1 with drafter="lookup", whose drafts are all verified, got {self.budget:g}'
                )
        _window(self.window, 1.0)
        check_share("speculate: threshold", self.threshold)
        if self.joules_per_second_saved is not None:
            check_rate_setting(self.joules_per_second_saved, SECOND)
            if self.is_lookup:
                raise ConfigError('speculate: joules_per_second_saved: expected None with drafter="lookup", which takes no energy')
        if self.max_branches < 0 or not self.patience > 0.0:
            raise ConfigError(
                f"speculate: expected max_branches >= 0 and a patience above 0 s, got {self.max_branches} and {self.patience:g}"
            )

    @property
    def is_lookup(self) -> bool:
        """True if drafts are looked up."""
        return self.drafter == "lookup"

    @property
    def is_parallel(self) -> bool:
        """True if the device continues to draft while waiting for the verdict."""
        return self.tuning.is_parallel and self.max_branches > 0

    @property
    def last_patience(self) -> float:
        """How many seconds trouble with the verifier may last if nothing else can continue the answer."""
        seconds = self.tuning.last_patience
        return _LAST_PATIENCES * self.patience if seconds is None else seconds

    def patience_before_the_end(self, timeouts: Timeouts, *, may_use_device: bool) -> float:
        """Return ``last_patience`` for a verifier with these time limits. ``may_use_device`` says if the device may finish the answer."""
        if self.tuning.last_patience is not None:
            return self.tuning.last_patience
        seconds = _DEVICE_PATIENCES * self.patience if may_use_device else self.last_patience
        return seconds if timeouts.next_token is None else min(seconds, timeouts.next_token)

    @property
    def first_verdict_timeout(self) -> float:
        """Seconds until a connection without a first verdict counts as lost."""
        seconds = self.tuning.first_verdict_timeout
        return _FIRST_VERDICT_TIMEOUTS * self.patience if seconds is None else seconds

    @property
    def verdict_timeout(self) -> float:
        """Seconds until a connection without a later verdict counts as lost."""
        seconds = self.tuning.verdict_timeout
        return _VERDICT_TIMEOUTS * self.patience if seconds is None else seconds

    def with_profile(self, profile: PairProfile | None) -> Self:
        """Return the options with a calibrated profile's measurements for the tuning settings that weren't set."""
        if profile is None or self.is_lookup:
            return self
        tuning = self.tuning
        prior = EstimatesPrior(
            acceptance=profile.acceptance,
            step_times=profile.step_times,
            wait=profile.wait,
            remote_step=profile.remote_step,
            hit_rate=profile.hit_rate,
            mean_confidence=profile.mean_confidence,
        )
        is_usual = tuning.confidence_threshold == CONFIDENCE_THRESHOLD and profile.confidence_threshold is not None
        measured = replace(
            tuning,
            prior=tuning.prior or prior,
            confidence_threshold=profile.confidence_threshold if is_usual else tuning.confidence_threshold,
            chunks=tuning.chunks or (() if self.window is None or self.window == 1 else profile.chunks),  # these have four tokens
        )
        return replace(self, tuning=measured)

    def estimates(self, budget: float, known: SpeculationEstimates | None = None) -> SpeculationEstimates:
        """Return new estimates.

        Args:
            budget: share of the drafted tokens that are verified, 0..1.
            known: estimates under another budget to start from, or None if nothing has been measured.
        """
        prior = self.tuning.prior or (_LOOKUPS if self.is_lookup else None)
        if known is not None:
            prior = EstimatesPrior(
                acceptance=known.acceptance,
                step_times=tuple(known.step_times),
                wait=known.wait,
                remote_step=known.remote_step if known.has_remote_step else None,
                hit_rate=known.hit_rate,
                mean_confidence=known.mean_confidence,
            )
        window = _window("confident" if self.is_lookup and self.window is None else self.window, budget, may_fuse=self.is_adaptive)
        estimates = SpeculationEstimates(
            budget,
            window=window,
            stabiliser=_stabiliser(window, self.tuning.smoothing),
            mode_stabiliser=Stabiliser(SMOOTHING if self.tuning.smoothing is None else self.tuning.smoothing)
            if self.tuning.smooths_mode
            else None,
            prior=prior,
            rule=self.offload,
            confidence_threshold=self.tuning.confidence_threshold,
            chunks=self.tuning.chunks,
            forecast=self.tuning.forecast,
        )
        if known is not None:
            estimates.share_verifiers(known)
        return estimates


def _window(setting: object, budget: float, *, may_fuse: bool = True) -> WindowPolicy:
    """Return the policy that a setting names. ``may_fuse`` is True if the server may generate alone."""
    match setting:
        case None:
            return Adaptive(may_fuse=may_fuse) if budget >= 1.0 else Static(1)
        case bool():
            pass
        case int():
            return Static(setting)
        case "dynamic":
            return Dynamic()
        case "adaptive":
            return Adaptive(may_fuse=may_fuse)
        case "predicted":
            return Predicted()
        case "confident":
            return Confident()
        case _ if hasattr(setting, "propose") and hasattr(setting, "first"):
            return cast(WindowPolicy, setting)
    names = '"dynamic", "adaptive", "predicted", "confident"'
    raise ConfigError(f"speculate: window: expected a number, {names} or a window policy, got {setting!r}")


def _stabiliser(policy: WindowPolicy, smoothing: float | None) -> Stabiliser:
    """Return the stabiliser of a policy's proposals. A network's real-valued proposals are smoothed, and it drafts at least two tokens.

    It drafts at least two because a round that is tried although the network proposes fused mode must be worthwhile.
    """
    is_learned = isinstance(policy, Adaptive)
    usual = SMOOTHING if is_learned else 1.0
    return Stabiliser(usual if smoothing is None else smoothing, min_window=MIN_DRAFT if is_learned else MIN_WINDOW)
