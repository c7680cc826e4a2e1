"""Uses a server with streamco's verifier protocol (docs/verifier-protocol.md), such as ``streamco serve``, as a verifier.

One connection serves all answers of a client. It is made when the first session needs it, and kept between answers. If it is lost, a new
one is made, and sessions are resumed on it.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlunsplit
from weakref import WeakSet

from msgspec.structs import replace

from streamco.config import Timeouts
from streamco.endpoints.address import Url, is_loopback, split_url, url_text, without_password
from streamco.endpoints.base import Endpoint, Request, TokenPrices
from streamco.endpoints.known_servers.probe import STREAMCO
from streamco.endpoints.known_servers.providers import find_provider
from streamco.endpoints.network.credentials import ApiKey, ServerKey
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.served_vocabulary import ServedVocabulary, read_prompt
from streamco.endpoints.verifiers.base import Emit, VerifierFacts
from streamco.endpoints.verifiers.connection import VerifierAddress, VerifierConnection, connect_verifier, load_websockets
from streamco.endpoints.verifiers.session import RemoteVerifierSession
from streamco.engines.base import ModelInfo, TokenVocabulary
from streamco.errors import ConfigError, EndpointError, StreamClosed, UsageError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.row_costs import costs_of_table
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import MAX_FOLLOWS, PATH, VerifyLimits

if TYPE_CHECKING:
    import aiohttp

__all__ = ["PONG_SECONDS", "VerifierEndpoint", "verifier_url"]

_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
PONG_SECONDS = 5.0  # the reply to a ping needs no computation
_TIMEOUTS = Timeouts(socket=PONG_SECONDS)
_PING_INTERVAL = 5.0  # seconds
_MAX_TOKEN = 4096  # characters of a bearer token
_BACKOFF = (0.1, 5.0)  # seconds: `first` and `max_wait` of `Backoff`


class _Connections(LoopState):
    """A verifier's state on one event loop."""

    def __init__(self) -> None:
        self.connection: VerifierConnection[VerifyClient] | None = None
        self.connecting: asyncio.Task[VerifierConnection[VerifyClient]] | None = None
        self.sessions: WeakSet[RemoteVerifierSession] = WeakSet()
        self.remote: OpenAIEndpoint | None = None
        self.reader: OpenAIEndpoint | None = None  # for vocabulary and prompts, if drafts are looked up
        self.former: list[OpenAIEndpoint] = []  # remote endpoints of the server's earlier models
        self.http: aiohttp.ClientSession | None = None  # for the remote endpoint, if certificates are given

    async def aclose(self) -> None:
        """Close the sessions, the connection and the HTTP endpoints; see ``LoopState``."""
        await asyncio.gather(*(session.aclose() for session in list(self.sessions)))
        if self.connecting is not None:
            self.connecting.cancel()
            await asyncio.wait([self.connecting])
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.aclose()
        for endpoint in (self.remote, self.reader, *self.former):
            if endpoint is not None:
                await endpoint.aclose()
        if self.http is not None:
            await self.http.close()

    async def forget_model(self) -> None:
        """Close the connection, and make room for another model's endpoint. Open streams continue."""
        connection, self.connection = self.connection, None
        if self.remote is not None:
            self.former.append(self.remote)
            self.remote = None
        if connection is not None:
            await connection.aclose()

    @property
    def is_idle(self) -> bool:
        """True if no session is open or about to be."""
        return self.connecting is None and all(session.is_over for session in self.sessions)

    def end_connecting(self, task: asyncio.Task[VerifierConnection[VerifyClient]]) -> None:
        """Record that connecting has succeeded or failed."""
        self.connecting = None
        if not task.cancelled():
            task.exception()  # mark it as retrieved, because there may be no waiting caller left to receive it


