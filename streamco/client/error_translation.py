"""Classifies an exception from an endpoint: a failure of the endpoint, a mistake of the caller, or a defect.

Another endpoint may take over only after a failure, and only a failure counts against the endpoint. A mistake or a defect ends the answer,
and the reader gets an error: if the device answered although a mistake kept the server from being asked, nobody would notice the mistake.
"""

from __future__ import annotations

from copy import copy

from streamco.errors import AllEndpointsFailed, ConfigError, EndpointError, EndpointProtocolError, StreamcoError, UsageError
from streamco.events import StreamEnded, TokensReceived
from streamco.openai_types import CompletionUsage

__all__ = ["FailedStream", "FinishedStream", "as_failure", "as_raised", "failure_of", "raisable", "with_partial"]


def failure_of(error: Exception, source: str) -> EndpointError:
    """Return an error as a failure of the endpoint, with its name. A ``StreamcoError`` of another kind becomes the cause of a new failure.

    The endpoint's error and the network errors that caused it lose their tracebacks: the frames refer to the request and to the owner of
    the error, a cycle that only the garbage collector would free. Other causes are defects, and keep their tracebacks.

    Raises:
        ConfigError, UsageError: the error is a mistake of the caller.
        StreamcoError: the error is a defect in streamco, or in an endpoint that a caller wrote.
    """
    if isinstance(error, ConfigError | UsageError):
        raise error
    if not isinstance(error, StreamcoError):
        raise StreamcoError(f"{source}: expected an event or an EndpointError, got {error!r}") from error
    return as_failure(error, source)


def as_failure(error: Exception, source: str) -> EndpointError:
    """Return any error as a failure of an endpoint. Use it if the endpoint no longer makes the answer, so that the error can't end it."""
    if isinstance(error, EndpointError):
        error.endpoint = error.endpoint or source
        _drop_tracebacks(error)
        return error
    failure = EndpointProtocolError(str(error) if isinstance(error, StreamcoError) else repr(error), endpoint=source)
    failure.__cause__ = error
    return failure


def as_raised(error: BaseException, where: str, partial: str) -> StreamcoError:
    """Return the error for the reader when no other endpoint may take over.

    Args:
        error: a mistake of the caller, or a defect.
        where: for a defect, the part of the program that encountered it.
        partial: the text so far.
    """
    if isinstance(error, StreamcoError):
        raised = raisable(error)
    else:
        raised = StreamcoError(f"{where}: expected events it can handle, got {error!r}")
        raised.__cause__ = error
    raised.partial = partial
    return raised


def _drop_tracebacks(error: BaseException) -> None:
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, StreamcoError | OSError) or type(each).__module__.partition(".")[0] == "aiohttp":
            each.__traceback__ = None
        waiting += (each.__cause__, each.__context__)


def raisable(error: StreamcoError) -> StreamcoError:
    """Return a copy of a stored error to raise. Raising the original would create a cycle: its frames refer to whatever stores it.

    If a caller defined the error's class, the error itself is returned, because it may have state that a copy wouldn't have.
    """
    if type(error).__module__ != StreamcoError.__module__:
        return error
    raised = copy(error)
    raised.__context__ = error.__context__
    raised.__cause__ = error.__cause__
    raised.__suppress_context__ = error.__suppress_context__
    if notes := getattr(error, "__notes__", None):
        raised.__notes__ = list(notes)
    return raised


def with_partial(error: StreamcoError, text: str, source: str) -> StreamcoError:
    """Return a copy of an answer's error with the text so far; the original, which other answers may share, is its cause."""
    kept: StreamcoError
    if isinstance(error, EndpointError):
        kept = copy(error)
        kept.partial = text
    else:
        errors = error.errors if isinstance(error, AllEndpointsFailed) else {source: error}
        kept = AllEndpointsFailed(errors, partial=text)
    kept.__cause__ = error
    return kept


class FailedStream:
    """Stands in for a stream that an endpoint failed to open: its first ``receive`` raises the error."""

    def __init__(self, error: EndpointError) -> None:
        self._error = error

    async def receive(self) -> TokensReceived | StreamEnded:
        """Raise the error.

        Raises:
            EndpointError: always.
        """
        raise self._error

    async def cancel(self) -> None:
        """Return at once, because there is nothing to release."""


class FinishedStream:
    """Stands in for the stream of an endpoint that isn't used, because the answer already has as many tokens as it may have.

    Args:
        source: name of the endpoint that isn't used.
        finish_reason: why the answer ends.
    """

    def __init__(self, source: str, finish_reason: str) -> None:
        self._end = StreamEnded(source, finish_reason, CompletionUsage())

    async def receive(self) -> TokensReceived | StreamEnded:
        """Return the end of the answer."""
        return self._end

    async def cancel(self) -> None:
        """Return at once, because there is nothing to release."""
