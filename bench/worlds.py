"""Answers in virtual time: recorded services and the paper's phones behind the client's own dispatcher, learners and session machine."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any

import simpy
from msgspec.structs import replace

from bench.dispatch import PHONES
from bench.traces import data_folder, token_counter
from streamco.client.dispatcher import Dispatched, Dispatcher, DispatchOptions
from streamco.client.migration import MigrationOptions
from streamco.commands import ContinueStream
from streamco.config import READING, Limits
from streamco.core.lengths import AnswerLengths
from streamco.core.session import SessionMachine, SessionPlan
from streamco.endpoints.base import Capabilities, Request, TokenPrices
from streamco.events import Event
from streamco.policies.cost import device_costs
from streamco.policies.dispatch import Side
from streamco.profiles import DeviceSpeed, LengthDistribution, ModelShape, Prices, Profile, RemainingLength, TTFTDistribution
from streamco.sim.driver import Opening, SimulatedSession, SimulatedStream
from streamco.sim.models import SimulatedAnswer, SimulatedDevice, SimulatedServer, Work

__all__ = ["LIMIT", "PHONE_MODELS", "Ask", "Asks", "Phone", "Ran", "Service", "World", "chats", "price_of", "services", "with_table_8"]

LIMIT = 128  # tokens of an answer: Appendix E
ROUND_TRIP = 0.1  # seconds; from a home to a data centre and back, TLS records included
CANCEL_TAKES = 0.01  # seconds; bench/engine.py measures 1 to 7 ms
_JITTER = (0.85, 0.9, 0.95, 0.97, 1.0, 1.03, 1.06, 1.12, 1.3)  # assumed: phones throttle and share their processor
_OVERHEAD = 0.02  # seconds a reading takes beside its tokens; assumed
_CAPACITY = round(Limits().lead * READING)

SHAPES = {  # Appendix E.2
    "pixel7-bloom-1.1b": ModelShape(layers=24, width=1024, heads=16, ffn_width=4096, vocabulary=250_880),
    "pixel7-bloom-560m": ModelShape(layers=24, width=512, heads=8, ffn_width=2048, vocabulary=250_880),
    "xiaomi14-qwen-0.5b": ModelShape(layers=24, width=768, heads=12, ffn_width=2048, vocabulary=151_936),
}

PRICE_OF = {  # the row of the price list
    "Azure gpt-3.5-turbo-0613": "azure/gpt-35-turbo",
    "OpenAI gpt-3.5-turbo-0125": "gpt-3.5-turbo-0125",
    "OpenAI gpt-3.5-turbo-0613": "gpt-3.5-turbo",
    "OpenAI gpt-4-0125-preview": "azure/gpt-4-0125-preview",
    "OpenAI gpt-4-1106-preview": "gpt-4-1106-preview",
    "anyscale llama-2-13b-chat": "anyscale/meta-llama/Llama-2-13b-chat-hf",
    "anyscale llama-2-70b-chat": "anyscale/meta-llama/Llama-2-70b-chat-hf",
    "anyscale llama-2-7b-chat": "anyscale/meta-llama/Llama-2-7b-chat-hf",
    "bedrock llama-2-13b-chat": "meta.llama2-13b-chat-v1",
    "bedrock llama-2-70b-chat": "meta.llama2-70b-chat-v1",
    "fireworks llama-2-13b-chat": "fireworks_ai/accounts/fireworks/models/llama-v2-13b-chat",
    "fireworks llama-2-70b-chat": "fireworks_ai/accounts/fireworks/models/llama-v2-70b-chat",
    "fireworks llama-2-7b-chat": "fireworks_ai/accounts/fireworks/models/llama-v2-7b-chat",
    "groq llama-2-70b-chat": "together-ai-41.1b-80b",  # groq's own price is not on the list any more
    "perplexity llama-2-70b-chat": "perplexity/llama-2-70b-chat",
    "replicate llama-2-13b-chat": "replicate/meta/llama-2-13b-chat",
    "replicate llama-2-70b-chat": "replicate/meta/llama-2-70b-chat",
    "replicate llama-2-7b-chat": "replicate/meta/llama-2-7b-chat",
    "together llama-2-13b-chat": "together-ai-8.1b-21b",
    "together llama-2-70b-chat": "together-ai-41.1b-80b",
    "together llama-2-7b-chat": "together-ai-4.1b-8b",
}


TABLE_8 = (  # model, US dollars a million tokens of prompt and of answer, whose times it is given
    ("DeepSeek-V2.5", 0.14, 0.28, "OpenAI gpt-4-0125-preview"),
    ("GPT-4o-mini", 0.15, 0.60, "OpenAI gpt-3.5-turbo-0125"),
    ("LLaMa-3.1-70b, Hyperbolic", 0.40, 0.40, "together llama-2-70b-chat"),
    ("LLaMa-3.1-70b, Amazon", 0.99, 0.99, "bedrock llama-2-70b-chat"),
    ("Command", 1.25, 2.00, "bedrock llama-2-13b-chat"),
    ("GPT-4o", 2.50, 10.0, "OpenAI gpt-3.5-turbo-0613"),
    ("Claude-3.5-Sonnet", 3.00, 15.0, "bedrock llama-2-70b-chat"),
    ("o1-preview", 15.0, 60.0, "OpenAI gpt-4-1106-preview"),
)


@dataclass(frozen=True, slots=True)
class Service:
    """A recorded service: (seconds to the first token, tokens per second behind it) of each request, in order, and its list price."""

    name: str
    planned: tuple[tuple[float, float], ...]
    judged: tuple[tuple[float, float], ...]
    prices: Prices

    @property
    def ttft(self) -> TTFTDistribution:
        """Of the first half."""
        return TTFTDistribution.from_samples([ttft for ttft, _ in self.planned])


@dataclass(frozen=True, slots=True)
class Phone:
    """One of the paper's devices with its model."""

    name: str
    speed: DeviceSpeed
    shape: ModelShape


