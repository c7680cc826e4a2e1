"""Each argument of OpenAI's ``create``, run against a recording server, the device and ``streamco serve``; docs/openai.md has the outcome.

``python -m tests.client.test_argument_table`` writes the table into the page.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from streamco.client.client import Client
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.errors import ConfigError
from streamco.server.http.errors import RequestError
from streamco.server.requests import ChatRequest, parse
from streamco.testing import RecordedRequest, ScriptedServer
from streamco.testing.engine import FakeEngine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "openai.md"
BEGIN, END = "<!-- arguments -->\n", "<!-- /arguments -->"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
# openai-python 3.57, AsyncCompletions.create, in its order, each with a value that asks for something
ARGUMENTS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "other"}],
    "model": "other",
    "audio": {"voice": "alloy", "format": "wav"},
    "frequency_penalty": 0.5,
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "logit_bias": {"5": 10},
    "logprobs": True,
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "metadata": {"a": "b"},
    "modalities": ["text", "audio"],
    "moderation": {"model": "m"},
    "n": 2,
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"a": 1},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "safety_identifier": "s",
    "seed": 7,
    "service_tier": "flex",
    "stop": ["END"],
    "store": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.25,
    "tool_choice": "required",
    "tools": [TOOL],
    "top_logprobs": 2,
    "top_p": 0.5,
    "user": "u",
    "verbosity": "low",
    "web_search_options": {"search_context_size": "low"},
    "extra_headers": {"X-Trace": "1"},
    "extra_query": {"trace": "1"},
    "extra_body": {"unknown": 1},
    "timeout": 30.0,
}
WITH: dict[str, dict[str, Any]] = {  # what an argument means nothing without
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
}
SHORT = {"n": "n > 1", "functions": "tools", "extra_body": "unknown"}  # names in the reason
CALLS_OWN = {"extra_headers", "extra_query", "timeout"}  # never in a body


class GrammarEngine(FakeEngine):
    """A scripted engine that says, as those on models do, that it keeps to grammars."""

    takes_grammars = True


async def create(client: Client, options: dict[str, Any]) -> Any:
    answer: Any = await client.chat.completions.create(**{"messages": HELLO, **options})
    if options.get("stream"):
        return [chunk async for chunk in answer]
    return answer


async def sent_by_streamco(options: dict[str, Any]) -> RecordedRequest:
    async with ScriptedServer() as server:
        remote = OpenAIEndpoint("m", base_url=server.url, provider="openai", api_key="k")
        async with Client(server=remote) as client:
            await create(client, options)
        return server.requests[-1]


async def sent_by_openai(options: dict[str, Any]) -> RecordedRequest:
    openai = pytest.importorskip("openai")
    async with ScriptedServer() as server, openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(**{"messages": HELLO, "model": "m", **options, "stream": True})
        async for _ in stream:
            pass
        return server.requests[-1]


async def at_a_server(name: str, value: Any) -> str:
    request = await sent_by_streamco({**WITH.get(name, {}), name: value})
    body = request.json()
    if name == "timeout":
        return "kept"  # that it is kept is tested in test_chat
    if name == "extra_headers":
        return "sent" if request.headers.get("x-trace") == "1" else "lost"
    if name == "extra_query":
        return "sent" if request.path.endswith("?trace=1") else "lost"
    if name == "extra_body":
        return "sent" if body.get("unknown") == 1 else "lost"
    if name == "max_tokens":
        return "sent, under the name that the server takes" if body.get("max_completion_tokens") == value else "lost"
    if name == "stream":
        return "kept; servers always stream"
    return "sent" if body.get(name) == value else "lost"


async def on_the_device(name: str, value: Any) -> str:
    engine = GrammarEngine()
    try:
        async with Client(DeviceEndpoint(engine)) as client:
            base = await create(client, WITH.get(name, {}))
            try:
                answer = await create(client, {**WITH.get(name, {}), name: value})
            except ConfigError as error:
                return "device stays out" if f"device: {SHORT.get(name, name)}" in str(error) else f"lost: {error}"
        usual, asked = engine.requests
        is_other = usual != asked or (isinstance(answer, list) and (not isinstance(base, list) or len(answer) != len(base)))
        return "kept" if is_other or name in {"timeout", "top_logprobs"} else "no effect"
    finally:
        engine.close()


def at_serve(name: str, value: Any) -> str:
    if name in CALLS_OWN:
        return "no effect" if name != "timeout" else "kept by the caller"
    body = value if name == "extra_body" else {**WITH.get(name, {}), name: value}
    try:
        parse(json.dumps({"messages": HELLO, **body}).encode(), ChatRequest)
    except RequestError as error:
        return "refused" if error.param == name else f"lost: {error}"
    return "kept" if name in ChatRequest.__struct_fields__ else "no effect"


async def rows() -> list[str]:
    found = ["| argument | at a server | on the device (a model in this process) | at `streamco serve` |", "|---|---|---|---|"]
    for name, value in ARGUMENTS.items():
        found.append(f"| `{name}` | {await at_a_server(name, value)} | {await on_the_device(name, value)} | {at_serve(name, value)} |")
    return found


async def test_the_pages_table_is_what_happens() -> None:
    table = await rows()
    assert not [row for row in table if "lost" in row]
    page = PAGE.read_text()
    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)].split("\n")[:-1] == table, "python -m tests.client.test_argument_table"


def test_the_arguments_are_those_of_openais_sdk() -> None:
    completions = pytest.importorskip("openai.resources.chat.completions").AsyncCompletions
    theirs = set(inspect.signature(completions.create).parameters) - {"self"}
    assert theirs <= set(ARGUMENTS)  # an older one has fewer


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name not in CALLS_OWN and name not in {"stream", "max_tokens"}])
async def test_a_server_gets_what_openais_sdk_sends(name: str) -> None:
    completions = pytest.importorskip("openai.resources.chat.completions").AsyncCompletions
    if name not in inspect.signature(completions.create).parameters:
        pytest.skip("the installed SDK is older")
    options = {**WITH.get(name, {}), name: ARGUMENTS[name]}
    ours, theirs = (await sent_by_streamco({**options, "stream": True})).json(), (await sent_by_openai(options)).json()
    ours.pop("stream_options", None)  # usage is always asked for
    theirs.pop("stream_options", None)
    assert ours == theirs


if __name__ == "__main__":
    text = PAGE.read_text()
    lines = "\n".join(asyncio.run(rows()))
    PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + lines + "\n" + text[text.index(END) :])
