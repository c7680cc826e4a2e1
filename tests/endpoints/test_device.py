"""The device endpoint: an engine's thread on one side, the loop on the other, and every way of leaving."""

from __future__ import annotations

import asyncio
import re
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from msgspec.structs import replace

from streamco.config import SamplingOptions, Timeouts
from streamco.endpoints.base import Endpoint, Request, TokenPrices
from streamco.endpoints.device import DeviceEndpoint, DeviceStream
from streamco.endpoints.generation_request import request_ids
from streamco.engines.base import Engine, EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import EndpointTimeoutError, EngineError, StreamClosed, StreamConsumed, UsageError
from streamco.events import Partial, StreamEnded, TokensReceived
from streamco.openai_types import ChatCompletionChunk
from streamco.testing.engine import FakeEngine
from tests.support.leaks import without_collector

HELLO = Request(messages=[{"role": "user", "content": "hello"}])


@asynccontextmanager
async def device(engine: Engine | str | Path, **options: Any) -> AsyncIterator[DeviceEndpoint]:
    endpoint = DeviceEndpoint(engine, **options)
    try:
        yield endpoint
    finally:
        await endpoint.aclose()
        if isinstance(engine, FakeEngine):
            engine.close()


async def read(stream: DeviceStream) -> tuple[list[ChatCompletionChunk], StreamEnded, list[TokensReceived]]:
    batches: list[TokensReceived] = []
    while True:
        event = await stream.receive()
        if isinstance(event, StreamEnded):
            return [chunk for batch in batches for chunk in batch.chunks], event, batches
        batches.append(event)


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def in_background(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    """Let a path be loaded by this function."""
    monkeypatch.setattr(DeviceEndpoint, "_load_file", lambda _self: load())


async def test_it_is_an_endpoint() -> None:
    endpoint: Endpoint = DeviceEndpoint(FakeEngine())
    assert (endpoint.name, endpoint.kind) == ("device", "device")
    assert endpoint.prices == TokenPrices(prompt=0, completion=0)
    await endpoint.aclose()


@pytest.mark.parametrize("mode", ["instant", "thread"])
async def test_an_answer_is_openais_chunks(mode: Any) -> None:
    async with device(FakeEngine("Hello there, reader.", mode=mode), name="phone") as endpoint:
        chunks, end, batches = await read(endpoint.open(HELLO))
    assert text_of(chunks) == "Hello there, reader."
    first, *words, last = [chunk.choices[0] for chunk in chunks]
    assert (first.delta.role, first.delta.content, first.token_ids) == ("assistant", "", None)
    assert [word.delta.content for word in words] == ["Hello", " there,", " reader."]
    assert all(word.token_ids and word.finish_reason is None for word in words)
    assert (last.finish_reason, last.delta.content) == ("stop", None)
    assert sum(batch.tokens for batch in batches) == 3
    assert {batch.source for batch in batches} == {"phone"} == {end.source}
    assert end.finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.model for chunk in chunks} == {"fake"}


async def test_ids_of_answers_are_unique_across_endpoints_and_processes() -> None:
    found = set()
    for _ in range(2):
        async with device(FakeEngine()) as endpoint:
            for _answer in range(3):
                chunks, _, _ = await read(endpoint.open(Request(prompt="hello")))
                found |= {chunk.id for chunk in chunks}
    assert len(found) == 6
    assert all(re.fullmatch("chatcmpl-[0-9a-f]{24}", each) for each in found)


async def test_the_end_has_the_engines_own_count() -> None:
    async with device(FakeEngine("one two three")) as endpoint:
        stream = endpoint.open(Request(prompt="a b c d", sampling=SamplingOptions(max_tokens=2)))
        before = stream.timings
        _, end, _ = await read(stream)
    assert before is None
    assert end.finish_reason == "length"
    assert end.usage is not None
    assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.total_tokens) == (4, 2, 6)
    assert stream.timings is not None
    assert stream.timings.completion_tokens == 2


