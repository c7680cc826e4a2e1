"""The interface of every endpoint: where the drivers meet the network and the device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Literal, Protocol, runtime_checkable
from weakref import WeakSet

from msgspec import Struct, field

from streamco.config import Options, SamplingOptions, Timeouts
from streamco.core.report_parts import SplitFigures
from streamco.endpoints.network.loop_bound import LoopState
from streamco.errors import ConfigError, EndpointError
from streamco.events import Partial, PreCopy, StreamEnded, TextCount, TokensReceived, Written

__all__ = [
    "TASK_HEADER",
    "Capabilities",
    "Continuation",
    "Endpoint",
    "EndpointStream",
    "Kind",
    "Message",
    "OnRetry",
    "OpenStreams",
    "PreCopy",
    "Request",
    "TextCounter",
    "TokenPrices",
    "WrittenStream",
    "check_prices",
    "estimate_tokens",
    "new_completion_id",
    "split_figures_of",
    "watch_retries",
]

Message = Mapping[str, Any]
Kind = Literal["device", "server"]
TASK_HEADER = "x-streamco-task"
"""The header by which a caller names the kind of a request's task; no server gets it."""
Continuation = Literal["token_ids", "continue_final_message", "prefix", "none"]


def new_completion_id() -> str:
    """Return an id for an answer made here, in OpenAI's form; no other process makes the same one."""
    return f"chatcmpl-{token_hex(12)}"


_MAX_PRICE = 100.0  # US dollars a token; the accounts of a proxy's callers have room for millions of such tokens


def check_prices(prices: Struct, *, tokens: int = 1) -> None:
    """Refuse prices that can't be.

    Args:
        prices: has US dollars in each of its fields, or None.
        tokens: number of tokens that such a price is for.

    Raises:
        ConfigError: a price is no number, NaN, negative, or above 100 dollars a token.
    """
    for name in prices.__struct_fields__:
        value, most = getattr(prices, name), _MAX_PRICE * tokens
        if value is not None and not (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most):
            unit = "a token" if tokens == 1 else f"for {tokens} tokens"
            raise ConfigError(f"prices: {name}: expected 0 to {most:g} US dollars {unit}, got {value!r}")


class TokenPrices(Options, frozen=True, kw_only=True):
    """Prices in US dollars per token. None: not known.

    Raises:
        ConfigError: a price that can't be: negative, NaN, or above 100 dollars.
    """

    prompt: float | None = None
    completion: float | None = None
    cached_prompt: float | None = None

    def __post_init__(self) -> None:
        check_prices(self)


class Capabilities(Options, frozen=True, kw_only=True):
    """Abilities of an endpoint: declared or probed, never assumed. None: not known."""

    vocabulary: str | None = None  # fingerprint of the tokenizer (size + hash of pieces)
    takes_token_ids: bool = False
    continuation: Continuation = "none"
    pre_copy: PreCopy = "none"  # what `Request.prefill_only` does: see `PreCopy`
    tools: bool = False
    json_schema: bool = False
    images: bool = False
    choices: bool = False  # n > 1
    context_tokens: int | None = None  # prompt + completion


class Request(Struct, frozen=True, kw_only=True):
    """One request, the same for every endpoint.

    Exactly one of ``messages`` (chat), ``prompt`` (text) and ``prompt_ids`` is set.

    Args:
        model: the remote model's name. None: the endpoint's own. A device ignores it.
        extra: further fields of the OpenAI request body, passed on as they are (``tools``, ``response_format``, ``n`` ...).
        headers: further HTTP headers.
        query: further parameters of the URL.
        timeouts: limits on waiting for this answer, in seconds. None: the endpoint's own. A device has limits only if they are given.
        elapsed: seconds of ``timeouts.total`` that were used up before this endpoint began.
        max_retries: further tries before the first token. None: the endpoint's own number. A device never retries.
        partial: the answer's beginning, made by another endpoint: continue after it and repeat none of it. Only for endpoints with a
            ``Capabilities.continuation`` other than "none". None: begin the answer.
        prefill_only: read the prompt and the beginning, keep them for the request that follows, and end without an answer. An endpoint
            with ``Capabilities.pre_copy`` "append" reads only what it has not kept yet and makes no token. One with "warm" has to make a
            token, and bills for all it reads. Nothing that comes before ``StreamEnded`` is part of the answer.
        is_graded: how sure the model is of each token is wanted; an endpoint that doesn't tell by itself asks for log-probabilities.
        max_buffered: tokens that a device may keep for a reader that is slower; then its sequence is parked. None: the engine's own limit.
        task: the caller's name for the kind of task, which a request gate may ask for; None: none given. It is not sent.
        server_limit: longest answer of a server in tokens, if ``sampling.max_tokens`` has no limit. A device ignores it. A speculated
            answer is no longer either. None: no limit.
    """

    messages: Sequence[Message] | None = None
    prompt: str | None = None
    prompt_ids: Sequence[int] | None = None
    model: str | None = None
    sampling: SamplingOptions = SamplingOptions()
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    timeouts: Timeouts | None = None
    elapsed: float = 0.0
    max_retries: int | None = None
    partial: Partial | None = None
    prefill_only: bool = False
    is_graded: bool = False
    max_buffered: int | None = None
    task: str | None = None
    server_limit: int | None = None


