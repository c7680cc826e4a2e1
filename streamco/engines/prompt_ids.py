"""What stands before an answer, as tokens: its prompt, and its own beginning when somebody else made that.

A model writes its answer behind the prompt's last token; nothing of the two is ever merged into one token. So an answer's beginning that
comes as text is tokenised by itself and not together with the prompt: that gives the ids the model would have written.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamco.engines.base import Engine

__all__ = ["answer_ids", "open_bytes", "with_begin"]

_SPAN = 8  # tokens looked at; an unfinished code point has at most three bytes, and most tokens at least one


def with_begin(engine: Engine, ids: list[int]) -> list[int]:
    """Return the ids behind the model's begin token, if it wants one; many chat templates write it themselves, and one is enough."""
    begin = engine.tokenize("", bos=True)
    return ids if ids[: len(begin)] == begin else begin + ids


def answer_ids(engine: Engine, text: str, *, special: bool = False) -> list[int]:
    """Return the tokens of an answer's beginning, for a place behind the prompt's.

    Some vocabularies (SentencePiece with a dummy prefix) put a space before a text's first word. Their ids are taken from behind a line
    break, where they don't.

    Args:
        engine: whose vocabulary.
        text: whole code points, leading spaces included.
        special: take the text of control tokens for the tokens.
    """
    ids = engine.tokenize(text, special=special)
    data = text.encode("utf-8", "surrogatepass")
    if engine.detokenize(ids) == data:
        return ids
    begin = engine.tokenize("\n", special=special)
    behind = engine.tokenize("\n" + text, special=special)
    rest = behind[len(begin) :]
    return rest if behind[: len(begin)] == begin and engine.detokenize(rest) == data else ids


def open_bytes(engine: Engine, ids: Sequence[int]) -> bytes:
    """Return the bytes at the end of these tokens that only begin a code point: its text comes with the tokens behind them; b"": none."""
    tail = engine.detokenize(ids[-_SPAN:])[-3:]
    for length in range(1, len(tail) + 1):
        byte = tail[-length]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # the first of two, three or four
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return tail[-length:] if length < size else b""
    return b""
