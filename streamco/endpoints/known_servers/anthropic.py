"""Anthropic's Messages API, and servers that have it, as an endpoint."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamco.config import Limits, RetryPolicy, Timeouts
from streamco.endpoints.address import Url, host_of, is_loopback, url_text
from streamco.endpoints.base import Capabilities, Message, Request, TokenPrices
from streamco.endpoints.known_servers.declared import CapabilityChanges, check_declared, with_declared
from streamco.endpoints.network.credentials import ApiKey
from streamco.endpoints.network.headers import check_headers, merge_headers
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.openai_stream import CallApi
from streamco.errors import ConfigError
from streamco.wire.messages_api.message_body import build_message_body

if TYPE_CHECKING:
    import aiohttp

__all__ = ["AnthropicEndpoint"]

_URL = "https://api.anthropic.com/v1"
_VERSION = "2023-06-01"  # of the API; the only one since then
_DEFAULTS = Timeouts(), RetryPolicy(), Limits()


class AnthropicEndpoint(OpenAIEndpoint):
    """A remote model with Anthropic's Messages API.

    Requests are chat requests as for every endpoint; they are translated. No answer of another endpoint is continued, and thinking blocks
    are not sent back.

    Args:
        model: the model's name at the server; a request's own ``model`` goes first.
        api_key: the key; "": none. A function, sync or async, is called for the key of each request. None: that in ``ANTHROPIC_API_KEY``.
            Servers on the loopback need none.
        base_url: the URL, with or without ``/v1``, a text or an object. None: that in ``ANTHROPIC_BASE_URL``, else Anthropic's.
        max_tokens: limit on an answer if the request has none, in tokens; the API needs one.
        name: a name that is unique within a client. None: "anthropic" and the model.
        timeouts: limits by phase, in seconds.
        retry: retries before the first token.
        limits: largest sizes that are accepted from the server.
        prices: US dollars per token. None: not known.
        capabilities: all abilities of the model, or single ones as a dict. None: tools, JSON schemas and images.
        session: an aiohttp session to use and leave open. None: the endpoint makes its own.
        headers: sent with every request.
        rng: draws the jitter of retries. None: one with a random seed.

    Raises:
        ConfigError: a URL, key, name or limit is missing or wrong.
    """

    _key_header = "x-api-key"

    def __init__(
        self,
        model: str,
        *,
        api_key: ApiKey | None = None,
        base_url: Url | None = None,
        max_tokens: int = 4096,
        name: str | None = None,
        timeouts: Timeouts = _DEFAULTS[0],
        retry: RetryPolicy = _DEFAULTS[1],
        limits: Limits = _DEFAULTS[2],
        prices: TokenPrices | None = None,
        capabilities: Capabilities | CapabilityChanges | None = None,
        session: aiohttp.ClientSession | None = None,
        headers: Mapping[str, str] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        check_declared(capabilities)
        check_headers("headers", headers or {})
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise ConfigError(f"max_tokens: expected an integer >= 1, got {max_tokens!r}")
        key = api_key
        if key is None:
            is_local = base_url is not None and is_loopback(host_of(url_text("base_url", base_url)))
            key = "" if is_local else os.environ.get("ANTHROPIC_API_KEY")  # a key is not for whatever listens here
        if key is None:
            raise ConfigError('api_key: expected a key, got none; set ANTHROPIC_API_KEY or pass api_key ("" for no key)')
        super().__init__(
            model,
            base_url=base_url or os.environ.get("ANTHROPIC_BASE_URL") or _URL,
            api_key=key,
            name=name or f"anthropic/{model}",
            timeouts=timeouts,
            retry=retry,
            limits=limits,
            prices=prices,
            capabilities=with_declared(Capabilities(tools=True, json_schema=True, images=True), capabilities),
            session=session,
            headers=merge_headers({"anthropic-version": _VERSION}, headers or {}),
            probe=False,
            rng=rng,
        )
        self._max_tokens = max_tokens
        self._dialect.has_logprobs = False

    def __repr__(self) -> str:
        return f"AnthropicEndpoint({self.model!r}, base_url={self.base_url!r}, name={self.name!r})"

    @property
    def provider(self) -> str:
        """Name of the API's maker, also for other servers that have it."""
        return "anthropic"

    def _build_chat(
        self, messages: Sequence[Message], request: Request, model: str, extra: Mapping[str, Any]
    ) -> tuple[CallApi, str, dict[str, Any]]:
        body = build_message_body(messages, model=model, sampling=request.sampling, max_tokens=self._max_tokens, extra=extra)
        return "messages", "/messages", body
