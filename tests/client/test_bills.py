"""What an answer costs, whatever its server says that it counted."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import pickle
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.client.client import Client
from streamco.core.report_parts import EndpointReport
from streamco.endpoints.base import TokenPrices
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.token_counter import TokenCounter
from streamco.errors import ConfigError, EndpointError
from streamco.policies.cost import Usage, request_cost
from streamco.profiles import Prices
from streamco.testing import Cut, Pause, ScriptedResponse, ScriptedServer, chunk_event, json_answer
from streamco.testing.responses import sse_event
from tests.client.helpers import HELLO, opened
from tests.support.data import data_path
from tests.support.leaks import settled

PRICES = TokenPrices(prompt=1e-6, completion=1e-5)


async def billed(usage: Any, *, stream: bool = True, text: str = "four words are here") -> EndpointReport:
    """The server's part in the report of an answer with this usage; ``stream=False``: of a call that is not streamed, answered by JSON."""
    if stream:
        steps = [chunk_event(text), chunk_event("", finish_reason="stop"), _usage_event(usage), b"data: [DONE]\n\n"]
        answer = ScriptedResponse(steps=steps)
    else:
        message = {"role": "assistant", "content": text}
        answer = json_answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})
    async with ScriptedServer(answer) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", prices=PRICES)
        async with Client(server=remote, seed=1) as client:  # `opened` looks for leaks: too slow for hundreds of answers
            if not stream:
                whole = await client.chat.completions.create(messages=HELLO, stream=False)
                assert whole.report is not None
                (part,) = whole.report.endpoints
                return part
            stream_ = await client.chat.completions.create(messages=HELLO, stream=True)
            async for _chunk in stream_:
                pass
            await stream_.aclose()
            (part,) = stream_.report.endpoints
            return part


