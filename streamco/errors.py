"""The error tree: who is at fault decides the branch.

::

    StreamcoError
    ├── EndpointError             the other side; .endpoint, .partial
    │   ├── EndpointConnectError
    │   ├── EndpointTimeoutError  .phase = connect | first_token | next_token
    │   ├── EndpointStatusError   .status .body .retry_after
    │   ├── EndpointProtocolError
    │   └── EngineError           the model on this machine
    ├── AllEndpointsFailed        .errors, .partial
    ├── VerifierError
    ├── ConfigError(ValueError)   your settings
    └── UsageError(RuntimeError)  your code
        ├── StreamClosed
        ├── StreamConsumed
        └── ConcurrentRead

Every text says what was expected, what was got and where. Text that had arrived before the failure stays on ``.partial``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

__all__ = [
    "AllEndpointsFailed",
    "ConcurrentRead",
    "ConfigError",
    "EndpointConnectError",
    "EndpointError",
    "EndpointProtocolError",
    "EndpointStatusError",
    "EndpointTimeoutError",
    "EngineError",
    "StreamClosed",
    "StreamConsumed",
    "StreamcoError",
    "UsageError",
    "VerifierError",
]


def _rebuild(kind: type[StreamcoError], args: tuple[Any, ...], fields: dict[str, Any]) -> StreamcoError:
    """Return an error as it was pickled; its own ``__init__`` takes keywords, which pickle doesn't know of."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


TimeoutPhase = Literal["connect", "first_token", "next_token"]


class StreamcoError(Exception):
    """Root of every error this package raises on purpose; crosses process borders with all its fields."""

    def __reduce__(self) -> tuple[Callable[..., StreamcoError], tuple[type[StreamcoError], tuple[Any, ...], dict[str, Any]]]:
        return _rebuild, (type(self), self.args, self.__dict__)


class EndpointError(StreamcoError):
    """One endpoint could not do its part.

    Args:
        message: expected, got, where; lower case, no full stop.
        endpoint: name of the endpoint, "" while it is not yet known.
        partial: the text this endpoint had produced before it failed.
    """

    def __init__(self, message: str, *, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.partial = partial

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.endpoint}: {text}" if self.endpoint else text


class EndpointConnectError(EndpointError):
    """No connection: refused, unreachable, name not found, TLS failure, or cut before the response began."""


class EndpointTimeoutError(EndpointError):
    """A phase outlasted its limit.

    Args:
        phase: which limit: ``connect``, ``first_token`` (content) or ``next_token`` (between content tokens).
        limit: the limit in seconds.
    """

    def __init__(self, message: str, *, phase: TimeoutPhase, limit: float, endpoint: str = "", partial: str = "") -> None:
        super().__init__(message, endpoint=endpoint, partial=partial)
        self.phase: TimeoutPhase = phase
        self.limit = limit


class EndpointStatusError(EndpointError):
    """The endpoint answered with an error: an HTTP status, or an error event inside a stream that began with 200.

    Args:
        status: the HTTP status, or the status the in-band error stands for.
        body: the answer's body, at most 64 KiB of it.
        retry_after: seconds the server asked to wait, None when it did not say.
    """

    def __init__(
        self, message: str, *, status: int, body: str = "", retry_after: float | None = None, endpoint: str = "", partial: str = ""
    ) -> None:
        super().__init__(message, endpoint=endpoint, partial=partial)
        self.status = status
        self.body = body
        self.retry_after = retry_after


class EndpointProtocolError(EndpointError):
    """The endpoint's bytes are not what its protocol says: malformed, truncated, too large."""


class EngineError(EndpointError):
    """The model on this machine failed: it could not be loaded, or a decode failed."""


class AllEndpointsFailed(StreamcoError):
    """Nobody could give (or finish) the answer.

    Args:
        errors: each endpoint's own error, by endpoint name, in the order they failed.
        partial: the text the reader had been given.
    """

    def __init__(self, errors: Mapping[str, Exception], *, partial: str = "") -> None:
        self.errors = dict(errors)
        self.partial = partial
        listed = "; ".join(str(error) if isinstance(error, EndpointError) else f"{name}: {error}" for name, error in self.errors.items())
        super().__init__(f"no endpoint could {'finish' if partial else 'give'} the answer: {listed}")


class VerifierError(StreamcoError):
    """A verifier refused, or answered something that is not a verdict."""


class ConfigError(StreamcoError, ValueError):
    """A setting is wrong: the text names the setting, what was expected and what was got."""


class UsageError(StreamcoError, RuntimeError):
    """The calling code did something out of order."""


class StreamClosed(UsageError):
    """The stream or client was closed before this call."""


class StreamConsumed(UsageError):
    """The stream was already read to its end."""


class ConcurrentRead(UsageError):
    """Two tasks read one stream at the same time."""
