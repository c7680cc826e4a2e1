"""Deliveries wait for their reader, in order, and end once."""

from __future__ import annotations

import asyncio

import pytest

from streamco.client.delivery_queue import DeliveryQueue
from streamco.client.driver import Batch
from streamco.errors import ConcurrentRead, EndpointError, StreamClosed

BATCH: Batch = ("device", [], 1.0)


async def test_what_was_delivered_before_the_end_is_read_before_it() -> None:
    box = DeliveryQueue()
    box.put([BATCH])
    box.finish()
    assert await box.next() == BATCH
    assert await box.next() is None
    assert await box.next() is None


async def test_a_reader_who_waits_is_woken_by_a_delivery_and_by_the_end() -> None:
    box = DeliveryQueue()
    reading = asyncio.create_task(box.next())
    await asyncio.sleep(0)
    box.put([BATCH])
    assert await reading == BATCH
    reading = asyncio.create_task(box.next())
    await asyncio.sleep(0)
    box.finish()
    assert await reading is None


async def test_peeking_takes_nothing_and_tells_of_a_failure() -> None:
    box = DeliveryQueue()
    box.put([BATCH])
    box.finish(EndpointError("gone"))
    await box.peek()
    assert await box.next() == BATCH
    with pytest.raises(EndpointError, match="gone"):
        await box.peek()
    with pytest.raises(EndpointError, match="gone"):
        await box.next()


async def test_a_reader_who_left_gets_nothing_more() -> None:
    box = DeliveryQueue()
    box.put([BATCH])
    box.leave()
    box.put([BATCH])
    with pytest.raises(StreamClosed):
        await box.next()


async def test_two_readers_at_once_are_one_too_many_and_a_cancelled_one_is_none() -> None:
    box = DeliveryQueue()
    reading = asyncio.create_task(box.next())
    await asyncio.sleep(0)
    with pytest.raises(ConcurrentRead):
        await box.next()
    reading.cancel()
    await asyncio.wait([reading])
    box.put([BATCH])
    assert await box.next() == BATCH, "cancelling lost nothing"
