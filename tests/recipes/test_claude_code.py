"""Claude Code in front of the proxy, with the page's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamco.testing import RecordedRequest, ScriptedResponse, chunk_event
from tests.recipes.page import block, exports, typed
from tests.recipes.support import PIXEL, Finished, RecordedProxy, calling, image_urls, recorded_proxy, run, text, tool_names
from tests.support.programs import command_of

pytestmark = [pytest.mark.long, pytest.mark.peer]

SENT = {
    "model",
    "messages",
    "system",
    "tools",
    "metadata",
    "max_tokens",
    "thinking",
    "context_management",
    "output_config",
    "stream",
}


async def ask(proxy: RecordedProxy, folder: Path) -> Finished:
    shown = proxy.filled(block("Claude Code", "bash"))
    return await run(*command_of("Claude Code"), *typed(shown, "claude"), home=folder, folder=folder, **exports(shown))


def reading(folder: Path, request: RecordedRequest) -> ScriptedResponse:
    """The model reads the file, and says what it has read."""
    if any(message["role"] == "tool" and "swordfish" in message["content"] for message in request.json()["messages"]):
        return text("It is ", "swordfish.")
    assert "Read" in tool_names(request)
    answer = calling("Read", {"file_path": str(folder / "notes.txt")})
    return ScriptedResponse(headers=answer.headers, steps=[chunk_event(reasoning_content="A file."), *answer.steps])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file."""
    (tmp_path / "notes.txt").write_text("The word is swordfish.\n")
    return tmp_path


async def test_it_reads_a_file_by_a_tool(folder: Path) -> None:
    command_of("Claude Code")
    async with recorded_proxy(lambda request: reading(folder, request)) as proxy:
        done = await ask(proxy, folder)
    assert (done.status, done.out.strip()) == (0, "It is swordfish."), done.err
    assert [(each.path, each.status) for each in proxy.answers] == [("/v1/messages?beta=true", 200)] * 2
    for asked in proxy.answers:
        assert asked.body.keys() == SENT
        assert [edit["type"] for edit in asked.body["context_management"]["edits"]] == ["clear_thinking_20251015"]
        assert "system" in [message["role"] for message in asked.body["messages"]]
        assert asked.body["max_tokens"] == int(exports(block("Claude Code", "bash"))["CLAUDE_CODE_MAX_OUTPUT_TOKENS"])
    assert not [each for each in proxy.asked if each not in proxy.answers and each.method == "POST"]


async def test_it_searches_for_a_tool_that_is_offered_from_then_on(folder: Path) -> None:
    command_of("Claude Code")

    def answer(request: RecordedRequest) -> ScriptedResponse:
        names = tool_names(request)
        if "WebFetch" in names:
            return text("Found.")
        assert "ToolSearch" in names
        return calling("ToolSearch", {"query": "select:WebFetch", "max_results": 1})

    async with recorded_proxy(answer) as proxy:
        done = await ask(proxy, folder)
    assert (done.status, done.out.strip(), proxy.refused) == (0, "Found.", []), done.err
    assert len(proxy.answers) == 2


async def test_it_shows_the_model_a_picture(folder: Path) -> None:
    command_of("Claude Code")
    (folder / "point.png").write_bytes(PIXEL)

    def answer(request: RecordedRequest) -> ScriptedResponse:
        return text("A point.") if image_urls(request) else calling("Read", {"file_path": str(folder / "point.png")})

    async with recorded_proxy(answer) as proxy:
        done = await ask(proxy, folder)
    assert (done.status, done.out.strip(), proxy.refused) == (0, "A point.", []), done.err
