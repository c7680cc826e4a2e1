"""vLLM as it is: probed, raced, left, taken over from, and as the one that takes over. ``make vllm`` runs these, nothing else does.

The model is the packaged one in bfloat16, so vLLM and the device here are two models: what is compared is vLLM's continuation with its own
uninterrupted answer, and the device's with what it writes behind the same tokens. vLLM computes a token's logits in another order when
it reads the tokens before it at once instead of writing them one by one: where the two best are nearly as good, its greedy answers may
part there. Each such place is looked at.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from urllib.request import urlopen

import pytest
from msgspec.structs import replace

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.config import SamplingOptions, Timeouts
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.generation_request import request_ids
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import EndpointError
from streamco.events import Partial
from tests.endpoints.helpers import NO_RETRIES
from tests.endpoints.test_hand_over import ASKED, TOKENS, Answer, answer, check_seam, go_on, load, places
from tests.support.leaks import holding_nothing_new, settled
from tests.vllm.server import CONTEXT_TOKENS, MODEL, Server, running_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

PATIENT = Timeouts(connect=30, first_token=180, next_token=60, socket=180, cancel=5)  # the first request compiles
NEARLY = 0.26  # between log-probabilities: two steps of bfloat16 where the logits are 16 to 32
STORY = [{"role": "user", "content": "Write a story about a lighthouse."}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_vllm() as server:
        yield server


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    engine = load(packaged_model())
    yield engine
    engine.close()


@asynccontextmanager
async def endpoint_at(server: Server, tokenizer: LlamaEngine | None = None) -> AsyncIterator[OpenAIEndpoint]:
    """A probed endpoint; with a tokenizer it hands ids over."""
    endpoint = OpenAIEndpoint(MODEL, base_url=server.url, name="vllm", timeouts=PATIENT, retry=NO_RETRIES, tokenizer=tokenizer)
    try:
        await endpoint.probe()
        yield endpoint
    finally:
        await endpoint.aclose()


async def check_same(endpoint: OpenAIEndpoint, opening: Sequence[int], ids: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether two greedy answers are one; where they part, both tokens must be nearly as good."""
    if list(ids) == list(whole):
        return True
    at = next((number for number, (one, other) in enumerate(zip(ids, whole, strict=False)) if one != other), None)
    assert at is not None, "one is longer than the other"
    body = {"model": MODEL, "prompt": [*opening, *whole[:at]], "max_tokens": 1, "temperature": 0}
    reply = await endpoint.ask("/v1/completions", {**body, "logprobs": 3, "return_tokens_as_token_ids": True})
    best: dict[str, float] = reply["choices"][0]["logprobs"]["top_logprobs"][0]
    pair = [best[f"token_id:{token}"] for token in (ids[at], whole[at])]
    assert max(best.values()) - min(pair) < NEARLY, f"token {at}: {best}"
    return False


