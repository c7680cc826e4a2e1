"""A split endpoint over real sockets: the whole model's text, and another server goes on where one was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

import pytest
from msgspec.structs import replace

from streamco.config import SamplingOptions, Timeouts
from streamco.endpoints.base import Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.split.endpoint import SplitEndpoint, SplitStream
from streamco.engines.base import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.split.middle_engine import MiddleEngine
from streamco.engines.split.tally import SplitTally, SplitTraffic
from streamco.errors import ConfigError, EndpointConnectError
from streamco.events import StreamEnded
from streamco.server.options import ServeOptions
from streamco.server.split.service import serving_middle
from streamco.server.verify.options import VerifyOptions
from streamco.testing.fault_proxy import FaultProxy
from streamco.testing.listener import Listener
from streamco.wire.verify.errors import ModelMismatchError
from streamco.wire.verify.frames import PATH
from tests.engines.split.local_link import CELLS
from tests.server.split.serving_layers import SummingLayers, serving_layers
from tests.support.event_loops import in_thread

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.model

PROMPT = "Name three rivers in France."
REQUEST = Request(messages=[{"role": "user", "content": PROMPT}], sampling=SamplingOptions(temperature=0, max_tokens=16))
OPTIONS = EngineOptions(threads=1, context_tokens=CELLS, max_sequences=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PartFiles:
    return split_model(packaged_model(), tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def middle(files: PartFiles) -> Iterator[MiddleEngine]:
    engine = MiddleEngine(files.middle, cells=CELLS, sequences=4, threads=1, row_costs={1: 0.005, 64: 0.05})
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected() -> str:
    async def ask() -> str:
        device = DeviceEndpoint(packaged_model(), options=EngineOptions(threads=1, context_tokens=CELLS, exact=True))
        await device.start()
        text = await read(device)
        await device.aclose()
        return text

    return asyncio.run(ask())


async def read(endpoint: DeviceEndpoint) -> str:
    stream, text = endpoint.open(REQUEST), ""
    while not isinstance(event := await stream.receive(), StreamEnded):
        text += "".join(choice.delta.content or "" for chunk in event.chunks for choice in chunk.choices)
    return text


@asynccontextmanager
async def split_at(
    files: PartFiles, *urls: str, patience: float = 1.0, drafts: Literal["auto"] | None = "auto", options: EngineOptions = OPTIONS
) -> AsyncIterator[SplitEndpoint]:
    endpoint = SplitEndpoint(files.stem, urls, options=options, states="f32", patience=patience, drafts=drafts)
    try:
        await endpoint.start()
        yield endpoint
    finally:
        await endpoint.aclose()


@pytest.mark.long
async def test_the_text_is_the_whole_models(files: PartFiles, middle: MiddleEngine, expected: str) -> None:
    async with serving_middle(middle, ServeOptions(port=0)) as url, split_at(files, url) as endpoint:
        assert endpoint.is_exact
        assert await read(endpoint) == expected
        stream = endpoint.open(REQUEST)
        assert isinstance(stream, SplitStream), "its report has a split model's figures"
        await stream.cancel()
        assert set(await asyncio.gather(read(endpoint), read(endpoint), read(endpoint))) == {expected}


@pytest.mark.long
def test_each_event_loop_has_connections_of_its_own(files: PartFiles, middle: MiddleEngine, expected: str) -> None:
    async def answer(endpoint: SplitEndpoint) -> str:
        await endpoint.start()
        return await read(endpoint)

    with in_thread(serving_middle(middle, ServeOptions(port=0))) as url:
        endpoint = SplitEndpoint(files.stem, url, options=OPTIONS, states="f32")
        assert [asyncio.run(answer(endpoint)) for _ in range(3)] == [expected] * 3
        asyncio.run(endpoint.aclose())


@pytest.mark.long
async def test_answers_beyond_the_servers_places_wait_for_them(files: PartFiles, middle: MiddleEngine, expected: str) -> None:
    options = ServeOptions(port=0, verify=VerifyOptions(peer_sessions=1))
    async with serving_middle(middle, options) as url, split_at(files, url, patience=0.0) as endpoint:
        assert await asyncio.gather(*(read(endpoint) for _ in range(3))) == [expected] * 3


@pytest.mark.long
async def test_exact_mode_needs_a_server_in_exact_mode(files: PartFiles, middle: MiddleEngine, expected: str) -> None:
    async with serving_middle(middle, ServeOptions(port=0)) as url:
        endpoint = SplitEndpoint(files.stem, url, options=replace(OPTIONS, exact=True), patience=0.0)
        with pytest.raises(ModelMismatchError, match="expected a server in exact mode"):
            await endpoint.start()
        await endpoint.aclose()
    engine = MiddleEngine(files.middle, cells=CELLS, sequences=2, threads=1, row_costs={1: 0.01}, exact=True)
    async with serving_middle(engine, ServeOptions(port=0)) as url, split_at(files, url, options=replace(OPTIONS, exact=True)) as endpoint:
        assert await read(endpoint) == expected
    engine.close()


@pytest.mark.long
async def test_without_drafts_each_trip_brings_one_state(files: PartFiles, middle: MiddleEngine, expected: str) -> None:
    async with serving_middle(middle, ServeOptions(port=0)) as url, split_at(files, url, drafts=None) as endpoint:
        assert set(await asyncio.gather(*(read(endpoint) for _ in range(4)))) == {expected}
        traffic = endpoint.traffic
        assert traffic.rows_down == 4 * 16, "one state comes back for a prompt, and one for each further token"
        assert traffic.bytes_up > traffic.rows_up * middle.info.width * 4 > 0


@pytest.mark.long
async def test_states_of_16_bits_take_half_the_bytes(files: PartFiles, middle: MiddleEngine) -> None:
    async with serving_middle(middle, ServeOptions(port=0)) as url:
        endpoint = SplitEndpoint(files.stem, url, options=OPTIONS, states="f16")
        await endpoint.start()
        assert await read(endpoint)
        assert not endpoint.is_exact
        per_row = endpoint.traffic.bytes_up / endpoint.traffic.rows_up
        assert 2 * middle.info.width < per_row < 3 * middle.info.width
        await endpoint.aclose()


async def read_and_cut(endpoint: SplitEndpoint, proxy: FaultProxy) -> str:
    """Read an answer, and end the first server for good once there is text."""
    stream, text = endpoint.open(REQUEST), ""
    while not isinstance(event := await stream.receive(), StreamEnded):
        text += "".join(choice.delta.content or "" for chunk in event.chunks for choice in chunk.choices)
        if text:
            await proxy.aclose()
    return text


@asynccontextmanager
async def proxied(middle: MiddleEngine) -> AsyncIterator[FaultProxy]:
    async with serving_middle(middle, ServeOptions(port=0)) as url, FaultProxy(int(url.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.mark.long
async def test_another_server_goes_on_where_one_was_lost(files: PartFiles, middle: MiddleEngine, expected: str) -> None:
    async with (
        proxied(middle) as proxy,
        serving_middle(middle, ServeOptions(port=0)) as second,
        split_at(files, proxy.url, second) as endpoint,
    ):
        assert await read_and_cut(endpoint, proxy) == expected


@pytest.mark.long
async def test_without_another_server_the_error_has_the_text_so_far(files: PartFiles, middle: MiddleEngine, expected: str) -> None:
    async with proxied(middle) as proxy, split_at(files, proxy.url, patience=0.1) as endpoint:
        with pytest.raises(EndpointConnectError) as caught:
            await read_and_cut(endpoint, proxy)
        assert caught.value.partial
        assert expected.startswith(caught.value.partial)


class CuttingProxy(Listener):
    """Passes bytes on; resets its first connection after so many of them from the device, or to it, wherever in a frame that is."""

    def __init__(self, port: int, *, up: int = 1 << 40, down: int = 1 << 40) -> None:
        self.cuts = 0
        self._port = port
        self._limits = (up, down)
        self._writers: set[asyncio.StreamWriter] = set()

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._relay, host, port)

    async def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, to_server}
        up, down = self._limits
        with suppress(ConnectionError):
            await asyncio.gather(self._pump(reader, to_server, up), self._pump(server, writer, down))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int) -> None:
        passed = 0
        while data := await reader.read(65536):
            is_last = not self.cuts and passed + len(data) >= limit
            writer.write(data[: limit - passed] if is_last else data)
            passed += len(data)
            if is_last:
                self.cuts += 1
                await writer.drain()
                await self._drop()
        writer.close()


@pytest.mark.long
@pytest.mark.parametrize("cut", [{"up": 1_000}, {"up": 60_000}, {"up": 120_000}, {"down": 2_500}, {"down": 9_000}], ids=str)
async def test_a_connection_that_is_lost_in_mid_chunk_costs_no_token(
    files: PartFiles, middle: MiddleEngine, expected: str, cut: dict[str, int]
) -> None:
    async with serving_middle(middle, ServeOptions(port=0)) as url, CuttingProxy(int(url.rpartition(":")[2]), **cut) as proxy:
        endpoint = SplitEndpoint(files.stem, f"http://127.0.0.1:{proxy.port}", options=OPTIONS, states="f32", patience=5.0)
        await endpoint.start()
        assert await read(endpoint) == expected
        assert proxy.cuts == 1
        await endpoint.aclose()


@pytest.mark.long
async def test_a_server_of_another_model_is_refused_by_name(files: PartFiles) -> None:
    async with serving_layers(SummingLayers()) as server:
        endpoint = SplitEndpoint(files.stem, server.url.removesuffix(PATH), options=OPTIONS, patience=0.0)
        text = "expected layers 2 to 29 of model digest with states of 8 numbers"
        with pytest.raises(ModelMismatchError, match=rf"^127\.0\.0\.1:\d+: hello: {text}.*cut with the same --input-layers$"):
            await endpoint.start()
        await endpoint.aclose()


@pytest.mark.long
async def test_a_server_that_is_not_there_is_an_error_at_the_start(files: PartFiles) -> None:
    endpoint = SplitEndpoint(files.stem, "ws://127.0.0.1:9", options=OPTIONS, timeouts=Timeouts(connect=1.0))
    with pytest.raises(EndpointConnectError, match=r"^127\.0\.0\.1:9: expected a connection, got .*--middle may not be running there$"):
        await endpoint.start()
    await endpoint.aclose()


@pytest.mark.long
async def test_a_server_without_tls_is_said_to_have_none(files: PartFiles) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        endpoint = SplitEndpoint(files.stem, f"https://127.0.0.1:{port}", options=OPTIONS)
        with pytest.raises(EndpointConnectError, match=f"^127.0.0.1:{port}: expected TLS, got an answer without it; the server may"):
            await endpoint.start()
        await endpoint.aclose()


@pytest.mark.parametrize(
    ("options", "is_exact"),
    [
        ({}, False),
        ({"states": "f16"}, False),
        ({"states": "f16", "options": EngineOptions(exact=True)}, False),
        ({"states": "f32"}, True),
        ({"options": EngineOptions(exact=True)}, True),
    ],
)
def test_only_32_bits_for_all_answers_are_promised_to_lose_nothing(options: dict[str, object], *, is_exact: bool) -> None:
    endpoint = SplitEndpoint("parts/none", "ws://127.0.0.1:1", **options)  # type: ignore[arg-type]
    assert endpoint.is_exact == is_exact
    assert endpoint.figures_of(SplitTally(), 0).is_exact == (options.get("states") != "f16"), "before anything is sent"
    assert not endpoint.figures_of(SplitTally(traffic=SplitTraffic(states="f16")), 0).is_exact


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"servers": []}, "expected the URL of a server, got none"),
        ({"servers": "ws://127.0.0.1:1", "states": "i4"}, 'expected "auto", "f32", "f16" or "i8", got \'i4\''),
        ({"servers": "ws://127.0.0.1:1", "chunking": "small"}, 'expected "fastest", "balanced", "whole" or a number above 0'),
        ({"servers": "ws://127.0.0.1:1", "chunking": 0}, "a number above 0, got 0"),
        ({"servers": "ws://example.org"}, "is_plain=True allows it"),
        ({"servers": "ws://127.0.0.1:1", "patience": -1}, "patience: expected at least 0 s, got -1"),
        ({"servers": "ws://127.0.0.1:1", "max_wait": -1}, "max_wait: expected at least 0 s, got -1"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SplitEndpoint("parts/none", **options)  # type: ignore[arg-type]
