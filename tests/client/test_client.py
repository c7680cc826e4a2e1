"""The client: life, sides that are missing or dead, options, budget, learning, pace; scripted sides, in virtual time where time matters."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import random
import threading
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.stream import Token, TokenStream
from streamco.config import Limits
from streamco.core.race.machine import RaceMachine
from streamco.endpoints.base import Capabilities, Request, TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import (
    AllEndpointsFailed,
    ConfigError,
    EndpointConnectError,
    EndpointError,
    EndpointProtocolError,
    EngineError,
    StreamClosed,
    StreamcoError,
)
from streamco.openai_types import CompletionUsage
from streamco.policies.eligibility import RequestFacts, RequestGate
from streamco.profiles import PairProfile, Profile
from streamco.testing import Cut, RecordedRequest, ScriptedResponse, ScriptedServer, chunk_event, json_answer, stream_answer
from streamco.testing.endpoint import ScriptedEndpoint
from streamco.testing.engine import FakeEngine
from streamco.testing.virtual_clock import run_in_virtual_time
from tests.client.helpers import HELLO, ShapedDevice, ask, chunks_text, device, opened, server, tokens_text, words
from tests.support.leaks import holding_nothing_new, settled
from tests.support.modes import drafting

BOTH = {"policy": "both", "budget": 1.0}


def virtual(main: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test in virtual time."""

    def run() -> None:
        run_in_virtual_time(main())

    run.__name__ = main.__name__
    return run


# One answer


@virtual
async def test_the_side_that_is_first_gives_the_answer() -> None:
    slow, quick = server(words(0.5, 0.6)), device(words(0.1, 0.2))
    async with opened(quick, slow, **BOTH) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "w0 w1 "
        assert stream.report.winner == "device"
        assert stream.report.ttft == pytest.approx(0.1)
        assert stream.report.is_final
        assert (slow.active, quick.active) == (0, 0)


@virtual
async def test_a_conversation_of_five_turns_sends_everything_said_so_far() -> None:
    remote = server(words(0.1, 0.2))
    async with opened(server=remote) as client:
        messages: list[dict[str, str]] = []
        for turn in range(5):
            messages.append({"role": "user", "content": f"question {turn}"})
            messages.append({"role": "assistant", "content": await tokens_text(client.stream(messages))})
    assert [len(stream.request.messages or ()) for stream in remote.streams] == [1, 3, 5, 7, 9]


@virtual
async def test_many_answers_at_once_do_not_mix() -> None:
    remote, local = (
        server(words(*[0.01 * n for n in range(1, 30)], prefix="s")),
        device(words(*[0.02 * n for n in range(1, 20)], prefix="d")),
    )
    async with opened(local, remote, **BOTH) as client:
        texts = await asyncio.gather(*(ask(client, f"{n}") for n in range(200)))
        assert set(texts) == {"".join(f"s{n} " for n in range(29))}
        await settled(lambda: not remote.active and not local.active)
        assert len(remote.streams) == len(local.streams) == 200


# Life


async def test_nothing_happens_before_the_first_read() -> None:
    remote = server()
    async with opened(server=remote) as client:
        client.stream("hello")
        client.open_chat(remote_request())
        await asyncio.sleep(0)
        assert not remote.streams


def remote_request() -> Any:
    from streamco.client.arguments import build_request

    return build_request("hello")


async def test_a_client_that_is_not_entered_starts_with_its_first_answer() -> None:
    remote = server()
    client = Client(server=remote)
    assert await ask(client) == "S"
    await client.aclose()
    assert remote.is_closed


async def test_closing_ends_every_answer_and_its_readers_are_told() -> None:
    remote, local = server([(0.0, "a"), (0.0, None)]), device([(0.0, None)])
    async with holding_nothing_new():
        client = Client(local, remote, mode=Race(policy="both"), budget=1.0)
        streams = [client.stream("hello") for _ in range(20)]
        for stream in streams:
            assert (await anext(stream)).text == "a"
        readers = [asyncio.ensure_future(tokens_text(stream)) for stream in streams]
        await asyncio.sleep(0)
        await client.aclose()
        results = await asyncio.gather(*readers, return_exceptions=True)
        assert {type(result) for result in results} == {StreamClosed}
        assert (remote.active, local.active) == (0, 0)
        assert remote.is_closed
        assert local.is_closed
        del readers, results, streams, stream


async def test_a_closed_client_refuses_new_answers_and_may_be_closed_again() -> None:
    client = Client(server=server())
    await client.start()
    await client.aclose()
    await client.aclose()
    with pytest.raises(StreamClosed, match="the client is closed"):
        await ask(client)
    with pytest.raises(StreamClosed, match="the client is closed"):
        await client.start()


class SlowStart(ScriptedEndpoint):
    """An endpoint that starts when the test says so."""

    def __init__(self, name: str = "slow", **options: Any) -> None:
        super().__init__(name, [(0.0, "S")], **options)
        self.may_start = asyncio.Event()
        self.starts = self.closes = 0

    async def start(self) -> None:
        self.starts += 1
        await self.may_start.wait()

    async def aclose(self) -> None:
        self.closes += 1


