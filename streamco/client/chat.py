"""``client.chat.completions.create(...)`` as OpenAI's SDK has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from streamco.chunks import ChatCompletion
from streamco.client.stream import ChatStream
from streamco.config import Pace, SamplingOptions
from streamco.core.report import Report
from streamco.endpoints.base import Message, Request
from streamco.errors import ConfigError
from streamco.wire.completion import CompletionAssembler

if TYPE_CHECKING:
    from streamco.client.client import Client

__all__ = ["Answer", "Chat", "Completions", "Unset", "build_request"]


class Unset:
    """Marks an argument that was not given, where None has a meaning of its own."""


UNSET = Unset()


class Answer(ChatCompletion):
    """A whole answer, OpenAI's ``chat.completion``, with streamco's report beside it."""

    report: Report | None = None


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
    """One request from OpenAI's arguments; a plain text becomes a user message.

    Args:
        extra: other fields of OpenAI's request body (``tools``, ``response_format``, ``n`` ...); None means not given.

    Raises:
        ConfigError: an argument has a wrong type or range.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    _check_messages(messages)
    limit = max_completion_tokens if max_completion_tokens is not None else max_tokens
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ConfigError(f"max_tokens: expected an integer >= 1, got {limit!r}")
    if temperature is not None and not 0 <= temperature <= 2:
        raise ConfigError(f"temperature: expected 0 to 2, got {temperature!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ConfigError(f"top_p: expected more than 0, at most 1, got {top_p!r}")
    sampling = SamplingOptions(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        max_tokens=limit,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
    )
    fields = {name: value for name, value in extra.items() if value is not None}
    return Request(
        messages=list(messages), model=model, sampling=sampling, extra={**fields, **(extra_body or {})}, headers=extra_headers or {}
    )


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise ConfigError("messages: expected at least one message, got none")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ConfigError(f'messages[{index}]: expected a mapping with "role" and "content", got {type(message).__name__}')


class Completions:
    """The one method of ``client.chat.completions``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @overload
    async def create(
        self, *, messages: Sequence[Message], stream: Literal[True], model: str | None = None, pace: Pace | Unset = UNSET, **options: Any
    ) -> ChatStream: ...

    @overload
    async def create(
        self, *, messages: Sequence[Message], stream: Literal[False] = False, model: str | None = None, **options: Any
    ) -> Answer: ...

    async def create(
        self, *, messages: Sequence[Message], stream: bool = False, model: str | None = None, pace: Pace | Unset = UNSET, **options: Any
    ) -> ChatStream | Answer:
        """Ask for an answer; arguments as in OpenAI's SDK.

        Args:
            messages: the conversation.
            stream: True: returns as soon as the first token is there, with a ``ChatStream``; False: the whole ``Answer``.
            model: the remote model's name; None: the server endpoint's own.
            pace: overrides the client's pace for this answer.
            options: ``temperature``, ``max_tokens``, ``stop``, ``seed``, ``tools``, ``stream_options`` ... as in OpenAI's SDK.

        Raises:
            StreamcoError: no endpoint could begin the answer; or, with ``stream=False``, finish it (``partial`` holds the text).
            ConfigError: an argument is wrong.
        """
        wants_usage = bool((options.pop("stream_options", None) or {}).get("include_usage"))
        request = build_request(messages, model=model, **options)
        answer = self._client.open_chat(request, pace=pace if stream else None, includes_usage=wants_usage or not stream)
        if stream:
            try:
                await answer.first()
            except BaseException:
                await answer.aclose()
                raise
            return answer
        assembler = CompletionAssembler()
        async with answer:
            async for chunk in answer:
                assembler.add(chunk)
        whole = assembler.completion()
        return Answer(**{name: getattr(whole, name) for name in ChatCompletion.__struct_fields__}, report=answer.report)


class Chat:
    """``client.chat``."""

    def __init__(self, client: Client) -> None:
        self.completions = Completions(client)
