"""Answers at a smooth pace: the client in virtual time, over endpoints that send in bursts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.mode import Race
from streamco.client.stream import Token, TokenStream
from streamco.config import Limits
from streamco.core.meter import FRAME
from streamco.core.smooth_schedule import MAX_ADDED_DELAY
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.errors import EndpointConnectError, EndpointError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, FunctionDelta, ToolCallDelta
from streamco.testing import ScriptedEndpoint, run_in_virtual_time
from streamco.testing.endpoint import ScriptItem, text_chunk
from tests.client.helpers import EVERYTHING, HELLO
from tests.support.modes import client_options

Script = list[tuple[float, ScriptItem]]

SPREAD = MAX_ADDED_DELAY - FRAME
TINY = 0.002  # seconds: a timer of the loop that comes a rounding error early is set again, for a millisecond
WORDS = [f"w{number} " for number in range(80)]
BURSTS: Script = [(0.3 + 0.2 * (number // 8), word) for number, word in enumerate(WORDS)]
EVEN: Script = [(0.3 + 0.02 * number, word) for number, word in enumerate(WORDS)]
ABLE = Capabilities(continuation="token_ids", pre_copy="append", tools=True, choices=True)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_in_virtual_time(main())


def server(script: Sequence[tuple[float, ScriptItem]], name: str = "server", **options: Any) -> ScriptedEndpoint:
    options.setdefault("capabilities", EVERYTHING)
    return ScriptedEndpoint(name, list(script), **options)


def smooth(*servers: ScriptedEndpoint, device: ScriptedEndpoint | None = None, **options: Any) -> Client:
    options.setdefault("pace", "smooth")
    return Client(device, list(servers) or None, seed=1, **client_options(options))


def gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def check_delays(script: Script, tokens: Sequence[Token]) -> None:
    """Check text and order, and that each token goes out between its arrival and 0.4 seconds later."""
    assert [token.text for token in tokens] == [item for _, item in script]
    assert tokens[0].time == pytest.approx(script[0][0], abs=TINY)
    for token, (came, _) in zip(tokens, script, strict=True):
        assert came - TINY <= token.time <= came + MAX_ADDED_DELAY + TINY


def test_bursts_are_read_evenly_and_no_token_more_than_400_ms_late() -> None:
    async def main() -> None:
        async with smooth(server(BURSTS)) as client:
            stream = client.stream("?")
            tokens = [token async for token in stream]
            report = stream.report
        check_delays(BURSTS, tokens)
        between = gaps([token.time for token in tokens])
        assert max(between) <= SPREAD / 7 + TINY, "0.2 seconds without smoothing"
        assert (report.tokens, report.finish_reason) == (len(WORDS), "stop")
        assert report.quality.gap_p50 == pytest.approx(0.025, abs=TINY)

    run(main)


def test_text_that_comes_evenly_is_read_as_it_comes() -> None:
    async def main() -> None:
        async with smooth(server(EVEN)) as client:
            tokens = [token async for token in client.stream("?")]
        assert [token.time for token in tokens] == pytest.approx([came for came, _ in EVEN], abs=TINY)

    run(main)


def test_an_answer_in_one_chunk_comes_in_pieces_with_one_finish_reason_and_one_usage() -> None:
    async def main() -> None:
        text = "The quick brown fox jumps over the lazy dog. " * 20
        whole = text_chunk(text, finish_reason="stop")
        whole.usage = CompletionUsage(5, 200, 205)
        async with smooth(server([(0.3, whole)])) as client:
            stream = await client.chat.completions.create(messages=HELLO, stream=True)
            times, chunks = list[float](), list[ChatCompletionChunk]()
            async for chunk in stream:
                times.append(asyncio.get_running_loop().time())
                chunks.append(chunk)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        assert len(chunks) == 20
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 19 + ["stop"]
        assert [chunk.usage for chunk in chunks] == [None] * 19 + [whole.usage]
        assert times[0] == pytest.approx(0.3, abs=TINY)
        assert times[-1] <= 0.3 + MAX_ADDED_DELAY + TINY
        assert max(gaps(times)) <= SPREAD / 19 + FRAME + TINY

    run(main)


@pytest.mark.parametrize("ask", ["client", "call", "options"])
def test_the_pace_is_that_of_the_client_of_the_call_or_of_other_options(ask: str) -> None:
    async def main() -> None:
        async with smooth(server(BURSTS), pace="smooth" if ask == "client" else None) as client:
            asked = client.with_options(pace="smooth") if ask == "options" else client
            options: dict[str, Any] = {"pace": "smooth"} if ask == "call" else {}
            tokens = [token async for token in asked.stream("?", **options)]
            at_once = [token async for token in asked.stream("?", pace=None)]
        check_delays(BURSTS, tokens)
        assert max(gaps([token.time for token in tokens])) < 0.1
        assert sum(gap > 0.19 for gap in gaps([token.time for token in at_once])) == 9

    run(main)


def test_tool_calls_come_at_once_and_after_the_text_before_them() -> None:
    async def main() -> None:
        call = ChatCompletionChunk(
            choices=[ChunkChoice(delta=ChoiceDelta(tool_calls=[ToolCallDelta(index=0, function=FunctionDelta(arguments="{}"))]))]
        )
        said: Script = [(0.3, "Let "), (0.3, "me "), (0.3, "see"), (0.35, call), (0.35, text_chunk("", finish_reason="tool_calls"))]
        async with smooth(server(said)) as client:
            stream = await client.chat.completions.create(
                messages=HELLO, stream=True, tools=[{"type": "function", "function": {"name": "f"}}]
            )
            found = [(asyncio.get_running_loop().time(), chunk.choices[0]) async for chunk in stream]
        assert [choice.delta.content for _, choice in found[:3]] == ["Let ", "me ", "see"]
        assert found[3][1] is call.choices[0]
        assert found[3][0] == pytest.approx(0.35, abs=TINY)
        assert found[4][1].finish_reason == "tool_calls"

    run(main)


def test_several_choices_keep_their_order_and_their_text() -> None:
    async def main() -> None:
        def of(choice: int, text: str) -> ChatCompletionChunk:
            return ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(content=text), index=choice)])

        said: Script = [(0.3 + 0.1 * (number // 4), of(number % 2, f"a long word number {number} ")) for number in range(20)]
        async with smooth(server(said)) as client:
            stream = await client.chat.completions.create(messages=HELLO, stream=True, n=2)
            found = [(chunk.choices[0].index, chunk.choices[0].delta.content or "") async for chunk in stream if chunk.choices]
        for choice in (0, 1):
            text = "".join(text for index, text in found if index == choice)
            assert text == "".join(f"a long word number {number} " for number in range(choice, 20, 2))

    run(main)


def test_a_failover_loses_nothing_and_the_next_endpoints_bursts_are_even_too() -> None:
    async def main() -> None:
        cut: Script = [*BURSTS[:20], (BURSTS[19][0], EndpointConnectError("cut", endpoint="server"))]
        async with smooth(server(cut, capabilities=ABLE), server(BURSTS, "spare", capabilities=ABLE)) as client:
            stream = client.stream("?")
            tokens = [token async for token in stream]
            report = stream.report
        assert [token.text for token in tokens] == WORDS
        assert {token.source for token in tokens} == {"server", "spare"}
        assert [change.is_planned for change in report.hand_overs] == [False]
        assert max(gaps([token.time for token in tokens])) < 0.2

    run(main)


def test_an_answer_that_fails_gives_all_its_text_before_the_error() -> None:
    async def main() -> None:
        broken: Script = [*BURSTS[:8], (0.31, EndpointConnectError("cut", endpoint="server"))]
        tokens = list[Token]()

        async def read(stream: TokenStream) -> None:
            async for token in stream:
                tokens.append(token)

        async with smooth(server(broken)) as client:
            with pytest.raises(EndpointError):
                await read(client.stream("?"))
        assert [token.text for token in tokens] == WORDS[:8]
        assert tokens[-1].time == pytest.approx(0.31, abs=TINY)

    run(main)


def test_a_reader_that_leaves_drops_what_is_held() -> None:
    async def main() -> None:
        source = server(BURSTS)
        async with smooth(source) as client:
            stream = client.stream("?")
            async for _token in stream:
                break
            await stream.aclose()
            report = stream.report
        assert source.active == 0
        assert report.wasted_tokens == 7, "they came and were not read"

    run(main)


def test_a_reader_that_pauses_slows_the_endpoint_down_at_the_usual_bound() -> None:
    async def main() -> None:
        source = server([(0.3, word) for word in WORDS])
        async with smooth(source, limits=Limits(unread_tokens=16)) as client:
            stream = client.stream("?")
            first = await anext(stream)
            await asyncio.sleep(10)
            assert source.streams[0]._position <= 18, "what was read is at most the bound, the one above it and the first"
            rest = [token.text async for token in stream]
        assert [first.text, *rest] == WORDS

    run(main)


def test_a_device_is_not_held_back_by_a_smooth_pace() -> None:
    async def main() -> None:
        paced, even = (ScriptedEndpoint("device", BURSTS, kind="device", tokens=10) for _ in range(2))
        async with smooth(device=even) as client:
            assert [token.text async for token in client.stream("?")] == WORDS
        async with smooth(device=paced, pace=50.0) as client:
            assert [token.text async for token in client.stream("?")] == WORDS
        assert even.streams[0].request.max_buffered is None
        assert paced.streams[0].request.max_buffered is not None

    run(main)


# Planned moves, quality, notes


@pytest.mark.parametrize(
    ("options", "moves"),
    [({}, 0), ({"migration": MigrationOptions(unpaced=True)}, 1), ({"pace": 5.0}, 1)],
    ids=["smooth", "smooth and unpaced", "a rate"],
)
def test_a_smooth_pace_is_none_to_a_planned_move(options: dict[str, Any], moves: int) -> None:
    async def main() -> None:
        dear, cheap = TokenPrices(prompt=1e-6, completion=60e-6), TokenPrices(prompt=1e-9, completion=1e-9)
        sides = [server(EVEN, name, prices=prices, tokens=10, capabilities=ABLE) for name, prices in (("server", dear), ("spare", cheap))]
        for side in sides:
            side.model = "m"  # type: ignore[attr-defined]
        async with smooth(*sides, policy="both", **options) as client:
            stream = client.stream("Tell me.")
            assert [token.text async for token in stream] == WORDS
            await stream.aclose()
            assert len([change for change in stream.report.hand_overs if change.is_planned]) == moves
            assert stream.report.quality.delayed_tokens == 0

    run(main)


@pytest.mark.parametrize(("rate", "late"), [(4.8, 0), (20.0, 0), (1000.0, 79)])
def test_quality_is_that_of_a_reader_at_the_reader_rate(rate: float, late: int) -> None:
    async def main() -> None:
        async with smooth(server(EVEN), dispatch=Race(reader_rate=rate)) as client:
            stream = client.stream("?")
            assert [token.text async for token in stream] == WORDS
        assert stream.report.quality.delayed_tokens == late

    run(main)


async def whole(client: Client) -> Any:
    return await client.chat.completions.create(messages=HELLO)


async def streamed(client: Client) -> Any:
    stream = await client.chat.completions.create(messages=HELLO, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "".join(WORDS)
    return stream


@pytest.mark.parametrize(("ask", "has_note"), [(whole, True), (streamed, False)])
def test_a_whole_answer_has_no_pace_and_says_so(ask: Callable[[Client], Awaitable[Any]], has_note: bool) -> None:
    async def main() -> None:
        async with smooth(server(BURSTS)) as client:
            answer = await ask(client)
        assert ("the client's pace has no effect on an answer that is not streamed" in answer.report.notes) is has_note

    run(main)
