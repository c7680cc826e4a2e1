"""Changing one model of a running chat, and going on with the models of a conversation."""

from __future__ import annotations

import argparse
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import pytest

from streamco.cli import chat
from streamco.cli.model_switch import ModelSwitch, adopt_models, models_of
from streamco.cli.ui.history import ChatModels, Conversation
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.endpoints.base import Endpoint
from streamco.errors import ConfigError, EngineError
from streamco.testing.endpoint import ScriptedEndpoint


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    return parser.parse_args(words)


class Side(ScriptedEndpoint):
    """Says its name, and remembers whether it is open. One called "broken" can't be loaded."""

    def __init__(self, model: str, name: str, kind: str) -> None:
        super().__init__(name, [(0.0, model)], kind="device" if kind == "device" else "server")
        self.model = model
        self.closed = 0

    async def start(self) -> None:
        if self.model == "broken.gguf":
            raise EngineError("expected a GGUF file, got something else", endpoint=self.name)
        await super().start()

    async def aclose(self) -> None:
        self.closed += 1
        await super().aclose()


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.gguf", "broken.gguf"):
        Path(name).touch()


class Parts:
    """Makes scripted sides of a chat."""

    def check(self, args: argparse.Namespace) -> None:
        chat.check_options(args)

    def device(self, args: argparse.Namespace) -> Endpoint | None:
        return None if args.no_device else Side(args.device or "packaged", "device", "device")

    def server(self, args: argparse.Namespace) -> Endpoint | None:
        return None if args.server is None else Side(args.server, args.server, "server")

    def client(self, args: argparse.Namespace, device: Endpoint | None, server: Endpoint | None) -> Client:
        return Client(device, server, budget=args.budget, mode=Race(policy=args.policy))

    def waiting(self, args: argparse.Namespace) -> AbstractAsyncContextManager[None]:
        return nullcontext()


class Switched:
    """A chat of ``words`` whose models are changed."""

    def __init__(self, *words: str) -> None:
        args, parts = options(*words), Parts()
        self.device, self.server = parts.device(args), parts.server(args)
        self.client = parts.client(args, self.device, self.server)
        self.kinds: dict[str, str] = {side.name: side.kind for side in (self.device, self.server) if side is not None}
        self.gone: list[Client] = []
        self.switch = ModelSwitch(
            parts, args, device=self.device, server=self.server, client=self.client, kinds=self.kinds, on_change=self.gone.append
        )


def closed(side: Endpoint | None) -> int:
    assert isinstance(side, Side)
    return side.closed


async def said(client: Client) -> str:
    answer = await client.chat.completions.create(messages=[{"role": "user", "content": "who?"}])
    return answer.choices[0].message.content or ""


async def test_another_device_answers_and_the_server_stays_open() -> None:
    it = Switched("--device", "a.gguf", "--server", "large", "--policy", "device-only")
    async with it.client:
        assert await said(it.client) == "a.gguf"
        client = await it.switch.change_device("b.gguf", {"policy": "device-first", "budget": 0.5})
        assert await said(client) == "b.gguf"
        assert client.race.policy == "device-first"
        assert (closed(it.device), closed(it.server), it.gone) == (1, 0, [it.client])
        await it.switch.aclose()
    assert closed(it.server) > 0


async def test_a_device_that_cannot_be_loaded_leaves_the_chat_as_it_was() -> None:
    it = Switched("--device", "a.gguf", "--server", "large", "--policy", "device-only")
    async with it.client:
        with pytest.raises(EngineError):
            await it.switch.change_device("broken.gguf", {})
        with pytest.raises(ConfigError, match=r"/device: expected a GGUF file, got nothing at nosuch\.gguf"):
            await it.switch.change_device("nosuch.gguf", {})
        assert await said(it.client) == "a.gguf"
        assert it.switch.models == ChatModels(str(Path("a.gguf").absolute()), server="large")
        assert (it.switch.client, closed(it.device)) == (it.client, 0)


async def test_a_model_that_no_client_takes_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    it, made = Switched("--device", "a.gguf", "--server", "large"), Side("b.gguf", "device", "device")
    monkeypatch.setattr(it.switch._parts, "device", lambda _args: made)
    monkeypatch.setattr(it.switch._parts, "client", lambda *_: Client(None, None))
    async with it.client:
        with pytest.raises(ConfigError, match="expected a device, a server or both"):
            await it.switch.change_device("b.gguf", {})
        assert (made.closed, closed(it.device), closed(it.server)) == (1, 0, 0)


