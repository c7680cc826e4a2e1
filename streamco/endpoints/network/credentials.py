"""A server's key: a string, or a function that returns the key for each request. Errors never show it."""

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
"""A key, or a sync or async function without arguments that returns it, for keys that expire."""

ErrorT = TypeVar("ErrorT", bound=StreamcoError)

_MAX_KEYS = 64  # newest keys of a function; an answer in progress may still be refused with an older one in the error message
_KEY_LENGTH = 8  # characters; keys of real services have 20 or more


def check_key(setting: str, key: object) -> None:
    """Check that a key has the right type and is valid in a header. A function's key is checked when it is returned.

    Raises:
        ConfigError: the key is neither a string nor a function, or has characters that aren't valid in a header. The error doesn't show it.
    """
    if not isinstance(key, str):
        if not callable(key):
            raise ConfigError(f"{setting}: expected a string or a function, got {type(key).__name__}")
    elif not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError(f"{setting}: expected printable ASCII without blanks around it, got {len(key)} characters that are not")


class ServerKey:
    """The key of one server, shared by everything that sends it.

    Args:
        key: the key, or a function that returns it; None or "" if there is none.
        setting: name of the argument that it was passed as, for errors.

    Raises:
        ConfigError: see ``check_key``.
    """

    __slots__ = ("_keys", "_setting", "given")

    def __init__(self, key: ApiKey | None, *, setting: str = "api_key") -> None:
        if key is not None:
            check_key(setting, key)
        self.given: ApiKey = key or ""
        """The key as it was given, or "", for another connection to the same server."""
        self._setting = setting
        self._keys: deque[str] = deque([self.given] if isinstance(self.given, str) else [], maxlen=_MAX_KEYS)

    def __repr__(self) -> str:
        return f"ServerKey({'...' if self.given else ''})"

    def __bool__(self) -> bool:
        return bool(self.given)

    async def read(self) -> str | None:
        """Return the key for one request, or None if there is none.

        A function is called each time. If it isn't a coroutine function, it runs in a thread, because it may use the network.

        Raises:
            ConfigError: the function returned something other than a key.
            EndpointError: the function failed, so that the server can't be used.
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
            raise ConfigError(f"{self._setting}: expected a function that returns a string, got one that returns {type(key).__name__}")
        check_key(self._setting, key)
        if key not in self._keys:
            self._keys.append(key)
        return key or None

    def scrub(self, error: ErrorT) -> ErrorT:
        """Return the same error without the key, because some servers repeat the key in their responses."""
        error.args = tuple(self.hide(each) if isinstance(each, str) else each for each in error.args)
        if isinstance(error, EndpointStatusError):
            error.body = self.hide(error.body)
        return error

    def hide(self, text: str) -> str:
        """Return a text without the key, and without the most recent keys that a function returned.

        A short key ("x", "none", "EMPTY") is removed only where it stands alone, because it may be a part of words.
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
