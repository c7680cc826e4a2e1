"""An answer that survives its endpoint: the client, in virtual time and over real sockets."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Literal

import pytest
from msgspec.structs import replace

import streamco
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.config import Pace
from streamco.core.race.learner import PolicyName
from streamco.endpoints.base import Capabilities, Kind, Request, TokenPrices
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointConnectError, EndpointError, EngineError
from streamco.events import TextCount
from streamco.openai_types import ChatCompletionChunk, ChoiceDelta, ChunkChoice
from streamco.testing import Cut, Reset, ScriptedEndpoint, ScriptedServer, chunk_event, run_in_virtual_time, stream_answer
from streamco.testing.endpoint import ScriptedStream, ScriptItem, text_chunk
from streamco.testing.responses import ScriptedResponse

WORDS = [f"w{index} " for index in range(12)]
ABLE = Capabilities(continuation="continue_final_message", tools=True, json_schema=True)
PRICES = TokenPrices(prompt=1e-6, completion=1e-5)
QUESTION = [{"role": "user", "content": "?"}]
NO_EXPLORING = streamco.Race(explore=0.0)  # a loser that may run to its first token has wasted it


def writer(name: str, *, cut: int | None = None, step: float = 0.1, kind: Kind = "server", able: Capabilities = ABLE) -> ScriptedEndpoint:
    """Writes the words, one every ``step`` seconds; ``cut``: fails after this many of them."""
    script: list[tuple[float, ScriptItem]] = [(step * (index + 1), word) for index, word in enumerate(WORDS)]
    if cut is not None:
        script = [*script[:cut], (step * (cut + 1), EndpointConnectError("cut", endpoint=name))]
    return ScriptedEndpoint(name, script, kind=kind, capabilities=able, tokens=5)


async def collect(stream: streamco.TokenStream, into: list[str]) -> None:
    """Append to the caller's list, which then has what came before an error too."""
    async for token in stream:
        into.append(token.text)  # noqa: PERF401


class Gatewayed(ScriptedEndpoint):
    """An endpoint with a gateway before it that takes no MessagePack."""

    def open(self, request: Request) -> ScriptedStream:
        stream = super().open(request)
        stream.changes = {"MessagePack": "begun answers go in JSON, because MessagePack was refused (400)"}  # type: ignore[attr-defined]
        return stream


def test_a_request_that_was_sent_again_in_another_form_is_noted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        second = Gatewayed("second", [(0.1 * (n + 1), word) for n, word in enumerate(WORDS)], capabilities=ABLE)
        async with Client(server=[writer("first", cut=4), second]) as client:
            for _ in range(2):
                stream = await client.chat.completions.create(messages=QUESTION, stream=True)
                assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "".join(WORDS)
                assert "second: begun answers go in JSON, because MessagePack was refused (400)" in stream.report.notes

    run_in_virtual_time(main())
    client_log = [record.getMessage() for record in caplog.records if "MessagePack" in record.getMessage()]
    assert client_log == ["second: begun answers go in JSON, because MessagePack was refused (400) (logged once)"]


