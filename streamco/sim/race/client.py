"""Simulated client with one service and one device, which answers request after request (DiSCo 4).

Only the two endpoints are simulated (``sim.race.endpoints``). The dispatcher, the learners and the race machine are those of a live
client: they decide which endpoint starts when, which one wins, when the answer migrates and what is learned. Each request has a random
source of its own, so that all contenders meet the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import simpy

from streamco.client.modes.race.dispatch_record import DispatchRecord
from streamco.client.modes.race.dispatcher import Dispatcher
from streamco.client.modes.race.migration import MigrationOptions
from streamco.config import READING, Limits, ReaderPace, fixed_rate
from streamco.core.race.commands import ContinueStream
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Capabilities, Request, TokenPrices
from streamco.endpoints.known_servers.providers import GENERIC, Provider
from streamco.events import Event
from streamco.policies.cost import DeviceCosts, device_costs
from streamco.profiles import DeviceSpeed, ModelShape, Prices
from streamco.sim.race.endpoints import SimulatedAnswer, SimulatedDevice, SimulatedServer, UsageCounter
from streamco.sim.race.lengths import RequestLengths
from streamco.sim.race.services import Reply, ServiceModel
from streamco.sim.race.session import Opening, SimulatedRace, SimulatedStream

__all__ = ["RequestDraw", "SimulatedClient", "RaceOutcome", "draw_request"]

ROUND_TRIP = 0.1  # seconds from a home to a data centre and back, TLS records included
CANCEL_TAKES = 0.01  # seconds; bench/timed/engine.py measures 1 to 7 ms
_CAPACITY = round(Limits().lookahead * READING)


class RequestDraw(NamedTuple):
    """One request with everything random in it drawn: the same for every contender.

    Args:
        answer: lengths of the prompt and the answer.
        reply: how the service behaves.
        seed: seed of what is still to be drawn, the device's jitter.
    """

    answer: SimulatedAnswer
    reply: Reply
    seed: str


def draw_request(seed: str, lengths: RequestLengths, service: ServiceModel, max_tokens: int | None) -> RequestDraw:
    """Draw one request: the lengths of its prompt and answer, and the reply of the service. Equal seeds give equal requests."""
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
    """Outcome of one race, after its answer has ended.

    Args:
        machine: the race machine.
        session: the driver, which has the deliveries.
        dispatched: the dispatch decision.
        device, server: tokens that each endpoint has read and made.
        cost: US dollars, energy at the exchange rate included; None: prices or shape are not known.
    """

    machine: RaceMachine
    session: SimulatedRace
    dispatched: DispatchRecord
    device: UsageCounter
    server: UsageCounter
    cost: float | None

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first token."""
        assert self.machine.meter.first is not None, "the answer is whole"
        return self.machine.meter.first


class SimulatedClient:
    """A client that makes one request after the other.

    Args:
        dispatcher: the live client's dispatcher, with what it already knows.
        speed: actual speed of the device.
        prices: prices of the service; None: not known.
        shape: shape of the device's model; None: not known.
        exchange_rate: lambda, US dollars per million GFLOPs.
        provider: whose server the service is, which says what it can do; by default it can't go on with an answer.
        migration: how answers migrate; None: they stay at their endpoint.
        pace: tokens per second at the reader; "smooth" or None: migrations are planned for a virtual reader.
        burst: tokens an event when no decision depends on them: after a migration, and in answers that can't migrate.
        server_burst: tokens of the service that come together, in all other cases.
        reader_rate: tokens per second of the virtual reader.
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
    ) -> None:
        self.dispatcher, self.migration = dispatcher, migration
        self._speed = speed
        self._pace, self._reader_rate = pace, reader_rate
        self._burst, self._server_burst = burst, server_burst
        self._prices = prices
        self._costs: DeviceCosts | None = None if shape is None else device_costs(shape, exchange_rate=exchange_rate)
        self._device: Any = _Endpoint("device", Capabilities(continuation="token_ids", pre_copy="append"), TokenPrices(), _engine(shape))
        token_prices = (
            TokenPrices()
            if prices is None
            else TokenPrices(prompt=prices.prompt, completion=prices.completion, cached_prompt=prices.cached_prompt)
        )
        can = Capabilities(
            continuation=provider.capabilities.continuation,
            pre_copy="none" if provider.capabilities.pre_copy == "none" else "warm",  # a simulated server bills what it reads ahead
        )
        self._server: Any = _Endpoint("server", can, token_prices)
        self.endpoints: Mapping[str, Any] = {"device": self._device, "server": self._server}

    def run(self, draw: RequestDraw) -> RaceOutcome:
        """Run one request until all work for it has ended, and let the client learn from it."""
        answer = draw.answer
        request = Request(prompt_ids=range(answer.prompt_tokens))
        dispatched = self.dispatcher.decide(request, self._device, [self._server], {})
        plan = RacePlan(
            attempts=dispatched.attempts,
            pace=self._pace,
            explore=dispatched.explore,
            reader_rate=self._reader_rate,
            on_failure="migrate",
            max_tokens=answer.max_tokens,
            migration=None
            if self.migration is None
            else self.dispatcher.plan_moves(
                dispatched, self.endpoints, self.migration, pace=fixed_rate(self._pace), capacity=_CAPACITY, limit=answer.max_tokens
            ),
        )
        machine, session, device, server = self._play(draw, plan)
        if not machine.is_over or machine.error is not None:
            raise AssertionError(f"{draw.seed}: expected a whole answer, got {machine.error}")
        self.dispatcher.record(dispatched, machine)
        return RaceOutcome(machine, session, dispatched, device.work, server.work, self._cost(device.work, server.work))

    def _play(self, draw: RequestDraw, plan: RacePlan) -> tuple[RaceMachine, SimulatedRace, _Device, _Server]:
        rng, reply = Random(draw.seed), draw.reply
        first = self._burst if plan.migration is None else 1
        device = _Device("device", self._speed, rng, draw.answer, burst=first, cancel_takes=CANCEL_TAKES)
        server = _Server(
            "server",
            (reply.first, reply.later),
            reply.rate,
            rng,
            draw.answer,
            pre_copy=self._server.capabilities.pre_copy,
            rtt=ROUND_TRIP,
            burst=max(first, self._server_burst),
        )
        device.later_burst, server.later_burst = self._burst, max(self._burst, self._server_burst)
        env = simpy.Environment()
        machine = RaceMachine(plan)
        session = SimulatedRace(env, machine, {"device": device, "server": server})
        session.start()
        env.run()
        return machine, session, device, server

    def _cost(self, device: UsageCounter, server: UsageCounter) -> float | None:
        prices, costs = self._prices, self._costs
        if prices is None or costs is None:
            return None
        cached = prices.prompt if prices.cached_prompt is None else prices.cached_prompt
        money = (server.read - server.cached) * prices.prompt + server.cached * cached + server.made * prices.completion
        return money + device.read * costs.prompt + device.made * costs.completion


def _engine(shape: ModelShape | None) -> object:
    """Return an engine as the dispatcher reads it: it has the shape of the device's model. None: the shape is not known."""
    if shape is None:
        return None
    info = SimpleNamespace(
        layers=shape.layers, width=shape.width, ffn_width=shape.ffn_width, vocabulary_size=shape.vocabulary, heads=shape.heads
    )
    return SimpleNamespace(info=info)
