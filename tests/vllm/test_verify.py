"""vLLM as it is, as a verifier of what the packaged model drafts. ``make vllm`` runs these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from streamco.client.client import Client
from streamco.client.modes.speculation.mode import Speculate
from streamco.core.speculation.events import ConnectVerifier, VerifierFailed, VerifierLost
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.generation_request import request_ids
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import EndpointStatusError, VerifierError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.testing import FakeEngine
from streamco.wire.verify.topk import quantise
from tests.endpoints.helpers import NO_RETRIES
from tests.endpoints.test_hand_over import ASKED
from tests.endpoints.verifiers.support import Talk
from tests.support.leaks import settled
from tests.vllm.comparing import Drafts, OwnText, compare, write_alone
from tests.vllm.server import CONTEXT_TOKENS, MODEL, Server, running_vllm
from tests.vllm.test_vllm import PATIENT, STORY, running

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TOKENS = 32
END_IDS = {0, 2}  # <|endoftext|> and <|im_end|> of SmolLM2


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_vllm() as server:
        yield server


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(packaged_model(), EngineOptions(context_tokens=CONTEXT_TOKENS, threads=1, held_sequences=8))
    yield engine
    engine.close()


@asynccontextmanager
async def verifier_at(server: Server, engine: LlamaEngine | FakeEngine, top_k: int = 20) -> AsyncIterator[VLLMVerifier]:
    verifier = VLLMVerifier(server.url, model=MODEL, name="vllm", timeouts=PATIENT, top_k=top_k)
    await verifier.start(engine)
    try:
        yield verifier
    finally:
        await verifier.aclose()


def story(engine: LlamaEngine) -> list[int]:
    return request_ids(engine, type(ASKED[0])(messages=STORY))


async def test_probing_finds_what_it_allows(server: Server, engine: LlamaEngine) -> None:
    async with verifier_at(server, engine, top_k=64) as verifier:
        facts = await verifier.probe()
        assert (facts.model, facts.top_k, facts.context_tokens) == (MODEL, 20, CONTEXT_TOKENS), "20 is what it allows by itself"
        assert verifier.rtt is not None


async def test_another_vocabulary_is_refused(server: Server) -> None:
    async with verifier_at(server, FakeEngine()) as verifier:
        with pytest.raises(VerifierError, match="vocabulary"):
            await verifier.probe()


async def test_greedy_drafts_give_its_own_answer_but_where_two_tokens_are_nearly_as_good(server: Server, engine: LlamaEngine) -> None:
    async with verifier_at(server, engine) as verifier:
        await verifier.probe()
        prompts = [(str(number), request_ids(engine, request)) for number, request in enumerate(ASKED)]
        found = await compare(verifier, engine, [*prompts, ("story", story(engine))], tokens=TOKENS)
    print(found)
    assert found.accepted > found.drafted / 2
    assert found.largest_shift < 1.0, "log-probabilities of bfloat16, in two orders of adding up"
    for difference in found.differences:
        assert difference.margin <= found.largest_shift, difference
    assert len(found.differences) <= max(1, 0.01 * found.tokens), found.differences


@pytest.mark.parametrize("is_adaptive", [False, True])
async def test_a_client_speculates_on_it(server: Server, engine: LlamaEngine, is_adaptive: bool) -> None:
    """Whole answers, the server's own as far as no two tokens are nearly as good; adaptive ones are mostly written by it alone."""
    remote = OpenAIEndpoint(MODEL, base_url=server.url, name="vllm", timeouts=PATIENT, retry=NO_RETRIES, tokenizer=engine)
    speculation = Speculate(is_adaptive=is_adaptive)
    async with Client(DeviceEndpoint(engine), remote, mode=speculation, seed=1) as client:
        for request in ASKED[1:3]:
            own = await write_alone(remote, request_ids(engine, request), TOKENS)
            stream = client.stream(list(request.messages or ()), temperature=0, max_tokens=TOKENS)
            text = "".join([token.text async for token in stream])
            figures = stream.report.speculation
            assert figures is not None
            print(figures)
            assert figures.rounds if not is_adaptive else figures.rounds + figures.remote
            assert figures.is_exact
            assert figures.losses == 0
            place = first_difference(engine, own, text)
            if place is not None:
                best, second, *_ = sorted(own.tops[place].values(), reverse=True)
                assert best - second < 0.4, f"token {place} of {own.ids}: {text!r}"


