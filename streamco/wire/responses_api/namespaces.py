"""Functions in namespaces, which chat requests don't have: there a function's name begins with that of its namespace.

A namespace groups functions, such as those of one MCP server (OpenAI API reference, tools of type ``namespace``). A call has the name and
the namespace in fields of their own.
"""

from __future__ import annotations

from zlib import crc32

__all__ = ["NamespacedNames", "join_name"]

_MOST = 64  # characters of a function's name, at OpenAI


def join_name(namespace: str, name: str) -> str:
    """Return the name in chat of a function in a namespace: the same one each time, and short enough for servers."""
    joined = f"{namespace}__{name}"
    return joined if len(joined) <= _MOST else f"{joined[: _MOST - 9]}_{crc32(joined.encode()):08x}"


class NamespacedNames:
    """The functions in namespaces that a request has, by their names in chat."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str]] = {}

    def add(self, namespace: str, name: str) -> str:
        """Return the name in chat of one more function."""
        joined = join_name(namespace, name)
        self._found[joined] = namespace, name
        return joined

    def fields(self, name: str) -> dict[str, str]:
        """Return the fields ``name`` and ``namespace`` of a call; a function that is in no namespace has the former alone."""
        found = self._found.get(name)
        return {"name": name} if found is None else {"name": found[1], "namespace": found[0]}
