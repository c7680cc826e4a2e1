"""The call ``client.chat.completions.create(...)`` of OpenAI's SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, Unpack, overload

from streamco.client.arguments import UNSET, ChatOptions, Messages, NotGiven, Unset, build_request, check_mapping, check_names, is_given
from streamco.client.stream import ChatStream
from streamco.config import Pace
from streamco.core.report import Report
from streamco.errors import ConfigError
from streamco.openai_types import ChatCompletion, further_fields, with_further
from streamco.wire.openai.assembler import CompletionAssembler

__all__ = ["Answer", "Chat", "Completions"]


class Answer(ChatCompletion):
    """A whole answer, OpenAI's ``chat.completion``, with streamco's report beside it."""

    undumped: ClassVar[frozenset[str]] = frozenset({"report"})

    report: Report | None = None


class Completions:
    """The object ``client.chat.completions``, with its one method.

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
        """Ask for an answer; arguments as in OpenAI's SDK.

        Args:
            messages: the conversation; response objects may be among its messages.
            stream: True: return a ``ChatStream`` as soon as the first token is there; False: return the whole ``Answer``.
            model: the remote model's name; None: the server endpoint's own.
            pace: overrides the client's pace for this answer; only with ``stream=True``.
            options: the other arguments, see ``ChatOptions``.

        Raises:
            StreamcoError: no endpoint could start the answer, or with ``stream=False`` finish it (``partial`` holds the text).
            ConfigError: an argument is wrong.
            TypeError: there is no argument of this name.
        """
        check_names(options, "create()")
        if not stream and not isinstance(pace, Unset) and pace is not None:
            raise ConfigError(f"pace: expected none without stream=True, because a whole answer has no pace, got {pace!r}")
        request = build_request(messages, model=model, **options)
        stream_options = options.get("stream_options")
        wants_usage = bool(check_mapping("stream_options", stream_options if is_given(stream_options) else None).get("include_usage"))
        answer = self._open_chat(request, pace=pace, includes_usage=wants_usage or not stream, is_streamed=bool(stream))
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
        own = Answer(**{name: getattr(whole, name) for name in ChatCompletion.__struct_fields__}, report=answer.report)
        return with_further(own, further_fields(whole))


class Chat:
    """The object ``client.chat``.

    Args:
        open_chat: ``Client.open_chat``.
    """

    def __init__(self, open_chat: Callable[..., ChatStream]) -> None:
        self.completions = Completions(open_chat)
