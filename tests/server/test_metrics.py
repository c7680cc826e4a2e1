"""A server's own generations as metrics."""

from __future__ import annotations

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamco.testing.engine import FakeEngine
from tests.server.support import CHAT, HELLO, Running, running


async def metrics(server: Running) -> dict[str, float]:
    """Every sample that has no label or that of an outcome, by name."""
    async with server.client.get("/metrics") as response:
        assert response.status == 200
        text = await response.text()
    families = text_string_to_metric_families(text)
    return {
        each.name + "".join(each.labels.values()): each.value for family in families for each in family.samples if "le" not in each.labels
    }


async def test_a_generation_is_counted_with_its_tokens_and_times() -> None:
    async with running(FakeEngine("one two three")) as server:
        status, body = await server.post(CHAT, HELLO)
        assert status == 200
        found = await metrics(server)
    assert found["streamco_server_generation_tokens_total"] == body["usage"]["completion_tokens"] > 0
    assert found["streamco_server_prompt_tokens_total"] == body["usage"]["prompt_tokens"] > 0
    assert found["streamco_server_request_duration_seconds_countstop"] == 1
    assert found["streamco_server_time_to_first_token_seconds_count"] == 1
    assert found["streamco_server_queue_seconds_count"] == 1
    assert found["streamco_server_requests"] == 0


async def test_a_reader_that_leaves_is_counted_as_that() -> None:
    async with running(FakeEngine("one two three " * 50, mode="thread", token_s=0.05)) as server:
        async with server.client.post(CHAT, json={**HELLO, "stream": True}) as response:
            await response.content.readany()
            response.close()
        while (found := await metrics(server))["streamco_server_requests"]:
            pass
    assert found["streamco_server_request_duration_seconds_countleft"] == 1
    assert found["streamco_server_time_to_first_token_seconds_count"] == 1


async def test_the_verifiers_figures_are_there_only_if_drafts_are_verified() -> None:
    async with running(FakeEngine(held_sequences=2)) as server:
        found = await metrics(server)
    assert found["streamco_verify_sessions"] == 0
    assert found["streamco_verify_verdicts_total"] == 0
    async with running(verify=None) as server:
        assert "streamco_verify_sessions" not in await metrics(server)


async def test_without_metrics_there_is_no_such_path() -> None:
    async with running(metrics=False) as server, server.client.get("/metrics") as response:
        assert response.status == 404
        with pytest.raises(aiohttp.ClientResponseError):
            response.raise_for_status()