async def test_an_answer_of_a_model_leaves_no_cycles() -> None:
    async with device(packaged_model(), options=EngineOptions(threads=1, context_tokens=256)) as endpoint:
        stream = endpoint.open(replace(HELLO, sampling=SamplingOptions(max_tokens=3)))
        await read(stream)
        is_freed = weakref.ref(stream)
        with without_collector():
            del stream
            async with asyncio.timeout(20):  # until the engine's thread lets go of it
                while is_freed() is not None:
                    await asyncio.sleep(0.01)


async def test_an_answer_without_words_still_ends_properly() -> None:
    async with device(FakeEngine([])) as endpoint:
        chunks, end, batches = await read(endpoint.open(HELLO))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, "stop"]
    assert [batch.tokens for batch in batches] == [0]
    assert end.finish_reason == "stop"


async def test_what_is_there_comes_in_one_batch() -> None:
    engine = FakeEngine("one two three four", mode="manual")
    async with device(engine) as endpoint:
        stream = endpoint.open(HELLO)
        engine.step(3)
        event = await stream.receive()
        assert isinstance(event, TokensReceived)
        assert event.tokens == 3
        assert len(event.chunks) == 4  # with the role


async def test_the_engine_gets_the_request_as_it_is() -> None:
    engine = FakeEngine()
    sampling = SamplingOptions(temperature=0.5, seed=3, stop=("x",))
    async with device(engine) as endpoint:
        await read(endpoint.open(Request(prompt_ids=[0, 1], sampling=sampling, extra={"ignore_eos": True})))
        await read(endpoint.open(HELLO))
    assert list(engine.requests[0].prompt_ids) == [0, 1]
    assert engine.requests[0].sampling == sampling
    assert engine.requests[0].ignore_eos
    assert engine.detokenize(engine.requests[1].prompt_ids) == b"user: hello\nassistant:"
    assert not engine.requests[1].ignore_eos


async def test_a_short_prompt_is_with_the_engine_when_open_returns() -> None:
    engine = FakeEngine()
    async with device(engine) as endpoint:
        endpoint.open(HELLO)
        assert len(engine.requests) == 1


async def test_a_long_prompt_is_tokenised_elsewhere() -> None:
    threads: list[str] = []

    class Watched(FakeEngine):
        def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
            threads.append(threading.current_thread().name)
            return super().tokenize(text, special=special, bos=bos)

    async with device(Watched()) as endpoint:
        await read(endpoint.open(Request(prompt="word " * 1500)))
        await read(endpoint.open(HELLO))
    assert threads[0] != threading.main_thread().name == threads[1]


async def test_counting_and_opening_tokenise_once() -> None:
    calls: list[str] = []

    class Counted(FakeEngine):
        def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
            calls.append(text)
            return super().tokenize(text, special=special, bos=bos)

    async with device(Counted()) as endpoint:
        assert endpoint.count_tokens(HELLO) == 3
        await read(endpoint.open(HELLO))
    assert len([text for text in calls if text]) == 1


async def test_what_cannot_be_counted_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    in_background(monkeypatch, FakeEngine)
    async with device("model.gguf") as endpoint:
        assert endpoint.count_tokens(HELLO) is None

    class Refusing(FakeEngine):
        def apply_template(self, messages: Any, *, add_generation_prompt: bool = True) -> str:
            raise EngineError("no template")

    async with device(Refusing()) as endpoint:
        assert endpoint.count_tokens(HELLO) is None
        with pytest.raises(EngineError, match="device: no template"):
            await endpoint.open(HELLO).receive()


async def test_capabilities_are_known_when_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    in_background(monkeypatch, lambda: FakeEngine(context_tokens=100))
    async with device("model.gguf") as endpoint:
        before = endpoint.capabilities
        assert (before.vocabulary, before.context_tokens, before.takes_token_ids) == (None, None, True)
        assert before.continuation == "token_ids"
        await endpoint.start()
        after = endpoint.capabilities
    assert after.context_tokens == 100
    assert after.vocabulary == FakeEngine().info.vocabulary


