"""The plugin for ``llm``: its command and its Python API, over scripted servers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamco.errors import ConfigError
from streamco.testing import DONE, RecordedRequest, ScriptedResponse, ScriptedServer, Stall, chunk_event, json_answer, stream_answer

llm = pytest.importorskip("llm")
runner = pytest.importorskip("click.testing")

from streamco.integrations import llm as plugin  # noqa: E402
from streamco.integrations import llm_plugin  # noqa: E402
from streamco.integrations.llm_clients import CLIENTS, PluginSettings  # noqa: E402

pytestmark = pytest.mark.peer

ROOT = Path(__file__).parents[2]
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
MODELS = json_answer({"object": "list", "data": [{"id": "small", "owned_by": "scripted"}]})
PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010806000000")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of llm's own, the plugin registered, and no clients left afterwards."""
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "LLM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    llm.load_plugins()
    if not llm.pm.is_registered(llm_plugin):
        llm.pm.register(llm_plugin, name="streamco")
    yield tmp_path
    CLIENTS.close()


def serving(*answers: Any) -> ScriptedServer:
    """A model server with one model, which may be the device or, with a name, the server."""
    server = ScriptedServer(*(answers or (stream_answer(usage=USAGE),)))
    server.route("/v1/models", MODELS)
    return server


async def command(*words: str, input: str | None = None) -> Any:  # noqa: A002
    """Run the command in a thread, because the scripted server is on this loop."""
    from llm.cli import cli

    return await asyncio.to_thread(runner.CliRunner().invoke, cli, list(words), input=input, catch_exceptions=False)


def asked(server: ScriptedServer) -> list[RecordedRequest]:
    return [request for request in server.requests if request.path.endswith("/chat/completions")]


async def test_the_command_streams_an_answer_and_shows_its_usage() -> None:
    async with serving() as server:
        result = await command("-m", "streamco", "-o", "device", server.url, "-u", "Hello?")
        assert (result.exit_code, result.stdout) == (0, "Hello world\n")
        assert "7 input, 2 output" in result.stderr
        assert asked(server)[0].json()["messages"] == [{"role": "user", "content": "Hello?"}]


async def test_the_command_goes_on_with_a_conversation_and_its_system_prompt() -> None:
    async with serving() as server:
        options = ("-m", "streamco", "-o", "server", "large", "-o", "base_url", server.url, "-o", "max_tokens", "20")
        await command(*options, "-s", "Be brief.", "Hello?")
        result = await command(*options, "--no-stream", "-c", "And you?")
        assert result.stdout == "Hello world\n"
        first, second = asked(server)
        assert first.json()["messages"][0] == {"role": "system", "content": "Be brief."}
        assert [message["content"] for message in second.json()["messages"]][-3:] == ["Hello?", "Hello world", "And you?"]
        assert (second.json()["model"], second.json()["max_tokens"]) == ("large", 20)


async def test_the_report_is_in_the_log_of_the_command() -> None:
    async with serving() as server:
        await command("-m", "streamco", "-o", "device", server.url, "Hello?")
    (logged,) = json.loads((await command("logs", "--json")).stdout)
    report = logged["response_json"]["report"]
    assert (report["winner"], report["finish_reason"], report["usage"]["completion_tokens"]) == ("device", "stop", 2)
    assert logged["resolved_model"] == "scripted"


async def test_a_chat_keeps_its_client_from_turn_to_turn() -> None:
    async with serving() as server:
        result = await command("chat", "-m", "streamco", "-o", "device", server.url, input="one\ntwo\nquit\n")
        assert result.stdout.count("Hello world") == 2
        assert server.count("/v1/models") == 1


async def test_both_sides_race_and_the_first_one_answers() -> None:
    async with serving(stream_answer(["from the device"])) as device, serving(ScriptedResponse(steps=[Stall()])) as server:
        words = ("-o", "device", device.url, "-o", "server", "large", "-o", "base_url", server.url, "-o", "policy", "both")
        result = await command("-m", "streamco", *words, "Hello?")
        assert result.stdout == "from the device\n"


async def test_a_server_that_refuses_its_key_does_not_keep_the_device_from_answering() -> None:
    refusal = ScriptedResponse(status=401, steps=[])
    async with serving(stream_answer(["from the device"])) as device, serving(refusal) as server:
        words = ("-o", "device", device.url, "-o", "server", "large", "-o", "base_url", server.url, "-o", "policy", "server-first")
        result = await command("-m", "streamco", *words, "Hello?")
        assert result.stdout == "from the device\n"
        assert asked(server)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-o", "base_url", "http://127.0.0.1:1"], "base_url: only valid with server"),
        (["-o", "config", "no.toml"], "config: expected a file that can be read"),
        (["-o", "pace", "soon"], "pace"),
        (["-o", "mode", "split"], "mode"),
        (["-o", "server", "x", "-o", "base_url", "ftp://x"], "base_url: expected a URL"),
    ],
)
async def test_a_wrong_option_is_named_in_one_line(words: list[str], complaint: str) -> None:
    result = await command("-m", "streamco", *words, "Hello?")
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


