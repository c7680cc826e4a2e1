"""The mode in which the device drafts and a verifier verifies (Synera): its settings."""

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
    """The device drafts, and the server verifies the drafts; an answer for which that isn't possible is made in another way.

    Args:
        drafter: "device": a model on this machine drafts. "lookup": what stood before in the prompt or the answer is the draft, where the
            last tokens are the same. That takes no time, no model and no ``device``.
        verifier: verifies the drafts: the URL of a ``streamco serve``, a verifier, or a list of them with one model, over which answers are
            spread (``VerifierPool``); None: the client's first server does.
        emit: what readers of ``stream`` get: "verified": final text; "draft": drafts at once, and retractions.
        otherwise: the race that makes the answers which can't be speculated, and the report says why; None: the client's own race.
        budget: share of the drafted tokens that is verified, 0..1; None: the client's budget.
        window: tokens to draft in a round: a number (4: Synera section 5), or a policy. "dynamic" is DSD section 5.2. "adaptive" is a
            network's choice (DSD section 4). "predicted" is the best window by the measured acceptance rate and times. "confident" ends
            each draft when its next token isn't worth the step. Others: a ``streamco.policies.window.WindowPolicy``. None: "adaptive" if
            everything is verified ("confident" for drafts that are looked up), else 1.
        max_branches: branches drafted while the verdict is out, side by side or, if that is no faster, one after the other; 0: none.
        patience: seconds that trouble with the verifier may last before the server alone or, below budget 1, the device continues. Below
            budget 1 an answer that has begun waits two rounds at most. Time limits for the case that neither can continue, and for verdicts
            that don't come, derive from it (``SpeculationTuning``).
        offload: which filters choose what is verified if the budget is below 1 (Synera section 4.2): "combined", "confidence",
            "importance" or "random". "combined" and "importance" read attention on the device, which then drafts a sixth slower.
        threshold: used for greedy decoding below budget 1. A drafted token is accepted if its probability at the verifier is at least
            ``threshold`` times that of the best token, 0..1.
        is_adaptive: the server generates alone while drafting doesn't pay.
        joules_per_second_saved: joules of the device that an answer's second is worth to you, or a function without arguments that returns
            them now. A token is then drafted only if the time that it is expected to save is worth its joules (by the FLOPs of the device's
            model), and the server generates alone while drafting isn't. Below budget 1, where the device writes in any case, that holds for
            branches. None: time alone decides.
        tuning: settings for experiments.

    Raises:
        ConfigError: a setting out of range.
    """

    name: ClassVar[str] = "speculate"
    endpoint: ClassVar[None] = None

    verifier: VerifierSetting = None
    emit: Emit = "verified"
    otherwise: Mode | None = None

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
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
        """Return the planner of the answers that are speculated."""
        others = (*context.endpoints.planners, *context.known.values())
        planners = [each for each in others if isinstance(each, SpeculationPlanner)]
        planner = SpeculationPlanner(self, context, emit=self.emit, verifier=self.verifier, known=planners[-1] if planners else None)
        same = None if context.is_new else next((each for each in planners if each.is_like(planner)), None)
        if same is not None:
            return same
        context.endpoints.planners.append(planner)
        return planner
