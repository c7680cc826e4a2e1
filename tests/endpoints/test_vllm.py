"""What is vLLM's alone; what it shares with SGLang is tried in test_stock, the real server in tests/vllm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamco.core.speculation import VerifierFailed
from streamco.endpoints.vllm import VLLMVerifier
from streamco.errors import VerifierError
from streamco.testing import ScriptedVLLM
from streamco.wire.verify import Rule, RuleKind
from tests.endpoints.verifiers import PROMPT, QUICK, TARGET, Talk, an_engine, greedy

ANSWER = greedy(TARGET, PROMPT, 8)


async def test_the_servers_cap_on_rows_is_learned_and_kept_to() -> None:
    engine = an_engine()
    async with ScriptedVLLM(TARGET, engine.tokenize, max_logprobs=5) as server:
        verifier = VLLMVerifier(server.url, timeouts=QUICK)
        await verifier.start(engine)
        assert (await verifier.probe()).top_k == 5
        talk = Talk(verifier, top_k=9, rule=Rule(RuleKind.THRESHOLD, threshold=0.5))
        await talk.connect()
        verdict = await talk.judged(ANSWER[:2])
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
        await talk.judged(ANSWER[:4])
        sent = server.requests[-1].json()
        assert (sent["prompt_logprobs"], sent["logprobs"], sent["temperature"], sent["stream"]) == (1, 1, 0, False)
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