async def test_a_prompt_waits_for_the_answer_without_a_loop_of_its_own() -> None:
    async with serving() as server:

        def ask() -> tuple[str, Any, str | None]:
            response = llm.get_model("streamco").prompt("Hello?", device=server.url, temperature=0, seed=3)
            return response.text(), response.usage(), response.resolved_model

        text, usage, model = await asyncio.to_thread(ask)
        assert (text, usage.input, usage.output, usage.details, model) == ("Hello world", 7, 2, None, "scripted")
        assert (asked(server)[0].json()["temperature"], asked(server)[0].json()["seed"]) == (0, 3)


async def test_a_caller_with_a_loop_is_not_blocked() -> None:
    async with serving() as server:
        response = llm.get_async_model("streamco").prompt("Hello?", device=server.url)
        assert [piece async for piece in response] == ["Hello", " world"]
        assert (await response.usage()).output == 2


async def test_usage_that_no_endpoint_counted_says_so() -> None:
    async with serving(stream_answer()) as server:
        response = llm.get_async_model("streamco").prompt("Hello?", device=server.url)
        await response.text()
        assert (await response.usage()).details == {"is_estimated": True}


async def test_thinking_is_apart_from_the_text() -> None:
    steps = [chunk_event(reasoning_content="Let me see. "), chunk_event("Yes."), chunk_event(finish_reason="stop"), DONE]
    async with serving(ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=steps)) as server:
        response = llm.get_async_model("streamco").prompt("Is it?", device=server.url)
        events = [(event.type, event.chunk) async for event in response.astream_events()]
        assert events == [("reasoning", "Let me see. "), ("text", "Yes.")]
        assert await response.text() == "Yes."


def stalling() -> ScriptedResponse:
    return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=[chunk_event("Hello"), Stall()])


async def test_a_cancelled_caller_stops_the_work() -> None:
    async with serving(stalling()) as server:
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in llm.get_async_model("streamco").prompt("Hello?", server="large", base_url=server.url):
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.wait_for(lambda server: server.answers_abandoned == 1)


async def test_a_caller_that_leaves_the_loop_stops_the_work() -> None:
    async with serving(stalling()) as server:

        def leave() -> None:
            events = llm.get_model("streamco").prompt("Hello?", server="large", base_url=server.url).stream_events()
            assert next(events).chunk == "Hello"
            events.close()

        await asyncio.to_thread(leave)
        await server.wait_for(lambda server: server.answers_abandoned == 1)


def tool_call(arguments: str = '{"city": "Oslo"}') -> ScriptedResponse:
    first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments[:5]}}
    second = {"index": 0, "function": {"arguments": arguments[5:]}}
    steps = [chunk_event(tool_calls=[first]), chunk_event(tool_calls=[second]), chunk_event(finish_reason="tool_calls"), DONE]
    return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=steps)


async def test_a_tool_is_called_and_its_result_comes_back() -> None:
    async with serving(tool_call(), stream_answer(["It is sunny."])) as server:

        def weather(city: str) -> str:
            """Say what the weather is like."""
            return f"sunny in {city}"

        chain = llm.get_async_model("streamco").chain(
            "What is it like in Oslo?", tools=[weather], options={"server": "large", "base_url": server.url}
        )
        assert await chain.text() == "It is sunny."
        first, second = (request.json() for request in asked(server))
        assert first["tools"][0]["function"]["description"] == "Say what the weather is like."
        call, result = second["messages"][-2:]
        assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
        assert result == {"role": "tool", "tool_call_id": "call_1", "content": "sunny in Oslo"}


@pytest.mark.parametrize("arguments", ["{not JSON", "[1, 2]  "])
async def test_arguments_that_are_no_object_are_handed_on_as_text(arguments: str) -> None:
    async with serving(tool_call(arguments)) as server:
        tool = llm.Tool(name="weather", description="Say what the weather is like.", input_schema={"type": "object", "properties": {}})
        response = llm.get_async_model("streamco").prompt("Oslo?", tools=[tool], server="large", base_url=server.url)
        (call,) = await response.tool_calls()
        assert call.arguments == {"_raw": arguments}


async def test_a_schema_becomes_a_response_format() -> None:
    async with serving(stream_answer(['{"name": "Cleo"}'])) as server:
        result = await command(
            "-m", "streamco", "-o", "server", "large", "-o", "base_url", server.url, "--schema", "name, age int", "A dog"
        )
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == {"name": "Cleo"}
        sent = asked(server)[0].json()["response_format"]
        assert (sent["type"], sent["json_schema"]["schema"]["required"]) == ("json_schema", ["name", "age"])


