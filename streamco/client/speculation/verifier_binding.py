"""The device and the verifier as a pair: found at the start, asked whether they fit, and what is known of them kept over answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from streamco.config import SamplingOptions
from streamco.core.speculation.draft import BranchKind
from streamco.core.speculation.estimates import Forecast, Pair, PairPrior
from streamco.endpoints.base import Endpoint, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.verifiers.base import Verifier, VerifierFacts
from streamco.engines.base import EngineOptions
from streamco.errors import ConfigError, EndpointError, VerifierError
from streamco.pairs import PairProfile
from streamco.policies.learned_window import SHORTEST_DRAFT, Adaptive
from streamco.policies.device_constrained import check_share
from streamco.policies.eligibility import RequestFacts
from streamco.policies.importance import LAYERS
from streamco.policies.offload import CONFIDENCE_THRESHOLD, OffloadRule
from streamco.policies.mode_switch import Predicted
from streamco.policies.window import SHORTEST, SMOOTHING, Confident, Dynamic, Stabiliser, Static, WindowPolicy
from streamco.wire.verify.frames import Rule, RuleKind

if TYPE_CHECKING:
    from streamco.endpoints.openai import OpenAIEndpoint

__all__ = ["Mode", "Pairing", "SpeculationOptions", "VerifierSetting", "check_speculation", "drafting", "obstacle"]
__all__ += ["resolve_sampling", "rule_for"]

_log = logging.getLogger("streamco")

Mode = Literal["race", "speculate", "auto"]
VerifierSetting = str | Verifier | None

HELD_SEQUENCES = 8  # of a device that is loaded for one answer at a time: the draft and its branches, and one to spare
_ASK_AGAIN = 30.0  # seconds after which a verifier that could not be used is asked again
_KEPT = frozenset({"stream", "stream_options", "user", "metadata", "store", "service_tier", "return_token_ids", "response_format"})
_PENALTIES = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}
_NEUTRAL: Mapping[str, Any] = {"n": 1, "logprobs": False, "logit_bias": {}, "tools": [], **_PENALTIES}
_NOTHING = object()


class SpeculationOptions(Struct, frozen=True, kw_only=True):
    """How answers are drafted and verified (docs/speculation.md).

    Args:
        budget: share of the drafts that is judged, 0..1; None: the client's budget.
        window: tokens to draft in a round: a number (4: Synera section 5), "dynamic" (DSD section 5.2), "adaptive" (a network's, DSD
            section 4), "predicted" (the best one by acceptance rate and times as measured), "confident" (each draft as far as its next
            token is worth the step), or a ``streamco.policies.window.WindowPolicy``. None: "confident" where everything is judged, else 4.
        smoothing: of a window policy's proposals, 0..1; 1: none (DSD section 4.4, alpha). None: 0.4 for "adaptive", else 1.
        is_parallel: the device drafts on while the verdict is out (Synera section 4.4).
        most_branches: drafted then, side by side or, where that is no faster, one after the other; 0: none.
        most_ahead: of the next drafts, sent before the verdict that they bet on, so that the verifier goes on without waiting for the
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
    most_branches: int = 6
    most_ahead: int = 3
    branch_kinds: frozenset[BranchKind] = frozenset({"accept all", "reject"})
    forecast: Forecast = "learned"
    is_adaptive: bool = True
    offload: OffloadRule = "combined"
    confidence_threshold: float = CONFIDENCE_THRESHOLD
    chunks: tuple[tuple[float, float | None], ...] = ()
    threshold: float = 0.3
    row_tokens: int = 20
    prior: PairPrior | None = None
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
        if min(self.most_branches, self.most_ahead) < 0 or not 1 <= self.row_tokens <= 64 or min(patience) <= 0:
            raise ConfigError(
                "speculation: expected most_branches and most_ahead >= 0, row_tokens of 1 to 64 and patience > 0 s, "
                f"got {self.most_branches}, {self.most_ahead}, {self.row_tokens} and {', '.join(f'{seconds:g}' for seconds in patience)}"
            )

    def measured(self, profile: PairProfile | None) -> SpeculationOptions:
        """With what a calibrated profile says of the pair, where nothing else was said."""
        if profile is None:
            return self
        usual = PairPrior()
        prior = PairPrior(
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

    def pair(self, budget: float, known: Pair | None = None) -> Pair:
        """A pair of which nothing was measured, or that begins with what is known of one with another budget."""
        prior = self.prior
        if known is not None:
            conditions = known.conditions()
            prior = PairPrior(
                acceptance=known.acceptance,
                step_times=tuple(known.step_times),
                wait=known.wait,
                remote_step=known.remote_step if known.knows_remote else None,
                hit_rate=conditions.hit_rate,
                mean_confidence=known.mean_confidence,
            )
        window = _window(self.window, budget, may_fuse=self.is_adaptive)
        return Pair(
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
    """The policy that a setting names. ``may_fuse``: the server may generate alone."""
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
    return Stabiliser(usual if smoothing is None else smoothing, shortest=SHORTEST_DRAFT if is_learned else SHORTEST)


def drafting(options: EngineOptions, budget: float, places: int = HELD_SEQUENCES, *, offload: OffloadRule = "combined") -> EngineOptions:
    """An engine's options with what drafting needs: places for drafts and, where attention chooses what is judged, its layers."""
    layers = LAYERS if budget < 1.0 and offload in {"combined", "importance"} else ()
    return replace(options, held_sequences=places, attention_layers=layers)


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


def resolve_sampling(sampling: SamplingOptions) -> SamplingOptions:
    """With the engine's defaults written out, so that the device, the verifier and whoever generates alone mean the same distribution."""
    from streamco.engines.sampling import MIN_P, TEMPERATURE, TOP_K, TOP_P

    return replace(
        sampling,
        temperature=TEMPERATURE if sampling.temperature is None else sampling.temperature,
        top_k=TOP_K if sampling.top_k is None else max(0, sampling.top_k),
        top_p=TOP_P if sampling.top_p is None else sampling.top_p,
        min_p=MIN_P if sampling.min_p is None else sampling.min_p,
    )


def rule_for(sampling: SamplingOptions, budget: float, options: SpeculationOptions) -> Rule:
    """How drafts of a request are judged.

    Args:
        sampling: as ``resolve_sampling`` gives it.
        budget: share of the drafts that is judged.
        options: the threshold.
    """
    if sampling.temperature and sampling.top_k != 1:
        return Rule(
            RuleKind.SAMPLE,
            temperature=sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            min_p=sampling.min_p or 0.0,
            seed=None if sampling.seed is None else sampling.seed & 0xFFFFFFFF,
        )
    return Rule(RuleKind.GREEDY) if budget >= 1.0 else Rule(RuleKind.THRESHOLD, threshold=options.threshold)


def obstacle(request: Request, facts: RequestFacts, rule: Rule, verifier: VerifierFacts, *, context: int, models: frozenset[str]) -> str:
    """Why a request can't be speculated; "": it can.

    Args:
        facts: of the request.
        rule: that it would be judged by.
        verifier: what that one can.
        context: tokens the device has room for, prompt and answer together.
        models: names that mean the verifier's model.
    """
    asked: Mapping[str, Any] = {name: value for name, value in request.extra.items() if value != _NEUTRAL.get(name, _NOTHING)}
    if facts.has_tools:
        return "tools"
    if facts.has_json_schema:
        return "a JSON schema"
    if facts.has_images:
        return "images"
    if facts.choices > 1:
        return f"{facts.choices} choices"
    if unknown := sorted(asked.keys() - _KEPT):
        return f"{unknown[0]} can't be kept to"
    if request.model is not None and request.model not in models:
        return f"model {request.model} is another one than the verifier's"
    if rule.kind not in verifier.rules:
        return f"the verifier doesn't judge by {rule.kind.name.lower()}"
    room = min(context, verifier.context_tokens or context)
    length = facts.prompt_tokens + (facts.max_tokens or 1)
    return f"{length} tokens, room for {room}" if length > room else ""


class Pairing:
    """The verifier of a client, and whether it fits its device; shared by clients from ``with_options``.

    Args:
        setting: as for ``Client``.
        device: drafts; None: there is none.
        servers: the first may be asked to verify.

    Attributes:
        verifier: None until it is found.
        problem: why nothing can be speculated; "": it can.

    Raises:
        ConfigError: a URL that is none.
    """

    def __init__(self, setting: VerifierSetting, device: Endpoint | None, servers: Sequence[Endpoint]) -> None:
        self.verifier: Verifier | None = _make_verifier(setting)
        self.problem = "the verifier was not asked yet"
        self.server = servers[0] if servers else None
        self._device = device
        self._asking: asyncio.Task[None] | None = None
        self._asked_at: float | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    @property
    def device(self) -> DeviceEndpoint:
        """Who drafts."""
        if not isinstance(self._device, DeviceEndpoint):
            raise AssertionError("somebody drafts where there is no problem")
        return self._device

    @property
    def facts(self) -> VerifierFacts:
        """What the verifier said."""
        if self.verifier is None or self.verifier.facts is None:
            raise AssertionError("a verifier without a problem has said what it can")
        return self.verifier.facts

    @property
    def rtt(self) -> float | None:
        """Of the link to the verifier, seconds; None: not measured."""
        return None if self.verifier is None else self.verifier.rtt

    @property
    def models(self) -> frozenset[str]:
        """Names that mean the verifier's model."""
        names = {self.facts.model, getattr(self.server, "model", None)}
        return frozenset(name for name in names if name)

    async def start(self) -> None:
        """Find and ask the verifier; what is wrong with it becomes ``problem``. The device was started before."""
        async with self._lock:
            if self._asked_at is None:
                await self._ask()

    def note_trouble(self, problem: str) -> None:
        """An answer showed what is wrong with the verifier: the next ones do without until it was asked again."""
        if not self.problem:
            self._note(problem)

    def look_again(self) -> None:
        """Ask a verifier once more that could not be used, if that was a while ago; answers meanwhile do without."""
        is_due = self._asked_at is not None and monotonic() - self._asked_at >= _ASK_AGAIN
        if self.problem and is_due and self._asking is None and not self._is_closed:
            self._asking = asyncio.create_task(self._ask(), name="streamco ask the verifier again")
            self._asking.add_done_callback(self._forget)

    async def aclose(self) -> None:
        """Close the verifier; idempotent."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        if self.verifier is not None:
            await self.verifier.aclose()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _ask(self) -> None:
        try:
            self._note(await self._find())
        except (EndpointError, VerifierError) as error:
            self._note(str(error))

    def _note(self, problem: str) -> None:
        """Said once, however often it is asked in vain."""
        is_new = self._asked_at is None or not self.problem
        self.problem, self._asked_at = problem, monotonic()
        if problem and is_new:
            _log.warning("answers are not speculated: %s", problem)

    async def _find(self) -> str:
        """What is wrong; "": nothing."""
        if not isinstance(self._device, DeviceEndpoint):
            return "no device" if self._device is None else f"{self._device.name} can't draft"
        if self._device.engine is None:
            return f"{self._device.name} could not be loaded"
        if self.verifier is None:
            from streamco.endpoints.openai import OpenAIEndpoint

            if not isinstance(self.server, OpenAIEndpoint):
                return "no verifier" if self.server is None else f"{self.server.name} can't verify"
            found = await _ask_server(self.server)
            if found is None or self._is_closed:
                return f"{self.server.name} can't verify"
            self.verifier = found
        await self.verifier.start(self._device.engine)
        await self.verifier.probe()
        return ""


def _make_verifier(setting: VerifierSetting) -> Verifier | None:
    if not isinstance(setting, str):
        return setting
    from streamco.endpoints.verifiers.streamco import VerifierEndpoint

    return VerifierEndpoint(setting)


async def _ask_server(server: OpenAIEndpoint) -> Verifier | None:
    """The verifier behind a server's API; None: it is of another kind.

    Raises:
        EndpointError: it doesn't answer.
    """
    from streamco.endpoints.verifiers.discovery import find_verifier

    return await find_verifier(server)