class VerifierEndpoint:
    """A verifier over a WebSocket. Implements ``Verifier``.

    Args:
        url: ``wss://host:port``, or ``ws://`` for loopback, a string or a URL object; ``https`` and ``http`` mean the same. A missing path
            is added.
        token: bearer token, or a sync or async function that returns the token for each connection, or None.
        name: name in reports and errors; by default host and port.
        timeouts: ``connect`` until the welcome, ``first_token`` for a verdict if the server reads a context first, ``next_token`` for any
            other verdict, ``socket`` for the reply to a ping, ``cancel`` for closing; in seconds.
        tls: certificates to trust, by default the system's.
        is_plain: True to allow ``ws://`` to other machines; others on the network can then read the prompts and the token.
        limits: largest sizes that are accepted from the server, by default the protocol's.
        prices: US dollars per token, or None if not known; verified tokens count as completion tokens.
        rng: random generator for the waits between attempts to connect; by default one with a random seed.

    Raises:
        ConfigError: the URL or the token is malformed, or ``ws://`` needs ``is_plain``.
    """

    def __init__(
        self,
        url: Url,
        *,
        token: ApiKey | None = None,
        name: str | None = None,
        timeouts: Timeouts = _TIMEOUTS,
        tls: ssl.SSLContext | None = None,
        is_plain: bool = False,
        limits: VerifyLimits | None = None,
        prices: TokenPrices | None = None,
        rng: random.Random | None = None,
    ) -> None:
        parts = _split(url, is_plain=is_plain)
        if isinstance(token, str) and not 0 < len(token) <= _MAX_TOKEN:
            raise ConfigError(f"token: expected 1 to {_MAX_TOKEN} characters, got {len(token)}")
        path = parts.path.rstrip("/").removesuffix("/v1")
        self._url, _ = verifier_url(url, is_plain=is_plain)
        self._name = name or parts.netloc
        self._token = ServerKey(token, setting="token")
        self._timeouts = timeouts
        self._tls = tls
        self._system_tls: ssl.SSLContext | None = None  # the system's certificates, if the caller gave none
        self._limits = limits or VerifyLimits(paths=VerifyLimits().draft_tokens)
        self._rng = rng or random.Random()
        self._draft: ModelInfo | None = None
        self._codec: VerifyCodec | None = None
        self._facts: VerifierFacts | None = None
        self._rtt: float | None = None
        self._connections = LoopBound(_Connections, owner=self._name)
        self._is_closed = False
        self._base_url = urlunsplit(("https" if parts.scheme == "wss" else "http", parts.netloc, path.removesuffix(PATH) + "/v1", "", ""))
        self._prices = prices or TokenPrices()

    def __repr__(self) -> str:
        return f"VerifierEndpoint({self._url!r}, name={self._name!r})"

    @property
    def name(self) -> str:
        """Name in reports and errors."""
        return self._name

    @property
    def facts(self) -> VerifierFacts | None:
        """Facts from the last welcome, or None if there was none."""
        return self._facts

    @property
    def rtt(self) -> float | None:
        """Smoothed time between a ping and its reply in seconds, or None if not measured."""
        connections = self._connections.latest
        if connections is not None and connections.connection is not None and connections.connection.rtt is not None:
            self._rtt = connections.connection.rtt
        return self._rtt

    @property
    def timeouts(self) -> Timeouts:
        """Limits by phase, in seconds."""
        return self._timeouts

    @property
    def remote(self) -> Endpoint | None:
        """The completions API of the same server, or None before ``start``."""
        connections = self._connections.latest
        return None if connections is None else connections.remote

    async def start(self, draft: TokenVocabulary) -> None:
        """Prepare for drafts of this model; see ``Verifier.start``.

        If drafts use the server's own vocabulary and no session is open, a changed vocabulary is accepted, because a restarted server may
        have another model.

        Raises:
            StreamClosed: the verifier was closed.
            UsageError: the verifier was started for a model with another vocabulary.
            ConfigError: the verifier is in use on another running event loop.
        """
        if self._is_closed:
            raise StreamClosed(f"{self._name}: the verifier is closed")
        connections = self._connections.get()
        if self._draft is not None and self._draft.vocabulary != draft.info.vocabulary:
            if not isinstance(draft, ServedVocabulary) or not connections.is_idle:
                raise UsageError(f"{self._name}: expected drafts of vocabulary {self._draft.vocabulary}, got {draft.info.vocabulary}")
            await connections.forget_model()
        if connections.remote is None:
            await load_websockets()
            if self._url.startswith("wss:") and self._tls is None and self._system_tls is None:
                self._system_tls = await asyncio.to_thread(ssl.create_default_context)
            usual = find_provider(STREAMCO).capabilities
            capabilities = replace(usual, vocabulary=draft.info.vocabulary)  # the server's welcome checks that
            remote = await self._start_endpoint(connections, "remote", api="completions", capabilities=capabilities)
            self._codec = VerifyCodec(draft.info.vocabulary_size, self._limits)
            self._draft, connections.remote = draft.info, remote

    async def read_vocabulary(self) -> ServedVocabulary:
        """Return the server's own vocabulary, for drafts without a model on this machine. May be called before ``start``.

        Raises:
            EndpointError: the server doesn't send it.
        """
        return await ServedVocabulary.read(await self._find_reader())

    async def read_prompt(self, request: Request, within: float) -> list[int]:
        """Return the token ids of a request's prompt; see ``TellsVocabulary``.

        Raises:
            EndpointError: the server doesn't respond in time, or rejects the prompt.
            UsageError: the verifier wasn't started.
        """
        if self._draft is None or self._is_closed:
            raise UsageError(f"{self._name}: the verifier was not started, or is closed")
        return await read_prompt(await self._find_reader(), request, vocabulary_size=self._draft.vocabulary_size, within=within)

    async def _find_reader(self) -> OpenAIEndpoint:
        """Return the endpoint that is asked for the vocabulary and prompts."""
        connections = self._connections.get()
        if (reader := connections.reader) is not None:
            return reader
        started = await self._start_endpoint(connections, "vocabulary")
        if (reader := connections.reader) is not None:  # another caller was faster
            await started.aclose()
            return reader
        connections.reader = started
        return started

    async def _start_endpoint(self, connections: _Connections, part: str, **options: Any) -> OpenAIEndpoint:
        """Start and return an endpoint for the same server's HTTP API."""
        if self._tls is not None and connections.http is None:
            connections.http = await _open_session(self._tls)
        endpoint = OpenAIEndpoint(
            self._facts.model if self._facts is not None and self._facts.model else "default",  # until the welcome names it
            base_url=self._base_url,
            api_key=self._token.given,
            name=f"{self._name}/{part}",
            provider=STREAMCO,
            prices=self._prices,
            timeouts=replace(self._timeouts, socket=Timeouts().socket),
            session=connections.http,
            **options,
        )
        await endpoint.start()
        return endpoint

    async def probe(self) -> VerifierFacts:
        """Connect; see ``Verifier.probe``. The completions API is also probed, if the server has one."""
        connection = await self.find()
        if (remote := self._connections.get().remote) is not None:
            with suppress(EndpointError):  # a remote stream gets the same error and reports it
                await remote.probe()
        return _read_facts(connection.client)

    def open(self, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int = 0, reserve: int = 0) -> RemoteVerifierSession:
        """Return a session for one answer; see ``Verifier.open``.

        Raises:
            UsageError: the verifier was not started.
        """
        if self._draft is None or self._is_closed:
            raise UsageError(f"{self._name}: the verifier was not started, or is closed")
        session = RemoteVerifierSession(
            self,
            name=self._name,
            prompt_ids=prompt_ids,
            emit=emit,
            rule=rule,
            top_k=top_k,
            reserve=reserve,
            timeouts=self._timeouts,
            backoff=(*_BACKOFF, self._rng),
        )
        self._connections.get().sessions.add(session)
        return session

    async def find(self) -> VerifierConnection[VerifyClient]:
        """Return the connection. If there is none, concurrent callers wait for the same new one.

        Raises:
            EndpointError: connecting failed.
            VerifierError: the server refuses this client.
        """
        connections = self._connections.get()
        if connections.connection is not None and not connections.connection.is_over:
            return connections.connection
        if connections.connecting is None:
            connecting = asyncio.get_running_loop().create_task(self._connect(connections), name=f"streamco verifier {self._name}")
            connecting.add_done_callback(connections.end_connecting)
            connections.connecting = connecting
        return await asyncio.shield(connections.connecting)

    async def aclose(self) -> None:
        """Close every session and the connection; idempotent."""
        self._is_closed = True
        await self._connections.aclose()

    async def _connect(self, connections: _Connections) -> VerifierConnection[VerifyClient]:
        if self._draft is None or self._codec is None or self._is_closed:
            raise UsageError(f"{self._name}: the verifier was not started, or is closed")
        client = VerifyClient(self._codec, self._draft.vocabulary)
        address = VerifierAddress(self._url, self._name, self._token, self._tls or self._system_tls)
        former = connections.connection
        if former is not None:
            await former.aclose()
        connections.connection = await connect_verifier(address, client, timeouts=self._timeouts, ping_interval=_PING_INTERVAL)
        self._facts = _read_facts(client)
        if connections.remote is not None and self._facts.model:
            connections.remote.model = self._facts.model
        return connections.connection


