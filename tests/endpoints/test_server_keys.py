"""Keys that expire: every endpoint asks a function for the key of each request, and shows none of them."""

from __future__ import annotations

from typing import Any

import pytest

import streamco
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Request
from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
from streamco.endpoints.local_server import LocalServerEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.split.endpoint import SplitEndpoint
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.errors import ConfigError, EndpointStatusError
from streamco.testing import RecordedRequest, ScriptedResponse, ScriptedServer, json_answer, stream_answer
from streamco.wire.verify.errors import UnauthorisedError
from tests.client.helpers import HELLO, device, words
from tests.endpoints.helpers import NO_RETRIES, QUICK_RETRIES, ask, opened
from tests.endpoints.verifiers.support import QUICK, TARGET, an_engine, scripted, verifier_at
from tests.support.leaks import settled
from tests.support.logprob_servers import ScriptedVLLM


class Tokens:
    """Gives a new key each time."""

    def __init__(self) -> None:
        self.given: list[str] = []

    async def __call__(self) -> str:
        self.given.append(f"token-number-{len(self.given) + 1}")
        return self.given[-1]


def keys_of(server: ScriptedServer, header: str = "authorization") -> list[str]:
    return [request.headers[header] for request in server.requests]


async def test_each_answer_and_each_try_has_a_key_of_its_own() -> None:
    refused = json_answer({"error": {"message": "busy"}}, status=503)
    server = ScriptedServer(stream_answer(), refused, stream_answer())
    async with server, opened(server.url, api_key=Tokens(), retry=QUICK_RETRIES) as endpoint:
        assert [(await ask(endpoint)).text for _ in range(2)] == ["Hello world"] * 2
    assert keys_of(server) == [f"Bearer token-number-{number}" for number in (1, 2, 3)]


async def test_questions_beside_answers_have_a_key_as_well() -> None:
    models = json_answer({"object": "list", "data": [{"id": "m"}]})
    async with ScriptedServer(models) as server, opened(server.url, api_key=Tokens(), provider="openai") as endpoint:
        assert await endpoint.models() == ["m"]
        assert await endpoint.check_access() is None
        await endpoint.probe()
    assert keys_of(server) == [f"Bearer token-number-{number}" for number in (1, 2, 3)]


async def test_a_header_of_the_callers_goes_before_the_key_which_is_then_not_asked_for() -> None:
    tokens = Tokens()
    async with ScriptedServer() as server:
        async with opened(server.url, api_key=tokens) as endpoint:
            await ask(endpoint, Request(messages=[], headers={"authorization": "Bearer mine"}))
        async with opened(server.url, api_key=tokens, headers={"AUTHORIZATION": "Bearer always"}) as endpoint:
            await ask(endpoint)
    assert keys_of(server) == ["Bearer mine", "Bearer always"]
    assert tokens.given == []


async def test_azure_and_anthropic_get_it_in_their_own_headers() -> None:
    async with ScriptedServer() as server:
        url = server.url.removesuffix("/v1")
        for endpoint, header in (
            (OpenAIEndpoint("m", base_url=url, provider="azure", api_key=Tokens()), "api-key"),
            (AnthropicEndpoint("m", base_url=url, api_key=Tokens(), retry=NO_RETRIES), "x-api-key"),
        ):
            await ask(endpoint)
            await endpoint.aclose()
            assert server.requests[-1].headers[header] == "token-number-1"
            assert "authorization" not in server.requests[-1].headers


async def test_a_local_server_gets_it() -> None:
    models = json_answer({"object": "list", "data": [{"id": "m"}]})

    def respond(request: RecordedRequest) -> ScriptedResponse:
        return stream_answer() if request.method == "POST" else models

    async with ScriptedServer(respond) as server:
        endpoint = LocalServerEndpoint(server.url, api_key=Tokens())
        await ask(endpoint)
        await endpoint.aclose()
    assert all(key.startswith("Bearer token-number-") for key in keys_of(server))
    assert len(set(keys_of(server))) == len(server.requests)


async def test_a_verifier_by_log_probabilities_asks_for_each_round() -> None:
    engine, tokens = an_engine(), Tokens()
    async with ScriptedVLLM(TARGET, engine.tokenize) as server:
        verifier = VLLMVerifier(server.url, api_key=tokens, timeouts=QUICK)
        await verifier.start(engine)
        await verifier.probe()
        await verifier.aclose()
    assert keys_of(server) == [f"Bearer {token}" for token in tokens.given]


