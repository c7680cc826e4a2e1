"""Ratings at the proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamco import QualityGate, Race
from streamco.testing.endpoint import ScriptedEndpoint
from tests.client.helpers import device
from tests.proxy.callers.support import caller, new_store, paid
from tests.proxy.support import CHAT, HELLO, RunningProxy, proxying

PATH = "/streamco/ratings"
GATED: dict[str, Any] = {"dispatch": Race(policy="device-first", quality=QualityGate(min_score=0.5)), "budget": 0.9}


def local(probability: float = 0.9) -> ScriptedEndpoint:
    return device(probability=probability)


async def asked(proxy: RunningProxy, headers: dict[str, str] | None = None) -> str:
    """Ask; return the id of the answer, which may be rated."""
    async with proxy.client.post(CHAT, json=HELLO, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["x-streamco-ratings"] == PATH
        await response.read()
        return response.headers["x-request-id"]


async def rated(proxy: RunningProxy, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    async with proxy.client.post(PATH, json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_an_answer_is_rated_once_by_its_id() -> None:
    async with proxying(local(), paid(), **GATED) as proxy:
        name = await asked(proxy)
        assert await rated(proxy, {"id": name, "good": True}) == (200, {"learned": True})
        status, body = await rated(proxy, {"id": name, "good": False})
        assert (status, body["error"]["code"]) == (404, "not_ratable")


async def test_a_servers_answer_teaches_nothing() -> None:
    async with proxying(local(0.1), paid(), **GATED) as proxy:
        async with proxy.client.post(CHAT, json=HELLO) as response:
            assert response.headers["x-streamco-grade"] == "unsure, 0.10"
            name = response.headers["x-request-id"]
        assert await rated(proxy, {"id": name, "good": True}) == (200, {"learned": False})


async def test_what_is_no_rating_is_refused() -> None:
    async with proxying(local(), paid(), **GATED) as proxy:
        for body in ({"id": "x"}, {"id": "x", "good": 1}, {"id": "x", "good": True, "why": "y"}, [], "x"):
            status, answer = await rated(proxy, body)
            assert status == 400, answer
        assert (await rated(proxy, {"id": "unknown", "good": True}))[0] == 404


async def test_without_a_gate_nothing_can_be_rated() -> None:
    async with proxying(local(), paid()) as proxy:
        async with proxy.client.post(CHAT, json=HELLO) as response:
            assert "x-streamco-ratings" not in response.headers
        async with proxy.client.post(PATH, json={"id": "x", "good": True}) as response:
            assert response.status == 404


async def test_a_caller_rates_its_own_answers_alone(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    new_store(path).close()
    alice, bob = caller(path, "alice"), caller(path, "bob")
    async with proxying(local(), paid(), callers=str(path), **GATED) as proxy:
        name = await asked(proxy, alice)
        status, body = await rated(proxy, {"id": name, "good": False}, bob)
        assert (status, body["error"]["code"]) == (404, "not_ratable")
        assert await rated(proxy, {"id": name, "good": True}, alice) == (200, {"learned": True})
        assert (await rated(proxy, {"id": name, "good": True}, {}))[0] == 401
