"""Sessions of a device at split servers: losses, servers that are busy, and the order in which answers get places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest
from msgspec.structs import replace

from streamco.core.split.events import OpenSession, SendRows, SessionLost, SessionReady
from streamco.core.verifier.options import LoadLimits
from streamco.endpoints.split.base import DeepStates, LinkEvent, LinkFailed, LinkSession
from streamco.endpoints.split.link import ServerLink
from streamco.endpoints.verifiers.connection import load_websockets
from streamco.errors import EndpointTimeoutError
from streamco.server.verify.options import VerifyOptions
from streamco.testing.fault_proxy import FaultProxy
from streamco.testing.link_proxy import LinkProxy
from tests.endpoints.split.test_link import Device, link_to
from tests.server.split.serving_layers import PATIENT, WIDTH, Serving, SummingLayers, device_at, mark_of, serving_layers
from tests.server.split.test_sessions import some
from tests.support.leaks import settled


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


BUSY = VerifyOptions(load=LoadLimits(prefill_within=0.0, min_retry=0.001, max_retry=0.01))
"""A prompt that comes beside another one is refused."""


@asynccontextmanager
async def busy() -> AsyncIterator[tuple[Serving, SummingLayers]]:
    """A server that reads the prompt of another device."""
    layers = SummingLayers(is_manual=True)
    async with serving_layers(layers, room=64, verify=BUSY) as server, device_at(server.url, mark_of(layers)) as other:
        session, _ = await other.open()
        await other.send(session, 0, some(200), wanted=1)
        await settled(lambda: bool(layers.waiting))
        yield server, layers


def overloads(server: Serving) -> int:
    """How many rounds were refused for load."""
    return int(server.figures["refused"].get("overloaded", 0))


async def test_rows_that_a_busy_server_refuses_are_sent_again_in_the_same_session() -> None:
    await load_websockets()
    async with busy() as (server, layers):
        device = Device(server.url, rows=40, patience=0.0)
        await settled(lambda: overloads(server) > 8)
        while not device.end.done():
            if layers.waiting:
                layers.compute()
            await asyncio.sleep(0.001)
        event = device.end.result()
        assert isinstance(event, DeepStates)
        assert event.states.tolist() == [[40.0] * WIDTH]
        assert server.figures["opened"] == 2, "the other device's and this one's"
        await device.link.aclose()


async def test_a_server_that_stays_too_busy_ends_the_answer_after_the_longest_wait() -> None:
    await load_websockets()
    async with busy() as (server, _):
        device = Device(server.url, rows=40, patience=60.0, max_wait=0.5)
        event = await device.end
        assert isinstance(event, LinkFailed)
        assert isinstance(event.error, EndpointTimeoutError)
        assert "within 0.5 s, got none, because they are busy with other answers" in str(event.error)
        assert "overloaded" in str(event.error)
        assert overloads(server) > 3
        await device.link.aclose()


async def test_a_connection_that_is_lost_while_refused_rows_wait_costs_nothing() -> None:
    await load_websockets()
    async with busy() as (server, layers), FaultProxy(urlsplit(server.url).port or 0) as proxy:
        device = Device(f"ws://127.0.0.1:{proxy.port}", rows=40, patience=60.0)
        await settled(lambda: overloads(server) > 1)
        proxy.reset()
        while not device.end.done():
            if layers.waiting:
                layers.compute()
            await asyncio.sleep(0.001)
        assert isinstance(device.end.result(), DeepStates)
        assert server.figures["resumed"] == 1
        await device.link.aclose()


async def test_a_server_that_asks_for_time_is_not_asked_before_it_and_the_error_says_so() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(), verify=replace(PATIENT, peer_sessions=1)) as server:
        first = Device(server.url)
        assert isinstance(await first.end, DeepStates)
        second = Device(server.url, patience=0.0, max_wait=0.5)
        end = await second.end
        assert isinstance(end, LinkFailed)
        assert "the server asks for 1 s before the next try" in str(end.error)
        assert server.service.manager.figures()["refused"] == {"address limit": 2}, "once at first, and once when the wait was over"
        await first.link.aclose()
        await second.link.aclose()


async def test_the_next_try_comes_when_the_server_said() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(), verify=replace(PATIENT, peer_sessions=1)) as server:
        first = Device(server.url)
        assert isinstance(await first.end, DeepStates)
        second = Device(server.url, patience=0.0)
        while not server.service.manager.figures()["refused"]:
            await asyncio.sleep(0.01)
        first.session.close()
        assert isinstance(await second.end, DeepStates)
        assert server.service.manager.figures()["refused"] == {"address limit": 1}
        await first.link.aclose()
        await second.link.aclose()


async def test_while_one_server_wants_time_another_one_answers() -> None:
    await load_websockets()
    full, free = serving_layers(SummingLayers(), verify=replace(PATIENT, peer_sessions=1)), serving_layers(SummingLayers())
    async with full as one, free as other:
        first = Device(one.url)
        assert isinstance(await first.end, DeepStates)
        second = Device(one.url, other.url, patience=30.0)
        assert isinstance(await second.end, DeepStates)
        assert len(second.link.traffic.servers) == 1
        assert str(urlsplit(other.url).port) in second.link.traffic.servers[0]
        await first.link.aclose()
        await second.link.aclose()


# More answers than places


class Answers:
    """Answers of one device that are asked for at the same time: each has a session of its own, and keeps it."""

    def __init__(self, link: ServerLink, count: int) -> None:
        self.done: list[int] = []  # numbers of those that have their states, in order
        self.errors: list[Exception] = []
        self.link = link
        self._sessions = [self._begin(number) for number in range(count)]

    def _begin(self, number: int) -> LinkSession:
        def receive(event: LinkEvent) -> None:
            match event:
                case SessionReady():
                    session.send(SendRows(event.attempt, 0, 2, 1), np.ones((2, WIDTH), np.float32))
                case SessionLost():
                    session.open(OpenSession(event.attempt + 1, may_resume=event.may_resume))
                case LinkFailed():
                    self.errors.append(event.error)
                    session.close()
                case DeepStates():
                    self.done.append(number)

        session = self.link.session(receive, 16)
        session.open(OpenSession(0, may_resume=False))
        return session

    def end(self, number: int) -> None:
        self._sessions[number].close()

    def go_on(self, number: int, rows: int = 1) -> None:
        """Send more rows after the first ones."""
        self._sessions[number].send(SendRows(0, 2, 2 + rows, 1), np.ones((rows, WIDTH), np.float32))

    async def are_done(self, *numbers: int) -> None:
        """Wait for these, and check that no other one gets a place."""
        await settled(lambda: len(self.done) >= len(numbers))
        await asyncio.sleep(0.02)
        assert self.done == list(numbers)


FEW = replace(PATIENT, load=replace(PATIENT.load, idle_after=30.0))
"""No answer loses its place to another."""


async def test_more_answers_than_places_wait_in_their_order_however_short_the_patience() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(sequences=1), verify=FEW) as server:
        link = link_to(server.url, patience=0.0)
        answers = Answers(link, 5)
        for number in range(5):
            await answers.are_done(*range(number + 1))
            answers.end(number)
        assert answers.errors == []
        assert server.figures["refused"]["overloaded"] <= 4 + 3 + 2, "those that wait for their turn don't ask"
        await link.aclose()


async def test_an_answer_that_waits_too_long_for_a_place_says_so_and_the_next_one_gets_it() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(sequences=1), verify=FEW) as server:
        link = link_to(server.url, patience=0.0, max_wait=0.2)
        answers = Answers(link, 2)
        await settled(lambda: bool(answers.errors))
        assert isinstance(answers.errors[0], EndpointTimeoutError)
        assert "expected a place at a split server within 0.2 s, got none, because they are busy" in str(answers.errors[0])
        answers.end(0)
        later = Answers(link, 1)
        await later.are_done(0)
        await link.aclose()


async def test_answers_of_other_devices_get_their_places_too() -> None:
    await load_websockets()
    load = replace(FEW.load, idle_after=0.05)  # a refused device asks again after it
    async with serving_layers(SummingLayers(sequences=1), verify=replace(FEW, load=load)) as server:
        links = [link_to(server.url, patience=0.0) for _ in range(3)]
        devices = [Answers(link, 2) for link in links]
        while (done := sum(len(each.done) for each in devices)) < 6:
            for each in devices:
                for number in each.done:
                    each.end(number)
            await asyncio.sleep(0.01)
        assert (done, [each.errors for each in devices]) == (6, [[], [], []])
        for link in links:
            await link.aclose()


async def test_an_answer_that_has_begun_gets_its_place_again_before_those_that_wait() -> None:
    await load_websockets()
    layers = SummingLayers(sequences=1)
    async with serving_layers(layers, verify=FEW) as server:
        link = link_to(server.url)
        answers = Answers(link, 2)
        await answers.are_done(0)
        await settled(lambda: bool(server.figures["refused"]))  # the other one is to ask again in 30 s
        layers.failures = 1
        answers.go_on(0)
        await answers.are_done(0, 0)
        answers.end(0)
        await answers.are_done(0, 0, 1)
        assert server.figures["opened"] == 3
        assert server.figures["refused"] == {"overloaded": 1, "engine failed": 1}
        await link.aclose()


async def test_the_place_of_an_answer_that_fails_goes_to_one_that_waits() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(sequences=1, cells=64), verify=FEW) as server:
        link = link_to(server.url)
        answers = Answers(link, 2)
        await answers.are_done(0)
        await settled(lambda: bool(server.figures["refused"]))
        answers.go_on(0, rows=64)
        await answers.are_done(0, 1)
        assert "context_full" in str(answers.errors[0]) or "expected at most 64 positions" in str(answers.errors[0])
        await link.aclose()


async def test_the_place_of_an_answer_that_goes_on_elsewhere_goes_to_one_that_waits() -> None:
    await load_websockets()
    layers = SummingLayers(sequences=1)
    async with serving_layers(layers, verify=FEW) as server, serving_layers(SummingLayers(sequences=1), verify=FEW) as other:
        link = link_to(server.url, other.url)
        stranger = Answers(link_to(other.url), 1)
        await stranger.are_done(0)
        answers = Answers(link, 2)
        await answers.are_done(0)
        await settled(lambda: link.servers[1].not_before > 0.0)
        stranger.end(0)
        await settled(lambda: not other.figures["sessions"])
        link.servers[1].not_before = 0.0
        layers.failures = 1
        answers.go_on(0)
        await settled(lambda: len(answers.done) == 3)
        assert sorted(answers.done) == [0, 0, 1]
        assert (server.figures["opened"], other.figures["opened"]) == (2, 2)
        await link.aclose()
        await stranger.link.aclose()


async def test_a_place_that_becomes_free_while_its_refusal_is_on_the_way_is_asked_for_again() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(sequences=1), verify=FEW) as server, LinkProxy(urlsplit(server.url).port or 0, rtt=0.4) as slow:
        link = link_to(f"ws://127.0.0.1:{slow.port}")
        answers = Answers(link, 1)
        await settled(lambda: bool(answers.done))
        later = Answers(link, 1)
        await settled(lambda: bool(server.figures["refused"]))
        assert link.servers[0].not_before == 0.0, "the refusal has not arrived"
        answers.end(0)
        await later.are_done(0)
        assert server.figures["refused"] == {"overloaded": 1}
        await link.aclose()


async def test_an_answer_that_is_given_up_in_the_queue_keeps_no_other_one_waiting() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(sequences=1), verify=FEW) as server:
        link = link_to(server.url)
        answers = Answers(link, 4)
        await answers.are_done(0)
        answers.end(1)  # which has its turn
        answers.end(2)
        await asyncio.sleep(0.02)
        answers.end(0)
        await answers.are_done(0, 3)
        assert link.queue.is_empty
        await link.aclose()


async def test_a_busy_server_that_goes_away_fails_the_answers_after_the_patience() -> None:
    await load_websockets()
    async with serving_layers(SummingLayers(sequences=1), verify=replace(FEW, load=replace(FEW.load, idle_after=0.1))) as server:
        link = link_to(server.url, patience=0.1, max_wait=3600.0)
        layers_are_busy = Answers(link, 1)
        await layers_are_busy.are_done(0)
        answers = Answers(link, 2)
        await settled(lambda: bool(server.figures["refused"]))
    await settled(lambda: len(answers.errors) == 2)
    assert all(not isinstance(error, EndpointTimeoutError) for error in answers.errors)
    await link.aclose()


async def test_a_connection_has_as_many_sessions_as_its_server_allows_and_the_others_wait() -> None:
    await load_websockets()
    verify = replace(FEW, load=replace(FEW.load, sessions_per_device=2))
    async with serving_layers(SummingLayers(sequences=4), verify=verify) as server:
        link = link_to(server.url, patience=0.0)
        answers = Answers(link, 3)
        await answers.are_done(0, 1)
        answers.end(0)
        await answers.are_done(0, 1, 2)
        assert server.figures["refused"] == {}, "it isn't asked for more than it allows"
        await link.aclose()


async def test_rows_that_one_server_refuses_go_to_another_one_after_the_patience() -> None:
    await load_websockets()
    async with busy() as (server, _), serving_layers(SummingLayers()) as other:
        device = Device(server.url, other.url, rows=40, patience=0.05)
        assert isinstance(await device.end, DeepStates)
        assert overloads(server) > 1
        assert other.figures["rounds"] == 1
        await device.link.aclose()


async def test_rows_that_one_server_refuses_go_to_another_one_after_its_share_of_the_longest_wait() -> None:
    await load_websockets()
    async with busy() as (server, _), serving_layers(SummingLayers()) as other:
        device = Device(server.url, other.url, rows=40, patience=3600.0, max_wait=4.0)
        began = device.link.loop.time()
        assert isinstance(await device.end, DeepStates)
        assert device.link.loop.time() - began > 1.9, "half of the longest wait, less the pause that the last refusal asked for"
        assert overloads(server) > 1
        assert other.figures["rounds"] == 1
        await device.link.aclose()


@pytest.mark.parametrize("max_wait", [0.0, 0.0005])
async def test_rows_that_one_server_refuses_for_longer_than_the_longest_wait_go_to_another_one(max_wait: float) -> None:
    await load_websockets()
    async with busy() as (server, _), serving_layers(SummingLayers()) as other:
        device = Device(server.url, other.url, rows=40, patience=60.0, max_wait=max_wait)
        assert isinstance(await device.end, DeepStates)
        assert (overloads(server), other.figures["rounds"]) == (1, 1)
        await device.link.aclose()


async def test_two_servers_that_refuse_the_rows_end_the_answer_after_the_longest_wait() -> None:
    await load_websockets()
    async with busy() as (server, _), busy() as (other, _):
        device = Device(server.url, other.url, rows=40, patience=60.0, max_wait=3.0)
        end = await device.end
        assert isinstance(end, LinkFailed)
        assert "within 3 s, got none, because they are busy with other answers" in str(end.error)
        assert overloads(server) > 1
        assert overloads(other) > 1
        await device.link.aclose()


async def test_the_longest_wait_begins_when_a_server_is_busy() -> None:
    await load_websockets()
    async with busy() as (server, _):
        device = Device(server.url, patience=60.0, max_wait=0.3)
        device.rows = 0  # it sends none when the session is open
        await settled(lambda: server.figures["opened"] == 2)
        await asyncio.sleep(0.4)
        device.rows = 40
        device.session.send(SendRows(0, 0, 40, 1), np.ones((40, WIDTH), np.float32))
        assert isinstance(await device.end, LinkFailed)
        assert overloads(server) > 1
        await device.link.aclose()


async def test_a_frame_that_cannot_be_handled_ends_its_connection_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Device):
        def receive(self, event: LinkEvent) -> None:
            if isinstance(event, DeepStates) and not self.losses:
                raise IndexError("a secret")
            super().receive(event)

    await load_websockets()
    async with serving_layers(SummingLayers()) as server:
        device = Failing(server.url)
        assert isinstance(await device.end, DeepStates)
        assert (device.losses, server.figures["resumed"]) == (1, 1)
        assert "expected to handle a frame, got IndexError" in caplog.text
        assert "secret" not in caplog.text
        await device.link.aclose()


async def test_an_error_names_the_server_that_allows_no_more_sessions() -> None:
    await load_websockets()
    one = replace(FEW, load=replace(FEW.load, sessions_per_device=1))
    async with serving_layers(SummingLayers(sequences=1), verify=FEW) as first, serving_layers(SummingLayers(), verify=one) as second:
        link = link_to(first.url, second.url, patience=0.0, max_wait=0.0)
        answers = Answers(link, 2)
        await answers.are_done(0, 1)
        surplus = Answers(link, 1)
        await settled(lambda: bool(surplus.errors))
        assert f"{link.servers[1].address.name} allows 1 answers at a time" in str(surplus.errors[0])
        await link.aclose()
