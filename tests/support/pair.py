"""The real pair of models, Qwen2.5-Coder 0.5B and 1.5B Instruct, for tests marked ``pair``: in the cache folder after ``make models``."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from bench.fetch_models import MODELS, fetched
from streamco.engines.llamacpp.cache_dir import cache_folder
from streamco.engines.llamacpp.gguf import derived

__all__ = ["pair_model"]


def pair_model(name: str, kind: str | None = None) -> Path:
    """Return the path of a model of the pair; skips the calling test, with a reason, when it isn't there.

    Args:
        name: ``0.5B`` or ``1.5B``.
        kind: another quantisation than its own Q4_K_M. It is derived into the cache folder once: a second process waits for the first.
    """
    path = fetched(name)
    if path is None:
        pytest.skip(f"{MODELS[name].file} is not in {cache_folder('models')}: `make models` fetches it")
    if kind is None:
        return path
    with (cache_folder("models") / f".{path.stem}.{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return derived(path, kind)
