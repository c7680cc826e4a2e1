"""Servers without a verifier protocol as verifiers, by the log-probabilities that they give a prompt's tokens.

They keep no session: each round sends the whole context, and the rules are applied here. Greedy takes the first id of each row. So the
answer is the server's own, except where its kernels score a token that is read differently from one that is written. Sampling draws from
the ids of a row. It is exact if the target's ``top_k`` is within them, because no other id could be drawn; without one, the target is cut
to them.
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
_DRAFT_TOKENS = 64  # most tokens of a draft; the servers have no limit of their own
_MAX_LOGPROBS = re.compile(r"max allowed: (-?\d+)")  # most ids in a row: vLLM's error text about --max-logprobs


class _LoopWork(LoopState):
    """What is under way on one event loop."""

    def __init__(self) -> None:
        self.probing: asyncio.Task[VerifierFacts] | None = None
        self.sessions: WeakSet[LogprobSession] = WeakSet()

    async def aclose(self) -> None:
        """See ``LoopState``."""
        await asyncio.gather(*(session.aclose() for session in list(self.sessions)))
        if self.probing is not None:
            self.probing.cancel()
            await asyncio.wait([self.probing])

    def end_probing(self, task: asyncio.Task[VerifierFacts]) -> None:
        """Forget a probe that is over."""
        self.probing = None
        if not task.cancelled():
            task.exception()  # mark it as retrieved: each waiting caller gets it


class LogprobVerifier(ABC):
    """The common part of the verifiers for vLLM and SGLang. Implements ``Verifier``.

    Args:
        base_url: the URL up to and including ``/v1``, a text or an object.
        model: the model's name at the server. None: the only one it has.
        api_key: bearer token, or a function, sync or async, that is called for the token of each request. None: as ``OpenAIEndpoint``
            finds it, none on the loopback.
        name: name in reports and errors. None: host and port.
        top_k: ids wanted in each row, as far as the server allows.
        vocabulary: fingerprint of the server's vocabulary, if you know it. None: both sides read a sample.
        timeouts: ``connect``, and ``first_token`` for a whole round, because each round is a prefill; in seconds.
        limits: ``body_bytes`` limits one answer.
        session: an aiohttp session to use and leave open. None: the verifier makes its own.
        headers: sent with every request.
        rng: random draws of sampling without a seed, and of waits. None: one with a random seed.

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
        # Keeps other clients from what the rounds leave in a prefix cache. None: the server doesn't know the field.
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
        """Return URL and body of a request for the scores of the last ``pending`` ids, with ``top`` ids in a row."""

    @abstractmethod
    def _read(self, answer: bytes, ids: Sequence[int], pending: int) -> PromptLogprobs:
        """Return the scores in an answer."""

    def _make_remote(self, model: str, **options: Any) -> OpenAIEndpoint:
        return OpenAIEndpoint(model, **options)

    @property
    def name(self) -> str:
        """Name in reports and errors."""
        return self._name

    @property
    def model(self) -> str | None:
        """The model's name at the server. None: not known yet."""
        return self._model

    @property
    def facts(self) -> VerifierFacts | None:
        """Facts that ``probe`` found. None: not yet probed."""
        return self._facts

    @property
    def rtt(self) -> float | None:
        """Seconds that the last small request took. None: not measured."""
        return self._rtt

    @property
    def timeouts(self) -> Timeouts:
        """Limits by phase, in seconds."""
        return self._timeouts

    @property
    def remote(self) -> Endpoint | None:
        """The completions API of the same server. None: ``start`` was not called."""
        return self._remote

    async def start(self, draft: TokenVocabulary) -> None:
        """Prepare for drafts of this model; see ``Verifier.start``.

        Raises:
            StreamClosed: the verifier was closed.
            UsageError: the verifier was started for another model.
            VerifierError: the vocabulary is not that of a local model, which has to read what the server reads.
        """
        if self._is_closed:
            raise StreamClosed(f"{self._name}: expected an open verifier, got one that was closed")
        if isinstance(draft, ServedVocabulary):
            raise VerifierError(f"{self._name}: expected the vocabulary of a model on this machine, got that of another server")
        if self._draft is not None and self._draft is not draft:
            raise UsageError(f"{self._name}: expected the draft model that it was started for, got another one")
        if self._draft is None:
            self._draft = draft = cast(Engine, draft)
            name, model = f"{self._name}/remote", self._model or "default"
            self._remote = self._make_remote(
                model, name=name, provider=self.provider, api="completions", tokenizer=draft, timeouts=self._timeouts, **self._options
            )
            await self._client.start()
            await self._remote.start()

    async def probe(self) -> VerifierFacts:
        """Ask the server for its facts, by having it score a sample; see ``Verifier.probe``. Callers at the same time share the answer."""
        work = self._work.get()
        if work.probing is None:
            work.probing = asyncio.get_running_loop().create_task(self._probe(), name=f"streamco probe {self._name}")
            work.probing.add_done_callback(work.end_probing)
        return await asyncio.shield(work.probing)

    def open(self, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int = 0, reserve: int = 0) -> LogprobSession:
        """Return a session for one answer; see ``Verifier.open``. ``reserve`` has no effect, because the server keeps no session.

        Raises:
            UsageError: the verifier was not started, or the prompt is empty.
        """
        if self._draft is None or self._is_closed:
            raise UsageError(f"{self._name}: expected a started verifier, got one that was not started or is closed")
        if not prompt_ids:
            raise UsageError(f"{self._name}: expected a prompt of at least 1 token, got none")
        session = LogprobSession(self, prompt_ids, emit, rule=rule, top_k=top_k, rng=self._rng)
        self._work.get().sessions.add(session)
        return session

    async def check(self) -> None:
        """Ask the server for a small answer, and measure the time.

        Raises:
            EndpointError: the server doesn't answer.
        """
        started = asyncio.get_running_loop().time()
        await self._started().models()
        self._rtt = asyncio.get_running_loop().time() - started

    async def score(self, ids: Sequence[int], pending: int, *, top: int) -> tuple[PromptLogprobs, int, int]:
        """Return the scores of the last ``pending`` ids and of the position after them; bytes sent and received.

        Args:
            ids: context and draft.
            pending: number of ids to score.
            top: ids wanted in each row.

        Raises:
            EndpointError: the server doesn't answer, or refuses.
            VerifierError: its answer has no scores, or is too large.
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
            raise UsageError(f"{self._name}: expected a started verifier, got one that was not started or is closed")
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
        """Have a sample scored; return the most ids that a row may have."""
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
