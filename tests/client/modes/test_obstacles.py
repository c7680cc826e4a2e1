"""Which endpoints a prompt keeps out by its length: those that counted it, and none by an estimate."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from streamco.client.arguments import build_request
from streamco.client.client import Client
from streamco.client.modes.obstacles import in_order, shortened_length
from streamco.client.request_facts import describe_request
from streamco.endpoints import token_counter
from streamco.endpoints.base import Capabilities, Request
from streamco.endpoints.known_servers.probe import ServerInfo
from streamco.endpoints.local_server import LocalServerEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointStatusError
from streamco.testing import ScriptedServer, json_answer, stream_answer
from streamco.testing.endpoint import ScriptedEndpoint
from tests.client.helpers import HELLO, ask, chunks_text, device, opened, server, tokens_text
from tests.support.data import data_path

SPACES = [{"role": "user", "content": "a table:\n" + " " * 4000 + "| x |"}]  # some 60 tokens; by its size 930
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def context(tokens: int) -> Capabilities:
    return Capabilities(tools=True, context_tokens=tokens)


class Guessing(ScriptedEndpoint):
    """An endpoint that can't count, and estimates each prompt at 600 tokens."""

    def estimate_tokens(self, _request: Request) -> int:
        return 600


def guessing(name: str, tokens: int, **options: Any) -> Guessing:
    return Guessing(name, [(0.0, name)], capabilities=context(tokens), **options)


# The only side


async def test_a_servers_limit_is_its_own_affair() -> None:
    small = server(tokens=50, capabilities=context(100))
    async with opened(server=small) as client:
        stream = client.stream("hello", max_tokens=32_000)
        assert await tokens_text(stream) == "S"
    assert small.streams[0].request.sampling.max_tokens == 32_000
    assert stream.report.notes == []


async def test_a_probed_servers_prompt_that_may_fit_is_sent_and_its_own_refusal_comes_through() -> None:
    models = json_answer({"data": [{"id": "m", "max_model_len": 512}]})
    missing = json_answer({"error": {"message": "no"}}, status=404)
    body = {"error": {"message": "too long", "code": "context_length_exceeded", "param": "messages"}}
    refused = json_answer(body, status=400)
    async with ScriptedServer(models, *[missing] * 4, stream_answer(["yes"]), refused) as scripted:
        remote = OpenAIEndpoint("m", base_url=scripted.url, name="server")
        await remote.probe()
        assert remote.capabilities.context_tokens == 512
        async with opened(server=remote) as client:
            answer = await client.chat.completions.create(messages=SPACES, max_tokens=4096)
            assert answer.choices[0].message.content == "yes"
            with pytest.raises(EndpointStatusError) as caught:
                await client.chat.completions.create(messages=SPACES)
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize("has_server", [False, True])
async def test_a_device_behind_a_url_is_kept_out_by_no_estimate(has_server: bool) -> None:
    models = json_answer({"data": [{"id": "m", "max_model_len": 512}]})
    missing = json_answer({"error": {"message": "no"}}, status=404)
    async with ScriptedServer(models, *[missing] * 4, stream_answer(["yes"])) as scripted:
        local = LocalServerEndpoint(scripted.url, "m")
        failing = server([(0.0, EndpointStatusError("got 500", status=500, endpoint="server"))])
        async with opened(local, failing if has_server else None, policy="device-first") as client:
            stream = await client.chat.completions.create(messages=SPACES, stream=True)
            assert await chunks_text(stream) == "yes", "alone, or in place of the server that failed"
    assert stream.report.dispatch.is_estimated
    if has_server:
        assert stream.report.dispatch.reason.startswith("device: about ")
        assert any("device is asked only if others fail: about " in note for note in stream.report.notes)


async def test_a_count_keeps_the_only_side_out_and_the_error_has_code_and_field() -> None:
    for near, far in ((device(tokens=100, capabilities=context(100)), None), (None, server(tokens=100, capabilities=context(100)))):
        async with opened(near, far) as client:
            with pytest.raises(
                ConfigError, match=r"messages: expected at most 99 tokens \(the largest context is 100\), got 100;"
            ) as caught:
                await ask(client)
            assert (caught.value.code, caught.value.field) == ("context_length_exceeded", "messages")
        assert not (near or far).streams  # type: ignore[union-attr]


async def test_the_largest_context_is_named_however_many_sides_are_too_small() -> None:
    near = device(tokens=300, capabilities=context(100))
    far = [server(tokens=310, name=f"s{size}", capabilities=context(size)) for size in (200, 300, 250)]
    async with opened(near, far) as client:
        with pytest.raises(ConfigError, match=r"at most 299 tokens \(the largest context is 300\), got 310;") as caught:
            await client.chat.completions.create(messages=HELLO, max_tokens=5000)
    assert caught.value.code == "context_length_exceeded"


