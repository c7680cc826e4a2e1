"""Operators that turn well-formed streams into ones that real servers send; each leaves it clear what the right reading is."""

from __future__ import annotations

from tests.mutants.operators import bodies, calls, deltas, events, reasons, typed, usage
from tests.mutants.operators.registry import OPERATORS, Operator

__all__ = ["OPERATORS", "Operator", "bodies", "calls", "deltas", "events", "reasons", "typed", "usage"]
