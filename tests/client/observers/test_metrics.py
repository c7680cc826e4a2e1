"""A client's answers as Prometheus metrics."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streamco.client.observers.base import PACKAGE_VERSION
from streamco.client.observers.metrics import AnswerMetrics
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointConnectError, EndpointError
from streamco.openai_types import CompletionUsage
from streamco.testing import Cut, ScriptedResponse, ScriptedServer, chunk_event
from tests.client.helpers import ask, device, opened, server, tokens_text, words
from tests.client.speculating import PROMPT, World


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """All samples as Prometheus reads them: name and labels in its notation."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


async def test_a_race_is_counted_with_its_winner_tokens_and_money(registry: CollectorRegistry) -> None:
    sides = device(), server([(5.0, "S")], usage=CompletionUsage(10, 1, 11), prices=TokenPrices(prompt=1e-6, completion=2e-6))
    async with opened(*sides, policy="both", budget=1.0, observers=[AnswerMetrics(registry)]) as client:
        for _ in range(2):
            stream = client.stream("hello")
            await tokens_text(stream)
            await stream.aclose()
        spent = client.totals
    found = samples(registry)
    assert found['streamco_races_total{policy="both",winner="device"}'] == 2
    assert found['streamco_requests_total{mode="race",outcome="complete"}'] == 2
    assert found['streamco_time_to_first_token_seconds_count{winner="device"}'] == 2
    assert found['streamco_request_duration_seconds_count{outcome="complete"}'] == 2
    assert found['streamco_endpoint_requests_total{endpoint="server",outcome="lost"}'] == 2
    assert found['streamco_endpoint_tokens_total{endpoint="device",kind="completion"}'] == 2
    parts = spent.endpoints
    assert found['streamco_endpoint_tokens_total{endpoint="server",kind="wasted_prompt"}'] == parts["server"].wasted_prompt_tokens > 0
    estimated = found['streamco_endpoint_tokens_total{endpoint="server",kind="estimated_prompt"}']
    assert estimated == parts["server"].estimated_prompt_tokens > 0, "a server that lost has sent no count"
    assert found['streamco_cost_usd_total{endpoint="server"}'] == pytest.approx(parts["server"].cost_usd)
    assert found["streamco_streams"] == 0
    assert found[f'streamco_build_info{{version="{PACKAGE_VERSION}"}}'] == 1


async def test_streams_under_way_are_a_gauge(registry: CollectorRegistry) -> None:
    async with opened(device([(0.0, "a"), (60.0, "b")]), observers=[AnswerMetrics(registry)]) as client:
        stream = client.stream("hello")
        async for _token in stream:
            break
        assert samples(registry)["streamco_streams"] == 1
        await stream.aclose()
    found = samples(registry)
    assert found["streamco_streams"] == 0
    assert found['streamco_requests_total{mode="race",outcome="left"}'] == 1


async def test_errors_hand_overs_and_refusals_are_counted_by_kind(registry: CollectorRegistry) -> None:
    metrics = AnswerMetrics(registry)
    cut = ScriptedResponse(steps=[chunk_event("One "), chunk_event("two "), Cut()])
    async with ScriptedServer(cut) as scripted:
        first = OpenAIEndpoint("m", base_url=scripted.url, name="first")
        second = server(words(0.0, 0.0, 0.0), name="second", capabilities=Capabilities(continuation="prefix"))
        async with opened(None, [first, second], observers=[metrics]) as client:
            await ask(client)
    async with opened(server=server([(0.0, EndpointConnectError("down"))]), observers=[metrics]) as client:
        with pytest.raises((AllEndpointsFailed, EndpointError)):
            await ask(client)
    async with opened(device(capabilities=Capabilities()), observers=[metrics]) as client:
        with pytest.raises(ConfigError, match="tools"):
            await ask(client, tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    found = samples(registry)
    assert found['streamco_hand_overs_total{reason="EndpointProtocolError"}'] == 1
    assert found['streamco_endpoint_errors_total{endpoint="first",error="EndpointProtocolError"}'] == 1
    assert found['streamco_endpoint_errors_total{endpoint="server",error="EndpointConnectError"}'] == 1
    assert found['streamco_requests_total{mode="race",outcome="failed"}'] == 1
    assert sum(value for name, value in found.items() if name.startswith("streamco_refusals_total")) == 1


async def test_speculation_has_its_own_counters(registry: CollectorRegistry) -> None:
    world = World()
    try:
        async with world.scripted() as verifier, world.speculating(verifier, observers=[AnswerMetrics(registry)]) as client:
            stream = client.stream(PROMPT, temperature=0)
            await tokens_text(stream)
            await stream.aclose()
            figures = stream.report.speculation
    finally:
        world.close()
    assert figures is not None
    found = samples(registry)
    assert found['streamco_requests_total{mode="speculate",outcome="complete"}'] == 1
    assert found["streamco_speculation_rounds_total"] == figures.rounds > 0
    assert found["streamco_speculation_draft_tokens_total"] == figures.drafted
    assert found["streamco_speculation_accepted_tokens_total"] == figures.accepted
    assert found["streamco_speculation_sent_bytes_total"] == figures.bytes_up


async def test_budget_and_failed_endpoints_are_read_from_the_client(registry: CollectorRegistry) -> None:
    metrics = AnswerMetrics(registry)
    async with opened(device(), server(), budget=0.4, observers=[metrics]) as client:
        metrics.watch(client)
        assert math.isnan(samples(registry)["streamco_budget_share"])
        await ask(client)
        found = samples(registry)
        assert found["streamco_budget_limit"] == 0.4
        assert found["streamco_budget_share"] == client.totals.budget_share
        assert found["streamco_degraded_endpoints"] == 0


async def test_money_of_unknown_prices_is_counted_as_unknown(registry: CollectorRegistry) -> None:
    async with opened(server=server(), observers=[AnswerMetrics(registry)]) as client:
        await ask(client)
    found = samples(registry)
    assert found['streamco_unpriced_requests_total{endpoint="server"}'] == 1
    assert 'streamco_cost_usd_total{endpoint="server"}' not in found


def test_one_registry_takes_the_metrics_once(registry: CollectorRegistry) -> None:
    AnswerMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        AnswerMetrics(registry)
