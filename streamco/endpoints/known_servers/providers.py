"""Facts about servers with OpenAI's API: one entry for each kind of server, with its source.

A provider is named, or found by the host of the base URL. Its entry determines the form of the first request. If a server refuses an
optional field (``stream_options``, the name of the length limit, another provider's field in a message), the request is resent without it,
and all later ones are sent without it, too; see ``Dialect``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.known_servers.stream_refusals import StreamRefusals
from streamco.errors import ConfigError, EndpointStatusError
from streamco.wire.openai.requests import MaxTokensField

__all__ = ["GENERIC", "PROVIDERS", "Dialect", "Provider", "TokenizeApi", "find_provider", "server_kind"]

TokenizeApi = Literal["tokenize", "apply-template"]
"""The API with which a server returns the ids of a prompt; see ``shared_tokenizer``."""

_FULL = Capabilities(tools=True, json_schema=True, images=True, choices=True)
_LOCAL = Capabilities(
    takes_token_ids=True, tools=True, json_schema=True, images=True, continuation="continue_final_message", pre_copy="warm"
)
_OPEN_WEIGHTS = Capabilities(tools=True, json_schema=True)


class Provider(Struct, frozen=True, kw_only=True):
    """One kind of server.

    Args:
        name: the value of ``provider=``.
        hosts: host names of the provider; a name that begins with a dot stands for all its subdomains.
        base_url: the default if only the name is given, or None.
        key_variable: environment variable for the key.
        url_variable: environment variable for the base URL, or None.
        key_header: ``authorization`` (``Bearer KEY``) or the name of the header that holds the bare key.
        lists_models: True if ``GET /models`` returns a list to any valid key.
        goes_by_list: True if a model that isn't on the list is refused; other servers accept any name.
        has_stream_options: True if the server accepts ``stream_options={"include_usage": true}``.
        max_tokens_field: name of the field that limits the answer's length.
        takes_no_limit: True if the server takes a limit of -1 to mean no limit; other servers refuse it, and are sent no limit.
        capabilities: capabilities of a typical model there; ``Capabilities`` passed to the endpoint override them.
        continuation_base_url: base URL for continuations; None if it is the same as for other requests.
        has_token_ids: True if the server returns the token ids of each piece of text on request (``return_token_ids``).
        ids_precede_text: True if ids arrive before their text when there are stop strings. The server holds that text back, so no endpoint
            could continue after these ids.
        tokenize_api: the API that returns the ids of a prompt, or None.
        source: where these facts come from.
    """

    name: str
    hosts: tuple[str, ...] = ()
    base_url: str | None = None
    key_variable: str = "OPENAI_API_KEY"
    url_variable: str | None = None
    key_header: str = "authorization"
    lists_models: bool = True
    goes_by_list: bool = False
    has_stream_options: bool = True
    max_tokens_field: MaxTokensField = "max_tokens"
    takes_no_limit: bool = False
    capabilities: Capabilities = Capabilities()
    continuation_base_url: str | None = None
    has_token_ids: bool = False
    ids_precede_text: bool = False
    tokenize_api: TokenizeApi | None = None
    source: str

    @property
    def is_self_hosted(self) -> bool:
        """True for programs that people run themselves, where a model may have any name, even another model's."""
        return not self.hosts and self.name != "generic"


GENERIC = Provider(
    name="generic",
    capabilities=_FULL,
    source="the least that servers calling themselves OpenAI-compatible agree on; what they can't do they refuse themselves",
)

