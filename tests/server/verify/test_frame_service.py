"""A device's WebSocket at the server, when the server's own loop stood still."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamco.server.verify.frame_service import _Socket
from streamco.testing import run_in_virtual_time
from streamco.testing.virtual_clock import VirtualTimeLoop


def lost_at(still: float, *, has_pong: bool, times: int = 1) -> list[float]:
    """Expect a pong within ten seconds, let the loop stand still, and hear the pong just after that or never; when that was a loss."""
    lost: list[float] = []

    async def run() -> None:
        loop = cast(VirtualTimeLoop, asyncio.get_running_loop())
        socket: Any = _Socket(heartbeat=20.0)
        socket._req = SimpleNamespace(transport=object())
        socket._handle_ping_pong_exception = lambda error: lost.append(loop.time())
        for _ in range(times):
            socket._pong_response_cb = loop.call_later(10.0, socket._pong_not_received)
            loop.now += still
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if has_pong:
                socket._cancel_pong_response_cb()
        await asyncio.sleep(100)

    run_in_virtual_time(run())
    return lost


def test_pongs_that_are_late_again_and_again_count_as_long_as_each_of_them_comes() -> None:
    assert lost_at(60.0, has_pong=True, times=10) == []


@pytest.mark.parametrize(("still", "lost"), [(0.0, [10.0]), (60.0, [61.0])])
def test_a_pong_that_came_while_the_loop_stood_still_counts_and_one_that_never_comes_is_missed(still: float, lost: list[float]) -> None:
    assert lost_at(still, has_pong=False) == lost
    assert lost_at(still, has_pong=True) == []
