"""The endpoint that plays a script."""

from __future__ import annotations

import asyncio

import pytest

from streamco.endpoints.base import Capabilities, Endpoint, EndpointStream, Request, TokenPrices
from streamco.errors import EndpointConnectError, EndpointError, EndpointProtocolError, UsageError
from streamco.events import Partial, StreamEnded, TokensReceived
from streamco.openai_types import CompletionUsage, PromptTokensDetails
from streamco.testing.endpoint import ScriptedEndpoint, ScriptedStream, text_chunk
from streamco.testing.virtual_clock import run_in_virtual_time

REQUEST = Request(prompt="p")


async def read(stream: EndpointStream) -> list[tuple[float, TokensReceived | StreamEnded]]:
    """Everything with its time, the end last."""
    seen: list[tuple[float, TokensReceived | StreamEnded]] = []
    while not seen or not isinstance(seen[-1][1], StreamEnded):
        event = await stream.receive()
        seen.append((asyncio.get_running_loop().time(), event))
    return seen


def test_it_is_an_endpoint() -> None:
    endpoint: Endpoint = ScriptedEndpoint("e")
    assert endpoint.kind == "server"
    assert endpoint.prices == TokenPrices()
    assert endpoint.capabilities == Capabilities()
    assert endpoint.count_tokens(REQUEST) is None
    assert ScriptedEndpoint("e", tokens=5).count_tokens(REQUEST) == 5
    assert ScriptedEndpoint("e", kind="device").kind == "device"


def test_items_come_at_their_times_and_then_the_end() -> None:
    async def main() -> None:
        usage = CompletionUsage(1, 2, 3)
        endpoint = ScriptedEndpoint("e", [(0.5, "a"), (2.0, text_chunk("b", ids=[7]))], usage=usage)
        stream = endpoint.open(REQUEST)
        assert endpoint.active == 1
        assert endpoint.streams == [stream]
        assert stream.request is REQUEST
        seen = await read(stream)
        assert [time for time, _ in seen] == pytest.approx([0.5, 2.0, 2.0])
        assert [event for _, event in seen] == [
            TokensReceived("e", [text_chunk("a")], 1),
            TokensReceived("e", [text_chunk("b", ids=[7])], 1),
            StreamEnded("e", "stop", usage),
        ]
        assert endpoint.active == 0

    run_in_virtual_time(main())


def test_a_slow_reader_gets_what_is_overdue_at_once() -> None:
    async def main() -> None:
        stream = ScriptedEndpoint("e", [(0.1, "a"), (0.2, "b"), (9.0, "c")]).open(REQUEST)
        await asyncio.sleep(5)
        assert [time for time, _ in await read(stream)] == pytest.approx([5.0, 5.0, 9.0, 9.0])

    run_in_virtual_time(main())


def test_chunks_without_content_count_no_token() -> None:
    async def main() -> None:
        events = [event for _, event in await read(ScriptedEndpoint("e", [(0.0, text_chunk(""))]).open(REQUEST))]
        assert isinstance(events[0], TokensReceived)
        assert events[0].tokens == 0

    run_in_virtual_time(main())


def test_an_error_is_raised_at_its_time_with_the_text_so_far() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("e", [(0.0, "a"), (0.0, "b"), (1.0, EndpointProtocolError("cut", endpoint="e"))])
        stream = endpoint.open(REQUEST)
        await stream.receive()
        await stream.receive()
        with pytest.raises(EndpointProtocolError) as caught:
            await stream.receive()
        assert caught.value.partial == "ab"
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)
        assert endpoint.active == 0

    run_in_virtual_time(main())


@pytest.mark.parametrize("script", [[(0.0, None)], []])
def test_silence_lasts_until_a_cancel(script: list[tuple[float, None]]) -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("e", script, cancel_takes=0.25)
        stream = endpoint.open(REQUEST)
        waiting = asyncio.ensure_future(stream.receive())
        await asyncio.sleep(100)
        assert not waiting.done()
        await stream.cancel()
        assert asyncio.get_running_loop().time() == pytest.approx(100.25)
        assert endpoint.active == 0
        with pytest.raises(EndpointError, match="the stream was cancelled"):
            await waiting

    run_in_virtual_time(main())


def test_a_cancelled_receive_loses_nothing() -> None:
    async def main() -> None:
        stream = ScriptedEndpoint("e", [(1.0, "a"), (2.0, "b")]).open(REQUEST)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.receive(), 0.1)
        assert [event.tokens for _, event in await read(stream) if isinstance(event, TokensReceived)] == [1, 1]

    run_in_virtual_time(main())


def test_cancelling_is_idempotent_and_safe_in_every_state() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("e", [(0.0, "a")])
        fresh, ended = endpoint.open(REQUEST), endpoint.open(REQUEST)
        await read(ended)
        for stream in (fresh, fresh, ended):
            await stream.cancel()
        assert endpoint.active == 0
        assert fresh.is_cancelled
        assert isinstance(fresh, ScriptedStream)

    run_in_virtual_time(main())


def test_an_empty_script_may_end_all_the_same() -> None:
    async def main() -> None:
        ((time, event),) = await read(ScriptedEndpoint("e", ends_after=3.0).open(REQUEST))
        assert time == pytest.approx(3.0)
        assert event == StreamEnded("e", "stop")

    run_in_virtual_time(main())


