"""The SDK's entry point: one object with endpoints, budget and pace, which makes many answers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from msgspec.structs import replace

from streamco.client.answer import PendingAnswer
from streamco.client.arguments import (
    UNSET,
    ChatOptions,
    Messages,
    NotGiven,
    RequestTimeout,
    Unset,
    build_request,
    check_names,
    check_retries,
    parse_timeout,
)
from streamco.client.chat import Chat
from streamco.client.degradation import Degradation, Degradations, OnDegraded
from streamco.client.endpoint_set import DeviceSetting, EndpointSet, ServerSetting
from streamco.client.modes.base import Mode, ModeContext
from streamco.client.modes.names import ModeSetting, find_mode
from streamco.client.modes.race.mode import Race
from streamco.client.observers.base import AnswerObserver, AnswerObservers
from streamco.client.request_facts import count_prompt, takes_long
from streamco.client.settings import ClientSettings, check_has_effect, check_options
from streamco.client.stream import ChatStream, TokenStream
from streamco.config import Limits, Pace, ReaderPace, parse_pace
from streamco.core.race.machine import OnFailure
from streamco.core.totals import Totals, TotalsRecorder
from streamco.endpoints.base import Kind, Request, TokenPrices
from streamco.endpoints.engine_health import check_engine
from streamco.errors import ConfigError
from streamco.events import TextCount
from streamco.profiles import Profile

__all__ = ["Client"]


class Client:
    """A client that uses a device and a server for each answer; many answers may run at the same time.

    The client owns its endpoints: it starts them, and closes them when you close it. You may use it in one event loop after another and
    close it in any of them, but not in two loops at the same time, nor in a process that was forked while it was in use.

    Args:
        device: the small model on this machine: a GGUF file, an endpoint, or the URL of a local server that runs one model
            (``LocalServerEndpoint``); None if there is none.
        server: the remote model: an endpoint, an OpenAI model name, or a list of endpoints; None if there is none. The first endpoint of a
            list takes part in the race, and the others are its fallbacks, in this order.
        budget: share of the work that the expensive side may do, 0 to 1. 0 is a promise that the server is never used, whatever happens
            (or the device, with ``Race(constrained="device")``). In a race, it is the share of all prompt tokens that the constrained side
            may process (DiSCo 4.1, b), 0.3 by default. It limits the actual share from the first answer on, but allows 0.01 more
            and, among the first 500 answers, one mean prompt (docs/dispatch.md). If the device drafts, it is the share of drafted tokens
            that are verified, by default all of them, so that the answer is the verifier's own.
        mode: how answers are made. ``Race(...)``: the whole answer comes from whichever endpoint is first. ``Speculate(...)``: the device
            drafts and the server verifies, if that is possible (docs/speculation.md). ``Auto(Race(...), Speculate(...))``: the faster of
            the two, chosen for each answer. ``Split(...)``: the first layers and the head of a model run on the device and its middle
            layers on servers; in that case, give neither ``device`` nor ``server`` (docs/split.md). "race", "speculate" and "auto" stand
            for the modes with their defaults.
        pace: tokens per second at the reader, "reading" (4.8), "listening" (3.5), "smooth" (at the rate at which text arrives, but with
            bursts spread out, and no text delayed by more than 0.4 seconds), or None to send text as soon as it arrives.
        profile: what an earlier client learned (``Client.profile()``), or the file that it was written to; None to start without one.
        on_failure: what to do if an endpoint fails in the middle of an answer. "migrate": another endpoint continues after the last good
            token, if one can. "restart": the same, but if none can, an endpoint generates the whole answer again. The reader then gets only
            the part that is new. It is an error if the new answer doesn't begin with the text that the reader already has, so "restart" is
            meant for greedy decoding (docs/migration.md). "raise": the error is raised, with the text so far. None means "migrate", but
            "raise" for requests with tools or a JSON schema.
        limits: bounds on what may be buffered.
        on_degraded: what to do when a request can't be served as asked. "warn": it is answered anyway; ``report.notes`` says what is
            different, and each kind is logged once. But a server's 401, 403 or 404 makes the call fail, because it is a configuration
            error. "answer": the same, but another endpoint answers even then. "raise": the call fails. "ignore": like "answer", but nothing
            is logged (docs/degradation.md).
        timeout: seconds to wait for the connection, for the first token and for each further token; ``Timeouts`` or ``httpx.Timeout`` for
            limits by phase; None for no limit. If it isn't given, each endpoint uses its own limits.
        max_retries: retries at each server before the first token; None uses each endpoint's own number.
        observers: objects that follow all answers: ``AnswerMetrics``, ``AnswerSpans``, or your own (docs/observability.md).
        seed: seed for the policies' random draws, to make them repeatable; None takes one from the system.

    Raises:
        ConfigError: there is neither a device nor a server, two endpoints have the same name, or an option is out of range.
    """

    def __init__(
        self,
        device: DeviceSetting = None,
        server: ServerSetting = None,
        *,
        budget: float | None = None,
        mode: ModeSetting = "race",
        pace: Pace = None,
        profile: bytes | str | Path | None = None,
        on_failure: OnFailure | None = None,
        limits: Limits | None = None,
        on_degraded: OnDegraded = "warn",
        timeout: RequestTimeout | Unset = UNSET,
        max_retries: int | None = None,
        observers: Sequence[AnswerObserver] = (),
        seed: int | None = None,
    ) -> None:
        check_options(limits, on_failure)
        chosen = find_mode(mode, {})
        if chosen.endpoint is not None:
            given = {"device": device, "server": server, "budget": budget, "profile": profile, "on_failure": on_failure}
            check_has_effect(chosen, {**given, "max_retries": max_retries, "seed": seed})
            device = chosen.endpoint
        endpoints = EndpointSet(device, server)
        modes: dict[str, Mode] = {"race": Race(), **{each.name: each for each in (chosen, *chosen.members)}}
        prior = None if profile is None else _read_profile(profile)
        may_warn = on_degraded != "ignore"
        planner = chosen.planner(ModeContext(endpoints, modes["race"], budget, prior, seed, may_warn=may_warn))
        self._settings = ClientSettings(
            endpoints=endpoints,
            modes=modes,
            mode=chosen,
            planner=planner,
            planners={each.name: each for each in planner.parts},
            budget=budget,
            profile=prior,
            seed=seed,
            totals=TotalsRecorder(),
            pace=parse_pace(pace),
            on_failure=on_failure,
            limits=limits or Limits(),
            degradations=Degradations(on_degraded),
            observers=AnswerObservers(observers),
            timeouts=parse_timeout(timeout),
            max_retries=check_retries(max_retries),
        )
        self._owns_endpoints = True
        self.chat = Chat(self.open_chat)

    # Starting and closing

    async def start(self) -> None:
        """Load the model, open the connection pools, and ask the verifier for its properties; idempotent.

        An endpoint that can't start isn't used, and reports say why.

        Raises:
            AllEndpointsFailed: no endpoint could start.
            StreamClosed: the client was closed.
        """
        await self._settings.start()

    async def check_device(self, *, seconds: float = 5.0) -> str | None:
        """Return None if the device's engine responds or there is none; otherwise a sentence that says what is wrong.

        Args:
            seconds: how long to wait for the engine's thread.
        """
        engine = getattr(self._settings.endpoints.device, "engine", None)
        return None if engine is None else await check_engine(engine, seconds)

    async def aclose(self, *, keep: Collection[str] = ()) -> None:
        """Stop all answers and release every connection, model and task; idempotent. A client from ``with_options`` closes nothing.

        Args:
            keep: names of endpoints to leave open, because another client uses them, too.
        """
        if self._owns_endpoints:
            await self._settings.endpoints.aclose(keep)

    async def close(self) -> None:
        """Do the same as ``aclose``, which OpenAI's SDK calls ``close``."""
        await self.aclose()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()  # __aexit__ isn't called in this case, and an endpoint that did start must not stay open
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    @property
    def pace(self) -> ReaderPace:
        """How fast the reader gets text.

        This is a number of tokens per second, "smooth" to spread text evenly at the rate at which it arrives, or None to send it at once.
        """
        return self._settings.pace

    @property
    def on_degraded(self) -> OnDegraded:
        """What happens when a request can't be served as asked."""
        return self._settings.degradations.rule

    def with_options(
        self,
        *,
        budget: float | None = None,
        mode: ModeSetting | None = None,
        pace: Pace | Unset = UNSET,
        on_failure: OnFailure | Unset | None = UNSET,
        limits: Limits | None = None,
        on_degraded: OnDegraded | None = None,
        timeout: RequestTimeout | Unset = UNSET,
        max_retries: int | None = None,
    ) -> Client:
        """Return a client with different settings that uses the same endpoints.

        A mode replaces the client's mode completely; "race" and "speculate" stand for the mode of that name that the client has or had. The
        two clients share what they learn and spend, including ``totals``, unless you give ``budget`` or another setting for dispatch; then
        the new client starts with an empty account. A device that was loaded for a client without ``Speculate`` can't draft, so answers are
        raced, and their reports say so.

        Raises:
            ConfigError: an option is out of range, or only one of the two clients has a split model, which needs its own endpoints.
        """
        settings = self._settings
        check_options(limits, None if isinstance(on_failure, Unset) else on_failure)
        chosen = settings.mode if mode is None else find_mode(mode, settings.modes)
        if chosen.endpoint is not None and chosen == settings.mode:
            chosen = settings.mode
        if chosen is not settings.mode or budget is not None:
            settings = self._with_mode(chosen, budget)
        if chosen.endpoint is not None:
            failure = None if isinstance(on_failure, Unset) else on_failure
            check_has_effect(chosen, {"budget": budget, "on_failure": failure, "max_retries": max_retries})
        other = copy(self)
        other._owns_endpoints = False
        other._settings = replace(
            settings,
            pace=settings.pace if isinstance(pace, Unset) else parse_pace(pace),
            on_failure=settings.on_failure if isinstance(on_failure, Unset) else on_failure,
            limits=limits or settings.limits,
            degradations=settings.degradations.with_rule(on_degraded),
            timeouts=parse_timeout(timeout) or settings.timeouts,
            max_retries=settings.max_retries if max_retries is None else check_retries(max_retries),
        )
        other.chat = Chat(other.open_chat)
        return other

    def _with_mode(self, chosen: Mode, budget: float | None) -> ClientSettings:
        """Return the client's settings with another mode or another budget; None keeps the budget."""
        settings = self._settings
        if chosen.endpoint is not settings.mode.endpoint:
            expected = "Split where the client is made, and there alone, because no other mode has its endpoint"
            raise ConfigError(f"mode: expected {expected}, got {chosen.name} for a client of {settings.mode.name}")
        modes = {**settings.modes, **{each.name: each for each in (chosen, *chosen.members)}}
        context = ModeContext(
            settings.endpoints,
            modes["race"],
            settings.budget if budget is None else budget,
            settings.profile,
            settings.seed,
            may_warn=settings.degradations.rule != "ignore",
            is_new=budget is not None,
            known=settings.planners,
        )
        planner = chosen.planner(context)
        return replace(
            settings,
            modes=modes,
            mode=chosen,
            planner=planner,
            planners={**settings.planners, **{each.name: each for each in planner.parts}},
            budget=context.budget,
            totals=settings.totals if planner.account is settings.planner.account else TotalsRecorder(),
        )

    def profile(self) -> bytes:
        """Return what the client has learned, as JSON: the server's TTFT distribution, the device's speed, prompt and answer lengths."""
        return self._settings.planner.profile()

    def rate(self, request_id: str, good: bool) -> bool:
        """Say whether an answer was good, so that the quality gate learns when the device's answers are good (docs/howto/quality.md).

        Args:
            request_id: ``report.request_id`` or ``stream.rating_key`` of an answer that has ended and is one of the last 1,000.
            good: True if the answer was good enough.

        Returns:
            True if the gate learned something; False if the device didn't write all of the answer, or doesn't report how sure it is of its
            tokens.

        Raises:
            ConfigError: the client has no ``Race(quality=...)``, or ``good`` is neither True nor False.
            UsageError: there is no such answer, or it was rated before.
        """
        return self._settings.planner.rate(request_id, good=good)

    @property
    def totals(self) -> Totals:
        """Costs of all answers so far; clients from ``with_options`` share them if they share the account.

        An answer is added when all its work has ended: at the end of its stream, or shortly after if a loser is still being cancelled. The
        stream's ``aclose`` waits for that. Requests that no endpoint could serve aren't included.
        """
        return self._settings.totals.totals()

    @property
    def race(self) -> Race:
        """The client's settings for raced answers, whatever its mode; use ``msgspec.structs.replace`` to change one of them."""
        race = self._settings.modes["race"]
        if not isinstance(race, Race):
            raise AssertionError(f"expected a Race under its name, got {type(race).__name__}")
        return race

    @property
    def observers(self) -> AnswerObservers:
        """The observers of the answers; you can add more. Clients from ``with_options`` share them."""
        return self._settings.observers

    @property
    def endpoint_names(self) -> tuple[str, ...]:
        """Names of the endpoints, as in reports: the device first, then the servers in order of use."""
        return tuple(self._settings.endpoints.endpoints)

    @property
    def sides(self) -> frozenset[Kind]:
        """The sides that answers may come from, without a side that the policy or the budget excludes."""
        endpoints, kept_out = self._settings.endpoints, self._settings.planner.kept_out
        return frozenset(each.kind for each in endpoints.endpoints.values() if each.kind != kept_out)

    @property
    def server_prices(self) -> Mapping[str, TokenPrices]:
        """Prices of the servers that may be used, by name; {} if no server may be used.

        If drafts are verified and there is no server, there is an entry for the verifier, whose prices aren't known.
        """
        settings = self._settings
        if settings.planner.kept_out == "server":
            return {}
        if settings.planner.may_draft and not settings.endpoints.servers:
            return {"verifier": TokenPrices()}
        return {each.name: each.prices for each in settings.endpoints.servers}

    @property
    def may_speculate(self) -> bool:
        """True if the mode lets a verifier check drafts; then a server may compute more tokens than an answer contains."""
        return self._settings.planner.may_draft

    @property
    def unspeculated(self) -> str:
        """The reason why no request can use speculation at present, or "" if some can, or if the mode doesn't speculate.

        Known once the client has started.
        """
        return self._settings.planner.problem

    @property
    def degraded(self) -> tuple[Degradation, ...]:
        """The endpoints that failed or could not start, and have not answered since; empty if no problem is known."""
        return self._settings.degradations.present

    # Requests

    async def count_tokens(self, request: Request) -> TextCount | None:
        """Return the length of a request's prompt and what counted it ("estimate" if nothing did), without using the network.

        The result is None if no endpoint can count it, for example because it contains images.
        """
        await self.start()
        device, servers = self._settings.endpoints.available()
        if takes_long(request):
            return await asyncio.to_thread(count_prompt, request, device, servers)
        return count_prompt(request, device, servers)

    def stream(
        self,
        messages: Messages,
        *,
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ChatOptions],
    ) -> TokenStream:
        """Ask for an answer as tokens; nothing happens before the first read.

        Args:
            messages: a prompt, or a conversation in OpenAI's form. A prompt becomes a user message. But if every server uses the
                completions API, the prompt is text to continue, on the device too.
            model: the remote model's name; None uses the server endpoint's.
            pace: overrides the client's pace.
            options: the arguments of ``chat.completions.create``.

        Raises:
            ConfigError: an argument is wrong.
            TypeError: there is no argument of this name.
        """
        check_names(options, "stream()")
        request = build_request(messages, model=model, **options)
        if isinstance(messages, str) and self._settings.endpoints.takes_raw_text:
            request = replace(request, messages=None, prompt=messages)
        if request.extra.get("n", 1) != 1:
            raise ConfigError(f"n: expected 1 for a stream of tokens, got {request.extra['n']!r} (chat.completions.create gives them all)")
        return TokenStream(self._answer(request, pace, shows_drafts=True))

    def open_chat(
        self,
        request: Request,
        *,
        pace: Pace | Unset = UNSET,
        includes_usage: bool = False,
        is_streamed: bool = True,
        notes: Sequence[str] = (),
    ) -> ChatStream:
        """Ask for an answer as chunks, with a request that is already built; nothing happens before the first read.

        Args:
            request: the request.
            pace: overrides the client's pace.
            includes_usage: True if the last chunk should contain the usage.
            is_streamed: False if the chunks are joined into a whole answer, which has no pace.
            notes: the first notes of the report.
        """
        answer = self._answer(request, pace if is_streamed else None, is_streamed=is_streamed, notes=notes)
        return ChatStream(answer, includes_usage=includes_usage)

    def _answer(
        self, request: Request, pace: Pace | Unset, *, shows_drafts: bool = False, is_streamed: bool = True, notes: Sequence[str] = ()
    ) -> PendingAnswer:
        settings = self._settings
        if settings.mode.endpoint is not None:
            check_has_effect(settings.mode, {"max_retries": request.max_retries})
        rate = settings.pace if isinstance(pace, Unset) else parse_pace(pace)
        request = settings.with_limits(request)
        return PendingAnswer(request, settings, pace=rate, shows_drafts=shows_drafts, is_streamed=is_streamed, notes=notes)


def _read_profile(setting: bytes | str | Path) -> Profile:
    if isinstance(setting, bytes):
        return Profile.from_json(setting)
    if not isinstance(setting, str | Path):
        raise ConfigError(f"profile: expected the bytes of one or a path, got {type(setting).__name__}")
    try:
        return Profile.from_json(Path(setting).expanduser().read_bytes(), where=str(setting))
    except OSError as error:
        raise ConfigError(f"profile: expected a file that can be read, got {error}") from error
