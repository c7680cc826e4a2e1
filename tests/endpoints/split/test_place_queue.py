"""The queue of answers that wait for a place: their order, and waking the first."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from streamco.endpoints.split.place_queue import PlaceQueue


async def test_answers_have_their_turn_in_the_order_in_which_they_came() -> None:
    queue, order = PlaceQueue(), []
    assert queue.is_empty

    async def answer(number: int) -> None:
        with queue.ticket(has_begun=False) as ticket:
            await queue.turn(ticket)
            assert not queue.is_empty
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(answer(number) for number in range(5)))
    assert order == list(range(5))
    assert queue.is_empty


async def test_an_answer_that_has_begun_comes_before_all_that_have_not() -> None:
    queue = PlaceQueue()
    with queue.ticket(has_begun=False) as first:
        await queue.turn(first)
        with queue.ticket(has_begun=True) as begun, queue.ticket(has_begun=True) as another:
            assert queue.is_first(begun)
            with queue.ticket(has_begun=False):
                turn = asyncio.create_task(queue.turn(another))
                await asyncio.sleep(0)
                assert not turn.done()
                turn.cancel()
        assert queue.is_first(first)


async def test_the_first_one_is_woken_when_a_place_may_be_free() -> None:
    queue = PlaceQueue()
    with queue.ticket(has_begun=False):
        waiting = asyncio.create_task(queue.wait(3600.0, queue.frees))
        await asyncio.sleep(0)
        queue.report_free()
        await waiting
        late = asyncio.create_task(queue.wait(3600.0, queue.frees))
        await asyncio.sleep(0)
        assert not late.done(), "a report wakes what waits, and nothing later"
        late.cancel()


async def test_a_place_that_became_free_while_the_servers_were_asked_is_not_waited_for() -> None:
    queue = PlaceQueue()
    with queue.ticket(has_begun=False):
        frees = queue.frees
        queue.report_free()
        await queue.wait(3600.0, frees)


async def test_an_answer_that_is_cancelled_leaves_the_queue() -> None:
    queue = PlaceQueue()

    async def answer() -> None:
        with queue.ticket(has_begun=False) as ticket:
            await queue.turn(ticket)
            await queue.wait(3600.0, queue.frees)

    first, second = asyncio.create_task(answer()), asyncio.create_task(answer())
    await asyncio.sleep(0)
    for task in (second, first):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert queue.is_empty
    with queue.ticket(has_begun=False) as ticket:
        assert queue.is_first(ticket)
