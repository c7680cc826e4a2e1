"""A callers' file that can't be used lets nothing through, at the start, in between and at the end of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.client.modes.speculation.mode import Speculate
from streamco.endpoints.base import TokenPrices
from streamco.errors import ConfigError
from streamco.proxy.app import make_app
from streamco.proxy.callers.store import SettledCost
from streamco.proxy.config import ProxyOptions
from streamco.server.http.listening import make_runner
from tests.client.helpers import device, recorded_log, server
from tests.proxy.callers.support import (
    COUNT,
    PAID,
    SMALL,
    USED,
    access_of,
    asking,
    caller,
    locked,
    new_store,
    paid,
    serving,
    today,
    until_settled,
)
from tests.proxy.support import CHAT, RunningProxy
from tests.server.support import until


async def refused(proxy: RunningProxy, headers: Mapping[str, str]) -> None:
    """Nothing is let through: neither answers nor anything else that needs a key."""
    for place in (*PAID, COUNT):
        async with proxy.client.post(place, json=asking(place), headers=headers) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "5")
            text = await response.text()
            assert "callers: expected a file" in text
            assert ".sqlite" not in text
    async with proxy.client.get("/health") as response:
        assert response.status == 503
        assert "callers" in (await response.json())["reason"]


async def test_without_the_file_nothing_is_let_through_and_with_it_again_everything_is(path: Path) -> None:
    headers = caller(path)
    near, far = device(), paid()
    with recorded_log() as records:
        async with serving(path, near, far) as proxy:
            kept = path.read_bytes()
            path.unlink()
            await refused(proxy, headers)
            for place in ("/v1/models", USED):
                async with proxy.client.get(place, headers=headers) as response:
                    assert response.status == 503
            assert not path.exists(), "and no new one is made"
            assert not near.streams
            assert not far.streams
            path.write_bytes(kept)
            async with proxy.client.get("/health") as response:
                assert response.status == 200
            assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200
    errors = [record for record in records if record.levelname == "ERROR"]
    assert len(errors) == 1, "said once, until it can be used again"
    assert str(path) in errors[0].getMessage()


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000])
async def test_a_file_of_something_else_lets_nothing_through(path: Path, content: bytes) -> None:
    headers = caller(path)
    near, far = device(), paid()
    async with serving(path, near, far) as proxy:
        other = path.with_name("other")
        other.write_bytes(content)
        other.replace(path)
        await refused(proxy, headers)
    assert not near.streams
    assert not far.streams


async def test_a_file_that_is_locked_or_may_only_be_read_admits_no_answer(path: Path) -> None:
    headers = caller(path)
    near, far = device(), paid()
    async with serving(path, near, far) as proxy:
        accounts = access_of(proxy)._accounts
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200
        made = len(near.streams) + len(far.streams)
        connection = accounts._store._connection
        assert connection is not None
        await accounts.run(connection.execute, "PRAGMA query_only = ON")
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 503
        accounts._store._patience = 0.01
        with locked(path):
            assert (await proxy.post(CHAT, SMALL, **headers))[0] == 503
            assert len(near.streams) + len(far.streams) == made
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200


async def health_of(proxy: RunningProxy) -> int:
    async with proxy.client.get("/health") as response:
        return response.status


async def test_health_says_that_the_file_is_locked_or_gone_before_any_request_does(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.proxy.callers.accounts.CHECK_INTERVAL", 0.0)
    caller(path)
    with recorded_log() as records:
        async with serving(path, far=paid()) as proxy:
            assert await health_of(proxy) == 200
            accounts = access_of(proxy)._accounts
            accounts._store._patience = 0.01
            await accounts.run(accounts._store.close)
            with locked(path):
                assert [await health_of(proxy) for _ in range(3)] == [503] * 3
            assert [await health_of(proxy) for _ in range(2)] == [200] * 2
            path.unlink()
            assert await health_of(proxy) == 503
    said = [record.levelname for record in records if record.getMessage().startswith("callers: ")]
    assert said == ["ERROR", "WARNING", "ERROR"], "each change is said once"


async def test_a_file_that_was_replaced_while_the_proxy_ran_lets_nothing_through(path: Path) -> None:
    headers = caller(path)
    near, far = device(), paid()
    async with serving(path, near, far) as proxy:
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200
        made = len(near.streams) + len(far.streams)
        other = path.with_name("other.sqlite")
        mine = caller(new_store(other).path, "bob")
        other.replace(path)
        for each in (headers, mine):
            await refused(proxy, each)
        assert len(near.streams) + len(far.streams) == made


async def test_a_cost_that_cannot_be_written_leaves_the_reservation_until_it_can(path: Path) -> None:
    headers = caller(path)
    far = paid([(0.0, "one"), (60.0, "two")], tokens=100)
    async with serving(path, far=far) as proxy:
        accounts = access_of(proxy)._accounts
        accounts._store._patience = 0.01
        await accounts.run(accounts._store.close)
        response = await proxy.client.post(CHAT, json={**SMALL, "stream": True}, headers=headers)
        await response.content.readline()
        with locked(path):
            response.close()
            await until(lambda: access_of(proxy)._problem)
            assert today(proxy, path).reserved > 0
        far.script, far.ends_after = [(0.0, "S")], 0.0
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200
        figures = today(proxy, path)
    assert figures.reserved == 0
    assert figures.spent >= 100_000 + 16_000


async def test_a_settling_that_fails_leaves_time_to_the_others_at_the_end(path: Path) -> None:
    caller(path)
    async with serving(path, far=paid()) as proxy:
        access = access_of(proxy)
        assert await access._accounts.reserve("a", "alice", 600, may_fall_back=False)

        async def fail() -> None:
            raise RuntimeError("not the file's fault")

        async def settle() -> None:
            await asyncio.sleep(0.05)
            await access._accounts.settle("a", SettledCost(cost=3))

        access._settling |= {asyncio.create_task(fail()), asyncio.create_task(settle())}
        with pytest.raises(RuntimeError, match="not the file's fault"):
            await access.stop()
        figures = today(proxy, path)
        access._settling.clear()
    assert (figures.spent, figures.reserved) == (3, 0)


async def test_an_answer_does_not_wait_for_a_file_that_is_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.proxy.callers.access._SETTLING", 0.01)
    headers = caller(path)
    async with serving(path, far=paid()) as proxy:
        accounts = access_of(proxy)._accounts
        settle, is_free = accounts.settle, asyncio.Event()

        async def waiting(reservation: str, settled: SettledCost) -> None:
            await is_free.wait()
            await settle(reservation, settled)

        monkeypatch.setattr(accounts, "settle", waiting)
        statuses = await asyncio.gather(*(proxy.post(CHAT, SMALL, **headers) for _ in range(10)))
        assert [status for status, _ in statuses] == [200] * 10
        figures = today(proxy, path)
        assert figures.spent == 0
        assert figures.reserved > 10 * 16_000, "what isn't settled stays reserved"
        is_free.set()
        await until_settled(proxy, path)
        assert today(proxy, path).spent == 10 * 16_000


# At the start


@pytest.mark.parametrize("prices", [TokenPrices(), TokenPrices(prompt=1e-6), TokenPrices(completion=1e-6)])
async def test_a_server_without_a_known_price_is_refused_at_the_start(path: Path, prices: TokenPrices) -> None:
    async with Client(device(), [paid(name="first"), paid(name="second", prices=prices)]) as client:
        with pytest.raises(ConfigError, match=r"callers: expected known prices of each server.* got none of second"):
            make_app(client, ProxyOptions(callers=path))


async def test_answers_that_no_budget_would_pay_are_refused_at_the_start(path: Path) -> None:
    mode = Race(quality=QualityGate(shadow=0.1))
    async with Client(device(), paid(name="first"), mode=mode) as client:
        with pytest.raises(ConfigError, match=r"quality gate: shadow: must be 0 with callers, .* got 0\.1"):
            make_app(client, ProxyOptions(callers=path))


async def test_a_server_that_is_never_asked_needs_no_price(path: Path) -> None:
    headers = caller(path)
    async with serving(path, device(), server(), policy="device-only") as proxy:
        assert (await proxy.post(CHAT, SMALL, **headers))[0] == 200


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 1000])
async def test_a_file_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "callers.sqlite"
    if content is not None:
        path.write_bytes(content)
    async with Client(server=paid()) as client:
        options = ProxyOptions(callers=path)
        runner = make_runner(make_app(client, options), options)
        with pytest.raises(ConfigError, match="callers: expected a file that"):
            await runner.setup()
        await runner.cleanup()


def test_callers_and_one_key_contradict_each_other(path: Path) -> None:
    with pytest.raises(ConfigError, match="callers: can't be combined with an api key"):
        ProxyOptions(callers=path, api_key="sk-1")
    options = ProxyOptions(callers=path, host="0.0.0.0", cors=("*",))
    options.check_exposure()
    assert options.has_key
    with pytest.raises(ConfigError, match="answer_tokens: expected at least 1"):
        ProxyOptions(answer_tokens=0)


async def test_a_verifier_without_a_price_is_refused_at_the_start(path: Path) -> None:
    async with Client(device(), mode=Speculate(verifier="ws://127.0.0.1:9")) as client:
        with pytest.raises(ConfigError, match="got none of verifier"):
            make_app(client, ProxyOptions(callers=path))
