"""Sends packed token ids to a server of this project (DiSCo section 4.3, "Efficient Token Transfer").

The server states its vocabulary and the media types that it accepts (``GET /v1/models``). If MessagePack is among them, ids are sent as
bytes with a header of four bytes. Otherwise they are sent in JSON, as base64 of a frame with a header of twenty bytes.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from streamco.endpoints.base import Request
from streamco.endpoints.openai_stream import StreamCall
from streamco.events import Partial
from streamco.wire.openai.msgpack_body import MSGPACK
from streamco.wire.token_frames import TokenCodec

__all__ = ["PACKED_FIELD", "TokenTransfer", "is_client_error", "is_refused_form", "smaller"]

PACKED_FIELD = "continuation_tokens_packed"  # a field of ``streamco serve``: docs/serve.md


_OTHER_REASONS = {401, 402, 403, 404, 408, 409, 429}


class TokenTransfer(Struct, frozen=True):
    """The form in which a server accepts ids.

    Args:
        codec: packs ids of the server's vocabulary.
        is_binary: True if the server accepts and sends MessagePack.
    """

    codec: TokenCodec
    is_binary: bool = False

    def takes(self, partial: Partial | None) -> bool:
        """Return True if the beginning of an answer is known as ids in the server's vocabulary."""
        return partial is not None and bool(partial.ids) and partial.vocabulary == self.codec.vocabulary

    def pack(self, request: Request, partial: Partial) -> Request:
        """Return the request with the packed ids of ``partial``; bytes become base64 in JSON.

        Args:
            request: the request without its ``partial``.
            partial: the answer's beginning, which ``takes`` has accepted.
        """
        ids = partial.ids or ()
        frame = self.codec.encode_short(ids) if self.is_binary else self.codec.encode(ids)
        return replace(request, extra={**request.extra, PACKED_FIELD: frame})


def is_client_error(status: int) -> bool:
    """Return True for a 4xx status that means a bad request rather than a problem with the key, payment, address, time or load."""
    return 400 <= status < 500 and status not in _OTHER_REASONS


def is_refused_form(call: StreamCall, status: int) -> bool:
    """Return True if MessagePack may be why a call got this status.

    A gateway that reads bodies may know only JSON; it replies with 400, 406, 415 or 422.
    """
    if call.headers.get("Content-Type") == MSGPACK:
        return is_client_error(status)
    return call.codec is not None and status in {406, 415}


def smaller(packed: StreamCall, text: StreamCall) -> StreamCall:
    """Return the call with fewer bytes on the wire, headers and body together; the packed one if they are equal."""
    return packed if _wire_size(packed) <= _wire_size(text) else text


def _wire_size(call: StreamCall) -> int:
    """Return the size of a call in bytes, without the part that is the same for every call to its server."""
    size = len(call.body)
    lines = sum(len(name) + len(value.encode("utf-8", "surrogateescape")) for name, value in call.headers.items())
    return len(call.url.raw_path_qs) + lines + len(str(size)) + size
