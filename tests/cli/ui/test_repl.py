from __future__ import annotations

import io
from pathlib import Path

from streamco.cli.ui.answer import AnswerSettings
from streamco.cli.ui.history import Conversation
from streamco.cli.ui.repl import Dialogue
from streamco.cli.ui.view import PlainView
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.errors import EndpointStatusError, EndpointTimeoutError
from streamco.testing.endpoint import ScriptedEndpoint


class Talk:
    """A dialogue with two scripted endpoints."""

    def __init__(self, mode: Race | None = None) -> None:
        self.device = ScriptedEndpoint("device", [(0.0, "Yes.")], kind="device")
        self.server = ScriptedEndpoint("server", [(0.05, "No.")])
        self.client = Client(self.device, self.server, mode=mode or Race())
        self.out, self.err = io.StringIO(), io.StringIO()
        self.conversation = Conversation()
        self.settings = AnswerSettings()
        view = PlainView(self.out, self.err)
        self.dialogue = Dialogue(self.client, view, self.conversation, self.settings, budget=0.3, policy="auto")

    async def say(self, *lines: str) -> str:
        """What is said on stderr to these lines."""
        self.err.seek(0)
        self.err.truncate()
        for line in lines:
            assert await self.dialogue.handle(line)
        return self.err.getvalue()


async def test_each_prompt_is_sent_with_what_was_said_before() -> None:
    talk = Talk()
    async with talk.client:
        await talk.say("one", "/system Be terse.", "two")
    assert [message["content"] for message in talk.device.streams[-1].request.messages or ()] == ["Be terse.", "one", "Yes.", "two"]


async def test_quit_ends_it_and_everything_else_goes_on() -> None:
    talk = Talk()
    async with talk.client:
        await talk.say("one", "/nosuch", "/pace fast", "/help")
        assert not await talk.dialogue.handle("/quit")


async def test_the_pace_of_the_next_answer_is_the_one_that_was_set() -> None:
    talk = Talk()
    async with talk.client:
        assert "pace: reading" in await talk.say("/pace reading")
    assert talk.settings.pace == "reading"
    assert talk.dialogue.settings_line == "policy auto · budget 0.3 · pace reading"


async def test_a_smooth_pace_is_set_like_any_other_and_the_answer_is_whole() -> None:
    talk = Talk()
    async with talk.client:
        assert "pace: smooth" in await talk.say("/pace smooth")
        assert talk.dialogue.settings_line == "policy auto · budget 0.3 · pace smooth"
        answered = await talk.say("one")
    assert talk.settings.pace == "smooth"
    assert answered


async def test_another_mode_counts_from_the_next_answer_on_and_changes_what_the_budget_means() -> None:
    talk = Talk()
    async with talk.client:
        assert "mode: speculate" in await talk.say("/mode Speculate")
        assert talk.dialogue.settings_line == "mode speculate · budget 0.3 · pace off"
        assert "budget: 30% of drafted tokens are verified by the server" in await talk.say("/budget")
        await talk.say("one")
        assert "not speculated: device can't draft" in await talk.say("/report")
        assert "of prompt tokens may be processed by the constrained side, or of drafted" in await talk.say("/mode auto", "/budget")
        assert "mode: expected race, speculate or auto, got 'both'" in await talk.say("/mode both")


async def test_another_policy_decides_from_the_next_answer_on() -> None:
    talk = Talk()
    async with talk.client:
        await talk.say("/policy server_only", "one")
        assert talk.device.streams == []
        assert talk.out.getvalue() == "No.\n"
        assert "server-only" in await talk.say("/report")


async def test_another_budget_counts_from_the_next_answer_on() -> None:
    talk = Talk()
    async with talk.client:
        assert "budget: 0%" in await talk.say("/budget 0", "one")
        assert "its budget, its share so far  0.0%" in await talk.say("/report --all")
        assert "/report: expected --all or nothing, got 'all'" in await talk.say("/report all")


