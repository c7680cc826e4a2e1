"""What is SGLang's alone, against a scripted server; what it shares with vLLM is tried in test_stock."""

from __future__ import annotations

import pytest

from streamco.core.speculation.events import VerifierFailed
from streamco.endpoints.verifiers.sglang import SGLangVerifier
from tests.endpoints.verifiers.support import PROMPT, QUICK, TARGET, Talk, an_engine, greedy
from tests.support.logprob_servers import ScriptedSGLang

ANSWER = greedy(TARGET, PROMPT, 8)


async def test_logprobs_begin_one_before_the_draft_so_that_the_cache_gives_the_rest() -> None:
    engine = an_engine()
    async with ScriptedSGLang(TARGET, engine.tokenize) as server:
        verifier = SGLangVerifier(server.url, timeouts=QUICK)
        await verifier.start(engine)
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:4])
        await talk.verify([9, 9])
        sent = server.requests[-1].json()
        assert sent["logprob_start_len"] == len(PROMPT) + 5 - 1
        assert sent["top_logprobs_num"] == 1
        assert server.requests[-1].path == "/generate"
        await verifier.aclose()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cached_tokens": 3}, "at most 2 tokens from its cache"),
        ({"input_token_logprobs": [[None, PROMPT[-1], None]]}, "input logprobs for 3 tokens"),
        ({"input_top_logprobs": []}, "input logprobs for 3 tokens"),
        ({"prompt_tokens": 4}, "a prompt of 5 tokens"),
    ],
)
async def test_rows_that_came_from_a_cache_or_are_missing_are_refused(changes: dict[str, object], what: str) -> None:
    engine = an_engine()
    async with ScriptedSGLang(TARGET, engine.tokenize) as server:
        verifier = SGLangVerifier(server.url, timeouts=QUICK)
        await verifier.start(engine)
        talk = Talk(verifier)
        await talk.connect()
        server.plan(lambda body: {**body, "meta_info": {**body["meta_info"], **changes}})
        talk.send(ANSWER[:2])
        assert what in str((await talk.next(VerifierFailed)).error)
        await verifier.aclose()
