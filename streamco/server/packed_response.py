"""Streamed answers in MessagePack, for clients of this project: text and packed ids (``wire.openai.msgpack_stream``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from streamco.engines.base import GenerationEnd, TextPiece
from streamco.server.http.encoding import Json
from streamco.server.http.errors import RequestError, error_object
from streamco.server.http.event_stream import HEADERS
from streamco.server.requests import GenerateRequest
from streamco.server.responses import usage_of
from streamco.wire.openai.msgpack_body import MSGPACK
from streamco.wire.openai.msgpack_stream import FORMAT, KEEPALIVE, PieceEncoder, encode_ending, encode_error, encode_opening
from streamco.wire.token_frames import TokenCodec

__all__ = ["PackedStream", "wants_packed"]

_FORMAT = re.compile(rf'v=("?){FORMAT}\1')
_ZERO = re.compile(r"q\s*=\s*0(\.0*)?")


def wants_packed(accepted: str, request: GenerateRequest) -> bool:
    """Return True if the answer should be a stream in MessagePack.

    Args:
        accepted: the request's Accept header. A client that doesn't name the format doesn't get it.
        request: its fields. Log-probabilities can't be sent in MessagePack, and if ids are refused there is nothing to pack.
    """
    return _accepts(accepted) and request.is_streamed and request.return_token_ids is not False and request.wanted_top is None


def _accepts(accepted: str) -> bool:
    """Return True if an Accept header names the format, unless its weight is 0 (RFC 9110, section 12.4.2: "not acceptable")."""
    for each in accepted.lower().split(","):
        name, *parameters = (part.strip() for part in each.split(";"))
        if name == MSGPACK and any(_FORMAT.fullmatch(parameter) for parameter in parameters):
            return not any(_ZERO.fullmatch(parameter) for parameter in parameters)
    return False


class PackedStream:
    """A streamed answer in MessagePack; see ``StreamFormat``.

    Args:
        name: the answer's id.
        model: the model's name as the client knows it.
        created: seconds since the epoch.
        codec: packs ids of the engine's vocabulary.
        wants_usage: True to end with usage.
    """

    headers: Mapping[str, str] = {**HEADERS, "Content-Type": MSGPACK}
    keepalive = KEEPALIVE

    def __init__(self, *, name: str, model: str, created: int, codec: TokenCodec, wants_usage: bool) -> None:
        self._head = name, created, model, codec.vocabulary
        self._codec = codec
        self._wants_usage = wants_usage
        self._pieces = PieceEncoder()

    def opening(self) -> bytes:
        """Return the map that begins the answer."""
        return encode_opening(*self._head)

    def events(self, pieces: Sequence[TextPiece]) -> bytes:
        """Return one array for the tokens that are ready together, and one for each piece that can't be joined with others."""
        return b"".join([self._encode(piece) for piece in _joined(pieces)])

    def closing(self, end: GenerationEnd) -> bytes:
        """Return the map that ends the answer."""
        usage: Json | None = usage_of(end.timings) if self._wants_usage else None
        return encode_ending(end.reason, usage)

    def failing(self, refusal: RequestError) -> bytes:
        """Return the map that ends an answer that failed."""
        return encode_error(error_object(refusal))

    def _encode(self, piece: TextPiece) -> bytes:
        if piece.is_cut:  # the end comes with it, as in a stream of events
            return self._pieces.encode(piece.text, b"", "stop")
        return self._pieces.encode(piece.text, self._codec.pack_bare(piece.ids))


def _joined(pieces: Sequence[TextPiece]) -> list[TextPiece]:
    """Join consecutive pieces of plain text into one, so that their ids are packed together.

    Ids without text at the end are the beginning of a code point that may never be completed, so they stay separate.
    """
    joined: list[TextPiece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and _is_plain(last) and _is_plain(piece):
            joined[-1] = replace(last, text=last.text + piece.text, ids=last.ids + piece.ids)
        else:
            joined.append(piece)
    return joined


def _is_plain(piece: TextPiece) -> bool:
    return bool(piece.text) and not piece.is_cut and not piece.is_reasoning