async def test_an_answer_can_be_called_good_or_bad_where_that_teaches_something() -> None:
    talk = Talk(Race(policy="device-first", quality=QualityGate(min_score=0.5)))
    talk.device.probability = 0.9
    async with talk.client:
        assert "no answer yet" in await talk.say("/good")
        assert "noted: device's answer was good" in await talk.say("one", "/good")
        assert "not rated yet" in await talk.say("/bad")
        assert "noted: device's answer was not good enough" in await talk.say("two", "/bad")
        assert "nothing is learned from it" in await talk.say("/policy server-only", "three", "/good")
    plain = Talk()
    async with plain.client:
        assert "mode=Race(quality=...)" in await plain.say("one", "/good")


async def test_a_failure_is_remembered_for_the_exit_code_and_its_text_for_the_conversation() -> None:
    talk = Talk()
    error = EndpointTimeoutError("expected a token, got none", phase="next_token", limit=1.0, endpoint="device")
    talk.device.script = [(0.0, "Half"), (0.01, error)]
    async with talk.client:
        said = await talk.say("one")
    assert "the text so far is kept" in said
    assert talk.dialogue.has_failed
    assert (talk.conversation.turns[-1].content, talk.conversation.turns[-1].is_stopped) == ("Half", True)


async def test_saving_writes_the_conversation(tmp_path: Path) -> None:
    talk = Talk()
    async with talk.client:
        said = await talk.say("one", f"/save {tmp_path / 'talk.md'}")
    assert f"saved 2 turns to {tmp_path / 'talk.md'}" in said
    assert (tmp_path / "talk.md").read_text() == "## You\n\none\n\n## Answer\n\nYes.\n"


async def test_a_file_that_cannot_be_written_is_told() -> None:
    talk = Talk()
    async with talk.client:
        assert "error: [Errno" in await talk.say("/save /no/such/folder/file")


async def test_save_does_not_overwrite_unless_it_is_asked_to(tmp_path: Path) -> None:
    talk = Talk()
    path = tmp_path / "a.md"
    path.write_text("mine")
    async with talk.client:
        said = await talk.say("one", f"/save {path}")
        assert f"/save -f {path} overwrites it" in said
        assert path.read_text() == "mine"
        assert f"saved 2 turns to {path}" in await talk.say(f"/save -f {path}")
    assert "## You" in path.read_text()


async def test_a_conversation_saved_as_json_is_loaded_again(tmp_path: Path) -> None:
    talk, path = Talk(), tmp_path / "a.json"
    async with talk.client:
        await talk.say("one", f"/save {path}", "/new", "two")
        assert "going on after 2 turns; the last prompt was: one" in await talk.say(f"/load {path}")
        await talk.say("three")
        assert "expected a conversation as JSON" in await talk.say(f"/load {__file__}")
        assert "no conversation is kept" in await talk.say("/load", "/load 1")
    assert [message["content"] for message in talk.device.streams[-1].request.messages or ()] == ["one", "Yes.", "three"]


async def test_exit_and_quit_leave() -> None:
    talk = Talk()
    async with talk.client:
        for line in ("exit", "Quit", ":q"):
            assert not await talk.dialogue.handle(line)
        assert await talk.dialogue.handle("quit smoking, how?")


async def test_an_endpoint_that_does_not_work_is_said_after_each_answer() -> None:
    talk = Talk()
    talk.server.script = [(0.0, EndpointStatusError("wrong key", status=401, endpoint="server"))]
    talk.dialogue._client = talk.client.with_options(on_degraded="answer")
    async with talk.client:
        said = await talk.say("/policy server-first", "one")
        assert "server failed (EndpointStatusError 401): device answered" in said
        assert "error: " not in said
        said = await talk.say("/policy device-first", "two")
        assert said.endswith("error: server failed (EndpointStatusError 401)\n")