class EndpointStream(Protocol):
    """One answer of an endpoint, while it is generated.

    ``receive`` gives ``TokensReceived`` batches and, once, ``StreamEnded``; after that it must not be called again. It raises
    ``EndpointError`` on failure. Cancelling a ``receive`` that waits loses nothing: the next call continues from there.
    """

    async def receive(self) -> TokensReceived | StreamEnded:
        """Wait for the next tokens or the end.

        Raises:
            EndpointError: the answer failed; ``partial`` holds this endpoint's text so far.
        """
        ...

    async def cancel(self) -> None:
        """Stop the work and release the connection or the sequence; return when that is done. Idempotent, safe in every state."""
        ...


class OpenStreams(LoopState):
    """The streams of one endpoint on one event loop.

    Attributes:
        streams: those under way; one that is neither read nor cancelled may be collected.
        is_started: the endpoint was started in this loop.
    """

    def __init__(self) -> None:
        self.streams: WeakSet[EndpointStream] = WeakSet()
        self.is_started = False

    async def aclose(self) -> None:
        """Cancel the streams."""
        await asyncio.gather(*(stream.cancel() for stream in list(self.streams)))


class Endpoint(Protocol):
    """A source of answers: it answers a request with a stream of tokens."""

    @property
    def name(self) -> str:
        """Name in reports and errors, unique within a client."""
        ...

    @property
    def kind(self) -> Kind:
        """The endpoint's side in a race."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Abilities as far as they are known; ``start`` may find more."""
        ...

    @property
    def prices(self) -> TokenPrices:
        """Prices of the endpoint's tokens."""
        ...

    async def start(self) -> None:
        """Load the model or open the connection pool; idempotent, safe to call from several tasks, and called in each event loop.

        Raises:
            EndpointError: the endpoint can't be used.
        """
        ...

    def open(self, request: Request) -> EndpointStream:
        """Begin an answer. Never blocks or fails: work begins with the first ``receive`` or before."""
        ...

    def count_tokens(self, request: Request) -> int | None:
        """Return the prompt's length by the tokenizer of this endpoint's model, template included. None: only the network could say.

        It is a count, never an estimate: a prompt that is longer than the context by it is not sent. Called from a worker thread for long
        prompts.
        """
        ...

    async def aclose(self) -> None:
        """Release everything; idempotent."""
        ...


@runtime_checkable
class TextCounter(Protocol):
    """An endpoint that may know its model's vocabulary."""

    def count_text(self, text: str) -> TextCount | None:
        """Return the number of tokens that a text has in the model's own vocabulary; None: it isn't known. Takes milliseconds."""
        ...


@runtime_checkable
class WrittenStream(Protocol):
    """A stream that keeps what it has written, so that it can be counted if the endpoint sends no usage."""

    def written(self) -> Written:
        """Return what the endpoint has written so far."""
        ...


# What only some endpoints and streams have is read by name, because asking whether one has it (a protocol's isinstance) takes 15 us.


def estimate_tokens(endpoint: Endpoint, request: Request) -> int | None:
    """Return about how many tokens a prompt has at an endpoint, template included; None: it can't tell, as of images."""
    estimate: Callable[[Request], int | None] | None = getattr(endpoint, "estimate_tokens", None)
    return None if estimate is None else estimate(request)


def changes_of(stream: EndpointStream) -> Mapping[str, str]:
    """Return what a stream's request was sent without after a refusal, as sentences by a short name; {}: nothing, or never such a thing."""
    changes: Mapping[str, str] = getattr(stream, "changes", {})
    return changes


OnRetry = Callable[[EndpointError, float], bool]
"""Called before a server is asked again, with the failure and the seconds until then; returns False to have it not asked again."""


def watch_retries(stream: EndpointStream, on_retry: OnRetry) -> None:
    """Have a stream call this before it asks its server again; streams that never ask again don't take it."""
    if hasattr(stream, "on_retry"):
        stream.on_retry = on_retry


def pause(stream: EndpointStream) -> None:
    """Have a stream's endpoint stop computing until ``resume``; one that can't is stopped by not being read, sooner or later."""
    if (hold := getattr(stream, "pause", None)) is not None:
        hold()


def resume(stream: EndpointStream, paused: float) -> None:
    """Have a stream's endpoint go on after so many seconds, which count towards a limit on the whole answer."""
    if (charge := getattr(stream, "charge", None)) is not None:
        charge(paused)
    if (go_on := getattr(stream, "resume", None)) is not None:
        go_on()


def idle_of(stream: EndpointStream) -> float:
    """Return the seconds so far in which no task waited for a stream; 0: it doesn't count them."""
    idle: float = getattr(stream, "idle", 0.0)
    return idle


def joules_of(stream: EndpointStream) -> float | None:
    """Return the energy that was measured while a stream's answer was computed; None: it wasn't measured, or the stream hasn't ended."""
    return getattr(getattr(stream, "timings", None), "joules", None)


def split_figures_of(stream: EndpointStream) -> SplitFigures | None:
    """Return what a split model's stream has sent and received; None: the stream is another's."""
    figures: SplitFigures | None = getattr(stream, "split_figures", None)
    return figures
