"""Real third-party servers as remote endpoints: llama-cpp-python's own and xllamacpp's, on the packaged model with one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from streamco.config import SamplingOptions, Timeouts
from streamco.endpoints.base import Request
from streamco.endpoints.continuation import continue_request
from streamco.errors import EndpointProtocolError, EndpointStatusError, StreamClosed
from streamco.events import TokensReceived
from tests.endpoints.helpers import NO_RETRIES, ask, opened
from tests.support.peer_servers import running_peer

pytestmark = [pytest.mark.peer, pytest.mark.model]

KINDS = {"llama-cpp-python": "llama-cpp-python", "xllamacpp": "llama-server"}
PATIENT = Timeouts(connect=10, first_token=60, next_token=60, socket=60, cancel=5)


def say(text: str, tokens: int) -> Request:
    return Request(messages=[{"role": "user", "content": text}], sampling=SamplingOptions(temperature=0, max_tokens=tokens))


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="module")
def url(kind: str) -> Iterator[str]:
    with running_peer(kind) as url:
        yield url


async def test_a_chat_is_streamed_to_its_end(kind: str, url: str) -> None:
    async with opened(url, model="smollm2", timeouts=PATIENT) as endpoint:
        answered = await ask(endpoint, say("Write a sentence about the sea.", 12))
        assert len(answered.text.split()) > 3
        assert answered.end is not None
        assert answered.end.finish_reason in {"stop", "length"}
        assert answered.tokens > 3
        if kind == "xllamacpp":
            assert answered.usage is not None
            assert answered.usage.completion_tokens == 12
            assert answered.usage.prompt_tokens > 10


async def test_a_text_completion_is_streamed(url: str) -> None:
    async with opened(url, model="smollm2", timeouts=PATIENT, api="completions") as endpoint:
        request = Request(prompt="The capital of France is", sampling=SamplingOptions(temperature=0, max_tokens=4))
        answered = await ask(endpoint, request)
        assert "Paris" in answered.text
        assert answered.end is not None
        assert answered.end.finish_reason == "length"


async def test_token_ids_are_taken_where_it_says_so(kind: str, url: str) -> None:
    async with opened(url, model="smollm2", timeouts=PATIENT) as endpoint:
        await endpoint.probe()
        assert endpoint.capabilities.takes_token_ids == (kind == "xllamacpp")
        if endpoint.capabilities.takes_token_ids:
            request = Request(prompt_ids=[504, 3575, 282, 4649, 314], sampling=SamplingOptions(temperature=0, max_tokens=2))
            assert (await ask(endpoint, request)).text


async def test_an_answer_is_continued_where_it_says_so(kind: str, url: str) -> None:
    async with opened(url, model="smollm2", timeouts=PATIENT) as endpoint:
        await endpoint.probe()
        assert (endpoint.capabilities.continuation == "none") == (kind == "llama-cpp-python")
        if endpoint.capabilities.continuation != "none":
            request = say("Write a sentence about the sea.", 12)
            whole = (await ask(endpoint, request)).text
            begun = whole[: whole.index(" ", len(whole) // 2)]  # between words: a cut word is tokenised in another way
            rest = (await ask(endpoint, continue_request(request, begun, endpoint.capabilities.continuation))).text
            assert (begun + rest).startswith(whole)


async def test_it_is_recognised(kind: str, url: str) -> None:
    async with opened(url, model="smollm2", timeouts=PATIENT) as endpoint:
        info = await endpoint.probe()
        assert info.kind == KINDS[kind]
        assert len(info.models) == 1
        assert await endpoint.models() == list(info.models)
        if kind == "xllamacpp":
            assert info.context_tokens is not None
            assert endpoint.capabilities.context_tokens == info.context_tokens
        answered = await ask(endpoint, say("Say hi.", 2))
        assert answered.text


async def test_a_cancelled_answer_frees_the_server_for_the_next_one(url: str) -> None:
    async with opened(url, model="smollm2", timeouts=PATIENT) as endpoint:
        stream = endpoint.open(say("Count from one to a thousand.", 400))
        first = await stream.receive()
        assert isinstance(first, TokensReceived)

        async def read_on() -> None:
            while isinstance(await stream.receive(), TokensReceived):
                pass

        waiting = asyncio.create_task(read_on())
        await asyncio.sleep(0.01)
        await stream.cancel()
        with pytest.raises(StreamClosed):
            await waiting
        assert (await ask(endpoint, say("Say hi.", 2))).text


async def test_several_answers_one_after_another_use_one_connection(url: str) -> None:
    async with opened(url, model="smollm2", timeouts=PATIENT) as endpoint:
        texts = [(await ask(endpoint, say("Say hi.", 3))).text for _ in range(3)]
        assert len(set(texts)) == 1


async def test_a_path_that_does_not_exist_is_a_404(url: str) -> None:
    async with opened(url.replace("/v1", "/nowhere"), model="smollm2", timeouts=PATIENT) as endpoint:
        error = (await ask(endpoint, say("hi", 2))).failure()
        assert isinstance(error, EndpointStatusError)
        assert error.status == 404


async def test_a_prompt_beyond_the_context_is_an_error_in_our_words(kind: str, url: str) -> None:
    async with opened(url, model="smollm2", timeouts=PATIENT, retry=NO_RETRIES) as endpoint:
        request = Request(messages=[{"role": "user", "content": "word " * 3000}], sampling=SamplingOptions(max_tokens=2))
        error = (await ask(endpoint, request)).failure()
        if kind == "xllamacpp":
            assert isinstance(error, EndpointStatusError)
            assert error.status == 400
            assert "context" in str(error)
        else:  # it answers 200 and drops the connection
            assert isinstance(error, EndpointProtocolError)
            assert "truncated" in str(error)


async def test_a_wrongly_typed_field_is_its_error_and_not_retried(url: str) -> None:
    async with opened(url, model="smollm2", timeouts=PATIENT) as endpoint:
        error = (await ask(endpoint, Request(messages=[], extra={"messages": "none"}))).failure()
        assert isinstance(error, EndpointStatusError)
        assert error.status in {400, 422, 500}
