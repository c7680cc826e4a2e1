"""Answers with drafts that are looked up, by a client that has no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from msgspec.structs import replace

from streamco.client.client import Client
from streamco.client.modes.speculation.mode import Speculate
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.served_vocabulary import ServedVocabulary, read_prompt
from streamco.endpoints.verifiers.sglang import SGLangVerifier
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.engines.base import TokenVocabulary
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointProtocolError, EndpointTimeoutError, EngineError
from streamco.policies.acceptance import Rule
from streamco.server.app import Service
from streamco.testing import run_in_virtual_time
from streamco.testing.engine import FakeVocabulary
from tests.client.helpers import tokens_text
from tests.client.speculating import PROMPT, QUICK, SAID, SIZE, World
from tests.support.leaks import holding_nothing_new, settled
from tests.support.logprob_servers import ScriptedSGLang, ScriptedVLLM
from tests.support.modes import drafting

FEW = {"vocabulary": "x", "context_tokens": 9, "end_ids": [1], "tokens": ["YQ==", "", "4g=="]}
LOOKUPS = Speculate(drafter="lookup", is_adaptive=False)


def repeating(ids: Sequence[int]) -> Mapping[int, float]:
    """A model that says eight words over and over, with another one now and then."""
    place = len(ids)
    return {(place % 8 if place % 30 else 50 + place % SAID // 2): 0.9, 199: 0.1}


class Repeating(World):
    """A target that repeats itself."""

    def __init__(self, **device: Any) -> None:
        super().__init__(**device)
        self.target.model = repeating  # type: ignore[assignment]

    def fill(self) -> None:
        """Give each id a text, as in a server's vocabulary."""
        self.prompt_ids()
        for token in range(self.vocabulary.size):
            try:
                self.vocabulary.decode([token])
            except EngineError:
                self.vocabulary.id_of(f" x{token}")


def another_vocabulary() -> FakeVocabulary:
    """Other words for the same ids."""
    vocabulary = FakeVocabulary("another", SIZE)
    for token in range(SAID):
        vocabulary.id_of(f" v{token}")
    return vocabulary


@asynccontextmanager
async def looking_up(server: OpenAIEndpoint | None, **options: Any) -> AsyncIterator[Client]:
    options.setdefault("mode", LOOKUPS)
    async with holding_nothing_new(), Client(server=server, seed=1, **options) as client:
        yield client


@pytest.fixture
def repeater() -> Any:
    world = Repeating(length=150)
    world.fill()
    world.wake()
    yield world
    world.close()


@pytest.mark.parametrize("mode", [LOOKUPS, Speculate(drafter="lookup")])
async def test_a_client_without_a_model_gets_the_servers_own_text(repeater: Repeating, mode: Speculate) -> None:
    async with repeater.served() as url, looking_up(OpenAIEndpoint("large", base_url=url, name="server"), mode=mode) as client:
        assert client.unspeculated == ""
        for _ in range(3):
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == repeater.text()
            report, done = stream.report, stream.report.speculation
            assert done is not None
            assert (report.mode, done.device, done.is_exact) == ("speculate", 0, True)
            lookup = report.endpoints[0]
            assert (lookup.name, lookup.outcome, lookup.prompt_tokens, lookup.energy_j) == ("lookup", "drafted", 0, 0.0)
            if mode is LOOKUPS:
                assert done.accepted > 60
                assert done.remote == 0
                assert done.rounds < 60
                assert report.dispatch.reason == "lookup drafts, server verifies by greedy"


async def test_sampled_answers_are_verified_by_rejection_sampling(repeater: Repeating) -> None:
    async with repeater.served() as url, looking_up(OpenAIEndpoint("large", base_url=url, name="server")) as client:
        stream = client.stream(PROMPT, temperature=1.0, seed=3)
        await tokens_text(stream)
        done = stream.report.speculation
        assert done is not None
        assert done.is_exact
        assert done.accepted > 20