async def test_loading_happens_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeEngine] = []
    gate = threading.Event()

    def load() -> FakeEngine:
        assert gate.wait(30)
        made.append(FakeEngine("hi"))
        return made[-1]

    in_background(monkeypatch, load)
    async with device("model.gguf") as endpoint:
        waiting = [asyncio.create_task(endpoint.start()) for _ in range(3)]
        stream = endpoint.open(HELLO)
        await asyncio.sleep(0)
        waiting[0].cancel()
        gate.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None, None]
        chunks, _, _ = await read(stream)
        assert text_of(chunks) == "hi"
        await endpoint.start()
    assert len(made) == 1
    assert made[0].is_closed


async def test_a_model_that_cannot_be_loaded_says_so_to_everybody_and_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Exception | FakeEngine] = [EngineError("no such file"), FakeEngine("hi")]

    def load() -> FakeEngine:
        loaded = engines.pop(0)
        if isinstance(loaded, Exception):
            raise loaded
        return loaded

    in_background(monkeypatch, load)
    async with device("model.gguf", name="phone") as endpoint:
        stream = endpoint.open(HELLO)
        with pytest.raises(EngineError, match="phone: no such file"):
            await stream.receive()
        await stream.cancel()
        await endpoint.start()
        assert text_of((await read(endpoint.open(HELLO)))[0]) == "hi"


async def test_a_prompt_that_does_not_fit_fails_with_the_numbers() -> None:
    async with device(FakeEngine(context_tokens=4), name="phone") as endpoint:
        stream = endpoint.open(Request(prompt="one two three four five"))
        with pytest.raises(EngineError, match=r"phone: prompt: expected at most 3 tokens \(the context is 4\), got 5"):
            await stream.receive()


@pytest.mark.parametrize("request_", [Request(), Request(prompt="a", prompt_ids=[1])])
async def test_not_exactly_one_prompt_is_the_callers_fault(request_: Request) -> None:
    with pytest.raises(UsageError, match="expected exactly one of messages, prompt and prompt_ids"):
        request_ids(FakeEngine(), request_)
    async with device(FakeEngine()) as endpoint:
        with pytest.raises(UsageError):
            await endpoint.open(request_).receive()


async def test_an_engine_that_fails_leaves_the_text_so_far() -> None:
    async with device(FakeEngine("one two three", fail_after=2)) as endpoint:
        stream = endpoint.open(HELLO)
        assert isinstance(await stream.receive(), TokensReceived)
        with pytest.raises(EngineError, match="failed after 2 tokens") as caught:
            await stream.receive()
    assert caught.value.partial == "one two"
    assert caught.value.endpoint == "device"


async def test_reading_on_after_the_end_is_refused() -> None:
    async with device(FakeEngine("hi")) as endpoint:
        stream = endpoint.open(HELLO)
        await read(stream)
        with pytest.raises(StreamConsumed):
            await stream.receive()
        await stream.cancel()  # nothing left to do


async def test_cancelling_waits_for_the_engine_to_let_go() -> None:
    engine = FakeEngine("word " * 100, mode="thread", token_s=10.0)
    async with device(engine) as endpoint:
        stream = endpoint.open(HELLO)
        await stream.receive()
        await asyncio.gather(stream.cancel(), stream.cancel())
        assert stream.timings is not None
        with pytest.raises(StreamClosed):
            await stream.receive()


async def test_cancelling_wakes_a_reader_that_waits() -> None:
    engine = FakeEngine("word", mode="manual")
    async with device(engine) as endpoint:
        stream = endpoint.open(HELLO)
        reader = asyncio.create_task(stream.receive())
        await asyncio.sleep(0)
        await stream.cancel()
        with pytest.raises(StreamClosed):
            await reader
        assert engine.generations[0].is_cancelled


