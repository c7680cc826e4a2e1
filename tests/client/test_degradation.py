"""Promises and degradations: what may never happen, and what is said when something other than what was asked for happens."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.degradation import Degradations
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import (
    ConfigError,
    DegradedError,
    EndpointConnectError,
    EndpointError,
    EndpointProtocolError,
    EndpointStatusError,
    EngineError,
    StreamcoError,
)
from streamco.testing import ScriptedResponse, ScriptedServer, json_answer, sse_event, stream_answer
from streamco.testing.endpoint import ScriptedEndpoint
from streamco.testing.engine import FakeEngine
from streamco.testing.virtual_clock import run_in_virtual_time
from tests.client.helpers import HELLO, ask, device, opened, server, tokens_text, words
from tests.client.speculating import HASTY, PROMPT, World
from tests.support.modes import client_options, racing

SMALL = Capabilities(context_tokens=100)
REFUSED = EndpointStatusError("expected status 200, got 401", status=401, endpoint="server")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "streamco" and each.levelno == logging.WARNING]


# Promises

KEPT_LOCAL: list[dict[str, Any]] = [{"policy": "device-only"}, {"budget": 0.0}, {"policy": "device-only", "budget": 0.0}]


def random_device(rng: random.Random) -> ScriptedEndpoint:
    """A device that works, fails at any point, can't start, or has a small context."""
    fault = EngineError("broken", endpoint="device")
    script: list[tuple[float, Any]] = list(words(*(0.1 * index for index in range(rng.randint(1, 6)))))
    if rng.random() < 0.4:
        script.append((1.0, fault))
    return device(
        script,
        tokens=rng.choice([1, 10, 98, 101, 5000]),
        capabilities=Capabilities(context_tokens=rng.choice([None, 100, 2048]), continuation=rng.choice(["none", "token_ids"])),
        start_error=fault if rng.random() < 0.15 else None,
    )


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("block", range(10))
def test_nothing_leaves_the_machine_whatever_happens(block: int) -> None:
    """1,000 configurations and faults; the server and the fallback count their requests and their starts."""

    async def one(rng: random.Random) -> None:
        able = Capabilities(tools=True, images=True, json_schema=True, choices=True, continuation="prefix")
        remote = [
            server(name=name, capabilities=able, prices=TokenPrices(prompt=rng.random(), completion=rng.random())) for name in ("a", "b")
        ]
        settings: dict[str, Any] = {
            **rng.choice(KEPT_LOCAL),
            "pace": rng.choice([None, 5.0]),
            "mode": rng.choice(["race", "speculate", "auto"]),
            "on_failure": rng.choice([None, "migrate", "restart", "raise"]),
            "on_degraded": rng.choice(["warn", "raise", "ignore"]),
            "dispatch": Race(explore=rng.choice([0.0, 1.0]), hedge_tools=rng.random() < 0.5),
        }
        choices: list[dict[str, Any]] = [{}, {"max_tokens": 4096}, {"n": 2}, {"tools": [{"type": "function"}]}, {"frequency_penalty": 1.0}]
        options = rng.choice(choices)
        async with Client(
            random_device(rng), remote[: rng.randint(1, 2)], seed=rng.randrange(1 << 30), **client_options(settings)
        ) as client:
            for _ in range(2):
                try:
                    stream = await client.chat.completions.create(messages=HELLO, stream=True, **options)
                    async for _chunk in stream:
                        pass
                    assert stream.report.winner in {"device", None}
                except StreamcoError:
                    pass
        assert [each.streams for each in remote] == [[], []]

    async def main() -> None:
        for number in range(100):
            rng = random.Random(f"{block}/{number}")
            with suppress(EngineError, DegradedError):  # the start failed: nothing was asked
                await one(rng)

    run_in_virtual_time(main())


