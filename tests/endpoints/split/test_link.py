"""The link of a device to split servers, over layers without weights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from streamco.config import Timeouts
from streamco.core.split.events import (
    ComputeRows,
    OpenSession,
    RowsAdded,
    RowsComputed,
    SendRows,
    SessionLost,
    SessionReady,
    SplitEvent,
    StatesArrived,
)
from streamco.core.split.machine import SplitMachine
from streamco.endpoints.split.base import DeepStates, LinkEvent
from streamco.endpoints.split.link import ServerLink
from streamco.endpoints.split.upload_meter import UPLOAD_RATE, UploadMeter
from streamco.endpoints.verifiers.connection import VerifierAddress, load_websockets
from streamco.endpoints.verifiers.streamco import verifier_url
from streamco.engines.llamacpp.model_parts import PartInfo
from streamco.policies.chunking import Chunking, PromptPlan
from streamco.profiles.row_costs import RowCosts
from streamco.testing.link_proxy import LinkProxy
from streamco.wire.split.frames import SplitLimits
from streamco.wire.tensors import StateFormat
from tests.server.split.serving_layers import WIDTH, SummingLayers, serving_layers
from tests.server.split.test_sessions import some
from tests.support.leaks import settled

INFO = PartInfo("input", "digest", 0, 2, 30, WIDTH, "llama")


def link_to(
    *urls: str,
    patience: float = 0.1,
    max_wait: float = 60.0,
    chunking: Chunking = "fastest",
    form: StateFormat | Literal["auto"] = "f32",
    width: int = WIDTH,
) -> ServerLink:
    addresses = [VerifierAddress(*verifier_url(url, is_plain=False)) for url in urls]
    loop, limits, info = asyncio.get_running_loop(), Timeouts(connect=5.0, socket=5.0), replace(INFO, width=width)
    return ServerLink(addresses, info, loop=loop, form=form, timeouts=limits, patience=patience, max_wait=max_wait, chunking=chunking)


class Device:
    """Asks for the state of the last of some rows, and again after every loss, as an answer does."""

    def __init__(
        self,
        *urls: str,
        rows: int = 2,
        patience: float = 0.1,
        max_wait: float = 60.0,
        chunking: Chunking = "fastest",
        form: StateFormat | Literal["auto"] = "f32",
    ) -> None:
        self.rows = rows
        self.link = link_to(*urls, patience=patience, max_wait=max_wait, chunking=chunking, form=form)
        self.losses = 0
        self.end: asyncio.Future[LinkEvent] = self.link.loop.create_future()
        self.session = self.link.session(self.receive, 16)
        self.session.open(OpenSession(0, may_resume=False))

    def receive(self, event: LinkEvent) -> None:
        match event:
            case SessionReady():
                if self.rows:
                    self.session.send(SendRows(event.attempt, 0, self.rows, 1), np.ones((self.rows, WIDTH), np.float32))
            case SessionLost():
                self.losses += 1
                self.session.send(SendRows(event.attempt, self.rows, self.rows + 1, 1), np.ones((1, WIDTH), np.float32))  # too late
                self.session.open(OpenSession(event.attempt + 1, may_resume=event.may_resume))
            case _:
                self.end.set_result(event)


class Prompt:
    """Sends a prompt as an answer does: the machine decides, the link carries."""

    def __init__(
        self, link: str | ServerLink, states: NDArray[np.float32], chunking: Chunking = "fastest", *, rate: float | None = None
    ) -> None:
        self.link = link_to(link, max_wait=0.0, chunking=chunking) if isinstance(link, str) else link
        if rate is not None:
            self.link.servers[0].meter = UploadMeter(rate)
        self.end: asyncio.Future[NDArray[np.float32]] = self.link.loop.create_future()
        self.most_unanswered = self.unanswered = 0
        self._states = states
        self._session = self.link.session(self._receive, len(states))
        self.traffic = self._session.traffic
        self.machine = SplitMachine(plan=lambda rows, computed: self.link.plan(rows, computed=computed), max_rows=self.link.max_rows)
        self.machine.start(now=0.0)
        self._put(RowsAdded(len(states), 1))

    def _receive(self, event: LinkEvent) -> None:
        assert isinstance(event, SessionReady | DeepStates), event
        if isinstance(event, SessionReady):
            self._put(event)
            return
        self.unanswered -= 1
        self._put(StatesArrived(event.attempt))
        if not self.machine.is_waiting:
            self.end.set_result(event.states)

    def _put(self, event: SplitEvent) -> None:
        self.machine.receive(event, now=0.0)
        for command in self.machine.take_commands():
            match command:
                case ComputeRows():
                    self._put(RowsComputed(command.stop))
                case OpenSession():
                    self._session.open(command)
                case SendRows():
                    self.unanswered += 1
                    self.most_unanswered = max(self.most_unanswered, self.unanswered)
                    self._session.send(command, self._states[command.start : command.stop])


async def test_many_chunks_are_on_the_way_over_a_long_link_and_the_server_computes_them_together() -> None:
    await load_websockets()
    layers, prompt = SummingLayers(is_manual=True), some(240)
    async with serving_layers(layers) as server, LinkProxy(urlsplit(server.url).port or 0, rtt=0.02) as link:
        device = Prompt(f"ws://127.0.0.1:{link.port}", prompt, 8)
        await settled(lambda: server.figures["pending_rounds"] == 30)
        assert device.most_unanswered == 30, "no answer was needed to send the next chunk"
        while not device.end.done():
            if layers.waiting:
                layers.compute()
            await asyncio.sleep(0.001)
        assert device.end.result().tolist() == [np.cumsum(prompt, axis=0)[-1].tolist()]
        assert (device.machine.counts.chunks, server.figures["rounds"]) == (30, 30)
        assert [rows for [(_, _, rows)] in layers.batches] == [8, 128, 104]
        assert server.figures["merged_rounds"] == 15 + 12
        await device.link.aclose()


@pytest.mark.parametrize(("chunking", "rounds"), [("whole", 1), (128, 2), (16, 15)])
async def test_a_prompt_goes_up_in_the_chunks_that_are_asked_for(chunking: Chunking, rounds: int) -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(), room=64) as server:
        device = Prompt(server.url, some(240), chunking)
        assert (await device.end).tolist() == [np.cumsum(some(240), axis=0)[-1].tolist()]
        assert server.figures["rounds"] == rounds
        await device.link.aclose()


@pytest.mark.parametrize(("rate", "is_cut"), [(1e9, False), (2e5, True)])
async def test_the_fastest_chunks_follow_from_the_rate_of_the_link(rate: float, *, is_cut: bool) -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(), room=128) as server:
        device = Prompt(server.url, some(120), "fastest", rate=rate)
        await device.end
        assert (server.figures["rounds"] > 1) == is_cut
        await device.link.aclose()


async def test_the_way_to_a_server_is_measured_while_many_chunks_are_on_it() -> None:
    await load_websockets()
    layers = SummingLayers(cells=4096, batch_rows=512)
    async with serving_layers(layers, room=256) as server, LinkProxy(urlsplit(server.url).port or 0, rtt=0.02, mbps=4.0) as link:
        device = Prompt(f"ws://127.0.0.1:{link.port}", np.ones((4096, WIDTH), np.float32), 64)
        await device.end
        assert device.most_unanswered > 2
        assert device.link.servers[0].meter.rate != UPLOAD_RATE, "128 kB went up in frames of 2 kB"
        await device.link.aclose()


class SlowLayers(SummingLayers):
    """Layers of wider states that take 1.2 ms a row in full batches of 128 rows: 0.2 MB/s of states in 32 bits."""

    def __init__(self) -> None:
        super().__init__(cells=2048, width=64)
        self.seconds = 0.155

    def row_costs(self) -> Mapping[int, float]:
        return {1: 0.005, 64: 0.08}


@pytest.mark.parametrize(("mbps", "expected"), [(1.0, "f16"), (None, "f32")])
async def test_over_a_link_that_is_slower_than_the_server_states_travel_in_16_bits(mbps: float | None, expected: str) -> None:
    await load_websockets()
    states = np.ones((384, 64), np.float32)
    async with serving_layers(SlowLayers(), room=128) as server, LinkProxy(urlsplit(server.url).port or 0, rtt=0.01, mbps=mbps) as proxy:
        link = link_to(f"ws://127.0.0.1:{proxy.port}", chunking=64, form="auto", width=64)
        answers = []
        for _ in range(2):
            answers.append(Prompt(link, states))
            assert (await answers[-1].end).tolist() == [[384.0] * 64]
        first, second = (answer.traffic for answer in answers)
        assert first.states == "f32", "nothing is measured before"
        assert second.states == expected
        assert (second.bytes_up < 0.6 * first.bytes_up) is (second.bytes_down < 0.7 * first.bytes_down) is (expected == "f16")
        await link.aclose()


def slow_meter() -> UploadMeter:
    """A meter that has measured 1 kB/s."""
    meter = UploadMeter()
    first, second = (meter.record_sent(70_000, now=0.0) for _ in range(2))
    before = meter.record_answer(first, 0.0, None, now=70.0)
    meter.record_answer(second, 0.0, before, now=140.0)
    assert meter.rate == pytest.approx(1e3)
    return meter


async def test_an_answer_keeps_its_format_and_plans_have_that_of_the_next_one() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers()) as server:
        device = Device(server.url, form="auto")
        await device.end
        found = []
        for meter in (UploadMeter(), UploadMeter(1e3), slow_meter()):
            device.link.servers[0].meter = meter
            found.append((device.link.form, device.link.row_seconds(8)))
        assert [form for form, _ in found] == ["f32", "f32", "f16"], "a rate that is only believed says nothing"
        assert found[2][1] < 0.6 * found[1][1]
        device.end = asyncio.get_running_loop().create_future()
        device.session.open(OpenSession(1, may_resume=False))
        await device.end
        assert device.session.traffic.states == "f32", "the answer began with it"
        other = Prompt(device.link, some(20))
        await other.end
        assert other.traffic.states == "f16"
        await device.link.aclose()


@pytest.mark.parametrize("form", ["f32", "f16", "i8"])
async def test_a_format_that_was_chosen_is_used_over_any_link(form: StateFormat) -> None:
    await load_websockets()
    async with serving_layers(SummingLayers()) as server:
        device = Device(server.url, form=form)
        device.link.servers[0].meter = slow_meter()
        await device.end
        assert (device.link.form, device.session.traffic.states) == (form, form)
        await device.link.aclose()


async def test_states_come_back_and_their_bytes_are_counted() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers()) as server:
        device = Device(server.url)
        event = await device.end
        assert isinstance(event, DeepStates)
        assert event.states.tolist() == [[2.0] * WIDTH]
        assert (device.link.traffic.rows_up, device.link.traffic.rows_down) == (2, 1)
        assert device.link.traffic.bytes_down > 4 * WIDTH
        await device.link.aclose()


async def test_a_prompt_is_planned_with_what_the_server_says() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(cells=200), room=64) as server:
        for chunking, size in (("whole", 200), (30, 30)):
            device = Device(server.url, chunking=chunking)  # type: ignore[arg-type]
            assert device.link.plan(5000) == PromptPlan(min(5000, SplitLimits().rows)), "in one piece while no server is known"
            await device.end
            assert device.link.plan(5000).size == size
            assert 2 <= device.link.plan(5000).max_unanswered <= 64
            await device.link.aclose()


async def test_a_download_of_all_rows_counts_in_the_plan() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(cells=2000), room=256) as server:
        device = Device(server.url, rows=1)
        await device.end
        device.link.servers[0].meter = UploadMeter(2e4)
        size = device.link.plan(1000).size
        device.link.prompt_rows = "all"
        assert device.link.plan(1000).size < size
        await device.link.aclose()


async def test_plans_follow_a_server_that_becomes_slower_on_the_same_connection() -> None:
    await load_websockets()
    layers = SummingLayers(cells=2000)
    layers.seconds = 0.0051  # as measured
    async with serving_layers(layers, room=64) as server:
        device = Device(server.url, rows=1)
        device.link.servers[0].meter = UploadMeter(4e6)  # a row is sent in 8 us
        await device.end
        costs_of_device = RowCosts({1: 0.001, 640: 0.64})
        row, prompt = device.link.row_seconds(8), device.link.plan(640, input_costs=costs_of_device)
        layers.seconds = 1.0
        for length in range(1, 9):
            device.end = asyncio.get_running_loop().create_future()
            device.session.send(SendRows(0, length, length + 1, 1), np.ones((1, WIDTH), np.float32))
            await device.end
        costs = device.link.servers[0].costs
        assert costs is not None
        assert costs.seconds(1) > 0.7, "nearly the second that each batch takes"
        assert device.link.row_seconds(8) < row, "a row more costs nothing where all of the time is for the batch"
        assert device.link.plan(640, input_costs=costs_of_device).size > prompt.size
        assert device.losses == 0
        await device.link.aclose()


async def test_all_states_of_a_prompt_may_be_asked_for_to_measure_them() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers()) as server:
        device = Device(server.url)
        device.link.prompt_rows = "all"
        event = await device.end
        assert isinstance(event, DeepStates)
        assert event.states.tolist() == [[2.0] * WIDTH], "the answer gets what it needs"
        assert device.link.traffic.rows_down == 2
        await device.link.aclose()
