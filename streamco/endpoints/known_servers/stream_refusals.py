"""Learns from refusals which models a server doesn't stream, so that whole answers are requested from them.

OpenAI streams some models only to organisations that it has verified, and other servers don't stream with certain fields, such as
``response_format``. Such a refusal names the field ``stream``, or says in words that streaming isn't available.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from streamco.errors import EndpointStatusError
from streamco.wire.openai.errors import find_error, find_message

__all__ = ["StreamRefusals"]

_GAP = r"\W+(?:\w+\W+){0,5}?"
_STREAM = r"\bstream(?:s|ed|ing)?\b"
_WORDS = ("not", "cannot", "unable", "unsupported", "disallowed", "forbidden", "unavailable", "disabled", "must be false")
_NO = rf"(?:\b\w*n['\u2019]t\b|\b(?:{'|'.join(_WORDS)})\b)"
_REFUSAL = re.compile(rf"{_NO}{_GAP}{_STREAM}|{_STREAM}{_GAP}{_NO}|\bmust be verified to {_STREAM}", re.IGNORECASE)
_LOCATION = re.compile(r'"loc":\s*\["body",\s*"stream"\]')  # in FastAPI's errors, whose messages don't name the field
_ALWAYS_SENT = frozenset({"model", "messages", "input", "prompt", "system", "stream", "stream_options", "max_tokens"})


class StreamRefusals:
    """Records what a server doesn't stream: certain models, or models together with certain request fields."""

    def __init__(self) -> None:
        self._refused: set[tuple[object, str]] = set()  # model and field; the field is "" if the fields don't matter

    def record(self, error: EndpointStatusError, body: Mapping[str, Any]) -> str:
        """Record a refusal; return what isn't streamed, in words, or "" if the refusal is about something else.

        Args:
            error: the refusal.
            body: the request's fields.
        """
        if error.status not in {400, 422} or not body.get("stream") or not _is_about_stream(error.body):
            return ""
        refused = body.get("model"), _find_field(error.body, body)
        self._refused.add(refused)
        return _describe(refused)

    def forget(self, body: Mapping[str, Any]) -> None:
        """Forget why a request can't be streamed, because the server refused it without ``stream`` as well."""
        self._refused -= {each for each in self._refused if _holds(each, body)}

    def find(self, body: Mapping[str, Any]) -> str:
        """Return what prevents streaming a request, in words, or "" if nothing does."""
        return next((_describe(each) for each in self._refused if _holds(each, body)), "")


def _describe(refused: tuple[object, str]) -> str:
    field = refused[1]
    return f"{field} with this model" if field else "this model"


def _holds(refused: tuple[object, str], body: Mapping[str, Any]) -> bool:
    model, field = refused
    return model == body.get("model") and (not field or field in body)


def _is_about_stream(text: str) -> bool:
    value = _decode(text)
    error = find_error(value)
    param = error.get("param") if isinstance(error, dict) else None
    if param == "stream" or _LOCATION.search(text):
        return True
    if isinstance(param, str) and not param.isidentifier():
        return False  # a location inside a field, such as tools[0].function.name
    return param not in {"messages", "input", "prompt"} and _REFUSAL.search(find_message(value) or text) is not None


def _find_field(text: str, body: Mapping[str, Any]) -> str:
    """Return the field that prevents streaming, if the refusal names one that the request has; otherwise ""."""
    message = find_message(_decode(text)) or text
    return next((name for name in body if name not in _ALWAYS_SENT and re.search(rf"\b{re.escape(name)}\b", message)), "")


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