@pytest.mark.parametrize("settings", KEPT_LOCAL)
@pytest.mark.parametrize("options", [{}, {"max_tokens": 4096}, {"messages": [{"role": "user", "content": 5}]}])
async def test_a_real_server_sees_no_request_under_a_promise(settings: dict[str, Any], options: dict[str, Any], tmp_path: Path) -> None:
    async with ScriptedServer(*[stream_answer(["no"])] * 9) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server")
        engine = FakeEngine()
        async with Client(DeviceEndpoint(engine), remote, **client_options(settings)) as client:
            try:
                answer = await client.chat.completions.create(**{"messages": HELLO, **options})
                assert answer.report is not None
                assert answer.report.winner == "device"
            except StreamcoError:
                assert "messages" in options, "only the content that the template refuses can't be answered"
        missing = Client(tmp_path / "no.gguf", OpenAIEndpoint("m", base_url=scripted.url, name="server"), **client_options(settings))
        with pytest.raises(EngineError, match=r"no\.gguf"):
            await missing.start()
        await missing.aclose()
        assert not scripted.requests
        engine.close()


async def test_server_only_never_asks_the_device() -> None:
    local = device()
    async with opened(local, server([(0.0, EndpointConnectError("down"))]), policy="server-only") as client:
        with pytest.raises(EndpointConnectError):
            await ask(client)
    assert not local.streams


async def test_a_promise_that_can_not_be_kept_names_the_reason() -> None:
    async with opened(device(capabilities=SMALL, tokens=200), server(), policy="device-only") as client:
        with pytest.raises(ConfigError, match=r'at most 99 tokens .*, got 200; .*server: kept out by policy="device-only"'):
            await ask(client)
        with pytest.raises(ConfigError, match="without the server, got device: 201 tokens in a context of 100, n > 1"):
            await client.chat.completions.create(messages=HELLO, n=2)


async def test_a_longer_answer_than_fits_is_shortened_under_a_promise_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(device(capabilities=SMALL, tokens=90), server(), policy="device-only") as client:
        for _ in range(2):
            stream = client.stream("hello", max_tokens=4096)
            assert await tokens_text(stream) == "D"
            assert stream.report.notes == ["device can give at most 10 of 4096 tokens (max_tokens), because its context ends there"]
    assert len(warnings(caplog)) == 1


async def test_other_clients_over_the_same_endpoints_may_use_what_one_keeps_out() -> None:
    remote = server()
    async with opened(device(), remote, policy="device-only") as client:
        assert await ask(client) == "D"
        assert await ask(client.with_options(mode=Race(policy="server-only"))) == "S"
    assert len(remote.streams) == 1


# Refusals: 401, 403 and 404


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_refusal_fails_the_call_though_the_device_could_answer(status: int) -> None:
    refuse = json_answer({"error": {"message": "no"}}, status=status)
    async with ScriptedServer(refuse, refuse) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server")
        async with opened(device([(0.5, "D")]), remote, policy="both", budget=1.0) as client:
            with pytest.raises(EndpointStatusError) as caught:
                await ask(client)
            assert caught.value.status == status
            assert await ask(client.with_options(on_degraded="ignore")) == "D"


async def test_an_answer_of_another_api_fails_the_call_though_the_device_could_answer() -> None:
    gemini = ScriptedResponse(steps=[sse_event({"candidates": []})])
    async with ScriptedServer(gemini, gemini, gemini) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server", probe=False)
        async with opened(device([(0.5, "D")]), remote, policy="both", budget=1.0) as client:
            with pytest.raises(EndpointProtocolError, match="Gemini"):
                await ask(client)
            assert len(scripted.requests) == 1
            assert await ask(client.with_options(on_degraded="ignore")) == "D"


