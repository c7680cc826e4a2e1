"""Reads the remote stream, in which the target model generates alone while drafting doesn't pay or the verifier is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from msgspec import Struct

from streamco.client.error_translation import failure_of
from streamco.core.speculation.events import OpenRemote, RemoteEnded, RemoteFailed, RemoteTokensReceived
from streamco.endpoints.base import EndpointStream
from streamco.errors import EndpointError, EndpointProtocolError
from streamco.events import StreamEnded, TokensReceived

__all__ = ["OpenRemoteStream", "RemoteStreamReader", "RemoteStreamEvent", "RemoteStreamPart"]

OpenRemoteStream = Callable[[tuple[int, ...], int | None], EndpointStream]
"""Opens a plain stream that continues after the given tokens of the answer, up to a maximum number of new tokens (None for no limit)."""

RemoteStreamEvent = RemoteTokensReceived | RemoteEnded | RemoteFailed


class RemoteStreamPart(Struct, kw_only=True):
    """The tokens of one remote stream.

    Args:
        opened: when it started, in seconds on the driver's clock.
        read: number of tokens in the prompt and in the answer before this stream.
        cached: how many of the ``read`` tokens the server had in its cache.
        made: number of tokens that the stream generated.
        is_estimated: True if the server hasn't reported its usage, or has reported zero although tokens arrived.
    """

    opened: float
    read: int
    cached: int = 0
    made: int = 0
    is_estimated: bool = True


class RemoteStreamReader:
    """Reads one answer's remote streams, one at a time; owned by the answer's driver.

    Args:
        open_stream: opens a remote stream, or None if there is no server for it.
        name: the endpoint's name, for errors.
        prompt_tokens: number of tokens in the prompt.
        vocabulary_size: number of token ids that the server may use; None allows any id.
        emit: called with events, never from inside ``begin``.
        spawn: starts a task, which the driver awaits.

    Attributes:
        parts: the streams' tokens, in order.
    """

    def __init__(
        self,
        open_stream: OpenRemoteStream | None,
        *,
        name: str,
        prompt_tokens: int,
        vocabulary_size: int | None = None,
        emit: Callable[[RemoteStreamEvent], None],
        spawn: Callable[[Coroutine[object, object, None], str], asyncio.Task[None]],
    ) -> None:
        self.parts: list[RemoteStreamPart] = []
        self._open_stream = open_stream
        self._name = name
        self._prompt_tokens = prompt_tokens
        self._vocabulary_size = vocabulary_size
        self._emit = emit
        self._spawn = spawn
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._running: dict[int, tuple[asyncio.Task[None], EndpointStream]] = {}

    def begin(self, command: OpenRemote, *, now: float) -> None:
        """Start a stream after the command's tokens; an endpoint's failure becomes an event, and any other error is raised."""
        if self._open_stream is None:
            self._fail_soon(command.version, EndpointError("expected a server that generates alone, got none"))
            return
        try:
            stream = self._open_stream(command.ids, command.max_tokens)
        except Exception as error:  # noqa: BLE001  an endpoint should not raise here
            self._fail_soon(command.version, failure_of(error, self._name))
            return
        part = RemoteStreamPart(opened=now, read=self._prompt_tokens + len(command.ids))
        self.parts.append(part)
        self._running[command.version] = self._spawn(self._read(command.version, stream, part), f"streamco read {self._name}"), stream

    def pause(self) -> None:
        """Stop reading, so that the connection slows the endpoint down."""
        self._may_read.clear()

    def resume(self) -> None:
        """Continue reading after a pause."""
        self._may_read.set()

    def end(self, version: int) -> None:
        """Cancel a stream; it emits no more events."""
        task, stream = self._running.pop(version, (None, None))
        if task is not None and stream is not None:
            self._spawn(_cancel(task, stream), f"streamco cancel {self._name}")

    def end_all(self) -> None:
        """Cancel all running streams."""
        for version in list(self._running):
            self.end(version)

    async def _read(self, version: int, stream: EndpointStream, part: RemoteStreamPart) -> None:
        """Read a stream to its end."""
        try:
            while isinstance(event := await self._next(stream), TokensReceived):
                if ids := _ids_of(event, self._name):
                    self._check(ids)
                    part.made += len(ids)
                    self._emit(RemoteTokensReceived(version, ids))
        except Exception as error:  # noqa: BLE001  an error that isn't the endpoint's failure ends this task, and so the answer
            self._emit(RemoteFailed(version, failure_of(error, self._name)))
            return
        _record_usage(part, event)
        self._emit(RemoteEnded(version, event.finish_reason or "stop"))

    async def _next(self, stream: EndpointStream) -> TokensReceived | StreamEnded:
        await self._may_read.wait()
        return await stream.receive()

    def _check(self, ids: Sequence[int]) -> None:
        size = self._vocabulary_size
        if size is not None and not (min(ids) >= 0 and max(ids) < size):
            raise EndpointProtocolError(f"expected token ids from 0 to {size - 1}, got {min(ids)} to {max(ids)}", endpoint=self._name)

    def _fail_soon(self, version: int, error: EndpointError) -> None:
        async def fail() -> None:
            self._emit(RemoteFailed(version, error))

        self._spawn(fail(), f"streamco fail {self._name}")


async def _cancel(task: asyncio.Task[None], stream: EndpointStream) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    await stream.cancel()


def _ids_of(event: TokensReceived, endpoint: str) -> tuple[int, ...]:
    ids: list[int] = []
    for chunk in event.chunks:
        for choice in chunk.choices[:1]:
            if choice.token_ids is not None:
                ids += choice.token_ids
            elif choice.delta.content:
                raise EndpointProtocolError("expected token ids with the text, got none", endpoint=endpoint)
    return tuple(ids)


def _record_usage(part: RemoteStreamPart, event: StreamEnded) -> None:
    if (usage := event.usage) is not None:
        details = usage.prompt_tokens_details
        part.is_estimated = not usage.prompt_tokens or (part.made > 0 and not usage.completion_tokens)  # zero is wrong if tokens came
        part.read, part.made = usage.prompt_tokens or part.read, usage.completion_tokens or part.made
        part.cached = (details.cached_tokens or 0) if details else 0
