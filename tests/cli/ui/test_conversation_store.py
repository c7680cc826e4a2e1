"""Conversations that are kept between two runs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from streamco.cli.ui import conversation_store
from streamco.cli.ui.conversation_store import ConversationStore, conversation_folder, read_conversation, write_conversation
from streamco.cli.ui.history import ChatModels, Conversation, Turn


def talk(*prompts: str) -> Conversation:
    conversation = Conversation("Be terse.")
    for prompt in prompts:
        conversation.ask(prompt)
        conversation.answer(f"Yes, {prompt}.", is_stopped=prompt == "stop")
    return conversation


def test_a_conversation_comes_back_as_it_was_and_is_its_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    write_conversation(talk("one", "stop"), path)
    back = read_conversation(path)
    assert (back.system, back.turns) == ("Be terse.", talk("one", "stop").turns)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_images_and_models_come_back_and_older_files_have_none(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    conversation = talk("one")
    conversation.models = ChatModels("packaged", server="large")
    conversation.ask("what?", ["data:image/png;base64,AAAA"])
    conversation.answer("A cat.")
    write_conversation(conversation, path)
    back = read_conversation(path)
    assert (back.models, back.turns) == (conversation.models, conversation.turns)
    assert back.has_images
    path.write_text('{"system":null,"turns":[{"role":"user","content":"Hi","is_stopped":false}]}')
    assert (read_conversation(path).models, read_conversation(path).turns) == (None, [Turn("user", "Hi")])


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"expected a conversation as JSON in .*a\.json"):
        read_conversation(tmp_path / "a.json")


def test_one_conversation_stays_in_one_file_and_the_last_used_one_is_first(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path)
    store.keep(talk("one"))
    store.keep(talk("one", "two"))
    first = store.earlier()[0]
    os.utime(first, (1, 1))
    store.begin()
    store.keep(talk("three"))
    assert [len(read_conversation(path).turns) for path in store.earlier()] == [2, 4]
    store.begin(first)
    store.keep(talk("one", "two", "three"))
    assert [len(read_conversation(path).turns) for path in store.earlier()] == [6, 2]


def test_an_empty_conversation_and_one_without_a_folder_are_not_kept(tmp_path: Path) -> None:
    ConversationStore(tmp_path).keep(Conversation())
    assert list(tmp_path.iterdir()) == []
    store = ConversationStore(None)
    store.keep(talk("one"))
    assert store.earlier() == []


def test_a_folder_that_can_not_be_written_ends_nothing(tmp_path: Path) -> None:
    ConversationStore(tmp_path / "nowhere").keep(talk("one"))


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_store, "MAX_KEPT", 3)
    for number in range(5):
        store = ConversationStore(tmp_path)
        store.keep(talk(str(number)))
        os.utime(store.earlier()[0], (number, number))
    assert [read_conversation(path).turns[0].content for path in ConversationStore(tmp_path).earlier()] == ["4", "3", "2"]


def test_the_environment_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("STREAMCO_NO_SAVE", "0")
    assert conversation_folder() == tmp_path / "streamco" / "conversations"
    monkeypatch.setenv("STREAMCO_NO_SAVE", "1")
    assert conversation_folder() is None
