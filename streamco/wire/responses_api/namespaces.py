"""Translates the names of functions in namespaces. Chat requests have no namespaces, so the namespace becomes part of the name.

A namespace groups functions, such as those of one MCP server (OpenAI API reference, tools of type ``namespace``). A call in this API
has the name and the namespace in separate fields.

Servers accept names of at most 64 letters, digits, ``_`` and ``-``. If a joined name doesn't fit, or several functions would have it, a
checksum is appended. The same tools get the same names in each request, whatever their order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any
from zlib import crc32

from streamco.wire.request_fields import objects_of

__all__ = ["NamespacedNames"]

_MOST = 64  # characters of a function's name in OpenAI's API
_LEGAL = re.compile(rf"[A-Za-z0-9_-]{{1,{_MOST}}}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")

_Pair = tuple[str, str]  # namespace, name


class NamespacedNames:
    """Maps one request's functions in namespaces to their chat names and back.

    Args:
        tools: the request's field ``tools``, decoded. Functions without a namespace keep their names. Malformed tools get no name
            here, and are refused later when they are read.
    """

    def __init__(self, tools: Any = None) -> None:
        pairs, plain = _offered(tools)
        uses = Counter([*map("__".join, pairs), *plain])
        self._taken = plain
        self._names: dict[_Pair, str] = {}
        self._pairs: dict[str, _Pair] = {}
        kept = {pair for pair in pairs if uses[name := "__".join(pair)] == 1 and _LEGAL.fullmatch(name)}
        for pair in (*kept, *sorted(pairs - kept)):  # a name with a checksum must not equal a kept one
            self._add(pair, is_kept=pair in kept)

    def chat_name(self, namespace: str | None, name: str) -> str:
        """Return a function's name in chat. A function that isn't offered, for example in an earlier call, gets a name too.

        Args:
            namespace: the function's namespace. None or "" means no namespace.
            name: the function's name in its namespace.
        """
        if not namespace:
            return name
        pair = namespace, name
        return self._names[pair] if pair in self._names else self._add(pair, is_kept=True)

    def fields(self, name: str) -> Mapping[str, str]:
        """Return the fields ``name`` and ``namespace`` of a call from its chat name, or only ``name`` if there is no namespace."""
        pair = self._pairs.get(name)
        return {"name": name} if pair is None else {"name": pair[1], "namespace": pair[0]}

    def _add(self, pair: _Pair, *, is_kept: bool) -> str:
        """Give one more function a chat name. If ``is_kept`` is set, the joined name is used, provided that it is legal and not taken."""
        name = "__".join(pair)
        if not is_kept or name in self._taken or not _LEGAL.fullmatch(name):
            name = next(each for tried in count() if (each := _checked(pair, tried)) not in self._taken)
        self._taken.add(name)
        self._names[pair], self._pairs[name] = name, pair
        return name


def _checked(pair: _Pair, tried: int) -> str:
    """Return a legal name with a checksum of the pair. ``tried`` counts the earlier attempts, whose names were taken."""
    namespace, name = pair
    checksum = crc32(f"{tried}:{len(namespace)}:{namespace}{name}".encode())
    return f"{_ILLEGAL.sub('_', f'{namespace}__{name}')[: _MOST - 9]}_{checksum:08x}"


def _offered(tools: Any) -> tuple[set[_Pair], set[str]]:
    """Return the pairs of functions in namespaces, and the names of functions without a namespace."""
    pairs: set[_Pair] = set()
    plain: set[str] = set()
    for tool in objects_of(tools):
        match tool:
            case {"type": "namespace", "name": str(namespace), "tools": inner}:
                pairs |= {(namespace, name) for each in objects_of(inner) if isinstance(name := each.get("name"), str)}
            case {"type": "function", "name": str(name)}:
                plain.add(name)
    return pairs, plain