async def test_answers_asked_for_at_once_share_one_start() -> None:
    slow = SlowStart()
    async with holding_nothing_new():
        client = Client(server=slow)
        readers = [asyncio.ensure_future(ask(client)) for _ in range(10)]
        await asyncio.sleep(0)
        slow.may_start.set()
        assert await asyncio.gather(*readers) == ["S"] * 10
        assert slow.starts == 1
        await client.aclose()


async def test_a_client_closed_while_it_starts_releases_what_starts_afterwards() -> None:
    slow = SlowStart()
    async with holding_nothing_new():
        client = Client(server=slow)
        reader = asyncio.ensure_future(ask(client))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(client.aclose())
        await asyncio.sleep(0.01)
        slow.may_start.set()
        await closing
        with pytest.raises(StreamClosed):
            await reader
        assert slow.closes == 2, "once by the closing, once after the start it overtook"
        assert not slow.streams


async def test_a_reader_cancelled_while_the_client_starts_leaves_the_start_to_others() -> None:
    slow = SlowStart()
    async with holding_nothing_new():
        client = Client(server=slow)
        first, second = asyncio.ensure_future(ask(client)), asyncio.ensure_future(ask(client))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        slow.may_start.set()
        assert await second == "S"
        assert first.cancelled()
        await client.aclose()


async def test_entering_a_client_that_cannot_start_closes_the_side_that_could() -> None:
    class Broken(ScriptedEndpoint):
        async def start(self) -> None:
            raise RuntimeError("no such thing")

    other = server()
    with pytest.raises(RuntimeError, match="no such thing"):
        async with Client(Broken("device", kind="device"), other):
            raise AssertionError("it was entered")
    assert other.is_closed


async def test_an_endpoint_that_fails_to_close_does_not_keep_the_others_open() -> None:
    class Clinging(ScriptedEndpoint):
        async def aclose(self) -> None:
            raise OSError("can't let go")

    other = server(name="other")
    client = Client(server=[Clinging("clinging"), other])
    await client.start()
    with pytest.raises(OSError, match="can't let go"):
        await client.aclose()
    assert other.is_closed


async def test_a_client_that_is_dropped_can_be_collected() -> None:
    client = Client(server=server(), device=device())
    assert await ask(client) in {"S", "D"}
    await client.aclose()
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None


# Sides that are missing or dead