def _usage_event(usage: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("count", [900_000_000_000_000_000, -1_000_000, 10**30])
async def test_a_count_that_no_answer_has_is_neither_looped_over_nor_billed(count: int, stream: bool) -> None:
    part = await billed({"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10}, stream=stream)
    assert part.is_estimated
    assert part.cost_usd is not None
    assert 0 < part.cost_usd < 0.001


async def test_a_large_count_of_hidden_tokens_in_a_whole_answer_is_billed_and_not_looped_over() -> None:
    part = await billed({"prompt_tokens": 10, "completion_tokens": 16_000_000, "total_tokens": 16_000_010}, stream=False)
    assert part.completion_tokens == 16_000_000
    assert part.cost_usd == pytest.approx(160.00001)


async def test_reasoning_outside_the_completion_is_billed() -> None:
    details = {"reasoning_tokens": 100}
    part = await billed({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115, "completion_tokens_details": details})
    assert part.completion_tokens == 105
    assert part.cost_usd == pytest.approx(10e-6 + 105e-5)


async def test_the_servers_own_bill_wins_and_the_report_says_so() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    part = await billed({**usage, "cost": 0.0123})
    assert (part.cost_usd, part.unified_cost_usd, part.cost_source) == (0.0123, 0.0123, "server")
    for nonsense in (-1.0, "cheap", True, 1e12, None):
        part = await billed({**usage, "cost": nonsense})
        assert part.cost_source == "prices"
        assert part.cost_usd == pytest.approx(6e-5)


@given(
    prompt=st.integers(0, 10**7),
    cached=st.integers(0, 10**7),
    completion=st.integers(0, 10**7),
    prices=st.tuples(*[st.floats(0, 1)] * 3),
)
def test_a_cost_is_never_negative(prompt: int, cached: int, completion: int, prices: tuple[float, float, float]) -> None:
    usage = Usage(server_prompt=prompt, server_completion=completion, server_cached=cached)
    cost = request_cost(usage, Prices(prompt=prices[0], completion=prices[1], cached_prompt=prices[2]), None)
    assert cost.server is not None
    assert cost.server >= 0


@pytest.mark.parametrize(
    ("told", "bill"),
    [
        ({"cost": {"input_tokens_cost": 0.0, "request_cost": 0.005, "total_cost": 0.005}}, 0.005),
        ({"cost_in_usd_ticks": 1_660_500}, 0.00016605),
        ({"cost": 0.25, "cost_in_usd_ticks": 5}, 0.25),
        ({"cost": 0}, 0.0),
        ({"cost_in_usd_ticks": 0}, None),
        ({"cost_in_usd_ticks": -5}, None),
        ({"cost": {"total_cost": "5"}}, None),
        ({"cost": 1001}, None),
        ({"cost": -0.5}, None),
        ({"cost": True}, None),
        ({}, None),
    ],
)
async def test_each_providers_own_bill_is_read(told: dict[str, Any], bill: float | None) -> None:
    part = await billed({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **told})
    assert part.cost_source == ("prices" if bill is None else "server")
    assert part.cost_usd == pytest.approx(6e-5 if bill is None else bill)


# Recorded bills

LIST_PRICES: dict[str, tuple[float, float, float]] = {
    # US dollars per million tokens: prompt, completion, cached prompt. From the providers' price pages, the same as litellm's table where
    # it has them (``test_the_list_prices_are_those_of_the_recorded_table``).
    "ai-gateway-vercel-sh__chat__claude-sonnet-4__": (3.0, 15.0, 0.3),
    "ai-gateway-vercel-sh__chat__gemini-2.5-flash__": (0.3, 2.5, 0.03),
    "ai-gateway-vercel-sh__chat__gemini-3-pro-preview__": (2.0, 12.0, 0.2),
    "api-x-ai__chat__grok-3-mini": (0.3, 0.5, 0.075),
    "api-x-ai__chat__grok-4-fast": (0.2, 0.5, 0.05),
    "api-x-ai__chat__grok-code-fast-1": (0.2, 1.5, 0.02),
    "openrouter-ai__chat__claude-4.5-haiku": (1.0, 5.0, 0.1),
    "openrouter-ai__chat__claude-haiku-4.5": (1.0, 5.0, 0.1),
    "openrouter-ai__chat__claude-4.6-sonnet": (3.0, 15.0, 0.3),
    "openrouter-ai__chat__claude-sonnet-4.5": (3.0, 15.0, 0.3),
    "openrouter-ai__chat__gemini-3.1-flash-lite": (0.25, 1.5, 0.025),
    "openrouter-ai__chat__gpt-4.1-mini": (0.4, 1.6, 0.1),
    "openrouter-ai__chat__gpt-4o-mini": (0.15, 0.6, 0.075),
    "openrouter-ai__chat__gpt-5.4-nano": (0.2, 1.25, 0.02),
    "openrouter-ai__chat__grok-4.1-fast": (0.2, 0.5, 0.05),
    "openrouter-ai__chat__glm-5-turbo": (1.2, 4.0, 0.24),
}
IN_THE_TABLE = {
    "claude-sonnet-4__": "vercel_ai_gateway/anthropic/claude-sonnet-4",
    "gemini-2.5-flash__": "vercel_ai_gateway/google/gemini-2.5-flash",
    "claude-4.6-sonnet": "claude-sonnet-4-6",
    "gemini-3.1-flash-lite": "gemini/gemini-3.1-flash-lite",
    "gpt-4.1-mini": "gpt-4.1-mini",
    "gpt-4o-mini": "gpt-4o-mini",
    "gpt-5.4-nano": "gpt-5.4-nano",
}


def test_the_list_prices_are_those_of_the_recorded_table() -> None:
    with gzip.open(data_path("prices", "litellm_chat_prices.csv.gz"), "rt") as file:
        table = {row["model"]: row for row in csv.DictReader(file)}
    for end, model in IN_THE_TABLE.items():
        (prices,) = (prices for name, prices in LIST_PRICES.items() if name.endswith(end))
        named = [table[model][f"usd_per_{kind}_token"] for kind in ("input", "output", "cached_input")]
        assert [float(price) * 1e6 for price in named] == pytest.approx(prices), model


async def cost_of(body: bytes, prices: TokenPrices) -> EndpointReport:
    """The server's part in the report of a recorded answer."""
    async with ScriptedServer(ScriptedResponse(steps=[body])) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", prices=prices)
        async with Client(server=remote, seed=1) as client:
            stream = await client.chat.completions.create(messages=HELLO, stream=True)
            async for _chunk in stream:
                pass
            await stream.aclose()
            (part,) = stream.report.endpoints
            return part


def bill_in(body: bytes) -> tuple[float, float] | None:
    """Everything that the provider bills in a recorded answer, and the part of it for tokens; None: it sends no bill."""
    found = None
    for line in body.splitlines():
        if not line.startswith(b"data: {"):
            continue
        usage = json.loads(line[6:]).get("usage") or {}
        details = usage.get("cost_details") or {}
        if isinstance(usage.get("cost"), int | float):
            for_tokens = sum(details.get(f"upstream_inference_{kind}_cost") or 0 for kind in ("prompt", "completions"))
            found = usage["cost"], for_tokens or usage["cost"]
        elif ticks := usage.get("cost_in_usd_ticks"):
            found = ticks * 1e-10, ticks * 1e-10
    return found


def with_a_bill() -> list[tuple[str, bytes, tuple[float, float]]]:
    bodies = [(path.name, path.read_bytes()) for path in sorted(data_path("sse", "streams").glob("*__chat__*.sse"))]
    return [(name, body, bill) for name, body in bodies if (bill := bill_in(body)) is not None]


async def test_a_recorded_bill_is_reported_as_it_is() -> None:
    found = with_a_bill()
    assert len(found) > 40
    for name, body, (bill, _) in found:
        part = await cost_of(body, PRICES)
        assert part.cost_source == "server"
        assert part.cost_usd == pytest.approx(bill), name


async def test_the_price_list_and_the_tokens_give_the_recorded_bill_within_one_percent() -> None:
    """The bill is taken out of the answer, so the figure comes from what the server counted; web searches are not in the tokens."""
    checked: dict[str, int] = {}
    for name, body, (_, for_tokens) in with_a_bill():
        known = [prices for begin, prices in LIST_PRICES.items() if name.startswith(begin)]
        if not known:
            continue
        prompt, completion, cached = (price * 1e-6 for price in known[0])
        without = re.sub(rb'"(cost|cost_in_usd_ticks)":', rb'"hidden":', body)
        part = await cost_of(without, TokenPrices(prompt=prompt, completion=completion, cached_prompt=cached))
        assert part.cost_source == "prices"
        assert part.cost_usd == pytest.approx(for_tokens, rel=0.01), name
        provider = name.partition("__")[0]
        checked[provider] = checked.get(provider, 0) + 1
    assert checked.keys() == {"ai-gateway-vercel-sh", "api-x-ai", "openrouter-ai"}
    assert sum(checked.values()) >= 30


# Hostile usage

_ODD: list[Any] = [None, True, -1, 0, 1, 5, 1.5, 2**24, 2**24 + 1, 10**9, 10**18, 10**30, -(10**18), 1e308, "7", "x", [], {}, [1], {"a": 1}]


async def test_whatever_a_server_says_that_it_counted_the_cost_is_neither_negative_nor_absurd() -> None:
    """Through the real decoder, streamed and not; at most what 16 million tokens of each kind cost, or a bill below 1,000 $."""
    rng = random.Random(7)
    most = 2**24 * 1e-6 + (2**24 + 2**17) * 1e-5
    for _ in range(150):
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        usage: dict[str, Any] = {name: rng.choice(_ODD) for name in counts if rng.random() < 0.9}
        for name in ("cost", "cost_in_usd_ticks"):
            if rng.random() < 0.2:
                usage[name] = rng.choice(_ODD)
        for name, part in (("prompt_tokens_details", "cached_tokens"), ("completion_tokens_details", "reasoning_tokens")):
            if rng.random() < 0.5:
                usage[name] = rng.choice([{part: rng.choice(_ODD)}, None, 5])
        found = await billed(usage, stream=rng.random() < 0.7)
        assert found.cost_usd is not None
        assert 0 <= found.cost_usd <= (1000 if found.cost_source == "server" else most), usage
        assert found.completion_tokens >= 0
        assert found.prompt_tokens >= 0


# Without a usage: what is counted, and what counted it

LONG = ["Un", "fortunately", " internationalization"]  # an estimate takes 4 bytes for a token


async def left_after(model: str, *steps: bytes, **options: Any) -> EndpointReport:
    """The server's part in an answer that its reader leaves when these events have come."""
    answer = ScriptedResponse(steps=[*steps, Pause(60.0)])
    async with ScriptedServer(answer) as scripted:
        remote = OpenAIEndpoint(model, base_url=scripted.url, name="server", prices=PRICES, **options)
        async with opened(server=remote) as client:
            stream = await client.chat.completions.create(messages=HELLO, stream=True)
            for _ in steps:
                await anext(stream)
            await stream.aclose()
            await settled(lambda: stream.report.is_final)
            (part,) = stream.report.endpoints
            return part


async def test_an_answer_of_openais_models_is_counted_by_tiktoken_if_it_was_left() -> None:
    counter = TokenCounter("gpt-4")
    await asyncio.to_thread(counter.load)
    if not counter.is_exact:
        pytest.skip("tiktoken has no cl100k_base here")
    part = await left_after("gpt-4", *(chunk_event(text) for text in LONG))
    assert (part.counted_by, part.is_estimated) == ("tiktoken cl100k_base", True)
    assert part.completion_tokens == counter.count_exactly("".join(LONG))
    assert part.cost_usd == pytest.approx(part.prompt_tokens * 1e-6 + part.completion_tokens * 1e-5)


async def test_without_a_vocabulary_it_is_estimated() -> None:
    part = await left_after("unheard-of", *(chunk_event(text) for text in LONG))
    assert (part.counted_by, part.completion_tokens) == ("estimate", 1 + 3 + 6)


async def test_reasoning_is_not_left_out_of_a_count() -> None:
    part = await left_after("gpt-4", chunk_event(reasoning_content="a long thought about it"), chunk_event("so"))
    assert (part.counted_by, part.completion_tokens) == ("estimate", 6 + 1)


async def test_token_ids_are_counted() -> None:
    events = [sse_event({"choices": [{"index": 0, "delta": {"content": text}, "token_ids": [1, 2]}]}) for text in LONG]
    part = await left_after("gpt-4", *events)
    assert (part.counted_by, part.completion_tokens) == ("token ids", 6)


async def test_a_servers_usage_wins_over_every_count() -> None:
    part = await billed({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
    assert (part.counted_by, part.is_estimated) == ("usage", False)


# Counts that can't be true


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("usage", "prompt", "completion", "counter"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None, None, "estimate"),
        ({"prompt_tokens": 30, "completion_tokens": 0, "total_tokens": 30}, 30, None, "estimate"),
        ({"prompt_tokens": 0, "completion_tokens": 10, "total_tokens": 10}, None, 10, "usage"),
        ({"prompt_tokens": None, "completion_tokens": None}, None, None, "estimate"),
        ({}, None, None, "estimate"),
        ({"input_tokens": 30, "output_tokens": 10}, 30, 10, "usage"),
        ({"prompt_tokens": 30, "completion_tokens": 10, "total_tokens": 40}, 30, 10, "usage"),
    ],
)
async def test_zero_tokens_of_what_came_is_no_count(
    usage: dict[str, Any], prompt: int | None, completion: int | None, counter: str, stream: bool
) -> None:
    part = await billed(usage, stream=stream)
    assert part.is_estimated is (prompt is None or completion is None)
    assert part.prompt_tokens == prompt if prompt is not None else part.prompt_tokens > 0
    assert part.completion_tokens == completion if completion is not None else part.completion_tokens > 0
    assert part.counted_by == counter
    assert part.cost_usd == pytest.approx(part.prompt_tokens * 1e-6 + part.completion_tokens * 1e-5)


@pytest.mark.parametrize("cost", [0.0, 0.01])
async def test_a_bill_of_nothing_beside_counts_of_nothing_is_none(cost: float) -> None:
    part = await billed({"prompt_tokens": 30, "completion_tokens": 0, "total_tokens": 30, "cost": cost})
    assert (part.cost_source, part.is_estimated) == ("server" if cost else "prices", True)
    assert part.cost_usd is not None
    assert part.cost_usd > 0


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("stream", [True, False])
async def test_the_usage_of_the_answer_is_marked_too_and_so_are_totals(stream: bool) -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 0, "total_tokens": 30}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "two words"}, "finish_reason": "stop"}], "usage": usage}
    steps = [chunk_event("two words"), chunk_event("", finish_reason="stop"), _usage_event(usage), b"data: [DONE]\n\n"]
    async with ScriptedServer(ScriptedResponse(steps=steps) if stream else json_answer(answer)) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", prices=PRICES)
        async with opened(server=remote) as client:
            told: Any
            if stream:
                options = {"include_usage": True}
                chunks = [
                    chunk async for chunk in await client.chat.completions.create(messages=HELLO, stream=True, stream_options=options)
                ]
                (told,) = [chunk.usage for chunk in chunks if chunk.usage is not None]
            else:
                told = (await client.chat.completions.create(messages=HELLO)).usage
            await settled(lambda: client.totals.answers == 1)
            totals = client.totals.endpoints["server"]
    assert (told.prompt_tokens, told.completion_tokens > 0, told.is_estimated) == (30, True, True)
    assert (totals.estimated_prompt_tokens, totals.estimated_completion_tokens) == (30, totals.completion_tokens)
    assert totals.completion_tokens > 0


