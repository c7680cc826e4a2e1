"""Whole answers of a client with drafts that a stock server verifies."""

from __future__ import annotations

import pytest

from streamco.endpoints.verifiers.sglang import SGLangVerifier
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.testing import Cut, ScriptedResponse, json_answer
from tests.client.speculating import PROMPT, QUICK, World
from tests.support.logprob_servers import ScriptedSGLang, ScriptedVLLM

BOTH = [(ScriptedVLLM, VLLMVerifier), (ScriptedSGLang, SGLangVerifier)]


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(("serve", "make"), BOTH)
async def test_a_speculated_answer_is_the_targets_own(
    serve: type[ScriptedVLLM | ScriptedSGLang], make: type[VLLMVerifier | SGLangVerifier]
) -> None:
    world = World()
    async with serve(world.target, world.engine.tokenize) as server:
        verifier = make(server.url, timeouts=QUICK)
        async with world.speculating(verifier) as client:
            answer = await client.chat.completions.create(messages=[{"role": "user", "content": PROMPT}], temperature=0, max_tokens=100)
        assert answer.choices[0].message.content == world.text()
        assert server.answered > 3
    world.close()


@pytest.mark.long
@pytest.mark.parametrize(("serve", "make"), BOTH)
async def test_faults_in_between_cost_time_and_no_token(
    serve: type[ScriptedVLLM | ScriptedSGLang], make: type[VLLMVerifier | SGLangVerifier]
) -> None:
    world = World()
    async with serve(world.target, world.engine.tokenize) as server:
        verifier = make(server.url, timeouts=QUICK)
        async with world.speculating(verifier) as client:
            busy = json_answer({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "0.01"})
            server.plan(None, busy, ScriptedResponse(steps=[b"{", Cut()]), None, busy, json_answer({}, status=500))
            answer = await client.chat.completions.create(messages=[{"role": "user", "content": PROMPT}], temperature=0, max_tokens=100)
        assert answer.choices[0].message.content == world.text()
    world.close()