async def test_a_device_whose_file_is_missing_leaves_the_server_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path / "unplugged.gguf", server()) as client:
        (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert warning.name == "streamco"
        assert "left out" in warning.message
        assert "unplugged.gguf" in warning.message
        stream = client.stream("hello")
        assert await tokens_text(stream) == "S"
        report = stream.report
        assert report.winner == "server"
        assert "unplugged.gguf" in report.dispatch.reason
        (part,) = [part for part in report.endpoints if part.name == "device"]
        assert part.outcome == "failed"
        assert part.opened is None
        assert "unplugged.gguf" in (part.error or "")


async def test_a_dead_server_leaves_the_device_alone() -> None:
    dead = OpenAIEndpoint("gone", base_url="http://127.0.0.1:9/v1", name="server")
    async with opened(device(), dead, policy="server-first", budget=1.0) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "D"
        parts = {part.name: part for part in stream.report.endpoints}
        assert parts["server"].outcome == "failed"
        assert "127.0.0.1:9" in (parts["server"].error or "")
        assert parts["device"].outcome == "won"


async def test_when_both_are_dead_one_error_holds_each_ones_own() -> None:
    dead = OpenAIEndpoint("gone", base_url="http://127.0.0.1:9/v1", name="server")
    broken = device([(0.0, EngineError("decode failed", endpoint="device"))])
    async with opened(broken, dead, **BOTH) as client:
        with pytest.raises(AllEndpointsFailed) as caught:
            await ask(client)
        assert isinstance(caught.value.errors["server"], EndpointConnectError)
        assert isinstance(caught.value.errors["device"], EngineError)
        assert "decode failed" in str(caught.value)
        assert "127.0.0.1:9" in str(caught.value)


async def test_a_device_that_could_not_start_is_told_when_the_server_fails_too(tmp_path: Path) -> None:
    dead = OpenAIEndpoint("gone", base_url="http://127.0.0.1:9/v1", name="server")
    async with opened(tmp_path / "unplugged.gguf", dead) as client:
        with pytest.raises(AllEndpointsFailed) as caught:
            await ask(client)
        assert list(caught.value.errors) == ["device", "server"]
        assert "unplugged.gguf" in str(caught.value.errors["device"])


async def test_when_nobody_can_start_the_error_says_why_each_can_not() -> None:
    broken = [server(name=name, start_error=EndpointConnectError("refused", endpoint=name)) for name in ("a", "b")]
    with pytest.raises(AllEndpointsFailed) as caught:
        async with Client(server=broken):
            raise AssertionError("it was entered")
    assert list(caught.value.errors) == ["a", "b"]
    with pytest.raises(EndpointConnectError, match="refused"):
        async with Client(server=broken[0]):
            raise AssertionError("it was entered")


async def test_servers_stand_in_for_one_another_in_their_order() -> None:
    first = server([(0.0, EndpointConnectError("refused", endpoint="first"))], name="first")
    second = server([(0.0, EndpointConnectError("refused", endpoint="second"))], name="second")
    third, unused = server(name="third"), server(name="unused")
    async with opened(server=[first, second, third, unused]) as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "S"
        outcomes = {part.name: part.outcome for part in stream.report.endpoints}
        assert outcomes == {"first": "failed", "second": "failed", "third": "won", "unused": "not started"}
        assert not unused.streams


async def test_a_server_killed_in_mid_answer_gives_a_clear_error_with_the_text_so_far() -> None:
    async with ScriptedServer(cut_answer()) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server")
        async with opened(device([(9.0, "late")]), remote, **BOTH) as client:
            stream = client.stream("hello")
            seen: list[Token] = []
            with pytest.raises(EndpointProtocolError) as caught:
                await collect(stream, seen)
            assert "".join(token.text for token in seen) == caught.value.partial == "Once upon "
            assert caught.value.endpoint == "server"
            assert stream.report.is_final
            assert "expected" in str(caught.value)


async def collect(stream: TokenStream, seen: list[Token]) -> None:
    async for token in stream:
        seen.append(token)  # noqa: PERF401  what was seen before the error counts


def cut_answer() -> ScriptedResponse:
    return ScriptedResponse(steps=[chunk_event("Once "), chunk_event("upon "), Cut()], headers={"Content-Type": "text/event-stream"})


async def test_answers_go_on_after_one_failed() -> None:
    async with (
        ScriptedServer(cut_answer(), stream_answer(["fine"])) as scripted,
        opened(server=OpenAIEndpoint("m", base_url=scripted.url, name="server")) as client,
    ):
        with pytest.raises(EndpointError):
            await ask(client)
        assert await ask(client) == "fine"


async def test_a_key_that_a_server_repeats_is_in_no_error_report_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "streamco")

    def refuse(request: RecordedRequest) -> ScriptedResponse:
        return json_answer({"error": {"message": f"bad key {request.headers['authorization']}"}}, status=401)

    async with ScriptedServer(refuse) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, api_key="sk-very-secret", name="server")
        async with opened(device(), remote, policy="server-first", budget=1.0, on_degraded="ignore") as client:
            stream = client.stream("my private question")
            assert await tokens_text(stream) == "D"
            report = repr(stream.report)
    assert "bad key" in report
    for told in (report, caplog.text):
        assert "sk-very-secret" not in told
        assert "my private question" not in told


# Eligible endpoints


