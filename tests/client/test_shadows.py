"""Answers that servers write beside the device's, to learn from their comparison."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco import Client, QualityGate, Race
from streamco.client.modes.race.shadows import agree
from streamco.endpoints.base import TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.errors import ConfigError, EndpointConnectError, EndpointStatusError
from streamco.openai_types import CompletionUsage
from streamco.policies.quality import LearnedScore
from streamco.reports import Report, ShadowReport
from streamco.testing import FakeEngine, run_in_virtual_time
from streamco.testing.endpoint import text_chunk
from streamco.types import ShadowPair
from tests.client.helpers import EVERYTHING, HELLO, ask, chunks_text, opened, recorded_log, server
from tests.support.modes import racing

PRICES = TokenPrices(prompt=1e-6, completion=2e-6)
ALWAYS = QualityGate(shadow=1.0)


def local(text: str = "Paris.") -> DeviceEndpoint:
    return DeviceEndpoint(FakeEngine(text, probability=0.9))


def remote(text: str = "paris", at: float = 0.0, **options: Any) -> Any:
    return server([(at, text)], prices=PRICES, **options)


def mode(quality: QualityGate = ALWAYS, **options: Any) -> Race:
    options.setdefault("policy", "device-first")
    return Race(quality=quality, **options)


def learned(client: Client) -> LearnedScore:
    grader = racing(client).dispatcher.grader
    assert grader is not None
    return grader.learned


async def answered(client: Client, prompt: str = "hello", **options: Any) -> Any:
    """A stream that was read to its end, after its shadow has ended, too."""
    stream = client.stream(prompt, **options)
    assert "".join([token.text async for token in stream])
    await settled()
    return stream


async def settled() -> None:
    for _ in range(100):
        await asyncio.sleep(0.001)


def shadow_of(report: Report) -> ShadowReport:
    assert report.shadow is not None
    return report.shadow


# What they teach


@pytest.mark.parametrize(("text", "good"), [("PARIS", True), ("Paris, of course", False)])
async def test_a_short_answer_is_compared_word_for_word(text: str, good: bool) -> None:
    async with opened(local(), remote(text), mode=mode(), budget=0.9) as client:
        stream = await answered(client)
        assert shadow_of(stream.report).good is good
        assert [each.good for each in learned(client).examples] == [good]
        assert (client.totals.shadows.good, client.totals.shadows.bad) == (int(good), int(not good))


async def test_it_is_not_a_part_of_the_answer_and_its_cost_is_apart() -> None:
    there = remote(usage=CompletionUsage(30, 4, 34))
    async with opened(local(), there, mode=mode(), budget=0.9) as client:
        stream = await answered(client)
        report, totals = stream.report, client.totals
    assert len(there.streams) == 1
    assert (report.winner, report.cost_usd, totals.cost_usd, totals.answers) == ("device", 0.0, 0.0, 1)
    shadow = shadow_of(report)
    assert (shadow.endpoint, shadow.prompt_tokens, shadow.completion_tokens, shadow.is_estimated) == ("server", 30, 4, False)
    assert shadow.cost_usd == pytest.approx(38e-6)
    assert shadow.is_final
    assert totals.shadows.answers == 1
    assert totals.shadows.cost_usd == pytest.approx(38e-6)
    assert "shadow answer" in str(report)
    assert {part.name: part.outcome for part in report.endpoints}["server"] == "not started"


async def test_the_reader_doesnt_wait_for_it() -> None:
    async with opened(local(), remote(at=30.0), mode=mode(), budget=0.9) as client:
        stream = client.stream("hello")
        assert "".join([token.text async for token in stream]) == "Paris."
        assert stream.report.is_final
        shadow = shadow_of(stream.report)
        assert (shadow.good, shadow.is_final) == (None, False)
        assert "not compared yet" in str(stream.report)
    assert shadow_of(stream.report).why_not == "the client was closed"


async def test_a_longer_answer_needs_a_judge() -> None:
    long = " ".join(f"w{place}" for place in range(30))
    pairs: list[ShadowPair] = []

    async def judge(pair: ShadowPair) -> bool:
        pairs.append(pair)
        return len(pair.server) <= len(pair.device)

    async with opened(local(long), there := remote(), mode=mode(), budget=0.9) as client:
        assert (await answered(client)).report.shadow is None
        assert not there.streams
    async with opened(local(long), remote("short"), mode=mode(QualityGate(shadow=1.0, judge=judge)), budget=0.9) as client:
        assert shadow_of((await answered(client)).report).good is True
    (pair,) = pairs
    assert (pair.device, pair.server, pair.prompt) == (long, "short", None)
    assert list(pair.messages)[-1]["content"] == "hello"


async def test_a_server_that_says_more_than_can_be_compared_is_stopped_and_teaches_nothing() -> None:
    there = server([(0.0, f"w{place} ") for place in range(300)], prices=PRICES)
    async with opened(local(), there, mode=mode(), budget=0.9) as client:
        shadow = shadow_of((await answered(client)).report)
        assert (shadow.good, shadow.why_not) == (None, "the server's answer has more than 16 tokens")
        assert shadow.completion_tokens == 17  # and these were paid for
        assert there.streams[0].is_cancelled
        assert not learned(client).examples


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ([(0.0, text_chunk("", finish_reason="content_filter"))], "the server's answer has no text"),
        ([(0.0, text_chunk("Par")), (0.0, text_chunk("", finish_reason="length"))], "the server's answer was cut off"),
        ([(0.0, text_chunk("Par")), (0.0, text_chunk("", finish_reason="content_filter"))], "the server's answer was cut off"),
    ],
)
async def test_an_answer_that_isnt_whole_teaches_nothing(script: Any, why: str) -> None:
    async with opened(local(), server(script, prices=PRICES), mode=mode(), budget=0.9) as client:
        assert shadow_of((await answered(client)).report).why_not == why
        assert not learned(client).examples


async def test_a_device_that_was_cut_off_is_compared_by_a_judge_alone() -> None:
    for judge, count in ((None, 0), (lambda _: True, 1)):
        async with opened(local("Paris is the capital"), there := remote(), mode=mode(QualityGate(shadow=1.0, judge=judge))) as client:
            await answered(client, max_tokens=2)
            assert len(there.streams) == count


@pytest.mark.parametrize("where", ["open", "receive", "cancel"])
async def test_a_defect_of_the_server_is_said_and_nothing_is_lost(where: str, caplog: pytest.LogCaptureFixture) -> None:
    there = remote()

    def broken(*_: Any) -> Any:
        raise RuntimeError("Secret")

    if where == "open":
        there.open = broken
    else:
        plain = there.open

        def opening(request: Any) -> Any:
            stream = plain(request)
            setattr(stream, where, broken)
            return stream

        there.open = opening
    async with Client(local(), there, mode=mode(), budget=0.9, seed=1) as client:
        shadow = shadow_of((await answered(client)).report)
        assert shadow.is_final
        if where == "cancel":
            assert shadow.good is True
        else:
            assert shadow.why_not == "the server failed (RuntimeError)"
        there._streams = []
    assert "Secret" not in caplog.text


@pytest.mark.parametrize(
    ("judge", "why"),
    [
        (lambda _: None, "its judge didn't say"),
        (lambda _: 1, "its judge returned builtins.int, not True, False or None"),
        (lambda _: 1 / 0, "its judge raised ZeroDivisionError"),
    ],
)
async def test_a_judge_that_says_nothing_teaches_nothing(judge: Any, why: str) -> None:
    async with opened(local(), remote(), mode=mode(QualityGate(shadow=1.0, judge=judge)), budget=0.9) as client:
        assert shadow_of((await answered(client)).report).why_not == why
        assert not learned(client).examples


async def test_a_server_that_fails_costs_the_reader_nothing_and_rests() -> None:
    there = server([(0.0, EndpointConnectError("down"))], prices=PRICES)
    async with opened(local(), there, mode=mode(), budget=0.9) as client:
        report = (await answered(client)).report
        shadow = shadow_of(report)
        assert shadow.why_not.startswith("the server failed (")
        assert (shadow.prompt_tokens, shadow.cost_usd) == (0, 0.0)
        assert (report.winner, [part.error for part in report.endpoints if part.error]) == ("device", [])
        assert report.ending == "complete"
        for _ in range(5):
            assert (await answered(client)).report.shadow is None
        assert len(there.streams) == 1
        assert [each.endpoint for each in client.degraded] == ["server"]


async def test_a_server_that_refuses_is_not_asked_again_for_a_while() -> None:
    there = server([(0.0, EndpointStatusError("no such model", status=404))], prices=PRICES)
    async with opened(local(), there, mode=mode(), budget=0.9) as client:
        for _ in range(4):
            await answered(client)
        assert len(there.streams) == 1
        assert [each.endpoint for each in client.degraded] == ["server"]


def test_a_judge_has_a_minute() -> None:
    async def judge(_: ShadowPair) -> bool:
        await asyncio.Event().wait()
        return True

    async def main() -> str:
        async with Client(local(), remote(), mode=mode(QualityGate(shadow=1.0, judge=judge)), budget=0.9, seed=1) as client:
            stream = client.stream("hello")
            assert [token.text async for token in stream]
            await asyncio.sleep(61.0)
            return shadow_of(stream.report).why_not

    assert run_in_virtual_time(main()) == "its judge took longer than 60 s"


async def test_a_server_that_is_asked_for_an_answer_stops_its_shadow() -> None:
    there = remote(at=30.0)
    async with opened(local(), there, mode=mode(), budget=1) as client:
        stream = client.stream("hello")
        assert [token.text async for token in stream]
        await asyncio.sleep(0.01)
        assert not there.streams[0].is_cancelled
        there.script = [(0.0, "S")]
        assert await ask(client.with_options(mode=Race(policy="server-only"))) == "S"
        assert there.streams[0].is_cancelled
        assert shadow_of(stream.report).why_not == "another answer needs the server"


async def test_a_rating_of_the_same_answer_counts_beside_it() -> None:
    async with opened(local(), remote(), mode=mode(), budget=0.9) as client:
        stream = await answered(client)
        assert stream.rate(False)
        assert [each.good for each in learned(client).examples] == [True, False]


# When there are none


@pytest.mark.parametrize(
    "options",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
        {"n": 2},
    ],
)
async def test_a_request_for_more_than_text_has_none(options: Any) -> None:
    device = DeviceEndpoint(FakeEngine("{}", probability=0.9))
    async with opened(
        device, there := remote(capabilities=EVERYTHING), mode=mode(hedge_tools=True), budget=0.9, on_degraded="ignore"
    ) as client:
        stream = await client.chat.completions.create(messages=HELLO, stream=True, **options)
        await chunks_text(stream)
        await settled()
        assert stream.report.shadow is None
        assert len(there.streams) == (stream.report.winner == "server")


@pytest.mark.parametrize("promise", [{"mode": mode(policy="device-only")}, {"mode": mode(policy="auto"), "budget": 0}])
async def test_a_promise_holds(promise: Any) -> None:
    async with opened(local(), there := remote(), **promise) as client:
        for _ in range(5):
            assert (await answered(client)).report.shadow is None
        assert not there.streams
        narrow = client.with_options(mode=Race(policy="device-only", quality=ALWAYS))
        await answered(narrow)
        assert not there.streams


async def test_an_answer_of_the_server_has_none() -> None:
    async with opened(local(), there := remote(), mode=mode(policy="server-first"), budget=1) as client:
        assert (await answered(client)).report.shadow is None
        assert len(there.streams) == 1


async def test_an_answer_for_which_the_server_was_asked_anyway_has_none() -> None:
    async with opened(local(), there := remote(at=0.5), mode=mode(policy="both"), budget=1) as client:
        assert (await answered(client)).report.shadow is None
        assert len(there.streams) == 1


async def test_an_answer_that_its_reader_left_has_none() -> None:
    async with opened(local(" ".join("abcdefghij")), there := remote(), mode=mode(), budget=0.9) as client:
        stream = client.stream("hello")
        async for _ in stream:
            break
        await stream.aclose()
        await settled()
        assert not there.streams


async def test_there_is_one_at_a_time() -> None:
    async with opened(local(), there := remote(at=0.3), mode=mode(), budget=0.9) as client:
        await asyncio.gather(*(ask(client) for _ in range(6)))
        await settled()
        assert len(there.streams) == 1


async def test_they_are_off_by_default() -> None:
    async with opened(local(), there := remote(), mode=mode(QualityGate()), budget=0.9) as client:
        for _ in range(5):
            assert (await answered(client)).report.shadow is None
        assert not there.streams


# The budget


@pytest.mark.parametrize("constrained", ["device", "server"])
async def test_they_change_no_answer_whatever_the_budget_limits(constrained: Any) -> None:
    async with opened(local(), remote(), mode=mode(constrained=constrained), budget=0.3) as client:
        for _ in range(20):
            assert (await answered(client)).report.winner == "device"


async def test_a_gate_keeps_to_its_part_of_the_budget_beside_them() -> None:
    device = DeviceEndpoint(FakeEngine("".join(f"d{place} " for place in range(40)), probability=0.2))
    gate = QualityGate(shadow=1.0, min_score=0.5, judge=lambda _: True)
    async with opened(device, there := server([(0.0, "S")], prices=PRICES), mode=mode(gate), budget=0.2) as client:
        by_server = 0
        for _ in range(60):
            by_server += (await answered(client)).report.winner == "server"
        assert by_server <= 0.2 * 60 + 2
        assert len(there.streams) <= 0.21 * 60 + 2


async def test_a_small_share_is_reached_within_a_small_budget() -> None:
    async with opened(local(), there := remote(), mode=mode(QualityGate(shadow=0.2)), budget=0.3) as client:
        for _ in range(100):
            await ask(client)
            await asyncio.sleep(0.002)
        await settled()
        assert len(there.streams) == pytest.approx(20, abs=8)
        assert client.totals.budget_share == pytest.approx(len(there.streams) / 100, abs=0.02)


@pytest.mark.parametrize("policy", ["device-first", "auto"])
async def test_they_are_within_the_budget(policy: str) -> None:
    async with opened(local(), there := remote(), mode=mode(policy=policy), budget=0.2) as client:
        for _ in range(60):
            await ask(client)
            await asyncio.sleep(0.002)
        await settled()
        assert 5 <= len(there.streams) <= 0.2 * 60 + 2
        assert client.totals.budget_share == pytest.approx(len(there.streams) / 60, abs=0.02)


async def test_their_share_is_what_was_asked_for() -> None:
    async with opened(local(), remote(), mode=mode(QualityGate(shadow=0.25)), budget=0.9) as client:
        for _ in range(80):
            await ask(client)
            await asyncio.sleep(0.002)
        await settled()
        assert client.totals.shadows.answers == pytest.approx(20, abs=9)


# What is refused, and what is said


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shadow": 1.5}, "quality gate: shadow: expected "),
        ({"shadow": 0.1, "judge": 5}, "quality gate: judge: expected a function of a ShadowPair or None, got int"),
        ({"judge": bool}, "quality gate: judge: only valid with shadow above 0"),
    ],
)
def test_wrong_settings_are_refused(options: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        QualityGate(**options)


async def test_the_log_has_no_word_of_both_answers() -> None:
    logging.getLogger("streamco").setLevel(logging.DEBUG)
    try:
        with recorded_log() as records:
            async with opened(local("Secretdevice"), remote("Secretserver"), mode=mode(), budget=0.9) as client:
                await answered(client, "Secretprompt")
    finally:
        logging.getLogger("streamco").setLevel(logging.NOTSET)
    text = "\n".join(record.getMessage() for record in records)
    assert "shadow answer of server: not as good" in text
    assert "Secret" not in text


async def test_its_request_says_that_it_is_one() -> None:
    async with opened(local(), there := remote(), mode=mode(), budget=0.9) as client:
        stream = await answered(client)
    (request,) = [each.request for each in there.streams]
    assert request.headers["X-Client-Request-Id"] == f"{stream.report.request_id}-shadow"
    assert request.max_retries == 0


@given(st.text(max_size=20))
def test_a_text_agrees_with_itself_in_another_case_and_with_other_spaces(text: str) -> None:
    assert agree(text, f"  {text}\n")
    assert agree(text.lower(), text.lower())


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("(B)", "b.", True),
        ("**Paris**", "paris!", True),
        ("yes", "No", False),
        ("3.5", "35", False),
        ("3.5", "3 5", False),
        ("-5", "5", False),
        ("C++", "C#", False),
        ("x < y", "x > y", False),
        ("10 %", "10", False),
        ("हिन्दी", "हिन्दा", False),
        ("caf\u00e9", "cafe\u0301", True),
        ("+", "-", False),
        ("+ ", " +", True),
        ("", "a", False),
    ],
)
def test_short_answers_agree_word_for_word(first: str, second: str, same: bool) -> None:
    assert agree(first, second) is same
