from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from streamco.cli.ui.answer import AnswerSettings
from streamco.cli.ui.attachments import TYPED_AT, Attachment
from streamco.cli.ui.history import ChatModels, Conversation, Turn
from streamco.cli.ui.repl import MAX_COPY, Dialogue
from streamco.cli.ui.view import PlainView
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.endpoints.base import Capabilities
from streamco.errors import EndpointStatusError, EndpointTimeoutError, EngineError
from streamco.testing.endpoint import ScriptedEndpoint


class Clipboard(PlainView):
    """A view with a clipboard."""

    copied = ""

    def copy(self, text: str) -> bool:
        self.copied = text
        return True


class FakeSides:
    """ChatModels whose client stays the same. ``broken`` can't be loaded."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.models: ChatModels | None = ChatModels("tiny.gguf", server="large")
        self.takes_images = False
        self.settings: Mapping[str, object] = {}

    async def change_device(self, name: str, settings: Mapping[str, object]) -> Client:
        if name == "broken":
            raise EngineError("expected a GGUF file, got something else", endpoint="device")
        self.models, self.settings = ChatModels(name, server="large"), dict(settings)
        return self.client

    async def change_server(self, words: Sequence[str], settings: Mapping[str, object]) -> Client:
        self.models, self.settings = ChatModels("tiny.gguf", None, *words), dict(settings)
        return self.client


class Talk:
    """A dialogue with two scripted endpoints."""

    def __init__(self, mode: Race | None = None, *, has_editor: bool = False, files: Sequence[Attachment] = ()) -> None:
        self.device = ScriptedEndpoint("device", [(0.0, "Yes.")], kind="device")
        self.server = ScriptedEndpoint("server", [(0.05, "No.")])
        self.client = Client(self.device, self.server, mode=mode or Race())
        self.out, self.err = io.StringIO(), io.StringIO()
        self.conversation = Conversation()
        self.settings = AnswerSettings()
        self.view = Clipboard(self.out, self.err)
        self.sides = FakeSides(self.client)
        self.dialogue = Dialogue(
            self.client,
            self.view,
            self.conversation,
            self.settings,
            budget=0.3,
            policy="auto",
            sides=self.sides,
            has_editor=has_editor,
            files=files,
        )

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


def contents(conversation: Conversation) -> list[str]:
    return [turn.content for turn in conversation.turns]


async def test_retry_replaces_the_last_answer() -> None:
    talk = Talk()
    async with talk.client:
        assert "/retry: expected a prompt before it, got none" in await talk.say("/retry")
        await talk.say("one", "two")
        talk.device.script = [(0.0, "Other.")]
        await talk.say("/retry")
        assert "expected nothing after it" in await talk.say("/retry now")
    assert contents(talk.conversation) == ["one", "Yes.", "two", "Other."]
    assert [message["content"] for message in talk.device.streams[-1].request.messages or ()] == ["one", "Yes.", "two"]


async def test_a_retry_that_fails_leaves_the_last_answer_and_can_be_repeated() -> None:
    talk = Talk()
    error = EndpointStatusError("broken", status=500, endpoint="device")
    async with talk.client:
        await talk.say("one")
        talk.device.script, talk.server.script = [(0.0, error)], [(0.0, error)]
        assert "the last answer stays in the conversation" in await talk.say("/retry")
        assert contents(talk.conversation) == ["one", "Yes."]
        talk.device.script = [(0.0, "Again.")]
        await talk.say("/retry")
    assert contents(talk.conversation) == ["one", "Again."]


async def test_a_prompt_that_got_no_answer_is_retried() -> None:
    talk = Talk()
    error = EndpointStatusError("broken", status=500, endpoint="device")
    script, talk.device.script, talk.server.script = talk.device.script, [(0.0, error)], [(0.0, error)]
    async with talk.client:
        await talk.say("one")
        assert contents(talk.conversation) == []
        talk.device.script = script
        await talk.say("/retry")
    assert contents(talk.conversation) == ["one", "Yes."]


async def test_the_last_prompt_of_a_loaded_conversation_is_retried() -> None:
    talk = Talk()
    talk.conversation.turns = [Turn("user", "one"), Turn("assistant", "No.")]
    async with talk.client:
        await talk.say("/retry")
        assert contents(talk.conversation) == ["one", "Yes."]
        assert "expected a prompt before it" in await talk.say("/new", "/retry")


async def test_edit_gives_the_prompt_back_and_the_next_line_takes_its_place() -> None:
    talk = Talk(has_editor=True)
    async with talk.client:
        await talk.say("one", "/edit")
        assert talk.dialogue.draft == "one"
        await talk.say("one more")
        assert contents(talk.conversation) == ["one more", "Yes."]
        await talk.say("/edit", "/pace", "two")
        assert contents(talk.conversation) == ["one more", "Yes.", "two", "Yes."], "a command gives the edit up"
        await talk.say("/edit")
        talk.dialogue.end_editing()
        await talk.say("three")
    assert len(talk.conversation.turns) == 6


async def test_without_an_editor_the_new_prompt_follows_the_command() -> None:
    talk = Talk()
    async with talk.client:
        assert "/edit: expected the new prompt after it, got none" in await talk.say("one", "/edit")
        await talk.say("/edit two")
    assert contents(talk.conversation) == ["two", "Yes."]


async def test_copy_takes_the_last_answer_if_it_is_not_too_long() -> None:
    talk = Talk()
    async with talk.client:
        assert "/copy: expected an answer before it, got none" in await talk.say("/copy")
        assert "copied 4 characters to the terminal's clipboard" in await talk.say("one", "/copy")
        assert talk.view.copied == "Yes."
        talk.conversation.answer("é" * (MAX_COPY // 2 + 1))
        assert "/copy: expected at most 75,000 bytes, got 75,002" in await talk.say("/copy")


async def test_plain_text_has_no_clipboard() -> None:
    talk = Talk()
    talk.view.copy = lambda text: PlainView.copy(talk.view, text)  # type: ignore[method-assign]
    async with talk.client:
        assert "/copy: expected a terminal" in await talk.say("one", "/copy")


async def test_models_are_shown_and_changed_and_the_conversation_stays() -> None:
    talk = Talk()
    async with talk.client:
        assert await talk.say("/model") == "device: tiny.gguf\nserver: large\n"
        assert await talk.say("one", "/budget 0.5", "/policy both") != ""
        said = await talk.say("/device other.gguf")
        assert said == "device: other.gguf from now on, before: tiny.gguf; the conversation stays\n"
        assert talk.sides.settings == {"budget": 0.5, "policy": "both"}
        assert "server: small at http://host from now on, before: large" in await talk.say("/server small http://host")
        assert "server: huge from now on" in await talk.say("/model huge")
        assert "device: third.gguf from now on" in await talk.say("/model third.gguf")
        await talk.say("two")
    assert contents(talk.conversation) == ["one", "Yes.", "two", "Yes."]
    assert talk.conversation.models == ChatModels("third.gguf", server="large")


async def test_a_model_that_cannot_be_loaded_leaves_the_old_one() -> None:
    talk = Talk()
    async with talk.client:
        assert await talk.say("/device broken") == "error: device: expected a GGUF file, got something else\n"
        assert await talk.say("/device") == "device: tiny.gguf\n"
        talk.sides.models = None
        assert "/server: expected a chat whose models can be changed" in await talk.say("/server other")


async def test_a_typed_file_is_named_and_sent_and_one_that_is_missing_is_not(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print(1)")
    talk = Talk(has_editor=True)
    async with talk.client:
        missing = f"{TYPED_AT}{tmp_path}/nosuch why?"
        assert "expected a file, got nothing there" in await talk.say(missing)
        assert (talk.dialogue.draft, talk.device.streams) == (missing, [])
        assert "sent with it: main.py, 8 bytes of text" in await talk.say(f"{TYPED_AT}{tmp_path}/main.py why?")
        await talk.say("/edit")
        assert talk.dialogue.draft == f"{TYPED_AT}{tmp_path}/main.py why?"
        assert "a line begins with @ that was not typed" in await talk.say(f"@{tmp_path}/main.py")
        assert "was not typed" not in await talk.say("/edit", f"@{tmp_path}/nosuch")
    assert contents(talk.conversation) == [f"@{tmp_path}/nosuch", "Yes."]


async def test_attached_files_go_with_the_first_prompt() -> None:
    talk = Talk(files=[Attachment("a.txt", 2, "hi")])
    async with talk.client:
        await talk.say("/pace", "one", "two")
    assert contents(talk.conversation)[::2] == ["a.txt:\n```\nhi\n```\n\none", "two"]


async def test_an_edited_prompt_keeps_the_files_that_were_attached() -> None:
    talk = Talk(files=[Attachment("a.txt", 2, "hi")])
    async with talk.client:
        await talk.say("one", "/edit two", "three")
    assert contents(talk.conversation)[::2] == ["a.txt:\n```\nhi\n```\n\ntwo", "three"]


async def test_the_images_of_a_loaded_prompt_stay_with_it() -> None:
    talk = Talk(Race(policy="server-only"))
    talk.sides.takes_images, talk.server.capabilities = True, Capabilities(images=True)
    talk.conversation.turns = [Turn("user", "what?", images=("data:image/png;base64,AAAA",)), Turn("assistant", "A cat.")]
    async with talk.client:
        await talk.say("/edit what colour?")
    assert talk.conversation.turns == [Turn("user", "what colour?", images=("data:image/png;base64,AAAA",)), Turn("assistant", "No.")]


async def test_an_image_is_refused_before_anything_is_sent_unless_a_side_takes_it() -> None:
    image = Attachment("a.png", 3, image="data:image/png;base64,AAAA")
    talk = Talk(Race(policy="server-only"), files=[image])
    async with talk.client:
        said = await talk.say("what?")
        assert said == "error: image: expected a model that takes images, got tiny.gguf and large, of which none does\n"
        assert (talk.conversation.turns, talk.server.streams) == ([], [])
        talk.sides.takes_images = True
        talk.server.capabilities = Capabilities(images=True)
        assert "sent with it: a.png, 3 bytes of an image" in await talk.say("what?")
        sent = (talk.server.streams[-1].request.messages or [])[-1]["content"]
    assert sent == [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": image.image}}]


@pytest.mark.parametrize("same", [True, False])
async def test_a_loaded_conversation_with_other_models_says_so(same: bool, tmp_path: Path) -> None:
    talk, path = Talk(), tmp_path / "a.json"
    async with talk.client:
        await talk.say("/device tiny.gguf", "one", f"/save {path}")
        await talk.say("/new") if same else await talk.say("/device new.gguf")
        said = await talk.say(f"/load {path}")
    assert ("it was with tiny.gguf and large, and now is with new.gguf and large" in said) is not same