async def test_a_request_only_the_server_can_serve_goes_there_and_the_report_says_why() -> None:
    image = [{"role": "user", "content": [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": "data:"}}]}]
    small = device(capabilities=Capabilities(context_tokens=100), tokens=98)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (HELLO, {"n": 2}, "n > 1"),
        (image, {}, "messages[0].content[1]: type 'image_url'"),
        (HELLO, {"max_tokens": 50}, "148 tokens in a context of 100"),
        (HELLO, {"response_format": {"type": "json_object"}}, "json schema"),
    ]
    async with opened(small, server(), **BOTH) as client:
        for messages, options, reason in cases:
            stream = await client.chat.completions.create(messages=messages, stream=True, **options)
            assert await chunks_text(stream) == "S"
            assert reason in stream.report.dispatch.reason
            assert stream.report.dispatch.device_wait is None
            assert [part.name for part in stream.report.endpoints] == ["server"], "the device is no stand-in for it either"
        assert not small.streams
        assert await chunks_text(await client.chat.completions.create(messages=HELLO, stream=True, max_tokens=2)) in {"S", "D"}
        assert small.streams


async def test_a_schema_that_the_device_cannot_hold_to_goes_to_the_server_and_the_report_says_why() -> None:
    able = device([(0.0, "D")], capabilities=Capabilities(json_schema=True))
    async with opened(able, server(), policy="device-first") as client:
        for schema, reason in (({"type": "string"}, ""), ({"uniqueItems": True}, "uniqueItems")):
            shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            stream = await client.chat.completions.create(messages=HELLO, stream=True, response_format=shape)
            assert await chunks_text(stream) == ("S" if reason else "D")
            assert reason in stream.report.dispatch.reason


async def test_a_prompt_too_long_for_the_only_side_is_refused_with_the_reason() -> None:
    async with opened(device(capabilities=Capabilities(context_tokens=100), tokens=200)) as client:
        with pytest.raises(ConfigError, match="201 tokens in a context of 100; server: no server"):
            await ask(client)


async def test_the_request_gate_keeps_long_prompts_from_the_device() -> None:
    options = Race(gate=RequestGate(longest_prompt_chars=20))
    async with opened(device(words(0.0, 0.0, prefix="d")), server([(0.05, "S")]), dispatch=options, **BOTH) as client:
        assert await ask(client, "short") == "d0 d1 "
        stream = client.stream("a much longer question than that")
        assert await tokens_text(stream) == "S"
        assert stream.report.dispatch.reason == "device: request gate"


async def test_a_gate_of_the_callers_own_sees_the_facts() -> None:
    seen: list[RequestFacts] = []

    def gate(facts: RequestFacts) -> bool:
        seen.append(facts)
        return False

    options = Race(gate=gate)
    async with opened(device(), server(), dispatch=options) as client:
        assert await ask(client, max_tokens=7) == "S"
    assert (seen[0].prompt_tokens, seen[0].max_tokens, seen[0].prompt_chars) == (10, 7, 5)


async def test_requests_with_tools_are_not_started_twice_unless_asked_to() -> None:
    tools: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    local, remote = device(capabilities=Capabilities(tools=True)), server([(0.05, "S")])
    async with opened(local, remote, **BOTH) as client:
        assert await ask(client, **tools) == "S"
        assert not local.streams
        hedged = client.with_options(mode=Race(hedge_tools=True))
        assert await ask(hedged, **tools) == "D"
        assert len(remote.streams) == 2


async def test_a_server_that_can_not_serve_a_request_is_passed_over_for_one_that_can() -> None:
    blind, seeing = server(name="blind", capabilities=Capabilities()), server(name="seeing")
    spare = server(name="spare")
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    async with opened(server=[blind, seeing, spare]) as client:
        stream = client.stream(image)
        assert await tokens_text(stream) == "S"
        assert {part.name: part.outcome for part in stream.report.endpoints} == {"seeing": "won", "spare": "not started"}
        assert stream.report.dispatch.reason.endswith("; not for blind")
        assert (await report_of(client)).winner == "blind"


class Counting(ScriptedEndpoint):
    """Notes which thread counts its tokens, and takes its time over it."""

    def __init__(self) -> None:
        super().__init__("device", [(0.0, "D")], kind="device")
        self.threads: list[threading.Thread] = []
        self.may_count = threading.Event()

    def count_tokens(self, request: Request) -> int:
        self.threads.append(threading.current_thread())
        if threading.current_thread() is not threading.main_thread():
            self.may_count.wait(10)
        return 1234


async def test_a_long_prompt_is_counted_in_a_thread_and_a_short_one_at_once() -> None:
    local = Counting()
    local.may_count.set()
    async with opened(local) as client:
        assert (await report_of(client)).dispatch.prompt_tokens == 1234
        assert await ask(client, "word " * 2000) == "D"
    assert [thread is threading.main_thread() for thread in local.threads] == [True, False]


async def test_a_client_closed_while_a_prompt_is_counted_begins_nothing() -> None:
    local = Counting()
    async with opened(local) as client:
        reader = asyncio.ensure_future(ask(client, "word " * 2000))
        await settled(lambda: local.threads)
        await client.aclose()
        local.may_count.set()
        with pytest.raises(StreamClosed):
            await reader
        assert not local.streams


# Options


@virtual
async def test_with_options_changes_what_is_named_and_nothing_else() -> None:
    remote = server(words(0.1, 0.1, 0.1))
    async with opened(server=remote) as client:
        paced = client.with_options(pace=10)
        assert [round(token.time, 3) for token in [t async for t in paced.stream("hello")]] == pytest.approx([0.1, 0.2, 0.3])
        began = asyncio.get_running_loop().time()
        assert [token.time - began async for token in client.stream("hello")] == pytest.approx([0.1] * 3)
        assert paced.profile() == client.profile(), "what is learned is shared"
        await paced.aclose()
        assert not remote.is_closed, "a client from with_options closes nothing"
        async with client.with_options(mode=Race(policy="server-only")) as other:
            assert await ask(other) == "w0 w1 w2 "
        assert not remote.is_closed
        assert await ask(client) == "w0 w1 w2 "


@virtual
async def test_a_client_names_its_endpoints_as_reports_do() -> None:
    async with opened(device(), [server(), server(name="spare")]) as client:
        assert client.endpoint_names == ("device", "server", "spare")
        assert client.with_options(pace=10).endpoint_names == client.endpoint_names
        assert {each.name for each in (await report_of(client)).endpoints} <= {*client.endpoint_names}


def test_sides_and_prices_are_those_that_answers_may_use() -> None:
    price = TokenPrices(prompt=1e-6, completion=2e-6)
    both = Client(device(), [server(prices=price), server(name="second")])
    assert both.sides == {"device", "server"}
    assert dict(both.server_prices) == {"server": price, "second": TokenPrices()}
    assert both.with_options(mode=Race(policy="device-only")).sides == {"device"}
    assert both.with_options(mode=Race(policy="server-only")).sides == {"server"}
    assert both.with_options(budget=0.0).server_prices == both.with_options(mode=Race(policy="device-only")).server_prices == {}
    assert Client(device()).sides == {"device"}
    assert Client(device()).server_prices == {}
    speculating = Client(device(), mode=Speculate(verifier="ws://127.0.0.1:9"))
    assert speculating.server_prices == {"verifier": TokenPrices()}
    assert (speculating.may_speculate, both.may_speculate) == (True, False)


async def test_notes_that_an_answer_begins_with_are_in_its_report() -> None:
    async with opened(device()) as client:
        stream = client.open_chat(Request(messages=HELLO), notes=["the server was left out"])
        assert await chunks_text(stream) == "D"
        assert stream.report.notes == ["the server was left out"]


async def test_clients_from_with_options_end_with_their_owner() -> None:
    remote = server([(0.0, "a"), (0.0, None)])
    async with opened(server=remote) as client:
        other = client.with_options(pace="reading").with_options(budget=0.5)
        stream = other.stream("hello")
        await anext(stream)
        await client.aclose()
        with pytest.raises(StreamClosed):
            await anext(stream)
        with pytest.raises(StreamClosed):
            await ask(other)


async def test_another_budget_has_an_account_of_its_own() -> None:
    async with opened(device(), server(), budget=0.0, policy="server-constrained") as client:
        assert client.with_options(budget=1.0).profile() == client.profile()
        for _ in range(30):
            await ask(client)
        other = client.with_options(budget=1.0)
        report = await report_of(other)
        assert report.dispatch.budget == 1.0
        assert report.dispatch.budget_share is None
        assert (await report_of(client)).dispatch.budget == 0.0


async def report_of(client: Client, **options: Any) -> Any:
    stream = client.stream("hello", **options)
    await tokens_text(stream)
    return stream.report


@virtual
async def test_pace_is_a_setting_of_the_client_that_one_answer_may_override() -> None:
    async with opened(server=server(words(*[0.1] * 4)), pace=2) as client:

        async def times(**options: Any) -> list[float]:
            began = asyncio.get_running_loop().time()
            return [token.time - began async for token in client.stream("hello", **options)]

        assert await times() == pytest.approx([0.1, 0.6, 1.1, 1.6])
        assert await times(pace=10) == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert await times(pace="reading") == pytest.approx([0.1 + n / 4.8 for n in range(4)])
        assert await times(pace=None) == pytest.approx([0.1] * 4)
        stream = await client.chat.completions.create(messages=HELLO, stream=True, pace=5)
        began = asyncio.get_running_loop().time() - 0.1
        assert await chunks_text(stream) == "w0 w1 w2 w3 "
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.7)
        answer = await client.chat.completions.create(messages=HELLO)
        assert answer.report is not None
        assert answer.report.duration == pytest.approx(0.1), "a whole answer has no reader to be paced for"


@virtual
async def test_a_reader_that_stops_reading_stops_the_endpoint() -> None:
    remote = server(words(*[0.1] * 500))
    rival = device([(0.05, None)], cancel_takes=1e5)
    async with opened(rival, remote, limits=Limits(unread_tokens=20), **BOTH) as client:
        stream = client.stream("hello")
        await anext(stream)
        await asyncio.sleep(100)
        assert remote.streams[0]._position < 60
        assert len(await tokens_text(stream)) > 1000


# Budget and learning


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("constrained", ["device", "server"])
@pytest.mark.parametrize("budget", [0.3, 0.0, 0.1, 0.7, 1.0])
def test_the_constrained_side_keeps_to_its_budget(constrained: Any, budget: float) -> None:
    async def main() -> None:
        rng = random.Random(f"{constrained}{budget}")
        spent = total = 0
        remote = server([(0.3, "S")])
        local = device([(0.1, "D")])
        policy = f"{constrained}-constrained"
        async with opened(local, remote, budget=budget, policy=policy) as client:
            side = local if constrained == "device" else remote
            for count in range(1, 801):
                local._tokens = length = 1 + int(rng.lognormvariate(4, 1))
                # the server's first token comes after all kinds of times
                remote.script = [(rng.expovariate(2), "S")]
                before = len(side.streams)
                report = await report_of(client)
                total += length
                spent += length * (len(side.streams) - before)
                if count >= 500:
                    assert spent <= (budget + 0.01) * total, f"after {count} requests"
            assert report.dispatch.budget_share == pytest.approx(spent / total, abs=0.01)
            if 0 < budget < 1:
                assert spent / total > budget * 0.5, "the budget is there to be used"

    run_in_virtual_time(main())


@virtual
async def test_requests_under_way_at_once_count_against_the_budget_from_their_start() -> None:
    remote, local = server(words(1.0, 2.0)), device(words(0.5, 0.6), tokens=50)
    async with opened(local, remote, budget=0.2, burst=0, policy="server-constrained") as client:
        for _ in range(20):
            await asyncio.gather(*(ask(client) for _ in range(40)))
        assert 0 < len(remote.streams) <= (0.2 + 0.01) * 800


@virtual
async def test_an_outage_is_not_charged_to_the_budget() -> None:
    remote = server()
    broken = device([(0.0, EngineError("broken", endpoint="device"))])
    async with opened(broken, remote, budget=0.001, policy="server-constrained") as client:
        for _ in range(20):
            assert await ask(client) == "S"
        assert (await report_of(client)).dispatch.budget_share is None, "nothing but exempt requests so far"


@virtual
async def test_what_is_learned_reaches_the_plan() -> None:
    rng = random.Random(5)
    local, remote = device([(0.2, "D")], tokens=20), server([(0.3, "S")])
    async with opened(local, remote, budget=0.3) as client:
        first = await report_of(client)
        assert first.dispatch.policy == "both", "nothing is known yet"
        policies = []
        for _ in range(60):
            local._tokens = rng.randrange(10, 200)
            policies.append((await report_of(client)).dispatch.policy)
        assert policies[-1] == "server-constrained"
        changes = sum(before != after for before, after in itertools.pairwise(policies))
        assert changes == 1
        waits = set()
        for length in (5, 500):
            local._tokens = length
            report = await report_of(client)
            waits.add((length, report.dispatch.server_wait is None))
        assert waits == {(5, True), (500, False)}, "short prompts stay on the device, long ones go to both"


@virtual
async def test_a_profile_carries_what_was_learned_to_the_next_client() -> None:
    async def sides() -> tuple[ScriptedEndpoint, ScriptedEndpoint]:
        return device([(0.4, "D")], tokens=50), server([(0.2, "S")])

    local, remote = await sides()
    async with opened(local, remote, policy="device-constrained", budget=0.5) as client:
        for _ in range(60):
            await ask(client)
        saved = client.profile()
    told = json.loads(saved)
    assert told["server_ttft"] is not None
    assert told["lengths"] is not None
    assert told["answers"] is not None
    local, remote = await sides()
    async with opened(local, remote, policy="device-constrained", budget=0.5, profile=saved) as client:
        assert (await report_of(client)).dispatch.policy == "device-constrained", "the first answer is planned already"
        carried = json.loads(client.profile())
        assert carried["server_ttft"] is not None
        assert carried["answers"] is not None
    local, remote = await sides()
    async with opened(local, remote, policy="device-constrained", budget=0.5) as client:
        assert (await report_of(client)).dispatch.policy == "both"


@virtual
async def test_a_profile_is_read_from_the_file_it_was_written_to() -> None:
    import tempfile

    async with opened(device(), server()) as client:
        for _ in range(30):
            await ask(client)
        saved = client.profile()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        path.write_bytes(saved)
        async with opened(device(), server(), profile=path) as client:
            assert (await report_of(client)).dispatch.policy == "server-constrained"


@pytest.mark.long
@virtual
async def test_an_answer_that_a_proxy_held_back_teaches_nothing_about_the_server() -> None:
    async with opened(server=server([(5.0, f"w{n} ") for n in range(40)]), policy="device-constrained") as client:
        for _ in range(30):
            await ask(client)
        assert json.loads(client.profile()).get("server_ttft") is None
    async with opened(server=server([(5.0 + n / 10, f"w{n} ") for n in range(40)]), policy="device-constrained") as client:
        for _ in range(30):
            await ask(client)
        assert json.loads(client.profile())["server_ttft"] is not None


@virtual
async def test_the_same_seed_gives_the_same_decisions() -> None:
    async def decisions(seed: int) -> list[tuple[float | None, float | None]]:
        async with opened(device([(0.3, "D")]), server([(0.2, "S")]), policy="stochastic", budget=0.5, seed=seed) as client:
            reports = [await report_of(client) for _ in range(40)]
        return [(report.dispatch.device_wait, report.dispatch.server_wait) for report in reports]

    assert await decisions(3) == await decisions(3)
    assert await decisions(3) != await decisions(4)


@pytest.mark.long
@virtual
async def test_costs_decide_which_side_is_spared() -> None:
    dear, cheap = TokenPrices(prompt=1e-3, completion=1e-3), TokenPrices(prompt=1e-15, completion=1e-15)
    for prices, expected in ((dear, "server"), (cheap, "device")):
        local = ShapedDevice("device", [(0.1, "D")], kind="device", tokens=20)
        async with opened(local, server([(0.2, "S")], prices=prices)) as client:
            assert (await report_of(client)).dispatch.constraint == expected


@virtual
async def test_what_an_answer_cost_is_in_its_report() -> None:
    usage = CompletionUsage(prompt_tokens=100, completion_tokens=50, total_tokens=150)
    priced = server([(0.1, "S")], usage=usage, prices=TokenPrices(prompt=1e-6, completion=2e-6))
    async with opened(server=priced) as client:
        report = await report_of(client)
        assert report.cost_usd == pytest.approx(100e-6 + 100e-6)
        assert not report.endpoints[0].is_estimated
    async with opened(server=server()) as client:
        assert (await report_of(client)).cost_usd is None


# Totals


@virtual
async def test_totals_add_up_all_answers_and_their_reports() -> None:
    prices, usage = TokenPrices(prompt=1e-6, completion=2e-6), CompletionUsage(100, 50, 150)
    local, remote = device(words(0.5, 0.6)), server(words(0.1, 0.2), usage=usage, prices=prices)
    async with opened(local, remote, policy="both", budget=1.0) as client:
        assert client.totals.answers == 0
        reports = [await report_of(client) for _ in range(3)]
        totals = client.totals
    assert (totals.answers, totals.complete, totals.tokens) == (3, 3, 6)
    assert totals.cost_usd == pytest.approx(sum(report.cost_usd for report in reports))
    assert totals.wasted_tokens == sum(report.wasted_tokens for report in reports)
    assert totals.wasted_prompt_tokens == sum(report.wasted_prompt_tokens for report in reports) == 30
    won, lost = totals.endpoints["server"], totals.endpoints["device"]
    assert (won.won, won.prompt_tokens, won.completion_tokens, won.estimated_prompt_tokens) == (3, 300, 150, 0)
    assert (lost.lost, lost.prompt_tokens, lost.estimated_prompt_tokens) == (3, 30, 30)
    assert (totals.budget, totals.budget_share) == (1.0, 1.0)


@virtual
async def test_an_answer_is_in_the_totals_once_however_it_ends() -> None:
    endless: list[tuple[float, Any]] = [(0.1, "a"), (0.2, "b"), (0.2, None)]
    broken: list[tuple[float, Any]] = [(0.1, "a"), (0.2, EndpointProtocolError("cut", endpoint="broken"))]
    async with opened(server=server(endless)) as client:
        stream = client.stream("hello")
        await anext(stream)
        assert client.totals.answers == 0, "under way"
        await stream.aclose()
        await stream.aclose()
        assert (client.totals.answers, client.totals.left) == (1, 1)
        _ = client.stream("never begun")
        async for _token in client.stream("hello"):
            break
        await asyncio.sleep(0.1)  # it was dropped: its work ends by itself
        assert (client.totals.answers, client.totals.left) == (2, 2)
    async with opened(server=server(broken, name="broken")) as client:
        with pytest.raises(EndpointProtocolError):
            await ask(client)
        assert (client.totals.answers, client.totals.failed) == (1, 1)
        assert client.totals.endpoints["broken"].failed == 1


async def test_a_session_that_breaks_down_counts_as_a_failed_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(server=server(words(0.0, 0.01))) as client:
        with monkeypatch.context() as patched:
            patched.setattr(RaceMachine, "receive", lambda *_args, **_options: 1 / 0)
            with pytest.raises(StreamcoError, match="expected events it can handle"):
                await ask(client)
        assert (client.totals.answers, client.totals.failed) == (1, 1)
        await ask(client)
        assert (client.totals.answers, client.totals.complete) == (2, 1)


async def test_totals_are_shared_as_what_is_spent_is() -> None:
    async with opened(server=server()) as client:
        await ask(client.with_options(pace=100))
        other = client.with_options(budget=0.5)
        await ask(other)
        await ask(other.with_options(on_failure="raise"))
        assert (client.totals.answers, other.totals.answers) == (1, 2)
        assert (client.totals.budget, other.totals.budget) == (0.3, 0.5)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "client: expected a device, a server or both, got neither"),
        ({"server": []}, "client: expected a device, a server or both, got neither"),
        ({"server": 5}, "server: expected a model's name or an endpoint, got int"),
        ({"server": ["gpt-4o"]}, "server: expected a model's name or an endpoint, got str"),
        ({"device": 5}, "device: expected the path of a GGUF file or an endpoint, got int"),
        ({"server": [server(), server()]}, "client: expected endpoints with names of their own, got ['server', 'server']"),
        ({"server": server(), "budget": 1.5}, "budget: expected a share from 0 to 1, got 1.5"),
        ({"server": server(), "budget": "much"}, "budget: expected a share from 0 to 1, got 'much'"),
        ({"server": server(), "pace": 0}, 'pace: expected None, tokens per second > 0, "reading", "listening" or "smooth", got 0'),
        (
            {"server": server(), "pace": "slow"},
            'pace: expected None, tokens per second > 0, "reading", "listening" or "smooth", got \'slow\'',
        ),
        ({"server": server(), "mode": {"tail": 0.1}}, "mode: expected Race(...), Speculate(...), Split(...), Auto(...), "),
        ({"server": server(), "limits": 5}, "limits: expected Limits or None, got int"),
        ({"server": server(), "profile": b"{"}, "profile: expected "),
        ({"server": server(), "profile": 5}, "profile: expected the bytes of one or a path, got int"),
        ({"server": server(), "profile": "/nowhere.json"}, "profile: expected a file that can be read, got "),
        ({"server": server(), "profile": Path("/nowhere.json")}, "profile: expected a file that can be read, got "),
    ],
)
async def test_a_wrong_setting_says_what_was_expected_and_what_was_got(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(**arguments)
    assert str(caught.value).startswith(text)


async def test_wrong_options_are_refused_as_the_settings_are() -> None:
    client = Client(server=server())
    with pytest.raises(ConfigError, match="budget: expected a share"):
        client.with_options(budget=-1)
    with pytest.raises(ConfigError, match="pace: expected"):
        client.with_options(pace=-1)
    with pytest.raises(ConfigError, match="mode: expected Race"):
        client.with_options(mode=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="n: expected 1 for a stream of tokens, got 2"):
        client.stream("hello", n=2)
    with pytest.raises(ConfigError, match="pace: expected"):
        client.stream("hello", pace="brisk")  # type: ignore[arg-type]


async def test_the_name_of_a_model_stands_for_openais_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    client = Client(server="gpt-4o-mini")
    (endpoint,) = client._settings.endpoints.servers
    assert isinstance(endpoint, OpenAIEndpoint)
    assert endpoint.model == "gpt-4o-mini"
    await client.aclose()


async def test_a_calibrated_pair_is_where_a_client_begins_and_is_kept() -> None:
    pair = PairProfile(window=4, rounds=9, acceptance=0.5, wait=0.3, step_times=(0.01,))
    data = Profile(pair=pair).to_json()
    client = Client(DeviceEndpoint(FakeEngine()), profile=data, mode="speculate")
    assert drafting(client).estimates.acceptance == pytest.approx(0.5)
    assert drafting(client).estimates.wait == pytest.approx(0.3)
    assert Profile.from_json(client.profile()).pair == pair
    assert Profile.from_json(client.with_options(budget=0.2).profile()).pair == pair
    await client.aclose()


# Fields that the device can't keep to


async def test_the_device_stays_out_of_a_request_that_it_cannot_keep_to_and_says_so() -> None:
    local, remote = device(), server([(0.01, "S")])
    async with opened(local, remote, **BOTH) as client:
        stream = client.stream("hello", reasoning_effort="high", verbosity="low")
        assert await tokens_text(stream) == "S"
    assert local.streams == []
    assert stream.report.dispatch.reason == "device: reasoning_effort, verbosity"


async def test_a_device_alone_refuses_what_it_cannot_keep_to() -> None:
    async with opened(device()) as client:
        with pytest.raises(ConfigError, match="device: web_search_options"):
            await ask(client, web_search_options={})


async def test_an_unknown_server_is_believed_and_says_no_itself() -> None:
    tools: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}], "n": 1, "response_format": {"type": "json_object"}}
    refusal = json_answer({"error": {"message": "tools: not supported here"}}, status=400)
    local = device()
    async with ScriptedServer(refusal) as scripted:
        async with opened(local, OpenAIEndpoint("m", base_url=scripted.url)) as client:
            with pytest.raises(EndpointError, match="tools: not supported here"):
                await ask(client, **tools)
        assert scripted.requests[0].json()["tools"] == tools["tools"]
    assert local.streams == []


