"""Reads errors in OpenAI-compatible answers: status, message, and how long to wait.

Servers agree on little. OpenAI, DeepSeek, Azure and most others send ``{"error": {"message", "type", "code"}}``. Others send:

- Anthropic: ``{"type": "error", "error": {...}}``
- Google: ``{"error": {"code", "message", "status", "details"}}``, in a list when streamed
- Mistral and FastAPI servers: ``{"detail": ...}``
- x.ai: ``{"code": "...", "error": "..."}``
- Bedrock and Cohere: ``{"message": ...}``
- DashScope: ``{"code", "message"}``
- FastChat and old vLLM: ``{"object": "error", "message", "code"}``

The last four come in streams, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from streamco.errors import CONTEXT_EXCEEDED, EndpointStatusError
from streamco.wire.openai.lenient_decode import decode_object

__all__ = ["find_code", "find_error", "find_message", "find_status", "is_bare_error", "parse_retry_after", "status_error", "stream_error"]

_BODY_BYTES = 64 << 10

_TOO_LONG_STATUSES = frozenset({400, 413, 422})
# "This model's maximum context length is 4096 tokens" (OpenAI, vLLM, DeepSeek, Mistral), "maximum prompt length" (xAI), "exceeds the
# available context size" (llama.cpp), "prompt is too long" (Anthropic), "The input token count (9) exceeds" (Google), "The input (9 tokens)
# is longer than the model's context length", "Input length (9 tokens) exceeds" (SGLang)
_TOO_LONG = re.compile(
    r"maximum (context|prompt) length|(exceeds?|longer than)\b.{0,40}\bcontext (size|length|window)|prompt is too long"
    r"|input (token count|length)\b.{0,40}\bexceeds",
    re.IGNORECASE,
)

# Error names without a number. They come from OpenAI, DeepSeek, Anthropic, Google, OpenRouter and DashScope, in ``code``,
# ``status`` or ``type``.
_STATUS_BY_NAME = {
    "invalid_request_error": 400,
    "invalid_argument": 400,
    "invalidparameter": 400,
    "datainspectionfailed": 400,
    "failed_precondition": 400,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "content_filter": 400,
    "tool_use_failed": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "invalidapikey": 401,
    "unauthenticated": 401,
    "unauthorized": 401,
    "billing_error": 402,
    "insufficient_balance": 402,
    "permission_error": 403,
    "permission_denied": 403,
    "forbidden": 403,
    "not_found": 404,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_timeout": 408,
    "request_too_large": 413,
    "rate_limit": 429,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "too_many_requests": 429,
    "throttling": 429,
    "requests": 429,
    "tokens": 429,
    "insufficient_quota": 429,
    "resource_exhausted": 429,
    "server_error": 500,
    "api_error": 500,
    "internal": 500,
    "internal_error": 500,
    "internal_server_error": 500,
    "bad_gateway": 502,
    "upstream_error": 502,
    "unavailable": 503,
    "unavailable_error": 503,
    "service_unavailable": 503,
    "service_unavailable_error": 503,
    "overloaded": 529,
    "overloaded_error": 529,
    "timeout": 504,
    "timeout_error": 504,
    "deadline_exceeded": 504,
}


def status_error(
    status: int, headers: Mapping[str, str], body: bytes, *, now: float | None = None, endpoint: str = ""
) -> EndpointStatusError:
    """Build the error for a response with an HTTP status other than 2xx.

    Args:
        status: the HTTP status.
        headers: the response's headers, with names in any case.
        body: the response's body, of which the first 64 KiB are kept.
        now: wall-clock seconds since the epoch, used if Retry-After is a date and the response has no Date header.
        endpoint: name of the endpoint that answered.
    """
    body = body[:_BODY_BYTES]
    value = _decode(body)
    text = body.decode("utf-8", "replace")
    message = find_message(value) or _shorten(text) or "an empty body"
    return EndpointStatusError(
        f"expected status 200, got {status}: {message}",
        status=status,
        body=text,
        retry_after=parse_retry_after(headers, now=now, body=value),
        code=find_code(value, status=status),
        endpoint=endpoint,
    )


def stream_error(value: Any) -> EndpointStatusError:
    """Build the error for an error object inside a stream that began with status 200.

    Args:
        value: the decoded event, which is an object with an ``error`` or is itself the error.
    """
    status = find_status(value)
    message = find_message(value) or "no message"
    body = msgspec.json.encode(value)[:_BODY_BYTES].decode("utf-8", "replace")
    return EndpointStatusError(
        f"expected a chunk, got an error in the stream (as status {status}): {message}",
        status=status,
        body=body,
        retry_after=parse_retry_after({}, body=value),
        code=find_code(value, status=status),
    )


def find_error(value: Any) -> Any:
    """Find the error in a decoded event or body: at the top level, in a choice (OpenRouter) or in x_groq. Returns None if there is none."""
    if isinstance(value, list):
        return next((found for item in value if (found := find_error(item)) is not None), None)
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    holders = [value, *(choices if isinstance(choices, list) else ()), value.get("x_groq")]
    return next((holder["error"] for holder in holders if isinstance(holder, dict) and holder.get("error")), None)


def is_bare_error(value: Any, *, is_all: bool) -> bool:
    """Return True if an object without choices is itself an error, although it has no field ``error``.

    Args:
        value: a decoded event or body.
        is_all: True if nothing else came. Then a message without a status is enough. Otherwise it may be just a notice from the server.
    """
    if not isinstance(value, dict) or "choices" in value:
        return False
    if "error" in (value.get("object"), value.get("type")) or (value.get("detail") and "type" not in value):  # the latter: FastAPI
        return True
    return bool(find_message(value)) and (is_all or _find_status(value) is not None)


def find_message(value: Any) -> str:
    """Find the human-readable text in an error body of any known shape. Returns "" if there is none."""
    if isinstance(value, str):
        return _shorten(value)
    if isinstance(value, list):
        return find_message(value[0]) if value else ""
    if not isinstance(value, dict):
        return ""
    for key in ("error", "message", "detail", "msg"):
        found = find_message(value.get(key))
        if found:
            return found
    return ""


def find_code(value: Any, *, status: int) -> str | None:
    """Return an error object's ``code`` if it is text, otherwise None.

    If the prompt is too long, the code is always "context_length_exceeded", even if the server says so only in its message or ``type``.
    Anthropic, Google, llama.cpp's server, Mistral, SGLang, vLLM and xAI have no code for it.
    """
    error = find_error(value)
    holder = error if isinstance(error, dict) else value
    code = holder.get("code") if isinstance(holder, dict) else None
    if status in _TOO_LONG_STATUSES and code != CONTEXT_EXCEEDED:
        kind = holder.get("type") if isinstance(holder, dict) else None
        if kind == "exceed_context_size_error" or _TOO_LONG.search(find_message(value)):
            return CONTEXT_EXCEEDED
    return code if isinstance(code, str) else None


def find_status(value: Any) -> int:
    """Return the HTTP status of an error object: its number, or the status that its ``code``, ``status`` or ``type`` names, or 500."""
    found = _find_status(value)
    return found if found is not None else 500


def _find_status(value: Any) -> int | None:
    if isinstance(value, list):
        return next((found for item in value if (found := _find_status(item)) is not None), None)
    if not isinstance(value, dict):
        return None
    inner = _find_status(value.get("error"))
    if inner is not None:
        return inner
    named = [value.get(key) for key in ("code", "status_code", "status", "http_code", "type")]
    statuses = [_read_number(name) for name in named] + [_STATUS_BY_NAME.get(_fold(name)) for name in named]
    return next((status for status in statuses if status is not None), None)


def _fold(name: Any) -> str:
    """Return an error's name as the table spells it, without details after a dot (DashScope's ``Throttling.RateQuota``)."""
    return name.partition(".")[0].lower().replace("-", "_") if isinstance(name, str) else ""


def _read_number(value: Any) -> int | None:
    """Return an HTTP error status that is written as 429, 429.0 or "429", or None for any other value."""
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 400 <= value <= 599 else None


def parse_retry_after(headers: Mapping[str, str], *, now: float | None = None, body: Any = None) -> float | None:
    """Return how many seconds the server asks the client to wait, or None if it doesn't say.

    It reads ``retry-after-ms`` (OpenAI, Azure), ``Retry-After`` in seconds or as an HTTP date (RFC 9110 10.2.3), and Google's
    ``RetryInfo.retryDelay`` in the body. A date is compared with the response's own Date header, or else with ``now``.
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    milliseconds = _read_seconds(lowered.get("retry-after-ms", ""))
    text = lowered.get("retry-after", "")
    seconds = _read_seconds(text)
    if milliseconds is not None and (milliseconds or not seconds):  # 0 next to a time in seconds is a rounded one
        return milliseconds / 1000
    if seconds is not None:
        return seconds
    due = _read_date(text)
    sent = _read_date(lowered.get("date", ""))
    since = sent if sent is not None else now
    if due is not None and since is not None:
        return max(0.0, due - since)
    return _find_retry_delay(body)


def _read_seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _read_date(text: str) -> float | None:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None


def _find_retry_delay(value: Any) -> float | None:
    match value:
        case {"retryDelay": str(text)}:
            return _read_seconds(text.removesuffix("s"))
        case {"error": inner} | {"details": inner}:
            return _find_retry_delay(inner)
        case list():
            return next((found for item in value if (found := _find_retry_delay(item)) is not None), None)
    return None


def _decode(body: bytes) -> Any:
    try:
        return decode_object(body)
    except ValueError:
        return None


def _shorten(text: str, size: int = 500) -> str:
    text = " ".join(text.split())
    return text if len(text) <= size else text[:size] + " ..."
