"""The HTTP server with OpenAI's and Anthropic's APIs over one engine.

``make_app`` returns the aiohttp application, and ``serving`` runs it on a port of this process. The caller opens and closes the
engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import cast

from aiohttp import web

from streamco.endpoints.engine_health import check_engine
from streamco.engines.base import Engine, GenerationRequest, HoldingEngine
from streamco.engines.llamacpp.reasoning import ReasoningSplitter
from streamco.engines.native_notice import warn_if_pure
from streamco.errors import MAX_NAME, EngineError, shorten
from streamco.server.first_token_times import FIELD, HEADER, FirstTokenTimes
from streamco.server.http.api import make_application
from streamco.server.http.api_keys import KEY_NAME
from streamco.server.http.encoding import CHAT, COMPLETION
from streamco.server.http.errors import RequestError
from streamco.server.http.listening import listening, make_runner
from streamco.server.http.middleware import JSON, RequestAdmission, read_body
from streamco.server.http.model_list import model_answer, model_list_answer
from streamco.server.http.prometheus import FiguresCollector, make_registry
from streamco.server.http.translated_apis import add_translated_apis, naming_fields, read_count, read_message, read_response
from streamco.server.metrics import ServerMetrics
from streamco.server.options import ServeOptions
from streamco.server.packed_response import PackedStream, wants_packed
from streamco.server.prompts import ApiRequest, build_generation, encode_vocabulary, reasoning_splitter, request_tokens
from streamco.server.requests import ChatRequest, CompletionRequest, convert, has_messages, parse
from streamco.server.responses import ChatResponse, CompletionResponse, ResponseFormat
from streamco.server.streaming import answer_whole, stream_answer
from streamco.server.translated_response import TranslatedResponse
from streamco.server.verify.service import PATH, STATS_PATH, VerifyService
from streamco.server.verify.stats import VERIFY_METRICS
from streamco.server.wakeup import Clock, GenerationReader, LoopClock, PieceHold, WakeCoalescer
from streamco.wire.openai.msgpack_body import MSGPACK
from streamco.wire.token_frames import TokenCodec
from streamco.wire.translated_request import TranslatedRequest

__all__ = ["SERVICE", "VERIFY", "Service", "ServeOptions", "make_app", "make_runner", "serving"]

MEDIA_TYPES = (JSON, MSGPACK)  # of request bodies


class Service:
    """The server's handlers and their shared state.

    Args:
        engine: a loaded engine; the caller closes it.
        options: limits, key, latency.
        clock: tells the time for delayed pieces and keep-alives, or None to use the loop's time.
    """

    def __init__(self, engine: Engine, options: ServeOptions, clock: Clock | None = None) -> None:
        self.engine = engine
        self.options = options
        self.model = options.model or engine.info.name
        self.admission = RequestAdmission(options)
        self.clock = clock or LoopClock()
        self.created = int(time.time())
        self._works: set[GenerationReader] = set()
        self._waker: WakeCoalescer | None = None
        self._requests = 0
        self._first_token_times = FirstTokenTimes()
        self._vocabulary: asyncio.Task[bytes] | None = None  # makes the answer, once
        self.registry = make_registry() if options.metrics else None
        self._metrics = None if self.registry is None else ServerMetrics(self.registry, lambda: self.admission.present)

    @property
    def active(self) -> int:
        """Number of the engine's generations in progress."""
        return len(self._works)

    async def stop(self, _app: web.Application | None = None) -> None:
        """Stop admitting requests, and end each stream with an error that its reader can distinguish from a normal end."""
        self.admission.close()
        for work in list(self._works):
            work.stop("a shutdown")

    async def health(self, _request: web.Request) -> web.Response:
        """Answer ``GET /health``: whether the engine's thread responds (503 if not), and how many requests are in progress."""
        failure = await check_engine(self.engine, self.options.health_timeout)
        figures = {"model": self.model, "requests": self.admission.present}
        if failure is not None:
            return web.json_response({"status": "error", "reason": failure, **figures}, status=503)
        return web.json_response({"status": "ok", **figures})

    async def models(self, request: web.Request) -> web.Response:
        """Answer ``GET /v1/models`` with the server's one model."""
        return model_list_answer(request, [self._card()])

    async def one_model(self, request: web.Request) -> web.Response:
        """Answer ``GET /v1/models/NAME`` with the server's one model, and refuse any other name."""
        self._check_model(request.match_info["model"])
        return model_answer(request, self._card())

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/chat/completions``."""
        with self.admission.admitted():
            return await self._receive(request, ChatRequest)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/completions``."""
        with self.admission.admitted():
            return await self._receive(request, CompletionRequest)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/responses``."""
        with self.admission.admitted():
            return await self._translate(request, read_response)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/messages``."""
        with self.admission.admitted():
            return await self._translate(request, read_message)

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/messages/count_tokens``."""
        with self.admission.admitted():
            body = await read_body(request)
            asked = read_count(body)
            with naming_fields(asked.names):
                parsed = _chat_request(asked)
                self._check_model(parsed.model or self.model)
                tokens = await request_tokens(self.engine, parsed, len(body))
        return web.json_response({"input_tokens": len(tokens)})

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /tokenize``, as vLLM does: the token ids of messages or of a prompt."""
        with self.admission.admitted():
            body = await read_body(request)
            parsed: ApiRequest = parse(body, ChatRequest) if has_messages(body) else parse(body, CompletionRequest)
            self._check_model(parsed.model or self.model)
            tokens = await request_tokens(self.engine, parsed, len(body))
        return web.json_response({"count": len(tokens), "max_model_len": self.engine.info.context_tokens, "tokens": tokens})

    async def vocabulary(self, _request: web.Request) -> web.StreamResponse:
        """Answer ``GET /vocabulary``: the bytes of each token in base64, and which tokens end a text."""
        with self.admission.admitted():
            if self._vocabulary is None:
                self._vocabulary = asyncio.create_task(asyncio.to_thread(encode_vocabulary, self.engine), name="streamco vocabulary")
                self._vocabulary.add_done_callback(self._forget_failure)
            body = await asyncio.shield(self._vocabulary)  # a caller that disconnects doesn't cancel it for the others
        return web.Response(body=body, content_type=JSON)

    def _forget_failure(self, task: asyncio.Task[bytes]) -> None:
        """If making the vocabulary failed, let the next caller's request make it again."""
        if task.cancelled() or task.exception() is not None:
            self._vocabulary = None

    async def _translate(self, request: web.Request, read: Callable[[bytes], TranslatedRequest]) -> web.StreamResponse:
        """Answer a request to a translated API."""
        arrived = self.clock.now()
        body = await read_body(request)
        asked = read(body)
        encoder = asked.encoder(name=token_hex(16), model=self.model, created=int(time.time()))
        with naming_fields(asked.names):
            parsed = _chat_request(asked)
            shape = TranslatedResponse(encoder, detokenize=self.engine.detokenize, top=parsed.wanted_top)
            return await self._answer(request, parsed, len(body), arrived, shape)

    async def _receive(self, request: web.Request, shape: type[ChatRequest | CompletionRequest]) -> web.StreamResponse:
        arrived = self.clock.now()
        body = await read_body(request, MEDIA_TYPES)
        return await self._answer(request, parse(body, shape, request.content_type), len(body), arrived)

    async def _answer(
        self, request: web.Request, parsed: ApiRequest, body_bytes: int, arrived: float, translated: ResponseFormat | None = None
    ) -> web.StreamResponse:
        if parsed.model:
            self._check_model(parsed.model)
        hold = self._start_hold(arrived)
        generation = await build_generation(self.engine, parsed, self.options, body_bytes, owner=request.get(KEY_NAME))
        splitter = reasoning_splitter(self.engine, parsed, generation.prompt_ids)
        work = self._start(generation, hold, splitter)
        headers = self._load_headers()
        try:
            if translated is None and splitter is None and wants_packed(request.headers.get("Accept", ""), parsed):
                return await stream_answer(request, work, self._pack(parsed), self.options, self.clock, headers=headers)
            answer = translated or self._shape(parsed, generation)
            respond = stream_answer if parsed.is_streamed else answer_whole
            return await respond(request, work, answer, self.options, self.clock, headers=headers)
        finally:
            work.stop("the reader's leaving")
            self._works.discard(work)
            first = None if work.first_at is None else work.first_at - arrived
            if first is not None:
                self._first_token_times.record(first, now=self.clock.now())
            if self._metrics is not None:
                self._metrics.record(work.end, seconds=self.clock.now() - arrived, first_token=first)

    def _start(self, generation: GenerationRequest, hold: PieceHold | None, splitter: ReasoningSplitter | None) -> GenerationReader:
        self.admission.check_open()  # it may have closed while the prompt was tokenised
        if self._waker is None:
            self._waker = WakeCoalescer()
        try:
            work = GenerationReader(self.engine, generation, self._waker, self.clock, hold, splitter=splitter)
        except EngineError as error:
            raise RequestError(503, str(error), code="engine_error") from error
        self._works.add(work)
        return work

    def _start_hold(self, arrived: float) -> PieceHold | None:
        if self.options.hold is None:
            return None
        self._requests += 1
        return self.options.hold(self._requests, arrived)

    def _shape(self, parsed: ApiRequest, generation: GenerationRequest) -> ResponseFormat:
        shape = ChatResponse if isinstance(parsed, ChatRequest) else CompletionResponse
        return shape(
            name=shape.objects.new_id(),
            model=self.model,
            created=int(time.time()),
            detokenize=self.engine.detokenize,
            top=parsed.wanted_top,
            wants_ids=bool(parsed.return_token_ids),
            wants_usage=parsed.wants_usage,
            prompt_ids=generation.prompt_ids,
        )

    def _pack(self, parsed: ApiRequest) -> PackedStream:
        names, info = CHAT if isinstance(parsed, ChatRequest) else COMPLETION, self.engine.info
        return PackedStream(
            name=names.new_id(),
            model=self.model,
            created=int(time.time()),
            codec=TokenCodec(info.vocabulary, info.vocabulary_size),
            wants_usage=parsed.wants_usage,
        )

    def _check_model(self, name: str) -> None:
        if name != self.model:
            raise RequestError(404, f"model: expected {self.model}, got {shorten(name, MAX_NAME)}", param="model", code="model_not_found")

    def _card(self) -> dict[str, object]:
        info = self.engine.info
        return {
            "id": self.model,
            "object": "model",
            "created": self.created,
            "owned_by": "streamco",
            "max_model_len": info.context_tokens,
            "vocabulary": info.vocabulary,
            "vocabulary_size": info.vocabulary_size,
            "content_mark": info.content_mark,
            "media_types": MEDIA_TYPES,
            FIELD: self._first_token_times.quantiles(now=self.clock.now()),
        }

    def _load_headers(self) -> dict[str, str]:
        """Return the header with the latest first-token times, or {} if there are none. Only callers with the key get that far."""
        times = self._first_token_times.quantiles(now=self.clock.now())
        return {HEADER: ", ".join(f"{seconds:g}" for seconds in times)} if times else {}


