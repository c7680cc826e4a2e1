"""A pydantic-ai model that uses a client in the same process, with streams, tools, structured output, usage and the report.

pydantic-ai's own model for OpenAI's chat completions builds the requests and reads the answers. In it, the client takes the place of
OpenAI's SDK, with the same call and the same data types.
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
    """Presents a client to pydantic-ai as if it were OpenAI's SDK. You still own the client and close it."""

    def __init__(self, client: Client, model: str | None) -> None:
        self._client = cast(AsyncOpenAI, _OpenAIForm(client, model))

    @property
    def name(self) -> str:
        """The provider's name in messages."""
        return NAME

    @property
    def base_url(self) -> str:
        """The provider's address in messages; nothing listens there."""
        return "streamco://in-process"

    @property
    def client(self) -> AsyncOpenAI:
        """The client, with the part of OpenAI's SDK that pydantic-ai uses: ``chat.completions.create``."""
        return self._client

    @staticmethod
    def model_profile(model_name: str) -> ModelProfile | None:
        """Return what endpoints can do: they can make an answer follow a JSON schema; the device does so with a grammar."""
        return OpenAIModelProfile(
            json_schema_transformer=OpenAIJsonSchemaTransformer,
            supports_json_schema_output=True,
            supports_json_object_output=True,
            default_structured_output_mode="native",
        )


class StreamcoModel(OpenAIChatModel):
    """A model for agents that answers with a client: ``Agent(StreamcoModel(client))``.

    Structured output is requested with a JSON schema, which devices follow, too; ``ToolOutput`` requests it as a tool call. Each response
    has the report of its answer in ``provider_details["streamco"]``. Failures of endpoints are raised as pydantic-ai's ``ModelAPIError`` or
    a subclass of it, with the client's error as the cause.

    Args:
        client: the client. You start it and close it.
        model_name: the remote model's name. None means the server endpoint's model, and the name "streamco" in messages.
        profile: capabilities that differ from ``ClientProvider.model_profile``.
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
    """A streamed response whose last chunk has the report."""

    def get_stream_cancel_errors(self) -> tuple[type[BaseException], ...]:
        """Return the exceptions that a read may raise after the stream was cancelled."""
        return (*super().get_stream_cancel_errors(), StreamClosed)

    def _map_chunk_provider_details(self, chunk: ChatCompletionChunk) -> dict[str, Any] | None:
        return {**(super()._map_chunk_provider_details(chunk) or {}), **_report_of(chunk)} or None


def _report_of(response: ChatCompletion | ChatCompletionChunk) -> dict[str, Any]:
    further = response.model_extra or {}
    return {DETAIL: further[DETAIL]} if DETAIL in further else {}


class _OpenAIForm:
    """The part of OpenAI's SDK that pydantic-ai uses, implemented with a client."""

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
    """A stream with the interface of OpenAI's ``AsyncStream``, whose last chunk has the report."""

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
    """Turn errors of endpoints into pydantic-ai's errors. Errors in arguments and settings stay as they are.

    Raises:
        ModelAPIError: no endpoint could begin or finish the answer. If there was only one endpoint, the subclass says why.
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