def test_the_device_goes_on_when_the_server_dies_and_the_report_says_so() -> None:
    async def main() -> None:
        server, device = writer("server", cut=4), writer("device", kind="device")
        async with Client(device, server, mode=Race(policy="server-first")) as client:
            stream = await client.chat.completions.create(messages=QUESTION, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            report = stream.report
        assert text == "".join(WORDS)
        (hand_over,) = report.hand_overs
        assert (hand_over.source, hand_over.target, hand_over.position) == ("server", "device", 4)
        assert report.winner == "server"
        assert {part.name: part.outcome for part in report.endpoints} == {"server": "won", "device": "took over"}
        (request,) = [stream.request for stream in device.streams]
        assert request.partial is not None
        assert request.partial.text == "".join(WORDS[:4])
        assert (server.active, device.active) == (0, 0)

    run_in_virtual_time(main())


def test_a_device_that_lost_the_race_can_still_take_over() -> None:
    async def main() -> None:
        server, device = writer("server", cut=4, step=0.1), writer("device", kind="device", step=0.5)
        async with Client(device, server, mode=replace(NO_EXPLORING, policy="both"), budget=1.0) as client:
            stream = client.stream("?")
            text = "".join([token.text async for token in stream])
            report = stream.report
        assert text == "".join(WORDS)
        assert [part.outcome for part in report.endpoints if part.name == "device"] == ["lost", "took over"]
        assert report.wasted_tokens == 0

    run_in_virtual_time(main())


@pytest.mark.parametrize("seed", range(60))
def test_whatever_dies_when_the_reader_sees_each_word_once(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        servers = [writer(f"server{index}", cut=rng.randrange(1, 12), step=rng.uniform(0.01, 0.3)) for index in range(rng.randrange(1, 4))]
        device = writer("device", kind="device", step=rng.uniform(0.01, 0.5))
        policy: PolicyName = rng.choice(["both", "server-first", "device-first"])
        async with Client(
            device, servers, mode=Race(policy=policy), budget=1.0, pace=rng.choice([None, 5, 40, "smooth"]), seed=seed
        ) as client:
            stream = client.stream("?")
            text = "".join([token.text async for token in stream])
        assert text == "".join(WORDS), f"seed {seed}"
        assert all(endpoint.active == 0 for endpoint in (*servers, device)), f"seed {seed}"

    run_in_virtual_time(main())


def test_on_failure_raise_gives_the_error_with_the_text_so_far() -> None:
    async def main() -> None:
        server, device = writer("server", cut=4), writer("device", kind="device")
        async with Client(device, server, mode=Race(policy="server-first"), on_failure="raise") as client:
            with pytest.raises(EndpointConnectError) as caught:
                _ = [token async for token in client.stream("?")]
        assert caught.value.partial == "".join(WORDS[:4])
        assert not device.streams

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    "extra", [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"response_format": {"type": "json_object"}}]
)
def test_tools_and_schemas_raise_unless_migration_is_asked_for(extra: dict[str, Any]) -> None:
    async def main(*, asked: bool) -> str:
        server, device = writer("server", cut=4), writer("device", kind="device")
        async with Client(device, server, mode=Race(policy="server-first"), on_failure="migrate" if asked else None) as client:
            return "".join([token.text async for token in client.stream("?", **extra)])

    with pytest.raises(EndpointError):
        run_in_virtual_time(main(asked=False))
    assert run_in_virtual_time(main(asked=True)) == "".join(WORDS)


@pytest.mark.parametrize("on_failure", ["migrate", "restart"])
def test_half_a_refusal_is_an_error_and_not_the_beginning_of_another_answer(on_failure: Literal["migrate", "restart"]) -> None:
    async def main() -> None:
        refusing = ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(refusal="I can't"))])
        script: list[tuple[float, ScriptItem]] = [(0.1, refusing), (0.2, EndpointConnectError("cut", endpoint="server"))]
        server, device = ScriptedEndpoint("server", script, capabilities=ABLE, tokens=5), writer("device", kind="device")
        async with Client(device, server, mode=Race(policy="server-first"), on_failure=on_failure) as client:
            stream = await client.chat.completions.create(messages=QUESTION, stream=True)
            with pytest.raises(EndpointConnectError):
                _ = [chunk async for chunk in stream]
        assert not device.streams

    run_in_virtual_time(main())


def test_an_endpoint_that_cannot_continue_is_not_asked_to() -> None:
    async def main() -> None:
        device = writer("device", kind="device", able=Capabilities())
        async with Client(device, writer("server", cut=4), mode=Race(policy="server-first")) as client:
            with pytest.raises(EndpointConnectError):
                _ = [token async for token in client.stream("?")]
        assert not device.streams

    run_in_virtual_time(main())


def test_when_everybody_dies_one_error_has_each_ones_own_and_the_whole_text() -> None:
    async def main() -> None:
        async with Client(writer("device", kind="device", cut=7), writer("server", cut=4), mode=Race(policy="server-first")) as client:
            seen: list[str] = []
            with pytest.raises(AllEndpointsFailed) as caught:
                await collect(client.stream("?"), seen)
        assert "".join(seen) == caught.value.partial == "".join(WORDS[:7])
        assert set(caught.value.errors) == {"server", "device"}

    run_in_virtual_time(main())


def test_with_options_changes_what_happens_on_failure() -> None:
    async def main() -> None:
        device, server = writer("device", kind="device"), writer("server", cut=4)
        async with Client(device, server, mode=Race(policy="server-first")) as client:
            with pytest.raises(EndpointConnectError):
                _ = [token async for token in client.with_options(on_failure="raise").stream("?")]
            assert len([token async for token in client.stream("?")]) == len(WORDS)
        with pytest.raises(ConfigError, match="on_failure"):
            Client(device, server, on_failure="explode")  # type: ignore[arg-type]

    run_in_virtual_time(main())


