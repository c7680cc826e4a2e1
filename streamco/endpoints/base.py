"""The interface of endpoints, through which the drivers reach servers and the device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable
from weakref import WeakSet

from msgspec import Struct, field

from streamco.config import Options, SamplingOptions, Timeouts
from streamco.core.report_parts import SplitFigures
from streamco.endpoints.network.loop_bound import LoopState
from streamco.errors import ConfigError, EndpointError
from streamco.events import Partial, PreCopy, StreamEnded, TextCount, TextRepeated, TokensReceived, Written

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
    "RepeatingStream",
    "Request",
    "TextCounter",
    "TokenPrices",
    "WrittenStream",
    "check_prices",
    "estimate_tokens",
    "new_completion_id",
    "repeating_stream",
    "split_figures_of",
    "watch_retries",
]

Message = Mapping[str, Any]
Kind = Literal["device", "server"]
TASK_HEADER = "x-streamco-task"
"""The header in which a caller names a request's kind of task; it isn't sent to servers."""
Continuation = Literal["token_ids", "continue_final_message", "prefix", "none"]


def new_completion_id() -> str:
    """Return a new unique id for an answer that this process makes, in OpenAI's format."""
    return f"chatcmpl-{token_hex(12)}"


_MAX_PRICE = 100.0  # US dollars per token; the accounts of a proxy's callers have room for millions of such tokens


def check_prices(prices: Struct, *, tokens: int = 1) -> None:
    """Reject impossible prices.

    Args:
        prices: a struct in which each field is US dollars or None.
        tokens: number of tokens that a price is for.

    Raises:
        ConfigError: a price isn't a number, or it is NaN, negative, or above 100 dollars per token.
    """
    for name in prices.__struct_fields__:
        value, most = getattr(prices, name), _MAX_PRICE * tokens
        if value is not None and not (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most):
            unit = "a token" if tokens == 1 else f"for {tokens} tokens"
            raise ConfigError(f"prices: {name}: expected 0 to {most:g} US dollars {unit}, got {value!r}")


class TokenPrices(Options, frozen=True, kw_only=True):
    """Prices in US dollars per token; None for a price that isn't known.

    Raises:
        ConfigError: a price is impossible: negative, NaN, or above 100 dollars.
    """

    prompt: float | None = None
    completion: float | None = None
    cached_prompt: float | None = None

    def __post_init__(self) -> None:
        check_prices(self)


class Capabilities(Options, frozen=True, kw_only=True):
    """What an endpoint can do, as declared or found by a probe but never assumed. None means that it isn't known."""

    vocabulary: str | None = None  # fingerprint of the tokenizer (size + hash of pieces)
    takes_token_ids: bool = False
    continuation: Continuation = "none"
    pre_copy: PreCopy = "none"  # what `Request.prefill_only` does; see `PreCopy`
    tools: bool = False
    json_schema: bool = False
    images: bool = False
    choices: bool = False  # n > 1
    context_tokens: int | None = None  # prompt + completion


class Request(Struct, frozen=True, kw_only=True):
    """One request, the same for every endpoint.

    Exactly one of ``messages`` (chat), ``prompt`` (text) and ``prompt_ids`` is set.

    Args:
        model: the remote model's name; None uses the endpoint's own. A device ignores it.
        extra: other fields of the OpenAI request body, passed on unchanged (``tools``, ``response_format``, ``n`` ...).
        headers: additional HTTP headers.
        query: additional URL parameters.
        timeouts: limits on waiting for this answer, in seconds; None uses the endpoint's own. A device has limits only if they are given.
        elapsed: how many seconds of ``timeouts.total`` were used before this endpoint began.
        max_retries: retries before the first token; None uses the endpoint's own number. A device never retries.
        partial: the beginning of the answer, which another endpoint wrote and this one continues without repeating any of it; None to begin
            a new answer. Only for endpoints whose ``Capabilities.continuation`` isn't "none".
        prefill_only: read the prompt and the answer's beginning, keep them for the next request, and end without an answer. An endpoint
            with ``Capabilities.pre_copy`` "append" reads only what it hasn't kept yet and generates nothing. With "warm" it has to generate
            a token, and bills for everything it reads. Nothing that comes before ``StreamEnded`` is part of the answer.
        is_graded: True to report how sure the model is of each token; an endpoint requests log-probabilities for that if needed.
        max_buffered: tokens that a device may buffer for a slower reader before its sequence is parked; None uses the engine's limit.
        task: the caller's name for the kind of task, which a request gate may use, or None. It isn't sent to servers.
        server_limit: maximum number of tokens in a server's answer if ``sampling.max_tokens`` sets no limit, or None. It also limits a
            speculated answer. A device ignores it.
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
    """An answer that an endpoint is generating.

    ``receive`` returns batches of ``TokensReceived`` and finally one ``StreamEnded``; after that it must not be called again. It raises
    ``EndpointError`` on failure. Cancelling a waiting ``receive`` loses nothing: the next call continues from there.
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
        streams: the streams in progress; one that is neither read nor cancelled may be garbage-collected.
        is_started: True if the endpoint was started in this loop.
    """

    def __init__(self) -> None:
        self.streams: WeakSet[EndpointStream] = WeakSet()
        self.is_started = False

    async def aclose(self) -> None:
        """Cancel the streams."""
        await asyncio.gather(*(stream.cancel() for stream in list(self.streams)))


class Endpoint(Protocol):
    """A source of answers: it replies to a request with a stream of tokens."""

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
        """What the endpoint is known to be able to do; ``start`` may find out more."""
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
        """Begin an answer. Never blocks or fails. The work begins with the first ``receive`` at the latest."""
        ...

    def count_tokens(self, request: Request) -> int | None:
        """Return the prompt's length in this model's tokens, template included, or None if only the server could count them.

        The result is exact, never an estimate, because a prompt that is longer than the context isn't sent. For long prompts this is called
        in a worker thread.
        """
        ...

    async def aclose(self) -> None:
        """Release everything; idempotent."""
        ...


@runtime_checkable
class TextCounter(Protocol):
    """An endpoint that may be able to count tokens in its model's vocabulary."""

    def count_text(self, text: str) -> TextCount | None:
        """Return the number of tokens that a text has in the model's own vocabulary, or None if that isn't known. Takes milliseconds."""
        ...


