"""Tasks of an answer: all are waited for, and what goes wrong is told."""

from __future__ import annotations

import asyncio

import pytest

from streamco.client.driver import TaskOwner


class Owner(TaskOwner):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []

    def _crash(self, error: BaseException) -> None:
        self.told.append(error)

    def _end_if_idle(self) -> None:
        self.told.append(len(self._tasks))


async def test_every_end_is_told_and_errors_before_it() -> None:
    owner, failure = Owner(), ValueError("broken")

    async def fail() -> None:
        raise failure

    async def wait() -> None:
        await asyncio.Event().wait()

    waiting, failing = owner._spawn(wait(), "waits"), owner._spawn(fail(), "fails")
    assert waiting.get_name() == "waits"
    with pytest.raises(ValueError, match="broken"):
        await failing
    assert owner.told == [failure, 1]
    waiting.cancel()
    await owner._wait_for_tasks()
    assert owner.told == [failure, 1, 0], "a cancelled one is no error"


async def test_those_that_begin_meanwhile_are_waited_for() -> None:
    owner, ended = Owner(), list[str]()

    async def second() -> None:
        await asyncio.sleep(0)
        ended.append("second")

    async def first() -> None:
        owner._spawn(second(), "second")
        ended.append("first")

    owner._spawn(first(), "first")
    await owner._wait_for_tasks()
    assert (ended, owner.told) == (["first", "second"], [1, 0])
