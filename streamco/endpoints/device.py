"""The endpoint for a model on this machine; it connects the engine's thread with the event loop.

The engine wakes the loop once per burst (``call_soon_threadsafe``), and ``receive`` then takes all pieces that are ready. Nothing blocks
the loop: models are loaded and long prompts are tokenised in a worker thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, TypeVar, cast

from streamco.core.confidence import ends_sentence
from streamco.endpoints.base import Capabilities, Kind, Request, TokenPrices, new_completion_id
from streamco.endpoints.continuation import BoundaryWhitespace
from streamco.endpoints.generation_request import (
    boundary_whitespace,
    generation_request,
    is_short,
    reasoning_splitter,
    request_ids,
    takes_grammars,
)
from streamco.endpoints.model_files import path_of
from streamco.endpoints.network.loop_bound import LoopBound, LoopState, check_process
from streamco.endpoints.network.watchdog import Watchdog
from streamco.engines.base import (
    Engine,
    EngineOptions,
    Generation,
    GenerationEnd,
    GenerationRequest,
    GenerationTimings,
    HoldingEngine,
    TextPiece,
)
from streamco.engines.llamacpp.json_schema import has_grammars
from streamco.engines.llamacpp.reasoning import ReasoningSplitter
from streamco.errors import ConfigError, EndpointError, EndpointTimeoutError, EngineError, StreamClosed, StreamConsumed, UsageError
from streamco.events import StreamEnded, TextCount, TokenConfidence, TokensReceived
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChoiceLogprobs, ChunkChoice
from streamco.wire.openai.logprobs import MAX_TOP_LOGPROBS, chat_logprobs, token_logprobs

if TYPE_CHECKING:
    from streamco.endpoints.device_drafter import DeviceDrafter, DrafterEvent

__all__ = ["DeviceEndpoint", "DeviceStream"]

FINISHED = ("stop", "length")
FREE = TokenPrices(prompt=0.0, completion=0.0)

StreamT = TypeVar("StreamT", bound="DeviceStream")


class _LoopWork(LoopState):
    """The work in progress on one event loop. The engine outlives it."""

    def __init__(self) -> None:
        self.loading: asyncio.Task[Engine] | None = None
        self.streams: set[DeviceStream] = set()
        self.drafters: set[DeviceDrafter] = set()

    async def aclose(self) -> None:
        """Cancel the streams and drafters, and wait for the loading to end; see ``LoopState``."""
        for stream in list(self.streams):
            await stream.cancel()
        for drafter in list(self.drafters):
            await drafter.aclose()
        if self.loading is not None:
            await asyncio.wait([self.loading])  # its thread can't be stopped; the endpoint then has the model


class DeviceEndpoint:
    """A model that runs on this machine.

    Args:
        model: a GGUF file, which ``start`` loads, or a loaded engine, which ``aclose`` leaves open for its owner to close.
        name: name in reports and errors.
        options: settings of the engine that runs a file; None for the defaults.
        prices: prices of the device's tokens.
        on_progress: called from a worker thread with the fraction loaded so far, 0.0 to 1.0, while a file is being loaded.
    """

    kind: Kind = "device"

    def __init__(
        self,
        model: str | Path | Engine,
        *,
        name: str = "device",
        options: EngineOptions | None = None,
        prices: TokenPrices = FREE,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self._name = name
        self._prices = prices
        self._options = options or EngineOptions()
        self._on_progress = on_progress
        self._path = path_of(model) if isinstance(model, str | Path) else None
        self._engine: Engine | None = None if isinstance(model, str | Path) else model
        self._process = os.getpid()  # the process that has the engine's thread
        self._work = LoopBound(_LoopWork, owner=name)
        self._lock = threading.Lock()  # for threads that load
        self._last_tokenized: tuple[Request, list[int]] | None = None
        self._is_closed = False

    @property
    def name(self) -> str:
        """Name in reports and errors, unique within a client."""
        return self._name

    @property
    def prices(self) -> TokenPrices:
        """Prices of the device's tokens; zero by default."""
        return self._prices

    @property
    def engine(self) -> Engine | None:
        """The engine, or None if it isn't loaded yet."""
        return self._engine

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do; the vocabulary and the context size are known once the model is loaded."""
        info = self._engine.info if self._engine is not None else None
        return Capabilities(
            vocabulary=info.vocabulary if info else None,
            context_tokens=info.context_tokens if info else None,
            takes_token_ids=True,
            json_schema=has_grammars() if self._engine is None else takes_grammars(self._engine),
            continuation="token_ids",
            pre_copy="append",
        )

    def change_options(self, change: Callable[[EngineOptions], EngineOptions]) -> None:
        """Replace the engine's options; has no effect once loading the model has begun."""
        work = self._work.latest
        if self._engine is None and (work is None or work.loading is None):
            self._options = change(self._options)

    async def start(self) -> None:
        """Load the model; idempotent. Concurrent callers share one load, and cancelling one of them doesn't stop it.

        Raises:
            EngineError: the model can't be loaded; a later call tries again.
            ConfigError: another running event loop is using the endpoint, or this process was forked from the one that loaded the model.
        """
        await self.loaded_engine()

    async def loaded_engine(self) -> Engine:
        """Return the engine, after loading the model if necessary; see ``start``."""
        if self._is_closed:
            raise StreamClosed(f"{self._name}: the endpoint is closed")
        work = self._work.get()
        if self._engine is not None:
            check_process(self._process, self._name)
            return self._engine
        if work.loading is None:
            work.loading = asyncio.create_task(self._load(), name=f"streamco load {self._name}")
            work.loading.add_done_callback(_retrieve_exception)
        return await asyncio.shield(work.loading)

    async def _load(self) -> Engine:
        work = self._work.get()
        try:
            engine = await asyncio.to_thread(self._keep_engine)
        except EngineError as exc:
            exc.endpoint = exc.endpoint or self._name
            raise
        finally:
            work.loading = None
        if self._is_closed:
            raise StreamClosed(f"{self._name}: the endpoint was closed while it loaded")
        return engine

    def _keep_engine(self) -> Engine:
        """Load the model in a worker thread and keep it, even if the event loop that asked for it ends in the meantime."""
        with self._lock:
            if self._engine is None:
                self._engine, self._process = self._load_file(), os.getpid()
            engine = self._engine
        if self._is_closed:  # it was closed in the meantime
            self._engine = None
            engine.close()
        return engine

    def _load_file(self) -> Engine:
        from streamco.engines.llama import LlamaEngine

        if self._path is None:
            raise AssertionError("an endpoint without an engine has a path")
        return LlamaEngine(self._path, self._options, self._on_progress)

    def open(self, request: Request) -> DeviceStream:
        """Begin an answer. If the model is loaded and the prompt is short, the engine has the request before this returns."""
        return self._begin(DeviceStream(self, request, on_over=self._work.get().streams.discard))

    def _begin(self, stream: StreamT) -> StreamT:
        self._work.get().streams.add(stream)
        stream.begin()
        return stream

    async def drafter(
        self, request: Request, *, emit: Callable[[DrafterEvent], None], top: int | None = None, row_ids: int = 0
    ) -> DeviceDrafter:
        """Return a drafter for one answer. The model is loaded if necessary, and begins to read the prompt at once.

        Args:
            request: the prompt, and how tokens are drawn.
            emit: called with the drafted tokens, see ``DeviceDrafter``.
            top: number of alternatives for each token; None for as many as the speculator needs.
            row_ids: maximum number of ids in each token's row (the distribution that it is drawn from); 0 to get no rows.

        Raises:
            EngineError: the model can't be loaded, its engine holds no sequences (``EngineOptions.held_sequences``), or the prompt doesn't
                fit.
            UsageError: the request doesn't have exactly one of messages, prompt and prompt_ids.
        """
        from streamco.endpoints.device_drafter import TOP, DeviceDrafter

        engine = await self.loaded_engine()
        drafters = self._work.get().drafters
        try:
            ids = await asyncio.to_thread(self.prompt_ids, engine, request) if not is_short(request) else self.prompt_ids(engine, request)
            drafter = DeviceDrafter(
                _holding(engine),
                ids,
                emit=emit,
                sampling=request.sampling,
                top=TOP if top is None else top,
                row_ids=row_ids,
                name=self._name,
                on_close=drafters.discard,
            )
        except EngineError as exc:
            exc.endpoint = exc.endpoint or self._name
            raise
        drafters.add(drafter)
        return drafter

    def count_tokens(self, request: Request) -> int | None:
        """Return the prompt's length in tokens, template included; None if the model isn't loaded or its template rejects the messages."""
        if self._engine is None:
            return None
        try:
            return len(self.prompt_ids(self._engine, request))
        except EngineError:
            return None  # opening the request raises the error

    def count_text(self, text: str) -> TextCount | None:
        """Return the number of tokens in a text, or None if the model isn't loaded."""
        return None if self._engine is None else TextCount(len(self._engine.tokenize(text)), "engine")

    def prompt_ids(self, engine: Engine, request: Request) -> list[int]:
        """Return ``request_ids`` of the request; the last result is cached, because a request is first counted and then opened."""
        known = self._last_tokenized
        if known is None or known[0] is not request:
            self._last_tokenized = known = (request, request_ids(engine, request))
        return known[1]

    async def aclose(self) -> None:
        """Cancel the streams and free the model; idempotent."""
        self._is_closed = True
        await self._work.aclose()
        engine = self._engine
        if engine is not None and self._path is not None and self._process == os.getpid():
            self._engine = None
            await asyncio.to_thread(engine.close)


