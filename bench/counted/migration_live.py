"""Hand-overs between our own endpoints on a real model in the exact mode, at random tokens and bytes (see ``bench.counted.migration``).

An answer goes through two to four endpoints in random order: two engines, each as a device and as ``streamco serve``. Each except the last
breaks: after a random number of tokens, or its stream is cut anywhere, inside events and characters too, in pieces of any size.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from streamco.client.modes.race.driver import RaceDriver
from streamco.config import RetryPolicy, SamplingOptions
from streamco.core.pieces import weigh_chunk
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.endpoints.base import Capabilities, Endpoint, EndpointStream, Kind, Request, TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.errors import EndpointConnectError, StreamcoError
from streamco.events import StreamEnded, TokensReceived
from streamco.openai_types import ChatCompletionChunk
from streamco.server.app import ServeOptions, serving
from streamco.testing import FaultProxy, Faults
from streamco.testing.faults import draw_faults

__all__ = ["PROMPTS", "Answer", "Breaking", "LiveTally", "answer", "hand_over_live", "load", "run_session"]

SEED = 43
AT_ONCE = 4  # answers
CUTS = (
    "cut",
    "cut between events",
    "cut in a character",
    "cut in a chunk's size",
    "reset",
    "early end",
    "error event",
    "malformed event",
    "garbage",
)
CUT_EVENTS = 24  # streams break behind fewer events
NO_RETRIES = RetryPolicy(attempts=0)
PROMPTS = (
    "List three colours.",
    "What is the capital of France? Answer in one word.",
    "Repeat exactly: 🦎🐈\u200d⬛ é 日本語 🦎🐈\u200d⬛ é 日本語",
    "Write a Python function that adds two numbers.",
    "Write a haiku about the sea.",
    "Translate 'good morning' into Japanese.",
    "Explain in two sentences how a stack differs from a queue.",
    "Write a C function that reverses a string in place.",
    "Name the planets in their order, with one emoji each.",
    "Count from one to twenty, separated by commas.",
    "Write a markdown table of three fruits and their prices.",
    "Give me a JSON object with a name and an age.",
    "Why is the sky blue?",
    "Écris une phrase sur l'été à la plage.",
    "Write a nested bullet list about breakfast.",
    "Repeat exactly: cafe\u0301 nai\u0308ve A\u030a مرحبا שלום",
)


class Answer:
    """What came of one request."""

    def __init__(self, chunks: Sequence[ChatCompletionChunk], finish_reason: str | None) -> None:
        self.finish_reason = finish_reason
        self.ids = [token for chunk in chunks for choice in chunk.choices for token in choice.token_ids or ()]
        self.text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


@dataclass(slots=True)
class LiveTally:
    """What many answers came to: hand-overs by way and by what broke, answers that differ."""

    answers: int = 0
    tokens: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def hand_overs(self) -> int:
        """All of them."""
        return sum(self.ways.values())


class Breaking:
    """An endpoint whose next answer breaks behind ``after`` tokens; None: it does not."""

    def __init__(self, endpoint: Endpoint, after: int | None) -> None:
        self.endpoint = endpoint
        self.after = after
        self.has_broken = False

    @property
    def name(self) -> str:
        """The endpoint's own."""
        return self.endpoint.name

    @property
    def kind(self) -> Kind:
        """The endpoint's own."""
        return self.endpoint.kind

    @property
    def capabilities(self) -> Capabilities:
        """The endpoint's own."""
        return self.endpoint.capabilities

    @property
    def prices(self) -> TokenPrices:
        """The endpoint's own."""
        return self.endpoint.prices

    async def start(self) -> None:
        """Make ready."""
        await self.endpoint.start()

    def open(self, request: Request) -> EndpointStream:
        """Begin an answer that will break."""
        stream = self.endpoint.open(request)
        return stream if self.after is None else _BreakingStream(self, stream, self.after)

    def count_tokens(self, request: Request) -> int | None:
        """The endpoint's own."""
        return self.endpoint.count_tokens(request)

    async def aclose(self) -> None:
        """Leaves the endpoint open."""