async def test_the_verifier_alone_is_enough(repeater: Repeating) -> None:
    async with repeater.served() as url:
        async with looking_up(None, device=DeviceEndpoint(repeater.engine), mode=Speculate(drafter="lookup", verifier=url)) as client:
            assert client.unspeculated == ""
            assert isinstance(drafting(client).binding.vocabulary, ServedVocabulary), "it isn't known that the device has the same one"
        verifiers = [VerifierEndpoint(url, name="one"), VerifierEndpoint(url, name="two")]
        mode = Speculate(drafter="lookup", is_adaptive=False, verifier=verifiers)
        async with looking_up(OpenAIEndpoint("large", base_url=url, name="server"), mode=mode) as client:
            assert await tokens_text(client.stream(PROMPT, temperature=0)) == repeater.text()


async def test_a_device_with_the_servers_vocabulary_reads_the_prompts(repeater: Repeating) -> None:
    async with repeater.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with Client(DeviceEndpoint(repeater.engine), server, mode=LOOKUPS, seed=1) as client:
            assert drafting(client).binding.vocabulary is repeater.engine
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == repeater.text()
            assert stream.report.endpoints[0].name == "lookup"


@pytest.mark.parametrize(("serve", "make"), [(ScriptedVLLM, VLLMVerifier), (ScriptedSGLang, SGLangVerifier)])
async def test_a_server_that_tells_no_vocabulary_needs_a_device_that_has_it(serve: Any, make: Any) -> None:
    world = Repeating(length=100)
    async with serve(world.target, world.engine.tokenize) as scripted:
        verifier = make(scripted.url, timeouts=QUICK)
        async with Client(server=OpenAIEndpoint("m", base_url=scripted.url), mode=replace(LOOKUPS, verifier=verifier)) as client:
            assert 'drafter="lookup" expected a server that tells its vocabulary' in client.unspeculated
        verifier = make(scripted.url, timeouts=QUICK)
        async with world.speculating(verifier, speculation=LOOKUPS) as client:
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == world.text()
            done = stream.report.speculation
            assert done is not None
            assert (done.accepted > 20, done.ahead_rate) == (True, 0.0), "it verifies no drafts ahead"
    world.close()


async def test_an_older_server_that_tells_no_vocabulary_is_named() -> None:
    world = World()
    async with world.scripted() as old:
        mode = replace(LOOKUPS, verifier=VerifierEndpoint(old.url, name="old"))
        async with Client(server=OpenAIEndpoint("m", base_url="http://127.0.0.1:1/v1"), mode=mode) as client:
            assert client.unspeculated.startswith("old/vocabulary: expected")
    world.close()


def test_settings_that_contradict_lookups_are_refused() -> None:
    with pytest.raises(ConfigError, match="drafter: expected one of device, lookup, got 'ngram'"):
        Speculate(drafter="ngram")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='budget: expected 1 with drafter="lookup"'):
        Speculate(drafter="lookup", budget=0.5)


async def test_lookups_verify_everything_whatever_the_clients_budget(repeater: Repeating) -> None:
    async with repeater.served() as url, looking_up(OpenAIEndpoint("large", base_url=url, name="server"), budget=0.3) as client:
        assert drafting(client).budget == 1.0


async def test_what_is_learned_of_a_device_says_nothing_of_lookups(repeater: Repeating) -> None:
    async with repeater.served() as url:
        server = OpenAIEndpoint("large", base_url=url, name="server")
        async with Client(DeviceEndpoint(repeater.engine), server, mode=Speculate(), seed=1) as client:
            drafting(client).estimates.record_verdict([0.9] * 8, 8, is_hit=None)
            other = client.with_options(mode=LOOKUPS)
            assert drafting(other).estimates.acceptance == 0.5
            assert await tokens_text(other.stream(PROMPT, temperature=0)) == repeater.text()


