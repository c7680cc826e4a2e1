"""Token ids that a client sends in frames (``wire.tokens``), so that nothing is tokenised twice."""

from __future__ import annotations

from streamco.engines.base import Engine
from streamco.server.http_errors import invalid
from streamco.wire.token_frames import TokenCodec, TokenFrameError, TokenVocabularyError

__all__ = ["unpack_ids"]


def unpack_ids(engine: Engine, field: str, frame: bytes) -> list[int]:
    """The ids of one frame.

    Args:
        engine: whose vocabulary they must be of.
        field: of the request; told in errors.
        frame: as ``TokenCodec.encode`` makes it.

    Raises:
        RequestError: 400, naming the field: no frame, a damaged one, or one of another vocabulary (code ``vocabulary_mismatch``).
    """
    try:
        return TokenCodec(engine.info.vocabulary, engine.info.vocabulary_size).decode(frame)
    except TokenVocabularyError as error:
        raise invalid(field, str(error), code="vocabulary_mismatch") from error
    except TokenFrameError as error:
        raise invalid(field, str(error)) from error
