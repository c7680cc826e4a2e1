"""Builds a request from the arguments of OpenAI's SDK, and rejects a wrong argument, naming it, before a server sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec

from streamco.client.response_schema import schema_format
from streamco.config import NO_LIMIT, SamplingOptions, Timeouts
from streamco.endpoints.base import TASK_HEADER, Request
from streamco.endpoints.base import Message as PlainMessage
from streamco.endpoints.network.headers import check_headers, check_text
from streamco.engines.sampling import MAX_TOP_K, MIN_TOP_P
from streamco.errors import MAX_NAME, ConfigError, shorten

__all__ = [
    "UNSET",
    "ChatOptions",
    "Message",
    "Messages",
    "NotGiven",
    "ParseOptions",
    "RequestTimeout",
    "Unset",
    "build_request",
    "check_mapping",
    "check_names",
    "check_retries",
    "is_given",
    "parse_timeout",
]

T = TypeVar("T")


class NotGiven(Protocol):
    """The type of ``openai.omit`` and ``openai.NOT_GIVEN``, which stand for an argument that was not given."""

    def __bool__(self) -> Literal[False]:
        """Return False."""
        ...


class ResponseObject(Protocol):
    """A response object of this package or of OpenAI's SDK."""

    def model_dump(self, *args: Any, **kwargs: Any) -> Any:
        """Return the object as a dict."""
        ...


class PhaseTimeouts(Protocol):
    """Time limits by phase, in seconds, as in ``httpx.Timeout``; None means no limit."""

    @property
    def connect(self) -> float | None:
        """Limit for connecting."""
        ...

    @property
    def read(self) -> float | None:
        """Limit for waiting for bytes."""
        ...


Optional: TypeAlias = T | NotGiven | None
Message: TypeAlias = Mapping[str, Any] | ResponseObject
"""A message of a conversation: a dict in OpenAI's form, or a response object, such as the ``message`` of an answer's choice."""
Messages: TypeAlias = str | Iterable[Message]
RequestTimeout: TypeAlias = float | Timeouts | PhaseTimeouts | NotGiven | None


class ParseOptions(TypedDict, total=False):
    """The arguments of ``chat.completions.parse``, as in OpenAI's SDK 3.57, except ``messages``, ``model`` and ``response_format``.

    An argument that is None or one of OpenAI's markers counts as not given, except that ``timeout=None`` means no limit. In OpenAI's SDK,
    ``max_retries``, ``top_k`` and ``min_p`` aren't arguments of ``create``.

    Args:
        timeout: seconds to wait for the connection, for the first token and for each further token; ``Timeouts`` or ``httpx.Timeout`` for
            limits by phase; None for no limit. ``Timeouts(total=...)`` limits the whole answer, across all endpoints.
        max_retries: retries at each server before the first token.
        top_k: number of likeliest tokens to sample from; a field that local servers know.
        min_p: minimum probability of a token, relative to the likeliest token's probability; a field that local servers know.
    """

    audio: Optional[Mapping[str, Any]]
    frequency_penalty: Optional[float]
    function_call: Optional[str | Mapping[str, Any]]
    functions: Optional[Iterable[Mapping[str, Any]]]
    logit_bias: Optional[Mapping[str, float]]
    logprobs: Optional[bool]
    max_completion_tokens: Optional[int]
    max_tokens: Optional[int]
    metadata: Optional[Mapping[str, str]]
    modalities: Optional[Sequence[str]]
    moderation: Optional[Mapping[str, Any]]
    n: Optional[int]
    parallel_tool_calls: Optional[bool]
    prediction: Optional[Mapping[str, Any]]
    presence_penalty: Optional[float]
    prompt_cache_key: Optional[str]
    prompt_cache_options: Optional[Mapping[str, Any]]
    prompt_cache_retention: Optional[str]
    reasoning_effort: Optional[str]
    safety_identifier: Optional[str]
    seed: Optional[int]
    service_tier: Optional[str]
    stop: Optional[str | Sequence[str]]
    store: Optional[bool]
    stream_options: Optional[Mapping[str, Any]]
    temperature: Optional[float]
    tool_choice: Optional[str | Mapping[str, Any]]
    tools: Optional[Iterable[Mapping[str, Any]]]
    top_logprobs: Optional[int]
    top_p: Optional[float]
    user: Optional[str]
    verbosity: Optional[str]
    web_search_options: Optional[Mapping[str, Any]]
    extra_headers: Optional[Mapping[str, str]]
    extra_query: Optional[Mapping[str, Any]]
    extra_body: Optional[Mapping[str, Any]]
    timeout: RequestTimeout
    max_retries: Optional[int]
    top_k: Optional[int]
    min_p: Optional[float]


