"""A model for pydantic-ai over a client in the same process: streams, tools, structured output, usage and the report.

pydantic-ai's own model for OpenAI's chat completions builds the requests and reads the answers. The client stands in it where OpenAI's
SDK is, with the same call and the same shapes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, cast

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, ModelTimeoutError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.profiles import ModelProfile, ModelProfileSpec
from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer, OpenAIModelProfile
from pydantic_ai.providers import Provider
from pydantic_ai.settings import ModelSettings

from streamco.client.client import Client
from streamco.client.stream import ChatStream
from streamco.errors import (
    AllEndpointsFailed,
    DegradedError,
    EndpointConnectError,
    EndpointError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamClosed,
)
from streamco.integrations.chunk_parts import report_fields

__all__ = ["ClientProvider", "StreamcoModel", "StreamcoStreamedResponse"]

NAME = "streamco"
DETAIL = "streamco"  # key of the report in `provider_details`, and the field that carries it there


class ClientProvider(Provider[AsyncOpenAI]):
    """Gives a client to pydantic-ai in the form of OpenAI's SDK; the client stays its owner's and is closed by it."""

    def __init__(self, client: Client, model: str | None) -> None:
        self._client = cast(AsyncOpenAI, _OpenAIForm(client, model))

    @property
    def name(self) -> str:
        """Name of the provider in messages."""
        return NAME

    @property
    def base_url(self) -> str:
        """Address of the provider in messages; nothing listens there."""
        return "streamco://in-process"

    @property
    def client(self) -> AsyncOpenAI:
        """The client, as far as pydantic-ai uses OpenAI's SDK: ``chat.completions.create``."""
        return self._client

    @staticmethod
    def model_profile(model_name: str) -> ModelProfile | None:
        """Return what endpoints can do: an answer can be held to a JSON schema, on the device by a grammar."""
        return OpenAIModelProfile(
            json_schema_transformer=OpenAIJsonSchemaTransformer,
            supports_json_schema_output=True,
            supports_json_object_output=True,
            default_structured_output_mode="native",
        )


class StreamcoModel(OpenAIChatModel):
    """A model for agents over a client: ``Agent(StreamcoModel(client))``.

    Structured output is asked for as a JSON schema, which devices keep, too. ``ToolOutput`` asks for it as a tool call. Each response has
    the report of its answer in ``provider_details["streamco"]``. Failures of endpoints are pydantic-ai's ``ModelAPIError`` and its
    subclasses, with the client's own error as their cause.

    Args:
        client: the client; it must be started, and is closed by its owner.
        model_name: the remote model's name; None: the server endpoint's own, and the name "streamco" in messages.
        profile: abilities that differ from those of ``ClientProvider.model_profile``.
        settings: settings for all requests.
    """

    def __init__(
        self,
        client: Client,
        model_name: str | None = None,
        *,
        profile: ModelProfileSpec | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        super().__init__(model_name or NAME, provider=ClientProvider(client, model_name), profile=profile, settings=settings)

    def _process_provider_details(self, response: ChatCompletion) -> dict[str, Any] | None:
        return {**(super()._process_provider_details(response) or {}), **_report_of(response)}

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return StreamcoStreamedResponse


class StreamcoStreamedResponse(OpenAIStreamedResponse):
    """A streamed response; its last chunk brings the report."""

    def get_stream_cancel_errors(self) -> tuple[type[BaseException], ...]:
        """Return what a read may raise after the stream was cancelled."""
        return (*super().get_stream_cancel_errors(), StreamClosed)

    def _map_chunk_provider_details(self, chunk: ChatCompletionChunk) -> dict[str, Any] | None:
        return {**(super()._map_chunk_provider_details(chunk) or {}), **_report_of(chunk)} or None


def _report_of(response: ChatCompletion | ChatCompletionChunk) -> dict[str, Any]:
    further = response.model_extra or {}
    return {DETAIL: further[DETAIL]} if DETAIL in further else {}


class _OpenAIForm:
    """The part of OpenAI's SDK that pydantic-ai uses, over a client."""

    base_url = "streamco://in-process"

    def __init__(self, client: Client, model: str | None, max_retries: int | None = None) -> None:
        self._client = client
        self._model = model
        self._max_retries = max_retries

    @property
    def chat(self) -> _OpenAIForm:
        return self

    @property
    def completions(self) -> _OpenAIForm:
        return self

    def with_options(self, *, max_retries: int, **_: object) -> _OpenAIForm:
        return _OpenAIForm(self._client, self._model, max_retries)

    async def create(self, *, model: str, messages: Any, stream: bool, **options: Any) -> ChatCompletion | _Chunks:
        options["max_retries"] = self._max_retries
        with translated_errors(model):
            if stream:
                return _Chunks(
                    await self._client.chat.completions.create(messages=messages, model=self._model, stream=True, **options), model
                )
            whole = await self._client.chat.completions.create(messages=messages, model=self._model, **options)
            return ChatCompletion.construct(**{**whole.model_dump(), DETAIL: report_fields(whole.report)})


class _Chunks:
    """A stream in the form of OpenAI's ``AsyncStream``, with a last chunk that brings the report."""

    def __init__(self, stream: ChatStream, model: str) -> None:
        self._stream = stream
        self._model = model

    async def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        with translated_errors(self._model):
            async for chunk in self._stream:
                yield ChatCompletionChunk.construct(**chunk.model_dump())
        last: dict[str, Any] = {"id": "", "object": "chat.completion.chunk", "created": 0, "model": "", "choices": [], "usage": None}
        last[DETAIL] = report_fields(self._stream.report)
        yield ChatCompletionChunk.construct(**last)

    async def close(self) -> None:
        await self._stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


@contextmanager
def translated_errors(model: str) -> Iterator[None]:
    """Turn the errors of endpoints into those of pydantic-ai; errors in arguments and settings stay as they are.

    Raises:
        ModelAPIError: no endpoint could give, or finish, the answer; its subclasses say why, if there was one endpoint.
    """
    try:
        yield
    except EndpointStatusError as error:
        raise ModelHTTPError(error.status, model, body=error.body or str(error), retry_after=error.retry_after) from error
    except EndpointTimeoutError as error:
        raise ModelTimeoutError(model, str(error)) from error
    except EndpointConnectError as error:
        raise ModelConnectionError(model, str(error)) from error
    except (EndpointError, AllEndpointsFailed, DegradedError) as error:
        raise ModelAPIError(model, str(error)) from error
