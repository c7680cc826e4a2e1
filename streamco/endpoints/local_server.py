"""Uses a model server that already runs on the user's machine (Ollama, LM Studio, llama-server, vLLM) as a client's device."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from streamco.config import Limits, RetryPolicy, Timeouts
from streamco.endpoints.address import Url, is_loopback, url_text
from streamco.endpoints.base import Capabilities, Kind, Request
from streamco.endpoints.known_servers.declared import CapabilityChanges
from streamco.endpoints.known_servers.prices import UNKNOWN
from streamco.endpoints.network.credentials import ApiKey
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.openai_stream import OpenAIStream, StreamCall
from streamco.endpoints.retry import is_transient
from streamco.endpoints.token_counter import TokenCounter
from streamco.errors import ConfigError, EndpointError

__all__ = ["LocalServerEndpoint"]

_log = logging.getLogger("streamco")

_LISTED = 8  # maximum number of model names shown in an error
_LATEST = ":latest"  # Ollama adds it to a name without a tag
_DEFAULTS = Timeouts(), RetryPolicy(), Limits()


class LocalServerEndpoint(OpenAIEndpoint):
    """A running model server that is used as a client's device. It always answers with one model, whatever model a request names.

    It takes part in races and hand-overs like a model in this process. It can't draft: ``Speculate`` needs a ``DeviceEndpoint``.
    Its tokens cost no money.

    Args:
        base_url: the server's URL, a string or a URL object, with or without ``/v1`` at the end; Ollama's is ``http://127.0.0.1:11434``.
        model: the model's name at the server; None if the server offers only one.
        name: a name that is unique within a client.
        api_key: the key, or a sync or async function that returns the key for each request, or None.
        context_tokens: maximum number of tokens in prompt and answer together. By default the server's own figure; if it reports none,
            prompts of any length are sent. Ollama reports none and silently truncates prompts, so pass the value of its ``num_ctx`` or
            ``OLLAMA_CONTEXT_LENGTH``.
        capabilities: all capabilities of the model, or a dict of those that differ from what is usual for such servers, or None.
        timeouts: limits by phase, in seconds.
        retry: retries before the first token.
        limits: largest sizes that are accepted from the server.

    Raises:
        ConfigError: a URL, key or name is wrong.
    """

    kind: Kind = "device"

    def __init__(
        self,
        base_url: Url,
        model: str | None = None,
        *,
        name: str = "device",
        api_key: ApiKey | None = None,
        context_tokens: int | None = None,
        capabilities: Capabilities | CapabilityChanges | None = None,
        timeouts: Timeouts = _DEFAULTS[0],
        retry: RetryPolicy = _DEFAULTS[1],
        limits: Limits = _DEFAULTS[2],
    ) -> None:
        url = url_text("base_url", base_url)
        if not url:
            raise ConfigError("base_url: expected the URL of a server on this machine, got an empty string")
        if url.partition("?")[0].lower().endswith(".gguf"):
            raise ConfigError(f"{url}: expected the URL of a server, got the URL of a file; download it, and give its path")
        if context_tokens is not None and context_tokens < 1:
            raise ConfigError(f"context_tokens: expected 1 or more, got {context_tokens}")
        if model == "":
            raise ConfigError("model: expected the name of a model or None, got an empty string")
        super().__init__(
            model or "?",
            base_url=url,
            api_key="" if api_key is None else api_key,
            name=name,
            prices=UNKNOWN,
            capabilities=capabilities,
            timeouts=timeouts,
            retry=retry,
            limits=limits,
            probe=False,  # this class does that itself, and needs the result to find its model
        )
        self._given_model = model
        self._context_tokens = context_tokens
        self._is_known = False
        if not is_loopback(self._address.host):
            _log.warning(
                "%s: expected a server on this machine, got %s; it counts as the device, without a price", name, self._address.host
            )

    def __repr__(self) -> str:
        return f"LocalServerEndpoint({self._address.base_url!r}, {self._given_model!r}, name={self._name!r})"

    @property
    def capabilities(self) -> Capabilities:
        """The declared capabilities, or else those that the server reports and those that are known for such servers."""
        if self._context_tokens is None:
            return self._capabilities
        return msgspec.structs.replace(self._capabilities, context_tokens=self._context_tokens)

    async def start(self) -> None:
        """Prepare the connection, ask the server what it is, and find the model; idempotent.

        If the server can't be reached or is still loading its model, each answer asks the server again, and fails until the server is
        ready.

        Raises:
            EndpointError: the server doesn't offer the model, or offers several and none was named.
            StreamClosed: the endpoint was closed.
        """
        await super().start()
        try:
            await self._find_model()
        except EndpointError as error:
            if not is_transient(error):
                raise
            _log.warning("%s; each answer will ask again", error)

    async def _find_model(self) -> None:
        if self._is_known:
            return
        info = await self.probe()
        self.model = self._choose(info.models)
        self._counter = TokenCounter(self.model)
        self._is_known = True
        _log.info("%s is %s, model %s, context %s", self.name, info.kind, self.model, self.capabilities.context_tokens or "not known")

    def open(self, request: Request) -> OpenAIStream:
        """Begin an answer with this device's model; the request is sent with the first ``receive``."""
        return super().open(msgspec.structs.replace(request, model=None))

    async def _prepare(self, request: Request) -> StreamCall:
        await self._find_model()
        return await super()._prepare(request)

    def _choose(self, offered: Sequence[str]) -> str:
        """Return the name of the model to use.

        Raises:
            EndpointError: the server doesn't offer the named model, or no model was named and the server doesn't offer exactly one.
        """
        given = self._given_model
        names = ", ".join(offered[:_LISTED]) + (f" and {len(offered) - _LISTED} others" if len(offered) > _LISTED else "")
        where = f"{self._name}: {self._address.base_url}"
        if given is None:
            if len(offered) != 1:
                raise EndpointError(f"{where}: expected the name of one of its models, got none; it offers {names or 'none by name'}")
            return offered[0]
        if not offered or given in offered or given + _LATEST in offered:
            return given
        raise EndpointError(f"{where}: expected one of its models, got {given!r}; it offers {names}")