async def test_the_length_is_to_blame_though_the_device_lacks_tools() -> None:
    near = device(tokens=50)
    async with opened(near, server(tokens=310, capabilities=context(200))) as client:
        with pytest.raises(ConfigError, match=r"at most 199 tokens .*device: tools; server: 311 tokens in a context of 200") as caught:
            await client.chat.completions.create(messages=HELLO, tools=[TOOL])
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("options", "field", "code"),
    [
        ({"tools": [TOOL]}, "tools", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_value"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"verbosity": "low"}, "verbosity", "unsupported_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0]",
            "unsupported_value",
        ),
    ],
)
async def test_what_a_device_alone_cannot_do_is_named_with_a_code(options: dict[str, Any], field: str, code: str) -> None:
    async with opened(device()) as client:
        with pytest.raises(ConfigError, match="expected one that some endpoint can serve") as caught:
            await client.chat.completions.create(**{"messages": HELLO, **options})
    assert (caught.value.field, caught.value.code) == (field, code)


async def test_a_device_that_no_server_can_replace_shortens_the_answer() -> None:
    near, far = device(tokens=90, capabilities=context(100)), server(tokens=90, capabilities=context(80))
    async with opened(near, far) as client:
        stream = client.stream("hello", max_tokens=4096)
        assert await tokens_text(stream) == "D"
    assert "device can give at most 10 of 4096 tokens (max_tokens), because its context ends there" in stream.report.notes


def test_a_shorter_answer_is_told_only_if_it_is_known() -> None:
    request = build_request(HELLO, max_tokens=90)
    counted, guessed = device(tokens=20, capabilities=context(100)), device(tokens=None, capabilities=context(100))
    assert shortened_length(describe_request(request, counted, []), counted) == 80
    assert shortened_length(describe_request(request, guessed, []), guessed) is None
    longer = build_request(HELLO, max_tokens=100)
    assert shortened_length(describe_request(longer, guessed, []), guessed) == 99


# Order


def test_servers_that_may_lack_the_room_come_after_those_that_have_it() -> None:
    request = build_request(HELLO)
    narrow, wide, unknown = guessing("narrow", 500), guessing("wide", 5000), server(name="unknown")
    facts = describe_request(request, None, [narrow, wide, unknown])
    ordered, late = in_order(facts, [narrow, wide, unknown])
    assert [each.name for each in ordered] == ["wide", "unknown", "narrow"]
    assert late == {"narrow": "about 601 tokens in a context of 500"}
    ordered, late = in_order(facts, [wide, narrow])
    assert ([each.name for each in ordered], late) == (["wide", "narrow"], {}), "it was asked for like that"
    ordered, late = in_order(facts, [narrow])
    assert ([each.name for each in ordered], late) == (["narrow"], {})
    assert in_order(facts, []) == ([], {})


async def test_a_server_with_room_is_asked_first_and_a_note_says_so() -> None:
    narrow, wide = guessing("narrow", 500), guessing("wide", 5000)
    async with opened(server=[narrow, wide], on_degraded="raise") as client:
        stream = client.stream("hello")
        assert await tokens_text(stream) == "wide"
    assert stream.report.notes == ["narrow is asked only if others fail: about 601 tokens in a context of 500, by an estimate"]
    assert not narrow.streams


async def test_if_all_servers_refuse_the_length_their_errors_say_so() -> None:
    error = json_answer({"error": {"message": "too long", "code": "context_length_exceeded"}}, status=400)
    async with ScriptedServer(error, error) as scripted:
        remote = [OpenAIEndpoint("m", base_url=scripted.url, name=name) for name in ("a", "b")]
        async with Client(server=remote, max_retries=0) as client:
            with pytest.raises(AllEndpointsFailed) as caught:
                await client.chat.completions.create(messages=HELLO)
    codes = [each.code for each in caught.value.errors.values() if isinstance(each, EndpointStatusError)]
    assert codes == ["context_length_exceeded"] * 2
    assert caught.value.code == "context_length_exceeded"


async def test_a_count_by_tiktoken_keeps_a_server_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    file = gzip.decompress(data_path("tokenizers", "o200k_base.tiktoken.gz").read_bytes())
    (tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790").write_bytes(file)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(token_counter, "_loaded", {})
    remote = OpenAIEndpoint("gpt-4o", base_url="http://127.0.0.1:9/v1", name="server", capabilities={"context_tokens": 100})
    await asyncio.to_thread(remote._counter.load)
    long = build_request("word " * 200)
    assert (remote.count_tokens(long) or 0) > 200
    async with opened(server=remote) as client:
        with pytest.raises(ConfigError) as caught:
            await ask(client, "word " * 200)
        assert caught.value.code == "context_length_exceeded"
    assert remote.count_tokens(replace(long, model="other")) is None, "another model's vocabulary isn't known"
    remote._apply(ServerInfo(kind="llama-server"))
    assert remote.count_tokens(long) is None, "any model may be called gpt-4o there"
