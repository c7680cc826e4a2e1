"""The asyncio driver: reading, leaving, pausing; in virtual time where time matters."""

from __future__ import annotations

import asyncio
import gc

import pytest

from streamco.client.driver import SessionDriver
from streamco.core.session import SessionMachine, SessionPlan, Start
from streamco.endpoints.base import Request
from streamco.errors import ConcurrentRead, EndpointConnectError, EndpointProtocolError, StreamClosed
from streamco.events import StreamEnded, TokensReceived
from streamco.testing.clock import run_in_virtual_time
from streamco.testing.endpoint import ScriptedEndpoint, ScriptedStream


def begin(
    *endpoints: ScriptedEndpoint, waits: tuple[float | None, ...] = (), pace: float | None = None, unread: int = 4096
) -> SessionDriver:
    starts = tuple(Start(e.name, w) for e, w in zip(endpoints, waits or (0.0,) * len(endpoints), strict=True))
    driver = SessionDriver(
        SessionMachine(SessionPlan(starts=starts, pace=pace)),
        {endpoint.name: endpoint for endpoint in endpoints},
        Request(prompt="p"),
        unread=unread,
        clock=asyncio.get_running_loop().time,
    )
    driver.start()
    return driver


async def read_all(driver: SessionDriver) -> str:
    text = ""
    while (batch := await driver.next_batch()) is not None:
        text += "".join(chunk.choices[0].delta.content or "" for chunk in batch[1])
    return text


def words(*times: float) -> list[tuple[float, str]]:
    return [(time, f"w{index} ") for index, time in enumerate(times)]


def test_the_faster_endpoint_gives_the_answer_and_the_other_is_released() -> None:
    async def main() -> None:
        server, device = ScriptedEndpoint("server", words(0.5, 0.6)), ScriptedEndpoint("device", words(0.2, 0.4, 0.7), cancel_takes=0.1)
        driver = begin(server, device)
        assert await read_all(driver) == "w0 w1 w2 "
        assert driver.machine.winner == "device"
        await driver.aclose()
        assert driver.is_over
        assert (server.active, device.active) == (0, 0)
        assert server.streams[0].is_cancelled

    run_in_virtual_time(main())


def test_the_winner_alone_is_read_in_the_readers_own_task() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.1, 0.2, 0.3)))
        await driver.next_batch()
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("streamco read")]
        await asyncio.sleep(10)
        assert driver.machine.legs["server"].tokens == 1, "nobody reads ahead of the reader"
        assert await read_all(driver) == "w1 w2 "

    run_in_virtual_time(main())


def test_paced_tokens_come_when_they_are_due() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(*[0.1] * 5)), pace=10.0)
        times = []
        while (batch := await driver.next_batch()) is not None:
            times.append(batch[2])
        assert times == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])

    run_in_virtual_time(main())


def test_a_cancelled_read_loses_nothing() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.1, 1.0, 1.1)))
        text = ""
        while True:
            try:
                async with asyncio.timeout(0.15):
                    batch = await driver.next_batch()
            except TimeoutError:
                continue
            if batch is None:
                break
            text += batch[1][0].choices[0].delta.content or ""
        assert text == "w0 w1 w2 "

    run_in_virtual_time(main())


def test_the_error_comes_after_the_text_and_again_on_every_further_read() -> None:
    async def main() -> None:
        error = EndpointProtocolError("truncated", endpoint="server")
        driver = begin(ScriptedEndpoint("server", [(0.1, "a"), (0.2, error)]))
        assert await driver.next_batch() is not None
        for _ in range(2):
            with pytest.raises(EndpointProtocolError) as caught:
                await driver.next_batch()
            assert caught.value.partial == "a"
        assert driver.is_over

    run_in_virtual_time(main())


def test_after_the_end_every_read_gives_none() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.1)))
        assert await read_all(driver) == "w0 "
        assert await driver.next_batch() is None

    run_in_virtual_time(main())


def test_two_reads_at_once_are_refused() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(1.0)))
        first = asyncio.ensure_future(driver.next_batch())
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentRead):
            await driver.next_batch()
        assert await first is not None
        await driver.aclose()

    run_in_virtual_time(main())