@pytest.mark.parametrize("ending", [Cut(), Reset()])
async def test_a_connection_that_dies_inside_an_event_is_taken_over(ending: Cut | Reset) -> None:
    half = chunk_event("lost")[:20]
    broken = ScriptedResponse(steps=(chunk_event("Hel"), chunk_event("lo"), half, ending))
    async with ScriptedServer(broken) as first, ScriptedServer(stream_answer([" wor", "ld"])) as second:
        servers = [
            streamco.OpenAIEndpoint("m", base_url=server.url, name=name, capabilities=ABLE, retry=streamco.RetryPolicy(attempts=0))
            for name, server in (("first", first), ("second", second))
        ]
        async with Client(server=servers) as client:
            stream = client.stream("?", max_tokens=50)
            async with asyncio.timeout(20):
                text = "".join([token.text async for token in stream])
        assert text == "Hello world"
        (asked,) = second.requests
        body = asked.json()
        assert body["messages"][-1] == {"role": "assistant", "content": "Hello"}
        assert body["max_tokens"] == 50, "an estimate must not cut the answer short"
        assert stream.report.notes == [
            f"first failed ({stream.report.hand_overs[0].reason}): second answered",
            "second may exceed max_tokens, because how many tokens the answer had before is only estimated",
        ]


class Counting(ScriptedEndpoint):
    """An endpoint that knows its vocabulary: a token a word."""

    def count_text(self, text: str) -> TextCount | None:
        return TextCount(len(text.split()), "words")


@pytest.mark.parametrize(
    ("source", "target", "left"),
    [(Counting, ScriptedEndpoint, 46), (ScriptedEndpoint, Counting, 46), (ScriptedEndpoint, ScriptedEndpoint, 50)],
)
def test_the_room_that_is_left_is_counted_or_not_taken_away(
    source: type[ScriptedEndpoint], target: type[ScriptedEndpoint], left: int
) -> None:
    async def main() -> None:
        begun: list[tuple[float, ScriptItem]] = [(0.1, text_chunk("w0 w1 w2 w3 ")), (0.2, EndpointConnectError("cut", endpoint="first"))]
        first = source("first", begun, kind="server", capabilities=ABLE, tokens=5)
        second = target("second", [(0.1, word) for word in WORDS], kind="server", capabilities=ABLE, tokens=5)
        async with Client(server=[first, second]) as client:
            stream = client.stream("?", max_tokens=50)
            _ = [token async for token in stream]
            assert any("may exceed max_tokens" in note for note in stream.report.notes) == (left == 50)
        (asked,) = [stream.request for stream in second.streams]
        assert asked.sampling.max_tokens == left

    run_in_virtual_time(main())


def test_whitespace_that_is_written_again_is_not_counted_twice() -> None:
    async def main() -> None:
        pieces: list[tuple[float, ScriptItem]] = [
            (0.1, text_chunk("w0", ids=[1])),
            (0.2, text_chunk(" w1", ids=[2])),
            (0.3, text_chunk("\n", ids=[3])),
        ]
        begun = [*pieces, (0.5, EndpointConnectError("cut", endpoint="first"))]
        first = ScriptedEndpoint("first", begun, kind="server", capabilities=ABLE, tokens=5)
        second = Counting("second", [(0.1, "\n"), (0.2, "w2")], kind="server", capabilities=ABLE, tokens=5)
        async with Client(server=[first, second]) as client:
            _ = [token async for token in client.stream("?", max_tokens=50)]
        assert second.streams[0].request.sampling.max_tokens == 48

    run_in_virtual_time(main())


@pytest.mark.parametrize(("end", "left"), [([], 48), (["\n"], 48), (["\n", " \n"], 48), ([" w2\n"], 47)])
def test_whitespace_that_a_server_without_a_known_vocabulary_writes_again_is_not_counted(end: list[str], left: int) -> None:
    async def main() -> None:
        texts = ["w0", " w1", *end]
        pieces: list[tuple[float, ScriptItem]] = [(0.1 * at, text_chunk(text, ids=[at])) for at, text in enumerate(texts, 1)]
        begun = [*pieces, (0.9, EndpointConnectError("cut", endpoint="device"))]
        device = ScriptedEndpoint("device", begun, kind="device", capabilities=ABLE, tokens=5)
        second = ScriptedEndpoint("second", [(0.1, word) for word in WORDS], kind="server", capabilities=ABLE, tokens=5)
        async with Client(device, second, mode=Race(policy="device-first")) as client:
            _ = [token async for token in client.stream("?", max_tokens=50)]
        assert second.streams[0].request.sampling.max_tokens == left

    run_in_virtual_time(main())


