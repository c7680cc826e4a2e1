"""The exception hierarchy. Each branch says whose fault an error is.

::

    StreamcoError
    ├── EndpointError             an endpoint; .endpoint, .partial
    │   ├── EndpointConnectError
    │   ├── EndpointTimeoutError  .phase = connect | first_token | next_token | total
    │   ├── EndpointStatusError   .status .body .retry_after
    │   ├── EndpointProtocolError .is_lasting
    │   ├── UnparsedAnswer        .completion .code = length | content_filter | invalid
    │   └── EngineError           the model on this machine
    │       └── PromptError       it can't take this prompt
    ├── AllEndpointsFailed        .errors, .partial
    ├── VerifierError
    ├── DegradedError             .kind .endpoint; only with on_degraded="raise"
    ├── ConfigError(ValueError)   your settings
    └── UsageError(RuntimeError)  your code
        ├── StreamClosed
        ├── StreamConsumed
        └── ConcurrentRead

Every message says where the error is, what was expected and, if anything was received, what that was. Text that arrived before the failure
is in ``.partial``, and the answer's figures are in ``.report``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

__all__ = [
    "AllEndpointsFailed",
    "CONTEXT_EXCEEDED",
    "ConcurrentRead",
    "ConfigError",
    "DegradedError",
    "EndpointConnectError",
    "EndpointError",
    "EndpointProtocolError",
    "EndpointStatusError",
    "EndpointTimeoutError",
    "EngineError",
    "MAX_NAME",
    "MAX_TEXT",
    "PromptError",
    "StreamClosed",
    "StreamConsumed",
    "StreamcoError",
    "UnparsedAnswer",
    "UsageError",
    "VerifierError",
    "is_out_of_time",
    "is_refusal",
    "shorten",
    "why_unable",
]


def _rebuild(kind: type[StreamcoError], args: tuple[Any, ...], fields: dict[str, Any]) -> StreamcoError:
    """Rebuild a pickled error without calling ``__init__``, because pickle doesn't pass keyword arguments."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


TimeoutPhase = Literal["connect", "first_token", "next_token", "total"]


CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long; agents shorten their chats when they see it."""
MAX_TEXT = 2000  # characters in an error message
MAX_NAME = 100  # characters of a name in a message


def shorten(text: str, size: int = MAX_TEXT) -> str:
    """Shorten an error message to about ``size`` characters by replacing its middle with a note of the message's length.

    Long error messages are long because they quote received data, in the middle or at the end.
    """
    if len(text) <= size:
        return text
    end = size // 4
    return f"{text[: size - end]} ... ({len(text)} characters) ... {text[-end:]}"


class StreamcoError(Exception):
    """The base class of all errors that this package raises on purpose. They can be pickled with all their fields.

    If a message has more than 2,000 characters, its middle is cut out, because it may quote received data.
    """

    partial: str = ""
    """The text of the answer that had arrived before the error; "" if there was none, or if the error isn't about an answer."""
    code: str | None = None
    """OpenAI's machine-readable reason, such as "context_length_exceeded" for a prompt that is too long; None if there isn't one."""
    report: Any = None
    """The ``Report`` on the failed answer, with its cost; None if the answer hadn't begun, or if the error isn't about an answer."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shorten(each) if isinstance(each, str) else each for each in args))

    def __reduce__(self) -> tuple[Callable[..., StreamcoError], tuple[type[StreamcoError], tuple[Any, ...], dict[str, Any]]]:
        return _rebuild, (type(self), self.args, self.__dict__)


class EndpointError(StreamcoError):
    """A failure of one endpoint.

    Args:
        message: what was expected, what was received and where; lower case, no full stop.
        endpoint: name of the endpoint, or "" if it isn't known yet.
        partial: the text that this endpoint had generated before it failed.

    Attributes:
        unable: names of the other endpoints that couldn't continue this endpoint's answer, because they don't support that.
    """

    unable: tuple[str, ...] = ()

    def __init__(self, message: str, *, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.partial = partial

    def __str__(self) -> str:
        text = super().__str__()
        more = f"; {why_unable(self.unable)}" if self.unable else ""
        return f"{self.endpoint}: {text}{more}" if self.endpoint else text + more


def why_unable(names: Sequence[str]) -> str:
    """Explain why these endpoints couldn't continue an answer that had begun."""
    return f'{" and ".join(names)} can\'t go on with a begun answer, as far as is known (capabilities.continuation is "none")'


class EndpointConnectError(EndpointError):
    """A connection failed: it was refused, unreachable or cut before the response began, the name wasn't found, or TLS failed."""


class EndpointTimeoutError(EndpointError):
    """A phase of the request took longer than its limit.

    Args:
        phase: ``connect``, ``first_token`` (until the first content), ``next_token`` (between content) or ``total`` (the whole answer).
        limit: the limit in seconds.
    """

    def __init__(self, message: str, *, phase: TimeoutPhase, limit: float, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message, endpoint=endpoint, partial=partial)
        self.phase: TimeoutPhase = phase
        self.limit = limit


