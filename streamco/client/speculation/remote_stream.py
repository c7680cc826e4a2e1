"""The remote side as a stand-in: it generates alone behind what is settled, while drafting doesn't pay or the verifier is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from msgspec import Struct

from streamco.client.error_translation import translate
from streamco.core.speculation.events import OpenRemote, RemoteEnded, RemoteFailed, RemoteTokensReceived
from streamco.endpoints.base import EndpointStream
from streamco.errors import EndpointError, EndpointProtocolError
from streamco.events import StreamEnded, TokensReceived

__all__ = ["OpenRemoteStream", "RemoteStreamReader", "StandInEvent", "RemoteStreamPart"]

OpenRemoteStream = Callable[[tuple[int, ...], int | None], EndpointStream]
"""Opens a plain stream behind these tokens of the answer, of so many tokens at most."""

StandInEvent = RemoteTokensReceived | RemoteEnded | RemoteFailed


class RemoteStreamPart(Struct, kw_only=True):
    """What the remote side did in one stretch; tokens.

    Args:
        opened: when, on the driver's clock.
        read: prompt and answer in front of it.
        cached: of these, kept from before.
        made: by it.
        is_estimated: it told no usage.
    """

    opened: float
    read: int
    cached: int = 0
    made: int = 0
    is_estimated: bool = True


class RemoteStreamReader:
    """One answer's plain streams, one at a time.

    Args:
        open_stream: None: nobody generates there.
        name: of the endpoint behind it.
        prompt_tokens: in front of the answer.
        tell: takes events; never called from inside ``begin``.
        spawn: runs a task that somebody awaits.

    Attributes:
        parts: what it did, in order.
    """

    def __init__(
        self,
        open_stream: OpenRemoteStream | None,
        *,
        name: str,
        prompt_tokens: int,
        tell: Callable[[StandInEvent], None],
        spawn: Callable[[Coroutine[object, object, None], str], asyncio.Task[None]],
    ) -> None:
        self.parts: list[RemoteStreamPart] = []
        self._open_stream = open_stream
        self._name = name
        self._prompt_tokens = prompt_tokens
        self._tell = tell
        self._spawn = spawn
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._running: dict[int, tuple[asyncio.Task[None], EndpointStream]] = {}

    def begin(self, command: OpenRemote, *, now: float) -> None:
        """Go on behind these tokens; what goes wrong is told."""
        if self._open_stream is None:
            self._fail_soon(command.version, EndpointError("expected a server that generates alone, got none"))
            return
        try:
            stream = self._open_stream(command.ids, command.max_tokens)
        except Exception as error:  # noqa: BLE001  it should not fail; if it does, it is the remote side that failed
            self._fail_soon(command.version, translate(error, self._name))
            return
        part = RemoteStreamPart(opened=now, read=self._prompt_tokens + len(command.ids))
        self.parts.append(part)
        self._running[command.version] = self._spawn(self._pump(command.version, stream, part), f"streamco read {self._name}"), stream

    def pause(self) -> None:
        """Don't read on: the endpoint is slowed down by its connection."""
        self._may_read.clear()

    def resume(self) -> None:
        """Read on."""
        self._may_read.set()

    def end(self, version: int) -> None:
        """Cancel; nothing more is told of it."""
        pump, stream = self._running.pop(version, (None, None))
        if pump is not None and stream is not None:
            self._spawn(_cancel(pump, stream), f"streamco cancel {self._name}")

    def end_all(self) -> None:
        """Cancel what runs."""
        for version in list(self._running):
            self.end(version)

    async def _pump(self, version: int, stream: EndpointStream, part: RemoteStreamPart) -> None:
        """Read a stream to its end."""
        try:
            while isinstance(event := await self._next(stream), TokensReceived):
                if ids := _ids_of(event, self._name):
                    part.made += len(ids)
                    self._tell(RemoteTokensReceived(version, ids))
        except Exception as error:  # noqa: BLE001  a bug in an endpoint must reach the reader as an error, not as silence
            self._tell(RemoteFailed(version, translate(error, self._name)))
            return
        _note_usage(part, event)
        self._tell(RemoteEnded(version, event.finish_reason or "stop"))

    async def _next(self, stream: EndpointStream) -> TokensReceived | StreamEnded:
        await self._may_read.wait()
        return await stream.receive()

    def _fail_soon(self, version: int, error: EndpointError) -> None:
        async def fail() -> None:
            self._tell(RemoteFailed(version, error))

        self._spawn(fail(), f"streamco fail {self._name}")


async def _cancel(pump: asyncio.Task[None], stream: EndpointStream) -> None:
    if not pump.done():
        pump.cancel()
        await asyncio.wait([pump])
    await stream.cancel()


def _ids_of(event: TokensReceived, endpoint: str) -> tuple[int, ...]:
    ids: list[int] = []
    for chunk in event.chunks:
        for choice in chunk.choices[:1]:
            if choice.token_ids is not None:
                ids += choice.token_ids
            elif choice.delta.content:
                raise EndpointProtocolError("expected token ids beside the text, got none", endpoint=endpoint)
    return tuple(ids)


def _note_usage(part: RemoteStreamPart, event: StreamEnded) -> None:
    if (usage := event.usage) is not None:
        details = usage.prompt_tokens_details
        part.read, part.made, part.is_estimated = usage.prompt_tokens, usage.completion_tokens, False
        part.cached = (details.cached_tokens or 0) if details else 0
