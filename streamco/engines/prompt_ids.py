"""Token ids of the text before the next token: the prompt, and the beginning of an answer that another model wrote.

A model writes its answer after the prompt's last token, and no token holds parts of both. So the beginning of an answer that comes as text
is tokenised separately, not together with the prompt. That gives the ids that the model would have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamco.engines.base import Engine, TokenVocabulary
from streamco.engines.chat_template import plain_messages

__all__ = ["answer_ids", "chat_ids", "pending_bytes", "prompt_ids"]

Messages = Sequence[Mapping[str, Any]]

_LONG = 4096  # characters beyond which a text is first cut at its control tokens
_SPAN = 8  # tokens to look at; an incomplete code point has at most three bytes, and most tokens at least one


def prompt_ids(engine: Engine, text: str, *, special: bool = False) -> list[int]:
    """Return the token ids of a prompt's text, with the model's begin token first if the model uses one. Thread-safe.

    Args:
        engine: the engine; its vocabulary is used.
        text: the prompt, or the text that a chat template made from messages.
        special: turn the text of control tokens into those tokens. Many chat templates write the begin token; it isn't added twice.
    """
    if not special:
        return engine.tokenize(text, bos=True)
    tokens = engine.control_tokens
    if tokens is not None and len(text) > _LONG:  # llama.cpp takes quadratic time for many control tokens, 30 s for a megabyte of them
        return _begun(engine, tokens.tokenize(text, "", engine.tokenize))
    return _begun(engine, engine.tokenize(text, special=True))


def chat_ids(engine: Engine, messages: Messages, render: Callable[[Messages], str] | None = None) -> list[int]:
    """Return the token ids of messages, rendered by the chat template. Thread-safe.

    Control tokens come only from the template: their texts in messages are tokenised as plain text.

    Args:
        engine: the engine; its template and vocabulary are used.
        messages: the messages.
        render: returns the template's text for messages; None for ``Engine.apply_template``.

    Raises:
        EngineError: the model has no chat template, or it refused these messages.
    """
    render = render or engine.apply_template
    tokens = engine.control_tokens
    if tokens is None:
        return prompt_ids(engine, render(messages), special=True)
    marked, mark = tokens.mark(plain_messages(messages))
    text = render(marked)
    if not mark:
        return prompt_ids(engine, text, special=True)
    return _begun(engine, tokens.tokenize(text, mark, engine.tokenize))


def _begun(engine: Engine, ids: list[int]) -> list[int]:
    begin = engine.tokenize("", bos=True)
    return ids if ids[: len(begin)] == begin else begin + ids


def answer_ids(engine: Engine, text: str, *, special: bool = False) -> list[int]:
    """Return the token ids of an answer's beginning, which go after the ids of the prompt.

    Some vocabularies (SentencePiece with a dummy prefix) put a space before a text's first word, but not after a line break. With these
    the text is tokenised after a line break, and the ids of the line break are left out.

    Args:
        engine: the engine; its vocabulary is used.
        text: whole code points, including leading spaces.
        special: turn the text of control tokens into those tokens.
    """
    ids = engine.tokenize(text, special=special)
    data = text.encode("utf-8", "surrogatepass")
    if engine.detokenize(ids) == data:
        return ids
    begin = engine.tokenize("\n", special=special)
    whole = engine.tokenize("\n" + text, special=special)
    rest = whole[len(begin) :]
    return rest if whole[: len(begin)] == begin and engine.detokenize(rest) == data else ids


def pending_bytes(engine: TokenVocabulary, ids: Sequence[int]) -> bytes:
    """Return the bytes at the end of these tokens that begin a code point without ending it, or b"" if there are none.

    The text of that code point comes with the tokens that follow.
    """
    tail = engine.detokenize(ids[-_SPAN:])[-3:]
    for length in range(1, len(tail) + 1):
        byte = tail[-length]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # the first of two, three or four bytes
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return tail[-length:] if length < size else b""
    return b""
