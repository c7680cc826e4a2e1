"""The driver of a split model's answer: text, pace, ends and report, beside those of the same answer in a race of one."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

import streamco
from streamco.client.driver import AnswerDriver
from streamco.client.modes.split.driver import SplitAnswerDriver
from streamco.client.modes.split.report import PromptFacts
from streamco.config import ReaderPace, SamplingOptions, Timeouts
from streamco.core.report import Report
from streamco.endpoints.base import Request
from streamco.endpoints.split.endpoint import SplitStream
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.split.middle_engine import MiddleEngine
from streamco.errors import ConfigError, EndpointConnectError, EndpointError, StreamClosed, StreamcoError, UsageError
from streamco.server.options import ServeOptions
from streamco.server.split.service import serving_middle
from streamco.testing.fault_proxy import FaultProxy
from tests.engines.split.local_link import CELLS
from tests.support.leaks import holding_nothing_new, settled, without_collector

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

PROMPT = "Name three rivers in France."
GREEDY = SamplingOptions(temperature=0, max_tokens=12)
REQUEST = Request(messages=[{"role": "user", "content": PROMPT}], sampling=GREEDY)
OPTIONS = EngineOptions(threads=1, context_tokens=CELLS, max_sequences=2, ring_tokens=8)


class World(NamedTuple):
    """A split model, and a proxy before its server that can be cut."""

    endpoint: streamco.SplitEndpoint
    proxy: FaultProxy

    def answer(self, request: Request = REQUEST, *, pace: ReaderPace = None, **options: Any) -> SplitAnswerDriver:
        facts = PromptFacts(prompt_tokens=self.endpoint.count_tokens(REQUEST) or 0)
        driver = SplitAnswerDriver(self.endpoint, request, facts=facts, pace=pace, **options)
        driver.start()
        return driver

    async def is_idle(self) -> None:
        """Wait until nothing of an answer is left in the engine or at the server."""
        engine, link = self.endpoint.parts()
        await settled(lambda: not engine._running and not engine._waiting and not link._sessions)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    return split_model(packaged_model(), tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def middle(files: PartFiles) -> Iterator[MiddleEngine]:
    engine = MiddleEngine(files.middle, cells=CELLS, sequences=4, threads=1, row_costs={1: 0.005, 64: 0.05})
    yield engine
    engine.close()


@pytest.fixture
async def world(files: PartFiles, middle: MiddleEngine) -> AsyncIterator[World]:
    async with (
        holding_nothing_new(),
        serving_middle(middle, ServeOptions(port=0)) as url,
        FaultProxy(int(url.rpartition(":")[2])) as proxy,
    ):
        endpoint = streamco.SplitEndpoint(files.stem, proxy.url, options=OPTIONS, states="f32", patience=0.1)
        await endpoint.start()
        yield World(endpoint, proxy)
        await endpoint.aclose()


async def read(driver: AnswerDriver, texts: list[str] | None = None) -> str:
    texts = [] if texts is None else texts
    while (batch := await driver.next_batch()) is not None:
        texts.append(text_of(batch))
    return "".join(texts)


def text_of(batch: tuple[str, list[Any], float]) -> str:
    assert batch[0] == "split"
    return "".join(choice.delta.content or "" for chunk in batch[1] for choice in chunk.choices)


def timeless(report: Report) -> Report:
    """A report without its times, which no two answers share, and without what drafts depend on."""
    parts = [
        replace(part, opened=part.opened is not None, stopped=part.stopped is not None, ttft=part.ttft is not None)
        for part in report.endpoints
    ]
    assert report.split is not None
    split = replace(report.split, bytes_up=0, bytes_down=0, rows_up=0, rows_down=0, trips=0, chunks=0, drafted=0, accepted=0)
    split = replace(
        split, tokens_per_trip=None, looked_up=0, lookups_accepted=0, repeated_rows=0, branches=0, branch_hits=0, branch_tokens=0
    )
    return replace(
        report,
        ttft=report.ttft is not None,
        duration=report.duration > 0,
        tokens_per_second=report.tokens_per_second is not None,
        endpoints=parts,
        quality=None,
        split=split,
        request_id="",
    )


async def raced(world: World, read_it: Callable[[Any], Any], **options: Any) -> Report:
    """The report of the same answer in a race of one endpoint."""
    client = streamco.Client(world.endpoint, **options)
    stream = client.stream(PROMPT, temperature=0, max_tokens=GREEDY.max_tokens)
    await read_it(stream)
    await stream.aclose()
    await settled(lambda: stream.report.is_final)
    return stream.report


async def read_all(stream: streamco.TokenStream) -> None:
    async for _ in stream:
        pass


@pytest.mark.long
@pytest.mark.parametrize("pace", [None, 50.0, "smooth"])
async def test_the_report_is_that_of_a_race_of_one(world: World, pace: ReaderPace) -> None:
    driver = world.answer(pace=pace)
    assert await read(driver)
    await settled(lambda: driver.is_over)
    report = driver.report()
    assert driver.report() is report, "it is made once"
    assert timeless(report) == timeless(await raced(world, read_all, pace=pace))
    assert (report.tokens, report.ending, report.finish_reason, report.is_final) == (12, "complete", "length", True)
    assert driver.usage() == report.usage
    assert driver.cost().tokens == 12
    assert driver.opening().winner == "split"
    await world.is_idle()


@pytest.mark.long
async def test_a_pace_is_kept(world: World) -> None:
    driver, began = world.answer(pace=20.0), 0.0
    while (batch := await driver.next_batch()) is not None:
        began = began or batch[2]
        ended = batch[2]
    assert ended - began > 11 / 20 - 0.01
    assert (driver.report().tokens_per_second or 0.0) < 21.0


@pytest.mark.long
async def test_a_reader_that_leaves_ends_all_work_and_the_report_says_so(world: World) -> None:
    async def break_off(stream: streamco.TokenStream) -> None:
        async for _ in stream:
            return

    lines: list[str] = []
    over: list[SplitAnswerDriver] = []
    driver = world.answer(write_line=lines.append, on_over=over.append)
    assert await driver.next_batch()
    await driver.aclose()
    assert (driver.is_over, driver.was_broken_off, over) == (True, True, [driver])
    with pytest.raises(StreamClosed, match="the stream is closed"):
        await driver.next_batch()
    await world.is_idle()
    assert lines == ["split starts", "split is cancelled: reader left"]
    report = driver.report()
    assert (report.ending, report.is_final, report.usage is not None and report.usage.is_estimated) == ("left", True, True)
    other = await raced(world, break_off)
    assert (report.endpoints[0].outcome, report.winner, report.ending) == (other.endpoints[0].outcome, other.winner, other.ending)


@pytest.mark.long
async def test_an_answer_that_is_left_before_its_first_token_costs_only_its_prompt(world: World) -> None:
    driver = world.answer()
    driver.leave()
    await driver.aclose()
    await world.is_idle()
    report = driver.report()
    assert (report.winner, report.ending, report.tokens, report.endpoints[0].outcome) == (None, "left", 0, "lost")
    assert report.endpoints[0].wasted_prompt_tokens == report.endpoints[0].prompt_tokens > 10


@pytest.mark.long
async def test_an_answer_that_has_ended_is_freed_without_the_garbage_collector(world: World) -> None:
    async with streamco.Client(mode=streamco.Split(world.endpoint)) as client:
        for leaves in (False, True):
            stream = client.stream(PROMPT, temperature=0, max_tokens=12)
            async for _ in stream:
                if leaves:
                    break
            await stream.aclose()
            driver = weakref.ref(stream._answer.driver)
            await world.is_idle()
            with without_collector():
                del stream, _
                await asyncio.sleep(0.05)
                assert driver() is None, f"left early: {leaves}"


@pytest.mark.long
@pytest.mark.parametrize("pace", [None, 20.0])
@pytest.mark.parametrize("error", [RuntimeError("a defect"), ConfigError("a mistake")])
async def test_a_defect_fails_the_answer_and_keeps_its_text(
    world: World, error: Exception, pace: ReaderPace, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, texts = SplitStream.receive, list[str]()

    async def failing(stream: SplitStream) -> Any:
        event = await receive(stream)
        if driver.progress.made >= 3:
            raise error
        return event

    monkeypatch.setattr(SplitStream, "receive", failing)
    driver = world.answer(pace=pace)
    with pytest.raises(StreamcoError) as raised:
        await read(driver, texts)
    assert raised.value.partial == "".join(texts) != ""
    await driver.aclose()
    report = driver.report()
    assert (report.ending, report.is_final, driver.cost().ending, report.endpoints[0].outcome) == ("failed", True, "failed", "won")
    await world.is_idle()


@pytest.mark.long
async def test_a_reader_that_waits_slows_the_model_down(world: World) -> None:
    longer = replace(REQUEST, sampling=replace(GREEDY, max_tokens=60))
    driver = world.answer(longer)
    assert await driver.next_batch()
    await settled(lambda: driver.generation is not None and driver.generation.is_parked)
    assert driver.made < 30
    assert await read(driver)
    assert driver.report().tokens == 60


@pytest.mark.long
async def test_a_paced_reader_that_waits_slows_the_model_down_too(world: World) -> None:
    longer = replace(REQUEST, sampling=replace(GREEDY, max_tokens=60), max_buffered=4)
    driver = world.answer(longer, pace=1000.0, max_held=4)
    await driver.peek()
    await settled(lambda: driver.generation is not None and driver.generation.is_parked)
    assert driver.made < 30
    assert await read(driver)
    assert driver.report().tokens == 60


async def test_a_lost_server_ends_the_answer_after_its_text_with_one_error(world: World) -> None:
    lines: list[str] = []
    driver = world.answer(write_line=lines.append)
    text = ""
    while not text:
        batch = await driver.next_batch()
        assert batch is not None
        text += text_of(batch)
    await world.proxy.aclose()
    more: list[str] = []
    with pytest.raises(EndpointConnectError) as caught:
        await read(driver, more)
    assert caught.value.partial == text + "".join(more)
    assert driver.is_over
    await world.is_idle()
    report = driver.report()
    assert (report.ending, report.finish_reason, report.endpoints[0].outcome) == ("failed", None, "won")
    assert report.endpoints[0].error == str(caught.value)
    assert lines == ["split starts", "split has failed: EndpointConnectError"]


@pytest.mark.long
async def test_a_prompt_that_does_not_fit_is_an_error(world: World) -> None:
    driver = world.answer(replace(REQUEST, messages=None, prompt="word " * 2 * CELLS))
    with pytest.raises(EndpointError, match=f"expected 1 to {CELLS - 1} ids"):
        await driver.peek()
    await settled(lambda: driver.is_over)
    assert driver.report().endpoints[0].outcome == "failed"


@pytest.mark.long
async def test_a_mistake_of_the_callers_is_raised_as_it_is(world: World) -> None:
    driver = world.answer(replace(REQUEST, prompt="and a prompt"))
    with pytest.raises(UsageError, match="exactly one of"):
        await driver.next_batch()
    await settled(lambda: driver.is_over)


@pytest.mark.long
async def test_a_limit_on_time_is_kept(world: World) -> None:
    driver = world.answer(replace(REQUEST, timeouts=Timeouts(total=1e-6)))
    with pytest.raises(streamco.errors.EndpointTimeoutError):
        await read(driver)
    await settled(lambda: driver.is_over)
    await world.is_idle()


@pytest.mark.long
async def test_an_observer_that_raises_ends_the_answer(world: World) -> None:
    def refuse(*_: object) -> Request:
        raise ValueError("no")

    driver = world.answer(on_open=refuse)
    with pytest.raises(StreamcoError, match="no"):
        await driver.next_batch()
    assert driver.is_over


@pytest.mark.long
async def test_a_cancelled_read_loses_nothing(world: World) -> None:
    driver, expected = world.answer(), await read(world.answer())
    task = asyncio.ensure_future(driver.next_batch())
    await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])
    text = "" if task.cancelled() or (batch := task.result()) is None else text_of(batch)
    assert text + await read(driver) == expected


@pytest.mark.long
async def test_a_defect_in_the_session_is_the_answers_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(*_: object) -> None:
        raise ValueError("no such row")

    monkeypatch.setattr("streamco.endpoints.split.session.ServerSession.send", send)
    driver = world.answer()
    with pytest.raises(EndpointError, match="no such row"):
        await driver.next_batch()
    await settled(lambda: driver.is_over)
    await world.is_idle()
