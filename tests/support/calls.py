"""Tool calls as tests compare them."""

from __future__ import annotations

from streamco.openai_types import FunctionCall, ToolCall


def function_of(call: ToolCall) -> FunctionCall:
    """The function of a call that is none of a custom tool."""
    assert call.function is not None
    return call.function
