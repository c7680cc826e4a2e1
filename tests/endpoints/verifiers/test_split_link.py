"""The link of a device to split servers, over layers without weights."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import numpy as np

from streamco.config import Timeouts
from streamco.core.split.events import OpenSession, SendRows, SessionLost, SessionReady
from streamco.endpoints.verifiers.connection import VerifierAddress, load_websockets
from streamco.endpoints.verifiers.split_link import ServerLink
from streamco.endpoints.verifiers.streamco import verifier_url
from streamco.engines.llamacpp.model_parts import PartInfo
from streamco.engines.split.answer import DeepStates, LinkEvent, LinkFailed
from streamco.policies.chunking import Chunking, PromptPlan
from streamco.testing.fault_proxy import FaultProxy
from streamco.wire.split.frames import SplitLimits
from tests.server.split.layers import WIDTH, SummingLayers, serving_layers

INFO = PartInfo("input", "digest", 0, 2, 30, WIDTH, "llama")


class Device:
    """Asks for one row, and again after every loss, as an answer does."""

    def __init__(self, *urls: str, chunking: Chunking = "fastest") -> None:
        addresses = [VerifierAddress(*verifier_url(url, is_plain=False)) for url in urls]
        loop = asyncio.get_running_loop()
        limits = Timeouts(connect=5.0, socket=5.0)
        self.link = ServerLink(addresses, INFO, loop=loop, form="f32", timeouts=limits, patience=0.1, chunking=chunking)
        self.losses = 0
        self.end: asyncio.Future[LinkEvent] = loop.create_future()
        self.session = self.link.session(self.receive, 16)
        self.session.open(OpenSession(0, may_resume=False))

    def receive(self, event: LinkEvent) -> None:
        match event:
            case SessionReady():
                self.session.send(SendRows(event.attempt, 0, 2, 1), np.ones((2, WIDTH), np.float32))
            case SessionLost():
                self.losses += 1
                self.session.open(OpenSession(event.attempt + 1, may_resume=event.may_resume))
            case _:
                self.end.set_result(event)


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


async def test_after_a_failure_another_server_goes_on() -> None:
    await load_websockets()
    broken = SummingLayers()
    broken.failures = 1000
    async with serving_layers(broken) as first, serving_layers(SummingLayers()) as second:
        device = Device(first.url, second.url)
        assert isinstance(await device.end, DeepStates)
        assert device.losses == 1
        await device.link.aclose()


async def test_servers_that_always_fail_end_the_answer_and_are_not_asked_for_ever() -> None:
    await load_websockets()
    broken = SummingLayers()
    broken.failures = 1000
    async with serving_layers(broken) as server:
        device = Device(server.url)
        event = await device.end
        assert isinstance(event, LinkFailed)
        assert device.losses == 2
        await device.link.aclose()


async def test_a_connection_that_is_cut_by_every_round_ends_the_answer() -> None:
    await load_websockets()
    layers = SummingLayers(is_manual=True)
    async with serving_layers(layers) as server, FaultProxy(urlsplit(server.url).port or 0) as proxy:
        device = Device(f"ws://127.0.0.1:{proxy.port}")
        while not device.end.done():
            await asyncio.sleep(0.01)
            if layers.waiting:
                layers.waiting.clear()
                proxy.reset()
        assert isinstance(device.end.result(), LinkFailed)
        await device.link.aclose()