async def test_an_answer_of_nothing_may_have_a_count_of_zero() -> None:
    part = await billed({"prompt_tokens": 30, "completion_tokens": 0, "total_tokens": 30}, text="")
    assert (part.prompt_tokens, part.completion_tokens) == (30, 0)


# Answers that fail


async def read_answer(client: Client, how: str) -> None:
    """Ask for an answer in one of the ways, and read it."""
    if how == "whole":
        await client.chat.completions.create(messages=HELLO)
    elif how == "chunks":
        async for _ in await client.chat.completions.create(messages=HELLO, stream=True):
            pass
    else:
        async for _ in client.stream("hello"):
            pass


@pytest.mark.parametrize("how", ["whole", "chunks", "tokens"])
async def test_the_error_of_an_answer_shows_what_it_has_cost(how: str) -> None:
    answer = ScriptedResponse(steps=[chunk_event("one two"), chunk_event(" three"), Cut()])
    async with ScriptedServer(answer) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", prices=PRICES)
        async with opened(server=remote) as client:
            with pytest.raises(EndpointError) as caught:
                await read_answer(client, how)
    report = pickle.loads(pickle.dumps(caught.value)).report
    assert report == caught.value.report
    assert report is not None
    assert report.cost_usd is not None
    assert report.cost_usd > 0
    assert (report.ending, caught.value.partial) == ("failed", "one two three")


async def test_the_error_before_the_first_token_has_a_report_and_a_mistake_has_none() -> None:
    async with ScriptedServer(ScriptedResponse(status=401)) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", prices=PRICES)
        async with opened(server=remote) as client:
            with pytest.raises(EndpointError) as caught:
                await client.chat.completions.create(messages=HELLO, stream=True)
            assert caught.value.report is not None
            assert [part.outcome for part in caught.value.report.endpoints] == ["failed"]
            with pytest.raises(ConfigError) as mistaken:
                await client.chat.completions.create(messages=HELLO, temperature=-1)
            assert mistaken.value.report is None
