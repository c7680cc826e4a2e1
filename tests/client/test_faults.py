"""Random faults on the way to every server: each answer is whole, or ends in a documented error with the text so far; nothing is left.

Each of two servers has a ``FaultProxy`` in front of it, with or without a device that may fail too. All of them would write the same
answer. Its words are numbered, so that a lost or repeated one shows. The servers of two worlds take token ids (``streamco serve``), in JSON
or in MessagePack. Those of the third continue text, which they cut into tokens of their own.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from streamco.client.client import Client
from streamco.client.modes.race.migration import MigrationOptions
from streamco.config import RetryPolicy, Timeouts
from streamco.core.report import Report
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.known_servers.probe import ServerInfo
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import GenerationRequest
from streamco.errors import AllEndpointsFailed, EndpointError
from streamco.server.app import ServeOptions, serving
from streamco.testing import FakeEngine, FaultPlan, FaultProxy, Faults, ScriptedServer, stream_answer
from streamco.testing.engine import WORDS
from streamco.testing.faults import FAULT_KINDS, draw_faults
from streamco.testing.responses import RecordedRequest, ScriptedResponse
from tests.client.helpers import HELLO, tokens_text
from tests.endpoints.helpers import NO_RETRIES
from tests.support.leaks import holding_nothing_new, settled
from tests.support.modes import client_options

ANSWER = " ".join(f"{word}{number}" for number, word in enumerate(["naïve", "日本", "🦎", "plain", "cafe\u0301"] * 10))
QUICK = Timeouts(connect=1.0, first_token=0.4, next_token=0.4, socket=0.4, cancel=0.2)
RETRIES = RetryPolicy(attempts=1, backoff=0.01, longest_wait=0.2)
PATIENT = Timeouts(connect=2.0, first_token=2.0, next_token=2.0, socket=2.0, cancel=0.5)  # a healthy server keeps to them on a busy machine
HANGS = 60.0  # seconds; all limits of all endpoints together are a tenth of it
PRICES = [TokenPrices(prompt=1e-9, completion=price) for price in (1e-6, 1e-8)]  # moving to the second server pays
RUNS = 100  # a world
AT_ONCE = 20

Source = Callable[[], Faults] | Faults


def rest_of(beginning: str) -> str:
    """Return what follows a beginning; a wrong beginning is answered with words that no answer has."""
    return ANSWER[len(beginning) :] if ANSWER.startswith(beginning) else f"<not a beginning: {beginning!r}>"


def write(request: GenerationRequest) -> list[str]:
    """What an engine writes after its prompt, spaces in front of words."""
    beginning = WORDS.decode(request.prompt_ids).partition("assistant:")[2]
    return re.findall(r"\s*\S+", rest_of(beginning.removeprefix(" ")))  # the template's space


def respond(request: RecordedRequest) -> ScriptedResponse:
    """What a server that continues text sends, spaces after words: the text it gets always lacks one."""
    last = request.json()["messages"][-1]
    pieces = re.findall(r"\S+\s*|\s+", rest_of(last["content"] if last["role"] == "assistant" else ""))
    return stream_answer(pieces, gap=0.001, usage={"prompt_tokens": 5, "completion_tokens": len(pieces), "total_tokens": 5 + len(pieces)})


class World(Struct):
    """Two servers' ports, and what their endpoints know of them."""

    ports: Sequence[int]
    info: ServerInfo | None = None
    retry: RetryPolicy = RETRIES
    timeouts: Timeouts = QUICK

    def endpoint(self, number: int, url: str) -> OpenAIEndpoint:
        able = Capabilities(continuation="continue_final_message") if self.info is None else None
        name = f"server {number}"
        rng = random.Random(number)
        endpoint = OpenAIEndpoint(
            "m",
            base_url=url,
            name=name,
            timeouts=self.timeouts,
            retry=self.retry,
            prices=PRICES[number],
            capabilities=able,
            probe=False,
            rng=rng,
        )
        if self.info is not None:
            endpoint._apply(self.info)
        return endpoint


