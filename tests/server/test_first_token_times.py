"""The first-token times that a server tells: which answers they are of, how many, and to whom."""

from __future__ import annotations

from streamco.server.first_token_times import FIELD, HEADER, FirstTokenTimes
from tests.server.support import CHAT, HELLO, TEXT, running

KEY = {"Authorization": "Bearer secret"}


def times_of(*seconds: float) -> FirstTokenTimes:
    times = FirstTokenTimes()
    for at, each in enumerate(seconds):
        times.record(each, now=float(at))
    return times


def test_without_answers_there_are_none() -> None:
    assert FirstTokenTimes().quantiles(now=0.0) == []


def test_few_times_are_told_as_they_are() -> None:
    assert times_of(0.3, 0.1, 0.20004).quantiles(now=3.0) == [0.1, 0.2, 0.3]


def test_of_many_times_ten_equally_likely_ones_are_told() -> None:
    told = times_of(*(each / 100 for each in range(100, 0, -1))).quantiles(now=100.0)
    assert told == [0.06, 0.16, 0.26, 0.36, 0.46, 0.56, 0.66, 0.76, 0.86, 0.96]
    assert len(times_of(*(each / 10 for each in range(11))).quantiles(now=20.0)) == 10


def test_only_the_latest_answers_count() -> None:
    assert set(times_of(*[9.0] * 50, *[1.0] * 100).quantiles(now=150.0)) == {1.0}
    times = times_of(9.0)
    times.record(1.0, now=500.0)
    assert times.quantiles(now=600.0) == [1.0, 9.0]
    assert times.quantiles(now=600.5) == [1.0]
    assert times.quantiles(now=2000.0) == []


async def test_they_are_told_with_the_model_and_with_each_answer_once_there_were_any() -> None:
    async with running() as server:
        async with server.client.get("/v1/models") as response:
            assert (await response.json())["data"][0][FIELD] == []
        async with server.client.post(CHAT, json=HELLO) as response:
            assert HEADER not in response.headers
            await response.read()
        async with server.client.get("/v1/models") as response:
            (seconds,) = (await response.json())["data"][0][FIELD]
        assert seconds >= 0
        for path, body in ((CHAT, HELLO), (CHAT, {**HELLO, "stream": True}), (TEXT, {"prompt": "Hello", "stream": True})):
            async with server.client.post(path, json=body) as response:
                told = [float(each) for each in response.headers[HEADER].split(",")]
                await response.read()
            assert told[0] >= 0


async def test_they_are_told_only_to_those_who_give_the_key() -> None:
    async with running(api_key="secret") as server:
        async with server.client.post(CHAT, json=HELLO, headers=KEY) as response:
            await response.read()
        async with server.client.post(CHAT, json=HELLO, headers=KEY) as response:
            assert HEADER in response.headers
            await response.read()
        for path in ("/v1/models", "/v1/models/fake", "/health", "/metrics"):
            async with server.client.get(path) as response:
                assert HEADER not in response.headers
                assert FIELD not in await response.text()
        async with server.client.post(CHAT, json=HELLO, headers={"Authorization": "Bearer other"}) as response:
            assert (response.status, HEADER in response.headers) == (401, False)