async def _open_session(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """Return an aiohttp session that trusts the same certificates as the verifier's connection."""
    await asyncio.to_thread(importlib.import_module, "aiohttp")
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, connect=_TIMEOUTS.connect)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=0), cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout)


def verifier_url(url: Url, *, is_plain: bool) -> tuple[str, str]:
    """Return a verifier's URL with scheme ``ws`` or ``wss`` and its path, and its host and port.

    Raises:
        ConfigError: the URL is malformed, or ``ws://`` needs ``is_plain``.
    """
    parts = _split(url, is_plain=is_plain)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path if path.endswith(PATH) else path + PATH, parts.query, "")), parts.netloc


def _split(url: Url, *, is_plain: bool) -> SplitResult:
    text = url_text("url", url)
    parts, shown = split_url(text, _SCHEMES), without_password(text)
    if parts is None or parts.fragment:
        raise ConfigError(f'url: expected a URL like "https://host:8000" or "wss://host:8000", got {shown!r}')
    if "@" in parts.netloc:
        raise ConfigError(f"url: expected no user name or password in it, got one for {parts.hostname}; pass token")
    scheme = _SCHEMES[parts.scheme]
    if scheme == "ws" and not is_plain and not is_loopback(parts.hostname):
        raise ConfigError(f'url: expected "https://" or "wss://" beyond this machine, got {shown!r}; in Python is_plain=True allows it')
    return parts._replace(scheme=scheme)


def _read_facts(client: VerifyClient) -> VerifierFacts:
    """Return the facts in the server's welcome, within the limits of both sides."""
    welcome, limits = client.welcome, client.limits
    assert welcome is not None, "a connection begins after its welcome"
    return VerifierFacts(
        model=welcome.model,
        rules=frozenset(kind for kind in RuleKind if welcome.rules >> kind & 1),
        draft_tokens=limits.draft_tokens,
        top_k=limits.top_k,
        context_tokens=limits.context_tokens,
        samples_exactly=welcome.is_exact,
        holds_context=True,
        max_ahead=MAX_FOLLOWS,
        row_costs=costs_of_table(welcome.row_costs),
        max_paths=limits.paths,
    )
