"""An OpenAI-compatible HTTP server over one engine, as ``streamco serve`` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamco.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamco.server.app import make_app, make_runner, serving
    from streamco.server.options import ServeOptions
    from streamco.server.verify.options import VerifyOptions
    from streamco.wire.openai.msgpack_body import encode_msgpack
    from streamco.wire.token_frames import TokenCodec

__all__ = ["ServeOptions", "TokenCodec", "VerifyOptions", "encode_msgpack", "make_app", "make_runner", "serving"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "streamco.server.app": ("make_app", "make_runner", "serving"),
        "streamco.server.options": ("ServeOptions",),
        "streamco.server.verify.options": ("VerifyOptions",),
        "streamco.wire.openai.msgpack_body": ("encode_msgpack",),
        "streamco.wire.token_frames": ("TokenCodec",),
    },
)