async def test_another_server_has_the_key_of_the_former_only_at_the_same_url() -> None:
    it = Switched("--server", "large", "--base-url", "http://a/v1", "--api-key-env", "A_KEY", "--prices", "1/2")
    async with it.client:
        await it.switch.change_server(["small"], {})
        assert it.switch.models == ChatModels("packaged", None, "small", "http://a/v1", "A_KEY")
        client = await it.switch.change_server(["small", "http://b/v1"], {"policy": "server-only"})
        assert it.switch.models == ChatModels("packaged", None, "small", "http://b/v1")
        assert (await said(client), closed(it.server), closed(it.device)) == ("small", 1, 0)
        assert it.kinds == {"device": "device", "small": "server"}
        await it.switch.change_server(["small", "http://b/v1", "B_KEY"], {})
        assert it.switch.models == ChatModels("packaged", None, "small", "http://b/v1", "B_KEY")
        await it.switch.aclose()


async def test_a_side_may_be_turned_off_but_not_both() -> None:
    it = Switched("--server", "large")
    async with it.client:
        client = await it.switch.change_device("off", {})
        assert await said(client) == "large"
        with pytest.raises(ConfigError, match="expected a device or a server to remain, got neither"):
            await it.switch.change_server(["off"], {})
        await it.switch.change_device("packaged", {})
        await it.switch.change_server(["off"], {})
        assert it.switch.models == ChatModels("packaged")
        await it.switch.aclose()


@pytest.mark.parametrize("words", [["http://host/v1"], ["a", "b", "c", "d"]])
async def test_a_server_is_named_by_its_model(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="/server: expected MODEL, MODEL URL or MODEL URL KEY_VARIABLE, got"):
        await Switched("--server", "large").switch.change_server(words, {})


async def test_a_split_model_stays() -> None:
    it = Switched("--server", "large")
    it.switch._args = options("--split", "http://host", "--device", "parts/name")
    with pytest.raises(ConfigError, match="got a split model"):
        await it.switch.change_device("a.gguf", {})


# Conversations that go on


def adopted(models: ChatModels | None, *words: str) -> ChatModels | None:
    conversation, args = Conversation(), options(*words)
    conversation.models = models
    adopt_models(args, conversation)
    return models_of(args, has_device=True)


def test_a_conversation_goes_on_with_its_models_unless_others_are_named(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    model.touch()
    kept = ChatModels(str(model), None, "large", "http://host/v1", "KEY")
    assert adopted(kept) == kept
    assert adopted(kept, "--no-device") == ChatModels(None, None, "large", "http://host/v1", "KEY")
    assert adopted(kept, "--server", "other") == ChatModels(str(model), None, "other")
    assert adopted(kept, "--device", "http://127.0.0.1:1") == ChatModels("http://127.0.0.1:1", None, "large", "http://host/v1", "KEY")
    assert adopted(ChatModels(None, None, "large")) == ChatModels(None, None, "large")
    assert adopted(None, "--server", "large") == ChatModels("packaged", None, "large")
    model.unlink()
    assert adopted(kept) == ChatModels("packaged", None, "large", "http://host/v1", "KEY")


def test_a_split_model_adopts_none() -> None:
    assert adopted(ChatModels("packaged"), "--split", "http://host", "--device", "parts/name") is None


@pytest.mark.parametrize(
    ("models", "text"),
    [
        (ChatModels(), "no model"),
        (ChatModels("packaged"), "the packaged model"),
        (ChatModels("/home/me/tiny.gguf", None, "large"), "tiny.gguf and large"),
        (ChatModels("hf:org/repo:Q4_0"), "hf:org/repo:Q4_0"),
        (
            ChatModels("http://127.0.0.1:11434", "qwen", "large", "http://host/v1"),
            "qwen at http://127.0.0.1:11434 and large at http://host/v1",
        ),
    ],
)
def test_models_are_called_as_people_call_them(models: ChatModels, text: str) -> None:
    assert str(models) == text
