"""Servers that are asked at the start what they are."""

from __future__ import annotations

import logging

import pytest

from streamco.client.client import Client
from streamco.config import RetryPolicy, Timeouts
from streamco.endpoints.base import Capabilities
from streamco.errors import EndpointConnectError
from streamco.proxy.app import serving
from streamco.proxy.from_config import build_client
from streamco.proxy.config import parse_config
from streamco.proxy.probed import ProbedEndpoint
from streamco.server.app import serving as serving_engine
from streamco.testing.engine import FakeEngine
from tests.client.helpers import ask, server

QUICK = Timeouts(connect=5.0)


async def test_what_a_server_says_of_itself_is_known_after_the_start() -> None:
    async with serving_engine(FakeEngine("one two", context_tokens=99)) as url:
        endpoint = ProbedEndpoint("fake", base_url=url, name="remote")
        before = endpoint.capabilities
        async with Client(server=endpoint) as client:
            after = endpoint.capabilities
            assert await ask(client) == "one two"
    assert (before.context_tokens, after.context_tokens) == (None, 99)
    assert (before.continuation, after.continuation != "none") == ("none", True)


async def test_what_was_declared_goes_before() -> None:
    async with serving_engine(FakeEngine(context_tokens=99)) as url:
        endpoint = ProbedEndpoint("fake", base_url=url, capabilities=Capabilities(tools=True, context_tokens=50))
        async with Client(server=endpoint):
            assert endpoint.capabilities.tools
            assert endpoint.capabilities.context_tokens == 50


async def test_a_server_that_does_not_answer_is_used_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = ProbedEndpoint("m", base_url="http://127.0.0.1:9/v1", name="remote", timeouts=QUICK, retry=RetryPolicy(attempts=0))
    with caplog.at_level(logging.WARNING):
        async with Client(server=endpoint) as client:
            with pytest.raises(EndpointConnectError):
                await ask(client)
    assert "server not probed: remote: " in caplog.text


async def test_a_proxy_is_not_taken_for_a_server_that_can_go_on_with_an_answer() -> None:
    async with Client(server=server()) as client, serving(client) as url:
        endpoint = ProbedEndpoint("streamco", base_url=url)
        async with Client(server=endpoint):
            assert endpoint.capabilities.continuation == "none"


@pytest.mark.parametrize("is_probed", [False, True])
def test_the_configuration_chooses(is_probed: bool) -> None:
    text = f'[[server]]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\nprobe = {str(is_probed).lower()}\n'
    (endpoint,) = build_client(parse_config(text), {})._shared.servers
    assert isinstance(endpoint, ProbedEndpoint) is is_probed