class _BreakingStream:
    def __init__(self, breaking: Breaking, stream: EndpointStream, left: int) -> None:
        self._breaking = breaking
        self._stream = stream
        self._left = left

    async def receive(self) -> TokensReceived | StreamEnded:
        """What comes before the break, then the error; chunks of a batch that lie behind the break are lost with it."""
        if self._left <= 0:
            self._breaking.has_broken = True
            await self._stream.cancel()
            raise EndpointConnectError("cut", endpoint=self._breaking.name)
        event = await self._stream.receive()
        if isinstance(event, StreamEnded):
            return event
        kept: list[ChatCompletionChunk] = []
        tokens = 0
        for chunk in event.chunks:
            if tokens >= self._left:
                break
            kept.append(chunk)
            tokens += weigh_chunk(chunk)
        self._left -= tokens
        return TokensReceived(event.source, kept, tokens)

    async def cancel(self) -> None:
        """Stop."""
        await self._stream.cancel()


def load(path: Path) -> LlamaEngine:
    """An engine in the exact mode, on one thread."""
    return LlamaEngine(path, EngineOptions(threads=1, context_tokens=256, max_sequences=AT_ONCE, exact=True))


def requests(engine: LlamaEngine, rng: random.Random, count: int) -> list[Request]:
    """Greedy ones of 32 to 48 tokens: chats, every fourth as ids."""
    made: list[Request] = []
    for number, prompt in enumerate(PROMPTS[:count]):
        sampling = SamplingOptions(temperature=0, max_tokens=rng.randint(32, 48))
        if number % 4 == 3:
            made.append(Request(prompt_ids=engine.tokenize(prompt, bos=True), sampling=sampling))
        else:
            made.append(Request(messages=[{"role": "user", "content": prompt}], sampling=sampling))
    return made


async def answer(endpoint: Endpoint, request: Request) -> Answer:
    """An uninterrupted answer."""
    stream = endpoint.open(request)
    chunks: list[ChatCompletionChunk] = []
    while isinstance(event := await stream.receive(), TokensReceived):
        chunks += event.chunks
    return Answer(chunks, event.finish_reason)


async def run_session(endpoints: Sequence[Endpoint], request: Request) -> tuple[Answer, RaceMachine]:
    """An answer through these endpoints, each behind the one before it."""
    attempts = tuple(
        AttemptPlan(each.name, None if number else 0.0, continues=True, vocabulary=each.capabilities.vocabulary)
        for number, each in enumerate(endpoints)
    )
    machine = RaceMachine(RacePlan(attempts=attempts, on_failure="migrate", max_tokens=request.sampling.max_tokens))
    driver = RaceDriver(machine, {each.name: each for each in endpoints}, request)
    driver.start()
    chunks: list[ChatCompletionChunk] = []
    try:
        while (batch := await driver.next_batch()) is not None:
            chunks += batch[1]
    finally:
        await driver.aclose()
    return Answer(chunks, machine.finish_reason), machine


