"""The SDK's front door: endpoints, budget and pace in one object that outlives many answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streamco.client.arguments import UNSET, Unset, build_request
from streamco.client.chat import Chat
from streamco.client.driver import AnswerDriver
from streamco.client.endpoint_set import DeviceSetting, EndpointSet, ServerSetting
from streamco.client.preparation import AnswerPreparation
from streamco.client.race.dispatcher import Dispatcher, DispatchOptions, DispatchRecord
from streamco.client.race.driver import RaceDriver
from streamco.client.race.migration import MigrationOptions
from streamco.client.speculation.driver import SpeculationDriver
from streamco.client.speculation.options import Mode, SpeculationOptions, VerifierSetting, check_speculation
from streamco.client.speculation.planner import PreparedSpeculation, SpeculationPlanner
from streamco.client.speculation.verifier_binding import VerifierBinding, drafting_engine_options
from streamco.client.stream import ChatStream, PendingAnswer, TokenStream
from streamco.config import Limits, Pace, parse_pace
from streamco.core.race.machine import OnFailure, RaceMachine, RacePlan
from streamco.core.race.migration import MigrationPlan
from streamco.core.speculation.answer import Emit
from streamco.core.totals import Totals, TotalsRecorder
from streamco.endpoints.base import Message, Request
from streamco.engines.base import EngineOptions
from streamco.errors import ConfigError
from streamco.policies.eligibility import RequestFacts
from streamco.profiles import Profile

__all__ = ["Client"]


class Client:
    """One answer from two places, for as many answers as you like, many at once.

    The client owns its endpoints: it starts them, and closing it closes them.

    Args:
        device: the small model on this machine: a GGUF file, or an endpoint; None: there is none.
        server: the remote model: an endpoint, an OpenAI model name, or a list of endpoints: the first takes part in the race, the others
            stand in for it in their order; None: there is none.
        budget: share of the work that the dear side may do, 0 to 1. In a race: of all prompt tokens, those that the constrained side may
            process (DiSCo 4.1, b); None: 0.3. Where the device drafts: of the drafted tokens, those that are judged; None: all, so that the
            answer is the verifier's own.
        policy: "auto", or a dispatch policy's name (docs/dispatch.md).
        pace: tokens per second at the reader, "reading" (4.8), "listening" (3.5), or None: as fast as they come.
        mode: "race": the whole answer comes from whoever is first; "speculate": the device drafts and the server verifies, wherever that
            can be; "auto": whichever is faster, answer by answer (docs/speculation.md).
        verifier: who judges drafts: the URL of a ``streamco serve``, or a verifier; None: ``server`` does.
        emit: of speculated answers, what readers of ``stream`` get: "verified", what is final; "draft", drafts at once, and retractions.
        speculation: everything else that steers drafting and verifying.
        profile: what an earlier client learned (``Client.profile()``), or the file it was written to; None: learn from nothing.
        on_failure: what becomes of an answer whose endpoint dies in the middle. "migrate": another one that can goes on from the last good
            token; "restart": likewise, and if none can, one is asked for the whole answer anew: what the reader has is taken out of it, and
            an answer that departs from that is an error (for greedy decoding; docs/migration.md); "raise": the error, with the text so far.
            None: "migrate", but "raise" for requests with tools or a JSON schema.
        migration: how answers move to a cheaper endpoint while they are written (docs/migration.md); None: paced answers do, once.
        dispatch: everything else that steers dispatch.
        limits: bounds on what may be buffered.
        seed: makes the policies' dice reproducible.

    Raises:
        ConfigError: neither device nor server, names that are not unique, a setting out of range.
    """

    def __init__(
        self,
        device: DeviceSetting = None,
        server: ServerSetting = None,
        *,
        budget: float | None = None,
        policy: str = "auto",
        pace: Pace = None,
        mode: Mode = "race",
        verifier: VerifierSetting = None,
        emit: Emit = "verified",
        speculation: SpeculationOptions | None = None,
        profile: bytes | Path | None = None,
        on_failure: OnFailure | None = None,
        migration: MigrationOptions | None = None,
        dispatch: DispatchOptions | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
    ) -> None:
        _check_options(migration, dispatch, limits, on_failure)
        check_speculation(mode, verifier, emit, speculation)
        prior = None if profile is None else _read_profile(profile)
        speculation = (speculation or SpeculationOptions()).measured(None if prior is None else prior.pair)
        judged = budget if speculation.budget is None else speculation.budget
        may_draft = mode != "race" or verifier is not None
        drafts = (
            drafting_engine_options(EngineOptions(), 1.0 if judged is None else judged, offload=speculation.offload) if may_draft else None
        )
        self._shared = shared = EndpointSet(device, server, engine=drafts)
        shared.pairing = VerifierBinding(verifier, shared.device, shared.servers)
        self._on_failure = on_failure
        self._migration = migration or MigrationOptions()
        self._dispatch = dispatch or DispatchOptions()
        self._dispatcher = Dispatcher(self._dispatch, budget=_RACED if budget is None else budget, policy=policy, profile=prior, seed=seed)
        self._desk = SpeculationPlanner(shared.pairing, speculation, mode=mode, emit=emit, budget=judged, seed=seed)
        self._pace = parse_pace(pace)
        self._limits = limits or Limits()
        self._ledger = TotalsRecorder()
        self._owner: Client | None = None
        self.chat = Chat(self.open_chat)

    # Life

    async def start(self) -> None:
        """Load the model, open the connection pools, ask the verifier what it can; idempotent.

        A side that can't start is left out, and reports say why.

        Raises:
            AllEndpointsFailed: no endpoint could start.
            StreamClosed: the client was closed.
        """
        await self._shared.start()
        if self._desk.mode != "race":
            await self._desk.pairing.start()

    async def aclose(self) -> None:
        """Stop all answers, release every connection, model and task; idempotent. A client from ``with_options`` closes nothing."""
        if self._owner is None:
            await self._shared.aclose()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()  # nobody will call __aexit__; a side that did start must not stay behind
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def with_options(
        self,
        *,
        budget: float | None = None,
        policy: str | None = None,
        pace: Pace | Unset = UNSET,
        mode: Mode | None = None,
        emit: Emit | None = None,
        speculation: SpeculationOptions | None = None,
        on_failure: OnFailure | Unset | None = UNSET,
        migration: MigrationOptions | None = None,
        dispatch: DispatchOptions | None = None,
        limits: Limits | None = None,
    ) -> Client:
        """Return a client with other settings over the same endpoints.

        What is learned and spent, ``totals`` included, is shared unless ``budget``, ``policy`` or ``dispatch`` is given: then the new
        client has an account of its own, which begins at nothing. A device that was loaded by a client in mode "race" can't draft.
        """
        _check_options(migration, dispatch, limits, None if isinstance(on_failure, Unset) else on_failure)
        check_speculation(mode or self._desk.mode, None, emit or self._desk.emit, speculation)
        other = object.__new__(type(self))
        other._shared = self._shared
        other._owner = self._owner or self
        other._migration = migration or self._migration
        other._dispatch = dispatch or self._dispatch
        is_same = budget is None and policy is None and dispatch is None
        other._dispatcher = self._dispatcher if is_same else self._dispatcher.copy(other._dispatch, budget=budget, policy=policy)
        other._desk = self._desk.copy(mode=mode, emit=emit, budget=budget, options=speculation)
        other._ledger = self._ledger if is_same else TotalsRecorder()
        other._pace = self._pace if isinstance(pace, Unset) else parse_pace(pace)
        other._on_failure = self._on_failure if isinstance(on_failure, Unset) else on_failure
        other._limits = limits or self._limits
        other.chat = Chat(other.open_chat)
        return other

    def profile(self) -> bytes:
        """Return what was learned so far, as JSON: the server's TTFT distribution, the device's speed, lengths of prompts and answers."""
        return self._dispatcher.profile()

    @property
    def totals(self) -> Totals:
        """What the answers so far took, all together; clients from ``with_options`` share it as they share what is spent.

        An answer is entered when all work behind it has ended: with the end of its stream, or shortly after where a loser is still
        being cancelled; ``aclose`` of the stream waits for that. Requests that no endpoint could serve are not in it.
        """
        return self._ledger.totals()

    @property
    def unspeculated(self) -> str:
        """Why no answer can be speculated now, whatever it asks for; "" where some can, and in mode "race". Known once it has started."""
        return "" if self._desk.mode == "race" else self._desk.pairing.problem

    # Asking

    def stream(
        self, messages: str | Sequence[Message], *, model: str | None = None, pace: Pace | Unset = UNSET, **options: Any
    ) -> TokenStream:
        """Ask for an answer as tokens; nothing happens before the first read.

        Args:
            messages: a prompt, or a conversation in OpenAI's form.
            model: the remote model's name; None: the server endpoint's own.
            pace: overrides the client's.
            options: as for ``chat.completions.create``.

        Raises:
            ConfigError: an argument is wrong.
        """
        request = build_request(messages, model=model, **options)
        if request.extra.get("n", 1) != 1:
            raise ConfigError(f"n: expected 1 for a stream of tokens, got {request.extra['n']!r} (chat.completions.create gives them all)")
        return TokenStream(self._work(request, pace, shows_drafts=True))

    def open_chat(self, request: Request, *, pace: Pace | Unset = UNSET, includes_usage: bool = False) -> ChatStream:
        """Ask for an answer as chunks, from a request already built; nothing happens before the first read."""
        return ChatStream(self._work(request, pace), includes_usage=includes_usage)

    def _work(self, request: Request, pace: Pace | Unset, *, shows_drafts: bool = False) -> PendingAnswer:
        rate = self._pace if isinstance(pace, Unset) else parse_pace(pace)
        shared = self._shared
        beginning = AnswerPreparation(request, shared, self._desk)

        async def ready() -> None:
            if not shared.is_started:
                await self.start()
            await beginning.get_ready()

        def begin() -> AnswerDriver:
            shared.check_open()  # it may have been closed while the prompt was counted
            if beginning.prepared is not None:
                return self._speculate(beginning, beginning.prepared, rate, shows_drafts=shows_drafts)
            dispatched = self._dispatcher.decide(request, shared.device, shared.servers, shared.unavailable, beginning.facts)
            if beginning.note:
                dispatched.add_note(f"not speculated: {beginning.note}")
            return self._run(request, dispatched, rate)

        return PendingAnswer(ready, begin, beginning.abandon)

    def _speculate(
        self, beginning: AnswerPreparation, prepared: PreparedSpeculation, rate: float | None, *, shows_drafts: bool
    ) -> SpeculationDriver:
        desk, shared = self._desk, self._shared

        def settle(driver: SpeculationDriver) -> None:
            shared.active.discard(driver)
            desk.heed(driver)
            self._dispatcher.learn_prompt(prepared.prompt_tokens)
            self._ledger.record(driver.cost())

        driver = desk.begin(
            prepared,
            pace=rate,
            reader_rate=rate or self._dispatch.reader_rate,
            shows_drafts=shows_drafts,
            may_use_device=self._on_failure != "raise",
            limits=self._limits,
            cost=self._dispatcher.costs(shared.device, shared.servers),
            on_over=settle,
        )
        beginning.has_begun = True  # what was got ready is the driver's from here on
        shared.active.add(driver)
        driver.start()
        return driver

    def _run(self, request: Request, dispatched: DispatchRecord, rate: float | None) -> RaceDriver:
        on_failure, limit = _failure_rule(self._on_failure, dispatched.facts), request.sampling.max_tokens
        ahead = None if rate is None else self._limits.tokens_ahead(rate)
        plan = RacePlan(
            attempts=dispatched.attempts,
            pace=rate,
            explore=dispatched.explore,
            reader_rate=rate or self._dispatch.reader_rate,
            on_failure=on_failure,
            max_tokens=limit,
            missing=tuple(self._shared.unavailable.items()),
            migration=None if on_failure == "raise" else self._plan_moves(dispatched, pace=rate, capacity=ahead, limit=limit),
        )

        def settle(driver: RaceDriver) -> None:
            self._shared.active.discard(driver)
            self._dispatcher.settle(dispatched, driver.machine)
            self._desk.learn(driver.machine)
            self._ledger.record(driver.cost())

        driver = RaceDriver(
            RaceMachine(plan),
            self._shared.endpoints,
            request,
            max_unread=self._limits.unread_tokens,
            max_ahead=ahead,
            record=dispatched,
            on_over=settle,
        )
        self._shared.active.add(driver)
        self._ledger.use_budget(dispatched.steering)
        driver.start()
        return driver

    def _plan_moves(
        self, dispatched: DispatchRecord, *, pace: float | None, capacity: int | None, limit: int | None
    ) -> MigrationPlan | None:
        capacity = self._limits.unread_tokens if capacity is None else capacity
        endpoints = self._shared.endpoints
        return self._dispatcher.plan_moves(dispatched, endpoints, self._migration, pace=pace, capacity=capacity, limit=limit)


_RACED = 0.3  # of the prompts' tokens, where no budget is given


def _failure_rule(setting: OnFailure | None, facts: RequestFacts) -> OnFailure:
    """Several choices can't be handed over; half a tool call or half a JSON text had better not be, unless it is asked for."""
    if facts.choices > 1:
        return "raise"
    if setting is not None:
        return setting
    return "raise" if facts.has_tools or facts.has_json_schema else "migrate"


def _check_options(migration: object, dispatch: object, limits: object, on_failure: object) -> None:
    if on_failure not in {None, "migrate", "restart", "raise"}:
        raise ConfigError(f'on_failure: expected "migrate", "restart", "raise" or None, got {on_failure!r}')
    settings = (("migration", migration, MigrationOptions), ("dispatch", dispatch, DispatchOptions), ("limits", limits, Limits))
    for name, value, kind in settings:
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name}: expected {kind.__name__} or None, got {type(value).__name__}")


def _read_profile(setting: bytes | Path) -> Profile:
    if isinstance(setting, bytes):
        return Profile.from_json(setting)
    if not isinstance(setting, Path):
        raise ConfigError(f"profile: expected the bytes of one or a Path, got {type(setting).__name__}")
    try:
        return Profile.from_json(setting.read_bytes(), where=str(setting))
    except OSError as error:
        raise ConfigError(f"profile: expected a file that can be read, got {error}") from error
