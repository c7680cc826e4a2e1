"""Unfinished Markdown: which blocks are closed, and how to show the open one.

A model's answer is Markdown cut off at an arbitrary position. Two rules keep it steady on the screen:

- A top-level block is *closed* once another has begun after it. Closed blocks are rendered only once.
- The open block is rendered as if it ended properly. Open emphasis and code are closed. A line that is only the beginning of
  a marker (``*``, ``#``, two of three backticks) is held back. A link shows its text before its address has come.
"""

from __future__ import annotations

import re
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ["blocks", "closed_end", "complete", "is_in_fence", "parse"]

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])  # html off: <think> and <div> are shown as text

_MARKER_LINE = re.compile(r"[ \t>]*(?:[-+*=_~`#|:<]+|\d{1,3}[.)]?)?[ \t]*")  # may become a list, heading, fence, rule, table or setext line
_FENCE = re.compile(r"[ \t>]*(?:(?:[-+*]|\d{1,9}[.)])[ \t]+)?(`{3,}|~{3,})")
_INLINE_START = re.compile(r"\n[ \t>]*(?:[-+*]|\d{1,9}[.)])[ \t]|\n[ \t>]*\n|\|(?!.*\n)")  # emphasis never reaches back across these
_DANGLING_LINK = re.compile(r"!?\[([^\]\[\n]*)(?:\]\([^)\s]*)?$")
_INLINE = re.compile(r"\\.|`+|\*\*|\*|~~|__|_", re.DOTALL)


def parse(text: str) -> list[Token]:
    """Parse Markdown into tokens. A single newline is a line break, as in chat programs."""
    tokens = _PARSER.parse(text)
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type, child.tag = "hardbreak", "br"
    return tokens


def blocks(text: str) -> list[str]:
    """Return the source of each top-level block of a text. Joined, they give the text again."""
    starts = _block_starts(text)
    bounds = [0, *starts[1:], len(text)] if text else []
    return [text[begin:end] for begin, end in pairwise(bounds)]


def closed_end(text: str) -> int:
    """Return the offset of the open block. Everything before it stays as it is, whatever comes next."""
    starts = _block_starts(text)
    return starts[-1] if len(starts) > 1 else 0


def _block_starts(text: str) -> list[int]:
    lines = [0, *(match.end() for match in re.finditer("\n", text))]
    return [lines[token.map[0]] for token in _PARSER.parse(text) if token.level == 0 and token.map and token.nesting >= 0]


def complete(text: str) -> str:
    """Return the open block as if it ended here, with its markers closed, to display it while more is coming."""
    head, _, last = text.rpartition("\n")
    if is_in_fence(text):
        is_closing = last.strip() in {"`", "``", "~", "~~"}  # most likely the first two of three
        return head if is_closing else text
    if _MARKER_LINE.fullmatch(last):
        return head
    start = max((match.end() for match in _INLINE_START.finditer(text)), default=0)
    return text[:start] + _close_inline(text[start:])


def is_in_fence(text: str) -> bool:
    """Return True if a fenced code block is open at the end of the text."""
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if not match:
            continue
        if not fence:
            fence = match[1]
        elif match[1].startswith(fence) and not line[match.end() :].strip():
            fence = ""
    return bool(fence)


def _close_inline(text: str) -> str:
    """Close emphasis and code that is open at the end of a paragraph, innermost first."""
    opened = _open_marks(text)
    if not any(mark.startswith("`") for mark in opened):
        text = _DANGLING_LINK.sub(r"\1", text)
    if not opened:
        return text
    body = text.rstrip()
    if body.endswith(opened[-1]):  # the marker has come, but its text hasn't
        body = body[: -len(opened.pop())].rstrip()
    return body + "".join(reversed(opened))


def _open_marks(text: str) -> list[str]:
    opened: list[str] = []
    for match in _INLINE.finditer(text):
        mark = match[0]
        if mark.startswith("\\"):
            continue
        if opened and opened[-1].startswith("`"):  # inside code, only its end has a meaning
            if mark == opened[-1]:
                opened.pop()
        elif mark in opened:
            del opened[opened.index(mark) :]
        elif mark.startswith("`") or _may_open(text, match.start(), match.end()):
            opened.append(mark)
    return opened


def _may_open(text: str, start: int, end: int) -> bool:
    """Return True if a marker may open emphasis. This is stricter than CommonMark, because ``2*3`` and ``a * b`` are meant literally."""
    before, after = text[start - 1 : start], text[end : end + 1]
    return not before.isalnum() and not after.isspace()
