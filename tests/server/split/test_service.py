"""The split server as a service: who may connect, what each path answers, wrong devices, keys, limits and the end."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import numpy as np
import pytest
import websockets

from streamco.errors import ConfigError
from streamco.profiles.row_costs import RowCosts
from streamco.server.http.api_keys import ApiKey
from streamco.server.options import ServeOptions
from streamco.server.split.service import SplitService, default_room, serving_middle
from streamco.server.verify.options import VerifyOptions
from streamco.wire.split.client import SplitClient
from streamco.wire.split.codec import SplitCodec
from streamco.wire.split.frames import Refusal, ServerBatches, SplitWelcome, States
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import PATH, SUBPROTOCOL
from tests.server.split.serving_layers import SplitDevice, SummingLayers, device_at, mark_of, serving_layers
from tests.server.split.test_sessions import some
from tests.server.verifying import SIZE, VOCABULARY
from tests.server.verifying import serving as serving_verifier
from tests.support.leaks import settled

MARK = mark_of(SummingLayers())
PROTOCOLS = [websockets.Subprotocol(SUBPROTOCOL)]


def http(url: str) -> str:
    return url.replace("ws", "http", 1).removesuffix(PATH)


async def first_answer(url: str, client: Any) -> Any:
    async with websockets.connect(url, subprotocols=PROTOCOLS, compression=None) as socket:
        for message in client.take_messages():
            await socket.send(message)
        return client.receive(await socket.recv())


async def test_a_welcome_has_the_models_name_the_limits_and_the_measured_costs() -> None:
    engine = SummingLayers(cells=100, batch_rows=128)
    async with serving_layers(engine, model="m") as server:
        welcome = await first_answer(server.url, SplitClient(SplitCodec(MARK.width), MARK))
    assert isinstance(welcome, SplitWelcome)
    limits = welcome.limits
    assert (welcome.model, limits.context_rows, limits.rows, limits.rounds) == ("m", 100, 100, 64)
    assert welcome.batches == ServerBatches(128)
    assert [(cost.rows, cost.microseconds) for cost in welcome.row_costs] == [(1, 5000), (64, 20000)]


async def test_the_load_that_a_server_reports_follows_its_batches() -> None:
    async with serving_layers(SummingLayers()) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        answers = [await device.rows(session, 0, some(20)) for _ in range(12)]
        assert answers[0].load_rows < answers[-1].load_rows <= 20
        assert [each.steady_rows for each in answers] == [each.load_rows for each in answers], "there was no prompt"
        for _ in range(12):
            answer = await device.rows(session, 0, some(100))
        assert answer.load_rows > 80
        assert answer.steady_rows < 5
        for _ in range(20):
            await device.rows(session, 0, some(20))
        welcome = await first_answer(server.url, SplitClient(SplitCodec(MARK.width), MARK))
        assert isinstance(welcome, SplitWelcome)
        assert [cost.microseconds for cost in welcome.row_costs] == [5000, 5000]  # 64 rows were measured as 20,000, batches took less


async def test_a_server_that_becomes_slower_says_so_once_with_an_answer() -> None:
    engine = SummingLayers()
    async with serving_layers(engine) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        engine.seconds = 0.005
        assert (await device.rows(session, 0, some(1))).row_costs == ()
        engine.seconds = 0.03
        found = (await device.rows(session, 0, some(1))).row_costs
        assert [(cost.rows, cost.microseconds) for cost in found] == [(1, 10_000), (64, 20_000)], "0.8 of 5 ms and 0.2 of 30 ms"
        engine.seconds = 0.01
        assert (await device.rows(session, 0, some(1))).row_costs == ()
        assert device.client.row_costs == found


async def test_a_device_that_drafts_learns_what_it_reached_and_so_does_a_split_device_at_a_verifier() -> None:
    async with serving_layers(SummingLayers()) as server:
        refusal = await first_answer(server.url, VerifyClient(VerifyCodec(SIZE), "vocabulary"))
        assert (refusal.code, "middle layers" in refusal.message) == ("unsupported_version", True)
    async with serving_verifier() as verifier:
        refusal = await first_answer(verifier.url, SplitClient(SplitCodec(MARK.width), MARK))
        assert isinstance(refusal, Refusal)
        assert refusal.code == "unsupported_version"
    assert VOCABULARY


async def test_requests_for_text_are_refused_with_what_the_server_has() -> None:
    async with serving_layers(SummingLayers(), model="m") as server, aiohttp.ClientSession() as client:
        for path in ("/v1/chat/completions", "/v1/completions"):
            async with client.post(http(server.url) + path, json={"model": "m"}) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (404, "middle_layers_only")
        async with client.get(http(server.url) + "/health") as response:
            assert await response.json() == {"status": "ok", "model": "m", "devices": 0}
        async with client.get(http(server.url) + "/v1/models/m") as response:
            card = await response.json()
            assert (card["first_layer"], card["layers"], card["width"]) == (2, 28, 8)
        async with client.get(http(server.url) + "/v1/models/other") as response:
            assert response.status == 404
        async with client.get(http(server.url) + "/v1/models") as response:
            assert [each["id"] for each in (await response.json())["data"]] == ["m"]


async def test_health_is_503_if_the_engine_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SummingLayers()
    monkeypatch.setattr(engine, "ping", lambda _wake: None)
    async with (
        serving_layers(engine, health_timeout=0.05) as server,
        aiohttp.ClientSession() as client,
        client.get(http(server.url) + "/health") as response,
    ):
        assert response.status == 503


async def test_the_key_comes_with_the_hello_or_not_at_all() -> None:
    async with serving_layers(SummingLayers(), api_key="secret") as server:
        async with device_at(server.url, MARK, token="secret") as device:
            await device.open()
        for token in ("other", None):
            refusal = await first_answer(server.url, SplitClient(SplitCodec(MARK.width), MARK, token=token))
            assert refusal.code == "unauthorised"
        async with aiohttp.ClientSession() as client, client.get(http(server.url) + f"{PATH}/stats") as response:
            assert response.status == 401


async def test_a_key_resumes_no_session_of_another_key() -> None:
    keys = (ApiKey("alice", "sk-a"), ApiKey("bob", "sk-b"))
    async with serving_layers(SummingLayers(), api_keys=keys) as server:
        async with device_at(server.url, MARK, token="sk-a") as device:
            _, opened = await device.open()
            await device.lose()
        async with device_at(server.url, MARK, token="sk-b") as other:
            other.client.resume(opened.key)
            await other.say()
            assert (await other.refused()).code == "not_resumable"
        async with device_at(server.url, MARK, token="sk-a") as device:
            await device.resume(opened.key)


async def test_limits_of_sessions_are_refused_with_what_to_do() -> None:
    options = VerifyOptions(peer_sessions=1)
    async with serving_layers(SummingLayers(), verify=options) as server, device_at(server.url, MARK) as device:
        await device.open()
        device.client.open()
        await device.say()
        refusal = await device.refused()
        assert refusal.code == "overloaded"
        assert refusal.retry_after_ms == 1000
        assert server.figures["refused"] == {"address limit": 1}


async def test_a_session_that_is_silent_for_too_long_is_forgotten() -> None:
    options = VerifyOptions(load=VerifyOptions().load.__class__(forget_after=0.05))
    async with serving_layers(SummingLayers(), verify=options) as server, device_at(server.url, MARK) as device:
        await device.open()
        refusal = await device.refused()
        assert (refusal.code, refusal.round_number) == ("evicted", None)


async def test_a_shutdown_is_sent_to_every_device() -> None:
    async with serving_layers(SummingLayers()) as server, device_at(server.url, MARK) as device:
        await device.open()
        await server.service.stop()
        assert (await device.refused()).code == "shutting_down"


async def test_faulty_frames_end_the_connection_and_nothing_else() -> None:
    async with serving_layers(SummingLayers()) as server, device_at(server.url, MARK) as good:
        session, _ = await good.open()
        async with device_at(server.url, MARK) as bad:
            for _ in range(20):
                await bad.socket.send(b"\xc1")
            codes = [(await bad.refused()).code for _ in range(17)]
            assert codes == ["malformed"] * 16 + ["too_many_faults"]
        await good.rows(session, 0, some(3))


async def test_memory_stays_flat_over_many_rounds_and_sessions() -> None:
    async with serving_layers(SummingLayers()) as server:
        for _ in range(20):
            async with device_at(server.url, MARK) as device:
                for _ in range(5):
                    session, _ = await device.open()
                    await device.rows(session, 0, some(40), wanted=4)
                    device.client.close(session)
                    await device.say()
        for _ in range(200):
            if server.figures["sessions"] == 0:
                break
            await asyncio.sleep(0.01)
        manager = server.service.manager
        assert (manager._sessions, manager._by_key, manager._connections, manager._left) == ({}, {}, {}, {})
        assert manager._runner._sequences == {}
        assert sorted(manager._runner._free) == [0, 1, 2, 3]
        assert manager.machine.reserved == 0


async def test_serving_inside_a_process_yields_the_address() -> None:
    engine = SummingLayers()
    async with (
        serving_middle(engine, ServeOptions(port=0), room=64) as address,
        device_at(address.replace("http", "ws", 1) + PATH, MARK) as device,
    ):
        assert isinstance(device, SplitDevice)


def test_a_room_that_the_engine_does_not_have_is_a_wrong_setting() -> None:
    for rows, room in ((64, 65), (64, 47), (32, None)):
        with pytest.raises(ConfigError, match="room"):
            SplitService(SummingLayers(batch_rows=rows), VerifyOptions(), ServeOptions(), room=room)


def test_the_room_of_a_server_follows_what_its_rows_cost() -> None:
    gpu = RowCosts({1: 0.01813, 256: 0.05128})
    cpu = RowCosts({1: 0.005, 256: 1.28})
    assert default_room(gpu, 512) == 256
    assert default_room(gpu, 100) == 100
    assert 100 < default_room(cpu, 512) < 128
    assert default_room(RowCosts({1: 0.001}), 512) == 120


async def test_a_verification_that_waits_for_full_batches_is_not_late() -> None:
    async with serving_layers(SummingLayers(), verify=VerifyOptions(), room=128) as server, device_at(server.url, MARK) as device:
        session, _ = await device.open()
        await device.rows(session, 0, some(4))
        options = server.service.manager.machine._options
        assert options.late_grace == pytest.approx(VerifyOptions().load.late_grace + 2 * RowCosts({1: 0.005, 64: 0.02}).seconds(128))


async def test_a_verification_beside_a_prompt_is_taken_on_a_server_that_became_slower_than_its_costs() -> None:
    engine = SummingLayers(is_manual=True)
    async with (
        serving_layers(engine, verify=VerifyOptions(), room=64) as server,
        device_at(server.url, MARK) as long,
        device_at(server.url, MARK) as short,
    ):
        prompt, _ = await long.open()
        draft, _ = await short.open()
        engine.seconds = 20 * RowCosts(engine.row_costs()).seconds(64)  # its first batch shows that
        await long.send(prompt, 0, some(200), wanted=1)
        await settled(lambda: bool(engine.waiting))
        engine.compute()
        await settled(lambda: bool(engine.waiting))
        await short.send(draft, 0, some(4), wanted=4)
        await settled(lambda: server.figures["pending_rounds"] == 2 or bool(server.figures["refused"]))
        assert server.figures["refused"] == {}
        while engine.waiting:
            engine.compute()
            await asyncio.sleep(0.01)
        assert isinstance(await short.take(), States)


async def test_answers_that_a_device_does_not_read_are_few_and_come_when_it_reads_again() -> None:
    engine = SummingLayers(sequences=12, width=4096)
    mark, rows = mark_of(engine), np.ones((256, 4096), np.float32)  # 4 MB
    async with (
        serving_layers(engine) as server,
        websockets.connect(server.url, subprotocols=PROTOCOLS, max_queue=1, max_size=None) as socket,
    ):
        device = SplitDevice(socket, SplitClient(SplitCodec(mark.width), mark))
        await device.say()
        await device.take()
        sessions = [(await device.open())[0] for _ in range(12)]
        for session in sessions:
            device.client.rows(session, 0, rows, wanted=len(rows), form="f32")
        sending = asyncio.create_task(device.say())
        (connection,) = server.service._connections
        most, seen, polls = 0, -1, 0
        while polls < 20:
            await asyncio.sleep(0.02)
            most = max(most, sum(map(len, connection._unsent)))
            polls, seen = (polls + 1, seen) if server.figures["rounds"] == seen else (0, server.figures["rounds"])
        assert most < 4 * rows.nbytes
        for _ in sessions:
            answer = await device.take()
            assert isinstance(answer, States)
            assert np.array_equal(answer.states[:, 0], np.arange(1, 257))
        await sending
