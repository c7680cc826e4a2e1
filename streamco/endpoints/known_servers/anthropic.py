"""The endpoint for Anthropic's Messages API, at Anthropic and at other servers that have it."""

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
_VERSION = "2023-06-01"  # of the API; there hasn't been another one since
_DEFAULTS = Timeouts(), RetryPolicy(), Limits()


class AnthropicEndpoint(OpenAIEndpoint):
    """A remote model with Anthropic's Messages API.

    It takes chat requests like every other endpoint, and translates them. It can't continue another endpoint's answer, and doesn't send
    thinking blocks back.

    Args:
        model: the model's name at the server; a request's own ``model`` takes precedence.
        api_key: the key, "" for none, or a sync or async function that returns the key for each request; by default
            ``ANTHROPIC_API_KEY``. Loopback servers need none.
        base_url: the URL, with or without ``/v1``, a string or a URL object; by default ``ANTHROPIC_BASE_URL`` or Anthropic's.
        max_tokens: maximum number of tokens in an answer if the request sets no limit, because the API requires one.
        name: a name that is unique within a client; by default "anthropic" and the model.
        timeouts: limits by phase, in seconds.
        retry: retries before the first token.
        limits: largest sizes that are accepted from the server.
        prices: US dollars per token, or None if not known.
        capabilities: all capabilities of the model, or a dict of those that differ from the default (tools, JSON schemas and images).
        session: an aiohttp session to use and leave open; None to create one.
        headers: headers sent with every request.
        rng: random generator for the jitter of retries; by default one with a random seed.

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
            key = "" if is_local else os.environ.get("ANTHROPIC_API_KEY")  # don't send the key to whatever listens here
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
        """Name of the API's maker, even for other servers that have the API."""
        return "anthropic"

    def _build_chat(
        self, messages: Sequence[Message], request: Request, model: str, extra: Mapping[str, Any]
    ) -> tuple[CallApi, str, dict[str, Any]]:
        body = build_message_body(messages, model=model, sampling=request.sampling, max_tokens=self._max_tokens, extra=extra)
        return "messages", "/messages", body