async def test_a_refusal_that_comes_too_late_fails_the_next_calls(caplog: pytest.LogCaptureFixture) -> None:
    remote = server([(0.1, REFUSED)])
    async with opened(device(words(0.0, 0.2)), remote, policy="both", budget=1.0, dispatch=Race(explore=1.0)) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "w0 w1 "
        assert stream.report.notes == ["server failed (EndpointStatusError 401): device answered"]
        with pytest.raises(EndpointStatusError, match="401"):
            await ask(client)
        assert [each.endpoint for each in client.degraded] == ["server"]
    assert warnings(caplog) == ["server failed (EndpointStatusError 401): device answered (logged once)"]


async def test_calls_that_a_refusal_fails_hold_back_nothing_of_the_budget() -> None:
    remote = server([(0.1, REFUSED)])
    async with opened(device(words(0.0, 0.2)), remote, policy="both", budget=0.5, dispatch=Race(explore=1.0)) as client:
        await ask(client)
        steering = racing(client).dispatcher._steering
        spent = steering.tokens
        for _ in range(20):
            with pytest.raises(EndpointStatusError, match="401"):
                await ask(client)
        assert not steering._pending
        assert steering.tokens == spent


# Other failures


async def test_an_outage_is_answered_by_the_device_noted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    remote = server([(0.0, EndpointConnectError("secret prompt", endpoint="server"))])
    async with opened(device(), remote, policy="server-first") as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "D"
        assert stream.report.notes == ["server failed (EndpointConnectError): device answered"]
        for _ in range(3):
            stream = client.stream("hello")
            assert await tokens_text(stream) == "D"
            assert stream.report.notes == ["server is asked only if others fail: it has just failed (EndpointConnectError)"]
        (degraded,) = client.degraded
        assert degraded.since > 0
    assert warnings(caplog) == [
        "server failed (EndpointConnectError): device answered (logged once)",
        "server is asked only if others fail: it has just failed (EndpointConnectError) (logged once)",
    ]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_with_answer_a_refusal_is_made_up_for_each_time_and_said_each_time(status: int, caplog: pytest.LogCaptureFixture) -> None:
    remote = server([(0.0, EndpointStatusError("no", status=status, endpoint="server"))])
    note = f"server failed (EndpointStatusError {status}): device answered"
    async with opened(device(), remote, policy="server-first", on_degraded="answer") as client:
        for _ in range(3):
            stream = client.stream("hello")
            assert await tokens_text(stream) == "D"
            assert stream.report.notes == [note]
    assert warnings(caplog) == [f"{note} (logged once)"]


async def test_with_raise_no_other_endpoint_makes_up_for_a_failure() -> None:
    down = EndpointConnectError("down", endpoint="server")
    async with opened(device(), server([(0.0, down)]), policy="server-first", on_degraded="raise") as client:
        with pytest.raises(EndpointConnectError):
            await ask(client)
    async with opened(device(), server([(0.0, "one "), (0.1, down)]), policy="server-first", on_degraded="raise") as client:
        with pytest.raises(EndpointError):
            await ask(client)