def test_every_request_gets_the_script_from_its_beginning() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("e", [(0.1, "a"), (0.2, "b")])
        runs = await asyncio.gather(*(read(endpoint.open(REQUEST)) for _ in range(3)))
        assert all(len(seen) == 3 for seen in runs)
        assert len(endpoint.streams) == 3

    run_in_virtual_time(main())


def test_one_error_in_a_script_keeps_each_streams_own_text() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("e", [(0.0, "a"), (1.0, "b"), (2.0, EndpointConnectError("cut", endpoint="e"))])
        first = endpoint.open(REQUEST)
        await first.receive()
        await first.receive()
        with pytest.raises(EndpointConnectError) as caught:
            await first.receive()
        endpoint.script.pop(1)
        second = endpoint.open(REQUEST)
        await second.receive()
        with pytest.raises(EndpointConnectError) as later:
            await second.receive()
        assert (caught.value.partial, later.value.partial) == ("ab", "a")

    run_in_virtual_time(main())


async def test_starting_and_closing_do_what_the_script_says() -> None:
    endpoint = ScriptedEndpoint("e")
    await endpoint.start()
    await endpoint.aclose()
    assert endpoint.is_closed
    error = EndpointConnectError("refused", endpoint="e")
    with pytest.raises(EndpointConnectError) as caught:
        await ScriptedEndpoint("e", start_error=error).start()
    assert caught.value is error


def preparing(tokens: int | None = None) -> Request:
    """A request to read the prompt, and a beginning of so many tokens."""
    return Request(prompt="p", prefill_only=True, partial=None if tokens is None else Partial(text="x" * tokens, tokens=tokens))


def usage(prompt: int, completion: int, cached: int) -> CompletionUsage:
    return CompletionUsage(prompt, completion, prompt + completion, PromptTokensDetails(cached_tokens=cached))


def test_a_preparation_reads_what_was_not_read_before_and_says_nothing() -> None:
    async def main() -> None:
        can = Capabilities(pre_copy="append", continuation="token_ids")
        endpoint = ScriptedEndpoint("e", [(9.0, "a")], tokens=10, capabilities=can, prepare_takes=1.0, prefill_s=0.5)
        assert await read(endpoint.open(preparing())) == [(6.0, StreamEnded("e", None, usage(10, 0, 0)))]
        assert await read(endpoint.open(preparing(4))) == [(9.0, StreamEnded("e", None, usage(14, 0, 10)))]
        assert endpoint.prepared == [None, preparing(4).partial]
        assert endpoint.active == 0

    run_in_virtual_time(main())


def test_warming_makes_a_token() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("e", tokens=3, capabilities=Capabilities(pre_copy="warm"), prepare_takes=1.0)
        events = [event for _, event in await read(endpoint.open(preparing()))]
        assert isinstance(events[0], TokensReceived)
        assert events[0].tokens == 1
        assert events[1:] == [StreamEnded("e", "length", usage(3, 1, 0))]

    run_in_virtual_time(main())


def test_going_on_after_what_was_prepared_is_quicker() -> None:
    async def go_on(prepared: bool) -> float:
        endpoint = ScriptedEndpoint(
            "e", [(1.0, "a"), (2.0, "b"), (3.0, "c")], tokens=8, capabilities=Capabilities(pre_copy="append"), prefill_s=0.5
        )
        if prepared:
            await read(endpoint.open(preparing(1)))
        began = asyncio.get_running_loop().time()
        ((at, event), *_) = await read(endpoint.open(Request(prompt="p", partial=Partial(text="ab", tokens=2))))
        assert event == TokensReceived("e", [text_chunk("c")], 1)
        return at - began

    async def main() -> None:
        assert await go_on(prepared=False) == pytest.approx(1.0 + 10 * 0.5)
        assert await go_on(prepared=True) == pytest.approx(1.0 + 1 * 0.5)

    run_in_virtual_time(main())


def test_going_on_after_more_than_the_script_has_ends_at_once() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for script in ([(5.0, "a")], []):
            endpoint = ScriptedEndpoint("other", script, capabilities=Capabilities(continuation="token_ids"), ends_after=5.0)
            began = loop.time()
            end = await endpoint.open(Request(prompt="p", partial=Partial(text="abc", tokens=3))).receive()
            assert isinstance(end, StreamEnded)
            assert loop.time() - began == (0.0 if script else 5.0)

    run_in_virtual_time(main())


def test_a_preparation_that_is_cancelled_or_fails_prepares_nothing() -> None:
    async def main() -> None:
        can = Capabilities(pre_copy="append")
        failing = ScriptedEndpoint("e", capabilities=can, prepare_error=EndpointConnectError("cut", endpoint="e"))
        with pytest.raises(EndpointConnectError, match="cut"):
            await failing.open(preparing(1)).receive()
        endpoint = ScriptedEndpoint("e", capabilities=can, prepare_takes=5.0)
        stream = endpoint.open(preparing(1))
        waiting = asyncio.ensure_future(stream.receive())
        await asyncio.sleep(1)
        await stream.cancel()
        with pytest.raises(EndpointError, match="the stream was cancelled"):
            await waiting
        assert (endpoint.prepared, endpoint.active, failing.prepared, failing.active) == ([], 0, [], 0)

    run_in_virtual_time(main())


async def test_an_endpoint_that_can_not_prepare_refuses_to() -> None:
    endpoint = ScriptedEndpoint("e", [(0.0, "a")])
    with pytest.raises(UsageError, match="pre_copy is not none"):
        await endpoint.open(preparing()).receive()
    assert endpoint.active == 0