class DeviceStream:
    """One answer from an engine; see ``EndpointStream``. Made by ``DeviceEndpoint.open``."""

    def __init__(self, endpoint: DeviceEndpoint, request: Request, *, on_over: Callable[[DeviceStream], None]) -> None:
        self._endpoint = endpoint
        self._on_over = on_over
        self._request = request
        self._number = new_completion_id()
        self._created = int(time())
        self._loop = asyncio.get_running_loop()
        self._preparing: asyncio.Task[None] | None = None
        self._generation: Generation | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._failure: Exception | None = None
        self._end: GenerationEnd | None = None
        self._partial: list[str] = []
        self._boundary = BoundaryWhitespace()
        self._splitter: ReasoningSplitter | None = None
        self._top_logprobs = int(request.extra.get("top_logprobs") or 0) if request.extra.get("logprobs") else None
        self._watchdog = None if request.timeouts is None else Watchdog(self._loop, request.timeouts, self._expire, request.elapsed)
        self._has_begun = self._has_sent_finish = self._has_ended = self._is_cancelled = False

    @property
    def timings(self) -> GenerationTimings | None:
        """Figures that the engine measured, or None if the answer hasn't ended."""
        return self._end.timings if self._end is not None else None

    @property
    def idle(self) -> float:
        """Seconds so far in which no task was waiting for the stream; see ``idle_of``."""
        return 0.0 if self._watchdog is None else self._watchdog.idle

    def begin(self) -> None:
        """Submit the request right away if that is quick, or else in a task."""
        engine = self._endpoint.engine
        if engine is not None and is_short(self._request):
            try:
                self._join(engine)
                self._submit(engine, self._endpoint.prompt_ids(engine, self._request))
            except (EndpointError, ConfigError, UsageError) as exc:
                self._failure = exc
        else:
            self._preparing = self._loop.create_task(self._prepare(), name=f"streamco prepare {self._number}")

    async def _prepare(self) -> None:
        try:
            engine = await self._endpoint.loaded_engine()
            ids = await asyncio.to_thread(self._endpoint.prompt_ids, engine, self._request)
            if not self._is_cancelled:
                self._join(engine)
                if self._request.extra.get("response_format") is None:
                    self._submit(engine, ids)
                else:  # parsing a grammar takes a while, and a model's first one takes longer
                    await asyncio.to_thread(self._submit, engine, ids)
        except (EndpointError, ConfigError, UsageError) as exc:
            self._failure = exc

    def _submit(self, engine: Engine, ids: list[int]) -> None:
        request = generation_request(engine, self._request, ids, top=1 if self._top_logprobs is None else MAX_TOP_LOGPROBS)
        self._boundary = BoundaryWhitespace(boundary_whitespace(engine, self._request))
        self._splitter = reasoning_splitter(engine, self._request, ids)
        self._generation = self._generate(engine, request)

    def _join(self, engine: Engine) -> None:
        """Do any work that must happen on the event loop before the request is submitted; here there is none."""

    def _generate(self, engine: Engine, request: GenerationRequest) -> Generation:
        """Submit the request; this may run in a worker thread."""
        return engine.submit(request, self._wake)

    async def receive(self) -> TokensReceived | StreamEnded:
        """Wait for the next tokens or the end; see ``EndpointStream.receive``.

        Raises:
            EngineError: the model can't be loaded, the prompt doesn't fit, or the engine failed.
            StreamClosed: the stream was cancelled.
            StreamConsumed: the stream has already ended.
        """
        if self._preparing is not None:
            await asyncio.shield(self._preparing)
        while True:
            if self._is_cancelled:
                raise StreamClosed(f"{self._endpoint.name}: expected a stream that runs, got a cancelled one")
            if self._has_ended:
                raise StreamConsumed(f"{self._endpoint.name}: expected a stream that has not ended, got one read to its end")
            if self._failure is not None:
                self._close()
                raise self._translate(self._failure)
            pieces = self._take()
            if pieces or (
                self._end is not None and self._end.reason in FINISHED and not self._has_sent_finish and not self._request.prefill_only
            ):
                return self._tokens(pieces)
            if self._end is not None:
                return self._finish(self._end)
            await self._wait_for_wake()

    async def cancel(self) -> None:
        """Stop the answer; return when the engine has released the sequence. Idempotent, safe in every state."""
        self._is_cancelled = self._is_cancelled or not self._has_ended
        if self._preparing is not None:
            await asyncio.wait([self._preparing])  # a loop that is ending has cancelled it
        if self._generation is not None and self._end is None:
            self._generation.cancel()
            while self._end is None:
                self._take()
                if self._end is None:
                    await self._wait_for_wake()
        self._notify()  # a waiting receive raises StreamClosed
        self._close()

    def pause(self) -> None:
        """Have the engine stop computing and keep its state until ``resume``."""
        if self._generation is not None:
            self._generation.pause()

    def charge(self, seconds: float) -> None:
        """Count the seconds of a pause towards the limit for the whole answer."""
        if self._watchdog is not None:
            self._watchdog.charge(seconds)

    def resume(self) -> None:
        """Have the engine continue after ``pause``."""
        if self._generation is not None:
            self._generation.resume()

    def _take(self) -> list[TextPiece]:
        if self._generation is None or self._end is not None:
            return []
        pieces, self._end = self._generation.take()
        if self._splitter is not None:
            pieces = self._splitter.split(pieces) + (self._splitter.flush() if self._end is not None else [])
        if self._end is not None:
            self._drop_generation()
            self._notify()
        return pieces

    def _drop_generation(self) -> None:
        """Drop the generation that has ended. It refers to this stream, so otherwise only the garbage collector would free the two."""
        self._generation = None

    def _wake(self) -> None:
        """Wake the loop; called from the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._notify)
        except RuntimeError:  # the loop was closed without the stream: no task is left to read
            if self._generation is not None:
                self._generation.cancel()

    def _notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_for_wake(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        if self._watchdog is None:
            await waiter
            return
        self._watchdog.resume()
        try:
            await waiter
        finally:
            self._watchdog.pause()
            self._watchdog.feed(has_content=True)

    def _expire(self, error: EndpointTimeoutError) -> None:
        """Fail because the engine was silent for too long."""
        self._failure = self._failure or error
        if self._generation is not None:
            self._generation.cancel()
        self._notify()

    def _tokens(self, pieces: list[TextPiece]) -> TokensReceived:
        chunks: list[ChatCompletionChunk] = []
        if not self._has_begun:
            self._has_begun = True
            chunks.append(self._chunk(ChunkChoice(delta=ChoiceDelta(role="assistant", content=""))))
        tokens, confidences = 0, []
        for piece in pieces:
            tokens += len(piece.ids)
            if piece.tops is not None and not piece.is_reasoning:
                confidences += _confidences(piece)
            delta = ChoiceDelta(reasoning_content=piece.text) if piece.is_reasoning else ChoiceDelta(content=piece.text)
            choice = ChunkChoice(delta=delta, token_ids=None if piece.is_cut else list(piece.ids))
            if not piece.is_reasoning:
                self._partial.append(piece.text)
            if self._top_logprobs is not None and not piece.is_reasoning:
                choice.logprobs = self._logprobs(piece, self._top_logprobs)
            chunks.append(self._chunk(choice))
        if self._end is not None and self._end.reason in FINISHED:
            self._has_sent_finish = True
            chunks.append(self._chunk(ChunkChoice(finish_reason=self._end.reason)))
        event = TokensReceived(self._endpoint.name, chunks, tokens, tuple(confidences))
        return self._boundary.strip(event) if self._boundary.is_open else event

    def _logprobs(self, piece: TextPiece, count: int) -> ChoiceLogprobs | None:
        engine = self._endpoint.engine
        return None if engine is None else chat_logprobs(token_logprobs(piece.ids, piece.tops, count), engine.detokenize)

    def _chunk(self, choice: ChunkChoice) -> ChatCompletionChunk:
        model = self._endpoint.engine.info.name if self._endpoint.engine is not None else self._endpoint.name
        return ChatCompletionChunk(id=self._number, choices=[choice], created=self._created, model=model)

    def _finish(self, end: GenerationEnd) -> StreamEnded:
        self._has_ended = True
        self._close()
        if end.reason in FINISHED:
            return StreamEnded(self._endpoint.name, None if self._request.prefill_only else end.reason, end.timings.usage())
        if end.reason == "cancelled":  # because the engine was closed, not by this stream
            raise self._translate(end.error or EngineError("engine: closed before the answer was complete"))
        raise self._translate(end.error or EngineError(f"engine: expected an end with stop or length, got {end.reason}"))

    def _translate(self, error: Exception) -> Exception:
        if isinstance(error, UsageError):
            return error
        if not isinstance(error, EndpointError):
            wrapped = EngineError(str(error))
            wrapped.__cause__ = error
            error = wrapped
        error.endpoint = error.endpoint or self._endpoint.name
        error.partial = error.partial or "".join(self._partial)
        return error

    def _close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        self._on_over(self)


def _holding(engine: Engine) -> HoldingEngine:
    if not hasattr(engine, "hold"):
        raise EngineError(f"engine: expected one that holds sequences, got {type(engine).__name__}")
    return cast("HoldingEngine", engine)


def _retrieve_exception(task: asyncio.Task[Engine]) -> None:
    """Mark the error as retrieved, because there may be no waiting caller left to receive it."""
    if not task.cancelled():
        task.exception()


def _confidences(piece: TextPiece) -> list[TokenConfidence]:
    """Return how sure the model was of each token of a piece. If the piece ends a sentence, the last token is marked as its end."""
    tops, last = piece.tops or (), len(piece.ids) - 1
    shares = (next((share for each, share in top if each == token), 0.0) for token, top in zip(piece.ids, tops, strict=False))
    is_end = ends_sentence(piece.text)
    return [TokenConfidence(share, is_end and place == last) for place, share in enumerate(shares)]