PHONE_MODELS = tuple(Phone(name, replace(speed, jitter=_JITTER, overhead=_OVERHEAD), SHAPES[name]) for name, speed in PHONES.items())


def services() -> list[Service]:
    """The services of ``bench.traces.ttft_traces``, with how fast each request was written."""
    found: dict[str, list[tuple[float, float]]] = {}
    with gzip.open(data_folder() / "ttft" / "llmperf_leaderboard.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            ttft, tokens = float(row["ttft_s"]), int(float(row["output_tokens"]))
            if ttft > 0:
                found.setdefault(f"{row['provider']} {row['model']}", []).append((ttft, _rate(tokens, float(row["e2e_s"]) - ttft)))
    with gzip.open(data_folder() / "ttft" / "latencylab_stream_gaps.jsonl.gz", "rt") as file:
        for record in map(json.loads, file):
            if record["success"]:
                ttft, tokens = float(record["ttft_s"]), record["output_chars"] // 4
                name = f"{record['host']} {record['model']}"
                found.setdefault(name, []).append((ttft, _rate(tokens, float(record["total_s"]) - ttft)))
    prices = _price_list()
    return [
        Service(name, tuple(rows[: len(rows) // 2]), tuple(rows[len(rows) // 2 :]), prices[PRICE_OF[name]])
        for name, rows in sorted(found.items())
        if len(rows) >= 30
    ]


def _rate(tokens: int, seconds: float) -> float:
    """Tokens per second behind the first; an answer that came in one piece counts as written in a millisecond a token."""
    return (tokens - 1) / max(seconds, tokens / 1000.0) if tokens > 1 else 1000.0


def price_of(model: str) -> Prices:
    """The list price of a model."""
    return _price_list()[model]


def with_table_8() -> list[Service]:
    """The models of the paper's Table 8 at its prices; its times were not published, so each has those of a service of about its speed."""
    recorded = {service.name: service for service in services()}
    return [
        dataclasses.replace(
            recorded[stand_in], name=f"{model} (times of {stand_in})", prices=Prices(prompt=prompt * 1e-6, completion=made * 1e-6)
        )
        for model, prompt, made, stand_in in TABLE_8
    ]


@cache
def _price_list() -> dict[str, Prices]:
    with gzip.open(data_folder() / "prices" / "litellm_chat_prices.csv.gz", "rt", newline="") as file:
        return {
            row["model"]: Prices(
                prompt=float(row["usd_per_input_token"]),
                completion=float(row["usd_per_output_token"]),
                cached_prompt=float(row["usd_per_cached_input_token"]) if row["usd_per_cached_input_token"] else None,
            )
            for row in csv.DictReader(file)
            if row["usd_per_input_token"] and row["usd_per_output_token"]
        }


@cache
def chats() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Tokens of prompt and answer of the Alpaca records, in two halves."""
    count = token_counter()
    pairs = []
    with gzip.open(data_folder() / "prompts" / "alpaca_5000.jsonl.gz", "rt") as file:
        for record in map(json.loads, file):
            extra = "" if record["input"] in {"", "noinput"} else "\n" + record["input"]
            pairs.append((count(record["instruction"] + extra), count(record["output"])))
    return pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]


@cache
def _answer_lengths() -> RemainingLength:
    """Of the first half's answers."""
    lengths = AnswerLengths(len(chats()[0]), prior_weight=0.0)
    for _, tokens in chats()[0]:
        lengths.observe(tokens)
    return lengths.estimate()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request with all its dice thrown, the same for every contender."""

    answer: SimulatedAnswer
    times: tuple[float, float]
    rate: float
    seed: str


class Asks:
    """Requests to a service, any number of them: prompts and recorded times meet at random."""

    def __init__(self, rows: Sequence[tuple[float, float]], pairs: Sequence[tuple[int, int]], seed: str) -> None:
        self._rows, self._pairs, self._seed = rows, pairs, seed

    def __getitem__(self, index: int) -> Ask:
        seed = f"{self._seed}/{index}"
        dice = Random(seed)
        prompt, tokens = dice.choice(self._pairs)
        (first, rate), (later, _) = dice.choice(self._rows), dice.choice(self._rows)
        return Ask(SimulatedAnswer(prompt_tokens=prompt, tokens=tokens, max_tokens=LIMIT), (first, later), rate, seed)


class _Endpoint:
    """What a dispatcher wants to know of an endpoint."""

    def __init__(self, name: str, kind: str, capabilities: Capabilities, prices: TokenPrices, engine: Any = None) -> None:
        self.name, self.kind, self.capabilities, self.prices, self.engine = name, kind, capabilities, prices, engine

    def count_tokens(self, request: Request) -> int:
        return len(request.prompt_ids or ())


class _Device(SimulatedDevice):
    later = 1

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        self.burst = self.later if isinstance(command, ContinueStream) else self.burst
        return super().open(env, emit, command)


class _Server(SimulatedServer):
    later = 1

    def open(self, env: simpy.Environment, emit: Callable[[Event], None], command: Opening) -> SimulatedStream:
        self.burst = self.later if isinstance(command, ContinueStream) else self.burst
        return super().open(env, emit, command)


@dataclass(frozen=True, slots=True)
class Ran:
    """One answer that is over."""

    machine: SessionMachine
    session: SimulatedSession
    dispatched: Dispatched
    device: Work
    server: Work
    cost: float  # US dollars, energy at the exchange rate included

    @property
    def ttft(self) -> float:
        """Seconds."""
        assert self.machine.meter.first is not None
        return self.machine.meter.first


class World:
    """One client with one service and one phone.

    Args:
        exchange_rate: lambda, US dollars per million GFLOPs.
        migration: how answers move; None: they stay where they are.
        adapt: changes the dispatcher before the first request.
        pace: tokens per second at the reader; None: whatever comes goes out at once, and moves are planned for a virtual reader.
        burst: tokens an event where nothing is decided by them: behind a change, and in answers that stay.
    """

    def __init__(
        self,
        service: Service,
        phone: Phone,
        *,
        constrained: Side,
        budget: float,
        exchange_rate: float,
        policy: str = "auto",
        migration: MigrationOptions | None = None,
        adapt: Callable[[Dispatcher], None] | None = None,
        pace: float | None = READING,
        burst: int = 1,
    ) -> None:
        self.service, self.phone, self.pace, self.burst = service, phone, pace, burst
        self.migration = migration
        self.dispatcher = Dispatcher(
            DispatchOptions(constrained=constrained, exchange_rate=exchange_rate),
            budget=budget,
            policy=policy,
            profile=Profile(
                server_ttft=service.ttft,
                device=phone.speed,
                lengths=LengthDistribution.from_samples([prompt for prompt, _ in chats()[0]]),
                answers=_answer_lengths(),
                prices=service.prices,
                shape=phone.shape,
            ),
            seed=7,
        )
        if adapt is not None:
            adapt(self.dispatcher)
        self._costs = device_costs(phone.shape, exchange_rate=exchange_rate)
        shape = phone.shape
        info = SimpleNamespace(
            layers=shape.layers, width=shape.width, ffn_width=shape.ffn_width, vocabulary_size=shape.vocabulary, heads=shape.heads
        )
        self._device: Any = _Endpoint(
            "device",
            "device",
            Capabilities(continuation="token_ids", pre_copy="append"),
            TokenPrices(),
            SimpleNamespace(info=info),
        )
        prices = service.prices
        self._server: Any = _Endpoint(
            "server",
            "server",
            Capabilities(continuation="continue_final_message"),
            TokenPrices(prompt=prices.prompt, completion=prices.completion, cached_prompt=prices.cached_prompt),
        )
        self.endpoints: dict[str, Any] = {"device": self._device, "server": self._server}

    def run(self, ask: Ask) -> Ran:
        """One answer, to its end and that of all work for it; the client learns from it."""
        answer = ask.answer
        request = Request(prompt_ids=range(answer.prompt_tokens))
        dispatched = self.dispatcher.decide(request, self._device, [self._server], {})
        plan = SessionPlan(
            starts=dispatched.starts,
            pace=self.pace,
            explore=dispatched.explore,
            reader_rate=READING,
            on_failure="migrate",
            max_tokens=answer.max_tokens,
            migration=None
            if self.migration is None
            else self.dispatcher.plan_moves(
                dispatched, self.endpoints, self.migration, pace=self.pace, capacity=_CAPACITY, limit=answer.max_tokens
            ),
        )
        dice = Random(ask.seed)
        first = self.burst if plan.migration is None else 1
        device = _Device("device", self.phone.speed, dice, answer, burst=first, cancel_takes=CANCEL_TAKES)
        server = _Server("server", ask.times, ask.rate, dice, answer, rtt=ROUND_TRIP, burst=first)
        device.later = server.later = self.burst
        env = simpy.Environment()
        machine = SessionMachine(plan)
        session = SimulatedSession(env, machine, {"device": device, "server": server})
        session.start()
        env.run()
        if not machine.is_over or machine.error is not None:
            raise AssertionError(f"{ask.seed}: expected a whole answer, got {machine.error}")
        self.dispatcher.settle(dispatched, machine)
        return Ran(machine, session, dispatched, device.work, server.work, self._cost(device.work, server.work))

    def _cost(self, device: Work, server: Work) -> float:
        prices, costs = self.service.prices, self._costs
        cached = prices.prompt if prices.cached_prompt is None else prices.cached_prompt
        money = (server.read - server.cached) * prices.prompt + server.cached * cached + server.made * prices.completion
        return money + device.read * costs.prompt + device.made * costs.completion