PROVIDERS: tuple[Provider, ...] = (
    Provider(
        name="openai",
        goes_by_list=True,
        hosts=("api.openai.com",),
        base_url="https://api.openai.com/v1",
        url_variable="OPENAI_BASE_URL",
        max_tokens_field="max_completion_tokens",
        capabilities=_FULL,
        source="OpenAI API reference, chat/create: max_tokens is deprecated and refused by reasoning models",
    ),
    Provider(
        name="azure",
        hosts=(".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com"),
        key_variable="AZURE_OPENAI_API_KEY",
        url_variable="AZURE_OPENAI_ENDPOINT",
        key_header="api-key",
        lists_models=False,
        capabilities=_FULL,
        source="Azure OpenAI REST reference 2024-10-21 (the first stable version with stream_options; griptape#1640); "
        "max_completion_tokens only for reasoning models there",
    ),
    Provider(
        name="deepseek",
        goes_by_list=True,
        hosts=("api.deepseek.com",),
        base_url="https://api.deepseek.com/v1",
        key_variable="DEEPSEEK_API_KEY",
        capabilities=Capabilities(tools=True, continuation="prefix", pre_copy="warm"),
        continuation_base_url="https://api.deepseek.com/beta",
        source="api-docs.deepseek.com: create-chat-completion (stream_options, max_tokens), chat_prefix_completion (beta URL), "
        "json_mode (json_object only), rate_limit (keep-alive comments)",
    ),
    Provider(
        name="openrouter",
        hosts=("openrouter.ai",),
        base_url="https://openrouter.ai/api/v1",
        key_variable="OPENROUTER_API_KEY",
        capabilities=Capabilities(tools=True, json_schema=True, images=True),
        source="openrouter.ai/docs: api-reference/streaming (comments, errors inside the stream), errors (codes)",
    ),
    Provider(
        name="groq",
        goes_by_list=True,
        hosts=("api.groq.com",),
        base_url="https://api.groq.com/openai/v1",
        key_variable="GROQ_API_KEY",
        max_tokens_field="max_completion_tokens",
        capabilities=_OPEN_WEIGHTS,
        source="console.groq.com/docs/openai: n must be 1, max_tokens deprecated; recorded streams carry usage in x_groq",
    ),
    Provider(
        name="mistral",
        goes_by_list=True,
        hosts=("api.mistral.ai",),
        base_url="https://api.mistral.ai/v1",
        key_variable="MISTRAL_API_KEY",
        has_stream_options=False,
        capabilities=Capabilities(tools=True, json_schema=True, images=True, choices=True, continuation="prefix", pre_copy="warm"),
        source="status 422 extra_forbidden for stream_options (openai-agents-python#442) and for max_completion_tokens (eca#231); "
        "usage comes unasked; docs.mistral.ai: prefix on the last assistant message",
    ),
    Provider(
        name="perplexity",
        hosts=("api.perplexity.ai",),
        base_url="https://api.perplexity.ai",
        key_variable="PERPLEXITY_API_KEY",
        lists_models=False,
        has_stream_options=False,
        capabilities=Capabilities(json_schema=True, images=True),
        source="recorded streams: usage in every chunk, no [DONE] (api-discussion#209)",
    ),
    Provider(
        name="xai",
        goes_by_list=True,
        hosts=("api.x.ai",),
        base_url="https://api.x.ai/v1",
        key_variable="XAI_API_KEY",
        max_tokens_field="max_completion_tokens",
        capabilities=_FULL,
        source="docs.x.ai: REST API reference, chat completions",
    ),
    Provider(
        name="together",
        hosts=("api.together.xyz", "api.together.ai"),
        base_url="https://api.together.xyz/v1",
        key_variable="TOGETHER_API_KEY",
        capabilities=_OPEN_WEIGHTS,
        source="docs.together.ai: OpenAI compatibility",
    ),
    Provider(
        name="fireworks",
        hosts=("api.fireworks.ai",),
        base_url="https://api.fireworks.ai/inference/v1",
        key_variable="FIREWORKS_API_KEY",
        capabilities=_OPEN_WEIGHTS,
        source="docs.fireworks.ai: OpenAI compatibility; usage comes unasked in the last chunk",
    ),
    Provider(
        name="vllm",
        goes_by_list=True,
        capabilities=replace(_LOCAL, choices=True),
        has_token_ids=True,
        ids_precede_text=True,
        tokenize_api="tokenize",
        source="docs.vllm.ai: openai_compatible_server (continue_final_message, prompt as token ids, return_token_ids, tokenize); "
        "tools depend on --enable-auto-tool-choice, images on the model; "
        "ids before held text: v1/engine/detokenizer.py, seen with 0.32",
    ),
    Provider(
        name="sglang",
        capabilities=replace(_LOCAL, choices=True),
        has_token_ids=True,
        tokenize_api="tokenize",
        source="docs.sglang.ai: openai_api_completions (continue_final_message); prompts of ids: sglang#736; "
        "return_token_ids in completions: sglang#30917, earlier ones leave it alone; /tokenize takes prompts, no messages: "
        "entrypoints/openai/serving_tokenize.py",
    ),
    Provider(
        name="llama-server",
        takes_no_limit=True,
        capabilities=_LOCAL,
        tokenize_api="apply-template",
        source="llama.cpp tools/server/README.md: prompt as token ids, response_format, apply-template and tokenize; -1 means no limit; "
        "continue_final_message since llama.cpp#23012, a last assistant message is continued before that too; tools depend on --jinja, "
        "images on --mmproj, and it says so",
    ),
    Provider(
        name="llama-cpp-python",
        has_stream_options=False,
        capabilities=Capabilities(json_schema=True),
        source="llama_cpp/server/types.py: prompt is a string, no stream_options field",
    ),
    Provider(
        name="ollama",
        goes_by_list=True,
        takes_no_limit=True,
        capabilities=Capabilities(tools=True, json_schema=True),
        source="docs.ollama.com/openai: stream_options, tools and response_format are supported, n is not; max_tokens is num_predict, "
        "of which docs.ollama.com/modelfile says that -1 means no limit",
    ),
    Provider(
        name="streamco",
        goes_by_list=True,
        takes_no_limit=True,
        capabilities=Capabilities(takes_token_ids=True, continuation="continue_final_message", pre_copy="append"),
        has_token_ids=True,
        source="docs/serve.md",
    ),
)

_REFUSAL = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed|forbidden|invalid", re.IGNORECASE
)


