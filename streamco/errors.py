"""The error tree: the branch shows where the fault is.

::

    StreamcoError
    ├── EndpointError             the other side; .endpoint, .partial
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

Every text states what was expected, what was got and where. Text that had arrived before the failure is on ``.partial``.
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
    """Return an error as it was pickled, without calling ``__init__``, because pickle doesn't pass keywords."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


TimeoutPhase = Literal["connect", "first_token", "next_token", "total"]


CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long; agents shorten their chats when they see it."""
MAX_TEXT = 2000  # characters of an error's text
MAX_NAME = 100  # characters of a name in it


def shorten(text: str, size: int = MAX_TEXT) -> str:
    """Return a text of at most ``size`` characters for an error; a longer one has its length in place of its middle.

    An error's text has what was sent in the middle, or at its end after what was expected.
    """
    if len(text) <= size:
        return text
    end = size // 4
    return f"{text[: size - end]} ... ({len(text)} characters) ... {text[-end:]}"


class StreamcoError(Exception):
    """The root of all errors that this package raises on purpose; they can be pickled with all their fields.

    A text of more than 2,000 characters loses its middle, because it may quote what was sent.
    """

    partial: str = ""
    """The answer's text that had arrived; "": none, or the error is about no answer."""
    code: str | None = None
    """OpenAI's machine-readable reason, such as "context_length_exceeded" of a prompt that is too long; None: none."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shorten(each) if isinstance(each, str) else each for each in args))

    def __reduce__(self) -> tuple[Callable[..., StreamcoError], tuple[type[StreamcoError], tuple[Any, ...], dict[str, Any]]]:
        return _rebuild, (type(self), self.args, self.__dict__)


class EndpointError(StreamcoError):
    """A failure of one endpoint.

    Args:
        message: expected, got, where; lower case, no full stop.
        endpoint: name of the endpoint; "": not known yet.
        partial: the text that this endpoint had generated before it failed.

    Attributes:
        unable: names of the endpoints that could not go on with its answer, because they take no begun answers.
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
    """Return why an answer that had begun could not go on at these endpoints."""
    return f'{" and ".join(names)} can\'t go on with a begun answer, as far as is known (capabilities.continuation is "none")'


class EndpointConnectError(EndpointError):
    """A failed connection: refused, unreachable, name not found, TLS failure, or cut before the response began."""


class EndpointTimeoutError(EndpointError):
    """A phase that took longer than its limit.

    Args:
        phase: which limit: ``connect``, ``first_token`` (content), ``next_token`` (between content tokens) or ``total`` (the whole answer).
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
        body: body of the response, at most 64 KiB of it.
        retry_after: seconds that the server asked to wait; None: it did not ask.
        code: the reason that the server named, or "context_length_exceeded" if its text says that in other words; None: none.
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
    """Bytes from the endpoint that break its protocol: malformed, truncated, too large, or of another API.

    Args:
        is_lasting: the same request would fail in the same way: the address belongs to another API.
        is_limit: the bytes are more than the caller's ``Limits`` allow.
    """

    def __init__(self, message: str, *, is_lasting: bool = False, is_limit: bool = False, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message, endpoint=endpoint, partial=partial)
        self.is_limit = is_limit
        self.is_lasting = is_lasting


class UnparsedAnswer(EndpointError):
    """An answer that came whole and can't be read as the object that was asked for.

    Args:
        message: expected and got.
        completion: the answer, a ``streamco.types.Answer``; its text is in ``partial``, too.
        code: "length": its limit of tokens cut it off; "content_filter": a content filter did; "invalid": its text isn't JSON of the class,
            and ``__cause__`` is pydantic's error.
    """

    def __init__(self, message: str, *, completion: Any, code: str, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message, endpoint=endpoint, partial=partial)
        self.completion = completion
        self.code = code


class EngineError(EndpointError):
    """A failure of the model on this machine: it could not be loaded, or a decode failed."""


class PromptError(EngineError):
    """A prompt that the model on this machine can't take; the engine is well, and takes another one."""


class AllEndpointsFailed(StreamcoError):
    """The failure of all endpoints to give, or to finish, the answer; it has a ``code`` if all errors have the same.

    Args:
        errors: each endpoint's own error, by its name, in the order of the failures.
        partial: the text that the reader had got.
    """

    def __init__(self, errors: Mapping[str, Exception], *, partial: str = "") -> None:
        self.errors = dict(errors)
        self.partial = partial
        codes = {getattr(error, "code", None) for error in self.errors.values()}
        self.code = codes.pop() if len(codes) == 1 else None
        listed = "; ".join(str(error) if isinstance(error, EndpointError) else f"{name}: {error}" for name, error in self.errors.items())
        super().__init__(f"no endpoint could {'finish' if partial else 'give'} the answer: {listed}")


class VerifierError(StreamcoError):
    """A verifier's refusal, or a reply that is not a verdict."""


class DegradedError(StreamcoError):
    """What was asked for can't be had, and ``on_degraded="raise"`` forbids anything else.

    Args:
        message: what was asked for, and what would happen instead.
        kind: what happened, as the log names it.
        endpoint: name of the endpoint that can't be used as was asked for.
        partial: the text that the reader had got.
    """

    def __init__(self, message: str, *, kind: str, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.endpoint = endpoint
        self.partial = partial


class ConfigError(StreamcoError, ValueError):
    """A wrong setting: the text names the setting, what was expected and what was got.

    Args:
        message: as of all errors.
        field: the field of a request that is at fault; None: that which the text begins with.
        code: OpenAI's machine-readable reason; "context_length_exceeded": no endpoint has room for the prompt; None: none.
    """

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class UsageError(StreamcoError, RuntimeError):
    """A call that the calling code must not make at this time."""


class StreamClosed(UsageError):
    """A call after the stream or client was closed."""


class StreamConsumed(UsageError):
    """A read of a stream that was already read to its end."""


class ConcurrentRead(UsageError):
    """A read of a stream that another task is reading."""


def is_out_of_time(error: BaseException) -> bool:
    """Return True if an endpoint had not finished within the limit on the whole answer."""
    return isinstance(error, EndpointTimeoutError) and error.phase == "total"


_REFUSALS = frozenset({401, 403, 404})


def is_refusal(error: BaseException) -> bool:
    """Return True if a server can't answer for a reason that stays.

    It refused the key (401), the permission (403) or the model (404), or its address belongs to another API.
    """
    if isinstance(error, EndpointProtocolError):
        return error.is_lasting
    return isinstance(error, EndpointStatusError) and error.status in _REFUSALS