async def test_a_verifier_asks_for_each_connection() -> None:
    tokens = Tokens()
    async with scripted(token="token-number-1") as server, verifier_at(server.url, token=tokens) as verifier:
        await verifier.find()
        await server.aclose()
        await settled(lambda: (connection := verifier._connections.get().connection) is not None and connection.is_over)
        await server.start()
        with pytest.raises(UnauthorisedError):
            await verifier.find()
    assert tokens.given == ["token-number-1", "token-number-2"]


async def test_a_servers_key_goes_to_the_verifier_that_is_found_there() -> None:
    from streamco.endpoints.verifiers.discovery import find_verifier

    engine, tokens = an_engine(), Tokens()
    async with ScriptedVLLM(TARGET, engine.tokenize) as server, opened(server.url, api_key=tokens) as endpoint:
        verifier = await find_verifier(endpoint)
        assert isinstance(verifier, VLLMVerifier)
        assert verifier._key.given is tokens
        await verifier.aclose()


# Errors


async def test_a_server_that_repeats_a_functions_key_is_quoted_without_it() -> None:
    def refuse(request: RecordedRequest) -> ScriptedResponse:
        return json_answer({"error": {"message": f"no such key: {request.headers['authorization']}"}}, status=401)

    async with ScriptedServer(refuse) as server, opened(server.url, api_key=Tokens()) as endpoint:
        error = (await ask(endpoint)).failure()
        assert isinstance(error, EndpointStatusError)
        assert "token-number" not in str(error) + error.body
        with pytest.raises(EndpointStatusError) as caught:
            await endpoint.models()
        assert "token-number" not in str(caught.value) + caught.value.body


async def test_if_no_key_is_to_be_had_another_endpoint_answers() -> None:
    async def fail() -> str:
        raise OSError("the token service is down")

    async with ScriptedServer() as server:
        async with opened(server.url, api_key=fail) as endpoint:
            assert "expected a key from the function" in str((await ask(endpoint)).failure())
        one = OpenAIEndpoint("m", base_url=server.url, api_key=fail)
        async with Client(device(words(0.0)), one, mode=Race(policy="server-first")) as client:
            answer = await client.chat.completions.create(messages=HELLO)
            assert answer.choices[0].message.content == "w0 "
        assert server.requests == []


@pytest.mark.parametrize(
    "make",
    [
        lambda key: streamco.OpenAIEndpoint("m", api_key=key),
        lambda key: streamco.AnthropicEndpoint("m", api_key=key),
        lambda key: streamco.LocalServerEndpoint("http://127.0.0.1:1", api_key=key),
        lambda key: streamco.verifiers.VLLMVerifier("http://127.0.0.1:1", api_key=key),
        lambda key: streamco.verifiers.SGLangVerifier("http://127.0.0.1:1", api_key=key),
        lambda key: VerifierEndpoint("http://127.0.0.1:1", token=key),
        lambda key: streamco.verifiers.VerifierPool(["http://127.0.0.1:1"], token=key),
        lambda key: SplitEndpoint("parts", "http://127.0.0.1:1", token=key),
    ],
)
@pytest.mark.parametrize("key", [b"sk-1", 5, ["sk-1"]])
def test_every_endpoint_refuses_keys_of_other_types_by_name(make: Any, key: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^(api_key|token): expected a string or a function, got {type(key).__name__}$"):
        make(key)


@pytest.mark.parametrize("model", [None, 5, b"m", ["m"]])
def test_a_model_that_is_no_text_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match=f"^model: expected the name of a model, got {type(model).__name__}$"):
        OpenAIEndpoint(model, base_url="http://127.0.0.1:1")


# Who pays at OpenAI


async def test_openais_organisation_and_project_are_sent_unless_arguments_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    async with ScriptedServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        for options in ({}, {"project": "proj-2"}, {"organization": "", "project": ""}, {"headers": {"openai-organization": "org-3"}}):
            endpoint = OpenAIEndpoint("m", **options)
            await ask(endpoint)
            await endpoint.aclose()
        async with opened(server.url) as endpoint:
            await ask(endpoint)
    sent = [(request.headers.get("openai-organization"), request.headers.get("openai-project")) for request in server.requests]
    assert sent == [("org-1", "proj-1"), ("org-1", "proj-2"), (None, None), ("org-3", "proj-1"), (None, None)]
