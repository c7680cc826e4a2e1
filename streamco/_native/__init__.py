"""Compiled modules and their pure-Python twins. Only this module chooses between them.

The twins are used if ``STREAMCO_NO_NATIVE=1`` is set in the environment, or if the extensions were not built. Either all compiled modules
are used, or none.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from streamco._native.ring_py import ACCEPTED, CLOSED, FILLED, FULL, WAKE

__all__ = [
    "ACCEPTED",
    "CLOSED",
    "FILLED",
    "FULL",
    "HAS_NATIVE",
    "IS_PURE_WANTED",
    "WAKE",
    "WHY_PURE",
    "NodeTap",
    "PacedRing",
    "Ring",
    "argmax",
    "copy_events",
    "log_probability",
    "pack",
    "packed_size",
    "row_at",
    "sample_row",
    "scan_events",
    "softmax_into",
    "top_k",
    "unpack",
    "unpack_into",
]


def _why_pure() -> str:
    if IS_PURE_WANTED:
        return "STREAMCO_NO_NATIVE is set"
    try:
        for leaf in ("nodetap", "pacedring", "ring", "ssescan", "tokenpack", "topk"):
            import_module(f"{__name__}.{leaf}")
    except ImportError as error:
        return str(error)
    return ""


IS_PURE_WANTED = os.environ.get("STREAMCO_NO_NATIVE", "") not in {"", "0"}
WHY_PURE = _why_pure()
"""The reason why the twins are used, or "" if the compiled modules are used."""
HAS_NATIVE = not WHY_PURE

if TYPE_CHECKING or not HAS_NATIVE:
    from streamco._native.nodetap_py import NodeTap
    from streamco._native.pacedring_py import PacedRing
    from streamco._native.ring_py import Ring
    from streamco._native.ssescan_py import copy_events, scan_events
    from streamco._native.tokenpack_py import pack, packed_size, unpack, unpack_into
    from streamco._native.topk_py import argmax, log_probability, row_at, sample_row, softmax_into, top_k
else:
    from streamco._native.nodetap import NodeTap
    from streamco._native.pacedring import PacedRing
    from streamco._native.ring import Ring
    from streamco._native.ssescan import copy_events, scan_events
    from streamco._native.tokenpack import pack, packed_size, unpack, unpack_into
    from streamco._native.topk import argmax, log_probability, row_at, sample_row, softmax_into, top_k
