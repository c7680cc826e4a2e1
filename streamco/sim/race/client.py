"""A simulated client with one service and one device, which makes requests one after another, or each one when it arrives (DiSCo 4).

Only the two endpoints are simulated (``sim.race.endpoints``). The dispatcher, the learners, the states of the endpoints and the race
machine are a live client's: they decide which endpoint starts when, which one wins and which one rests, when the answer migrates, what is
borrowed from the budget and what is learned. Each request has its own random source, so that all contenders meet the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import simpy

from streamco.client.modes.race.dispatch_record import DispatchRecord
from streamco.client.modes.race.dispatcher import Dispatcher
from streamco.client.modes.race.endpoint_states import EndpointStates
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.ways import AskedWay
from streamco.client.request_facts import describe_request
from streamco.config import READING, Limits, ReaderPace, fixed_rate
from streamco.core.race.commands import ContinueStream
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Capabilities, Request, TokenPrices
from streamco.endpoints.known_servers.providers import GENERIC, Provider
from streamco.events import Event
from streamco.policies.cost import DeviceCosts, device_costs
from streamco.policies.ways import Reading, Way, Weights
from streamco.profiles import DeviceSpeed, ModelShape, Prices
from streamco.sim.driver import call_at
from streamco.sim.race.endpoints import DevicePlaces, RequestLimit, SimulatedAnswer, SimulatedDevice, SimulatedServer, UsageCounter
from streamco.sim.race.lengths import RequestLengths
from streamco.sim.race.services import Reply, ServiceModel
from streamco.sim.race.session import Opening, SimulatedRace, SimulatedStream

__all__ = ["RequestDraw", "SimulatedClient", "RaceOutcome", "draw_request"]

ROUND_TRIP = 0.1  # seconds from a home to a data centre and back, including TLS records
CANCEL_TAKES = 0.01  # seconds; bench/timed/engine.py measures 1 to 7 ms
_CAPACITY = round(Limits().lookahead * READING)


class RequestDraw(NamedTuple):
    """One request whose random values have been drawn, so that it is the same for every contender.

    Args:
        answer: lengths of the prompt and the answer.
        reply: how the service behaves.
        seed: seed for what is drawn later, which is the device's jitter.
    """

    answer: SimulatedAnswer
    reply: Reply
    seed: str


def draw_request(seed: str, lengths: RequestLengths, service: ServiceModel, max_tokens: int | None) -> RequestDraw:
    """Draw one request: the lengths of its prompt and answer, and the service's reply. Equal seeds give equal requests."""
    rng = Random(seed)
    prompt, tokens = lengths.draw(rng)
    reply = service.draw(rng)
    return RequestDraw(SimulatedAnswer(prompt_tokens=prompt, tokens=tokens, max_tokens=max_tokens), reply, seed)


class _Endpoint:
    """The part of an endpoint that a dispatcher reads."""

    def __init__(self, name: str, capabilities: Capabilities, prices: TokenPrices, engine: object = None) -> None:
        self.name = self.kind = name
        self.capabilities, self.prices, self.engine = capabilities, prices, engine

    def count_tokens(self, request: Request) -> int:
        return len(request.prompt_ids or ())


class _Device(SimulatedDevice):
    later_burst = 1

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        self.burst = self.later_burst if isinstance(command, ContinueStream) else self.burst
        return super().open(env, emit, command)


class _Server(SimulatedServer):
    later_burst = 1

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        self.burst = self.later_burst if isinstance(command, ContinueStream) else self.burst
        return super().open(env, emit, command)