class EndpointStatusError(EndpointError):
    """An error that the endpoint sent: an HTTP status, or an error event inside a stream that began with 200.

    Args:
        status: the HTTP status, or the status that matches the error event.
        body: the response's body, cut off after 64 KiB.
        retry_after: how many seconds the server asked the client to wait; None if it didn't ask.
        code: the reason that the server gave, or "context_length_exceeded" if its text says so in other words; None if it gave none.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        body: str = "",
        retry_after: float | None = None,
        code: str | None = None,
        endpoint: str = "",
        partial: str = "",
    ) -> None:
        super().__init__(message, endpoint=endpoint, partial=partial)
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.code = code


class EndpointProtocolError(EndpointError):
    """The endpoint's response breaks its protocol: it is malformed, truncated, too large, or from a different API.

    Args:
        is_lasting: True if the same request would fail again in the same way, because the address belongs to a different API.
        is_limit: True if the response is larger than the caller's ``Limits`` allow.
    """

    def __init__(self, message: str, *, is_lasting: bool = False, is_limit: bool = False, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message, endpoint=endpoint, partial=partial)
        self.is_limit = is_limit
        self.is_lasting = is_lasting


class UnparsedAnswer(EndpointError):
    """An answer that can't be parsed as the object that was requested.

    Args:
        message: what was expected and what was received.
        completion: the answer, a ``streamco.types.Answer``; its text is also in ``partial``.
        code: "length" if the token limit cut it off, "content_filter" if a content filter did, or "invalid" if its text isn't valid JSON
            for the class, in which case ``__cause__`` is pydantic's error.
    """

    def __init__(self, message: str, *, completion: Any, code: str, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message, endpoint=endpoint, partial=partial)
        self.completion = completion
        self.code = code


class EngineError(EndpointError):
    """The model on this machine failed: it could not be loaded, or a decode failed."""


class PromptError(EngineError):
    """The model on this machine can't process this prompt. The engine itself is fine, and can process other prompts."""


class AllEndpointsFailed(StreamcoError):
    """Every endpoint failed to start or to finish the answer. ``code`` is set if all errors have the same one.

    Args:
        errors: each endpoint's error, by the endpoint's name, in the order of the failures.
        partial: the text that the reader had received.
    """

    retry_after: float | None
    """How many seconds to wait until one of the endpoints may be asked again, as its server said; None if no server said so."""

    def __init__(self, errors: Mapping[str, Exception], *, partial: str = "") -> None:
        self.errors = dict(errors)
        waits = [wait for error in self.errors.values() if (wait := getattr(error, "retry_after", None)) is not None]
        self.retry_after = min(waits, default=None)
        self.partial = partial
        codes = {getattr(error, "code", None) for error in self.errors.values()}
        self.code = codes.pop() if len(codes) == 1 else None
        listed = "; ".join(str(error) if isinstance(error, EndpointError) else f"{name}: {error}" for name, error in self.errors.items())
        super().__init__(f"no endpoint could {'finish' if partial else 'give'} the answer: {listed}")


class VerifierError(StreamcoError):
    """A verifier refused the request, or its reply isn't a verdict."""


class DegradedError(StreamcoError):
    """The request can't be served as asked, and ``on_degraded="raise"`` forbids serving it in another way.

    Args:
        message: what was asked for, and what would happen instead.
        kind: the kind of degradation, under its name in the log.
        endpoint: name of the endpoint that can't be used as requested.
        partial: the text that the reader had received.
    """

    def __init__(self, message: str, *, kind: str, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.endpoint = endpoint
        self.partial = partial


class ConfigError(StreamcoError, ValueError):
    """A setting is wrong. The message names the setting, and says what was expected and what was given.

    Args:
        message: the setting, what was expected and what was given.
        field: the field of the request that is wrong; None if the message begins with its name.
        code: OpenAI's machine-readable reason, or None. "context_length_exceeded" means that no endpoint has room for the prompt.
    """

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class UsageError(StreamcoError, RuntimeError):
    """This call isn't allowed at this point."""


class StreamClosed(UsageError):
    """The stream or client is already closed."""


class StreamConsumed(UsageError):
    """The stream has already been read to its end."""


class ConcurrentRead(UsageError):
    """Another task is already reading the stream."""


def is_out_of_time(error: BaseException) -> bool:
    """Return True if an endpoint didn't finish within the time limit for the whole answer."""
    return isinstance(error, EndpointTimeoutError) and error.phase == "total"


_REFUSALS = frozenset({401, 403, 404})


def is_refusal(error: BaseException) -> bool:
    """Return True if a server refused a request for a reason that a retry won't change.

    Either it rejected the key (401), denied permission (403) or doesn't know the model (404), or its address belongs to a different API.
    """
    if isinstance(error, EndpointProtocolError):
        return error.is_lasting
    return isinstance(error, EndpointStatusError) and error.status in _REFUSALS
