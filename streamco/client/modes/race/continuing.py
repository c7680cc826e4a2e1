"""Makes the request to an endpoint that continues an answer."""

from __future__ import annotations

from msgspec.structs import replace

from streamco.endpoints.base import Endpoint, Request, TextCounter
from streamco.errors import EngineError
from streamco.events import Partial, TextCount

__all__ = ["continued", "count_text"]


def count_text(endpoint: Endpoint, text: str) -> TextCount | None:
    """Return how many tokens a text has in an endpoint's vocabulary, or None if the endpoint can't say."""
    try:
        return endpoint.count_text(text) if isinstance(endpoint, TextCounter) else None
    except EngineError:
        return None  # the model has failed or was closed; an answer that uses it will get the error


def continued(request: Request, partial: Partial, written: int | None) -> Request:
    """Return the request to an endpoint that continues an answer; if nothing of the answer has arrived, it starts from the beginning.

    Args:
        request: the request to the endpoint that began.
        partial: the answer so far.
        written: how many of its tokens count against ``max_tokens``; None keeps the limit, because an estimate could cut the answer short.
    """
    if not partial.text and not partial.ids:
        return request
    limit = request.sampling.max_tokens
    if limit is None or written is None:
        return replace(request, partial=partial)
    return replace(request, partial=partial, sampling=replace(request.sampling, max_tokens=limit - written))