async def test_an_image_goes_to_a_server_that_takes_images() -> None:
    async with serving() as server:
        options = {"server": "large", "base_url": server.url}
        attachment = llm.Attachment(content=PIXEL, type="image/png")
        await llm.get_async_model("streamco").prompt("What is it?", attachments=[attachment], **options).text()
        text, image = asked(server)[0].json()["messages"][0]["content"]
        assert text == {"type": "text", "text": "What is it?"}
        assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")


async def test_an_image_is_refused_if_no_endpoint_takes_images(folder: Path) -> None:
    async with serving() as server:
        section = f'[[server]]\nmodel = "large"\nbase_url = "{server.url}"\ncapabilities = {{ images = false }}\n'
        (folder / "streamco.toml").write_text(section)
        attachment = llm.Attachment(content=PIXEL, type="image/png")
        response = llm.get_async_model("streamco").prompt("What is it?", attachments=[attachment])
        with pytest.raises(ConfigError, match=r"request: expected one that some endpoint can serve, got .*type 'image_url'"):
            await response.text()
        assert not asked(server)


def test_an_attachment_that_is_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match="does not support attachments of type 'application/pdf'"):
        llm.get_model("streamco").prompt("What is it?", attachments=[llm.Attachment(content=b"%PDF-", type="application/pdf")])
    pdf, png = (llm.Attachment(content=b"x", type=kind) for kind in ("application/pdf", "image/png"))
    with pytest.raises(ConfigError, match=r"attachment: expected an image .*, got application/pdf"):
        list(plugin.build_messages([llm.user("What is it?", pdf)]))
    result = llm.parts.ToolResultPart(name="camera", output="", attachments=[png])
    with pytest.raises(ConfigError, match="expected text alone as the result of a tool, got 1 from camera"):
        list(plugin.build_messages([llm.tool_message(result)]))


async def test_the_file_in_the_folder_of_llm_names_the_endpoints(folder: Path) -> None:
    async with serving() as server:
        (folder / "streamco.toml").write_text(f'[device]\nbase_url = "{server.url}"\n')
        assert (await command("-m", "streamco", "Hello?")).stdout == "Hello world\n"


async def test_a_key_of_the_command_goes_to_the_server(folder: Path) -> None:
    (folder / "keys.json").write_text('{"mine": "sk-stored"}')
    async with serving() as server:
        for key in ("sk-given", "mine"):
            await command("-m", "streamco", "--key", key, "-o", "server", "large", "-o", "base_url", server.url, "Hello?")
        assert [request.headers["authorization"] for request in asked(server)] == ["Bearer sk-given", "Bearer sk-stored"]


@pytest.mark.parametrize(
    ("options", "key"),
    [({"server": "gpt-4o-mini"}, "sk-openai"), ({"server": "x", "base_url": "https://example.com/v1"}, None), ({"device": "x.gguf"}, None)],
)
def test_the_stored_key_of_openai_goes_to_openai_alone(folder: Path, options: dict[str, str], key: str | None) -> None:
    (folder / "keys.json").write_text('{"openai": "sk-openai"}')
    model = llm.get_model("streamco")
    settings = plugin.read_settings(llm.Prompt("Hello?", model, options=model.Options(**options)), None)
    assert isinstance(settings, PluginSettings)
    assert settings.key == key


def test_the_stored_key_of_openai_goes_to_no_other_default_address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "keys.json").write_text('{"openai": "sk-openai"}')
    monkeypatch.setenv("OPENAI_BASE_URL", "https://example.com/v1")
    model = llm.get_model("streamco")
    assert plugin.read_settings(llm.Prompt("Hello?", model, options=model.Options(server="x")), None).key is None


def test_the_page_shows_options_that_exist() -> None:
    shown = set(re.findall(r"-o (\w+) |options set streamco (\w+) ", (ROOT / "docs" / "integrations.md").read_text()))
    names = {name for pair in shown for name in pair if name}
    assert names >= {"device", "server", "base_url", "policy"}
    assert not names - set(plugin.LLMOptions.model_fields)


def test_the_plugin_loads_no_client_before_the_first_prompt() -> None:
    code = (
        "import sys, streamco.integrations.llm; print([n for n in ('aiohttp', 'streamco.client.client', 'llama_cpp') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "[]"


@pytest.mark.long
@pytest.mark.model
def test_a_process_that_ends_frees_the_model_without_a_word(folder: Path) -> None:
    code = (
        "import llm\nfrom streamco.integrations import llm_plugin as plugin\nllm.load_plugins()\n"
        "if not llm.pm.is_registered(plugin): llm.pm.register(plugin)\n"
        "print(llm.get_model('streamco').prompt('Say hello.', device='packaged', max_tokens=5, temperature=0).text())\n"
    )
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::RuntimeWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=100,
    )
    assert (run.returncode, run.stdout.strip() != "") == (0, True), run.stderr
    assert not [word for word in ("Traceback", "Unclosed", "never awaited", "pending", "shutdown") if word in run.stderr], run.stderr
