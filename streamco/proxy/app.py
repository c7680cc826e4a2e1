"""The proxy: an HTTP server with OpenAI's and Anthropic's APIs in front of a client.

``make_app`` returns the aiohttp application, and ``serving`` runs it on a port of this process. The caller opens and closes the
client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import reduce
from pathlib import Path
from secrets import token_hex

import msgspec
from aiohttp import web
from msgspec.structs import replace

from streamco.client.answer_log import REQUEST_ID_HEADER
from streamco.client.client import Client
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.client.observers.metrics import AnswerMetrics
from streamco.client.stream import ChatStream
from streamco.core.totals import Totals
from streamco.errors import ConfigError, StreamcoError
from streamco.proxy.callers.access import TOTALS_PATH, USAGE_PATH, AnswerGrant, CallerAccess
from streamco.proxy.config import MODEL, ProxyOptions
from streamco.proxy.error_responses import explain
from streamco.proxy.origins import OriginFields
from streamco.proxy.page.routes import PAGE_PATHS, PageExtras, add_page
from streamco.proxy.ratings import RATINGS_HEADER, RATINGS_PATH, Ratings
from streamco.proxy.requests import ParsedRequest, parse_chat, parse_completion, parse_fields, unknown_model
from streamco.proxy.response_shapes import ChatShape, CompletionShape, ResponseShape
from streamco.proxy.streaming import OriginMarks, answer_whole, stream_answer
from streamco.proxy.tasks import TaskRules
from streamco.server.http.access_log import current_request_id
from streamco.server.http.api import make_application
from streamco.server.http.api_keys import KEY_NAME
from streamco.server.http.errors import invalid
from streamco.server.http.listening import listening
from streamco.server.http.middleware import RequestAdmission, read_body, trace_headers
from streamco.server.http.model_list import model_answer, model_list_answer
from streamco.server.http.prometheus import make_registry
from streamco.server.http.translated_apis import add_translated_apis, naming_fields, read_count, read_message, read_response
from streamco.wire.translated_request import TranslatedRequest

__all__ = ["PROXY", "Proxy", "make_app", "serving"]


READER_HEADER = "x-streamco-reader"
"""The header by which the page says that a person will read the answer."""


def for_a_person(client: Client) -> Client:
    """Return the client for answers that a person reads as they come.

    It paces the text evenly, and if a side refuses, it gives a note instead of an error.
    """
    rule, pace = client.on_degraded, client.pace
    return client.with_options(on_degraded="answer" if rule == "warn" else rule, pace="smooth" if pace is None else pace)


class Proxy:
    """The proxy's handlers and their shared state.

    Args:
        client: makes the answers; the caller closes it.
        options: limits, key, names.
        access: what each caller may do, or None if there is at most one key, which allows everything.
        extras: additions to the page's chat.
    """

    def __init__(self, client: Client, options: ProxyOptions, access: CallerAccess | None, extras: PageExtras) -> None:
        self.client = client
        self.options = options
        self.admission = RequestAdmission(options)
        self.created = int(time.time())
        self.access = access
        self.ratings = Ratings(client)
        self._extras = extras
        self._answers: set[ChatStream] = set()
        self._tasks = TaskRules(options.task_patterns, takes_header=options.takes_tasks)
        has_tasks = bool(options.task_patterns) or options.takes_tasks
        needs_other = has_tasks and client.race.policy != "device-only"
        self._device_alone = client.with_options(mode=replace(client.race, policy="device-only")) if needs_other else client

    @property
    def active(self) -> int:
        """Number of answers in progress."""
        return len(self._answers)

    async def stop(self, _app: web.Application | None = None) -> None:
        """Stop admitting requests, and end each answer with an error that its reader can distinguish from a normal end."""
        self.admission.close()
        await asyncio.gather(*(answer.aclose() for answer in list(self._answers)))

    async def health(self, _request: web.Request) -> web.Response:
        """Answer ``GET /health``: whether the device's engine responds, if one is loaded (503 if not), and how many requests run.

        ``status`` is "degraded", still with 200, if an endpoint failed or couldn't start and hasn't answered since: the proxy serves
        requests all the same, and a restart wouldn't help. ``degraded`` names each such endpoint, what happened, and since when.
        If the callers' file can't be used, the answer is 503, because no request is admitted then.
        """
        failure = await self.client.check_device(seconds=self.options.health_timeout)
        figures = {"model": MODEL, "requests": self.admission.present}
        if failure is None and self.access is not None:
            failure = await self.access.problem() or None
        if failure is not None:
            return web.json_response({"status": "error", "reason": failure, **figures}, status=503)
        if degraded := self.client.degraded:
            listed = [{"endpoint": each.endpoint, "kind": each.kind, "note": each.note, "since": each.since} for each in degraded]
            return web.json_response({"status": "degraded", "degraded": listed, **figures})
        return web.json_response({"status": "ok", **figures})

    async def models(self, request: web.Request) -> web.Response:
        """Answer ``GET /v1/models`` with the models of the proxy's client."""
        return model_list_answer(request, [self._card(name) for name in (MODEL, *self.options.models)])

    async def one_model(self, request: web.Request) -> web.Response:
        """Answer ``GET /v1/models/NAME`` with that model, or with 404 if the name is unknown."""
        name = request.match_info["model"]
        if name not in {MODEL, *self.options.models}:
            raise unknown_model(name, self.options)
        return model_answer(request, self._card(name))

    async def totals(self, _request: web.Request) -> web.Response:
        """Answer ``GET /streamco/totals``: time, tokens and cost of all answers so far, including answers that only one side could give.

        The budget's share counts only the answers that both sides could give.
        """
        one_sided = [] if self.access is None else [*self.access.one_sided]
        if self._device_alone is not self.client:
            one_sided.append(self._device_alone)
        totals = reduce(Totals.joined, (each.totals for each in one_sided), self.client.totals)
        return web.Response(body=msgspec.json.encode(totals), content_type="application/json")

    async def rate(self, request: web.Request) -> web.Response:
        """Answer ``POST /streamco/ratings/KEY``."""
        caller = "" if self.access is None else request[KEY_NAME]
        return self.ratings.rate(request.match_info["key"], await read_body(request), caller)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/chat/completions``."""
        with self.admission.admitted():
            parsed = parse_chat(await read_body(request), self.options)
            return await self._answer(request, parsed, _shape(parsed, ChatShape))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/completions``."""
        with self.admission.admitted():
            parsed = parse_completion(await read_body(request), self.options)
            with naming_fields({"messages": "prompt"}):
                return await self._answer(request, parsed, _shape(parsed, CompletionShape))

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/responses``."""
        with self.admission.admitted():
            return await self._translate(request, read_response(await read_body(request)))

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/messages``."""
        with self.admission.admitted():
            return await self._translate(request, read_message(await read_body(request)))

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /v1/messages/count_tokens``."""
        with self.admission.admitted():
            asked = read_count(await read_body(request))
            with naming_fields(asked.names):
                parsed = parse_fields(asked.chat, self.options)
            self.admission.check_open()
            try:
                counted = await self.client.count_tokens(parsed.request)
            except StreamcoError as error:
                raise explain(error) from error
        if counted is None:
            raise invalid("messages", "expected a prompt that an endpoint here can count, got none", code="cannot_count_tokens")
        estimated = {"is_estimated": True} if counted.counter == "estimate" else {}
        return web.json_response({"input_tokens": counted.tokens, **estimated})

    async def _translate(self, request: web.Request, asked: TranslatedRequest) -> web.StreamResponse:
        """Answer a request to a translated API."""
        if asked.ends_open:
            raise invalid("messages", "expected a user's message or a tool's result at the end, got the beginning of an answer")
        with naming_fields(asked.names):
            parsed = parse_fields(asked.chat, self.options)
            shape = asked.encoder(name=token_hex(16), model=parsed.model or MODEL, created=int(time.time()))
            return await self._answer(request, parsed, shape)

    async def _answer(self, request: web.Request, parsed: ParsedRequest, shape: ResponseShape) -> web.StreamResponse:
        self.admission.check_open()  # it may have closed while the body was read
        headers = {**parsed.request.headers, **trace_headers(request), REQUEST_ID_HEADER: current_request_id()}
        asked = replace(parsed.request, headers=headers)
        is_task = bool(self._tasks.name_of(parsed.request, request.headers))
        if self.access is None:
            client = self._device_alone if is_task else self.client
            return await self._make(request, parsed, shape, AnswerGrant(client=client, request=asked))
        grant = await self.access.grant(request, asked, is_task=is_task)
        async with self.access.settling(grant):
            return await self._make(request, parsed, shape, grant)

    async def _make(self, request: web.Request, parsed: ParsedRequest, shape: ResponseShape, grant: AnswerGrant) -> web.StreamResponse:
        """Produce an answer as the grant says, and send it."""
        wants_usage = parsed.wants_usage or not parsed.is_streamed
        has_reader = parsed.is_streamed and request.headers.get(READER_HEADER) == "person"
        client = for_a_person(self._extras.client_for(grant.request) or grant.client) if has_reader else grant.client
        answer = client.open_chat(grant.request, includes_usage=wants_usage, is_streamed=parsed.is_streamed, notes=grant.notes)
        grant.answer = answer
        self._answers.add(answer)
        more_headers = {**grant.headers, **({RATINGS_HEADER: f"{RATINGS_PATH}/{answer.rating_key}"} if self.ratings.are_taken else {})}
        if self.ratings.are_taken:
            self.ratings.remember(answer.rating_key, grant.caller, grant.client)
        try:
            async with answer:  # a client that disconnects cancels this handler, and with it both sides
                unknown = "" if parsed.is_known else parsed.model
                if parsed.is_streamed:
                    marks = None
                    if parsed.wants_origin and isinstance(shape, ChatShape | CompletionShape):
                        marks = OriginMarks(OriginFields(answer), shape)
                    return await stream_answer(
                        request, answer, shape, self.options, unknown_model=unknown, marks=marks, more_headers=more_headers
                    )
                return await answer_whole(answer, shape, unknown_model=unknown, more_headers=more_headers)
        finally:
            self._answers.discard(answer)

    def _card(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self.created, "owned_by": "streamco-proxy"}


def _shape(parsed: ParsedRequest, kind: type[ChatShape | CompletionShape]) -> ResponseShape:
    return kind(model=parsed.model or MODEL, wants_usage=parsed.wants_usage, wants_ids=parsed.wants_ids)


PROXY: web.AppKey[Proxy] = web.AppKey("proxy", Proxy)


def make_app(client: Client, options: ProxyOptions | None = None, extras: PageExtras | None = None) -> web.Application:
    """Return the proxy as an aiohttp application. Run it with ``streamco.server.http.listening.make_runner``, which has suitable settings.

    Args:
        client: makes the answers; the caller closes it.
        options: limits, key, names, or None for the defaults. The host and port are used only by ``serving``.
        extras: additions to the page's chat, if any; used only with ``options.page``.

    Raises:
        ConfigError: ``options.callers`` is set, and either a server has no known price, or shadow answers are on, which no caller would
            pay for. If the callers' file can't be used, this is raised when the application starts.
    """
    options, extras = options or ProxyOptions(), extras or PageExtras()
    registry = make_registry() if options.metrics else None
    access = None
    if options.callers is not None:
        gate = client.race.quality
        if isinstance(gate, QualityGate) and gate.shadow:
            raise ConfigError(f"quality gate: shadow: must be 0 with callers, whose budgets would not pay for it, got {gate.shadow:g}")
        access = CallerAccess(client, Path(options.callers), answer_tokens=options.answer_tokens, registry=registry)
    proxy = Proxy(client, options, access, extras)
    app = make_application(
        proxy,
        options,
        logger=logging.getLogger("streamco.proxy"),
        registry=registry,
        deferred=PAGE_PATHS if options.page else frozenset[str](),
        key_check=None if access is None else access.check_key,
    )
    if registry is not None:
        _follow(app, client, AnswerMetrics(registry))
    add_translated_apis(app, proxy)
    app.router.add_get(TOTALS_PATH, proxy.totals)
    if proxy.ratings.are_taken:
        app.router.add_post(RATINGS_PATH + "/{key}", proxy.rate)
    if access is not None:
        app.router.add_get(USAGE_PATH, access.usage)
        app.on_startup.append(access.start)
        app.on_cleanup.append(access.stop)
    if options.page:
        add_page(app, options.cors, extras)
    app[PROXY] = proxy
    return app


def _follow(app: web.Application, client: Client, metrics: AnswerMetrics) -> None:
    """Count the client's answers until the application is cleaned up."""
    metrics.watch(client)
    client.observers.add(metrics)

    async def leave(_app: web.Application) -> None:
        client.observers.remove(metrics)

    app.on_cleanup.append(leave)


@asynccontextmanager
async def serving(client: Client, options: ProxyOptions | None = None, extras: PageExtras | None = None) -> AsyncIterator[str]:
    """Serve inside this process, and yield the address for an OpenAI client's ``base_url`` (it ends in ``/v1``).

    When the block is left, running streams end with an error event. The client stays open. For the arguments see ``make_app``.

    Raises:
        ConfigError: other machines can reach the host and there is no key, or the callers' file can't be used.
        OSError: the port is taken.
    """
    options = options or ProxyOptions()
    async with listening(make_app(client, options, extras), options) as address:
        yield f"{address}/v1"