class ChatOptions(ParseOptions, total=False):
    """The arguments of ``chat.completions.create``, as in OpenAI's SDK 3.57, except ``messages``, ``model`` and ``stream``.

    Args:
        response_format: a mapping, or a pydantic class, whose JSON schema is then sent.
    """

    response_format: Optional[Mapping[str, Any] | type]


_NAMES = frozenset(ChatOptions.__annotations__)
_LIMITS = ("max_tokens", "max_completion_tokens")
_PENALTIES = ("frequency_penalty", "presence_penalty")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias", *_LIMITS, *_PENALTIES)
_USUAL_SAMPLING = SamplingOptions()
_CLIENTS = frozenset({*_SAMPLING, "extra_headers", "extra_query", "extra_body", "timeout", "max_retries"})  # not fields of the body
_LISTS = ("tools", "functions")
_MAX_ID_DIGITS = 18  # in a token's id; Python refuses to parse very long numbers


def build_request(messages: Messages, *, model: str | NotGiven | None = None, **options: Unpack[ChatOptions]) -> Request:
    """Build a request from OpenAI's arguments; a plain string becomes a user message.

    Sampling options in ``extra_body`` are treated as if they were arguments, so that they apply to every endpoint.

    Raises:
        ConfigError: an argument has the wrong type or is out of range.
        TypeError: there is no argument of this name.
    """
    check_names(options)
    given: dict[str, Any] = {name: value for name, value in options.items() if is_given(value)}
    if isinstance(kind := given.get("response_format"), type):
        given["response_format"] = schema_format(kind)
    body = dict(check_mapping("extra_body", given.get("extra_body")))
    for name in _SAMPLING if body else ():
        if body.get(name) is not None:
            given[name] = body.pop(name)
    if stream_options := _sent_stream_options(given.pop("stream_options", None)):
        given["stream_options"] = stream_options
    given.update({name: _as_list(name, given[name]) for name in _LISTS if name in given})
    fields = {name: _as_plain(name, value) for name, value in given.items() if name not in _CLIENTS}
    fields.update(_as_plain("extra_body", body))
    for name, value in fields.items():
        _check_sendable(name, value)
    _check_integer("n", fields.get("n"), 1)
    if fields.get("logprobs"):
        _check_integer("top_logprobs", fields.get("top_logprobs"), 0)
    timeout = options.get("timeout", UNSET)
    task, headers = _take_task(check_mapping("extra_headers", given.get("extra_headers")))
    check_headers("extra_headers", headers)
    return Request(
        messages=_check_messages([{"role": "user", "content": messages}] if isinstance(messages, str) else messages),
        model=_check_model(model),
        sampling=_sampling(given),
        extra=fields,
        headers=headers,
        query=_check_query(given.get("extra_query")),
        timeouts=None if isinstance(timeout, Unset) else parse_timeout(timeout),
        max_retries=check_retries(given.get("max_retries")),
        task=task,
    )


def _sent_stream_options(value: object) -> Mapping[str, Any]:
    """Return the stream options to send, without ``include_usage``, because usage is always requested."""
    return {name: option for name, option in check_mapping("stream_options", value).items() if name != "include_usage"}


