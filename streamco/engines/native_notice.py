"""A warning, once per process, that the compiled extensions are missing and their slower Python twins run."""

from __future__ import annotations

import logging
from functools import cache

from streamco import _native

__all__ = ["native_state", "warn_if_pure"]

_log = logging.getLogger("streamco")


def native_state() -> str:
    """Return a phrase that says whether the compiled extensions are used, and if not, why."""
    if _native.HAS_NATIVE:
        return "compiled extensions"
    return f"pure Python: {_native.WHY_PURE}"


@cache
def warn_if_pure() -> None:
    """Log the warning, unless the compiled extensions are used or ``STREAMCO_NO_NATIVE`` turned them off. Later calls do nothing."""
    if not _native.HAS_NATIVE and not _native.IS_PURE_WANTED:
        _log.warning(
            "the compiled extensions are not built (%s): pure Python runs instead, which is slower; "
            "to build them, reinstall streamco where there is a C compiler and Python's header files",
            _native.WHY_PURE,
        )