@asynccontextmanager
async def by_ids() -> AsyncIterator[World]:
    engines = [FakeEngine(write, mode="thread", token_s=0.001) for _ in range(2)]
    async with AsyncExitStack() as stack:
        stack.enter_context(patch("streamco.server.packed_response._joined", list))  # faults strike at the number of a piece
        urls = [await stack.enter_async_context(serving(engine, ServeOptions(model="m"))) for engine in engines]
        asked = OpenAIEndpoint("m", base_url=urls[0], name="probe")
        info = await asked.probe()  # beside the proxies
        await asked.aclose()
        yield World([int(url.split(":")[2].split("/")[0]) for url in urls], info)
    for engine in engines:
        await asyncio.to_thread(engine.close)


@asynccontextmanager
async def by_ids_in_json() -> AsyncIterator[World]:
    async with by_ids() as world:
        assert world.info is not None
        world.info = replace(world.info, media_types=())
        yield world


@asynccontextmanager
async def by_text() -> AsyncIterator[World]:
    async with ScriptedServer(respond) as first, ScriptedServer(respond) as second:
        yield World([first.port, second.port])


WORLDS = [by_ids, by_ids_in_json, by_text]
Opened = Callable[[], AbstractAsyncContextManager[World]]


class Outcome(Struct):
    """What the reader got."""

    pieces: list[str] = field(default_factory=list)
    error: EndpointError | AllEndpointsFailed | None = None
    report: Report | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def kind(self) -> str:
        if self.error is not None:
            return "error"
        hand_overs = [] if self.report is None else self.report.hand_overs
        if any(hand_over.is_planned for hand_over in hand_overs):
            return "moved"
        return "handed over" if hand_overs else "complete"


async def ask(
    world: World, sources: Sequence[Source], *, engine: FakeEngine | None = None, as_chat: bool = False, before: int = 0, **options: Any
) -> Outcome:
    """One answer through the proxies, by a client of its own; ``before``: so many more over the same connections, which must be whole."""
    outcome = Outcome()
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(FaultProxy(port, source)) for port, source in zip(world.ports, sources, strict=True)]
        servers = [world.endpoint(number, proxy.url) for number, proxy in enumerate(proxies)]
        device = None if engine is None else DeviceEndpoint(engine)
        async with asyncio.timeout(HANGS), Client(device, servers, budget=1.0, seed=1, **client_options(options)) as client:
            for _ in range(before):
                assert await tokens_text(client.stream(HELLO)) == ANSWER
            try:
                await (read_chunks if as_chat else read_tokens)(client, outcome)
            except (EndpointError, AllEndpointsFailed) as error:
                outcome.error = error
            await settled(lambda: not client._settings.endpoints.active)
            assert outcome.report is None or outcome.report.is_final or outcome.error is not None
            assert not any(server._answers.get().streams for server in servers)
        await settled(lambda: not any(proxy.connections_open for proxy in proxies))
    if engine is not None:
        assert all(generation._end is not None for generation in engine.generations)
        await asyncio.to_thread(engine.close)
    return outcome


async def read_tokens(client: Client, outcome: Outcome) -> None:
    stream = client.stream(HELLO)
    try:
        async for token in stream:
            outcome.pieces.append(token.text)
            assert token.id is None or WORDS.decode([token.id]) == token.text
    finally:
        outcome.report = stream.report


async def read_chunks(client: Client, outcome: Outcome) -> None:
    stream = await client.chat.completions.create(messages=HELLO, stream=True)
    try:
        async for chunk in stream:
            outcome.pieces.append(chunk.choices[0].delta.content or "")
    finally:
        outcome.report = stream.report


def check(outcome: Outcome) -> None:
    """Whole and each word once, or an error of the documented ones that has the text the reader got, all of it good."""
    error = outcome.error
    if error is None:
        assert outcome.text == ANSWER
        return
    assert ANSWER.startswith(outcome.text)
    assert error.partial == outcome.text, f"{error!r}"
    for each in error.errors.values() if isinstance(error, AllEndpointsFailed) else [error]:
        assert isinstance(each, EndpointError)
        assert "EndpointError" not in str(each), "a foreign exception that nobody foresaw is told so"