async def test_a_known_server_that_lacks_something_is_named_with_the_cure() -> None:
    async with opened(server=server(capabilities=Capabilities())) as client:
        with pytest.raises(ConfigError, match=r"server: tools; capabilities=Capabilities\(\.\.\.\)"):
            await ask(client, tools=[{"type": "function"}])


# Raw text


async def test_a_text_is_a_raw_prompt_for_servers_with_the_completions_api() -> None:
    engine = FakeEngine()
    async with ScriptedServer(stream_answer(["there"])) as scripted:
        base = OpenAIEndpoint("base", base_url=scripted.url, api="completions")
        async with opened(DeviceEndpoint(engine), base, policy="server-only") as client:
            await ask(client, "Once upon a time")
    assert scripted.requests[0].path == "/v1/completions"
    assert scripted.requests[0].json()["prompt"] == "Once upon a time"


async def test_messages_are_refused_by_a_server_with_the_completions_api() -> None:
    async with ScriptedServer() as scripted, opened(server=OpenAIEndpoint("base", base_url=scripted.url, api="completions")) as client:
        with pytest.raises(EndpointError, match="expected a prompt for the completions API, got chat messages"):
            await ask(client, HELLO)  # type: ignore[arg-type]
    assert scripted.requests == []


async def test_the_device_continues_the_same_raw_text() -> None:
    engine = FakeEngine()
    async with ScriptedServer() as scripted:
        base = OpenAIEndpoint("base", base_url=scripted.url, api="completions")
        async with opened(DeviceEndpoint(engine), base, policy="device-only") as client:
            await ask(client, "Once upon a time")
    assert list(engine.requests[0].prompt_ids) == engine.tokenize("Once upon a time")


async def test_a_text_is_a_message_if_one_server_has_the_chat_api() -> None:
    async with ScriptedServer(stream_answer(["hi"])) as scripted:
        servers = [OpenAIEndpoint("chat", base_url=scripted.url), OpenAIEndpoint("base", base_url=scripted.url, api="completions")]
        async with opened(server=servers) as client:
            await ask(client, "Once upon a time")
    assert scripted.requests[0].json()["messages"] == [{"role": "user", "content": "Once upon a time"}]


async def test_paths_may_be_texts_and_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    async with Client(server=server()) as client:
        (tmp_path / "learned.json").write_bytes(client.profile())
    for profile in ("~/learned.json", str(tmp_path / "learned.json"), Path("~/learned.json")):
        Client(server=server(), profile=profile)
    with pytest.raises(EngineError, match=str(tmp_path / "model.gguf")):
        await DeviceEndpoint("~/model.gguf").start()
