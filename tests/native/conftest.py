"""Every leaf's tests run over both twins; the compiled one is skipped, with a reason, where it isn't built or not wanted."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

from streamco import _native

TWINS = ["native", "python"]


def load_twin(leaf: str, twin: str) -> ModuleType:
    """The module of one twin of a leaf."""
    if twin == "python":
        return import_module(f"streamco._native.{leaf}_py")
    if not _native.HAS_NATIVE:
        pytest.skip("the compiled leaves are not built, or STREAMCO_NO_NATIVE is set")
    return import_module(f"streamco._native.{leaf}")


@pytest.fixture(scope="module", params=TWINS)
def nodetap(request: pytest.FixtureRequest) -> ModuleType:
    return load_twin("nodetap", request.param)


@pytest.fixture(scope="module", params=TWINS)
def pacedring(request: pytest.FixtureRequest) -> ModuleType:
    return load_twin("pacedring", request.param)


@pytest.fixture(scope="module", params=TWINS)
def ring(request: pytest.FixtureRequest) -> ModuleType:
    return load_twin("ring", request.param)


@pytest.fixture(scope="module", params=TWINS)
def tokenpack(request: pytest.FixtureRequest) -> ModuleType:
    return load_twin("tokenpack", request.param)


@pytest.fixture(scope="module", params=TWINS)
def topk(request: pytest.FixtureRequest) -> ModuleType:
    return load_twin("topk", request.param)
