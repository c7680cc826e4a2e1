"""The remote side's plain stream, as the machine gets it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from streamco.client.modes.speculation.remote_stream import RemoteStreamEvent, RemoteStreamReader
from streamco.core.speculation.events import OpenRemote, RemoteEnded, RemoteFailed, RemoteTokensReceived
from streamco.endpoints.base import EndpointStream
from streamco.errors import EndpointConnectError, EndpointProtocolError
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage, PromptTokensDetails
from streamco.testing.endpoint import ScriptedEndpoint
from tests.support.leaks import holding_nothing_new, settled

USAGE = CompletionUsage(12, 2, 14, prompt_tokens_details=PromptTokensDetails(cached_tokens=8))


def ids(*tokens: int) -> ChatCompletionChunk:
    return ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(content="x"), token_ids=list(tokens))])


class Side:
    """A reader of remote streams and its events."""

    def __init__(self, script: Any = (), *, opens: bool = True, **options: Any) -> None:
        self.endpoint = ScriptedEndpoint("large", list(script), **options)
        self.events: list[RemoteStreamEvent] = []
        self.asked: list[tuple[tuple[int, ...], int | None]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.reader = RemoteStreamReader(
            self._open if opens else None, name="large", prompt_tokens=5, vocabulary_size=100, emit=self.events.append, spawn=self._spawn
        )

    def _open(self, tokens: tuple[int, ...], most: int | None) -> EndpointStream:
        from streamco.endpoints.base import Request

        self.asked.append((tokens, most))
        return self.endpoint.open(Request(prompt="x"))

    def _spawn(self, coroutine: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


async def test_its_tokens_and_its_end_are_told_with_the_version() -> None:
    side = Side([(0.0, ids(4, 5)), (0.01, ids(6))], usage=USAGE)
    side.reader.begin(OpenRemote(3, (1, 2), 20), now=7.0)
    await settled(lambda: not side.tasks)
    assert side.asked == [((1, 2), 20)]
    assert side.events == [RemoteTokensReceived(3, (4, 5)), RemoteTokensReceived(3, (6,)), RemoteEnded(3, "stop")]
    part = side.reader.parts[0]
    assert (part.opened, part.read, part.cached, part.made, part.is_estimated) == (7.0, 12, 8, 2, False)


async def test_without_usage_what_it_read_and_made_is_counted() -> None:
    side = Side([(0.0, ids(4, 5))])
    side.reader.begin(OpenRemote(1, (1, 2, 3), None), now=0.0)
    await settled(lambda: not side.tasks)
    part = side.reader.parts[0]
    assert (part.read, part.made, part.is_estimated) == (8, 2, True)


@pytest.mark.parametrize("what", ["refused", "no ids", "nobody", "an id too large", "an id below 0"])
async def test_what_goes_wrong_is_told_and_never_from_inside(what: str) -> None:
    refusal = EndpointConnectError("expected a connection, got it refused")
    scripts: Any = {"refused": refusal, "an id too large": ids(4, 100), "an id below 0": ids(-1)}
    script = [(0.0, scripts.get(what, "text alone"))]
    side = Side(script, opens=what != "nobody")
    side.reader.begin(OpenRemote(2, (), None), now=0.0)
    assert not side.events
    await settled(lambda: bool(side.events))
    assert isinstance(side.events[0], RemoteFailed)
    assert side.events[0].version == 2
    if what not in {"refused", "nobody"}:
        assert isinstance(side.events[0].error, EndpointProtocolError)


async def test_a_stream_that_is_ended_is_cancelled_and_tells_no_more() -> None:
    async with holding_nothing_new():
        side = Side([(0.0, ids(4)), (30.0, ids(5))])
        side.reader.begin(OpenRemote(1, (), None), now=0.0)
        await settled(lambda: bool(side.events))
        side.reader.end(1)
        side.reader.end(1)
        side.reader.end_all()
        await settled(lambda: not side.tasks)
        assert side.events == [RemoteTokensReceived(1, (4,))]
        assert side.endpoint.active == 0
