"""The tool calls of an answer from their pieces, as real servers send them."""

from __future__ import annotations

from streamco.openai_types import ToolCallDelta, further_fields
from streamco.wire.openai.further_parts import FurtherParts

__all__ = ["CallParts", "ToolCalls"]


class CallParts:
    """One tool call so far; ``arguments`` are the pieces of its JSON text."""

    def __init__(self) -> None:
        self.id = ""
        self.kind = ""
        self.name = ""
        self.arguments: list[str] = []
        self.further = FurtherParts(are_deltas=False)
        self.function_further = FurtherParts(are_deltas=False)


class ToolCalls:
    """The tool calls in deltas as real servers send them, in the order in which they began.

    A delta belongs to the call with its index. Without an index it belongs to the call with its id, without either to the last call.
    A new call begins with a new id on a known index, because some servers number every parallel call 0. Without index and id a new call
    begins with a name after arguments.
    """

    def __init__(self) -> None:
        self.calls: list[CallParts] = []
        self._by_index: dict[int, CallParts] = {}
        self._by_id: dict[str, CallParts] = {}

    def add(self, delta: ToolCallDelta) -> CallParts:
        """Add a piece, and return the call that it belongs to."""
        call = self._find(delta) or self._begin()
        if delta.index is not None:
            self._by_index[delta.index] = call
        if delta.id and not call.id:
            call.id = delta.id
            self._by_id.setdefault(delta.id, call)
        call.kind = delta.type or call.kind
        call.further.add(further_fields(delta))
        function = delta.function
        if function is None:
            return call
        call.function_further.add(further_fields(function))
        if function.name and function.name != call.name:  # some servers repeat the name, some split it
            call.name += function.name
        if function.arguments:
            call.arguments.append(function.arguments)
        return call

    def _find(self, delta: ToolCallDelta) -> CallParts | None:
        if delta.index is not None:
            call = self._by_index.get(delta.index)
            return None if call is not None and delta.id and call.id and delta.id != call.id else call
        if delta.id:
            return self._by_id.get(delta.id)
        last = self.calls[-1] if self.calls else None
        has_new_name = delta.function is not None and bool(delta.function.name)
        return None if last is not None and last.arguments and has_new_name else last

    def _begin(self) -> CallParts:
        self.calls.append(CallParts())
        return self.calls[-1]
