"""A bound on the elements of a JSON body that is counted before the body is parsed.

As empty objects, 16 MB of JSON become a gigabyte in memory and block the event loop for seconds. Each element has a comma or an opening
bracket of its own, so those are counted. Signs inside texts, such as a message that is a large table, don't count.
"""

from __future__ import annotations

__all__ = ["has_more_elements"]

_SIGNS = (b",", b"[", b"{")


def has_more_elements(body: bytes, limit: int) -> bool:
    """Return True if the JSON has more than ``limit`` commas and opening brackets outside of its texts.

    The work is a few passes of ``bytes`` methods, whatever the body: up to 90 ms for 16 MB, of which most bodies need the first alone.
    """
    if len(body) <= limit or _count(body) <= limit:
        return False
    outside = _without_escapes(body)
    if outside.count(b'"') > 4 * limit + 4:  # a text is a value or its key, so that more texts need more commas
        return True
    return _count(b"".join(outside.split(b'"')[::2])) > limit


def _count(body: bytes) -> int:
    return sum(map(body.count, _SIGNS))


def _without_escapes(body: bytes) -> bytes:
    """Return the body without escaped backslashes and quotes, after which each quote begins or ends a text.

    A backslash is only allowed inside a text. A parser stops at any other, so what comes after it doesn't matter.
    """
    return body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