async def ask_at_random(world: World, seed: str) -> Outcome:
    """One run, all of it drawn from its seed."""
    rng = random.Random(seed)
    plans = [FaultPlan(f"{seed}/{number}", events=len(ANSWER.split()) + 3, seconds=0.1) for number in range(2)]
    has_device = rng.random() < 0.5
    fails = rng.choice([None, None, rng.randrange(30)])
    engine = FakeEngine(write, mode="thread", prefill_s=rng.choice([0.0, 0.01]), token_s=0.001, fail_after=fails) if has_device else None
    options: dict[str, Any] = {
        "on_failure": rng.choice(["migrate", "migrate", "raise"]),
        "migration": MigrationOptions(rule=rng.choice(["pre-copy", "full-buffer"]), max_migrations=rng.choice([1, 2]), unpaced=True),
        "pace": rng.choice([None, "smooth", 100.0, 400.0]),
        "policy": rng.choice(["auto", "auto", "both", "server-only", "device-only"] if has_device else ["auto", "server-only"]),
    }
    try:
        outcome = await ask(world, plans, engine=engine, as_chat=rng.random() < 0.5, **options)
        check(outcome)
        assert options["on_failure"] == "migrate" or outcome.kind in {"complete", "error"}
    except BaseException as error:
        error.add_note(f"seed {seed!r}, {options}, device {has_device} failing after {fails}, {plans}")
        raise
    return outcome


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("open_world", WORLDS)
async def test_whatever_the_network_does_an_answer_is_whole_or_its_error_has_the_text(open_world: Opened) -> None:
    outcomes: Counter[str] = Counter()
    async with open_world() as world:
        for start in range(0, RUNS, AT_ONCE):
            async with holding_nothing_new():
                runs = [ask_at_random(world, f"{open_world.__name__} {number}") for number in range(start, start + AT_ONCE)]
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(run) for run in runs]
                outcomes.update(task.result().kind for task in tasks)
    assert outcomes["complete"] > RUNS // 5
    assert outcomes["handed over"] > RUNS // 10
    assert outcomes["moved"] > RUNS // 50
    assert outcomes["error"] > RUNS // 20


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("open_world", WORLDS)
async def test_one_healthy_endpoint_is_enough_whatever_happens_to_the_other(open_world: Opened) -> None:
    async with open_world() as world, holding_nothing_new():
        world.timeouts = PATIENT
        rng = random.Random(open_world.__name__)
        cases = [(draw_faults(kind, rng, events=15, seconds=0.1), pace) for kind in FAULT_KINDS for pace in (None, 400.0)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(world, [fault, Faults()], pace=pace)) for fault, pace in cases]
    for case, task in zip(cases, tasks, strict=True):
        assert (task.result().text, task.result().error) == (ANSWER, None), f"{case}"


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("open_world", WORLDS)
async def test_a_connection_that_was_good_for_one_answer_may_fail_in_the_next(open_world: Opened) -> None:
    async with open_world() as world, holding_nothing_new():
        world.timeouts = PATIENT
        rng = random.Random(f"{open_world.__name__} again")
        drawn = [draw_faults(kind, rng, events=15, seconds=0.1) for kind in FAULT_KINDS]
        faults = [Faults(body_fault=replace(fault.body_fault, answers=1)) for fault in drawn if fault.body_fault is not None]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(world, [fault, Faults()], before=1)) for fault in faults]
    for fault, task in zip(faults, tasks, strict=True):
        assert (task.result().text, task.result().error) == (ANSWER, None), f"{fault}"


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("open_world", WORLDS)
async def test_without_migration_every_kind_gives_the_text_so_far(open_world: Opened) -> None:
    async with open_world() as world, holding_nothing_new():
        world.retry, world.timeouts = NO_RETRIES, PATIENT
        rng = random.Random(open_world.__name__)
        faults = {kind: draw_faults(kind, rng, events=15, seconds=0.1) for kind in FAULT_KINDS}
        async with asyncio.TaskGroup() as group:
            tasks = {kind: group.create_task(ask(world, [fault, fault], on_failure="raise")) for kind, fault in faults.items()}
    for kind, task in tasks.items():
        check(task.result())
        assert (task.result().error is None) == (kind in {"delay", "split", "pause"}), f"{kind}: {faults[kind]}"
