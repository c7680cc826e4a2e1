"""Uses servers without a verifier protocol as verifiers, based on the log-probabilities that they return for a prompt's tokens.

They keep no session: each round sends the whole context, and the rules are applied here. Greedy decoding takes the first id of each row, so
the answer is the server's own, except where its kernels score a token differently when they read it than when they generate it. Sampling
draws from the ids in a row. That is exact if the target's ``top_k`` isn't larger than a row, because no other id could be drawn. Without a
``top_k``, the target's distribution is truncated to the ids in the row.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from weakref import WeakSet

from streamco.config import Limits, Timeouts
from streamco.endpoints.address import Url, find_address
from streamco.endpoints.base import Endpoint
from streamco.endpoints.http import HttpClient
from streamco.endpoints.network.credentials import ApiKey, ServerKey
from streamco.endpoints.network.headers import BASE_HEADERS, check_headers, key_header, merge_headers
from streamco.endpoints.network.loop_bound import LoopBound, LoopState
from streamco.endpoints.network.peer_timeout import PeerTimeout
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.served_vocabulary import ServedVocabulary
from streamco.endpoints.shared_tokenizer import SAMPLE
from streamco.endpoints.verifiers.base import Emit, VerifierFacts
from streamco.endpoints.verifiers.logprob_session import LogprobSession
from streamco.engines.base import Engine, TokenVocabulary
from streamco.errors import (
    ConfigError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamClosed,
    UsageError,
    VerifierError,
)
from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.openai.errors import status_error
from streamco.wire.openai.requests import encode_request
from streamco.wire.prompt_logprobs import PromptLogprobs

if TYPE_CHECKING:
    import aiohttp

__all__ = ["LogprobVerifier"]

_TIMEOUTS = Timeouts()
_LIMITS = Limits()
_DRAFT_TOKENS = 64  # maximum tokens in a draft; the servers themselves have no limit
_MAX_LOGPROBS = re.compile(r"max allowed: (-?\d+)")  # maximum ids in a row, from vLLM's error message about --max-logprobs


class _LoopWork(LoopState):
    """The work in progress on one event loop."""

    def __init__(self) -> None:
        self.probing: asyncio.Task[VerifierFacts] | None = None
        self.sessions: WeakSet[LogprobSession] = WeakSet()

    async def aclose(self) -> None:
        """Close the sessions and cancel the probe in progress; see ``LoopState``."""
        await asyncio.gather(*(session.aclose() for session in list(self.sessions)))
        if self.probing is not None:
            self.probing.cancel()
            await asyncio.wait([self.probing])

    def end_probing(self, task: asyncio.Task[VerifierFacts]) -> None:
        """Forget a probe that is over."""
        self.probing = None
        if not task.cancelled():
            task.exception()  # mark it as retrieved, because each waiting caller gets it


class LogprobVerifier(ABC):
    """The common part of the verifiers for vLLM and SGLang. Implements ``Verifier``.

    Args:
        base_url: the URL up to and including ``/v1``, a string or a URL object.
        model: the model's name at the server; None if the server has only one.
        api_key: bearer token, or a sync or async function that returns the token for each request. The default is the same as for
            ``OpenAIEndpoint``; loopback servers need none.
        name: name in reports and errors; by default host and port.
        top_k: number of ids wanted in each row, if the server allows that many.
        vocabulary: fingerprint of the server's vocabulary if you know it; None to compare how both sides read a sample.
        timeouts: ``connect``, and ``first_token`` for a whole round, because each round is a prefill; in seconds.
        limits: ``body_bytes`` limits one response.
        session: an aiohttp session to use and leave open; None to create one.
        headers: headers sent with every request.
        rng: random generator for sampling without a seed, and for waits; by default one with a random seed.

    Raises:
        ConfigError: a URL, key or number is wrong.
    """

    provider = ""

    def __init__(
        self,
        base_url: Url,
        *,
        model: str | None = None,
        api_key: ApiKey | None = None,
        name: str | None = None,
        top_k: int = 20,
        vocabulary: str | None = None,
        timeouts: Timeouts = _TIMEOUTS,
        limits: Limits = _LIMITS,
        session: aiohttp.ClientSession | None = None,
        headers: Mapping[str, str] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if top_k < 1:
            raise ConfigError(f"top_k: expected at least 1, got {top_k}")
        self._address, key = find_address(base_url, api_key, self.provider)
        self._model = model
        self._name = name or urlsplit(self._address.base_url).netloc
        self._top_k = top_k
        self._vocabulary = vocabulary
        self._timeouts = timeouts
        self._limits = limits
        self._rng = rng or random.Random()
        # Hides what the rounds leave in a prefix cache from other clients. None if the server doesn't know the field.
        self._salt: str | None = secrets.token_urlsafe(32)
        self._options: dict[str, Any] = {"base_url": base_url, "api_key": key or "", "session": session, "headers": headers}
        check_headers("headers", headers or {})
        self._key = ServerKey(key)
        self._headers = merge_headers(BASE_HEADERS, headers or {})
        self._client = HttpClient(self._name, timeouts=timeouts, session=session, key=self._key)
        self._draft: Engine | None = None
        self._remote: OpenAIEndpoint | None = None
        self._facts: VerifierFacts | None = None
        self._rtt: float | None = None
        self._work = LoopBound(_LoopWork, owner=self._name)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.base_url!r}, model={self._model!r}, name={self._name!r})"

    @abstractmethod
    def _request(self, ids: Sequence[int], pending: int, top: int) -> tuple[str, dict[str, Any]]:
        """Return the URL and body of a request for the scores of the last ``pending`` ids, with ``top`` ids in each row."""

    @abstractmethod
    def _read(self, answer: bytes, ids: Sequence[int], pending: int) -> PromptLogprobs:
        """Return the scores in a response."""

    def _make_remote(self, model: str, **options: Any) -> OpenAIEndpoint:
        return OpenAIEndpoint(model, **options)

    @property
    def name(self) -> str:
        """Name in reports and errors."""
        return self._name

    @property
    def model(self) -> str | None:
        """The model's name at the server, or None if not known yet."""
        return self._model

    @property
    def facts(self) -> VerifierFacts | None:
        """Facts found by ``probe``, or None if not yet probed."""
        return self._facts

    @property
    def rtt(self) -> float | None:
        """Seconds that the last small request took, or None if not measured."""
        return self._rtt

    @property
    def timeouts(self) -> Timeouts:
        """Limits by phase, in seconds."""
        return self._timeouts

    @property
    def remote(self) -> Endpoint | None:
        """The completions API of the same server, or None before ``start``."""
        return self._remote

    async def start(self, draft: TokenVocabulary) -> None:
        """Prepare for drafts of this model; see ``Verifier.start``.

        Raises:
            StreamClosed: the verifier was closed.
            UsageError: the verifier was started for another model.
            VerifierError: the vocabulary isn't a local model's; a local model is needed to read the same sample as the server.
        """
        if self._is_closed:
            raise StreamClosed(f"{self._name}: the verifier is closed")
        if isinstance(draft, ServedVocabulary):
            raise VerifierError(f"{self._name}: expected the vocabulary of a model on this machine, got the vocabulary of another server")
        if self._draft is not None and self._draft is not draft:
            raise UsageError(f"{self._name}: expected the draft model that it was started for, got a different one")
        if self._draft is None:
            self._draft = draft = cast(Engine, draft)
            name, model = f"{self._name}/remote", self._model or "default"
            self._remote = self._make_remote(
                model, name=name, provider=self.provider, api="completions", tokenizer=draft, timeouts=self._timeouts, **self._options
            )
            await self._client.start()
            await self._remote.start()

    async def probe(self) -> VerifierFacts:
        """Ask the server for its facts by having it score a sample; see ``Verifier.probe``. Concurrent callers share the result."""
        work = self._work.get()
        if work.probing is None:
            work.probing = asyncio.get_running_loop().create_task(self._probe(), name=f"streamco probe {self._name}")
            work.probing.add_done_callback(work.end_probing)
        return await asyncio.shield(work.probing)

    def open(self, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int = 0, reserve: int = 0) -> LogprobSession:
        """Return a session for one answer; see ``Verifier.open``. ``reserve`` has no effect, because the server keeps no session.

        Raises:
            UsageError: the verifier wasn't started, or the prompt is empty.
        """
        if self._draft is None or self._is_closed:
            raise UsageError(f"{self._name}: the verifier was not started, or is closed")
        if not prompt_ids:
            raise UsageError(f"{self._name}: expected a prompt of at least 1 token, got none")
        session = LogprobSession(self, prompt_ids, emit, rule=rule, top_k=top_k, rng=self._rng)
        self._work.get().sessions.add(session)
        return session

    async def check(self) -> None:
        """Send the server a small request, and measure the time.

        Raises:
            EndpointError: the server doesn't respond.
        """
        started = asyncio.get_running_loop().time()
        await self._started().models()
        self._rtt = asyncio.get_running_loop().time() - started

    async def score(self, ids: Sequence[int], pending: int, *, top: int) -> tuple[PromptLogprobs, int, int]:
        """Return the scores of the last ``pending`` ids and of the position after them, and the bytes sent and received.

        Args:
            ids: context and draft.
            pending: number of ids to score.
            top: number of ids wanted in each row.

        Raises:
            EndpointError: the server doesn't respond, or refuses the request.
            VerifierError: its response has no scores, or is too large.
        """
        from yarl import URL

        url, fields = self._request(ids, pending, top)
        body = encode_request(fields)
        limit = self._timeouts.first_token
        max_bytes = self._limits.body_bytes
        try:
            async with PeerTimeout(limit):
                headers = merge_headers(key_header("authorization", await self._key.read()), self._headers)
                response = await self._client.request("POST", URL(url, encoded=True), headers=headers, body=body)
                answer = await self._client.read(response, max_bytes)
        except TimeoutError:
            text = f"expected scores within {limit:g} s, got none"
            raise EndpointTimeoutError(text, phase="first_token", limit=limit or 0.0, endpoint=self._name) from None
        if response.status != 200:
            raise self._client.scrub(status_error(response.status, response.headers, answer, endpoint=self._name))
        if len(answer) >= max_bytes:
            raise VerifierError(f"{self._name}: expected scores of less than {max_bytes} bytes, got more")
        try:
            return self._read(answer, ids, pending), len(body), len(answer)
        except EndpointProtocolError as error:
            raise VerifierError(f"{self._name}: {error}") from error

    async def aclose(self) -> None:
        """Close every session and connection; idempotent."""
        self._is_closed = True
        await self._work.aclose()
        await self._client.aclose()
        if self._remote is not None:
            await self._remote.aclose()

    def _started(self) -> OpenAIEndpoint:
        if self._remote is None or self._is_closed:
            raise UsageError(f"{self._name}: the verifier was not started, or is closed")
        return self._remote

    async def _probe(self) -> VerifierFacts:
        remote, draft = self._started(), self._draft
        assert draft is not None, "started"
        models = await remote.models()
        if self._model is None:
            if len(models) != 1:
                raise VerifierError(f"{self._name}: expected one model or its name, got {len(models)}")
            self._model = remote.model = models[0]
        info = await remote.probe()
        await self.check()
        found = self._vocabulary or info.vocabulary
        if found != draft.info.vocabulary:
            got = "one that reads a sample into other ids, or doesn't say" if found is None else found
            raise VerifierError(f"{self._name}: expected the draft model's vocabulary {draft.info.vocabulary}, got {got}")
        sample = await asyncio.to_thread(draft.tokenize, SAMPLE, special=True, bos=True)
        top = await self._probe_top_k(sample)
        self._facts = VerifierFacts(
            model=self._model, rules=frozenset(RuleKind), draft_tokens=_DRAFT_TOKENS, top_k=top, context_tokens=info.context_tokens
        )
        return self._facts

    async def _probe_top_k(self, sample: Sequence[int]) -> int:
        """Have a sample scored; return the maximum number of ids in a row."""
        try:
            await self.score(sample, 2, top=self._top_k)
        except EndpointStatusError as error:
            max_bytes = _MAX_LOGPROBS.search(error.body)
            if error.status not in {400, 422} or max_bytes is None:
                raise
            top = int(max_bytes[1])
            if top < 1:
                raise VerifierError(f"{self._name}: expected log-probabilities of a prompt, got none allowed: {error}") from error
            await self.score(sample, 2, top=top)
            return top
        return self._top_k
