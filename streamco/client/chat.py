"""The calls of ``client.chat.completions``: ``create``, ``parse`` and ``stream`` of OpenAI's SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Unpack, overload

from streamco.client.arguments import (
    UNSET,
    ChatOptions,
    Messages,
    NotGiven,
    ParseOptions,
    Unset,
    build_request,
    check_mapping,
    check_names,
    is_given,
)
from streamco.client.chat_events import ChatEventStream
from streamco.client.stream import ChatStream
from streamco.client.whole_answer import Answer, ParsedAnswer, ParsedT, read_answer, whole_answer
from streamco.config import Pace
from streamco.endpoints.base import Request
from streamco.errors import ConfigError
from streamco.wire.openai.assembler import CompletionAssembler

__all__ = ["Answer", "Chat", "Completions"]


class Completions:
    """The object ``client.chat.completions``.

    Args:
        open_chat: ``Client.open_chat``.
    """

    def __init__(self, open_chat: Callable[..., ChatStream]) -> None:
        self._open_chat = open_chat

    @overload
    async def create(
        self,
        *,
        messages: Messages,
        stream: Literal[True],
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ChatOptions],
    ) -> ChatStream: ...

    @overload
    async def create(
        self,
        *,
        messages: Messages,
        stream: Literal[False] | NotGiven | None = False,
        model: str | NotGiven | None = None,
        **options: Unpack[ChatOptions],
    ) -> Answer: ...

    @overload
    async def create(
        self,
        *,
        messages: Messages,
        stream: bool,
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ChatOptions],
    ) -> ChatStream | Answer: ...

    async def create(
        self,
        *,
        messages: Messages,
        stream: bool | NotGiven | None = False,
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ChatOptions],
    ) -> ChatStream | Answer:
        """Ask for an answer, with the same arguments as in OpenAI's SDK.

        Args:
            messages: the conversation; its messages may include response objects.
            stream: True returns a ``ChatStream`` as soon as the first token has arrived; False returns the whole ``Answer``.
            model: the remote model's name; None uses the server endpoint's.
            pace: overrides the client's pace for this answer; only with ``stream=True``.
            options: the other arguments, see ``ChatOptions``.

        Raises:
            StreamcoError: no endpoint could start the answer or, with ``stream=False``, finish it (``partial`` holds the text).
            ConfigError: an argument is wrong.
            TypeError: there is no argument of this name.
        """
        check_names(options, "create()")
        if not stream and not isinstance(pace, Unset) and pace is not None:
            raise ConfigError(f"pace: only valid with stream=True, because a whole answer has no pace, got {pace!r}")
        request = build_request(messages, model=model, **options)
        if not stream:
            return await self._whole(request)
        answer = self._open_chat(request, pace=pace, includes_usage=_wants_usage(options))
        try:
            await answer.first()
        except BaseException:
            await answer.aclose()
            raise
        return answer

    @overload
    async def parse(
        self,
        *,
        messages: Messages,
        response_format: type[ParsedT],
        model: str | NotGiven | None = None,
        **options: Unpack[ParseOptions],
    ) -> ParsedAnswer[ParsedT]: ...

    @overload
    async def parse(
        self,
        *,
        messages: Messages,
        response_format: Mapping[str, Any] | NotGiven | None = None,
        model: str | NotGiven | None = None,
        **options: Unpack[ParseOptions],
    ) -> ParsedAnswer[None]: ...

    async def parse(
        self,
        *,
        messages: Messages,
        response_format: type[Any] | Mapping[str, Any] | NotGiven | None = None,
        model: str | NotGiven | None = None,
        **options: Unpack[ParseOptions],
    ) -> ParsedAnswer[Any]:
        """Ask for a whole answer as JSON that fits a class, and parse it into ``answer.choices[0].message.parsed``.

        Args:
            messages: the conversation, as in ``create``.
            response_format: a pydantic class; with a mapping or None, ``parsed`` is None.
            model: the remote model's name; None uses the server endpoint's.
            options: the other arguments of ``create``.

        Raises:
            UnparsedAnswer: the answer was cut off by its token limit or a content filter, or isn't valid JSON for the class.
            StreamcoError: no endpoint could give the answer.
            ConfigError: an argument is wrong.
            TypeError: there is no argument of this name.
        """
        check_names(options, "parse()")
        request = build_request(messages, model=model, response_format=response_format, **options)
        return read_answer(await self._whole(request), response_format if isinstance(response_format, type) else None)

    @overload
    def stream(
        self,
        *,
        messages: Messages,
        response_format: type[ParsedT],
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ParseOptions],
    ) -> ChatEventStream[ParsedT]: ...

    @overload
    def stream(
        self,
        *,
        messages: Messages,
        response_format: Mapping[str, Any] | NotGiven | None = None,
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ParseOptions],
    ) -> ChatEventStream[None]: ...

    def stream(
        self,
        *,
        messages: Messages,
        response_format: type[Any] | Mapping[str, Any] | NotGiven | None = None,
        model: str | NotGiven | None = None,
        pace: Pace | Unset = UNSET,
        **options: Unpack[ParseOptions],
    ) -> ChatEventStream[Any]:
        """Ask for an answer as events: ``async with client.chat.completions.stream(...) as stream``, then ``async for event in stream``.

        Nothing is sent before the stream is entered or read.

        Args:
            messages: the conversation, as in ``create``.
            response_format: a pydantic class, or a mapping. With a class, ``content.done`` and the whole answer hold the parsed object.
            model: the remote model's name; None uses the server endpoint's.
            pace: overrides the client's pace for this answer.
            options: the other arguments of ``create``.

        Raises:
            ConfigError: an argument is wrong.
            TypeError: there is no argument of this name.
        """
        check_names(options, "stream()")
        request = build_request(messages, model=model, response_format=response_format, **options)
        kind = response_format if isinstance(response_format, type) else None
        return ChatEventStream(self._open_chat(request, pace=pace, includes_usage=True), kind, shows_usage=_wants_usage(options))

    async def _whole(self, request: Request) -> Answer:
        """Return the whole answer to a request."""
        assembler = CompletionAssembler()
        async with self._open_chat(request, includes_usage=True, is_streamed=False) as answer:
            async for chunk in answer:
                assembler.add(chunk)
        return whole_answer(assembler.completion(), answer.report)


def _wants_usage(options: Mapping[str, Any]) -> bool:
    """Return True if the caller wants a chunk with the usage."""
    given = options.get("stream_options")
    return bool(check_mapping("stream_options", given if is_given(given) else None).get("include_usage"))


class Chat:
    """The object ``client.chat``.

    Args:
        open_chat: ``Client.open_chat``.
    """

    def __init__(self, open_chat: Callable[..., ChatStream]) -> None:
        self.completions = Completions(open_chat)
