"""What the tests of HTTP endpoints share: short limits, a reader of whole answers, an endpoint that is closed again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from streamco.config import RetryPolicy, Timeouts
from streamco.endpoints.base import Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.openai_stream import OpenAIStream
from streamco.errors import EndpointError
from streamco.events import StreamEnded, TokensReceived
from streamco.openai_types import ChatCompletionChunk, CompletionUsage

HELLO = Request(messages=[{"role": "user", "content": "hello"}])
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
QUICK_RETRIES = RetryPolicy(attempts=2, backoff=0.001, longest_wait=1.0)
NO_RETRIES = RetryPolicy(attempts=0)


class Answered:
    """A whole answer: its chunks, batches, text and end."""

    def __init__(self) -> None:
        self.batches: list[TokensReceived] = []
        self.end: StreamEnded | None = None
        self.error: EndpointError | None = None

    @property
    def chunks(self) -> list[ChatCompletionChunk]:
        return [chunk for batch in self.batches for chunk in batch.chunks]

    @property
    def text(self) -> str:
        return "".join(choice.delta.content or "" for chunk in self.chunks for choice in chunk.choices)

    @property
    def tokens(self) -> int:
        return sum(batch.tokens for batch in self.batches)

    @property
    def usage(self) -> CompletionUsage | None:
        return self.end.usage if self.end is not None else None

    def failure(self) -> EndpointError:
        assert self.error is not None, f"expected an error, got the end {self.end}"
        return self.error


async def read_all(stream: OpenAIStream) -> Answered:
    """Read until the end or the failure."""
    answered = Answered()
    try:
        while answered.end is None:
            event = await stream.receive()
            if isinstance(event, StreamEnded):
                answered.end = event
            else:
                answered.batches.append(event)
    except EndpointError as error:
        answered.error = error
    return answered


async def ask(endpoint: OpenAIEndpoint, request: Request = HELLO) -> Answered:
    """One request and its whole answer."""
    return await read_all(endpoint.open(request))


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[OpenAIEndpoint]:
    """An endpoint at this URL with quick retries; closed at the end."""
    options.setdefault("retry", QUICK_RETRIES)
    options.setdefault("timeouts", Timeouts(connect=5, first_token=5, next_token=5, socket=5, cancel=1))
    endpoint = OpenAIEndpoint(options.pop("model", "m"), base_url=url, name=options.pop("name", "remote"), **options)
    try:
        await endpoint.start()
        yield endpoint
    finally:
        await endpoint.aclose()
