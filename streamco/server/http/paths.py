"""The APIs' paths, and the error if a base URL is off by ``/v1``: OpenAI's clients expect it there, but Anthropic's add it themselves."""

from __future__ import annotations

from aiohttp import web

from streamco.errors import MAX_NAME, shorten

__all__ = ["COUNT_PATH", "MESSAGES_PATH", "RESPONSES_PATH", "VERSION_HEADER", "explain_path", "is_messages_path", "is_messages_request"]

RESPONSES_PATH = "/v1/responses"
MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"

VERSION_HEADER = "anthropic-version"
"""The header that Anthropic's clients send with every request."""


def is_messages_request(request: web.Request) -> bool:
    """Return True if a request is for Anthropic's API, by its path or its header.

    That API has different errors, a different header for the key, and a different list of models.
    """
    return VERSION_HEADER in request.headers or is_messages_path(request.path)


def is_messages_path(path: str) -> bool:
    """Return True if a path belongs to Anthropic's Messages API, or was meant to."""
    meant = _meant(path)
    return meant == MESSAGES_PATH or meant.startswith(f"{MESSAGES_PATH}/")


def explain_path(request: web.Request) -> str:
    """Explain why there is no such path: the base URL is off by ``/v1``, or the API doesn't have the path."""
    path, meant = shorten(request.path, MAX_NAME), _meant(request.path)
    if meant == request.path or not any(_fits(meant, each.canonical) for each in request.app.router.resources()):
        return f"path: expected a path of the API, got {path}"
    root = f"{request.scheme}://{shorten(request.headers.get('Host', 'HOST:PORT'), MAX_NAME)}"
    return f"path: expected {meant}, got {path}: the base URL is {root}/v1 for OpenAI's clients, {root} for Anthropic's"


def _meant(path: str) -> str:
    """Return the path that the client meant, whatever its base URL put before it, with ``/v1`` once and without empty parts."""
    parts = [part for part in path.split("/") if part]
    while parts and parts[0] == "v1":
        del parts[0]
    return f"/v1/{'/'.join(parts)}"


def _fits(path: str, canonical: str) -> bool:
    """Return True if a path matches a route, whose last part may be a name in braces."""
    start, brace, _ = canonical.partition("{")
    return (path.startswith(start) and path != start) if brace else path == canonical
