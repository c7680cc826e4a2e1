"""Keys that are texts, keys that functions give, and texts from which they are cut out."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pydantic
import pytest

from streamco.endpoints.network.credentials import ServerKey, check_key
from streamco.errors import ConfigError, EndpointConnectError, EndpointError, EndpointProtocolError, EndpointStatusError


class Tokens:
    """An object that is called for keys, as those of token providers are."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"token-number-{self.count}"


class AsyncTokens(Tokens):
    """The same with a coroutine."""

    async def __call__(self) -> str:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().__call__()


def functions() -> dict[str, Callable[[], str | Awaitable[str]]]:
    """Every form of a function that gives keys, each with a count of its own."""
    plain, asynchronous, returning, partial = Tokens(), AsyncTokens(), AsyncTokens(), AsyncTokens()
    return {
        "function": plain.__call__,
        "object": Tokens(),
        "coroutine function": asynchronous.__call__,
        "object with a coroutine": AsyncTokens(),
        "function that returns a coroutine": lambda *_: returning(),
        "partial of a coroutine function": functools.partial(AsyncTokens.__call__, partial),
    }


@pytest.mark.parametrize("name", list(functions()))
async def test_a_function_is_asked_for_the_key_of_each_request(name: str) -> None:
    key = ServerKey(functions()[name])
    assert [await key.read() for _ in range(3)] == ["token-number-1", "token-number-2", "token-number-3"]


async def test_a_function_that_may_block_does_not_block_the_loop() -> None:
    threads = []

    def ask() -> str:
        threads.append(threading.current_thread())
        return "token-number-1"

    assert await ServerKey(ask).read() == "token-number-1"
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize("given", [None, ""])
async def test_without_a_key_there_is_none(given: str | None) -> None:
    key = ServerKey(given)
    assert not key
    assert await key.read() is None


async def test_a_text_is_the_key_of_all_requests() -> None:
    key = ServerKey("sk-1")
    assert key
    assert [await key.read(), await key.read()] == ["sk-1", "sk-1"]
    assert "sk-1" not in repr(key)


@pytest.mark.parametrize("given", [b"sk-1", 5, ["sk-1"], {"key": "sk-1"}, pydantic.SecretStr("sk-1")])
def test_another_type_is_named_and_not_shown(given: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^token: expected a string or a function, got {type(given).__name__}$"):
        ServerKey(given, setting="token")


@pytest.mark.parametrize("given", ["sk-\u00e9", "sk-a\nb", " sk-a", "sk-a\r\n", "sk-\ud83d"])
async def test_what_no_header_can_carry_is_refused_without_being_shown(given: str) -> None:
    for checked in (lambda: check_key("api_key", given), ServerKey(lambda: given).read):
        with pytest.raises(ConfigError, match=r"^api_key: expected printable ASCII") as caught:
            await found if (found := checked()) is not None else None
        assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("found", [None, 5, b"sk-secret", pydantic.SecretStr("sk-secret")])
async def test_a_function_that_gives_no_text_is_a_wrong_setting(found: Any) -> None:
    with pytest.raises(ConfigError, match=r"^api_key: expected a function that returns a string, got one that returns"):
        await ServerKey(lambda: found).read()


async def test_a_function_that_fails_keeps_the_server_from_being_asked() -> None:
    def fail() -> str:
        raise OSError("the token service is down")

    with pytest.raises(EndpointError, match=r"expected a key from the function that is api_key, got OSError\('the token") as caught:
        await ServerKey(fail).read()
    assert isinstance(caught.value.__cause__, OSError)


async def test_an_error_of_ours_in_a_function_is_kept() -> None:
    def fail() -> str:
        raise EndpointConnectError("no route")

    with pytest.raises(EndpointConnectError, match="no route"):
        await ServerKey(fail).read()


# No error shows a key


@pytest.mark.parametrize(
    ("key", "text", "shown"),
    [
        ("x", "expected status 200, got x", "expected status 200, got ***"),
        ("none", "expected nonexistent none", "expected nonexistent ***"),
        ("sk-0123456789", "a-sk-0123456789-b", "a-***-b"),
        (None, "nothing to hide", "nothing to hide"),
    ],
)
def test_a_short_key_is_cut_out_only_where_it_stands_alone(key: str | None, text: str, shown: str) -> None:
    assert str(ServerKey(key).scrub(EndpointProtocolError(text))) == shown


async def test_the_keys_that_a_function_gave_are_cut_out_of_text_and_body() -> None:
    key = ServerKey(Tokens())
    await key.read()
    await key.read()
    error = key.scrub(EndpointStatusError("bad token-number-1", status=401, body='{"got": "token-number-2"}'))
    assert (str(error), error.body) == ("bad ***", '{"got": "***"}')


async def test_a_function_that_gives_new_keys_for_ever_takes_no_more_memory() -> None:
    key = ServerKey(tokens := Tokens())
    for _ in range(1000):
        await key.read()
    assert key.hide(f"token-number-{tokens.count}") == "***"
    assert len(key._keys) < 100
