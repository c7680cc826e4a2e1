"""Errors in the form of Anthropic's APIs: ``{"type": "error", "error": {"type", "message"}}``."""

from __future__ import annotations

from typing import Any

from streamco.errors import CONTEXT_EXCEEDED

__all__ = ["message_error"]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


_TOO_LONG = "prompt is too long"  # the API's wording, which tells agents to shorten their chats


def message_error(status: int, message: str, *, code: str | None = None) -> dict[str, Any]:
    """Return the error object for an HTTP status. A stream's ``error`` event has the same content.

    Args:
        status: the HTTP status.
        message: what was expected, what came instead, and where.
        code: OpenAI's machine-readable error code, or None. This API has no field for it.
    """
    if code == CONTEXT_EXCEEDED and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
