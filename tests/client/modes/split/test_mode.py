"""A client in mode "split": the whole model's text over a socket, and settings without effect are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import streamco
from bench.fake_layers import FakeLayers
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import PartFiles, read_part, split_model
from streamco.engines.split.middle_engine import MiddleEngine
from streamco.errors import ConfigError
from streamco.server.options import ServeOptions
from streamco.server.split.service import serving_middle
from streamco.testing.endpoint import ScriptedEndpoint
from streamco.testing.link_proxy import LinkProxy
from streamco.wire.tensors import StateFormat
from tests.engines.split.local_link import CELLS
from tests.support.leaks import holding_nothing_new

OPTIONS = EngineOptions(threads=1, context_tokens=CELLS, max_sequences=2)
PROMPTS = ("Name three rivers in France.", "Why is the sky blue?")
INEXACT = "split: the answer is not exactly the model's own, because its states travel in fewer than 32 bits"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    return split_model(packaged_model(), tmp_path_factory.mktemp("parts"))


async def texts(client: streamco.Client, **options: Any) -> list[str]:
    made = []
    for prompt in PROMPTS:
        answer = await client.chat.completions.create(messages=[{"role": "user", "content": prompt}], max_tokens=12, **options)
        made.append(answer.choices[0].message.content or "")
    return made


@pytest.fixture
def middle(files: PartFiles) -> Iterator[MiddleEngine]:
    engine = MiddleEngine(files.middle, cells=CELLS, sequences=4, threads=1, row_costs={1: 0.005, 64: 0.05})
    yield engine
    engine.close()


@pytest.fixture
def layers(files: PartFiles) -> Iterator[FakeLayers]:
    """Middle layers that compute nothing, at once."""
    made = FakeLayers(read_part(files.middle), lambda _rows: 0.0, cells=CELLS)
    yield made
    made.close()


@pytest.fixture
def whole(files: PartFiles) -> Path:
    return packaged_model()


@pytest.mark.long
@pytest.mark.model
async def test_answers_are_the_whole_models_greedy_and_sampled(files: PartFiles, middle: MiddleEngine, whole: Path) -> None:
    device = streamco.DeviceEndpoint(whole, options=EngineOptions(threads=1, context_tokens=CELLS, exact=True))
    async with streamco.Client(device) as client:
        greedy, sampled = await texts(client, temperature=0), await texts(client, temperature=0.9, seed=3)
    async with serving_middle(middle, ServeOptions(port=0)) as url:
        split = streamco.SplitEndpoint(files.stem, url, options=OPTIONS, states="f32")
        async with streamco.Client(mode=streamco.Split(split)) as client:
            assert await texts(client, temperature=0) == greedy
            assert await texts(client, temperature=0.9, seed=3) == sampled
        async with streamco.Client(mode=streamco.Split(str(files.stem), url)) as client:
            assert all(await texts(client, temperature=0))


RIVERS = {"type": "array", "items": {"enum": ["Seine", "Loire", "Rhône"]}, "minItems": 1, "maxItems": 3}
SAMPLED: tuple[dict[str, Any], ...] = (
    {"temperature": 0, "stop": [" the"]},
    {"temperature": 0, "stop": ["The", "\n"]},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 1.0, "seed": 8, "top_p": 0.8, "frequency_penalty": 1.0, "presence_penalty": 0.5},
    {"temperature": 0.7, "seed": 9, "logit_bias": {"378": -100, "504": -100, "29": 5}},
    {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "response_format": {"type": "json_object"}, "max_tokens": 40},
    {"temperature": 1.0, "seed": 2, "response_format": {"type": "json_schema", "json_schema": {"name": "rivers", "schema": RIVERS}}},
)


@pytest.mark.long
@pytest.mark.model
async def test_every_option_of_sampling_gives_the_whole_models_text(files: PartFiles, middle: MiddleEngine, whole: Path) -> None:
    device = streamco.DeviceEndpoint(whole, options=EngineOptions(threads=1, context_tokens=CELLS, exact=True))
    async with streamco.Client(device) as client:
        expected = [await choice_of(client, options) for options in SAMPLED]
    async with serving_middle(middle, ServeOptions(port=0)) as url:
        split = streamco.SplitEndpoint(files.stem, url, options=OPTIONS, states="f32")
        async with streamco.Client(mode=streamco.Split(split)) as client:
            for options, choice in zip(SAMPLED, expected, strict=True):
                assert await choice_of(client, options) == choice, options


async def choice_of(client: streamco.Client, options: dict[str, Any]) -> object:
    options = {"max_tokens": 10, **options}
    answer = await client.chat.completions.create(messages=[{"role": "user", "content": PROMPTS[0]}], **options)
    return answer.choices[0]


@pytest.mark.long
@pytest.mark.model
async def test_the_report_says_what_left_the_device_in_how_many_trips(files: PartFiles, middle: MiddleEngine) -> None:
    async with serving_middle(middle, ServeOptions(port=0)) as url:
        device = streamco.SplitEndpoint(files.stem, url, options=OPTIONS, states="f32")
        async with streamco.Client(mode=streamco.Split(device)) as client:
            streams = [client.stream(prompt, temperature=0, max_tokens=12) for prompt in PROMPTS]
            await asyncio.gather(*(read_all(stream) for stream in streams))
            reports = [stream.report for stream in streams]
        traffic = device.traffic
    for report in reports:
        figures = report.split
        assert figures is not None
        assert (report.mode, report.dispatch.policy, report.notes) == ("split", "split", [])
        assert figures.sent == "hidden states of layer 2, f32; no token id, no text"
        assert (figures.is_exact, figures.sessions, figures.repeated_rows) == (True, 1, 0)
        assert figures.servers == [url.removeprefix("http://")]
        assert 0 < figures.trips <= 12
        assert figures.tokens_per_trip == 12 / figures.trips
        assert figures.trips + figures.accepted >= 12, "a trip makes one token, and one more for each accepted draft"
        assert figures.rows_down == figures.trips + figures.drafted, "one state for the prompt, and one for each row after it"
        assert report.energy_j is not None
        assert msgspec.json.decode(msgspec.json.encode(report), type=streamco.reports.Report).split == figures
    parts = [report.split for report in reports if report.split is not None]
    assert sum(part.bytes_up for part in parts) == traffic.bytes_up
    assert sum(part.bytes_down for part in parts) == traffic.bytes_down
    assert sum(part.trips for part in parts) == traffic.trips


async def read_all(stream: streamco.TokenStream) -> None:
    async for _ in stream:
        pass


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("states", ["i8", "f16"])
async def test_states_of_fewer_bits_are_noted_as_not_exact(files: PartFiles, middle: MiddleEngine, states: StateFormat) -> None:
    async with serving_middle(middle, ServeOptions(port=0)) as url:
        device = streamco.SplitEndpoint(files.stem, url, options=OPTIONS, states=states)
        async with streamco.Client(mode=streamco.Split(device)) as client:
            stream = await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}], max_tokens=2, stream=True)
            assert [chunk async for chunk in stream]
            assert stream.report.notes == [INEXACT]
        async with streamco.Client(streamco.SplitEndpoint(files.stem, url, options=OPTIONS, states=states)) as client:
            stream = await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}], max_tokens=2, stream=True)
            assert [chunk async for chunk in stream]
            assert INEXACT in stream.report.notes


@pytest.mark.long
@pytest.mark.model
async def test_each_answer_has_the_format_that_its_link_asks_for_and_says_so(files: PartFiles, layers: FakeLayers) -> None:
    prompt = f"Repeat these words: {'river ' * 60}"
    async with (
        serving_middle(layers, ServeOptions(port=0)) as url,
        LinkProxy(int(url.rpartition(":")[2]), rtt=0.01, mbps=4.0) as link,
        streamco.Client(
            mode=streamco.Split(
                streamco.SplitEndpoint(files.stem, f"http://127.0.0.1:{link.port}", options=OPTIONS, drafts=None, chunking=16)
            )
        ) as client,
    ):
        reports = []
        for _ in range(2):
            stream = client.stream(prompt, temperature=0, max_tokens=1)
            await read_all(stream)
            reports.append(stream.report)
    first, second = (report.split for report in reports)
    assert first is not None
    assert second is not None
    assert (first.states, first.is_exact, reports[0].notes) == ("f32", True, []), "the link isn't measured before"
    assert (second.states, second.is_exact, reports[1].notes) == ("f16", False, [INEXACT]), "the server computes nothing"
    assert second.sent == "hidden states of layer 2, f16; no token id, no text"
    assert second.rows_up == first.rows_up
    assert second.bytes_up < 0.6 * first.bytes_up


@pytest.mark.parametrize(
    ("parts", "server", "text"),
    [
        (None, "ws://127.0.0.1:1", "parts: expected the beginning of the parts' files"),
        ("parts/model", None, "server: expected the URL of a split server"),
        ("parts/model", 5, "server: expected the URL of a split server"),
        ("parts/model", [], "server: expected the URL of a split server"),
        ("parts/model", "ws://example.org", "is_plain=True allows it"),
        (streamco.SplitEndpoint("a", "ws://127.0.0.1:1"), "ws://127.0.0.1:1", "server: can't be combined with a SplitEndpoint"),
    ],
)
def test_a_split_model_has_parts_and_servers(parts: Any, server: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        streamco.Split(parts, server)


@pytest.mark.parametrize("name", ["device", "server", "budget", "profile", "on_failure", "max_retries"])
def test_settings_for_several_endpoints_are_refused(name: str) -> None:
    values = {"device": "a.gguf", "server": "m", "budget": 0.5, "profile": b"{}", "on_failure": "restart", "max_retries": 2}
    with pytest.raises(ConfigError, match=rf"{name}: can't be combined with Split\(...\), in which one endpoint makes all answers"):
        streamco.Client(mode=streamco.Split("parts/model", "ws://127.0.0.1:1"), **{name: values[name]})  # type: ignore[arg-type]


def test_another_clients_endpoints_do_not_become_a_split_model() -> None:
    client = streamco.Client(streamco.SplitEndpoint("a", "ws://127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"mode: expected Split where the client is made"):
        client.with_options(mode=streamco.Split("a", "ws://127.0.0.1:1"))


@pytest.mark.parametrize("mode", ["race", "speculate", "auto", streamco.Race(policy="both")])
def test_a_split_model_takes_no_part_in_another_mode(mode: Any) -> None:
    client = streamco.Client(mode=streamco.Split("parts/model", "ws://127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"mode: expected Split where the client is made"):
        client.with_options(pace=5.0).with_options(mode=mode)


@pytest.mark.parametrize("options", [{"budget": 0.5}, {"on_failure": "restart"}, {"max_retries": 2}])
def test_settings_for_several_endpoints_are_refused_later_too(options: dict[str, Any]) -> None:
    (name,) = options
    client = streamco.Client(mode=streamco.Split("parts/model", "ws://127.0.0.1:1"))
    with pytest.raises(ConfigError, match=f"{name}: can't be combined with Split"):
        client.with_options(**options)


def test_a_request_can_not_ask_for_retries_of_a_split_model() -> None:
    client = streamco.Client(mode=streamco.Split("parts/model", "ws://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="max_retries: can't be combined with Split"):
        client.stream("Hi", max_retries=2)


def test_settings_of_a_split_client_that_have_an_effect_can_be_changed() -> None:
    client = streamco.Client(mode=streamco.Split("parts/model", "ws://127.0.0.1:1"))
    assert client.with_options(pace="reading", timeout=3.0, on_degraded="raise").with_options() is not client


@pytest.mark.model
async def test_a_split_model_is_a_way_beside_others(files: PartFiles, layers: FakeLayers) -> None:
    async with serving_middle(layers, ServeOptions(port=0)) as url:
        split = streamco.Split(streamco.SplitEndpoint(files.stem, url, options=OPTIONS))
        late = ScriptedEndpoint("server", [(5.0, "S")])
        mode = streamco.Auto(streamco.Race(), split, time=1.0)
        async with holding_nothing_new(), streamco.Client(server=late, mode=mode, seed=1) as client:
            found = [(await one(client)) for _ in range(4)]
    assert [report.mode for report in found].count("split") >= 3
    plan = found[-1].plan
    assert plan is not None
    ways = {way.name: way for way in plan.ways}
    assert ways["split"].first_word is not None
    assert ways["split"].dollars == 0.0
    assert ways["device"].obstacle


@pytest.mark.model
async def test_a_split_model_that_cant_start_delays_no_answer_and_is_said(files: PartFiles) -> None:
    nobody = streamco.SplitEndpoint(files.stem, "ws://127.0.0.1:1", options=OPTIONS)
    mode = streamco.Auto(streamco.Race(), streamco.Split(nobody), time=1.0)
    server = ScriptedEndpoint("server", [(0.0, "S")])
    async with holding_nothing_new(), streamco.Client(server=server, mode=mode, seed=1, on_degraded="answer") as client:
        assert client.unspeculated == ""
        report = await one(client)
    assert report.winner == "server"
    assert any(note.startswith("not by the split model: ") for note in report.notes)


def test_the_quality_of_a_split_model_can_be_declared(tmp_path: Path) -> None:
    split = streamco.Split(streamco.SplitEndpoint(tmp_path / "a", "ws://127.0.0.1:1", name="large"))
    server = ScriptedEndpoint("server", [(0.0, "S")])
    for name, is_known in (("large", True), ("larger", False)):
        race = streamco.Race(migration=streamco.MigrationOptions(quality={name: 0.9, "server": 0.5}))
        if is_known:
            streamco.Client(server=server, mode=streamco.Auto(race, split, quality=1.0))
        else:
            with pytest.raises(ConfigError, match="migration: quality: expected names among server, large, got 'larger'"):
                streamco.Client(server=server, mode=streamco.Auto(race, split, quality=1.0))


async def one(client: streamco.Client) -> streamco.reports.Report:
    stream = client.stream(PROMPTS[0], max_tokens=4, temperature=0)
    assert [token.text async for token in stream]
    return stream.report