@runtime_checkable
class WrittenStream(Protocol):
    """A stream that keeps its text, so that it can be counted if the endpoint sends no usage."""

    def written(self) -> Written:
        """Return what the endpoint has written so far."""
        ...


class RepeatingStream(Protocol):
    """A stream that recognises a read that differs from an earlier one only in its text. It is found by its attribute ``can_repeat``."""

    can_repeat: ClassVar[bool]
    """True."""

    async def receive(self, *, repeats: bool) -> TokensReceived | TextRepeated | StreamEnded:
        """Do the same as ``EndpointStream.receive``, but return ``TextRepeated`` for such a read if ``repeats`` is True."""
        ...


# Optional features of endpoints and streams are looked up by name, because isinstance with a protocol takes 15 us.


def repeating_stream(stream: EndpointStream) -> RepeatingStream | None:
    """Return the stream if it is a ``RepeatingStream``, otherwise None."""
    return cast("RepeatingStream", stream) if getattr(stream, "can_repeat", False) else None


def estimate_tokens(endpoint: Endpoint, request: Request) -> int | None:
    """Return roughly how many tokens a prompt has at an endpoint, template included, or None if that can't be told, as with images."""
    estimate: Callable[[Request], int | None] | None = getattr(endpoint, "estimate_tokens", None)
    return None if estimate is None else estimate(request)


def changes_of(stream: EndpointStream) -> Mapping[str, str]:
    """Return sentences, by short name, about what was left out of a stream's request after a refusal; {} if nothing was."""
    changes: Mapping[str, str] = getattr(stream, "changes", {})
    return changes


OnRetry = Callable[[EndpointError, float], bool]
"""Called before a server is retried, with the failure and the seconds until then; returns False to prevent the retry."""


def watch_retries(stream: EndpointStream, on_retry: OnRetry) -> None:
    """Have a stream call ``on_retry`` before it retries its request. Streams that never retry ignore it."""
    if hasattr(stream, "on_retry"):
        stream.on_retry = on_retry


def pause(stream: EndpointStream) -> None:
    """Have a stream's endpoint stop computing until ``resume``. One that can't pause stops sooner or later, as nobody reads its answer."""
    if (hold := getattr(stream, "pause", None)) is not None:
        hold()


def resume(stream: EndpointStream, paused: float) -> None:
    """Have a stream's endpoint continue after a pause of ``paused`` seconds, which count towards the limit for the whole answer."""
    if (charge := getattr(stream, "charge", None)) is not None:
        charge(paused)
    if (go_on := getattr(stream, "resume", None)) is not None:
        go_on()


def idle_of(stream: EndpointStream) -> float:
    """Return for how many seconds so far no task was waiting for a stream, or 0 if the stream doesn't measure that."""
    idle: float = getattr(stream, "idle", 0.0)
    return idle


def joules_of(stream: EndpointStream) -> float | None:
    """Return the energy measured while a stream's answer was computed, or None if it wasn't measured or the stream hasn't ended."""
    return getattr(getattr(stream, "timings", None), "joules", None)


def split_figures_of(stream: EndpointStream) -> SplitFigures | None:
    """Return the figures of a split model's stream, or None for any other stream."""
    figures: SplitFigures | None = getattr(stream, "split_figures", None)
    return figures
