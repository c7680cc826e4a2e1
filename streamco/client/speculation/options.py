"""What a caller sets about speculation, and the policies that the settings name."""

from __future__ import annotations

from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from streamco.config import check_share
from streamco.core.speculation.draft import BranchKind
from streamco.core.speculation.estimates import EstimatesPrior, Forecast, SpeculationEstimates
from streamco.endpoints.verifiers.base import Verifier
from streamco.errors import ConfigError
from streamco.policies.learned_window import MIN_DRAFT, Adaptive
from streamco.policies.mode_switch import Predicted
from streamco.policies.offload import CONFIDENCE_THRESHOLD, OffloadRule
from streamco.policies.window import MIN_WINDOW, SMOOTHING, Confident, Dynamic, Stabiliser, Static, WindowPolicy
from streamco.profiles import PairProfile

__all__ = ["Mode", "SpeculationOptions", "VerifierSetting", "check_speculation"]

Mode = Literal["race", "speculate", "auto"]

VerifierSetting = str | Verifier | None


class SpeculationOptions(Struct, frozen=True, kw_only=True):
    """How answers are drafted and verified (docs/speculation.md).

    Args:
        budget: share of the drafts that is judged, 0..1; None: the client's budget.
        window: tokens to draft in a round: a number (4: Synera section 5), "dynamic" (DSD section 5.2), "adaptive" (a network's, DSD
            section 4), "predicted" (the best one by acceptance rate and times as measured), "confident" (each draft as far as its next
            token is worth the step), or a ``streamco.policies.window.WindowPolicy``. None: "confident" where everything is judged, else 4.
        smoothing: of a window policy's proposals, 0..1; 1: none (DSD section 4.4, alpha). None: 0.4 for "adaptive", else 1.
        is_parallel: the device drafts on while the verdict is out (Synera section 4.4).
        max_branches: drafted then, side by side or, where that is no faster, one after the other; 0: none.
        max_ahead: of the next drafts, sent before the verdict that they bet on, so that the verifier goes on without waiting for the
            link; 0: none. Not in the papers.
        forecast: of the verdict: "learned" (from how often tokens of such confidence were accepted) or "geometric" (Synera section 4.4).
        branch_kinds: which verdicts they may bet on: "accept all", "reject".
        is_adaptive: the server generates alone where drafting doesn't pay.
        offload: which filters choose what is judged where the budget is below 1 (Synera section 4.2): "combined", "confidence",
            "importance", or "random". The first and the third read the device's attention, which costs it a sixth of its pace.
        confidence_threshold: c_th.
        chunks: (confidence, importance) of chunks measured before, for the first plan under a budget below 1.
        threshold: greedy and below budget 1, a token is good enough at so many times the probability of the verifier's best.
        row_tokens: with sampling, the device draws each token from at most so many, and sends them: what is exact needs to be whole.
        prior: what is believed of the pair before anything was measured.
        link_patience: seconds that trouble with the verifier may last before the server alone, or below budget 1 the device, goes on.
        last_patience: the same where neither can: before the device finishes what should have been the verifier's, or the answer fails.
        prompt_patience: seconds until a connection whose first verdict doesn't come, for which the prompt is read, counts as lost.
        verdict_patience: the same for later verdicts. Raise them with the verifier's own ``timeouts``.

    Raises:
        ConfigError: a setting out of range.
    """

    budget: float | None = None
    window: int | Literal["dynamic", "adaptive", "predicted", "confident"] | WindowPolicy | None = None
    smoothing: float | None = None
    is_parallel: bool = True
    max_branches: int = 6
    max_ahead: int = 3
    branch_kinds: frozenset[BranchKind] = frozenset({"accept all", "reject"})
    forecast: Forecast = "learned"
    is_adaptive: bool = True
    offload: OffloadRule = "combined"
    confidence_threshold: float = CONFIDENCE_THRESHOLD
    chunks: tuple[tuple[float, float | None], ...] = ()
    threshold: float = 0.3
    row_tokens: int = 20
    prior: EstimatesPrior | None = None
    link_patience: float = 2.0
    last_patience: float = 30.0
    prompt_patience: float = 60.0
    verdict_patience: float = 30.0

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        if self.budget is not None:
            check_share("speculation: budget", self.budget)
        _window(self.window, 1.0)
        if self.forecast not in {"learned", "geometric"}:
            raise ConfigError(f'speculation: forecast: expected "learned" or "geometric", got {self.forecast!r}')
        check_share("speculation: threshold", self.threshold)
        if self.smoothing is not None:
            check_share("speculation: smoothing", self.smoothing)
        patience = (self.link_patience, self.last_patience, self.prompt_patience, self.verdict_patience)
        if min(self.max_branches, self.max_ahead) < 0 or not 1 <= self.row_tokens <= 64 or min(patience) <= 0:
            raise ConfigError(
                "speculation: expected max_branches and max_ahead >= 0, row_tokens of 1 to 64 and patience > 0 s, "
                f"got {self.max_branches}, {self.max_ahead}, {self.row_tokens} and {', '.join(f'{seconds:g}' for seconds in patience)}"
            )

    def measured(self, profile: PairProfile | None) -> SpeculationOptions:
        """With what a calibrated profile says of the pair, where nothing else was said."""
        if profile is None:
            return self
        usual = EstimatesPrior()
        prior = EstimatesPrior(
            acceptance=profile.acceptance,
            step_times=profile.step_times,
            wait=profile.wait,
            remote_step=profile.remote_step,
            hit_rate=usual.hit_rate if profile.hit_rate is None else profile.hit_rate,
            mean_confidence=profile.mean_confidence,
        )
        is_usual = self.confidence_threshold == CONFIDENCE_THRESHOLD and profile.confidence_threshold is not None
        return replace(
            self,
            prior=self.prior or prior,
            confidence_threshold=profile.confidence_threshold if is_usual else self.confidence_threshold,
            chunks=self.chunks or profile.chunks,
        )

    def pair(self, budget: float, known: SpeculationEstimates | None = None) -> SpeculationEstimates:
        """Return a pair of which nothing was measured, or that begins with what is known of one with another budget."""
        prior = self.prior
        if known is not None:
            conditions = known.conditions()
            prior = EstimatesPrior(
                acceptance=known.acceptance,
                step_times=tuple(known.step_times),
                wait=known.wait,
                remote_step=known.remote_step if known.has_remote_step else None,
                hit_rate=conditions.hit_rate,
                mean_confidence=known.mean_confidence,
            )
        window = _window(self.window, budget, may_fuse=self.is_adaptive)
        return SpeculationEstimates(
            budget,
            window=window,
            stabiliser=_stabiliser(window, self.smoothing),
            prior=prior,
            rule=self.offload,
            confidence_threshold=self.confidence_threshold,
            chunks=self.chunks,
            forecast=self.forecast,
        )


