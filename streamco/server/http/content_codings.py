"""Compressed request bodies (``Content-Encoding``): which are accepted, and how they are unpacked within a limit.

aiohttp would unpack every body as it arrives, even if the request is refused or doesn't need one. Here a body is unpacked only when a
handler has asked for all of it, in pieces between which the event loop can run.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

from streamco.server.http.errors import RequestError, too_large

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["coding_of", "unpack"]

_GZIP = frozenset({"gzip", "x-gzip"})
_PIECE = 1 << 16  # bytes that are unpacked at once
_UNPACKED = 1 << 18  # unpacked bytes after which the event loop gets a turn
_METHOD = 0x0F, 8  # the bits of a zlib stream's first byte that name its method, and the only method there is


def coding_of(request: web.Request) -> str:
    """Return the coding that a request's body still has: "gzip", "deflate", or "" for none.

    Raises:
        RequestError: 415 the body has another coding.
    """
    if getattr(request.content, "total_compressed_bytes", None) is not None:  # under another runner, aiohttp's parser unpacks it
        return ""
    given = ", ".join(request.headers.getall("Content-Encoding", ())).strip().lower()
    if given in {"", "identity"}:
        return ""
    if given in _GZIP:
        return "gzip"
    if given != "deflate":
        raise RequestError(415, f"content encoding: expected gzip, deflate or none, got {given}")
    return given


async def unpack(body: bytes, coding: str, *, limit: int) -> bytes:
    """Return the unpacked body.

    Args:
        body: the body as it arrived.
        coding: the coding that ``coding_of`` returns.
        limit: maximum number of unpacked bytes.

    Raises:
        RequestError: 413 more bytes than that; 400 data that can't be unpacked, is cut off, or is followed by something else.
    """
    if not coding:
        return body
    unpacker, unpacked = zlib.decompressobj(_window(body, coding)), bytearray()
    try:
        for start in range(0, len(body), _PIECE):
            rest, is_full = body[start : start + _PIECE], False
            while (rest or is_full) and not unpacker.eof:
                piece = unpacker.decompress(rest, _UNPACKED)
                rest, is_full = unpacker.unconsumed_tail, len(piece) == _UNPACKED  # if the piece is full, zlib may have more
                unpacked += piece
                if len(unpacked) > limit:
                    raise too_large(limit)
                await asyncio.sleep(0)
            if rest or unpacker.unused_data:
                raise RequestError(400, f"body: expected one {coding} stream, got more after its end")
    except zlib.error as error:
        raise RequestError(400, f"body: expected {coding}, got bytes that can't be unpacked") from error
    if not unpacker.eof:
        raise RequestError(400, f"body: expected {coding} to its end, got a part of it")
    return bytes(unpacked)


def _window(body: bytes, coding: str) -> int:
    """Return zlib's ``wbits`` for a body. "deflate" means a zlib stream, but some clients send one without a header."""
    if coding == "gzip":
        return zlib.MAX_WBITS | 16
    mask, method = _METHOD
    return zlib.MAX_WBITS if body and body[0] & mask == method else -zlib.MAX_WBITS
