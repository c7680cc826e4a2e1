"""Deliveries wait for their reader, in order, and end once."""

from __future__ import annotations

import asyncio

import pytest

from streamco.client.delivery_queue import DeliveryQueue
from streamco.client.driver import Batch
from streamco.errors import ConcurrentRead, EndpointError, StreamClosed
from streamco.openai_types import ChatCompletionChunk
from streamco.testing.endpoint import text_chunk

BATCH: Batch = ("device", [], 1.0)


async def test_what_was_delivered_before_the_end_is_read_before_it() -> None:
    queue = DeliveryQueue()
    queue.put(BATCH)
    queue.finish()
    assert await queue.next() == BATCH
    assert await queue.next() is None
    assert await queue.next() is None
    assert not queue.was_broken_off


async def test_a_waiting_reader_is_woken_by_a_delivery_and_by_the_end() -> None:
    queue = DeliveryQueue()
    reading = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    queue.put(BATCH)
    assert await reading == BATCH
    reading = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    queue.finish()
    assert await reading is None


async def test_a_wake_alone_gives_the_reader_nothing() -> None:
    queue = DeliveryQueue()
    reading = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    queue.wake()
    await asyncio.sleep(0)
    assert not reading.done()
    queue.put(BATCH)
    assert await reading == BATCH


async def test_a_batch_that_is_put_back_is_next_and_counts_again_as_unread() -> None:
    queue = DeliveryQueue()
    chunk = text_chunk("a", ids=[1, 2])
    later: Batch = ("server", [chunk], 2.0)
    queue.put(BATCH)
    queue.put(later)
    taken = queue.take()
    assert taken == BATCH
    queue.put_back(taken)
    assert (queue.unread, queue.in_hand) == (2, 0)
    assert [await queue.next(), await queue.next()] == [BATCH, later]
    assert (queue.unread, queue.in_hand) == (0, 2)
    queue.leave()
    queue.put_back(later)
    assert not queue.batches


async def test_peeking_takes_nothing_and_raises_the_error() -> None:
    queue = DeliveryQueue()
    queue.put(BATCH)
    queue.finish(EndpointError("gone"))
    await queue.peek()
    assert await queue.next() == BATCH
    with pytest.raises(EndpointError, match="gone"):
        await queue.peek()
    with pytest.raises(EndpointError, match="gone"):
        await queue.next()


async def test_unread_chunks_are_counted() -> None:
    queue, chunk = DeliveryQueue(), ChatCompletionChunk()
    queue.put(("server", [chunk, chunk], 0.0))
    queue.put(("server", [chunk], 0.0))
    assert queue.unread == 3
    queue.take()
    assert queue.unread == 1
    queue.leave()
    assert queue.unread == 0


async def test_tokens_count_as_many_and_what_the_reader_took_last_is_in_its_hand() -> None:
    queue = DeliveryQueue()
    queue.put(("device", [text_chunk("a cat", ids=[5, 6, 7]), text_chunk("", finish_reason="stop")], 0.0))
    queue.put(("server", [text_chunk("a"), text_chunk("b")], 0.0))
    assert (queue.unread, queue.in_hand) == (6, 0)
    queue.take()
    assert (queue.unread, queue.in_hand) == (2, 4)
    queue.take()
    assert (queue.unread, queue.in_hand) == (0, 2)
    queue.leave()
    assert (queue.unread, queue.in_hand) == (0, 0)


async def test_a_reader_that_has_left_gets_nothing_more() -> None:
    queue = DeliveryQueue()
    queue.put(BATCH)
    queue.leave()
    queue.put(BATCH)
    with pytest.raises(StreamClosed):
        await queue.next()
    assert queue.was_broken_off


async def test_two_readers_at_once_are_refused_and_a_cancelled_one_does_not_count() -> None:
    queue = DeliveryQueue()
    reading = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    with pytest.raises(ConcurrentRead):
        await queue.next()
    reading.cancel()
    await asyncio.wait([reading])
    queue.put(BATCH)
    assert await queue.next() == BATCH, "cancelling lost nothing"
