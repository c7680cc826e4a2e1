"""Ratings at the proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamco import QualityGate, Race
from streamco.testing.endpoint import ScriptedEndpoint
from tests.client.helpers import device
from tests.proxy.callers.support import caller, new_store, paid
from tests.proxy.support import CHAT, HELLO, RunningProxy, proxying

GATED: dict[str, Any] = {"dispatch": Race(policy="device-first", quality=QualityGate(min_score=0.5)), "budget": 0.9}


def local(probability: float = 0.9) -> ScriptedEndpoint:
    return device(probability=probability)


async def asked(proxy: RunningProxy, headers: dict[str, str] | None = None) -> str:
    """Ask; return the path that a rating of the answer goes to."""
    async with proxy.client.post(CHAT, json=HELLO, headers=headers) as response:
        assert response.status == 200, await response.text()
        await response.read()
        return response.headers["x-streamco-rating"]


async def rated(proxy: RunningProxy, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    async with proxy.client.post(path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def test_an_answer_is_rated_once_where_its_header_says() -> None:
    async with proxying(local(), paid(), **GATED) as proxy:
        path = await asked(proxy)
        assert await rated(proxy, path, {"good": True}) == (200, {"learned": True})
        status, body = await rated(proxy, path, {"good": False})
        assert (status, body["error"]["code"]) == (404, "not_ratable")


async def test_a_servers_answer_teaches_nothing() -> None:
    async with proxying(local(0.1), paid(), **GATED) as proxy:
        async with proxy.client.post(CHAT, json=HELLO) as response:
            assert response.headers["x-streamco-grade"] == "unsure, 0.10"
            path = response.headers["x-streamco-rating"]
        assert await rated(proxy, path, {"good": True}) == (200, {"learned": False})


async def test_what_is_no_rating_is_refused() -> None:
    async with proxying(local(), paid(), **GATED) as proxy:
        path = await asked(proxy)
        bodies: list[Any] = [{}, {"good": 1}, {"good": True, "why": "y"}, [], "x"]
        for body in bodies:
            status, answer = await rated(proxy, path, body)
            assert status == 400, answer
        assert (await rated(proxy, "/streamco/ratings/unknown", {"good": True}))[0] == 404
        assert await rated(proxy, path, {"good": True}) == (200, {"learned": True})


async def test_without_a_gate_nothing_can_be_rated() -> None:
    async with proxying(local(), paid()) as proxy:
        async with proxy.client.post(CHAT, json=HELLO) as response:
            assert "x-streamco-rating" not in response.headers
        async with proxy.client.post("/streamco/ratings/x", json={"good": True}) as response:
            assert response.status == 404


async def test_a_caller_rates_its_own_answers_alone(tmp_path: Path) -> None:
    path = tmp_path / "callers.sqlite"
    new_store(path).close()
    alice, bob = caller(path, "alice"), caller(path, "bob")
    async with proxying(local(), paid(), callers=str(path), **GATED) as proxy:
        same_id = {"x-request-id": "mine"}
        hers = await asked(proxy, alice | same_id)
        his = await asked(proxy, bob | same_id)  # a caller names its requests as it likes, also as another one does
        for key in (bob, {}):
            assert (await rated(proxy, hers, {"good": False}, key))[0] == (404 if key else 401)
        assert await rated(proxy, hers, {"good": True}, alice) == (200, {"learned": True})
        assert await rated(proxy, his, {"good": False}, bob) == (200, {"learned": True})
