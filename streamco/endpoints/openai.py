"""The endpoint for any server with OpenAI's chat, completions or Responses API.

Providers differ in details (``providers``). The known differences are kept as data, refusals are recorded, and an unknown server is asked
what it is. This file is longer than others, because the form of each request depends on everything that is known about the server.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from streamco.config import Limits, RetryPolicy, Timeouts, check_instance
from streamco.endpoints.address import Url, account_headers, find_address, parse_url
from streamco.endpoints.base import Capabilities, Kind, Message, OpenStreams, Request, TokenPrices
from streamco.endpoints.continuation import PREFILL_FIELD, hand_over, prefill_request, split_trailing_whitespace
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.http import HttpClient
from streamco.endpoints.known_servers.declared import CapabilityChanges, check_declared, with_declared, with_inputs_of
from streamco.endpoints.known_servers.prices import find_prices
from streamco.endpoints.known_servers.probe import PROBED_PATHS, STREAMCO, ServerInfo, identify
from streamco.endpoints.known_servers.providers import GENERIC, Dialect, find_provider
from streamco.endpoints.network.credentials import ApiKey, ServerKey
from streamco.endpoints.network.headers import BASE_HEADERS, check_headers, has_header, key_header, merge_headers
from streamco.endpoints.network.http_errors import tells_trouble
from streamco.endpoints.network.loop_bound import LoopBound
from streamco.endpoints.openai_stream import CallApi, OpenAIStream, StreamCall
from streamco.endpoints.retry import Retries, is_transient
from streamco.endpoints.shared_tokenizer import SharedTokenizer
from streamco.endpoints.token_counter import TokenCounter
from streamco.endpoints.token_transfer import PACKED_FIELD, TokenTransfer, is_client_error, is_refused_form, smaller
from streamco.engines.base import Engine
from streamco.errors import ConfigError, EndpointError, EndpointStatusError, EngineError
from streamco.events import Partial, TextCount
from streamco.wire.openai.msgpack_body import MSGPACK, encode_msgpack
from streamco.wire.openai.msgpack_stream import ACCEPTED
from streamco.wire.openai.requests import build_chat_request, build_completion_request, encode_request, without_stream
from streamco.wire.responses_api.response_body import build_response_body
from streamco.wire.token_frames import TokenCodec

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

__all__ = ["OpenAIEndpoint", "ServerApi"]

ServerApi = Literal["chat", "completions", "responses"]

_DEFAULTS = Timeouts(), RetryPolicy(), Limits()


class OpenAIEndpoint:
    """A remote model with OpenAI's API.

    Args:
        model: the model's name at the server; a request's own ``model`` takes precedence.
        base_url: the URL up to and including ``/v1``, a string or a URL object; for Azure, the resource's URL. By default the provider's
            URL, or else ``OPENAI_BASE_URL``, or else OpenAI's.
        api_key: the key, "" for none, or a sync or async function that returns the key for each request. By default it is read from the
            provider's variable (``OPENAI_API_KEY``, ``DEEPSEEK_API_KEY``, ``OPENROUTER_API_KEY``, ``AZURE_OPENAI_API_KEY`` ...). Loopback
            servers need none.
        organization, project: the ids of the OpenAI organisation and project that pay; "" for none. By default ``OPENAI_ORG_ID`` and
            ``OPENAI_PROJECT_ID``, for OpenAI only.
        name: a name that is unique within a client; by default provider and model.
        provider: the provider's name in ``streamco.endpoints.known_servers.providers``; None to find it by the host.
        api: "chat", "completions" (text in, text out, for base models) or "responses", which can't continue another endpoint's answer.
        timeouts: limits by phase, in seconds.
        retry: retries before the first token.
        limits: largest sizes that are accepted from the server.
        prices: US dollars per token; by default the known prices of common models.
        capabilities: all capabilities of the model, or a dict of those that differ from what is usual for the provider, or None.
        tokenizer: a local model that may have the same vocabulary, usually the client's device. ``probe`` compares how both read a sample.
            If they agree, answers are handed over as token ids in both directions; otherwise, or without a ``tokenizer``, as text.
        session: an aiohttp session to use and leave open, with its proxies and certificates, but not its time limits (``timeouts`` apply).
            None to create one.
        headers: headers sent with every request.
        probe: True to ask a server at an unknown URL what it is, during the first answer that another endpoint writes; see ``identify``.
        rng: random generator for the jitter of retries; by default one with a random seed.

    Raises:
        ConfigError: a URL, key or name is missing or wrong.
    """

    kind: Kind = "server"
    _key_header: str | None = None
    """Name of the header that has the key; None means the provider's."""

    def __init__(
        self,
        model: str,
        *,
        base_url: Url | None = None,
        api_key: ApiKey | None = None,
        organization: str | None = None,
        project: str | None = None,
        name: str | None = None,
        provider: str | None = None,
        api: ServerApi = "chat",
        timeouts: Timeouts = _DEFAULTS[0],
        retry: RetryPolicy = _DEFAULTS[1],
        limits: Limits = _DEFAULTS[2],
        prices: TokenPrices | None = None,
        capabilities: Capabilities | CapabilityChanges | None = None,
        tokenizer: DeviceEndpoint | Engine | None = None,
        session: aiohttp.ClientSession | None = None,
        headers: Mapping[str, str] | None = None,
        probe: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ConfigError(f"model: expected the name of a model, got {'an empty string' if model == '' else type(model).__name__}")
        if api not in {"chat", "completions", "responses"}:
            raise ConfigError(f'api: expected "chat", "completions" or "responses", got {api!r}')
        for setting, value, expected in (("timeouts", timeouts, Timeouts), ("retry", retry, RetryPolicy), ("limits", limits, Limits)):
            check_instance(setting, value, expected)
        check_instance("prices", prices, TokenPrices, or_none=True)
        check_declared(capabilities)
        self.model = model
        self._address, key = find_address(base_url, api_key, provider)
        self._name = name or f"{self._address.label}/{model}"
        self.api: ServerApi = api
        self._timeouts = timeouts
        self._retry = retry
        self._limits = limits
        self._prices = find_prices(self._address.provider.name, model) if prices is None else prices
        self._declared = capabilities
        self._capabilities = self._usual_capabilities
        self._dialect = Dialect(self._address.provider)
        self._transfer: TokenTransfer | None = None  # for a server that accepts packed ids
        self._tokenizer = None if tokenizer is None else SharedTokenizer(tokenizer)
        check_headers("headers", headers or {})
        account = account_headers(self._address, organization, project, is_default=base_url is None and provider is None)
        self._key = ServerKey(key)
        self._headers = merge_headers(BASE_HEADERS, account, headers or {})
        self._own_headers = frozenset(name.lower() for name in self._headers)
        self.content_mark = ""
        """Digest of the model's file, if the server reports it."""
        self.first_token_times: Sequence[float] = ()
        """Seconds to the first token of the server's latest answers, as reported when it was identified."""
        self._client = HttpClient(self._name, timeouts=timeouts, session=session, key=self._key)
        self._counter = TokenCounter(model)
        self._is_unknown = probe and not self._address.provider.hosts and not isinstance(capabilities, Capabilities)
        self._rng = rng or random.Random()
        self._answers = LoopBound(OpenStreams, owner=self._name)

    def __repr__(self) -> str:
        return f"OpenAIEndpoint({self.model!r}, base_url={self._address.base_url!r}, name={self._name!r})"

    @property
    def name(self) -> str:
        """Name in reports and errors, unique within a client."""
        return self._name

    @property
    def base_url(self) -> str:
        """The server's address, without credentials."""
        return self._address.base_url

    @property
    def provider(self) -> str:
        """Name of the provider, or "generic" if it isn't known."""
        return self._address.provider.name

    @property
    def capabilities(self) -> Capabilities:
        """The declared capabilities, or else the provider's usual ones; ``probe`` adds what the server reports."""
        return self._capabilities

    @property
    def prices(self) -> TokenPrices:
        """The given prices, or else the model's known prices; all None if neither exists."""
        return self._prices

    @property
    def timeouts(self) -> Timeouts:
        """Limits by phase, in seconds."""
        return self._timeouts

    async def start(self) -> None:
        """Prepare what would slow down the first request: imports, certificates, the vocabulary and, in the background, a connection.

        Sends nothing, and doesn't fail if the server can't be reached; the first request will. Idempotent in each event loop.

        Raises:
            StreamClosed: the endpoint was closed.
            ConfigError: the environment names a proxy that can't be used, or the endpoint is in use on another running event loop.
        """
        answers = self._answers.get()
        if answers.is_started:
            return
        await self._client.start()
        url = self._url("/models", self.model)
        await self._client.find_proxy(url)
        await asyncio.to_thread(self._counter.load)
        self._client.warm(url)
        answers.is_started = True

    def open(self, request: Request) -> OpenAIStream:
        """Begin an answer; the request is sent with the first ``receive``."""
        request = _with_limit(request, self.kind)
        changes: dict[str, str] = {}
        streams = self._answers.get().streams
        stream = OpenAIStream(
            self._name,
            self._client,
            lambda: self._prepare(request),
            refine=lambda error, call: self._record_refusal(error, call, changes),
            changes=changes,
            retries=Retries(_retry_policy(self._retry, request), self._rng),
            timeouts=request.timeouts or self._timeouts,
            elapsed=request.elapsed,
            limits=self._limits,
            on_over=streams.discard,
        )
        streams.add(stream)
        return stream

    def count_tokens(self, request: Request) -> int | None:
        """Return the number of prompt tokens as tiktoken counts them, or None if it isn't installed or can't count this prompt exactly."""
        is_own = request.model in {None, self.model} and not self._address.provider.is_self_hosted
        return self._counter.count_prompt(request) if is_own or request.prompt_ids is not None else None

    def estimate_tokens(self, request: Request) -> int | None:
        """Return roughly how many tokens the prompt has, from a related vocabulary or its size in bytes, or None if it has images."""
        return self._counter.estimate(request)

    def count_text(self, text: str) -> TextCount | None:
        """Return the number of tokens in a text, or None if tiktoken isn't installed or has no file with the model's own vocabulary."""
        tokens = self._counter.count_exactly(text)
        return None if tokens is None else TextCount(tokens, self._counter.name)

    def credentials(self) -> tuple[str, ApiKey]:
        """Return the base URL and the key as given ("" for none), for using another protocol with the same server."""
        return self._address.base_url, self._key.given

    async def models(self) -> list[str]:
        """Return the ids of the models that the server offers.

        Raises:
            EndpointError: the server doesn't send a list.
        """
        return list(identify(await self._get_json(self._address.url("/models")), {}, model=self.model).models)

    async def check_access(self) -> EndpointError | str | None:
        """Request the list of models, and return a problem that will or may make answers fail, or None if none is known.

        Nothing is sent without a key, or to a provider without such a list. A valid key that isn't allowed to list models is no problem.

        Returns:
            The error if the server rejects the key (401, 403) or can't be reached, or a clause for a message if the list lacks the model.
        """
        if not self._key or not self._address.provider.lists_models:
            return None
        try:
            models = await self._get_json(self._address.url("/models"))
        except EndpointError as error:
            return error if tells_trouble(error) else None
        return self.lacks_model(identify(models, {}, model=self.model).models)

    def lacks_model(self, listed: Sequence[str]) -> str | None:
        """Return a clause for a message if a list of models lacks this one, or None if it is listed or the server accepts any name."""
        names = {self.model, f"{self.model}:latest"}
        if not listed or not names.isdisjoint(listed) or not self._address.provider.goes_by_list:
            return None
        return f"its list of models lacks {self.model!r}"

    @property
    def is_unknown(self) -> bool:
        """True if ``identify`` may find out more, because the server's URL isn't a provider's and it hasn't been asked what it is."""
        return self._is_unknown

    @property
    def is_answering(self) -> bool:
        """True if an answer is in progress on this event loop. Some servers abort it if they get another request."""
        return bool(self._answers.get().streams)

    async def identify(self) -> ServerInfo:
        """Find out what a server is without disturbing it, and adapt to the result. A client calls this during its first answer.

        Sends only ``GET /models`` and, if the response doesn't show the kind, a GET to four other paths. Redirects aren't followed, and no
        text is sent. Capabilities are only added, so whatever was sent before (tools, images, JSON, ``n``) is still sent.

        Raises:
            EndpointError: the server doesn't say what it is. After a status that isn't temporary, such as 404, ``is_unknown`` is False,
                because asking again wouldn't help.
        """
        try:
            models = await self._get_json(self._address.url("/models"), redirects=False)
        except EndpointStatusError as error:
            self._is_unknown = is_transient(error)
            raise
        info = identify(models, {}, model=self.model)
        if info.kind == GENERIC.name and self._address.provider is GENERIC:
            info = identify(models, await self._ask_paths(PROBED_PATHS, redirects=False), model=self.model)
        self._is_unknown = False
        self._apply(info, only_adds=True)
        return info

    async def probe(self) -> ServerInfo:
        """Ask an unknown server what it is, and adapt to its dialect, its capabilities and its context size.

        Unlike ``identify``, it asks for everything that the server can report, and sends a sample text if there is a ``tokenizer``.

        Raises:
            EndpointError: the server doesn't respond at all.
            EngineError: the device that is the ``tokenizer`` can't be loaded.
        """
        provider = self._address.provider
        models = await self._get_json(self._address.url("/models"))
        paths = PROBED_PATHS if provider is GENERIC or provider.base_url is None else ()
        info = identify(models, await self._ask_paths(paths), model=self.model)
        self._is_unknown = False
        self._apply(info)
        if self._tokenizer is not None and info.vocabulary is None:
            info = await self._compare_tokenizers(self._tokenizer, info)
        return info

    async def _ask_paths(self, paths: Sequence[str], *, redirects: bool = True) -> dict[str, Any]:
        """Request several of the server's own paths, and return the JSON of each one that returns JSON, by path."""
        asked = (self._get_json(self._address.root_url(path), redirects=redirects) for path in paths)
        facts = {}
        for path, answer in zip(paths, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if not isinstance(answer, BaseException):
                facts[path] = answer
            elif not isinstance(answer, EndpointError):
                raise answer
        return facts

    async def aclose(self) -> None:
        """Cancel every answer and close the pool; idempotent."""
        await self._answers.aclose()
        await self._client.aclose()

    @property
    def _usual_capabilities(self) -> Capabilities:
        """The declared capabilities, or else the provider's, which for the Responses API don't include continuing an answer."""
        usual = self._address.provider.capabilities
        if self.api == "responses":
            usual = msgspec.structs.replace(usual, continuation="none", pre_copy="none", takes_token_ids=False, choices=False)
        return with_declared(usual, self._declared)

    async def _compare_tokenizers(self, tokenizer: SharedTokenizer, info: ServerInfo) -> ServerInfo:
        """Have the server and the local model read the same sample; the result of an earlier probe is discarded."""
        default = self._usual_capabilities
        self._capabilities = msgspec.structs.replace(self._capabilities, vocabulary=default.vocabulary, continuation=default.continuation)
        tokenize_api = self._address.provider.tokenize_api
        if tokenize_api is None or not self._capabilities.takes_token_ids:
            return info
        try:
            found = await tokenizer.compare(self.ask, tokenize_api, model=self.model, is_chat=self.api == "chat")
        except EngineError:
            raise
        except EndpointError:
            return info  # a server that doesn't say is sent text
        if found is not None:
            info = msgspec.structs.replace(info, vocabulary=found[0], vocabulary_size=found[1])
            self._apply(info)
        return info

    def _apply(self, info: ServerInfo, *, only_adds: bool = False) -> None:
        """Adapt to what a server reports. With ``only_adds``, everything that was sent before is still sent."""
        if self._address.provider is GENERIC and info.kind != GENERIC.name:
            provider, before = find_provider(info.kind), self._capabilities
            self._address = msgspec.structs.replace(self._address, provider=provider)
            self._dialect.follow(provider)
            self._capabilities = self._usual_capabilities
            if only_adds:
                self._capabilities = with_inputs_of(self._capabilities, before)
        self.content_mark, self.first_token_times = info.content_mark, info.first_token_times
        if self._capabilities.context_tokens is None:
            self._capabilities = msgspec.structs.replace(self._capabilities, context_tokens=info.context_tokens)
        if info.vocabulary is not None and info.vocabulary_size is not None and self.api != "responses":
            self._capabilities = msgspec.structs.replace(self._capabilities, vocabulary=info.vocabulary, continuation="token_ids")
            if info.kind == STREAMCO:
                self._transfer = TokenTransfer(TokenCodec(info.vocabulary, info.vocabulary_size), MSGPACK in info.media_types)
                self._capabilities = msgspec.structs.replace(self._capabilities, pre_copy="append")
        if not isinstance(self._declared, Capabilities):  # single capabilities stay as declared
            self._capabilities = with_declared(self._capabilities, self._declared)

    def _record_refusal(self, error: EndpointStatusError, call: StreamCall, changes: dict[str, str]) -> bool:
        """Record what a refusal is about; return True if the request should be resent in another form.

        The server may have changed its model, or be behind a gateway that only reads JSON.

        Args:
            error: the refusal.
            call: the request that was refused.
            changes: sentences, by form, that say what was left out of this request; this method adds to them.
        """
        transfer = self._transfer
        if transfer is not None and error.status == 400 and PACKED_FIELD in error.body:
            self._transfer = None
            self._capabilities = msgspec.structs.replace(self._capabilities, vocabulary=None, continuation="continue_final_message")
            changes["ids"] = "begun answers go as text, because packed token ids were refused (400)"
            return True
        if transfer is not None and is_refused_form(call, error.status):
            self._transfer = msgspec.structs.replace(transfer, is_binary=False)
            changes["MessagePack"] = f"begun answers go in JSON, because MessagePack was refused ({error.status})"
            return True
        if transfer is not None and is_client_error(error.status) and changes.pop("MessagePack", ""):
            # JSON is refused as well, so the form wasn't the reason.
            self._transfer = msgspec.structs.replace(transfer, is_binary=True)
        if call.strips_logprobs and "logprobs" in error.body:
            self._dialect.has_logprobs = False
            return True
        if self._capabilities.pre_copy == "append" and error.status in {400, 422} and PREFILL_FIELD in error.body:
            self._capabilities = msgspec.structs.replace(self._capabilities, pre_copy="warm")
            return True
        if self._dialect.adapt(error, call.body, changes):
            return True
        if call.strips_logprobs and is_client_error(error.status):
            self._dialect.has_logprobs = False
            changes["logprobs"] = f"log-probabilities aren't asked for any more, because a request for them was refused ({error.status})"
            return True
        if changes.pop("logprobs", ""):
            self._dialect.has_logprobs = True  # it is refused without them as well, so they weren't the reason
        return False

    async def _prepare(self, request: Request) -> StreamCall:
        if request.prefill_only:
            request = msgspec.structs.replace(prefill_request(request, self._capabilities.pre_copy), prefill_only=True)
        check_headers("headers", request.headers)
        key = await self._key_headers(request.headers)
        partial, request = request.partial, msgspec.structs.replace(request, partial=None, headers={**key, **request.headers})
        if partial is None:
            return self._build_call(request)
        if request.prompt is not None and self.api == "chat":
            request = msgspec.structs.replace(request, prompt=None, messages=[{"role": "user", "content": request.prompt}])
        if self._transfer is None or not self._transfer.takes(partial):
            return self._build_call(*await self._continue(request, partial))
        packed = self._build_call(self._transfer.pack(request, partial), is_binary=self._transfer.is_binary)
        if request.prompt_ids is not None or not split_trailing_whitespace(partial.text)[0]:
            return packed  # a text can't follow ids, and a text of whitespace wouldn't be sent
        return smaller(packed, self._build_call(*await self._continue(request, partial)))

    async def _continue(self, request: Request, partial: Partial) -> tuple[Request, str]:
        """Return the request with the answer's beginning, and the whitespace that is held back at its end."""
        if self._tokenizer is not None and self._transfer is None and self._takes_ids(request, partial):
            by_ids = await self._tokenizer.hand_over(request, partial, context_tokens=self._capabilities.context_tokens)
            if by_ids is not None:
                return by_ids, ""
        return hand_over(request, partial, self._capabilities)

    def _build_call(self, request: Request, held_whitespace: str = "", *, is_binary: bool = False) -> StreamCall:
        """Return the HTTP request. With ``is_binary`` its body is MessagePack, unless its values can't be encoded that way."""
        is_answer, request = not request.prefill_only, self._dialect.fit(request)
        model = request.model or self.model
        if asks := self._asks_for_logprobs(request):
            request = msgspec.structs.replace(request, extra={**request.extra, "logprobs": True})
        extra = self._extra(request) if is_answer else request.extra
        api, path, body = self._build_body(request, model, extra)
        if unstreamed := self._dialect.stream_refusals.find(body):
            body = without_stream(body)
        last = request.messages[-1] if request.messages else {}
        try:
            url = self._url(path, model, base_url=self._address.provider.continuation_base_url if last.get("prefix") else None)
            if request.query:
                url = url.update_query(request.query)
            encoded = encode_msgpack(body) if is_binary else None
            types = {} if encoded is None else {"Content-Type": MSGPACK}
            codec = None
            if self._transfer is not None and self._transfer.is_binary:
                codec, types["Accept"] = self._transfer.codec, f"{ACCEPTED}, */*"
            headers = merge_headers(self._headers, types, request.headers)
            sent = encode_request(body) if encoded is None else encoded
            choices = body.get("n") or 1
            held, choices = held_whitespace if is_answer else "", choices if type(choices) is int else 1
            is_graded = is_answer and request.is_graded
            return StreamCall(url, headers, sent, api, held, codec, choices, unstreamed, is_graded=is_graded, strips_logprobs=asks)
        except (TypeError, UnicodeEncodeError, OverflowError, RecursionError) as exc:
            raise ConfigError(f"request: expected values that JSON has a form for, got {exc}") from exc

    def _asks_for_logprobs(self, request: Request) -> bool:
        """Return True to request log-probabilities that the caller doesn't see; llama.cpp's server refuses them together with tools."""
        if request.prefill_only or not request.is_graded or self.api != "chat" or request.prompt_ids is not None:
            return False
        is_plain = not any(request.extra.get(name) for name in ("logprobs", "tools", "functions"))
        return self._dialect.has_logprobs and is_plain and (request.extra.get("n") or 1) == 1

    def _takes_ids(self, request: Request, partial: Partial) -> bool:
        """Return True if, for this request, the server has the same template and vocabulary as the local model."""
        capabilities = self._capabilities
        is_same = capabilities.takes_token_ids and capabilities.vocabulary is not None and capabilities.vocabulary == partial.vocabulary
        return is_same and request.prompt_ids is None and request.model in {None, self.model}

    def _extra(self, request: Request) -> Mapping[str, Any]:
        """Return the request's additional fields, which ask for token ids if another endpoint may understand them."""
        provider, logprobs = self._address.provider, request.extra.get("logprobs")
        if self._capabilities.vocabulary is None or not provider.has_token_ids:
            return request.extra
        if self._transfer is not None and self._transfer.is_binary and (logprobs is None or logprobs is False):
            return request.extra  # an answer in MessagePack has ids but no log-probabilities
        if provider.ids_precede_text and (request.sampling.stop or request.extra.get("stop")):
            return request.extra
        return {"return_token_ids": True, **request.extra}

    def _url(self, path: str, model: str, *, base_url: str | None = None) -> URL:
        return parse_url(self._address.url(path, model=model, base_url=base_url))

    def _build_body(self, request: Request, model: str, extra: Mapping[str, Any]) -> tuple[CallApi, str, dict[str, Any]]:
        dialect = self._dialect
        prompt = request.prompt_ids if request.prompt_ids is not None else request.prompt
        if request.messages is None and (self.api == "completions" or request.prompt_ids is not None):
            body = build_completion_request(
                prompt or "", model=model, sampling=request.sampling, extra=extra, include_usage=dialect.has_stream_options
            )
            return "completions", "/completions", body
        if self.api == "completions":
            text = "expected a prompt for the completions API, got chat messages"
            raise EndpointError(f"{text}; client.stream() with a text sends one if every server has this API", endpoint=self._name)
        messages = [{"role": "user", "content": request.prompt or ""}] if request.messages is None else request.messages
        try:
            return self._build_chat(dialect.accepted(messages), request, model, extra)
        except ValueError as exc:
            raise EndpointError(str(exc), endpoint=self._name) from exc

    def _build_chat(
        self, messages: Sequence[Message], request: Request, model: str, extra: Mapping[str, Any]
    ) -> tuple[CallApi, str, dict[str, Any]]:
        """Return the API, its path and the body for a chat.

        Raises:
            ValueError: the API can't represent a message.
        """
        if self.api == "responses":
            body = build_response_body(messages, model=model, sampling=request.sampling, extra=extra)
            options = extra.get("stream_options") or {}
            if "include_obfuscation" in options:  # the only option that this API has
                body["stream_options"] = {"include_obfuscation": options["include_obfuscation"]}
            return self.api, "/responses", body
        dialect = self._dialect
        body = build_chat_request(
            messages,
            model=model,
            sampling=request.sampling,
            extra=extra,
            include_usage=dialect.has_stream_options,
            max_tokens_field=dialect.max_tokens_field,
        )
        return "chat", "/chat/completions", body

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Request a path below the server's root, outside the API, with a POST if there is a body or else a GET, and return the JSON.

        Raises:
            EndpointError: there was no response, its status isn't 200, or its body isn't JSON.
        """
        return await self._get_json(self._address.root_url(path), body)

    async def _get_json(self, url: str, body: Mapping[str, Any] | None = None, *, redirects: bool = True) -> Any:
        """Return a small JSON response to a POST if there is a body, or else to a GET; see ``HttpClient.get_json``."""
        headers = merge_headers(await self._key_headers({}), self._headers)
        sent = None if body is None else encode_request(body)
        limit = self._limits.event_bytes
        return await self._client.get_json(parse_url(url), headers=headers, body=sent, max_bytes=limit, redirects=redirects)

    async def _key_headers(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the header with the key, or {} without reading the key if the caller's headers already have that header."""
        name = self._key_header or self._address.provider.key_header
        if name.lower() in self._own_headers or has_header(given, name):
            return {}
        return key_header(name, await self._key.read())


def _with_limit(request: Request, kind: Kind) -> Request:
    """Return the request with its ``server_limit`` as the answer's limit, if the endpoint is a server and no other limit is set."""
    if request.server_limit is None or request.sampling.max_tokens is not None or kind != "server":
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, max_tokens=request.server_limit))


def _retry_policy(policy: RetryPolicy, request: Request) -> RetryPolicy:
    return policy if request.max_retries is None else msgspec.structs.replace(policy, attempts=request.max_retries)
