"""What belongs to an event loop: made once for each, closed when its loop ends, never used in another one."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamco.endpoints.network.loop_bound import LoopBound, LoopState, check_process, run_in
from streamco.errors import ConfigError
from tests.support.event_loops import loop_thread
from tests.support.leaks import without_collector


class State(LoopState):
    """Remembers its loop, and the loop in which it was closed."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed_in: asyncio.AbstractEventLoop | None = None
        self.is_dropped = False

    async def aclose(self) -> None:
        await asyncio.sleep(0)  # closing needs a loop that runs
        self.closed_in = asyncio.get_running_loop()

    def drop(self) -> None:
        self.is_dropped = True


def bound() -> LoopBound[State]:
    return LoopBound(State, owner="thing")


async def use(thing: LoopBound[State]) -> State:
    return thing.get()


async def closed(state: State) -> None:
    while state.closed_in is None:
        await asyncio.sleep(0)


def in_a_loop_that_is_only_closed(thing: LoopBound[State]) -> State:
    """Use it in a loop that ends without its asynchronous generators being closed."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(use(thing))
    finally:
        loop.close()


async def test_a_loop_has_one_state() -> None:
    thing = bound()
    assert (thing.current, thing.latest) == (None, None)
    state = thing.get()
    assert (thing.get(), thing.current, thing.latest) == (state, state, state)
    await thing.aclose()
    assert state.closed_in is asyncio.get_running_loop()
    assert (thing.current, thing.latest) == (None, None)


def test_each_loop_has_its_own_which_ends_with_it() -> None:
    thing = bound()
    states = [asyncio.run(use(thing)) for _ in range(3)]
    assert len(set(states)) == 3
    assert [state.closed_in for state in states] == [state.loop for state in states]
    assert not any(state.is_dropped for state in states)
    assert thing.latest is states[-1]


def test_what_closes_with_the_loop_may_use_asynchronous_generators() -> None:
    class Polite(State):
        async def aclose(self) -> None:
            await anext(_greet())  # asyncio warns of generators that begin after it has closed all others
            await super().aclose()

    thing = LoopBound(Polite, owner="thing")
    state = asyncio.run(_get(thing))
    assert state.closed_in is state.loop


async def _greet() -> AsyncIterator[str]:
    yield "goodbye"


async def _get(thing: LoopBound[Any]) -> Any:
    return thing.get()


def test_a_loop_that_was_only_closed_is_noticed_by_the_next_one() -> None:
    thing = bound()
    first = in_a_loop_that_is_only_closed(thing)
    assert (first.closed_in, first.is_dropped) == (None, False)
    second = asyncio.run(use(thing))
    assert second is not first
    assert (first.closed_in, first.is_dropped) == (None, True)


def test_closing_in_another_loop_lets_go_of_a_closed_one() -> None:
    thing = bound()
    state = in_a_loop_that_is_only_closed(thing)
    asyncio.run(thing.aclose())
    assert state.is_dropped


def test_a_loop_that_stands_still_gives_way() -> None:
    thing = bound()
    first = asyncio.new_event_loop()
    try:
        state = first.run_until_complete(use(thing))
        assert asyncio.run(use(thing)) is not state
        assert not state.is_dropped, "it may go on"
        first.run_until_complete(closed(state))
        assert state.closed_in is first
    finally:
        first.close()


def test_two_loops_that_run_are_a_mistake_of_the_caller() -> None:
    thing = bound()
    with loop_thread() as there:
        state = there.run(use(thing))
        with pytest.raises(ConfigError, match=r"^thing: already in use by another running event loop; make a client for each loop$"):
            asyncio.run(use(thing))
        assert there.run(use(thing)) is state
    assert asyncio.run(use(thing)) is not state, "the other loop has ended"


def test_closing_reaches_the_loop_of_another_thread() -> None:
    thing = bound()
    with loop_thread() as there:
        state = there.run(use(thing))
        asyncio.run(thing.aclose())
        assert state.closed_in is there.loop


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system can't fork")
def test_a_forked_process_is_told_and_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = bound()
    state = in_a_loop_that_is_only_closed(thing)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(ConfigError, match=r"^thing: expected the process that it was started in, .*, after the fork$"):
        asyncio.run(use(thing))
    asyncio.run(thing.aclose())
    assert (state.closed_in, state.is_dropped) == (None, False)
    with pytest.raises(ConfigError):
        check_process(parent, "model")


def test_what_had_ended_before_the_fork_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = bound()
    first = asyncio.run(use(thing))
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert asyncio.run(use(thing)) is not first


async def test_an_owner_that_is_dropped_closes_its_state_without_the_collector() -> None:
    thing = bound()
    state = thing.get()
    with without_collector():
        dropped = weakref.ref(state)
        del thing, state
        while dropped() is not None:
            await asyncio.sleep(0)


async def test_a_failure_to_make_it_leaves_nothing() -> None:
    def fail() -> State:
        raise ConfigError("nothing to make it of")

    thing = LoopBound(fail, owner="thing")
    with pytest.raises(ConfigError, match="nothing"):
        thing.get()
    assert thing.current is None


async def test_a_function_runs_in_the_loop_that_it_belongs_to() -> None:
    ran: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        ran.append(asyncio.get_running_loop())

    await run_in(asyncio.get_running_loop(), note)
    with loop_thread() as there:
        await run_in(there.loop, note)
    await run_in(there.loop, note)  # it has ended
    assert ran == [asyncio.get_running_loop(), there.loop]