def _take_task(headers: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Return the task that the headers name, and the headers without it, because servers don't need it."""
    named = {name: value for name, value in headers.items() if isinstance(name, str) and name.lower() == TASK_HEADER}
    if not named:
        return None, headers
    task = next(iter(named.values()))
    if not isinstance(task, str):
        raise ConfigError(f"extra_headers: {TASK_HEADER}: expected text, got {type(task).__name__}")
    return task or None, {name: value for name, value in headers.items() if name not in named}


def check_names(options: Mapping[str, Any], where: str = "create()") -> None:
    """Check that the options are arguments of ``chat.completions.create``.

    Raises:
        TypeError: one of them isn't.
    """
    for name in options.keys() - _NAMES:
        near = get_close_matches(name, _NAMES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "; fields that only a server knows go into extra_body"
        raise TypeError(f"{where} got an unexpected keyword argument {name!r}{hint}")


def is_given(value: object) -> bool:
    """Return True unless the value is None or a marker for a missing argument: ``openai.omit``, ``openai.NOT_GIVEN``, ``UNSET``."""
    return value is not None and not _is_mark(value)


def _is_mark(value: object) -> bool:
    # by name, because SDKs made with OpenAI's generator each define these markers, and none of them needs to be installed
    return isinstance(value, Unset) or (type(value).__name__ in {"Omit", "NotGiven"} and not value)


def parse_timeout(value: object) -> Timeouts | None:
    """Return the limits that a ``timeout`` argument sets, or None if the argument wasn't given.

    A number limits each phase: connecting, waiting for the first token, for the next one, and for any bytes.

    Raises:
        ConfigError: the value isn't a number above 0, None, ``Timeouts`` or an object like ``httpx.Timeout``.
    """
    if isinstance(value, Timeouts) or _is_mark(value):
        return value if isinstance(value, Timeouts) else None
    connect: Any = getattr(value, "connect", None) if hasattr(value, "read") else value
    read: Any = getattr(value, "read", value)
    for limit in (connect, read):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0):
            raise ConfigError(f"timeout: expected seconds above 0, None, Timeouts or httpx.Timeout, got {value!r}")
    return Timeouts(connect=connect, first_token=read, next_token=read, socket=read)


def check_retries(value: object) -> int | None:
    """Check a number of retries and return it, or None if it wasn't given.

    Raises:
        ConfigError: it isn't an integer, or it is below 0.
    """
    return _check_integer("max_retries", value if is_given(value) else None, 0)


def _sampling(given: Mapping[str, Any]) -> SamplingOptions:
    if given.keys().isdisjoint(_SAMPLING):
        return _USUAL_SAMPLING
    limit = given.get("max_completion_tokens", given.get("max_tokens"))
    is_unlimited = isinstance(limit, int) and limit == NO_LIMIT
    return SamplingOptions(
        temperature=_check_number("temperature", given.get("temperature"), "0 to 2", lambda value: 0 <= value <= 2),
        top_p=_check_number("top_p", given.get("top_p"), "more than 0, at most 1", lambda value: MIN_TOP_P <= value <= 1),
        top_k=_check_integer("top_k", given.get("top_k"), -1, MAX_TOP_K),
        min_p=_check_number("min_p", given.get("min_p"), "0 to 1", lambda value: 0 <= value <= 1),
        seed=_check_integer("seed", given.get("seed")),
        max_tokens=None if is_unlimited else _check_integer("max_tokens", limit, 1),
        is_unlimited=is_unlimited,
        stop=_check_stop(given.get("stop")),
        frequency_penalty=_check_number("frequency_penalty", given.get("frequency_penalty"), "-2 to 2", _is_penalty),
        presence_penalty=_check_number("presence_penalty", given.get("presence_penalty"), "-2 to 2", _is_penalty),
        logit_bias=_check_bias(given.get("logit_bias")),
    )


def _is_penalty(value: float) -> bool:
    return -2 <= value <= 2


def _check_bias(value: object) -> tuple[tuple[int, float], ...]:
    biases = []
    for token, bias in check_mapping("logit_bias", value).items():
        if not str(token).isdecimal() or len(str(token)) > _MAX_ID_DIGITS:
            raise ConfigError(f"logit_bias: expected token ids as keys, got {token!r}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ConfigError(f"logit_bias: expected -100 to 100 for token {token}, got {bias!r}")
        biases.append((int(token), bias))
    return tuple(biases)


def _check_messages(messages: Iterable[Any]) -> list[PlainMessage]:
    is_one = isinstance(messages, Mapping) or hasattr(messages, "model_dump")
    if is_one or not isinstance(messages, Iterable):
        raise ConfigError(f"messages: expected a string or a list of messages, got {type(messages).__name__}")
    conversation = [_as_plain(f"messages[{index}]", message) for index, message in enumerate(messages)]
    if not conversation:
        raise ConfigError("messages: expected at least one message, got none")
    for index, message in enumerate(conversation):
        if not isinstance(message, Mapping):
            raise ConfigError(f'messages[{index}]: expected a mapping with "role" and "content", got {type(message).__name__}')
        if not isinstance(message.get("role"), str):
            raise ConfigError(f'messages[{index}]: expected a "role" that is a string, got {message.get("role")!r}')
        _check_sendable(f"messages[{index}]", message)
    return conversation


def _as_list(name: str, value: object) -> list[Any]:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f"{name}: expected a list, got {type(value).__name__}")
    return list(value)


def _as_plain(name: str, value: Any) -> Any:
    """Return an argument with its response objects converted to dicts.

    Raises:
        ConfigError: it is nested too deeply.
    """
    try:
        return _plain(value)
    except RecursionError as error:
        raise ConfigError(f"{name}: expected fewer levels of nesting, got more") from error


def _plain(value: Any) -> Any:
    """Convert mappings and response objects, of this package or of OpenAI's SDK, to dicts; a dict that contains none is returned as is."""
    if isinstance(value, str):  # also a subclass of str, such as markupsafe's
        return value if type(value) is str else str.__str__(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        changed = {name: plain for name, item in value.items() if (plain := _plain(item)) is not item}
        return {**value, **changed} if changed or type(value) is not dict else value
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json", exclude_unset=True)
    return value


def _check_sendable(name: str, value: Any) -> None:
    """Check that a value could be sent to a server. This is done even if the device answers, or nobody would notice the mistake.

    Args:
        name: where the value was given.
        value: plain data; objects only if they can be encoded as JSON, such as dates.

    Raises:
        ConfigError: it contains half a character (a lone surrogate), or something that JSON can't represent; the message says where.
    """
    if type(value) is dict and all(type(each) is str and each.isascii() for each in (*value, *value.values())):
        return  # most messages
    match value:
        case str() if type(value) is str:
            check_text(name, value)
        case None | bool() | float():
            pass
        case Mapping():
            for key, item in value.items():
                where = f"{name}.{key}" if isinstance(key, str) and key.isidentifier() else f"{name}[{shorten(repr(key), MAX_NAME)}]"
                if type(key) is str:
                    check_text(name, key)
                else:
                    _check_form(where, {key: None})
                _check_sendable(where, item)
        case list() | tuple():
            for index, item in enumerate(value):
                _check_sendable(f"{name}[{index}]", item)
        case _:
            _check_form(name, value)


def _check_form(name: str, value: object) -> None:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{name}: expected a value that JSON has a form for, got {type(value).__name__} ({error})") from error


def _check_model(model: object) -> str | None:
    if not is_given(model) or model == "":
        return None
    if not isinstance(model, str):
        raise ConfigError(f"model: expected the name of a model, got {type(model).__name__}")
    check_text("model", model)
    return model


def _check_number(name: str, value: object, expected: str, is_right: Callable[[float], bool]) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_right(value):
        raise ConfigError(f"{name}: expected {expected}, got {value!r}")
    return value


def _check_integer(name: str, value: object, minimum: int | None = None, maximum: int | None = None) -> int | None:
    if value is None:
        return None
    if maximum is not None and isinstance(value, int) and value > maximum:
        raise ConfigError(f"{name}: expected an integer <= {maximum}, got a larger one")
    if isinstance(value, bool) or not isinstance(value, int) or (minimum is not None and value < minimum):
        raise ConfigError(f"{name}: expected an integer{'' if minimum is None else f' >= {minimum}'}, got {value!r}")
    return value


def _check_stop(stop: object) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else stop or ()
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"stop: expected a string or a list of strings that are not empty, got {stop!r}")
    for text in texts:
        check_text("stop", text)
    return tuple(texts)


def _check_query(value: object) -> Mapping[str, str]:
    """Return the query with its values as strings. A list, which gives several values in OpenAI's SDK, is rejected here."""
    query = check_mapping("extra_query", value)
    for name, each in query.items():
        if not isinstance(each, str | int | float):
            raise ConfigError(f"extra_query: {name}: expected a string, a number, True or False, got {type(each).__name__}")
        check_text("extra_query", f"{name}={each}")
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in query.items()}


def check_mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return the value, which must be a mapping; None counts as an empty mapping.

    Raises:
        ConfigError: the value isn't a mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: expected a mapping, got {type(value).__name__}")
    return value


class Unset:
    """The type of ``UNSET``, which stands for an argument that wasn't given if None would mean something else."""


UNSET = Unset()
