"""Open WebUI in front of the proxy, with the page's settings; a request to its own API takes the place of a browser."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from streamco.proxy.from_config import build_options
from tests.client.helpers import device
from tests.recipes.page import block, exports, proxy_config, typed
from tests.recipes.support import RecordedProxy, recorded_proxy, started, text
from tests.support.programs import command_of

pytestmark = [pytest.mark.long, pytest.mark.peer]

# No account, no look at other machines, and no model of its own for documents.
QUIET = {
    "WEBUI_AUTH": "false",
    "WEBUI_SECRET_KEY": "secret-of-a-test-secret-of-a-test",
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "ENABLE_VERSION_UPDATE_CHECK": "false",
    "ANONYMIZED_TELEMETRY": "false",
}
START_LIMIT = 240.0  # seconds: it takes twenty with a core of its own
TASKS = {"title_generation": True, "tags_generation": True, "follow_up_generation": True}
ANSWERS = json.dumps({"title": "The moon", "tags": ["sky"], "follow_ups": ["How far is it?"]})


@asynccontextmanager
async def serving(proxy: RecordedProxy, folder: Path, **environ: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Open WebUI with the page's settings, and a client of it that has signed in."""
    shown = proxy.filled(block("Open WebUI", "bash"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = [*command_of("Open WebUI"), *typed(shown, "open-webui")]
    words[words.index("--port") + 1] = port
    data = folder / "data"
    data.mkdir()
    environ = {**exports(shown), **QUIET, "DATA_DIR": str(data), **environ}
    async with (
        started(*words, "--host", "127.0.0.1", home=folder, folder=folder, **environ) as process,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
    ):
        reading = asyncio.create_task(process.communicate())  # its pipes must not be full
        try:
            await wait_until_up(client)
            async with client.post("/api/v1/auths/signin", json={"email": "", "password": ""}) as response:
                client.headers["Authorization"] = f"Bearer {(await response.json())['token']}"
            yield client
        finally:
            reading.cancel()


async def wait_until_up(client: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(START_LIMIT):
        while True:
            try:
                async with client.get("/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)


async def ask(client: aiohttp.ClientSession) -> str:
    """Begin a chat as the page does; return its name."""
    now = int(time.time())
    asked: dict[str, Any] = {"id": "asked", "parentId": None, "childrenIds": ["answer"], "role": "user", "content": "How far is the moon?"}
    answer = {"id": "answer", "parentId": "asked", "childrenIds": [], "role": "assistant", "content": "", "model": "streamco"}
    messages = {each["id"]: {**each, "timestamp": now} for each in (asked, answer)}
    chat = {"title": "New Chat", "models": ["streamco"], "history": {"currentId": "answer", "messages": messages}}
    async with client.post("/api/v1/chats/new", json={"chat": chat}) as response:
        name = str((await response.json())["id"])
    body = {"model": "streamco", "stream": True, "messages": [{"role": "user", "content": asked["content"]}], "background_tasks": TASKS}
    async with client.post("/api/chat/completions", json={**body, "chat_id": name, "id": "answer", "session_id": "session"}) as response:
        assert response.status == 200, await response.text()
    return name


@pytest.mark.timeout(START_LIMIT + 120)
async def test_a_server_answers_and_the_device_does_the_background_tasks(tmp_path: Path) -> None:
    command_of("Open WebUI")
    rules = build_options(proxy_config(), environ={})
    side = device([(0.0, ANSWERS)], tokens=10_000)
    options: Any = {"policy": "server-only", "task_patterns": rules.task_patterns, "takes_tasks": True}
    async with recorded_proxy(text("Far ", "away."), device=side, **options) as proxy, serving(proxy, tmp_path) as client:
        async with client.get("/api/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["streamco"]
        name = await ask(client)
        await proxy.wait_for(4)
        async with client.get(f"/api/v1/chats/{name}") as response:
            chat = await response.json()
    assert chat["title"] == "The moon"
    assert proxy.refused == []
    first, *tasks = proxy.answers
    assert first.body.keys() == {"model", "stream", "messages"}
    assert first.body["stream"] is True
    assert len(tasks) == 3
    for task in tasks:
        assert task.body.keys() - {"max_tokens"} == {"model", "stream", "messages"}
        assert task.body["stream"] is False
        assert task.body["messages"][-1]["content"].startswith("### Task:\n")
    assert (len(side.streams), len(proxy.remote.requests)) == (3, 1)