def first_difference(engine: LlamaEngine, own: OwnText, text: str) -> int | None:
    """The token of a server's own text at which another text leaves it; None: they are one."""
    ids = [token for token in own.ids if token not in END_IDS]
    for place in range(len(ids)):
        if not text.startswith(engine.detokenize(ids[: place + 1]).decode("utf-8", "ignore")):
            return place
    return None


async def test_rows_come_with_the_verdict_and_sampling_is_exact_within_them(server: Server, engine: LlamaEngine) -> None:
    rule = Rule(RuleKind.SAMPLE, 0.8, top_k=20, seed=2)
    async with verifier_at(server, engine) as verifier:
        facts = await verifier.probe()
        assert facts.is_exact(rule)
        assert not facts.is_exact(Rule(RuleKind.SAMPLE, 0.8, top_k=40))
        talk = Talk(verifier, story(engine), rule=rule, top_k=8)
        await talk.connect()
        drafts = Drafts(engine)
        drafted = await drafts.write(talk.prompt, 3)
        drafts.close()
        verdict = await talk.verify(drafted, rows=[quantise([(token, 1.0)], is_whole=True) for token in drafted])
        assert [len(row) for row in verdict.rows] == [8] * 4
        assert all(0.0 < share <= 1.0 for row in verdict.rows for _, share in row)
        assert verdict.compute_seconds > 0


async def test_the_threshold_rule_takes_the_drafts_own_probability(server: Server, engine: LlamaEngine) -> None:
    async with verifier_at(server, engine) as verifier:
        for threshold, accepted in ((0.0, 3), (1.0, 0)):
            talk = Talk(verifier, story(engine), rule=Rule(RuleKind.THRESHOLD, threshold=threshold))
            await talk.connect()
            verdict = await talk.verify([77, 78, 79])
            assert verdict.accepted == accepted


async def test_an_id_outside_the_vocabulary_and_a_full_context_are_failures(server: Server, engine: LlamaEngine) -> None:
    async with verifier_at(server, engine) as verifier:
        talk = Talk(verifier, story(engine))
        await talk.connect()
        talk.send([999_999])
        error = (await talk.next(VerifierFailed, limit=60)).error
        assert isinstance(error, EndpointStatusError)
        assert error.status == 400
        talk = Talk(verifier, [5] * (CONTEXT_TOKENS - 2))
        await talk.connect()
        talk.send([5, 5])
        assert "less than" in str((await talk.next(VerifierFailed)).error)


async def test_a_round_that_nobody_waits_for_is_left(server: Server, engine: LlamaEngine) -> None:
    async with verifier_at(server, engine) as verifier:
        await verifier.probe()
        talk = Talk(verifier, [5] * 900)
        await talk.connect()
        talk.send([5, 5])
        await asyncio.sleep(0.05)
        await talk.aclose()
        await settled(lambda: running(server) == 0, limit=60)


async def test_killed_in_mid_round_it_is_lost_and_tried_again(server: Server, engine: LlamaEngine) -> None:
    """The last one here: nobody answers afterwards."""
    async with verifier_at(server, engine) as verifier:
        talk = Talk(verifier, story(engine))
        await talk.connect()
        talk.send([77, 78])
        server.kill()
        await talk.next(VerifierLost)
        talk.session.run(ConnectVerifier(()))
        await asyncio.sleep(0.3)
        assert not talk.has_emitted()