async def test_cancelling_before_the_model_is_loaded_submits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    engine = FakeEngine()

    def load() -> FakeEngine:
        assert gate.wait(30)
        return engine

    in_background(monkeypatch, load)
    async with device("model.gguf") as endpoint:
        stream = endpoint.open(HELLO)
        cancelling = asyncio.create_task(stream.cancel())
        await asyncio.sleep(0)
        gate.set()
        await cancelling
        await endpoint.start()
        assert engine.requests == []


async def test_a_receive_that_is_cancelled_loses_nothing() -> None:
    engine = FakeEngine("one two", mode="manual")
    async with device(engine) as endpoint:
        stream = endpoint.open(HELLO)
        for _ in range(3):
            waiting = asyncio.create_task(stream.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        engine.step(3)
        assert text_of((await read(stream))[0]) == "one two"


async def test_closing_the_endpoint_cancels_its_streams_and_leaves_a_foreign_engine_open() -> None:
    engine = FakeEngine("word " * 100, mode="thread", token_s=10.0)
    endpoint = DeviceEndpoint(engine)
    stream = endpoint.open(HELLO)
    await endpoint.aclose()
    await endpoint.aclose()
    assert engine.generations[0].is_cancelled
    assert not engine.is_closed
    with pytest.raises(StreamClosed):
        await stream.receive()
    with pytest.raises(StreamClosed, match="the endpoint is closed"):
        await endpoint.start()
    engine.close()


async def test_closing_while_the_model_loads_frees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    engine = FakeEngine()

    def load() -> FakeEngine:
        assert gate.wait(30)
        return engine

    in_background(monkeypatch, load)
    endpoint = DeviceEndpoint("model.gguf")
    starting = asyncio.create_task(endpoint.start())
    await asyncio.sleep(0)
    closing = asyncio.create_task(endpoint.aclose())
    await asyncio.sleep(0)
    gate.set()
    await closing
    with pytest.raises(StreamClosed):
        await starting
    assert engine.is_closed


def test_a_model_that_loads_when_its_loop_ends_is_kept_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, engines = threading.Event(), [FakeEngine()]

    def load() -> FakeEngine:
        assert gate.wait(30)
        return engines.pop()

    in_background(monkeypatch, load)
    endpoint = DeviceEndpoint("model.gguf")

    async def begin() -> None:
        starting = asyncio.create_task(endpoint.start())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(gate.set)
        starting.cancel()

    asyncio.run(begin())
    asyncio.run(endpoint.start())
    engine = endpoint.engine
    assert isinstance(engine, FakeEngine)
    assert not engines
    asyncio.run(endpoint.aclose())
    assert engine.is_closed


def test_a_loop_that_ends_cancels_every_stream_that_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, engine = threading.Event(), FakeEngine("word " * 100, mode="thread", token_s=10.0)

    def load() -> FakeEngine:
        assert gate.wait(30)
        return engine

    in_background(monkeypatch, load)
    endpoint = DeviceEndpoint("model.gguf")
    streams: list[Any] = []

    async def begin() -> None:
        streams.extend(endpoint.open(HELLO) for _ in range(3))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(gate.set)

    asyncio.run(begin())
    assert [stream._is_cancelled for stream in streams] == [True] * 3
    asyncio.run(endpoint.aclose())


async def test_an_engine_closed_under_a_stream_is_an_error_of_the_stream() -> None:
    engine = FakeEngine("word " * 100, mode="thread", token_s=10.0)
    async with device(engine) as endpoint:
        stream = endpoint.open(HELLO)
        await stream.receive()
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineError, match="closed before the answer was complete"):
            await stream.receive()


def test_a_loop_that_ends_without_its_stream_stops_the_engine() -> None:
    engine = FakeEngine("one two three four", mode="manual")

    async def leave() -> None:
        DeviceEndpoint(engine).open(HELLO)

    asyncio.run(leave())
    engine.step()
    assert engine.generations[0].is_cancelled


def cached(end: StreamEnded) -> tuple[int, int, int]:
    """Prompt tokens, those that were found in the cache, and completion tokens."""
    assert end.usage is not None
    assert end.usage.prompt_tokens_details is not None
    return end.usage.prompt_tokens, end.usage.prompt_tokens_details.cached_tokens or 0, end.usage.completion_tokens


