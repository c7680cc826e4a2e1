"""Codex CLI in front of the proxy, with the page's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamco.testing import RecordedRequest, ScriptedResponse
from tests.recipes.page import block, typed
from tests.recipes.support import Finished, RecordedProxy, calling, recorded_proxy, run, text, tool_names
from tests.support.programs import command_of

pytestmark = pytest.mark.peer

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


async def ask(proxy: RecordedProxy, folder: Path) -> Finished:
    settings = folder / ".codex" / "config.toml"
    settings.parent.mkdir()
    settings.write_text(proxy.filled(block("Codex CLI", "~/.codex/config.toml")))
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


async def test_it_knows_a_call_in_a_namespace_as_its_own(tmp_path: Path) -> None:
    command_of("Codex CLI")
    seen: list[Any] = []

    def answer(request: RecordedRequest) -> ScriptedResponse:
        if given := outputs(request):
            seen.extend(given)
            return text("No such agent.")
        (name,) = [name for name in tool_names(request) if name.endswith("__close_agent")]
        return calling(name, {"target": "nobody"})

    async with recorded_proxy(answer) as proxy:
        done = await ask(proxy, tmp_path)
    assert (done.status, done.out.strip(), proxy.refused) == (0, "No such agent.", []), done.err
    assert "nobody" in seen[0]
    assert "unsupported" not in seen[0]
    (call,) = [item for item in proxy.asked[1].body["input"] if item["type"] == "function_call"]
    assert (call["name"], call["namespace"]) == ("close_agent", "multi_agent_v1")


async def test_a_server_that_fails_is_named_in_its_error(tmp_path: Path) -> None:
    command_of("Codex CLI")
    async with recorded_proxy(
        ScriptedResponse(status=400, headers={"Content-Type": "application/json"}, steps=[b'{"error": {"message": "no tools"}}'])
    ) as proxy:
        done = await ask(proxy, tmp_path)
    assert done.status == 1
    assert "no tools" in done.err
