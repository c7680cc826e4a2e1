"""A server's key: a text, or a function that gives the key of each request. No error shows it."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from streamco.errors import ConfigError, EndpointError, EndpointStatusError, StreamcoError, shorten

__all__ = ["ApiKey", "ServerKey", "check_key"]

ApiKey = str | Callable[[], str | Awaitable[str]]
"""A key, or a function without arguments that returns it or awaits it, for keys that expire."""

ErrorT = TypeVar("ErrorT", bound=StreamcoError)

_MAX_KEYS = 64  # newest keys of a function: an answer under way may still be refused with an older one in the error's text
_KEY_LENGTH = 8  # characters; keys of real services have 20 and more


def check_key(setting: str, key: object) -> None:
    """Check the type of a key, and that a header can carry it. A function's key is checked when it is there.

    Raises:
        ConfigError: it is neither a text nor a function, or has characters that no header can carry. The text is not repeated.
    """
    if not isinstance(key, str):
        if not callable(key):
            raise ConfigError(f"{setting}: expected a text or a function, got {type(key).__name__}")
    elif not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError(f"{setting}: expected printable ASCII without blanks around it, got {len(key)} characters that are not")


class ServerKey:
    """The key of one server, shared by everything that sends it.

    Args:
        key: the key, or what gives it; None and "": there is none.
        setting: name of the argument that it was given as, for errors.

    Raises:
        ConfigError: see ``check_key``.
    """

    __slots__ = ("_keys", "_setting", "given")

    def __init__(self, key: ApiKey | None, *, setting: str = "api_key") -> None:
        if key is not None:
            check_key(setting, key)
        self.given: ApiKey = key or ""
        """The key as it was given, for another connection to the same server; "": none."""
        self._setting = setting
        self._keys: deque[str] = deque([self.given] if isinstance(self.given, str) else [], maxlen=_MAX_KEYS)

    def __repr__(self) -> str:
        return f"ServerKey({'...' if self.given else ''})"

    def __bool__(self) -> bool:
        return bool(self.given)

    async def read(self) -> str | None:
        """Return the key for one request; None: there is none.

        A function is called each time. One that isn't a coroutine function runs in a thread, because it may ask a network.

        Raises:
            ConfigError: the function gave something else than a key.
            EndpointError: the function failed, so that the server can't be asked.
        """
        if isinstance(self.given, str):
            return self.given or None
        try:
            key = await _call(self.given)
        except StreamcoError:
            raise
        except Exception as error:
            raise EndpointError(f"expected a key from the function that is {self._setting}, got {shorten(repr(error))}") from error
        if not isinstance(key, str):
            raise ConfigError(f"{self._setting}: expected a function that returns a text, got one that returns {type(key).__name__}")
        check_key(self._setting, key)
        if key not in self._keys:
            self._keys.append(key)
        return key or None

    def scrub(self, error: ErrorT) -> ErrorT:
        """Return the same error without the key: some servers repeat it in their answers."""
        error.args = tuple(self.hide(each) if isinstance(each, str) else each for each in error.args)
        if isinstance(error, EndpointStatusError):
            error.body = self.hide(error.body)
        return error

    def hide(self, text: str) -> str:
        """Return a text without the key, and without those that a function gave last.

        A short one ("x", "none", "EMPTY") is cut out only where it stands alone: it may be a part of words.
        """
        for key in tuple(self._keys):
            if len(key) >= _KEY_LENGTH:
                text = text.replace(key, "***")
            elif key:
                text = re.sub(rf"(?<![\w-]){re.escape(key)}(?![\w-])", "***", text)
        return text


async def _call(function: Callable[[], str | Awaitable[str]]) -> object:
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    found = function() if is_async else await asyncio.to_thread(function)
    return await found if inspect.isawaitable(found) else found