@pytest.mark.parametrize("mode", ["instant", "thread"])
async def test_a_preparation_ends_with_its_usage_and_says_nothing(mode: Any) -> None:
    engine = FakeEngine("one two", mode=mode)
    async with device(engine) as endpoint:
        assert endpoint.capabilities.pre_copy == "append"
        asked = replace(HELLO, partial=Partial(text=" a b", tokens=2), prefill_only=True)
        chunks, end, batches = await read(endpoint.open(asked))
        assert (chunks, batches, end.finish_reason, cached(end)) == ([], [], None, (5, 0, 0))
        assert engine.requests[0].prefill_only
        assert engine.detokenize(engine.requests[0].prompt_ids) == b"user: hello\nassistant: a b"
        _, end, _ = await read(endpoint.open(replace(HELLO, partial=Partial(text=" a b c", tokens=3))))
        assert cached(end) == (6, 5, 2)


async def test_a_preparation_can_be_cancelled_and_can_fail() -> None:
    engine = FakeEngine(mode="manual", context_tokens=4)
    async with device(engine, name="phone") as endpoint:
        stream = endpoint.open(Request(prompt="a b", prefill_only=True))
        await stream.cancel()
        assert engine.generations[0].is_cancelled
        with pytest.raises(EngineError, match="phone: prompt: expected at most 4 tokens"):
            await endpoint.open(Request(prompt="a b c d e", prefill_only=True)).receive()


async def test_a_long_beginning_is_tokenised_elsewhere() -> None:
    engine = FakeEngine()
    async with device(engine) as endpoint:
        stream = endpoint.open(replace(HELLO, partial=Partial(text=" word" * 1000, tokens=1000), prefill_only=True))
        assert not engine.requests
        await read(stream)
        assert len(engine.requests[0].prompt_ids) == 1003


PREPARED = Request(
    messages=[{"role": "user", "content": "Describe the sea in many words."}],
    sampling=SamplingOptions(temperature=0, max_tokens=48),
    extra={"ignore_eos": True},
)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("exact", [False, True])
async def test_a_real_model_goes_on_behind_what_it_has_prepared(exact: bool) -> None:
    pytest.importorskip("llama_cpp")
    options = EngineOptions(threads=1, context_tokens=512, max_sequences=2, exact=exact)
    async with device(packaged_model(), options=options, name="source") as source, device(packaged_model(), options=options) as target:
        await source.start()
        await target.start()
        chunks, _, _ = await read(source.open(PREPARED))
        ids = [token for chunk in chunks for token in chunk.choices[0].token_ids or ()]
        prompt = source.count_tokens(PREPARED)
        assert prompt is not None
        assert len(ids) == 48

        def begun(count: int, max_tokens: int | None = None, *, prefill_only: bool = False) -> Request:
            partial = Partial(text="", ids=tuple(ids[:count]), vocabulary=source.capabilities.vocabulary, tokens=count)
            sampling = SamplingOptions(temperature=0, max_tokens=max_tokens)
            return replace(PREPARED, partial=partial, sampling=sampling, prefill_only=prefill_only)

        found = 0
        for count in (8, 20, 33):
            spoken, end, batches = await read(target.open(begun(count, prefill_only=True)))
            assert (spoken, batches, end.finish_reason) == ([], [], None)
            assert cached(end) == (prompt + count, found, 0)
            found = prompt + count
        rest, end, _ = await read(target.open(begun(36, 12)))
        assert cached(end)[:2] == (prompt + 36, prompt + 33)
        if exact:
            assert [token for chunk in rest for token in chunk.choices[0].token_ids or ()] == ids[36:]


