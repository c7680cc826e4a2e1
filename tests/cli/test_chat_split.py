"""``streamco chat --split``: the options that go with it, and those that don't."""

from __future__ import annotations

import argparse

import pytest

from streamco.cli import chat
from streamco.cli.ui.talk import open_conversation
from streamco.endpoints.split.endpoint import SplitEndpoint
from streamco.errors import ConfigError

SPLIT = ["--device", "parts/name", "--split", "ws://127.0.0.1:1", "--split", "ws://127.0.0.1:2"]


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    return parser.parse_args([*options])


def test_the_device_is_a_split_model_with_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    args = parsed(*SPLIT)
    chat.check_options(args)
    device = chat.make_split(args)
    assert isinstance(device, SplitEndpoint)
    assert [address.url for address in device.addresses] == ["ws://127.0.0.1:1/v1/verify", "ws://127.0.0.1:2/v1/verify"]
    assert [address.token.given for address in device.addresses] == ["", ""], "a key for OpenAI goes to no other server"


def test_the_key_is_that_of_the_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLIT_KEY", "secret")
    device = chat.make_split(parsed(*SPLIT, "--api-key-env", "SPLIT_KEY"))
    assert isinstance(device, SplitEndpoint)
    assert device.addresses[0].token.given == "secret"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--server", "gpt"], "--server"),
        (["--verifier", "ws://127.0.0.1:3"], "--verifier"),
        (["--budget", "0.5"], "--budget"),
        (["--mode", "speculate"], "--mode speculate"),
        (["--policy", "device-only"], "--policy device-only"),
        (["--no-device"], "--no-device"),
    ],
)
def test_options_without_effect_are_refused(options: list[str], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: can't be combined with --split"):
        chat.check_options(parsed(*SPLIT, *options))


def test_the_parts_are_needed() -> None:
    with pytest.raises(ConfigError, match="--split: only valid with --device parts/NAME"):
        chat.check_options(parsed("--split", "ws://127.0.0.1:1"))


def named(*options: str) -> argparse.Namespace:
    args = parsed("--mode", "split", *options)
    chat.name_split_servers(args)
    chat.check_options(args)
    return args


def test_the_mode_takes_the_servers_url_for_the_middles() -> None:
    device = chat.make_split(named("--server", "ws://127.0.0.1:1", "--device", "parts/name"))
    assert isinstance(device, SplitEndpoint)
    assert [address.url for address in device.addresses] == ["ws://127.0.0.1:1/v1/verify"]
    assert named(*SPLIT).split == ["ws://127.0.0.1:1", "ws://127.0.0.1:2"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--device", "parts/name"], "--mode split: needs --server URL"),
        (
            ["--device", "parts/name", "--server", "gpt-4o-mini"],
            "--server: expected the URL of a streamco serve --middle with --mode split",
        ),
        (["--server", "ws://127.0.0.1:1"], "--split: only valid with --device parts/NAME"),
        (
            ["--server", "ws://127.0.0.1:1", "--device", "parts/name", "--base-url", "http://x"],
            "--base-url: can't be combined with --split",
        ),
    ],
)
def test_what_the_mode_needs_is_said(options: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        named(*options)


async def test_a_seed_is_the_answers_and_no_setting_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[dict[str, object]] = []

    class Made(Exception):
        pass

    def make(*_endpoints: object, **settings: object) -> None:
        clients.append(settings)
        raise Made

    monkeypatch.setattr(chat, "Client", make)
    monkeypatch.setattr(chat, "make_split", lambda _args: SplitEndpoint("parts/name", "ws://127.0.0.1:1"))
    args = parsed(*SPLIT, "--seed", "3", "--prompt", "hi")
    with pytest.raises(Made):
        await chat._chat(args, open_conversation(args), [])
    assert "seed" not in clients[0]
