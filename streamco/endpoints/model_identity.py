"""Tells whether two endpoints have the same model, according to what they declare."""

from __future__ import annotations

import re

from streamco.endpoints.base import Endpoint

__all__ = ["have_same_model"]

_PUBLISHED = re.compile(r"[\w.-]+/(?P<name>[^/]+)")  # org/name; a path has more slashes, or begins with one
_SIGNS = re.compile(r"[\W_]+")
_STAND_INS = frozenset({"", "auto", "default", "local", "model", "unknown"})  # placeholder names that any model may have


def have_same_model(one: Endpoint, other: Endpoint, *, asked: str | None = None) -> bool:
    """Return True if both endpoints declare the same model name, or loaded their models from identical files.

    ``asked`` is the model that a request names, which a server uses in place of its own, or None. The comparison ignores the publisher and
    the characters between words, so ``Qwen/Qwen2.5-0.5B-Instruct`` equals ``Qwen2.5 0.5B Instruct``.
    """
    names = _plain_name(one, asked), _plain_name(other, asked)
    marks = _content_mark(one, asked), _content_mark(other, asked)
    return (bool(marks[0]) and marks[0] == marks[1]) or (names[0] not in _STAND_INS and names[0] == names[1])


def _info(endpoint: Endpoint) -> object:
    return getattr(getattr(endpoint, "engine", None), "info", None)


def _content_mark(endpoint: Endpoint, asked: str | None) -> str:
    if endpoint.kind == "server" and asked not in {None, getattr(endpoint, "model", None)}:
        return ""
    return getattr(_info(endpoint), "content_mark", "") or getattr(endpoint, "content_mark", "")


def _plain_name(endpoint: Endpoint, asked: str | None) -> str:
    name: str = getattr(_info(endpoint), "name", "") or getattr(endpoint, "model", "")
    if asked is not None and endpoint.kind == "server":
        name = asked
    if (published := _PUBLISHED.fullmatch(name)) is not None and not name.endswith(".gguf"):
        name = published["name"]
    return _SIGNS.sub(" ", name).strip().lower()