class RaceOutcome(NamedTuple):
    """The outcome of one race, after its answer has ended.

    Args:
        machine: the race machine.
        session: the driver, which has the deliveries.
        dispatched: the dispatch decision.
        device, server: tokens that each endpoint has read and made.
        cost: cost in US dollars, including energy at the exchange rate, or None if the prices or the model's shape aren't known.
        began: when the request arrived, in seconds of the client's virtual time.
        draw: the request.
    """

    machine: RaceMachine
    session: SimulatedRace
    dispatched: DispatchRecord
    device: UsageCounter
    server: UsageCounter
    cost: float | None
    began: float
    draw: RequestDraw

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first token."""
        assert self.machine.meter.first is not None, "the answer is whole"
        return self.machine.meter.first - self.machine.began

    @property
    def seconds(self) -> float:
        """Seconds from the request to the last token."""
        assert self.machine.meter.last is not None, "the answer is whole"
        return self.machine.meter.last - self.machine.began


class SimulatedClient:
    """A client that makes requests one after another, or each one when it arrives.

    Args:
        dispatcher: the live client's dispatcher, with what it has learned so far.
        speed: actual speed of the device.
        prices: prices of the service, or None if they aren't known.
        shape: shape of the device's model, or None if it isn't known.
        exchange_rate: lambda, US dollars per million GFLOPs.
        provider: the service's provider, which determines its capabilities; by default the service can't continue an answer.
        migration: how answers migrate, or None if they stay at their endpoint.
        pace: tokens per second at the reader. With "smooth" or None, migrations are planned for a virtual reader.
        burst: tokens per event when no decision depends on them: after a migration, and in answers that can't migrate.
        server_burst: tokens per event of the service in all other cases.
        reader_rate: tokens per second of the virtual reader.
        places: number of answers that the device can make at a time.
        requests_per_min: requests that the service accepts per minute, or None for no limit.
        rests: True if endpoints that have failed rest, as in a live client.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        speed: DeviceSpeed,
        *,
        prices: Prices | None,
        shape: ModelShape | None,
        exchange_rate: float,
        provider: Provider = GENERIC,
        migration: MigrationOptions | None = None,
        pace: ReaderPace = READING,
        burst: int = 1,
        server_burst: int = 1,
        reader_rate: float = READING,
        places: int = 4,
        requests_per_min: int | None = None,
        rests: bool = True,
    ) -> None:
        self.dispatcher, self.migration = dispatcher, migration
        self._speed = speed
        self._pace, self._reader_rate = pace, reader_rate
        self._burst, self._server_burst = burst, server_burst
        self._prices = prices
        self._costs: DeviceCosts | None = None if shape is None else device_costs(shape, exchange_rate=exchange_rate)
        self._device: Any = _Endpoint(
            "device", Capabilities(continuation="token_ids", pre_copy="append"), TokenPrices(), _engine(shape, places)
        )
        token_prices = (
            TokenPrices()
            if prices is None
            else TokenPrices(prompt=prices.prompt, completion=prices.completion, cached_prompt=prices.cached_prompt)
        )
        can = Capabilities(
            continuation=provider.capabilities.continuation,
            pre_copy="none" if provider.capabilities.pre_copy == "none" else "warm",  # a simulated server bills what it reads in advance
        )
        self._server: Any = _Endpoint("server", can, token_prices)
        self.endpoints: Mapping[str, Any] = {"device": self._device, "server": self._server}
        self._places = places
        self._limit = None if requests_per_min is None else RequestLimit(requests_per_min, lambda: self._now)
        self._rests = rests
        self._env = simpy.Environment()
        self._before = 0.0  # seconds of earlier environments
        self._states = EndpointStates(self.endpoints["device"], clock=lambda: self._now)

    @property
    def _now(self) -> float:
        return self._before + self._env.now

    def forecast(self, draw: RequestDraw, weights: Weights, options: MigrationOptions, *, is_streamed: bool) -> list[tuple[Way, AskedWay]]:
        """Return the ways in which a race can make an answer to a request, as a live client predicts them.

        Args:
            draw: the request, whose prompt length and limit are known.
            weights: how the caller weighs time, money and quality.
            options: may include the quality of endpoints.
            is_streamed: True if the reader gets the answer as it comes, False if all at once.
        """
        request = _request(draw)
        facts = describe_request(request, self._device, [self._server])
        tokens = self.dispatcher.expected_tokens(draw.answer.max_tokens)
        return self.dispatcher.forecast(
            request,
            self._device,
            [self._server],
            {},
            facts=facts,
            reading=Reading(tokens, self._reader_rate, is_streamed),
            weights=weights,
            options=options,
            resting=self._states.resting(self.endpoints) if self._rests else {},
            states=self._states,
        )

    def run(self, draw: RequestDraw, way: AskedWay | None = None) -> RaceOutcome:
        """Run one request until all work for it has ended, and let the client learn from it.

        Args:
            draw: the request.
            way: the way that was chosen by its forecast, or None to let the policy decide.
        """
        (outcome,) = self.run_arriving([(0.0, draw)], way)
        return outcome

    def run_arriving(self, requests: Iterable[tuple[float, RequestDraw]], way: AskedWay | None = None) -> list[RaceOutcome]:
        """Run requests until all work for them has ended. Each begins when it arrives, and the client learns from each when it ends.

        Args:
            requests: the requests in order of arrival, each with the number of seconds from now until it arrives.
            way: see ``run``; applies to all of them.
        """
        self._before, self._env = self._now, simpy.Environment()  # new, so that an answer's times don't depend on when it comes
        places = DevicePlaces(self._env, self._places)
        outcomes: list[RaceOutcome] = []
        coming = iter(requests)

        def wait_for_next() -> None:
            if (request := next(coming, None)) is not None:
                at, draw = request
                call_at(self._env, at - self._env.now, lambda: begin(draw))

        def begin(draw: RequestDraw) -> None:
            self._begin(draw, places, outcomes.append, way)
            wait_for_next()

        wait_for_next()
        self._env.run()
        return outcomes

    def _begin(self, draw: RequestDraw, places: DevicePlaces, done: Callable[[RaceOutcome], None], way: AskedWay | None = None) -> None:
        """Start a request, and call ``done`` with its outcome when all work for it has ended."""
        answer, began = draw.answer, self._now
        resting = self._states.resting(self.endpoints) if self._rests else {}
        dispatched = self.dispatcher.decide(_request(draw), self._device, [self._server], {}, resting=resting, states=self._states, way=way)
        plan = self._plan(dispatched, answer.max_tokens)
        device, server = self._open_endpoints(draw, places, can_move=plan.migration is not None)
        machine, watch = RaceMachine(plan), self._states.watch(dispatched.prompt_tokens)

        def end() -> None:
            watch.close()
            if machine.error is not None:
                raise AssertionError(f"{draw.seed}: expected a whole answer, got {machine.error}")
            self.dispatcher.record(dispatched, machine, was_alone=watch.was_alone)
            cost = self._cost(device.work, server.work)
            done(RaceOutcome(machine, session, dispatched, device.work, server.work, cost, began, draw))

        session = SimulatedRace(self._env, machine, {"device": device, "server": server}, watch=watch, on_over=end)
        session.start()

    def _plan(self, dispatched: DispatchRecord, limit: int | None) -> RacePlan:
        return RacePlan(
            attempts=dispatched.attempts,
            pace=self._pace,
            explore=dispatched.explore,
            reader_rate=self._reader_rate,
            on_failure="migrate",
            max_tokens=limit,
            gate=dispatched.gate,
            migration=None
            if self.migration is None
            else self.dispatcher.plan_moves(
                dispatched, self.endpoints, self.migration, pace=fixed_rate(self._pace), capacity=_CAPACITY, limit=limit
            ),
        )

    def _open_endpoints(self, draw: RequestDraw, places: DevicePlaces, *, can_move: bool) -> tuple[_Device, _Server]:
        """Return the endpoints for one request, which share their capacity with other requests."""
        rng, reply = Random(draw.seed), draw.reply
        first = 1 if can_move else self._burst
        device = _Device("device", self._speed, rng, draw.answer, burst=first, cancel_takes=CANCEL_TAKES, places=places)
        server = _Server(
            "server",
            (reply.first, reply.later),
            reply.rate,
            rng,
            draw.answer,
            pre_copy=self._server.capabilities.pre_copy,
            rtt=ROUND_TRIP,
            burst=max(first, self._server_burst),
            limit=self._limit,
        )
        device.later_burst, server.later_burst = self._burst, max(self._burst, self._server_burst)
        return device, server

    def _cost(self, device: UsageCounter, server: UsageCounter) -> float | None:
        prices, costs = self._prices, self._costs
        if prices is None or costs is None:
            return None
        cached = prices.prompt if prices.cached_prompt is None else prices.cached_prompt
        money = (server.read - server.cached) * prices.prompt + server.cached * cached + server.made * prices.completion
        return money + device.read * costs.prompt + device.made * costs.completion


def _request(draw: RequestDraw) -> Request:
    return Request(prompt_ids=range(draw.answer.prompt_tokens))


def _engine(shape: ModelShape | None, places: int) -> object:
    """Return an engine with the attributes that the dispatcher reads: its places, and the shape of the device's model if known."""
    info = shape and SimpleNamespace(
        layers=shape.layers, width=shape.width, ffn_width=shape.ffn_width, vocabulary_size=shape.vocabulary, heads=shape.heads
    )
    return SimpleNamespace(info=info, options=SimpleNamespace(max_sequences=places))