class _Places:
    """Two engines, each reached as a device, as a server, and as a server whose connections break."""

    def __init__(self, devices: Sequence[Endpoint], servers: Sequence[Endpoint], cut_servers: Sequence[Endpoint]) -> None:
        self.whole = [*devices, *servers]
        self.cut_servers = {each.name: each for each in cut_servers}

    def chain(self, rng: random.Random, tokens: int) -> list[Endpoint]:
        """Two to four endpoints in random order, all but the last broken somewhere."""
        order = rng.sample(self.whole, rng.choice([2, 4, 4, 4]))
        broken = [self._broken(each, rng, max(1, tokens // (len(order) - 1))) for each in order[:-1]]
        return [*broken, order[-1]]

    def _broken(self, endpoint: Endpoint, rng: random.Random, most: int) -> Endpoint:
        if endpoint.name in self.cut_servers and rng.random() < 0.75:
            return self.cut_servers[endpoint.name]
        return Breaking(endpoint, rng.randint(1, most))


@asynccontextmanager
async def _places(engines: Sequence[LlamaEngine], rng: random.Random) -> AsyncIterator[_Places]:
    import aiohttp

    def faults() -> Faults:
        return replace(draw_faults(rng.choice(CUTS), rng, events=CUT_EVENTS), piece_bytes=rng.choice([None, rng.randint(1, 400)]))

    async with AsyncExitStack() as stack:
        single = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))  # faults are drawn for each connection
        await stack.enter_async_context(single)
        servers, cut_servers = [], []
        for engine, which in zip(engines, "ab", strict=True):
            url = await stack.enter_async_context(serving(engine, ServeOptions(model="m")))
            proxy = await stack.enter_async_context(FaultProxy(int(url.split(":")[2].split("/")[0])))
            servers.append(OpenAIEndpoint("m", base_url=url, name=f"server {which}", retry=NO_RETRIES))
            cut_servers.append(OpenAIEndpoint("m", base_url=proxy.url, name=f"server {which}", retry=NO_RETRIES, session=single))
            for server in (servers[-1], cut_servers[-1]):
                stack.push_async_callback(server.aclose)
                await server.probe()
            proxy.faults = faults
        yield _Places(
            [DeviceEndpoint(engine, name=f"device {which}") for engine, which in zip(engines, "ab", strict=True)], servers, cut_servers
        )


async def hand_over_live(path: Path, hand_overs: int, *, prompts: int = len(PROMPTS), seed: int = SEED) -> LiveTally:
    """Answers until so many hand-overs have been made."""
    engines = load(path), load(path)
    try:
        async with _places(engines, random.Random(seed)) as places:
            return await _Run(places, requests(engines[0], random.Random(seed), prompts), seed).until(hand_overs)
    finally:
        for engine in engines:
            engine.close()


class _Run:
    def __init__(self, places: _Places, asked: Sequence[Request], seed: int) -> None:
        self.places = places
        self.asked = asked
        self.seed = seed
        self.tally = LiveTally()
        self._number = 0

    async def until(self, hand_overs: int) -> LiveTally:
        first, *others = self.places.whole
        self.whole = [await answer(first, request) for request in self.asked]
        await asyncio.gather(*(self._check(other) for other in others))
        await asyncio.gather(*(self._work(hand_overs) for _ in range(AT_ONCE)))
        return self.tally

    async def _check(self, other: Endpoint) -> None:
        for request, whole in zip(self.asked, self.whole, strict=True):
            self._compare(await answer(other, request), whole, f"uninterrupted, at {other.name}")

    async def _work(self, hand_overs: int) -> None:
        while self.tally.hand_overs < hand_overs:
            self._number += 1
            await self._one(self._number)

    async def _one(self, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        at = rng.randrange(len(self.asked))
        request, whole = self.asked[at], self.whole[at]
        limit = request.sampling.max_tokens
        assert limit is not None
        endpoints = self.places.chain(rng, len(whole.ids))
        where = f"answer {number}, seed {self.seed}, through {', '.join(each.name for each in endpoints)}"
        try:
            joined, machine = await run_session(endpoints, request)
        except StreamcoError as exc:
            self.tally.wrong.append(f"{where}: {exc!r}")
            return
        self._compare(joined, whole, where)
        self.tally.answers += 1
        self.tally.tokens += len(joined.ids)
        by_bytes = {each.name for each in endpoints[:-1] if isinstance(each, OpenAIEndpoint)}
        for each in machine.hand_overs:
            if each.position < limit:  # else the answer was whole, and nobody was asked
                self.tally.ways[f"{each.source.split()[0]} to {each.target.split()[0]}"] += 1
                self.tally.broken["by its stream" if each.source in by_bytes else "behind a token"] += 1

    def _compare(self, got: Answer, whole: Answer, where: str) -> None:
        for field_ in ("ids", "text", "finish_reason"):
            if (had := getattr(got, field_)) != (expected := getattr(whole, field_)):
                self.tally.wrong.append(f"{where}: {field_}: expected {expected!r}, got {had!r}")
                return
