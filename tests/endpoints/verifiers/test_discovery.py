"""A server with an OpenAI API is asked what it is, and becomes the verifier that it is."""

from __future__ import annotations

import pytest

from streamco.config import Timeouts
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.discovery import find_verifier
from streamco.endpoints.verifiers.sglang import SGLangVerifier
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.errors import EndpointError
from streamco.server.app import ServeOptions, serving
from streamco.testing import ScriptedServer, json_answer
from tests.endpoints.verifiers.support import TARGET, an_engine
from tests.support.logprob_servers import ScriptedSGLang, ScriptedVLLM


async def test_streamco_serve_verifies_over_its_own_protocol_with_the_same_key() -> None:
    engine = an_engine()
    async with serving(engine, ServeOptions(api_key="secret")) as url:
        server = OpenAIEndpoint("any", base_url=url, api_key="secret", name="mine", timeouts=Timeouts(next_token=4.0))
        verifier = await find_verifier(server)
        assert isinstance(verifier, VerifierEndpoint)
        assert verifier.name == "mine"
        assert verifier.timeouts == Timeouts(next_token=4.0, socket=5.0)
        await verifier.start(engine)
        assert (await verifier.probe()).holds_context
        await verifier.aclose()
        await server.aclose()
    engine.close()


@pytest.mark.parametrize(("kind", "verifies"), [(ScriptedVLLM, VLLMVerifier), (ScriptedSGLang, SGLangVerifier)])
async def test_stock_servers_verify_as_they_are(kind: type[ScriptedVLLM], verifies: type[VLLMVerifier]) -> None:
    engine = an_engine()
    async with kind(TARGET, engine.tokenize) as scripted:
        server = OpenAIEndpoint(scripted.model, base_url=scripted.url, timeouts=Timeouts(next_token=4.0))
        verifier = await find_verifier(server)
        assert isinstance(verifier, verifies)
        assert verifier.timeouts == Timeouts(next_token=4.0)
        await verifier.start(engine)
        await verifier.probe()
        await verifier.aclose()
        await server.aclose()


async def test_others_do_not_verify_and_nobody_says_so() -> None:
    async with ScriptedServer(json_answer({"object": "list", "data": [{"id": "m"}]})) as scripted:
        url = scripted.url
        server = OpenAIEndpoint("m", base_url=url)
        assert await find_verifier(server) is None
        await server.aclose()
    server = OpenAIEndpoint("m", base_url=url)
    with pytest.raises(EndpointError):
        await find_verifier(server)
    await server.aclose()