def _chat_request(asked: TranslatedRequest) -> ChatRequest:
    """Return the chat request for a translated request. If its messages end with the beginning of an answer, that answer is continued."""
    open_end = {"continue_final_message": True, "add_generation_prompt": False} if asked.ends_open else {}
    return convert({**asked.chat, **open_end}, ChatRequest)


SERVICE: web.AppKey[Service] = web.AppKey("service", Service)
VERIFY: web.AppKey[VerifyService] = web.AppKey("verify", VerifyService)


def make_app(engine: Engine, options: ServeOptions | None = None, *, clock: Clock | None = None) -> web.Application:
    """Return the server as an aiohttp application. Run it with ``make_runner``, which has suitable settings.

    Args:
        engine: a loaded engine; the caller closes it. If it can keep sequences, the server also verifies drafts.
        options: limits, key, latency, or None for the defaults. The host and port are used only by ``serving``.
        clock: tells the time for delayed pieces and keep-alives, or None to use the loop's time.
    """
    options = options or ServeOptions()
    service = Service(engine, options, clock)
    logger = logging.getLogger("streamco.server")
    app = make_application(service, options, logger=logger, deferred=frozenset({PATH}), registry=service.registry)
    add_translated_apis(app, service)
    app.add_routes([web.post("/tokenize", service.tokenize), web.get("/vocabulary", service.vocabulary)])
    app[SERVICE] = service
    if options.verify is not None and getattr(engine, "held_sequences", 0) > 0:
        verify = VerifyService(cast(HoldingEngine, engine), options.verify, options, model=service.model)
        app.add_routes([web.get(PATH, verify.handle), web.get(STATS_PATH, verify.stats)])
        app.on_shutdown.append(verify.stop)
        app.on_cleanup.append(verify.close)
        app[VERIFY] = verify
        if service.registry is not None:
            service.registry.register(FiguresCollector(verify.figures, VERIFY_METRICS))
    return app


@asynccontextmanager
async def serving(engine: Engine, options: ServeOptions | None = None, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Serve inside this process, and yield the address for an OpenAI client's ``base_url`` (it ends in ``/v1``).

    When the block is left, running streams end with an error event. The engine stays open.

    Raises:
        ConfigError: other machines can reach the host and there is no key.
        OSError: the port is taken.
    """
    warn_if_pure()
    options = options or ServeOptions()
    async with listening(make_app(engine, options, clock=clock), options) as address:
        yield f"{address}/v1"
