from __future__ import annotations

import stat
from pathlib import Path

import pytest

from streamco.cli.ui.history import Conversation, Turn, state_path


def test_messages_begin_with_the_system_message_and_alternate() -> None:
    conversation = Conversation("Be terse.")
    conversation.ask("Hi")
    conversation.answer("Hello.")
    conversation.ask("And?")
    assert conversation.messages() == [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And?"},
    ]


def test_without_a_system_message_none_is_sent() -> None:
    for system in (None, ""):
        conversation = Conversation(system)
        conversation.ask("Hi")
        assert [message["role"] for message in conversation.messages()] == ["user"]


def test_a_stopped_answer_stays_and_is_marked() -> None:
    conversation = Conversation()
    conversation.ask("Tell me a story")
    conversation.answer("Once upon", is_stopped=True)
    assert conversation.turns[-1] == Turn("assistant", "Once upon", is_stopped=True)
    assert conversation.messages()[-1] == {"role": "assistant", "content": "Once upon"}
    assert "## Answer (stopped)\n\nOnce upon\n" in conversation.to_markdown()


def test_images_are_parts_beside_the_text() -> None:
    conversation = Conversation()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    conversation.ask("what?", [image["image_url"]["url"]])  # type: ignore[index]
    assert conversation.messages() == [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}]
    assert "## You\n\nwhat?\n\n(1 image)\n" in conversation.to_markdown()
    conversation.take_back()
    conversation.ask("", [image["image_url"]["url"]])  # type: ignore[index]
    assert conversation.messages() == [{"role": "user", "content": [image]}]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_a_question_without_an_answer_is_withdrawn_so_that_roles_alternate(text: str) -> None:
    conversation = Conversation()
    conversation.ask("Hi")
    conversation.answer("Hello.")
    conversation.ask("Lost")
    conversation.answer(text, is_stopped=True)
    assert [turn.content for turn in conversation.turns] == ["Hi", "Hello."]


def test_forgetting_keeps_the_system_message() -> None:
    conversation = Conversation("Be terse.")
    conversation.ask("Hi")
    conversation.answer("Hello.")
    conversation.forget()
    assert conversation.turns == []
    assert conversation.messages() == [{"role": "system", "content": "Be terse."}]


def test_a_conversation_reads_well_as_markdown() -> None:
    conversation = Conversation("Be terse.")
    conversation.ask("Hi")
    conversation.answer("Hello.\n")
    assert conversation.to_markdown() == "## System\n\nBe terse.\n\n## You\n\nHi\n\n## Answer\n\nHello.\n"


def test_the_state_folder_follows_xdg_and_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = state_path("history")
    assert path == tmp_path / "state" / "streamco" / "history"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_without_an_absolute_xdg_folder_the_home_folder_is_used(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_path("history") == tmp_path / ".local" / "state" / "streamco" / "history"
