"""What is vLLM's alone; what it shares with SGLang is tried in test_stock, the real server in tests/vllm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamco.config import SamplingOptions
from streamco.core.speculation.events import VerifierFailed
from streamco.endpoints.base import Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.errors import EndpointStatusError, VerifierError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.testing.responses import json_answer
from tests.endpoints.helpers import read_all
from tests.endpoints.verifiers.support import PROMPT, QUICK, TARGET, Talk, an_engine, greedy
from tests.support.logprob_servers import ScriptedVLLM

ANSWER = greedy(TARGET, PROMPT, 8)


async def test_the_servers_cap_on_rows_is_learned_and_kept_to() -> None:
    engine = an_engine()
    async with ScriptedVLLM(TARGET, engine.tokenize, max_logprobs=5) as server:
        verifier = VLLMVerifier(server.url, timeouts=QUICK)
        await verifier.start(engine)
        assert (await verifier.probe()).top_k == 5
        talk = Talk(verifier, top_k=9, rule=Rule(RuleKind.THRESHOLD, threshold=0.5))
        await talk.connect()
        verdict = await talk.verify(ANSWER[:2])
        assert {len(row) for row in verdict.rows} <= {5, 6}, "the draft's own token comes on top"
        assert server.requests[-1].json()["prompt_logprobs"] == 5
        await verifier.aclose()


async def test_a_server_that_allows_no_rows_does_not_verify() -> None:
    engine = an_engine()
    async with ScriptedVLLM(TARGET, engine.tokenize, max_logprobs=0) as server:
        verifier = VLLMVerifier(server.url, timeouts=QUICK)
        await verifier.start(engine)
        with pytest.raises(VerifierError, match="none allowed"):
            await verifier.probe()
        await verifier.aclose()


async def test_greedy_rounds_ask_for_one_id_a_row() -> None:
    engine = an_engine()
    async with ScriptedVLLM(TARGET, engine.tokenize) as server:
        verifier = VLLMVerifier(server.url, timeouts=QUICK)
        await verifier.start(engine)
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:4])
        sent = server.requests[-1].json()
        assert (sent["prompt_logprobs"], sent["logprobs"], sent["temperature"], sent["stream"]) == (1, 1, 0, False)
        await verifier.aclose()


async def test_what_a_verifier_leaves_in_the_cache_is_found_with_its_own_salt_alone() -> None:
    engine = an_engine()
    salts = []
    async with ScriptedVLLM(TARGET, engine.tokenize) as server:
        for _ in range(2):
            server.requests.clear()
            verifier = VLLMVerifier(server.url, timeouts=QUICK)
            await verifier.start(engine)
            talk = Talk(verifier)
            await verifier.probe()
            await talk.connect()
            await talk.verify(ANSWER[:4])
            await talk.verify([])
            assert isinstance(verifier.remote, OpenAIEndpoint)
            await read_all(verifier.remote.open(Request(prompt_ids=PROMPT, sampling=SamplingOptions(max_tokens=2))))
            sent = [request.json() for request in server.requests if request.path == "/v1/completions"]
            assert len(sent) >= 4
            assert len({body["cache_salt"] for body in sent}) == 1, "of the rounds and of what is written without them"
            salts.append(sent[0]["cache_salt"])
            await verifier.aclose()
    assert salts[0] != salts[1]
    assert min(map(len, salts)) >= 32


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_knows_no_salt_is_sent_none(status: int) -> None:
    engine = an_engine()
    async with ScriptedVLLM(TARGET, engine.tokenize) as server:
        server.plan(json_answer({"error": {"message": "cache_salt: Extra inputs are not permitted"}}, status=status))
        verifier = VLLMVerifier(server.url, timeouts=QUICK)
        await verifier.start(engine)
        await verifier.probe()
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:2])
        sent = [request.json() for request in server.requests if request.path == "/v1/completions"]
        assert ["cache_salt" in body for body in sent] == [True, False, False]
        await verifier.aclose()


async def test_a_server_that_refuses_something_else_is_refused_as_before() -> None:
    engine = an_engine()
    async with ScriptedVLLM(TARGET, engine.tokenize) as server:
        refusal = json_answer({"error": {"message": "no"}}, status=400)
        server.plan(refusal, refusal)
        verifier = VLLMVerifier(server.url, timeouts=QUICK)
        await verifier.start(engine)
        with pytest.raises(EndpointStatusError):
            await verifier.probe()
        await verifier.probe()
        assert "cache_salt" in server.requests[-1].json()
        await verifier.aclose()


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda it: it["prompt_logprobs"].pop(), "prompt_logprobs for 5 tokens"),
        (lambda it: it["prompt_logprobs"][3].clear(), "itself"),
        (lambda it: it["prompt_token_ids"].append(1), "the prompt of 5 ids"),
    ],
)
async def test_rows_that_are_not_the_drafts_are_refused(spoil: Callable[[Any], Any], what: str) -> None:
    def change(body: Any) -> Any:
        spoil(body["choices"][0])
        return body

    engine = an_engine()
    async with ScriptedVLLM(TARGET, engine.tokenize) as server:
        verifier = VLLMVerifier(server.url, timeouts=QUICK)
        await verifier.start(engine)
        talk = Talk(verifier)
        await talk.connect()
        server.plan(change)
        talk.send(ANSWER[:2])
        assert what in str((await talk.next(VerifierFailed)).error)
        await verifier.aclose()
