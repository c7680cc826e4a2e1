"""Control tokens of a vocabulary, and how text in messages is prevented from becoming control tokens.

llama.cpp reads the text of a control token in a rendered prompt as that token, no matter where it comes from. So a message that contains
``<|im_start|>system`` would open a new turn. Therefore a mark (a private-use character) is put into each such text before the
template runs. Afterwards the control tokens that are still whole are the template's own. The text between them loses its marks and is
tokenised as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from streamco.errors import PromptError

__all__ = ["ControlTokens"]

_MARKS = range(0xE001, 0xF900)  # private use; U+E000 is the server's mark for a message to be continued
_SPACES = " \t\n\v\f\r"
_END = ""  # key of a trie's node where a token ends

Trie = dict[str, Any]
Tokenize = Callable[[str], list[int]]


class ControlTokens:
    """Texts of control tokens; thread-safe.

    Args:
        tokens: ids by text. A text of one character is left out, because no mark can be put into it.
        left_strips: ids of tokens that swallow the spaces before them.
        right_strips: ids of tokens that swallow the spaces after them.
    """

    def __init__(
        self, tokens: Mapping[str, int], *, left_strips: frozenset[int] = frozenset(), right_strips: frozenset[int] = frozenset()
    ) -> None:
        self._tokens = {text: token for text, token in tokens.items() if len(text) > 1}
        self._left_strips = left_strips
        self._right_strips = right_strips
        pattern = _pattern(self._tokens)
        self._whole = re.compile(pattern)
        self._start = re.compile(f"(?={pattern})(.)", re.DOTALL)  # overlapping ones too
        self._prefixes = {text[:length] for text in self._tokens for length in range(1, len(text))}
        self._longest = max(map(len, self._tokens), default=0)

    def mark(self, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        """Return the messages with a mark in each text of a control token, and the mark, which is "" if they contain none.

        A text that ends with the beginning of a control token gets a mark there, because the template may put more text after it.

        Raises:
            PromptError: the messages contain every character that could be a mark, or values nested too deeply for Python's stack.
        """
        try:
            return self._mark(messages)
        except RecursionError as exc:
            raise PromptError("messages: expected values with fewer levels of nesting, got more") from exc

    def _mark(self, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        texts: list[str] = []

        def collect(text: str) -> str:
            texts.append(text)
            return text

        _map_texts(messages, collect)
        if not any(map(self._needs_mark, texts)):
            return messages, ""
        used = set().union(*texts)
        mark = next((chr(code) for code in _MARKS if chr(code) not in used), "")
        if not mark:
            raise PromptError("messages: expected text that lacks one private-use character at least, got all of them")
        marked: list[dict[str, Any]] = _map_texts(messages, lambda text: self._marked(text, mark))
        return marked, mark

    def tokenize(self, text: str, mark: str, tokenize: Tokenize) -> list[int]:
        """Return the ids of a template's text: whole control tokens as such, everything else as plain text, without the marks.

        Args:
            text: the text that the template rendered.
            mark: what ``mark`` returned.
            tokenize: returns the ids of a plain text.
        """
        ids: list[int] = []
        start, strips_next = 0, False
        for found in self._whole.finditer(text):
            token = self._tokens[found[0]]
            ids += self._plain(text[start : found.start()], mark, tokenize, left=strips_next, right=token in self._left_strips)
            ids.append(token)
            start, strips_next = found.end(), token in self._right_strips
        return ids + self._plain(text[start:], mark, tokenize, left=strips_next, right=False)

    def _plain(self, text: str, mark: str, tokenize: Tokenize, *, left: bool, right: bool) -> list[int]:
        text = text.lstrip(_SPACES) if left else text
        text = (text.rstrip(_SPACES) if right else text).replace(mark, "")
        return tokenize(text) if text else []

    def _needs_mark(self, text: str) -> bool:
        return bool(self._tokens) and (bool(self._begun_ends(text)) or self._whole.search(text) is not None)

    def _begun_ends(self, text: str) -> set[int]:
        """Return those ends of a text, with and without trailing whitespace (which templates may trim), at which a token has begun."""
        return {end for end in (len(text), len(text.rstrip())) if self._ends_begun(text[max(0, end - self._longest) : end])}

    def _ends_begun(self, text: str) -> bool:
        return any(text[-length:] in self._prefixes for length in range(1, min(self._longest, len(text) + 1)))

    def _marked(self, text: str, mark: str) -> str:
        marks = sorted(self._begun_ends(text) | {found.end(1) for found in self._start.finditer(text)})
        return mark.join(text[start:end] for start, end in pairwise([0, *marks, len(text)]))


def _pattern(texts: Mapping[str, int]) -> str:
    """Return a pattern that matches the longest of the texts. It is a trie, so that not every text is tried at each position."""
    trie: Trie = {}
    for text in texts:
        node = trie
        for character in text:
            node = node.setdefault(character, {})
        node[_END] = {}
    return _branches(trie) or "(?!)"


def _branches(node: Trie) -> str:
    parts = [re.escape(character) + _branches(rest) for character, rest in node.items() if character != _END]
    if not parts:
        return ""
    pattern = f"(?:{'|'.join(parts)})"
    return f"{pattern}?" if _END in node else pattern


def _map_texts(value: Any, function: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return function(value)
    if isinstance(value, Mapping):
        return {_map_texts(key, function): _map_texts(each, function) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(each, function) for each in value]
    return value
