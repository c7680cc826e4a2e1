"""A client whose races have a quality gate."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import numpy as np
import pytest

import streamco
from streamco import QualityGate, Race
from streamco.core.race.learner import PolicyName
from streamco.endpoints.device import DeviceEndpoint
from streamco.errors import ConfigError, EndpointConnectError, EndpointProtocolError, EndpointTimeoutError, StreamClosed, UsageError
from streamco.policies.quality import MIN_LABELS, AnswerFacts
from streamco.testing.engine import FakeEngine
from tests.client.helpers import ask, chunks_text, device, opened, server, tokens_text, words

ANSWER = "".join(f"d{number} " for number in range(40))
EDGE = QualityGate(min_score=0.7)
ERRORS = [EndpointConnectError("refused"), EndpointProtocolError("cut"), EndpointTimeoutError("late", phase="first_token", limit=1.0)]


def engine(probability: Any, **options: Any) -> DeviceEndpoint:
    return DeviceEndpoint(FakeEngine(ANSWER, mode="thread", token_s=0.001, probability=probability, **options))


def instant(probability: Any) -> DeviceEndpoint:
    return DeviceEndpoint(FakeEngine(ANSWER, probability=probability))


def race(quality: QualityGate = EDGE, **options: Any) -> Race:
    return Race(policy="device-first", quality=quality, **options)


async def test_an_answer_that_the_device_is_sure_of_is_its_own() -> None:
    async with opened(engine(0.9), remote := server(), mode=race()) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == ANSWER
        report = stream.report
    assert not remote.streams
    assert report.grade is not None
    assert (report.grade.verdict, report.grade.tokens, report.grade.min_score) == ("sure", 16, 0.7)
    assert report.grade.score == pytest.approx(0.9)
    assert not report.notes


async def test_an_answer_that_it_is_unsure_of_is_the_servers_and_the_device_stands_still_until_then() -> None:
    local = engine(0.3)
    async with opened(local, remote := server([(0.2, "S"), (0.2, "!")]), mode=race(), budget=0.9) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "S!"
        report = stream.report
    assert len(remote.streams) == 1
    assert report.grade is not None
    assert (report.grade.verdict, report.grade.asked, report.grade.shown_because) == ("unsure", "server", "")
    parts = {part.name: part for part in report.endpoints}
    assert (report.winner, parts["device"].outcome) == ("server", "lost")
    assert 16 <= parts["device"].wasted_tokens < 25  # 0.2 s would have been enough for the whole answer
    assert not report.notes


@pytest.mark.parametrize("error", ERRORS)
async def test_the_devices_answer_is_whole_if_the_server_fails_before_its_first_token(error: Exception) -> None:
    async with opened(engine(0.3), server([(0.1, error)]), mode=race(), budget=0.9) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == ANSWER
        report = stream.report
    assert report.grade is not None
    assert report.grade.shown_because == "no other endpoint gave an answer"
    assert any(
        "device answered, though it was unsure (0.30, below 0.70): no other endpoint gave an answer" in each for each in report.notes
    )


async def test_the_devices_answer_is_whole_if_the_server_is_late() -> None:
    async with opened(engine(0.3), server([(30.0, "S")]), mode=race(QualityGate(min_score=0.7, max_wait=0.1)), budget=0.9) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == ANSWER
        assert any("no other endpoint had begun after 0.1 s" in each for each in stream.report.notes)


@pytest.mark.parametrize("seed", range(10))
async def test_no_answer_is_lost_whenever_the_server_is_cut_off_before_its_first_token(seed: int) -> None:
    draw = random.Random(seed)
    names: list[PolicyName] = ["device-first", "both"]
    policies, remote = draw.choices(names, k=20), server()
    async with opened(engine(0.2), remote, mode=race(), budget=0.9) as client:
        for policy in policies:
            one = client.with_options(mode=Race(policy=policy, quality=QualityGate(min_score=0.5, tokens=draw.randint(1, 16))))
            remote.script = [(draw.uniform(0.0, 0.05), draw.choice(ERRORS))]
            assert await ask(one, "hello") == ANSWER


async def test_the_budget_holds_for_servers_that_are_asked_because_of_a_score() -> None:
    async with opened(engine(0.3), remote := server([(0.0, "S")]), mode=race(), budget=0.25) as client:
        reports = []
        for _ in range(40):
            stream = client.stream("hello")
            await tokens_text(stream)
            reports.append(stream.report)
    assert 9 <= len(remote.streams) <= 12
    alone = next(report for report in reports if report.winner == "device")
    assert any("the budget is spent" in note for note in alone.notes)
    assert alone.grade is None  # nothing was held back for a grade that could change nothing


async def test_a_score_of_the_callers_own_decides() -> None:
    class Short:
        def score(self, facts: AnswerFacts) -> float:
            assert len(facts.probabilities) == 16
            return 1.0 if facts.prompt_tokens < 50 else 0.0

    gate = QualityGate(score=Short(), min_score=0.5)
    async with opened(engine(0.5), server([(0.0, "S")]), mode=race(gate), budget=0.9) as client:
        assert await ask(client, "hello") == ANSWER
        assert await ask(client, "hello " * 100) == "S"


@pytest.mark.parametrize(("found", "why"), [(1.5, "expected a score of 0..1, got 1.5"), (None, "its score raised ValueError")])
async def test_a_score_that_fails_lets_the_device_answer_and_is_named(found: float | None, why: str) -> None:
    class Bad:
        def score(self, facts: AnswerFacts) -> float:
            if found is None:
                raise ValueError("secret")
            return found

    async with opened(engine(0.5), server(), mode=race(QualityGate(score=Bad(), min_score=0.5))) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == ANSWER
        assert stream.report.notes == [f"device's answer wasn't graded: {why}"]


async def test_without_ratings_the_gate_is_off_and_says_so() -> None:
    async with opened(engine(0.1), remote := server(), mode=Race(policy="device-first", quality="gate")) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == ANSWER
        assert stream.report.notes == ["device's answer isn't graded, because too few answers have been rated (0 so far)"]
    assert not remote.streams


async def test_a_device_that_does_not_tell_how_sure_it_is_is_not_graded() -> None:
    local = device(words(0.0, 0.0, 0.0))
    async with opened(local, server(), mode=race(QualityGate(min_score=0.5, tokens=2))) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "w0 w1 w2 "
        assert stream.report.notes == ["device's answer wasn't graded: it doesn't tell how sure it is of its tokens"]


async def test_a_device_that_never_tells_is_not_asked_any_more() -> None:
    local = device(words(0.0, 0.0, 0.0))
    async with opened(local, server(), mode=race(QualityGate(min_score=0.5))) as client:
        notes = []
        for _ in range(5):
            stream = client.stream("hello")
            await tokens_text(stream)
            notes.append(stream.report.notes)
    assert notes[0] == ["device's answer wasn't graded: it doesn't tell how sure it is of its tokens"]
    assert notes[-1] == ["device's answer isn't graded, because it doesn't tell how sure it is of its tokens"]


async def test_a_limit_on_one_answer_puts_no_server_to_rest_for_others() -> None:
    gate = race(QualityGate(min_score=0.7, max_wait=30.0))
    async with opened(engine(0.3), server([(0.7, "S")]), mode=gate, budget=0.9) as client:
        assert await ask(client.with_options(timeout=streamco.Timeouts(total=1.0))) == ANSWER
        assert await ask(client) == "S"


async def test_a_server_that_kept_the_reader_waiting_rests() -> None:
    gate = race(QualityGate(min_score=0.7, max_wait=0.1))
    async with opened(engine(0.3), remote := server([(30.0, "S")]), mode=gate, budget=0.9) as client:
        for _ in range(3):
            assert await ask(client) == ANSWER
    assert len(remote.streams) == 1


async def test_a_limit_on_the_whole_answer_leaves_time_for_the_devices() -> None:
    gate, limit = race(QualityGate(min_score=0.7, max_wait=30.0)), streamco.Timeouts(total=1.0)
    async with opened(engine(0.3), server([(30.0, "S")]), mode=gate, budget=0.9) as client:
        stream = client.with_options(timeout=limit).stream("hello")
        assert await tokens_text(stream) == ANSWER
        assert any("no other endpoint had begun after 0.4" in note for note in stream.report.notes)  # half of a second, less its beginning


async def test_a_pause_counts_towards_the_limit_on_the_whole_answer() -> None:
    slow = DeviceEndpoint(FakeEngine(ANSWER, mode="thread", token_s=0.03, probability=0.3))
    async with opened(slow, server([(30.0, "S")]), mode=race(), budget=0.9) as client:
        stream = client.with_options(timeout=streamco.Timeouts(total=1.25)).stream("hello")
        with pytest.raises(EndpointTimeoutError, match=r"whole answer within 1\.25 s") as caught:
            await tokens_text(stream)  # 0.48 s for the first tokens, a pause until half of the time is over, 0.72 s for the others
    assert ANSWER.startswith(caught.value.partial)
    assert caught.value.partial


async def test_without_ratings_the_whole_budget_is_the_plans() -> None:
    counts = []
    for quality in (None, "gate"):
        mode = Race(policy="stochastic", quality=quality)
        async with opened(instant(0.9), remote := server(), mode=mode, budget=0.6) as client:
            for _ in range(100):
                await ask(client)
        counts.append(len(remote.streams))
    assert counts[0] == counts[1] > 40


async def test_ratings_survive_a_client_without_a_gate() -> None:
    async with opened(instant(0.9), server(), mode=race()) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        stream.rate(True)
        plain = client.with_options(mode=Race())
        again = plain.with_options(mode=race())
        assert [each.profile().count(b'"good"') for each in (client, plain, again)] == [1, 1, 1]


async def test_the_rule_raise_goes_with_a_gate_that_is_off() -> None:
    async with opened(instant(0.9), server(), mode=Race(policy="device-first", quality="gate"), on_degraded="raise") as client:
        assert await ask(client) == ANSWER


@pytest.mark.parametrize("tokens", [4, 16])
async def test_a_score_is_learned_from_as_many_tokens_as_it_is_made_of(tokens: int) -> None:
    async with opened(instant(0.9), server(), mode=race(QualityGate(min_score=0.5, tokens=tokens))) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        assert stream.report.grade is not None
        assert stream.report.grade.tokens == tokens
        stream.rate(True)
        assert b'"tokens": %d' % tokens in client.profile()


async def test_numbers_of_other_kinds_are_scores() -> None:
    class Numpy:
        def score(self, facts: AnswerFacts) -> float:
            return cast("float", np.float32(0.75))

    async with opened(instant(0.9), server(), mode=race(QualityGate(score=Numpy(), min_score=0.5))) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == ANSWER
        assert stream.report.grade is not None
        assert stream.report.grade.score == 0.75


async def test_without_a_server_that_could_answer_nothing_is_graded_and_a_note_says_so() -> None:
    async with opened(instant(0.1), mode=race()) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == ANSWER
        assert stream.report.notes == ["device's answer isn't graded, because no server could answer in its place"]


async def test_a_promise_goes_before_the_gate() -> None:
    async with opened(engine(0.1), remote := server(), mode=Race(policy="device-only", quality=EDGE)) as client:
        assert await ask(client, "hello") == ANSWER
        assert await ask(client.with_options(mode=race(), budget=0.0), "hello") == ANSWER
    assert not remote.streams


async def test_tools_and_several_choices_are_not_graded() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    local = device(words(0.0, 0.0), capabilities=streamco.Capabilities(tools=True), probability=0.1)
    async with opened(local, server(), mode=race(QualityGate(min_score=0.5, tokens=2))) as client:
        stream = await client.chat.completions.create(messages="hello", tools=[tool], stream=True)
        assert await chunks_text(stream) == "w0 w1 "
        assert "its tools would be called twice" in stream.report.notes[0]


async def test_a_reader_who_leaves_a_paused_answer_leaves_nothing_behind() -> None:
    async with opened(engine(0.1), server([(30.0, "S")]), mode=race(), budget=0.9) as client:
        stream = client.stream("hello")
        task = asyncio.ensure_future(tokens_text(stream))
        await asyncio.sleep(0.15)
        await stream.aclose()
        with pytest.raises(StreamClosed):
            await task


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_score": 1.5}, "min_score"),
        ({"tokens": 0}, "tokens: expected 1 to 16, got 0"),
        ({"max_wait": 0}, "max_wait: expected seconds above 0 and up to 3600, got 0"),
        ({"score": object()}, "expected an object with score"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        QualityGate(**options)


def test_a_gate_is_one_of_ours() -> None:
    with pytest.raises(ConfigError, match=r"race: quality: expected QualityGate\(...\), \"gate\" or None, got 'high'"):
        Race(quality="high")  # type: ignore[arg-type]


async def test_the_gate_opens_its_eyes_with_enough_ratings_and_remembers_them() -> None:
    sure: list[float] = []

    def probability(request: Any) -> float:
        return sure[0] if sure else 0.9 if len(request.prompt_ids) % 2 else 0.2

    gate = Race(policy="device-first", quality="gate")
    async with opened(instant(probability), server([(0.0, "S")]), mode=gate, budget=0.9) as client:
        for number in range(MIN_LABELS):
            stream = client.stream("word " * (number % 7 + 1))
            await tokens_text(stream)
            part = next(part for part in stream.report.endpoints if part.name == "device")
            assert part.confidence is not None
            assert stream.rate(part.confidence.beginning > 0.5)
        learned = client.profile()
        sure.append(0.2)
        stream = client.stream("word")
        assert await tokens_text(stream) == "S"
        assert stream.report.grade is not None
        assert stream.report.grade.verdict == "unsure"
        assert not stream.rate(True)  # the server's answer says nothing of the device
    async with opened(instant(0.9), server([(0.0, "S")]), mode=gate, budget=0.9, profile=learned) as later:
        stream = later.stream("word")
        assert await tokens_text(stream) == ANSWER
        assert stream.report.grade is not None
        assert stream.report.grade.verdict == "sure"
    assert b"word" not in learned


async def test_an_answer_is_rated_once_and_by_its_id() -> None:
    async with opened(instant(0.9), server(), mode=race()) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        assert client.rate(stream.report.request_id, True)
        with pytest.raises(UsageError, match="not rated yet"):
            stream.rate(True)
        with pytest.raises(ConfigError, match="expected True or False, got 1"):
            stream.rate(1)  # type: ignore[arg-type]


async def test_without_a_gate_a_rating_is_refused() -> None:
    async with opened(instant(0.9), server()) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        with pytest.raises(ConfigError, match=r"mode=Race\(quality=...\)"):
            stream.rate(True)
