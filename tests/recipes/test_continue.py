"""Continue's command ``cn`` in front of the proxy, with the page's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamco.testing import RecordedRequest, ScriptedResponse
from tests.recipes.page import block, typed
from tests.recipes.support import calling, recorded_proxy, run, text, tool_names
from tests.support.programs import command_of

pytestmark = [pytest.mark.long, pytest.mark.peer]


async def test_it_reads_a_file_by_a_tool(tmp_path: Path) -> None:
    command = command_of("Continue")
    (tmp_path / "notes.txt").write_text("The word is swordfish.\n")
    settings = tmp_path / ".continue" / "config.yaml"
    settings.parent.mkdir()

    def answer(request: RecordedRequest) -> ScriptedResponse:
        if "swordfish" in str(request.json()["messages"][-1]):
            return text("It is ", "swordfish.")
        assert "Read" in tool_names(request)
        return calling("Read", {"filepath": str(tmp_path / "notes.txt")})

    async with recorded_proxy(answer) as proxy:
        settings.write_text(proxy.filled(block("Continue", "~/.continue/config.yaml")))
        done = await run(*command, *typed(block("Continue", "bash"), "cn"), home=tmp_path, folder=tmp_path)
    assert (done.status, done.out.strip()) == (0, "It is swordfish."), done.err
    assert [(each.path, each.status) for each in proxy.asked] == [("/v1/chat/completions", 200)] * 2
    assert proxy.asked[0].body.keys() == {"model", "messages", "stream", "stream_options", "tools"}
    assert [message["role"] for message in proxy.asked[1].body["messages"]] == ["system", "user", "assistant", "tool"]