@pytest.mark.parametrize("answer", [None, {"vocabulary": "x"}, {"vocabulary": "x", "context_tokens": 1, "end_ids": [], "tokens": [1]}])
def test_an_answer_that_is_no_vocabulary_is_an_error(answer: Any) -> None:
    with pytest.raises(EndpointProtocolError, match="/vocabulary: expected the tokens' bytes"):
        ServedVocabulary(OpenAIEndpoint("m", base_url="http://127.0.0.1:1"), answer)


@pytest.mark.parametrize(
    ("lie", "problem"),
    [
        ({"tokens": []}, "expected at least one token"),
        ({"context_tokens": 0}, "expected a context of at least 1 token, got 0"),
        ({"end_ids": [1, 3]}, "expected end ids from 0 to 2, got 3"),
        ({"end_ids": [-1]}, "expected end ids from 0 to 2, got -1"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_an_error(lie: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(EndpointProtocolError, match=problem):
        ServedVocabulary(OpenAIEndpoint("m", base_url="http://127.0.0.1:1"), {**FEW, **lie})


@pytest.mark.parametrize("ids", [[-1], [300], [True], [10**40], "text"])
async def test_another_mode_answers_if_a_server_reads_prompts_into_ids_that_are_none(
    repeater: Repeating, monkeypatch: pytest.MonkeyPatch, ids: Any
) -> None:
    async def tokenize(*_: Any) -> web.Response:
        return web.json_response({"tokens": ids})

    monkeypatch.setattr(Service, "tokenize", tokenize)
    async with repeater.served() as url, looking_up(OpenAIEndpoint("large", base_url=url, name="server")) as client:
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == repeater.text()
        assert stream.report.mode == "race"
        assert "/tokenize: expected" in client.unspeculated


def test_a_server_has_little_time_to_read_a_prompt() -> None:
    server = OpenAIEndpoint("m", base_url="http://127.0.0.1:1")
    server.ask = lambda *_: asyncio.sleep(1000.0)  # type: ignore[method-assign]

    async def read() -> float:
        with pytest.raises(EndpointTimeoutError, match=r"/tokenize: expected the prompt's ids within 2 s, got none"):
            await read_prompt(server, Request(prompt="x"), vocabulary_size=3, within=2.0)
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(read()) == pytest.approx(2.0)


async def test_a_server_that_reads_no_prompts_is_not_asked_again_and_again(repeater: Repeating, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def hang(*args: object) -> web.Response:
        asked.append(args)
        await asyncio.sleep(1.0)
        return web.json_response({"tokens": []})

    monkeypatch.setattr(Service, "tokenize", hang)
    mode = replace(LOOKUPS, patience=0.1)
    async with repeater.served() as url, looking_up(OpenAIEndpoint("large", base_url=url, name="server"), mode=mode) as client:
        for _ in range(3):
            stream = client.stream(PROMPT, temperature=0)
            assert await tokens_text(stream) == repeater.text()
            assert stream.report.mode == "race"
            assert "expected the prompt's ids within 0.1 s" in client.unspeculated
        assert len(asked) == 1


async def test_the_time_in_which_the_server_reads_the_prompt_is_in_the_report(repeater: Repeating, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize, trip = Service.tokenize, 0.05

    async def slow(service: Service, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(trip)
        return await tokenize(service, request)

    monkeypatch.setattr(Service, "tokenize", slow)
    async with repeater.served() as url, looking_up(OpenAIEndpoint("large", base_url=url, name="server")) as client:
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == repeater.text()
        report = stream.report
    assert report.mode == "speculate"
    assert report.ttft is not None
    assert trip <= report.ttft <= report.duration


async def test_a_refused_prompt_says_nothing_of_others_and_an_error_of_the_server_does(
    repeater: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = iter([400, 500])

    async def refuse(*_: object) -> web.Response:
        return web.json_response({"error": {"message": "can't read SECRET"}}, status=next(statuses))

    monkeypatch.setattr(Service, "tokenize", refuse)
    async with repeater.served() as url, looking_up(OpenAIEndpoint("large", base_url=url, name="server")) as client:
        stream = client.stream(PROMPT, temperature=0)
        assert await tokens_text(stream) == repeater.text()
        assert (stream.report.mode, client.unspeculated) == ("race", "")
        await tokens_text(client.stream(PROMPT, temperature=0))
        assert client.unspeculated.endswith("expected a prompt's ids, got EndpointStatusError 500"), "nothing of the prompt"


async def test_chats_with_a_model_that_reasons_are_answered_without_drafts(repeater: Repeating) -> None:
    repeater.large.info = replace(repeater.large.info, has_reasoning=True)
    async with repeater.served() as url, looking_up(OpenAIEndpoint("large", base_url=url, name="server")) as client:
        stream = client.stream(PROMPT, temperature=0)
        await tokens_text(stream)
        assert stream.report.mode == "race"
        assert "the model reasons before it answers" in stream.report.dispatch.reason


async def test_another_verifier_reads_prompts_if_the_one_that_told_the_vocabulary_is_gone(repeater: Repeating) -> None:
    async with AsyncExitStack() as first, repeater.served() as url:
        verifiers = [
            VerifierEndpoint(await first.enter_async_context(repeater.served()), name="one", timeouts=QUICK),
            VerifierEndpoint(url, name="two", timeouts=QUICK),
        ]
        mode = replace(LOOKUPS, verifier=verifiers)
        async with looking_up(OpenAIEndpoint("large", base_url=url, name="server"), mode=mode) as client:
            for is_gone in (False, True, True):
                if is_gone:
                    await first.aclose()
                stream = client.stream(PROMPT, temperature=0)
                assert await tokens_text(stream) == repeater.text()
                assert (stream.report.mode, client.unspeculated) == ("speculate", "")


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_server_may_be_started_again_with_another_model(
    repeater: Repeating, monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    monkeypatch.setattr("streamco.client.modes.speculation.verifier_binding._PROBE_AGAIN", 0.0)
    monkeypatch.setattr("tests.client.speculating.a_vocabulary", another_vocabulary)
    other = Repeating(length=150)
    other.fill()
    other.wake()
    async with AsyncExitStack() as first:
        url = await first.enter_async_context(repeater.served())
        server = OpenAIEndpoint("large", base_url=url, name="server", timeouts=QUICK)
        async with looking_up(server, mode=replace(LOOKUPS, patience=0.2)) as client:
            assert await tokens_text(client.stream(PROMPT, temperature=0)) == repeater.text()
            binding = drafting(client).binding
            assert binding.verifier is not None
            session = binding.verifier.open([1], lambda _: None, rule=Rule())
            if is_idle:
                await session.aclose()
            await first.aclose()
            async with other.served(port=urlsplit(url).port):
                with suppress(AllEndpointsFailed):  # the first answer learns of it
                    await tokens_text(client.stream(PROMPT, temperature=0))
                assert client.unspeculated
                wanted = "" if is_idle else "expected drafts of vocabulary"
                for _ in range(2):
                    assert await tokens_text(client.stream(PROMPT, temperature=0)) == other.text()
                    await settled(lambda: wanted in client.unspeculated and bool(client.unspeculated) is not is_idle)
                stream = client.stream(PROMPT, temperature=0)
                assert await tokens_text(stream) == other.text()
                assert stream.report.mode == ("speculate" if is_idle else "race")
            await session.aclose()
    other.close()


def test_a_vocabulary_has_the_bytes_of_tokens() -> None:
    vocabulary: TokenVocabulary = ServedVocabulary(OpenAIEndpoint("m", base_url="http://127.0.0.1:1"), FEW)
    assert vocabulary.detokenize([0, 1, 2, 0]) == b"a\xe2a"
    assert (vocabulary.info.vocabulary_size, vocabulary.info.end_ids, vocabulary.info.context_tokens) == (3, frozenset({1}), 9)
    for outside in (-1, 3):
        with pytest.raises(EndpointProtocolError, match="expected ids from 0 to 2"):
            vocabulary.detokenize([0, outside])