def test_an_answer_that_has_as_many_tokens_as_it_may_is_finished_and_nothing_is_asked() -> None:
    async def main() -> None:
        begun: list[tuple[float, ScriptItem]] = [(0.1, text_chunk("w0 w1 w2 w3 ")), (0.2, EndpointConnectError("cut", endpoint="first"))]
        first = Counting("first", begun, kind="server", capabilities=ABLE, tokens=5, prices=PRICES)
        second = ScriptedEndpoint("second", [(0.1, "more")], kind="server", capabilities=ABLE, tokens=5, prices=PRICES)
        async with Client(server=[first, second]) as client:
            stream = client.stream("?", max_tokens=4)
            assert "".join([token.text async for token in stream]) == "w0 w1 w2 w3 "
            report = stream.report
        assert (report.finish_reason, report.ending, second.streams) == ("length", "complete", [])
        asked = {part.name: (part.prompt_tokens, part.completion_tokens) for part in report.endpoints if part.opened is not None}
        assert asked["second"] == (0, 0)

    run_in_virtual_time(main())


class Closed(ScriptedEndpoint):
    """A device with an engine that is closed."""

    def count_text(self, text: str) -> TextCount | None:
        raise EngineError("engine: already closed")


def test_a_model_that_cannot_count_any_more_counts_nothing() -> None:
    async def main() -> None:
        first = writer("first", cut=3)
        second = Closed("second", [(0.1, word) for word in WORDS], kind="server", capabilities=ABLE, tokens=5)
        async with Client(server=[first, second]) as client:
            stream = client.stream("?", max_tokens=50)
            assert "".join([token.text async for token in stream]) == "".join(WORDS)
        assert second.streams[0].request.sampling.max_tokens == 50

    run_in_virtual_time(main())


def test_the_ids_of_a_device_count_against_the_limit() -> None:
    async def main() -> None:
        pieces: list[tuple[float, ScriptItem]] = [(0.1 * at, text_chunk(text, ids=[at])) for at, text in enumerate(["w", "0 ", "w1 "], 1)]
        begun = [*pieces, (0.5, EndpointConnectError("cut", endpoint="device"))]
        device = ScriptedEndpoint("device", begun, kind="device", capabilities=ABLE, tokens=5)
        second = ScriptedEndpoint("second", [(0.1, word) for word in WORDS], kind="server", capabilities=ABLE, tokens=5)
        async with Client(device, second, mode=Race(policy="device-first")) as client:
            stream = client.stream("?", max_tokens=50)
            _ = [token async for token in stream]
            assert not any("max_tokens" in note for note in stream.report.notes)
        (asked,) = [stream.request for stream in second.streams]
        assert asked.sampling.max_tokens == 47

    run_in_virtual_time(main())


async def test_without_anybody_to_take_over_a_truncated_answer_keeps_its_text() -> None:
    broken = ScriptedResponse(steps=(chunk_event("Hel"), chunk_event("lo"), Cut()))
    async with ScriptedServer(broken) as server, Client(server=streamco.OpenAIEndpoint("m", base_url=server.url)) as client:
        with pytest.raises(EndpointError) as caught:
            _ = [token async for token in client.stream("?")]
    assert caught.value.partial == "Hello"


@pytest.mark.parametrize("paced", [None, 50.0, "smooth"])
def test_with_consent_an_endpoint_that_cannot_continue_makes_the_answer_anew(paced: Pace) -> None:
    async def main() -> None:
        mute = Capabilities()
        first, second = writer("first", cut=5, able=mute), writer("second", able=mute)
        async with Client(server=[first, second], on_failure="restart", pace=paced) as client:
            stream = client.stream("?")
            text = "".join([token.text async for token in stream])
            report = stream.report
        assert text == "".join(WORDS)
        assert [change.target for change in report.hand_overs] == ["second"]
        assert second.streams[0].request.partial is None
        assert {part.name: part.wasted_tokens for part in report.endpoints} == {"first": 0, "second": 5}
        assert report.usage is not None
        assert report.usage.completion_tokens == len(WORDS)
        assert (first.active, second.active) == (0, 0)

    run_in_virtual_time(main())
