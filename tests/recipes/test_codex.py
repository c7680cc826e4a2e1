"""Codex CLI in front of the proxy, with the page's settings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from streamco.testing import RecordedRequest, ScriptedResponse, chunk_event
from tests.recipes.page import block, typed
from tests.recipes.support import PIXEL, Finished, RecordedProxy, calling, image_urls, recorded_proxy, run, text, tool_names
from tests.support.programs import command_of

pytestmark = [pytest.mark.long, pytest.mark.peer]

SENT = {
    "model",
    "stream",
    "input",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "store",
    "include",
    "prompt_cache_key",
    "client_metadata",
}


async def ask(proxy: RecordedProxy, folder: Path, further: str = "") -> Finished:
    settings = folder / ".codex" / "config.toml"
    settings.parent.mkdir()
    settings.write_text(proxy.filled(block("Codex CLI", "~/.codex/config.toml")) + further)
    command, *rest = typed(block("Codex CLI", "bash"), "codex")
    free = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")  # its sandbox needs rights that tests may lack
    return await run(*command_of("Codex CLI"), command, *free, *rest, home=folder, folder=folder)


def outputs(request: RecordedRequest) -> list[str]:
    """What the tools gave so far."""
    return [message["content"] for message in request.json()["messages"] if message["role"] == "tool"]


async def test_it_runs_a_command(tmp_path: Path) -> None:
    command_of("Codex CLI")
    (tmp_path / "notes.txt").write_text("The word is swordfish.\n")

    def answer(request: RecordedRequest) -> ScriptedResponse:
        if any("swordfish" in output for output in outputs(request)):
            return text("It is ", "swordfish.")
        assert "exec_command" in tool_names(request)
        return calling("exec_command", {"cmd": "cat notes.txt"}, before="Let me look.")

    async with recorded_proxy(answer) as proxy:
        done = await ask(proxy, tmp_path)
    assert (done.status, done.out.strip()) == (0, "It is swordfish."), done.err
    assert [(each.path, each.status) for each in proxy.asked] == [("/v1/responses", 200)] * 2
    for asked in proxy.asked:
        assert asked.body.keys() == SENT
        assert (asked.body["include"], asked.body["store"]) == (["reasoning.encrypted_content"], False)
    sent = {"model", "messages", "stream", "stream_options", "tools", "parallel_tool_calls", "store", "prompt_cache_key"}
    assert proxy.remote.requests[0].json().keys() <= sent


async def test_it_runs_a_tool_of_an_mcp_server_which_is_in_a_namespace(tmp_path: Path) -> None:
    command_of("Codex CLI")

    def answer(request: RecordedRequest) -> ScriptedResponse:
        if any("notes: swordfish" in output for output in outputs(request)):
            return text("It is ", "swordfish.")
        assert "mcp__disk__read" in tool_names(request)
        return calling("mcp__disk__read", {"name": "notes"})

    server = f"\n[mcp_servers.disk]\ncommand = {sys.executable!r}\nargs = [{str(Path(__file__).parent / 'mcp_server.py')!r}]\n"
    async with recorded_proxy(answer) as proxy:
        done = await ask(proxy, tmp_path, server)
    assert (done.status, done.out.strip(), proxy.refused) == (0, "It is swordfish.", []), done.err
    (call,) = [item for item in proxy.asked[1].body["input"] if item["type"] == "function_call"]
    assert (call["name"], call["namespace"]) == ("read", "mcp__disk")


async def test_it_shows_the_model_a_picture_and_its_own_reasoning(tmp_path: Path) -> None:
    command_of("Codex CLI")
    (tmp_path / "point.png").write_bytes(PIXEL)

    def answer(request: RecordedRequest) -> ScriptedResponse:
        if image_urls(request):
            return text("A point.")
        call = calling("view_image", {"path": str(tmp_path / "point.png")})
        return ScriptedResponse(headers=call.headers, steps=[chunk_event(reasoning_content="A picture."), *call.steps])

    async with recorded_proxy(answer) as proxy:
        done = await ask(proxy, tmp_path)
    assert (done.status, done.out.strip(), proxy.refused) == (0, "A point.", []), done.err
    sent = proxy.remote.requests[1].json()["messages"]
    assert [message["role"] for message in sent[-3:]] == ["assistant", "tool", "user"]
    assert sent[-3]["reasoning_content"] == "A picture."


async def test_a_server_that_fails_is_named_in_its_error(tmp_path: Path) -> None:
    command_of("Codex CLI")
    async with recorded_proxy(
        ScriptedResponse(status=400, headers={"Content-Type": "application/json"}, steps=[b'{"error": {"message": "no tools"}}'])
    ) as proxy:
        done = await ask(proxy, tmp_path)
    assert done.status == 1
    assert "no tools" in done.err