def running(server: Server) -> float:
    """How many requests vLLM works on, by its own account."""
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(float(value) for value in re.findall(r"(?m)^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text))


async def test_it_is_recognised_and_read_alike(server: Server, engine: LlamaEngine) -> None:
    async with endpoint_at(server, engine) as endpoint:
        info = await endpoint.probe()
        assert (info.kind, info.models, info.context_tokens) == ("vllm", (MODEL,), CONTEXT_TOKENS)
        assert info.version
        assert (info.vocabulary, info.vocabulary_size) == (engine.info.vocabulary, engine.info.vocabulary_size)
        assert (endpoint.capabilities.continuation, endpoint.capabilities.pre_copy) == ("token_ids", "warm")
    async with endpoint_at(server) as endpoint:
        assert (endpoint.capabilities.vocabulary, endpoint.capabilities.continuation) == (None, "continue_final_message")


async def test_an_answer_comes_with_its_ids_and_usage(server: Server, engine: LlamaEngine) -> None:
    async with endpoint_at(server, engine) as endpoint:
        for request in ASKED:
            whole = await answer(endpoint, request)
            assert whole.end is not None
            assert whole.end.usage is not None
            assert len(whole.ids) == whole.end.usage.completion_tokens
            assert whole.end.usage.prompt_tokens == len(request_ids(engine, request)), "the device counts its prompts exactly"
            written = engine.detokenize(whole.ids).decode("utf-8", "ignore")
            assert written == whole.text


async def test_by_ids_an_answer_is_gone_on_with_as_if_it_had_not_been_cut(server: Server, engine: LlamaEngine) -> None:
    same = total = ahead = 0
    async with endpoint_at(server, engine) as endpoint:
        for request in ASKED:
            whole = await answer(endpoint, request)
            opening = request_ids(engine, request)
            for cut in range(2, len(whole.chunks), 2):
                partial = whole.partial(cut, endpoint.capabilities.vocabulary)
                if not partial.text or partial.tokens >= TOKENS:
                    continue
                call = await endpoint._prepare(replace(request, partial=partial))
                assert (call.api, call.url.path) == ("completions", "/v1/completions")
                rest = await go_on(endpoint, request, partial)
                assert partial.ids is not None
                joined = [*partial.ids, *rest.ids]
                is_same = await check_same(endpoint, opening, joined, whole.ids)
                assert engine.detokenize(joined).decode("utf-8", "ignore") == partial.text + rest.text
                ahead += partial.tokens < len(Answer(whole.chunks[:cut], None).ids)
                same, total = same + is_same, total + 1
    assert ahead > 1, "cuts inside a code point"
    assert same / total > 0.8, f"{same} of {total} hand-overs"


async def test_by_text_an_answer_is_gone_on_with_behind_the_open_message(server: Server, engine: LlamaEngine) -> None:
    """Text that vLLM reads into the tokens it wrote gives the answer it would have given; other tokens make another answer."""
    compared = 0
    async with endpoint_at(server) as endpoint:
        for asked in ASKED:
            request = replace(asked, extra={"return_token_ids": True})
            whole = await answer(endpoint, request)
            opening = request_ids(engine, request)
            for cut in places(whole, 4, asked.messages)[:-1]:
                partial = whole.partial(cut, None)
                assert partial.ids is None
                call = await endpoint._prepare(replace(request, partial=partial))
                assert call.api == "chat"
                rest = await go_on(endpoint, request, partial)
                check_seam(partial.text + rest.text, partial.text)
                given = Answer(whole.chunks[:cut], None).ids
                message = {"role": "assistant", "content": partial.text}
                open_ended = {"add_generation_prompt": False, "continue_final_message": True}
                read = await endpoint.ask("/tokenize", {"model": MODEL, "messages": [*(asked.messages or ()), message], **open_ended})
                is_whole = partial.text == partial.text.strip()  # of a token at the seam only a part may come, without its id
                if is_whole and read["tokens"] == [*opening, *given]:
                    compared += 1
                    await check_same(endpoint, opening, [*given, *rest.ids], whole.ids)
    assert compared > 3


async def test_from_the_device_by_ids(server: Server, engine: LlamaEngine) -> None:
    device = DeviceEndpoint(engine)
    async with endpoint_at(server, engine) as endpoint:
        for request in ASKED:
            whole = await answer(device, request)
            for cut in places(whole, 2, request.messages)[:-1]:
                partial = whole.partial(cut, device.capabilities.vocabulary)
                rest = await go_on(endpoint, request, partial)
                ids = [*request_ids(engine, request), *(partial.ids or ())]
                limit = replace(request.sampling, max_tokens=TOKENS - partial.tokens)
                anew = await answer(endpoint, Request(prompt_ids=ids, sampling=limit))
                assert (rest.ids, rest.text) == (anew.ids, anew.text)
                check_seam(partial.text + rest.text, partial.text)


async def test_to_the_device_by_ids(server: Server, engine: LlamaEngine) -> None:
    device = DeviceEndpoint(engine)
    async with endpoint_at(server, engine) as endpoint:
        for request in ASKED:
            whole = await answer(endpoint, request)
            for cut in places(whole, 2, request.messages)[:-1]:
                partial = whole.partial(cut, endpoint.capabilities.vocabulary)
                rest = await go_on(device, request, partial)
                joined = [*(partial.ids or ()), *rest.ids]
                assert engine.detokenize(joined).decode("utf-8", "ignore") == (partial.text + rest.text).removesuffix("\ufffd")


async def test_beside_stop_strings_the_text_is_handed_over(server: Server, engine: LlamaEngine) -> None:
    """vLLM holds text back that a stop string may begin in, and tells its ids at once."""
    device = DeviceEndpoint(engine)
    request = replace(ASKED[0], sampling=replace(ASKED[0].sampling, stop=("a rather long stop string",)))
    async with endpoint_at(server, engine) as endpoint:
        free = await answer(endpoint, ASKED[0])
        whole = await answer(endpoint, request)
        assert whole.text == free.text
        for cut in places(whole, 3, "stop")[:-1]:
            partial = whole.partial(cut, endpoint.capabilities.vocabulary)
            assert partial.ids is None
            assert whole.text.startswith(partial.text)
            rest = await go_on(device, request, partial)
            check_seam(partial.text + rest.text, partial.text)


async def test_a_cache_that_was_warmed_answers_the_same(server: Server, engine: LlamaEngine) -> None:
    async with endpoint_at(server, engine) as endpoint:
        whole = await answer(endpoint, ASKED[0])
        partial = whole.partial(6, endpoint.capabilities.vocabulary)
        warmed = await answer(endpoint, replace(ASKED[0], partial=partial, prefill_only=True))
        assert warmed.end is not None
        assert warmed.end.usage is not None
        assert warmed.end.usage.completion_tokens == 1
        rest = await go_on(endpoint, ASKED[0], partial)
        await check_same(endpoint, request_ids(engine, ASKED[0]), [*(partial.ids or ()), *rest.ids], whole.ids)


async def test_a_race_is_won_by_one_side_and_the_other_is_released(server: Server, engine: LlamaEngine) -> None:
    remote = OpenAIEndpoint(MODEL, base_url=server.url, name="vllm", timeouts=PATIENT, tokenizer=engine)
    await remote.probe()
    async with Client(DeviceEndpoint(engine), remote, mode=Race(policy="both"), budget=1.0, seed=1) as client:
        for request in ASKED[:3]:
            stream = client.stream(list(request.messages or ()), temperature=0, max_tokens=12)
            tokens = [token async for token in stream]
            assert {token.source for token in tokens} == {stream.report.winner}
            assert {part.outcome for part in stream.report.endpoints} == {"won", "lost"}
        await settled(lambda: not engine._loop._live)
    await settled(lambda: running(server) == 0)


async def test_a_reader_who_leaves_ends_the_work_there(server: Server) -> None:
    async with holding_nothing_new(), endpoint_at(server) as endpoint:
        stream = endpoint.open(Request(messages=STORY, sampling=SamplingOptions(temperature=0, max_tokens=800)))
        for _ in range(4):
            await stream.receive()
        assert await asyncio.to_thread(running, server) == 1
        await stream.cancel()
        await settled(lambda: running(server) == 0)


async def test_an_id_outside_the_vocabulary_is_an_error_of_its(server: Server) -> None:
    async with endpoint_at(server) as endpoint:
        with pytest.raises(EndpointError, match="out of vocabulary"):
            await answer(endpoint, Request(prompt_ids=[1, 999999], sampling=SamplingOptions(max_tokens=2)))


async def test_killed_in_mid_answer_it_is_replaced_by_the_device(server: Server, engine: LlamaEngine) -> None:
    """The last one here: nobody answers afterwards."""
    request = Request(messages=STORY, sampling=SamplingOptions(temperature=0, max_tokens=150))
    remote = OpenAIEndpoint(MODEL, base_url=server.url, name="vllm", timeouts=PATIENT, retry=NO_RETRIES, tokenizer=engine)
    await remote.probe()
    whole = await answer(remote, request)
    device = DeviceEndpoint(engine)
    async with Client(device, remote, mode=Race(policy="server-only"), on_failure="migrate") as client:
        stream = client.stream(STORY, temperature=0, max_tokens=150)
        text = ""
        async for token in stream:
            text += token.text
            if len(text) > 60:
                server.kill()  # idempotent
        report = stream.report
    (hand_over,) = report.hand_overs
    assert (hand_over.source, hand_over.target) == ("vllm", "device")
    assert 0 < hand_over.position < 150
    assert [part.outcome for part in report.endpoints if part.name == "device"] == ["took over"]
    begun = whole.ids[: hand_over.position]
    seen = engine.detokenize(begun).decode()
    assert text.startswith(seen), "what vLLM had written is kept"
    partial = Partial(text=seen, ids=tuple(begun), vocabulary=engine.info.vocabulary, tokens=len(begun))
    rest = await go_on(device, request, partial)
    assert text == seen + rest.text, "the device goes on behind vLLM's own tokens"
