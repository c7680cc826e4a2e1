"""Builds a request from the arguments of OpenAI's SDK; a wrong argument raises here, by its own name, and not at a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from streamco.config import SamplingOptions
from streamco.endpoints.base import Message, Request
from streamco.errors import ConfigError

__all__ = ["UNSET", "Unset", "build_request", "check_mapping"]

# Arguments of OpenAI's SDK that are options of an endpoint here; in the request's body, servers would refuse them.
_ELSEWHERE = {
    "timeout": "it in OpenAIEndpoint(timeouts=...)",
    "extra_query": "it in OpenAIEndpoint(base_url=...)",
}


def build_request(
    messages: Sequence[Message] | str,
    *,
    model: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    max_tokens: int | None = None,
    max_completion_tokens: int | None = None,
    stop: str | Sequence[str] | None = None,
    extra_body: Mapping[str, Any] | None = None,
    extra_headers: Mapping[str, str] | None = None,
    **extra: Any,
) -> Request:
    """Return a request with OpenAI's arguments; a plain text becomes a user message.

    Args:
        extra: other fields of OpenAI's request body (``tools``, ``response_format``, ``n`` ...); None means not given.

    Raises:
        ConfigError: an argument has a wrong type or range.
    """
    conversation = _check_messages([{"role": "user", "content": messages}] if isinstance(messages, str) else messages)
    limit = max_completion_tokens if max_completion_tokens is not None else max_tokens
    sampling = SamplingOptions(
        temperature=_check_number("temperature", temperature, "0 to 2", lambda value: 0 <= value <= 2),
        top_p=_check_number("top_p", top_p, "more than 0, at most 1", lambda value: 0 < value <= 1),
        top_k=_check_integer("top_k", top_k, -1),
        min_p=_check_number("min_p", min_p, "0 to 1", lambda value: 0 <= value <= 1),
        seed=_check_integer("seed", seed),
        max_tokens=_check_integer("max_tokens", limit, 1),
        stop=_check_stop(stop),
    )
    for name in sorted(extra.keys() & _ELSEWHERE.keys()):
        raise ConfigError(f"{name}: expected {_ELSEWHERE[name]}, got it as an argument of one request")
    fields = {name: value for name, value in extra.items() if value is not None}
    fields.update(check_mapping("extra_body", extra_body))
    _check_integer("n", fields.get("n"), 1)
    return Request(
        messages=conversation, model=model, sampling=sampling, extra=fields, headers=check_mapping("extra_headers", extra_headers)
    )


def _check_messages(messages: Sequence[Message]) -> list[Message]:
    if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
        raise ConfigError(f"messages: expected a text or a list of messages, got {type(messages).__name__}")
    conversation = list(messages)
    if not conversation:
        raise ConfigError("messages: expected at least one message, got none")
    for index, message in enumerate(conversation):
        conversation[index] = message = _as_plain(message)  # noqa: PLW2901
        if not isinstance(message, Mapping):
            raise ConfigError(f'messages[{index}]: expected a mapping with "role" and "content", got {type(message).__name__}')
        if not isinstance(message.get("role"), str):
            raise ConfigError(f'messages[{index}]: expected a "role" that is a text, got {message.get("role")!r}')
    return conversation


def _as_plain(value: Any) -> Any:
    """Return the value with response objects, of this package or of OpenAI's SDK, as dicts. What holds none is returned as it is."""
    if isinstance(value, Mapping):
        changed = {name: plain for name, item in value.items() if (plain := _as_plain(item)) is not item}
        return {**value, **changed} if changed else value
    if isinstance(value, list | tuple):
        items = [_as_plain(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json", exclude_unset=True)
    return value


def _check_number(name: str, value: object, expected: str, is_right: Callable[[float], bool]) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_right(value):
        raise ConfigError(f"{name}: expected {expected}, got {value!r}")
    return value


def _check_integer(name: str, value: object, minimum: int | None = None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
        raise ConfigError(f"{name}: expected an integer{'' if minimum is None else f' >= {minimum}'}, got {value!r}")
    return value


def _check_stop(stop: object) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else stop or ()
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"stop: expected a text or a list of texts that are not empty, got {stop!r}")
    return tuple(texts)


def check_mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return the value, which must be a mapping; None counts as an empty one.

    Raises:
        ConfigError: the value is not a mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: expected a mapping, got {type(value).__name__}")
    return value


class Unset:
    """The type of ``UNSET``, which marks an argument that was not given if None has a meaning of its own."""


UNSET = Unset()