@pytest.mark.model
async def test_a_real_model_finds_a_text_it_has_prepared_but_for_the_seam() -> None:
    pytest.importorskip("llama_cpp")
    text = "The sea is wide and blue. It moves all day, and at night it shines under the moon."
    async with device(packaged_model(), options=EngineOptions(threads=1, context_tokens=512)) as endpoint:
        await endpoint.start()
        found = 0
        for length in range(11, len(text), 7):  # cuts inside words and after spaces
            request = replace(PREPARED, partial=Partial(text=text[:length], tokens=length // 4), prefill_only=True)
            _, end, _ = await read(endpoint.open(request))
            prompt, reused, made = cached(end)
            assert reused >= found - 3, f"{text[:length]!r}"
            assert made == 0
            found = prompt


@pytest.mark.model
async def test_a_real_model_answers_and_stops_without_blocking_the_loop() -> None:
    pytest.importorskip("llama_cpp")
    path = packaged_model()
    with blockbuster_ctx():
        endpoint = DeviceEndpoint(path, options=EngineOptions(threads=1, context_tokens=512))
        await endpoint.start()
        question = Request(
            messages=[{"role": "user", "content": "Name three colours."}], sampling=SamplingOptions(temperature=0, max_tokens=12)
        )
        chunks, end, batches = await read(endpoint.open(question))
        assert text_of(chunks)
        assert end.usage is not None
        assert end.usage.completion_tokens == sum(batch.tokens for batch in batches)
        assert end.usage.prompt_tokens == endpoint.count_tokens(question)
        stream = endpoint.open(Request(prompt="many words " * 200))
        await asyncio.sleep(0.05)
        await stream.cancel()
        assert stream.timings is not None
        assert stream.timings.completion_tokens == 0
        await endpoint.aclose()


# OpenAI's further fields


async def test_log_probabilities_come_with_each_piece() -> None:
    async with device(FakeEngine(["a", "b"])) as endpoint:
        chunks, _, _ = await read(endpoint.open(replace(HELLO, extra={"logprobs": True, "top_logprobs": 1})))
    found = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].delta.content]
    entries = [entry for each in found if each is not None for entry in each.content or ()]
    assert [(entry.token, entry.logprob, len(entry.top_logprobs)) for entry in entries] == [("a", 0.0, 1), ("b", 0.0, 1)]


async def test_without_being_asked_no_log_probabilities_come() -> None:
    async with device(FakeEngine(["a"])) as endpoint:
        chunks, _, _ = await read(endpoint.open(HELLO))
    assert all(chunk.choices[0].logprobs is None for chunk in chunks)


async def test_an_engine_that_is_silent_for_too_long_is_stopped() -> None:
    engine = FakeEngine(["a", "b"], mode="manual")
    async with device(engine) as endpoint:
        stream = endpoint.open(replace(HELLO, timeouts=Timeouts(first_token=0.01)))
        with pytest.raises(EndpointTimeoutError, match="first token"):
            await stream.receive()
        await stream.cancel()


@pytest.mark.long
@pytest.mark.model
async def test_a_real_model_keeps_to_penalties_biases_and_log_probabilities() -> None:
    async with device(packaged_model(), options=EngineOptions(context_tokens=512, threads=1)) as endpoint:

        async def ids(logprobs: bool = False, **sampling: Any) -> tuple[list[int], list[Any]]:
            extra = {"logprobs": True, "top_logprobs": 2} if logprobs else {}
            options = SamplingOptions(temperature=0, max_tokens=12, **sampling)
            chunks, _, _ = await read(endpoint.open(replace(HELLO, sampling=options, extra=extra)))
            choices = [chunk.choices[0] for chunk in chunks if chunk.choices[0].token_ids]
            return [token for choice in choices for token in choice.token_ids or ()], [choice.logprobs for choice in choices]

        usual, _ = await ids()
        forbidden, _ = await ids(logit_bias=((usual[0], -100.0),))
        assert usual[0] not in forbidden
        varied, _ = await ids(frequency_penalty=2.0, presence_penalty=2.0)
        assert len(set(varied)) >= len(set(usual))
        same, logprobs = await ids(logprobs=True)
        assert same == usual
        entries = [entry for each in logprobs for entry in each["content"]]
        assert len(entries) == len(usual)
        assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] for entry in entries), "greedy"