class Dialect:
    """The optional fields that a server accepts, according to its provider's entry and to the server's refusals so far."""

    def __init__(self, provider: Provider) -> None:
        self.has_stream_options = provider.has_stream_options
        self.max_tokens_field: MaxTokensField = provider.max_tokens_field
        self.takes_no_limit = provider.takes_no_limit
        self.stream_refusals = StreamRefusals()
        """The requests that this server doesn't stream."""
        self.has_logprobs = True
        """True if the server has log-probabilities and hasn't refused to send them."""
        self.refused_fields: frozenset[str] = frozenset()
        """Fields of assistant messages that this server refuses, for example because another server wrote them."""

    def follow(self, provider: Provider) -> None:
        """Switch to another provider's entry, but keep what was refused."""
        self.has_stream_options = self.has_stream_options and provider.has_stream_options
        self.takes_no_limit = provider.takes_no_limit

    def fit(self, request: Request) -> Request:
        """Return a request in the form that the server accepts; a limit of -1 is left out if the server refuses it."""
        if self.takes_no_limit or not request.sampling.is_unlimited:
            return request
        return replace(request, sampling=replace(request.sampling, is_unlimited=False))

    def adapt(self, error: EndpointStatusError, body: bytes, changes: dict[str, str]) -> bool:
        """Record what a refusal is about; return True if the request should be resent at once, in another form.

        Args:
            error: the refusal.
            body: the request's body.
            changes: sentences, by form, that say what was left out of the request; this method adds to them.
        """
        if refused := self.record_refused_fields(error, body):
            changes["message fields"] = f"messages go without {', '.join(refused)}, which the server refused ({error.status})"
            return True
        fields = _fields_of(body)
        if what := self.stream_refusals.record(error, fields):
            changes["stream"] = what
            return True
        if 400 <= error.status < 500 and changes.pop("stream", ""):
            self.stream_refusals.forget(fields)
        return self.record_refusal(error, body)

    def record_refusal(self, error: EndpointStatusError, body: bytes) -> bool:
        """Record what a refusal is about; return True if it was a field that can be left out or renamed.

        If so, the request should be resent at once. The caller's own stream options are never left out; if the server refuses them, the
        caller gets the error.

        Args:
            error: the refusal.
            body: the request's body.
        """
        if error.status not in {400, 422} or not _REFUSAL.search(error.body):
            return False
        if self.has_stream_options and "stream_options" in error.body and not _has_further_stream_options(body):
            self.has_stream_options = False
            return True
        if self.max_tokens_field == "max_tokens" and "max_completion_tokens" in error.body:
            self.max_tokens_field = "max_completion_tokens"
            return True
        if self.max_tokens_field == "max_completion_tokens" and "max_completion_tokens" in error.body:
            self.max_tokens_field = "max_tokens"
            return True
        return False

    def record_refused_fields(self, error: EndpointStatusError, body: bytes) -> list[str]:
        """Record the message fields that a refusal names, and return them, except OpenAI's fields and those that ask for a continuation.

        Args:
            error: the refusal.
            body: the request's body.
        """
        if error.status not in {400, 422} or not _REFUSAL.search(error.body):
            return []
        named = _provider_fields(body) - self.refused_fields  # fields in extra_body are sent all the same
        found = sorted(name for name in named if re.search(rf"\b{re.escape(name)}\b", error.body))
        self.refused_fields |= frozenset(found)
        return found

    def accepted(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return messages without the refused fields."""
        if not self.refused_fields:
            return messages
        return [
            {name: item for name, item in message.items() if name not in self.refused_fields or message.get("role") != "assistant"}
            for message in messages
        ]


_MESSAGE_FIELDS = frozenset({"role", "content", "name", "refusal", "audio", "tool_calls", "function_call", "prefix", "partial"})


def _fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a request, or {} if its body is MessagePack."""
    fields: dict[str, Any] = msgspec.json.decode(body) if body.startswith(b"{") else {}
    return fields


def _has_further_stream_options(body: bytes) -> bool:
    options = _fields_of(body).get("stream_options")
    return isinstance(options, dict) and bool(options.keys() - {"include_usage"})


def _provider_fields(body: bytes) -> set[str]:
    """Return the fields of a request's assistant messages that only some providers have."""
    messages = _fields_of(body).get("messages")
    found = [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []  # extra_body may hold anything
    return {name for message in found if message.get("role") == "assistant" for name in message if name not in _MESSAGE_FIELDS}


_BY_NAME = {provider.name: provider for provider in (GENERIC, *PROVIDERS)}


def find_provider(name: str | None = None, *, host: str = "") -> Provider:
    """Return the provider with this name, or else the provider of this host, or else ``GENERIC``.

    Raises:
        ConfigError: there is no provider with this name.
    """
    if name is not None:
        if name not in _BY_NAME:
            raise ConfigError(f"provider: expected one of {', '.join(sorted(_BY_NAME))}, got {name!r}")
        return _BY_NAME[name]
    for provider in PROVIDERS:
        if any(host == known or (known.startswith(".") and host.endswith(known)) for known in provider.hosts):
            return provider
    return GENERIC


_SELF_HOSTED = frozenset(provider.name for provider in PROVIDERS if provider.is_self_hosted)


def server_kind(endpoint: object) -> str | None:
    """Return the kind of a self-hosted server, or None for a provider, an unknown server or anything else."""
    name = getattr(endpoint, "provider", None)
    return name if name in _SELF_HOSTED else None
