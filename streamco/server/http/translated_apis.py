"""APIs that are translated to chat completions: OpenAI's Responses API and Anthropic's Messages API.

The bodies are translated in ``wire``. This module has the paths, and makes sure that errors name a field as the request does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from aiohttp import web

from streamco.server.http.errors import RequestError, invalid
from streamco.server.http.paths import COUNT_PATH, MESSAGES_PATH, RESPONSES_PATH
from streamco.wire.messages_api.message_request import read_count_request, read_message_request
from streamco.wire.request_fields import BODY, FieldError
from streamco.wire.responses_api.response_request import read_response_request
from streamco.wire.translated_request import TranslatedRequest

__all__ = ["TranslatedApis", "add_translated_apis", "naming_fields", "read_count", "read_message", "read_response"]


class TranslatedApis(Protocol):
    """The handlers of the translated APIs' paths."""

    async def responses(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``POST /v1/responses``."""
        ...

    async def messages(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``POST /v1/messages``."""
        ...

    async def count_tokens(self, request: web.Request, /) -> web.StreamResponse:
        """Answer ``POST /v1/messages/count_tokens``."""
        ...


def add_translated_apis(app: web.Application, apis: TranslatedApis) -> None:
    """Add the paths of these APIs to an application."""
    app.add_routes(
        [
            web.post(RESPONSES_PATH, apis.responses),
            web.post(MESSAGES_PATH, apis.messages),
            web.post(COUNT_PATH, apis.count_tokens),
        ]
    )


def read_response(body: bytes) -> TranslatedRequest:
    """Return the chat request for a body of ``/v1/responses``.

    Raises:
        RequestError: 400, naming the field.
    """
    return _read(read_response_request, body)


def read_message(body: bytes) -> TranslatedRequest:
    """Return the chat request for a body of ``/v1/messages``.

    Raises:
        RequestError: 400, naming the field.
    """
    return _read(read_message_request, body)


def read_count(body: bytes) -> TranslatedRequest:
    """Return the chat request for a body of ``/v1/messages/count_tokens``.

    Raises:
        RequestError: 400, naming the field.
    """
    return _read(read_count_request, body)


def _read(read: Callable[[bytes], TranslatedRequest], body: bytes) -> TranslatedRequest:
    try:
        return read(body)
    except FieldError as error:
        if error.field == BODY:
            raise invalid(None, str(error)) from error
        raise invalid(error.field, error.message, code=error.code) from error
    except RecursionError as error:
        raise invalid(None, "body: expected fewer levels of nesting, got more") from error


@contextmanager
def naming_fields(names: Mapping[str, str]) -> Iterator[None]:
    """In errors about a chat field, use the request's own API's name for it, without the position inside the field.

    Args:
        names: the API's names for chat fields. Errors about other fields stay as they are.

    Raises:
        RequestError: the block's error, with the API's name for the field.
    """
    try:
        yield
    except RequestError as error:
        name = names.get(re.split(r"[.\[]", error.param or "", maxsplit=1)[0])
        if name is None:
            raise
        message = str(error)
        shown = name + message.removeprefix(error.param or "") if message.startswith(f"{error.param}:") else message
        raise RequestError(error.status, shown, param=name, code=error.code, headers=error.headers) from error