def _window(setting: object, budget: float, *, may_fuse: bool = True) -> WindowPolicy:
    """Return the policy that a setting names. ``may_fuse``: the server may generate alone."""
    match setting:
        case None:
            return Confident() if budget >= 1.0 else Static()
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
    raise ConfigError(f"speculation: window: expected a number, {names} or a window policy, got {setting!r}")


def _stabiliser(policy: WindowPolicy, smoothing: float | None) -> Stabiliser:
    """Of a policy's proposals: a network's real numbers are smoothed, and a round that is tried in fused mode is worth one."""
    is_learned = isinstance(policy, Adaptive)
    usual = SMOOTHING if is_learned else 1.0
    return Stabiliser(usual if smoothing is None else smoothing, min_window=MIN_DRAFT if is_learned else MIN_WINDOW)


def check_speculation(mode: object, verifier: object, emit: object, options: object) -> None:
    """Refuse settings that can't be.

    Raises:
        ConfigError: one of them.
    """
    if mode not in {"race", "speculate", "auto"}:
        raise ConfigError(f'mode: expected "race", "speculate" or "auto", got {mode!r}')
    if emit not in {"verified", "draft"}:
        raise ConfigError(f'emit: expected "verified" or "draft", got {emit!r}')
    if verifier is not None and not isinstance(verifier, str) and not (hasattr(verifier, "open") and hasattr(verifier, "probe")):
        raise ConfigError(f"verifier: expected the URL of one, a verifier or None, got {type(verifier).__name__}")
    if options is not None and not isinstance(options, SpeculationOptions):
        raise ConfigError(f"speculation: expected SpeculationOptions or None, got {type(options).__name__}")