async def test_an_endpoint_that_can_not_start_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path / "gone.gguf", server()) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "S"
        (note,) = stream.report.notes
        assert "left out, it could not start" in note
        assert "gone.gguf" in note
    assert len(warnings(caplog)) == 1
    with pytest.raises(DegradedError, match=r"gone\.gguf"):
        await Client(tmp_path / "gone.gguf", server(), on_degraded="raise").start()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_tokens": 4096}, "4106 tokens in a context of 100"),
        ({"n": 2}, "n > 1"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ],
)
async def test_a_device_that_can_not_serve_a_request_is_left_out_and_said_once(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(device(capabilities=SMALL), server(), policy="both", budget=1.0) as client:
        for _ in range(2):
            stream = await client.chat.completions.create(messages=HELLO, stream=True, **options)
            async for _chunk in stream:
                pass
            assert stream.report.notes == [f"device left out: {reason}; the server alone answers"]
        with pytest.raises(DegradedError, match="left out"):
            await client.with_options(on_degraded="raise").chat.completions.create(messages=HELLO, **options)
    assert len(warnings(caplog)) == 1


async def test_a_server_that_can_not_serve_a_request_is_left_out_and_said() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    weak, able = server(name="weak", capabilities=Capabilities()), server(name="able")
    async with opened(None, [weak, able]) as client:
        answer = await client.chat.completions.create(messages=HELLO, tools=tools)
        assert answer.report is not None
        assert answer.report.notes == ["weak left out: tools; able takes its place"]
    small = server(capabilities=SMALL, tokens=200)
    async with opened(device(tokens=200), small, policy="both", budget=1.0) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "D"
        assert stream.report.notes == ["server left out: 201 tokens in a context of 100; the device alone answers"]


async def test_a_server_of_a_promise_that_can_not_start_is_said() -> None:
    down = EndpointConnectError("down", endpoint="a")
    async with opened(None, [server(name="a", start_error=down), server(name="b")], policy="server-only") as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "S"
        assert stream.report.notes == ["endpoint left out, it could not start: a: down"]


async def test_settings_without_effect_are_said(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(device(), policy="both") as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        assert stream.report.notes == ['policy "both" has no effect, because there is no server']
    able = Capabilities(continuation="prefix")
    goes_on = device(capabilities=able)
    async with opened(goes_on, server(), pace=5.0, migration=MigrationOptions(), policy="both", budget=1.0) as client:
        answer = await client.chat.completions.create(messages=HELLO)
        assert answer.report is not None
        assert answer.report.notes == ["the client's pace has no effect on an answer that is not streamed"]
        stream = client.stream("hello")
        await tokens_text(stream)
        assert stream.report.notes == ["the answer moves to no cheaper endpoint, because the cost of tokens at server is not known"]
    assert len(warnings(caplog)) == 3
    async with opened(device(capabilities=able), server(), pace=5.0, policy="both", budget=1.0) as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        assert stream.report.notes == [], "hand-overs were not asked for"
        assert stream.report.dispatch.reason.endswith("no planned hand-over: the cost of tokens at server is not known")


# Speculation


async def test_an_answer_that_is_not_speculated_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(device(), server(), mode="speculate") as client:
        stream = client.stream("hello")
        await tokens_text(stream)
        assert stream.report.notes == ["not speculated: device can't draft"]
    assert warnings(caplog) == ["answers are not speculated: device can't draft"]


async def test_a_verifier_that_dies_is_said() -> None:
    world = World()
    async with world.scripted() as verifier, world.speculating(verifier, speculation=HASTY) as client:
        stream = client.stream(PROMPT, temperature=0)
        seen = 0
        async for _token in stream:
            seen += 1
            if seen == 3:
                await verifier.aclose()
        notes = stream.report.notes
    assert any("tokens alone" in note or "failed" in note for note in notes), notes
    world.close()


# The rule


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match='on_degraded: expected "warn", "answer", "raise" or "ignore", got \'shout\''):
        Degradations("shout")  # type: ignore[arg-type]


def test_ignore_notes_without_a_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    Degradations("ignore").record(notes, kind="k", endpoint="e", sentence="s")
    assert notes == ["s"]
    assert not warnings(caplog)


async def test_what_differs_in_figures_alone_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    async with world.scripted() as verifier, world.speculating(verifier, on_degraded="warn") as client:
        for length in (4000, 5000):
            stream = client.stream(PROMPT, temperature=0, max_tokens=length)
            await tokens_text(stream)
            assert any("room for" in note for note in stream.report.notes)
    assert len([each for each in warnings(caplog) if "room for" in each]) == 1
    world.close()


def test_names_that_callers_choose_fill_neither_the_log_nor_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    degradations = Degradations("warn")
    for number in range(3000):
        notes: list[str] = []
        degradations.record(notes, kind=f"left out: field_{number}", endpoint="device", sentence=f"s{number}")
        assert notes == [f"s{number}"]
    assert len(warnings(caplog)) == 1000
    assert len(degradations._logged) == 1000
