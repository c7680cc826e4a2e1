"""What the commands that listen on a port share."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamco.cli.serving import YOUNG_OBJECTS, check_descriptor, serve_until_stopped, tune_collector
from streamco.errors import ConfigError


def test_a_server_collects_less_often_and_leaves_out_what_was_there_before() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        tune_collector()
        assert gc.get_threshold() == (YOUNG_OBJECTS, *before[1:])
        assert gc.get_freeze_count() > frozen
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def test_a_descriptor_that_is_not_open_is_refused() -> None:
    reading, writing = os.pipe()
    check_descriptor(writing)
    check_descriptor(None)
    for number in (reading, writing):
        os.close(number)
    with pytest.raises(ConfigError, match="ready-fd: expected an open file descriptor, got"):
        check_descriptor(writing)


async def test_a_signal_stops_a_server_on_a_loop_that_can_not_watch_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def server() -> AsyncIterator[str]:
        yield "http://127.0.0.1:1/v1"

    async def stop(_address: str) -> None:
        signal.raise_signal(signal.SIGTERM)

    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", refuse)  # as on Windows
    try:
        await asyncio.wait_for(serve_until_stopped(server(), None, on_ready=stop), 10)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
