"""Where recorded data lies: $STREAMCO_DATA, by default ../shared/data beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def data_path(*parts: str) -> Path:
    """A file or folder of the recorded data; skips the calling test, with a reason, when it isn't there."""
    base = Path(os.environ.get("STREAMCO_DATA") or ROOT.parent / "shared" / "data")
    path = base.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"recorded data not here: {path}", allow_module_level=True)
    return path
