"""The interface of observers, and the list of observers that a client keeps.

An observer sees an answer begin, each request that is sent for it, and its final report. It is called in the event loop's thread and must
not block. It isn't called for single tokens; the final report has figures for all of them, and takes about a microsecond per token to make.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from streamco.core.report import Report
from streamco.endpoints.base import Kind, Request

__all__ = [
    "AnswerObservation",
    "AnswerObserver",
    "AnswerObservers",
    "ObservedAttempt",
    "ObservedAnswer",
    "PACKAGE_VERSION",
    "describe_attempt",
]

_logger = logging.getLogger("streamco")


def _package_version() -> str:
    try:
        return version("streamco")
    except PackageNotFoundError:
        return "unknown"


PACKAGE_VERSION = _package_version()
"""Installed version of streamco, or "unknown" if it runs from a folder that isn't installed. Determined once, because that reads files."""


class ObservedAttempt(Struct, frozen=True, kw_only=True):
    """One request to an endpoint, as an observer sees it.

    Args:
        endpoint: the endpoint's name.
        kind: its side, device or server.
        model: the model's name at the endpoint, or None if it isn't known.
        provider: the provider's name, as in ``OpenAIEndpoint(provider=...)``, or None if it isn't known.
        base_url: the server's address, or None if the endpoint is in this process or has no address.
        request: the request.
    """

    endpoint: str
    kind: Kind
    model: str | None
    provider: str | None
    base_url: str | None
    request: Request


class AnswerObservation(Protocol):
    """An observer's record of one answer."""

    def opened(self, attempt: ObservedAttempt) -> Mapping[str, str]:
        """Record that a request is about to be sent, and return HTTP headers to send with it, or {}."""
        ...

    def ended(self, report: Report) -> None:
        """Record the final report; called once, when all work for the answer has ended."""
        ...


class AnswerObserver(Protocol):
    """Follows all answers of a client."""

    def began(self, request: Request) -> AnswerObservation:
        """Return the observation of an answer that begins now; nothing has been sent yet."""
        ...

    def refused(self, request: Request, error: Exception) -> None:
        """Record a request that wasn't sent to any endpoint, because none can serve it."""
        ...


class ObservedAnswer:
    """The observations of one answer by all of a client's observers.

    If an observer raises an error, only its own record is lost: the error is logged, and the answer continues.

    Args:
        observations: one from each observer.
    """

    def __init__(self, observations: Sequence[AnswerObservation]) -> None:
        self._observations = observations

    def open(self, name: str, endpoint: object, request: Request) -> Request:
        """Tell the observers that a request is about to be sent, and return it with their headers.

        Args:
            name: the endpoint's name in the report.
            endpoint: the endpoint, or a verifier that has no endpoint.
            request: the request that is about to be sent.
        """
        if not self._observations:
            return request
        attempt = describe_attempt(name, endpoint, request)
        headers: dict[str, str] = {}
        for each in self._observations:
            with _failures_logged():
                headers |= each.opened(attempt)
        return replace(request, headers=_merged(request.headers, headers)) if headers else request

    def end(self, report: Callable[[], Report]) -> None:
        """Pass the final report to all observers; if there are none, it isn't made."""
        if self._observations:
            made = report()
            for each in self._observations:
                with _failures_logged():
                    each.ended(made)


class AnswerObservers:
    """The observers of a client, which clients from ``with_options`` share.

    Args:
        observers: the initial observers.
    """

    def __init__(self, observers: Sequence[AnswerObserver] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: AnswerObserver) -> None:
        """Add an observer, which sees the answers that begin from now on."""
        self._observers.append(observer)

    def remove(self, observer: AnswerObserver) -> None:
        """Remove an observer. It sees no new answers, but it still sees the end of answers in progress. Idempotent."""
        self._observers = [each for each in self._observers if each is not observer]

    def begin(self, request: Request) -> ObservedAnswer:
        """Return the observations of an answer that begins now."""
        observations: list[AnswerObservation] = []
        for each in self._observers:
            with _failures_logged():
                observations.append(each.began(request))
        return ObservedAnswer(observations)

    def refuse(self, request: Request, error: Exception) -> None:
        """Tell all observers about a request that wasn't sent to any endpoint."""
        for each in self._observers:
            with _failures_logged():
                each.refused(request, error)


def describe_attempt(name: str, endpoint: object, request: Request) -> ObservedAttempt:
    """Return a request as observers see it; facts that an endpoint doesn't provide under their usual names are None."""
    info = getattr(getattr(endpoint, "engine", None), "info", None)  # a model in this process
    kind: Kind = getattr(endpoint, "kind", "server")
    own = getattr(endpoint, "model", None) or getattr(info, "name", None)
    return ObservedAttempt(
        endpoint=name,
        kind=kind,
        model=own if kind == "device" else request.model or own,
        provider=getattr(endpoint, "provider", None if info is None else "llama.cpp"),
        base_url=getattr(endpoint, "base_url", None),
        request=request,
    )


def _merged(headers: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Merge two sets of headers; names that differ only in case are the same header, and the new value wins."""
    names = {name.lower() for name in more}
    return {name: value for name, value in headers.items() if name.lower() not in names} | dict(more)


@contextmanager
def _failures_logged() -> Iterator[None]:
    """Log an observer's exception and continue, because a defect in an observer must not cost a reader the answer."""
    try:
        yield
    except Exception:
        _logger.exception("an observer of answers has failed; the answer goes on")
