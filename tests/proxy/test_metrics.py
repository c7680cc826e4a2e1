"""``GET /metrics`` of the proxy, as Prometheus itself reads it, and traces that go through."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.proxy.app import serving
from tests.client.helpers import device, server
from tests.proxy.support import CHAT, HELLO, RunningProxy, proxying

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}


async def read_metrics(proxy: RunningProxy) -> dict[str, float]:
    async with proxy.client.get("/metrics") as response:
        assert response.status == 200
        text = await response.text()
    return {each.name: each.value for family in text_string_to_metric_families(text) for each in family.samples}


async def test_answers_are_counted() -> None:
    async with proxying(device(), server([(5.0, "S")]), policy="both", budget=1.0) as proxy:
        assert (await proxy.post(CHAT, HELLO))[0] == 200
        while (found := await read_metrics(proxy))["streamco_streams"]:
            await asyncio.sleep(0.01)
    assert found["streamco_races_total"] == 1
    assert found["streamco_budget_limit"] == 1.0
    assert found["streamco_time_to_first_token_seconds_count"] == 1


async def test_without_metrics_the_client_has_no_observer() -> None:
    async with proxying(server=server(), metrics=False) as proxy:
        async with proxy.client.get("/metrics") as response:
            assert response.status == 404
        assert not proxy.proxy.client.observers._observers


async def test_one_client_can_be_served_again_after_its_application_has_ended() -> None:
    async with Client(server=server()) as client:
        for _ in range(2):
            async with serving(client) as address, aiohttp.ClientSession() as http, http.get(f"{address}/models") as response:
                assert response.status == 200
        assert not client.observers._observers


async def test_a_callers_trace_is_passed_on_and_nonsense_is_not() -> None:
    side = server()
    async with proxying(server=side) as proxy:
        for headers in (TRACE, {"traceparent": "nonsense\tof some kind"}):
            async with proxy.client.post(CHAT, json=HELLO, headers=headers) as response:
                assert response.status == 200
    first, second = (dict(each.request.headers) for each in side.streams)
    assert {name: first[name] for name in TRACE} == TRACE
    assert "traceparent" not in second


@asynccontextmanager
async def prometheus(address: str, folder: Path) -> AsyncIterator[str]:
    """Debian's Prometheus, which reads this proxy every second; its own address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: streamco, static_configs: [{{targets: ['{address.removeprefix('http://').removesuffix('/v1')}']}}]}}]\n"
    )
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    process = await asyncio.create_subprocess_exec("prometheus", *words, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.peer
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus isn't installed (Debian's package of that name)")
async def test_prometheus_reads_them(tmp_path: Path) -> None:
    async with (
        Client(device(), server([(5.0, "S")]), mode=Race(policy="both"), budget=1.0) as client,
        aiohttp.ClientSession() as http,
        serving(client) as address,
        prometheus(address, tmp_path) as watcher,
    ):
        async with http.post(f"{address}/chat/completions", json=HELLO) as response:
            assert response.status == 200
        while not (found := await _query(http, watcher, 'streamco_races_total{winner="device",policy="both"}')):
            await asyncio.sleep(0.2)
        assert found[0]["value"][1] == "1"
        quantile = "histogram_quantile(0.5, sum by (le) (streamco_time_to_first_token_seconds_bucket))"
        assert await _query(http, watcher, quantile)


async def _query(http: aiohttp.ClientSession, watcher: str, query: str) -> list[dict[str, list[str]]]:
    try:
        async with http.get(f"{watcher}/api/v1/query", params={"query": query}) as response:
            if response.status != 200:
                return []
            found: list[dict[str, list[str]]] = (await response.json())["data"]["result"]
            return found
    except aiohttp.ClientConnectionError:  # it is still starting
        return []
