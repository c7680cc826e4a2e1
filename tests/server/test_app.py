"""The server as a whole: routes, answers that aren't streamed, many requests, embedding."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from base64 import b64decode
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from streamco.errors import ConfigError
from streamco.server.app import SERVICE, ServeOptions, make_app, serving
from streamco.testing.engine import FakeEngine, FakeVocabulary
from tests.server.support import CHAT, HELLO, TEXT, contents, running


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_health_tells_that_it_is_alive_and_how_busy() -> None:
    async with running() as server, server.client.get("/health") as response:
        assert await response.json() == {"status": "ok", "model": "fake", "requests": 0}


async def test_health_goes_through_the_engine_and_is_503_when_that_has_stopped_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    async with running(engine, health_timeout=0.05) as server:
        monkeypatch.setattr(engine, "ping", lambda _wake: None)
        async with server.client.get("/health") as response:
            assert response.status == 503
            assert (await response.json())["reason"] == "engine: expected its thread to answer within 0.05 s, got nothing"
        monkeypatch.undo()
        engine.is_closed = True
        async with server.client.get("/health") as response:
            assert (response.status, (await response.json())["status"]) == (503, "error")


@pytest.mark.parametrize(
    ("field", "value"), [("top_k", 1 << 63), ("top_k", 1 << 31), ("top_p", 0), ("top_p", -0.0), ("top_p", 1e-308), ("min_p", -1e-9)]
)
async def test_a_sampling_option_out_of_range_is_400_by_name(field: str, value: float) -> None:
    async with running() as server:
        status, body = await server.post(CHAT, {**HELLO, field: value})
        assert (status, body["error"]["param"]) == (400, field)
        assert (await server.post(CHAT, HELLO))[0] == 200


async def test_the_model_is_listed_with_its_context_and_vocabulary() -> None:
    engine = FakeEngine(context_tokens=99)
    async with running(engine) as server, server.client.get("/v1/models") as response:
        listed = await response.json()
    (card,) = listed["data"]
    assert listed["object"] == "list"
    assert (card["id"], card["object"], card["max_model_len"], card["vocabulary"]) == ("fake", "model", 99, engine.info.vocabulary)


@pytest.mark.parametrize("name", ["small", "org/small-1.5", "mit Leerzeichen"])
async def test_a_model_is_found_under_the_name_it_was_given(name: str) -> None:
    async with running(model=name) as server:
        async with server.client.get(f"/v1/models/{name}") as response:
            assert (await response.json())["id"] == name
        async with server.client.get("/v1/models/other") as response:
            assert response.status == 404
        status, body = await server.post(CHAT, {**HELLO, "model": name})
        assert (status, body["model"]) == (200, name)


async def test_another_model_is_404_and_none_at_all_is_fine() -> None:
    async with running() as server:
        status, body = await server.post(CHAT, {**HELLO, "model": "gpt-4o"})
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")
        assert body["error"]["message"] == "model: expected fake, got gpt-4o"
        for model in (None, ""):
            assert (await server.post(CHAT, {**HELLO, "model": model}))[0] == 200


async def test_a_chat_answer_has_message_finish_and_usage() -> None:
    async with running(FakeEngine("one two three")) as server:
        status, body = await server.post(CHAT, HELLO)
    assert status == 200
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "one two three", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("form", [lambda ids: "Hi there", lambda ids: ["Hi there"], lambda ids: ids, lambda ids: [ids]])
async def test_a_completion_takes_text_and_ids(form: Any) -> None:
    engine = FakeEngine("one two three")
    ids = engine.tokenize("Hi there")
    async with running(engine) as server:
        status, body = await server.post(TEXT, {"prompt": form(ids), "max_tokens": 2})
    assert status == 200
    assert body["id"].startswith("cmpl-")
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("one two", "length")
    assert engine.requests[0].prompt_ids == ids


async def test_sampling_reaches_the_engine() -> None:
    engine = FakeEngine()
    async with running(engine) as server:
        await server.post(
            CHAT, {**HELLO, "temperature": 0, "top_p": 0.5, "top_k": 9, "min_p": 0.2, "seed": 11, "stop": "END", "max_tokens": 4}
        )
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0.0, 0.5, 9, 0.2, 11)
    assert (sampling.stop, sampling.max_tokens) == (("END",), 4)


async def test_log_probabilities_are_told_when_asked_for() -> None:
    async with running(FakeEngine("one two")) as server:
        _, chat = await server.post(CHAT, {**HELLO, "logprobs": True, "top_logprobs": 1})
        _, text = await server.post(TEXT, {"prompt": "Hi", "logprobs": 1})
        _, plain = await server.post(CHAT, HELLO)
    assert [entry["token"] for entry in chat["choices"][0]["logprobs"]["content"]] == ["one", " two"]
    assert text["choices"][0]["logprobs"]["token_logprobs"] == [0.0, 0.0]
    assert plain["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, b"{"), (CHAT, {}), (CHAT, {**HELLO, "n": 2}), (TEXT, {"prompt": ["a", "b"]}), (TEXT, {"prompt": [-4]})]
)
async def test_what_cannot_be_served_is_400_and_starts_nothing(path: str, body: Any) -> None:
    engine = FakeEngine()
    async with running(engine) as server:
        status, error = await server.post(path, body)
        assert (status, error["error"]["type"]) == (400, "invalid_request_error")
        assert server.service.admission.present == 0
    assert engine.requests == []


async def test_two_hundred_requests_eight_at_a_time_leave_nothing_behind() -> None:
    engine = FakeEngine(" ".join(["word"] * 20), mode="instant", ring_tokens=6)
    async with running(engine, max_streams=8) as server:
        await server.events(CHAT, HELLO)
        tasks, threads, files = len(asyncio.all_tasks()), threading.active_count(), open_files()
        places = asyncio.Semaphore(8)

        async def ask(number: int) -> int:
            async with places:
                if number % 3 == 0:
                    return int((await server.post(CHAT, HELLO))[1]["usage"]["completion_tokens"])
                if number % 7 == 1:
                    async with server.client.post(CHAT, json={**HELLO, "stream": True}) as response:
                        await response.content.readany()
                        response.close()
                    return 20
                return len(contents(await server.events(TEXT, {"prompt": "Hi"})))

        assert await asyncio.gather(*(ask(number) for number in range(200))) == [20] * 200
        while server.service.admission.present:
            await asyncio.sleep(0.001)
        assert server.service.active == 0
        assert len(engine.requests) == 201
        await asyncio.sleep(0.01)
        gc.collect()
        # up to eight kept-alive connections each side, a task for each at the server
        assert len(asyncio.all_tasks()) <= tasks + 8
        assert threading.active_count() == threads
        assert open_files() <= files + 16


async def test_serving_gives_an_address_to_use_as_base_url_and_leaves_the_engine_open() -> None:
    engine = FakeEngine()
    async with serving(engine, ServeOptions(api_key="k")) as url:
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/v1")
        async with (
            aiohttp.ClientSession(headers={"Authorization": "Bearer k"}) as client,
            client.post(f"{url}/chat/completions", json=HELLO) as response,
        ):
            assert response.status == 200
    assert not engine.is_closed


async def test_serving_listens_on_version_six_as_well() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with (
        serving(FakeEngine(), ServeOptions(host="::1")) as url,
        aiohttp.ClientSession() as client,
        client.get(f"{url}/models") as response,
    ):
        assert response.status == 200


async def test_serving_refuses_to_be_open_by_accident() -> None:
    with pytest.raises(ConfigError, match="loopback"):
        async with serving(FakeEngine(), ServeOptions(host="0.0.0.0")):
            raise AssertionError


async def test_a_port_that_is_taken_is_an_error_and_releases_everything() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="address already in use"):
            async with serving(FakeEngine(), ServeOptions(port=taken.getsockname()[1])):
                raise AssertionError


def test_an_app_is_made_without_a_loop() -> None:
    assert make_app(FakeEngine())[SERVICE].active == 0


LONG = "x" * 900_000


@pytest.mark.parametrize(
    "fields",
    [
        {"model": LONG},
        {LONG: 1},
        {"temperature": LONG},
        {"stop": [LONG, 5]},
        {"tool_choice": LONG},
        {"response_format": {"type": LONG}},
        {"messages": [{"role": LONG, "content": "Hi"}]},
        {"messages": [{"role": "user", "content": {LONG: 1}}]},
        {"stream_options": {LONG: 1}},
        {"logit_bias": {LONG: 1}},
    ],
    ids=lambda fields: next(iter(fields))[:15],
)
async def test_an_error_does_not_echo_what_was_sent(fields: dict[str, Any]) -> None:
    async with running(max_body_bytes=2 << 20) as server, server.client.post(CHAT, json={**HELLO, **fields}) as response:
        assert len(await response.read()) < 3000
        assert all(len(value) < 1000 for _, value in response.raw_headers)


async def test_the_error_for_a_long_name_has_its_beginning_its_length_and_what_was_expected() -> None:
    async with running() as server:
        status, body = await server.post(CHAT, {**HELLO, "model": LONG})
        assert status == 404
        assert body["error"]["message"] == f"model: expected fake, got {'x' * 75} ... (900000 characters) ... {'x' * 25}"


async def test_a_client_may_ask_for_the_ids_of_a_prompt_and_the_text_of_each_token() -> None:
    vocabulary = FakeVocabulary("few", 4)
    for word in ("one", " two", " three", "the end"):
        vocabulary.id_of(word)
    engine = FakeEngine(vocabulary=vocabulary)
    async with serving(engine) as url, aiohttp.ClientSession() as session:
        root = url.removesuffix("/v1")
        async with session.post(f"{root}/tokenize", json={"prompt": "one three"}) as response:
            assert await response.json() == {"count": 2, "max_model_len": engine.info.context_tokens, "tokens": [0, 2]}
        async with session.post(f"{root}/tokenize", json={"prompt": "one", "model": "another"}) as response:
            assert response.status == 404
        async with session.post(f"{root}/tokenize", data=b"{", headers={"Content-Type": "application/json"}) as response:
            assert response.status == 400
        for _ in range(2):
            async with session.get(f"{root}/vocabulary") as response:
                told = await response.json()
        assert [b64decode(token).decode() for token in told["tokens"]] == ["one", " two", " three", ""], "the end has no text"
        assert (told["vocabulary"], told["end_ids"]) == (vocabulary.fingerprint, sorted(engine.info.end_ids))
        assert told["has_reasoning"] is False
    engine.close()


async def test_callers_at_the_same_time_share_one_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    may_end = threading.Event()
    built: list[object] = []

    def encode(of: object) -> bytes:
        built.append(of)
        may_end.wait(10.0)
        if len(built) == 1:
            raise RuntimeError("the first time fails")
        return b"{}"

    monkeypatch.setattr("streamco.server.app.encode_vocabulary", encode)
    async with serving(engine, ServeOptions()) as url, aiohttp.ClientSession() as session:

        async def ask() -> int:
            async with session.get(f"{url.removesuffix('/v1')}/vocabulary") as response:
                return response.status

        async def requests() -> int:
            async with session.get(f"{url.removesuffix('/v1')}/health") as response:
                return int((await response.json())["requests"])

        async def ask_at_once(count: int) -> set[int]:
            may_end.clear()
            asked = [asyncio.create_task(ask()) for _ in range(count)]
            while await requests() < count:
                await asyncio.sleep(0.01)
            asked.pop(0).cancel()
            may_end.set()
            return set(await asyncio.gather(*asked))

        assert await ask_at_once(10) == {500}
        assert await ask_at_once(10) == {200}
        assert await ask() == 200
        assert built == [engine, engine]
    engine.close()
