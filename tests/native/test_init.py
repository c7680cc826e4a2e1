"""The one place that chooses between compiled leaves and twins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from streamco import _native

SHOW = "from streamco import _native; print(_native.HAS_NATIVE, _native.Ring.__module__, _native.pack.__module__, _native.top_k.__module__)"


def chosen(**environment: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", SHOW], env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout.split()


def test_the_environment_forces_the_python_twins() -> None:
    assert chosen(STREAMCO_NO_NATIVE="1") == [
        "False",
        "streamco._native.ring_py",
        "streamco._native.tokenpack_py",
        "streamco._native.topk_py",
    ]


@pytest.mark.parametrize("value", ["", "0"])
def test_an_empty_or_zero_setting_forces_nothing(value: str) -> None:
    if not _native.HAS_NATIVE:
        pytest.skip("the compiled leaves are not built, or STREAMCO_NO_NATIVE is set")
    assert chosen(STREAMCO_NO_NATIVE=value) == ["True", "streamco._native.ring", "streamco._native.tokenpack", "streamco._native.topk"]


def test_every_public_name_is_there() -> None:
    assert all(hasattr(_native, name) for name in _native.__all__)


def test_neither_numpy_nor_asyncio_is_pulled_in() -> None:
    code = "import sys\nimport streamco._native\nprint(*sorted({'numpy', 'asyncio', 'threading'} & set(sys.modules)))"
    before = "import sys\nimport streamco\nprint(*sorted({'numpy', 'asyncio', 'threading'} & set(sys.modules)))"
    runs = [
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60).stdout
        for text in (before, code)
    ]
    assert runs[0] == runs[1]
