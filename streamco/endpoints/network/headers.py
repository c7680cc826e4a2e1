"""HTTP headers: those of every request, and how layers of them are put together."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BASE_HEADERS", "has_header", "key_header", "merge_headers"]

BASE_HEADERS: Mapping[str, str] = {
    "Accept": "text/event-stream, application/json",
    "Accept-Encoding": "identity",  # a proxy that compresses holds events back
    "Content-Type": "application/json",
    "User-Agent": "streamco",
}


def merge_headers(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return headers in which those of a later layer replace those of an earlier one, in whatever case their names are written."""
    found = {name.lower(): (name, value) for layer in layers for name, value in layer.items()}
    return dict(found.values())


def has_header(headers: Mapping[str, str], name: str) -> bool:
    """Return True if a header of this name is there, in whatever case."""
    wanted = name.lower()
    return any(each.lower() == wanted for each in headers)


def key_header(name: str, key: str | None) -> dict[str, str]:
    """Return the header that has the key: ``Authorization`` with ``Bearer``, another one with the bare key; {}: there is no key."""
    if key is None:
        return {}
    return {"Authorization": f"Bearer {key}"} if name == "authorization" else {name: key}
