"""The settings of the mode in which the device drafts and a verifier verifies (Synera)."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from streamco.client.modes.base import ClientPlanner, Fallback, Mode, ModeContext, Planner
from streamco.client.modes.speculation.options import SpeculationOptions
from streamco.client.modes.speculation.plan import SpeculationPlanner
from streamco.client.modes.speculation.verifier_binding import VerifierSetting
from streamco.core.speculation.answer import Emit
from streamco.errors import ConfigError

__all__ = ["Speculate"]


class Speculate(SpeculationOptions, frozen=True, kw_only=True):
    """The device drafts, and the server verifies the drafts; if that isn't possible, the answer is made in another way.

    Args:
        drafter: "device": a model on this machine drafts. "lookup": if the last few tokens have occurred before in the prompt or the
            answer, the tokens that followed them there are the draft. That takes no time, no model and no ``device``.
        verifier: verifies the drafts: the URL of a ``streamco serve``, a verifier, or a list of these with the same model, which share the
            answers (``VerifierPool``). None uses the client's first server.
        emit: "verified" if readers of ``stream`` should get only final text; "draft" if they should get drafts at once, and retractions.
        otherwise: the race that makes answers that can't be speculated (the report says why); None uses the client's race.
        budget: share of the drafted tokens that are verified, 0..1; None uses the client's budget.
        window: tokens to draft per round: a number (4 in Synera section 5), or a policy. "dynamic" follows DSD section 5.2. "adaptive"
            lets a neural network choose (DSD section 4). "predicted" is the best window for the measured acceptance rate and times.
            "confident" ends each draft when its next token isn't worth the step. You can also pass your own
            ``streamco.policies.window.WindowPolicy``.
            None means "adaptive" if everything is verified ("confident" for lookups), otherwise 1.
        max_branches: number of branches drafted while waiting for the verdict, in parallel or, if that is no faster, one after another;
            0 for none.
        patience: how many seconds trouble with the verifier may last before the server continues alone or, with a budget below 1, the
            device does. With a budget below 1, an answer that has begun waits two rounds at most. The time limits for missing verdicts, and
            for answers that neither can continue, are derived from it (``SpeculationTuning``).
        offload: the filters that choose which drafts are verified if the budget is below 1 (Synera section 4.2): "combined", "confidence",
            "importance" or "random". "combined" and "importance" read attention on the device, which then drafts a sixth more slowly.
        threshold: 0..1, for greedy decoding with a budget below 1: a drafted token is accepted if its probability at the verifier is at
            least ``threshold`` times the best token's.
        is_adaptive: True to let the server generate alone while drafting doesn't pay.
        joules_per_second_saved: how many joules on the device a saved second is worth to you, or a function without arguments that returns
            the current value. A token is then drafted only if the time that it is expected to save is worth its joules (estimated from the
            FLOPs of the device's model), and the server generates alone while drafting isn't worth it. With a budget below 1, where the
            device writes in any case, this applies to branches. With None, only time counts.
        tuning: settings for experiments.

    Raises:
        ConfigError: a setting is out of range.
    """

    name: ClassVar[str] = "speculate"
    endpoint: ClassVar[None] = None

    verifier: VerifierSetting = None
    emit: Emit = "verified"
    otherwise: Mode | None = None

    def __post_init__(self) -> None:
        """Reject settings that are out of range."""
        SpeculationOptions.__post_init__(self)
        if self.emit not in {"verified", "draft"}:
            raise ConfigError(f'emit: expected "verified" or "draft", got {self.emit!r}')
        if self.otherwise is not None and getattr(self.otherwise, "name", None) != "race":
            raise ConfigError(f"otherwise: expected Race(...) or None, got {self.otherwise!r}")
        for each in self.verifier if isinstance(self.verifier, (list, tuple)) else [self.verifier]:
            if each is not None and not isinstance(each, str) and not (hasattr(each, "open") and hasattr(each, "probe")):
                raise ConfigError(f"verifier: expected the URL of one, a verifier, a list of them or None, got {type(each).__name__}")

    @property
    def members(self) -> tuple[Mode, ...]:
        """The modes that may make an answer."""
        return (self,) if self.otherwise is None else (replace(self, otherwise=None), *self.otherwise.members)

    def planner(self, context: ModeContext) -> ClientPlanner:
        """Return the planner of a client's answers."""
        otherwise = (self.otherwise or context.fallback).planner(context)
        return Fallback((self.own_planner(context),), otherwise, if_faster=False)

    def own_planner(self, context: ModeContext) -> Planner:
        """Return the planner for this mode's own answers."""
        others = (*context.endpoints.planners, *context.known.values())
        planners = [each for each in others if isinstance(each, SpeculationPlanner)]
        planner = SpeculationPlanner(self, context, emit=self.emit, verifier=self.verifier, known=planners[-1] if planners else None)
        same = None if context.is_new else next((each for each in planners if each.is_like(planner)), None)
        if same is not None:
            return same
        context.endpoints.planners.append(planner)
        return planner
