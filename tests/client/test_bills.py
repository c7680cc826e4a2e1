"""What an answer costs, whatever its server says that it counted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.client.race.report import billed_completion
from streamco.core.report import EndpointReport
from streamco.endpoints.base import TokenPrices
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.token_counter import TokenCounter
from streamco.openai_types import CompletionUsage
from streamco.policies.cost import Usage, request_cost
from streamco.profiles import Prices
from streamco.testing import Pause, ScriptedResponse, ScriptedServer, chunk_event, json_answer
from streamco.testing.responses import sse_event
from tests.client.helpers import HELLO, opened
from tests.support.data import data_path
from tests.support.leaks import settled

PRICES = TokenPrices(prompt=1e-6, completion=1e-5)


async def billed(usage: Any, *, stream: bool = True, text: str = "four words are here") -> EndpointReport:
    """The server's part in the report of an answer with this usage."""
    if stream:
        steps = [chunk_event(text), chunk_event("", finish_reason="stop"), _usage_event(usage), b"data: [DONE]\n\n"]
        answer = ScriptedResponse(steps=steps)
    else:
        message = {"role": "assistant", "content": text}
        answer = json_answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})
    async with ScriptedServer(answer) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", prices=PRICES)
        async with opened(server=remote) as client:
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


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**7))
def test_what_is_billed_is_at_least_the_completion(prompt: int, completion: int, total: int) -> None:
    assert billed_completion(CompletionUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total)) >= completion


async def test_recorded_bills_are_reported_as_they_are() -> None:
    checked = 0
    streams = [path for path in sorted(data_path("sse", "streams").glob("*.sse")) if b'"cost":' in path.read_bytes()]
    for path in streams:
        lines = [line.removeprefix(b"data: ") for line in path.read_bytes().splitlines() if b'"usage":{' in line]
        usages = [json.loads(line).get("usage") for line in lines if line.startswith(b"{")]
        bills = [usage["cost"] for usage in usages if isinstance(usage, dict) and isinstance(usage.get("cost"), int | float)]
        if not bills:
            continue
        async with ScriptedServer(ScriptedResponse(steps=[path.read_bytes()])) as scripted:
            remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", prices=PRICES)
            async with opened(server=remote) as client:
                stream = await client.chat.completions.create(messages=HELLO, stream=True)
                async for _chunk in stream:
                    pass
                await stream.aclose()
                (part,) = stream.report.endpoints
        assert part.cost_usd == pytest.approx(bills[-1], rel=0.01), path.name
        checked += 1
    assert checked > 5


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
