"""Helpers for the adapters, which read an answer's chunks and its report."""

from __future__ import annotations

from typing import Any

import msgspec

from streamco.core.report import Report
from streamco.openai_types import ChoiceDelta, ToolCallDelta

__all__ = ["ToolCallNumbers", "report_fields", "thinking_of"]


def thinking_of(delta: ChoiceDelta) -> str:
    """Return the thinking in a delta, under either of its names, or "" if there is none."""
    return delta.reasoning_content or delta.reasoning or ""


def report_fields(report: Report | None) -> dict[str, Any]:
    """Return a report as values that JSON can represent, or {} if there is no report."""
    fields: dict[str, Any] = {} if report is None else msgspec.to_builtins(report)
    return fields


class ToolCallNumbers:
    """Numbers the tool calls of an answer, because some servers send no index for them."""

    def __init__(self) -> None:
        self._last = -1

    def number(self, piece: ToolCallDelta) -> int:
        """Return the number of the call that a piece belongs to: the piece's index. If it has none, an id begins the next call."""
        if piece.index is not None:
            self._last = piece.index
        elif piece.id is not None or self._last < 0:
            self._last += 1
        return self._last
