"""How many random examples a test tries: few by default, many with ``make thorough``."""

from __future__ import annotations

import os

__all__ = ["IS_THOROUGH", "PROFILE", "examples"]

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
IS_THOROUGH = PROFILE == "thorough"


def examples(count: int, *, thorough: int) -> int:
    """Return ``count``, or ``thorough`` if this is a thorough run."""
    return thorough if IS_THOROUGH else count