@pytest.mark.parametrize("direct", [True, False])
def test_closing_from_another_task_wakes_the_reader(direct: bool) -> None:
    async def main() -> None:
        endpoints = [ScriptedEndpoint("server", [(0.1, "a"), (0.2, None)], cancel_takes=0.3)]
        driver = begin(*endpoints, pace=None if direct else 100.0)
        await driver.next_batch()
        reader = asyncio.ensure_future(driver.next_batch())
        await asyncio.sleep(0.5)
        assert not reader.done()
        await driver.aclose()
        with pytest.raises(StreamClosed):
            await reader
        assert endpoints[0].active == 0
        assert driver.is_over

    run_in_virtual_time(main())


def test_aclose_waits_for_the_cancel_and_may_be_called_twice() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("server", [(0.1, "a"), (9.0, "b")], cancel_takes=0.4)
        driver = begin(endpoint)
        await driver.next_batch()
        before = asyncio.get_running_loop().time()
        await asyncio.gather(driver.aclose(), driver.aclose())
        assert asyncio.get_running_loop().time() - before == pytest.approx(0.4)
        assert endpoint.active == 0

    run_in_virtual_time(main())


def test_a_cancelled_aclose_still_ends_the_work() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("server", [(0.1, "a"), (9.0, "b")], cancel_takes=0.4)
        driver = begin(endpoint)
        await driver.next_batch()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await driver.aclose()
        await asyncio.sleep(0.5)
        assert endpoint.active == 0
        assert driver.is_over

    run_in_virtual_time(main())


@pytest.mark.parametrize("pace", [None, 1000.0])
def test_a_reader_that_pauses_pauses_the_endpoint(pace: float | None) -> None:
    async def main() -> None:
        server = ScriptedEndpoint("server", words(*[0.1] * 500))
        rival = ScriptedEndpoint("rival", [(0.05, None)], cancel_takes=1e6)  # keeps the session from reading directly
        driver = begin(server, rival, pace=pace, unread=50)
        await asyncio.sleep(100)
        assert driver.machine.legs["server"].tokens <= 103, "at most the limit unread, the limit paced, and one batch each"
        text = ""
        while text.count("w") < 500:
            batch = await driver.next_batch()
            assert batch is not None
            text += "".join(chunk.choices[0].delta.content or "" for chunk in batch[1])
        assert text == "".join(f"w{index} " for index in range(500))
        driver.leave()

    run_in_virtual_time(main())


def test_peek_waits_for_the_first_delivery_and_raises_what_came_instead() -> None:
    async def main() -> None:
        driver = begin(ScriptedEndpoint("server", words(0.1, 0.2)))
        await driver.peek()
        await driver.peek()
        assert await read_all(driver) == "w0 w1 "
        failing = begin(ScriptedEndpoint("server", [(0.1, EndpointConnectError("refused"))]))
        with pytest.raises(EndpointConnectError):
            await failing.peek()

    run_in_virtual_time(main())


def test_a_bug_in_an_endpoint_reaches_the_reader_as_an_error() -> None:
    class Broken(ScriptedStream):
        async def receive(self) -> TokensReceived | StreamEnded:
            raise KeyError("oops")

    class BrokenEndpoint(ScriptedEndpoint):
        def open(self, request: Request) -> ScriptedStream:
            self.active += 1
            return Broken(self, request)

    async def main() -> None:
        driver = begin(BrokenEndpoint("server"))
        with pytest.raises(EndpointProtocolError, match="KeyError") as caught:
            await driver.next_batch()
        assert isinstance(caught.value.__cause__, KeyError)

    run_in_virtual_time(main())


def test_on_over_is_called_once_when_even_the_losers_are_released() -> None:
    async def main() -> None:
        calls = []
        server, device = ScriptedEndpoint("server", words(0.5)), ScriptedEndpoint("device", words(0.1), cancel_takes=0.1)
        server.cancel_takes = 5.0
        driver = SessionDriver(
            SessionMachine(SessionPlan(starts=(Start("server", 0.0), Start("device", 0.0)))),
            {"server": server, "device": device},
            Request(prompt="p"),
            on_over=lambda driver: calls.append(asyncio.get_running_loop().time()),
            clock=asyncio.get_running_loop().time,
        )
        driver.start()
        assert await read_all(driver) == "w0 "
        assert calls == []
        await driver.aclose()
        assert calls == [pytest.approx(5.1)]

    run_in_virtual_time(main())


def test_a_dropped_driver_leaves_no_task_behind() -> None:
    async def main() -> None:
        endpoint = ScriptedEndpoint("server", [(0.1, "a"), (9.0, "b")])
        driver = begin(endpoint)
        await driver.next_batch()
        driver.leave_soon()
        del driver
        gc.collect()
        await asyncio.sleep(0.1)
        assert endpoint.active == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in_virtual_time(main())
