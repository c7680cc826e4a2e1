"""Answers in virtual time: recorded services and the paper's phones with the client's own dispatcher, learners and race machine."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from bench.traces import data_folder, token_counter
from streamco.client.modes.race.dispatcher import Dispatcher, DispatchOptions
from streamco.client.modes.race.migration import MigrationOptions
from streamco.config import READING
from streamco.core.race.learner import PolicyName
from streamco.endpoints.known_servers.providers import Provider, find_provider
from streamco.policies.dispatch import Side
from streamco.profiles import DeviceSpeed, ModelShape, Prices, Profile, TTFTDistribution
from streamco.sim.race.client import RaceOutcome, RequestDraw, SimulatedClient, draw_request
from streamco.sim.race.lengths import RecordedLengths
from streamco.sim.race.services import PHONES, RecordedService, provider_of, read_services
from streamco.sim.race.services import price_of as packaged_price

__all__ = [
    "LIMIT",
    "PHONE_MODELS",
    "RequestDraw",
    "RequestDraws",
    "Phone",
    "RaceOutcome",
    "Service",
    "World",
    "recorded_lengths",
    "price_of",
    "services",
    "with_table_8",
]

LIMIT = 128  # tokens of an answer: Appendix E
_LEAST = 30  # requests of a service that is taken

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


TABLE_8 = (  # model, its price among the packaged ones, whose times it is given
    ("DeepSeek-V2.5", "deepseek-v2.5", "OpenAI gpt-4-0125-preview"),
    ("GPT-4o-mini", "gpt-4o-mini", "OpenAI gpt-3.5-turbo-0125"),
    ("LLaMa-3.1-70b, Hyperbolic", "llama-3.1-70b-hyperbolic", "together llama-2-70b-chat"),
    ("LLaMa-3.1-70b, Amazon", "llama-3.1-70b-amazon", "bedrock llama-2-70b-chat"),
    ("Command", "command", "bedrock llama-2-13b-chat"),
    ("GPT-4o", "gpt-4o", "OpenAI gpt-3.5-turbo-0613"),
    ("Claude-3.5-Sonnet", "claude-3.5-sonnet", "bedrock llama-2-70b-chat"),
    ("o1-preview", "o1-preview", "OpenAI gpt-4-1106-preview"),
)


@dataclass(frozen=True, slots=True)
class Service:
    """A recorded service: (seconds to the first token, tokens per second behind it) of each request, in order, and its list price."""

    name: str
    planned: tuple[tuple[float, float], ...]
    judged: tuple[tuple[float, float], ...]
    prices: Prices
    can_continue: bool = False  # it can go on with an answer whatever its provider can

    @property
    def provider(self) -> Provider:
        """Whose server it is: vLLM's goes on with answers."""
        return find_provider("vllm") if self.can_continue else provider_of(self.name)

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


PHONE_MODELS = tuple(Phone(name, phone.speed, phone.shape) for name, phone in PHONES.items() if phone.shape is not None)


def services() -> list[Service]:
    """The services of ``bench.traces.ttft_traces``, with how fast each request was written."""
    folder, prices = data_folder() / "ttft", _price_list()
    found = read_services(folder / "llmperf_leaderboard.csv.gz", ("provider", "model"))
    found |= read_services(folder / "latencylab_stream_gaps.jsonl.gz", ("host", "model"))
    return [
        Service(name, tuple(rows[: len(rows) // 2]), tuple(rows[len(rows) // 2 :]), prices[PRICE_OF[name]])
        for name, rows in sorted(found.items())
        if len(rows) >= _LEAST
    ]


def price_of(model: str) -> Prices:
    """The list price of a model."""
    return _price_list()[model]


def with_table_8() -> list[Service]:
    """The models of the paper's Table 8 at its prices; its times were not published, so each has those of a service of about its speed."""
    recorded = {service.name: service for service in services()}
    return [
        dataclasses.replace(recorded[substitute], name=f"{model} (times of {substitute})", prices=packaged_price(price))
        for model, price, substitute in TABLE_8
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
def recorded_lengths() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Tokens of prompt and answer of the Alpaca records, in two halves."""
    count = token_counter()
    pairs = []
    with gzip.open(data_folder() / "prompts" / "alpaca_5000.jsonl.gz", "rt") as file:
        for record in map(json.loads, file):
            extra = "" if record["input"] in {"", "noinput"} else "\n" + record["input"]
            pairs.append((count(record["instruction"] + extra), count(record["output"])))
    return pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]


@cache
def _known() -> RecordedLengths:
    return RecordedLengths(*recorded_lengths())


class RequestDraws:
    """Requests to a service, any number of them: prompts and recorded times meet at random."""

    def __init__(self, rows: Sequence[tuple[float, float]], pairs: Sequence[tuple[int, int]], seed: str) -> None:
        self._service, self._lengths, self._seed = RecordedService(rows, rows), RecordedLengths(pairs, pairs), seed

    def __getitem__(self, index: int) -> RequestDraw:
        return draw_request(f"{self._seed}/{index}", self._lengths, self._service, LIMIT)


class World(SimulatedClient):
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
        policy: PolicyName = "auto",
        migration: MigrationOptions | None = None,
        adapt: Callable[[Dispatcher], None] | None = None,
        pace: float | None = READING,
        burst: int = 1,
    ) -> None:
        dispatcher = Dispatcher(
            DispatchOptions(policy=policy, constrained=constrained, exchange_rate=exchange_rate),
            budget=budget,
            profile=Profile(
                server_ttft=service.ttft,
                device=phone.speed,
                lengths=_known().prompts,
                answers=_known().answers,
                prices=service.prices,
                shape=phone.shape,
            ),
            seed=7,
        )
        if adapt is not None:
            adapt(dispatcher)
        super().__init__(
            dispatcher,
            phone.speed,
            prices=service.prices,
            shape=phone.shape,
            exchange_rate=exchange_rate,
            provider=service.provider,
            migration=migration,
            pace=pace,
            burst=burst,
        )
