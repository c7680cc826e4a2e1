"""One HTTP answer over real sockets: events, failures, keep-alives, readers that leave or lag, latency under a clock in the test's hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from streamco.emulation.latency_replay import LatencyProfile, LatencyReplays
from streamco.testing.engine import FakeEngine
from tests.server.support import CHAT, HELLO, TEXT, ManualClock, contents, next_event, parse_events, running, until

STREAM = {**HELLO, "stream": True}
PROFILE = LatencyProfile(name="made", source="here", license="MIT", ttft_s=(1.0,), gap_s=(0.5,))


class BrokenEngine(FakeEngine):
    """An engine with a bug that shows when told to."""

    is_broken = False

    def detokenize(self, ids: Sequence[int]) -> bytes:
        if self.is_broken:
            raise ZeroDivisionError("secret details")
        return super().detokenize(ids)


async def test_a_streamed_chat_is_role_pieces_finish_and_done() -> None:
    async with running(FakeEngine("one two three")) as server:
        events = await server.events(CHAT, HELLO)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert contents(events) == ["one", " two", " three"]
    assert events[-2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert events[-1] == "[DONE]"
    assert len({event["id"] for event in events[:-1]}) == 1


async def test_a_streamed_completion_is_pieces_finish_and_done() -> None:
    async with running(FakeEngine("one two three")) as server:
        events = await server.events(TEXT, {"prompt": "Hi", "max_tokens": 2})
    assert contents(events) == ["one", " two"]
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1] == "[DONE]"


async def test_usage_comes_last_for_those_who_ask() -> None:
    async with running(FakeEngine("one two three")) as server:
        events = await server.events(TEXT, {"prompt": "Hi there", "stream_options": {"include_usage": True}})
    assert events[-2]["choices"] == []
    usage = events[-2]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (2, 3, 5)


async def test_token_ids_come_with_their_text_when_asked_for() -> None:
    engine = FakeEngine("one two three")
    async with running(engine) as server:
        events = await server.events(CHAT, {**HELLO, "return_token_ids": True})
        plain = await server.events(CHAT, HELLO)
    ids = [token for event in events[:-1] for token in event["choices"][0].get("token_ids", [])]
    assert engine.detokenize(ids) == b"one two three"
    assert events[0]["prompt_token_ids"] == engine.requests[0].prompt_ids
    assert not any("token_ids" in event["choices"][0] for event in plain[:-1])


async def test_headers_keep_proxies_from_gathering_events() -> None:
    async with running() as server, server.client.post(CHAT, json=STREAM) as response:
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["Cache-Control"] == "no-cache"


async def test_pieces_leave_as_they_come() -> None:
    engine = FakeEngine("one two three", mode="manual")
    async with running(engine) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=STREAM))
        await until(lambda: engine.generations)
        engine.step(1)
        response = await posting
        assert '"role"' in await next_event(response)
        assert '"one"' in await next_event(response)
        engine.step(1)
        assert '" two"' in await next_event(response)
        engine.step(10)
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_silence_is_filled_with_comments_before_the_first_token_and_between_tokens() -> None:
    engine, clock = FakeEngine("one two", mode="manual"), ManualClock()
    async with running(engine, clock=clock, keepalive=10.0) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=STREAM))
        await clock.asleep()
        clock.advance(9.9)
        assert not posting.done()
        clock.advance(10.0)
        response = await posting
        assert await next_event(response) == ": keep-alive"
        await clock.asleep()
        clock.advance(20.0)
        assert await next_event(response) == ": keep-alive"
        engine.step(1)
        assert '"role"' in await next_event(response)
        assert '"one"' in await next_event(response)
        await clock.asleep()
        clock.advance(30.0)
        assert await next_event(response) == ": keep-alive"
        engine.step(10)
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_whole_answer_gets_no_comments_in_its_json() -> None:
    engine, clock = FakeEngine("one", mode="manual"), ManualClock()
    async with running(engine, clock=clock, keepalive=10.0) as server:
        posting = asyncio.ensure_future(server.post(CHAT, HELLO))
        await clock.asleep()
        clock.advance(10.0)
        await clock.asleep()
        engine.step(10)
        status, body = await posting
    assert (status, body["choices"][0]["message"]["content"]) == (200, "one")


async def test_a_failure_before_the_first_token_has_a_status() -> None:
    async with running(FakeEngine("one two", fail_after=0)) as server:
        for body in (STREAM, HELLO):
            status, error = await server.post(CHAT, body)
            assert (status, error["error"]["type"], error["error"]["code"]) == (500, "server_error", "engine_error")


async def test_a_failure_in_mid_stream_keeps_the_text_and_is_an_event_without_done() -> None:
    async with running(FakeEngine("one two three", fail_after=2)) as server:
        events = await server.events(CHAT, HELLO)
    assert contents(events) == ["one", " two"]
    assert events[-1]["error"]["type"] == "server_error"
    assert "failed after 2 tokens" in events[-1]["error"]["message"]
    assert "[DONE]" not in events


async def test_a_bug_in_mid_stream_is_logged_and_told_as_an_event_inside_the_response(caplog: pytest.LogCaptureFixture) -> None:
    engine = BrokenEngine("one two three", mode="manual")
    async with running(engine) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json={**STREAM, "logprobs": True}))
        await until(lambda: engine.generations)
        engine.step(1)
        response = await posting
        head = await next_event(response) + await next_event(response)
        engine.is_broken = True
        engine.step(1)
        (event,) = parse_events(await response.content.read())
        assert server.service.active == server.service.admission.present == 0
    assert '"content":"one"' in head
    assert event["error"]["message"] == "server: can't finish the answer because of an internal error"
    assert "secret details" in caplog.text


async def test_a_failure_after_a_comment_is_an_event_too() -> None:
    engine, clock = FakeEngine("one", mode="manual", fail_after=0), ManualClock()
    async with running(engine, clock=clock) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=STREAM))
        await clock.asleep()
        clock.advance(10.0)
        response = await posting
        await clock.asleep()
        engine.step(1)
        assert json.loads((await response.content.read()).split(b"data: ")[-1])["error"]["code"] == "engine_error"


async def test_an_engine_that_is_closed_answers_503() -> None:
    engine = FakeEngine()
    async with running(engine) as server:
        engine.close()
        status, error = await server.post(CHAT, HELLO)
        assert (status, error["error"]["type"]) == (503, "server_error")


@pytest.mark.parametrize("body", [STREAM, HELLO])
@pytest.mark.parametrize("cancels", [True, False])
async def test_a_client_that_leaves_cancels_its_sequence(body: dict[str, Any], cancels: bool) -> None:
    engine = FakeEngine(" ".join(["word"] * 500), mode="manual")
    async with running(engine, cancels=cancels) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=body))
        await until(lambda: engine.generations)
        if body is STREAM:
            engine.step(2)
            (await posting).close()
        else:
            posting.cancel()
        if not cancels:  # noticed with the next burst, where the runner doesn't tell
            await asyncio.sleep(0.02)
            engine.step(2)
            await asyncio.sleep(0)
            engine.step(2)
        await until(lambda: engine.generations[0].is_cancelled)
        await until(lambda: server.service.active == 0 and server.service.admission.present == 0)


async def test_a_slow_reader_parks_its_own_sequence_and_nobody_elses() -> None:
    engine = FakeEngine([f"{number:0200d} " for number in range(20_000)], mode="instant", ring_tokens=16, context_tokens=30_000)
    async with running(engine) as server:
        lagging = await server.client.post(CHAT, json=STREAM)
        await until(lambda: engine.generations and engine.generations[0]._made > 100)
        made = -1
        while made != engine.generations[0]._made:
            made = engine.generations[0]._made
            await asyncio.sleep(0.05)
        assert made < 20_000
        status, other = await server.post(CHAT, {**HELLO, "max_tokens": 3})
        assert (status, other["usage"]["completion_tokens"]) == (200, 3)
        assert engine.generations[0]._made == made
        events = parse_events(await lagging.content.read())
        assert len(contents(events)) == 20_000


async def test_a_reader_that_never_reads_is_dropped() -> None:
    engine = FakeEngine(["x" * 2000 for _ in range(20_000)], ring_tokens=16, context_tokens=30_000)
    async with running(engine, reader_timeout=0.05) as server:
        response = await server.client.post(CHAT, json=STREAM)
        await until(lambda: engine.generations[0].is_cancelled)
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()
        response.close()
        await until(lambda: server.service.admission.present == 0)


async def test_a_shutdown_ends_streams_with_an_error_and_admits_nobody() -> None:
    engine = FakeEngine(mode="manual")
    async with running(engine) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=STREAM))
        whole = asyncio.ensure_future(server.post(CHAT, HELLO))
        await until(lambda: len(engine.generations) == 2)
        engine.step(1)
        response = await posting
        await server.service.stop()
        events = parse_events(await response.content.read())
        assert contents(events) == ["Hello"]
        assert events[-1]["error"]["code"] == "shutdown"
        assert (await whole)[0] == 503
        assert all(generation.is_cancelled for generation in engine.generations)
        assert (await server.post(CHAT, HELLO))[0] == 503


async def test_cleaning_up_the_runner_does_not_wait_for_streams() -> None:
    engine = FakeEngine(mode="manual")
    async with running(engine) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=STREAM))
        await until(lambda: engine.generations)
        engine.step(1)
        response = await posting
        await server.runner.cleanup()
        assert engine.generations[0].is_cancelled
        assert b"shutdown" in await response.content.read()


async def test_replayed_latency_holds_headers_and_tokens_back() -> None:
    engine, clock = FakeEngine("one two three"), ManualClock()
    async with running(engine, clock=clock, hold=LatencyReplays(PROFILE)) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=STREAM))
        await clock.asleep()
        clock.advance(0.99)
        await asyncio.sleep(0.02)
        assert not posting.done()
        clock.advance(1.0)
        response = await posting
        assert '"role"' in await next_event(response)
        assert '"one"' in await next_event(response)
        await clock.asleep()
        clock.advance(1.49)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readany(), 0.02)
        clock.advance(1.5)
        assert '" two"' in await next_event(response)
        await clock.asleep()
        clock.advance(2.0)
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_comments_go_on_while_tokens_are_held_back() -> None:
    slow = LatencyProfile(name="slow", source="here", license="MIT", ttft_s=(25.0,))
    clock = ManualClock()
    async with running(clock=clock, hold=LatencyReplays(slow), keepalive=10.0) as server:
        posting = asyncio.ensure_future(server.client.post(CHAT, json=STREAM))
        for time in (10.0, 20.0):
            await clock.asleep()
            clock.advance(time)
        response = await posting
        assert [await next_event(response), await next_event(response)] == [": keep-alive"] * 2
        await clock.asleep()
        clock.advance(25.0)
        assert '"role"' in await next_event(response)


async def test_a_whole_answer_takes_as_long_as_its_stream_would() -> None:
    clock = ManualClock()
    async with running(FakeEngine("one two three"), clock=clock, hold=LatencyReplays(PROFILE)) as server:
        posting = asyncio.ensure_future(server.post(CHAT, HELLO))
        for time in (1.0, 1.5, 1.99):
            await clock.asleep()
            clock.advance(time)
            await asyncio.sleep(0.01)
        assert not posting.done()
        clock.advance(2.0)
        assert (await posting)[0] == 200


async def test_concurrent_requests_draw_from_dice_of_their_own() -> None:
    spread = LatencyProfile(name="spread", source="here", license="MIT", ttft_s=(0.0, 100.0))

    async def first_times(count: int) -> list[float]:
        clock = ManualClock()
        async with running(clock=clock, hold=LatencyReplays(spread, 4), keepalive=1e6) as server:
            posts = []
            for number in range(count):
                posts.append(asyncio.ensure_future(server.post(CHAT, HELLO)))
                await clock.asleep(number + 1)
            dues = [deadline for deadline, _ in clock.sleepers if deadline is not None]
            clock.advance(1000.0)
            await asyncio.gather(*posts)
        return dues

    alone, together = await first_times(1), await first_times(3)
    assert alone == together[:1]
    assert len(set(together)) == 3
