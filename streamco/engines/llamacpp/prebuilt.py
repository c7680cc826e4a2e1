"""Builds of llama.cpp that somebody else has compiled, and the checks that come before one is called.

One package on PyPI is known: xllamacpp, whose extension module exports llama.cpp's own functions. It is never imported. Each of its
versions has a different llama.cpp, so only one version is accepted, and only files with these SHA-256 digests. Then a child process loads
and calls the library, because it may need instructions that this processor lacks. The layout of its structs is compared with the one that
``binding`` declares. Finally, each model is decoded in a child process once (``amx_probe.check_decoding``).

A library that the user names isn't checked by its digest, but all the other checks apply.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

from streamco.engines.llamacpp.binding import COMMIT, Binding, layout_faults
from streamco.engines.llamacpp.cache_dir import machine_key
from streamco.engines.llamacpp.trials import outcome
from streamco.errors import EngineError

__all__ = ["PACKAGE", "VERSION", "find_prebuilt", "main", "open_named", "open_prebuilt"]

PACKAGE, VERSION = "xllamacpp", "2026.9.11063"
# By system and processor. The Windows build exports none of llama.cpp's functions.
_DIGESTS = {
    ("linux", "x86_64"): "d0701169e19b743c1cf4fb995e8bf7f37b29a2107f7e1dd6f8c17dde6e2275c7",
    ("linux", "aarch64"): "6ad32fd99eb5a973e5171ec1fea4f9995528d0a9ace48701f491d4c5dacd86c4",
    ("darwin", "arm64"): "74ab82ecb43aa4014b63b683a86c3a1c3fc66f0e91f9d79894b10f8a706ccb90",
}


def find_prebuilt() -> Path | None:
    """Return the path of the known package's library, or None if the package isn't installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    return next((path for folder in folders for path in sorted(folder.glob(f"{PACKAGE}*.so"))), None)


def open_prebuilt() -> Binding:
    """Return the library of the known package.

    Raises:
        EngineError: it isn't installed, isn't the known file, or fails a check.
    """
    path = find_prebuilt()
    if path is None:
        raise EngineError(f"llama.cpp: needs the package {PACKAGE}=={VERSION}: pip install 'streamco[prebuilt]'")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _DIGESTS.get((sys.platform, platform.machine())):
        raise EngineError(
            f"llama.cpp: expected the library of {PACKAGE} {VERSION} for {sys.platform} on {platform.machine()}, got a file that isn't "
            f"known, with SHA-256 {digest}: {path}"
        )
    return _open_checked(path, f"{PACKAGE} {VERSION}")


def open_named(path: Path) -> Binding:
    """Return the library that a user named.

    Raises:
        EngineError: there is no such file, or it fails a check.
    """
    if not path.is_file():
        raise EngineError(f"llama.cpp: expected a shared library in STREAMCO_LLAMA_LIBRARY, or compiled or prebuilt, got {str(path)!r}")
    return _open_checked(path.resolve(), path.name)


def _open_checked(path: Path, version: str) -> Binding:
    key = machine_key(path, SimpleNamespace(__file__=str(path), __version__=version), "layout", COMMIT)
    if outcome(key, [__name__, str(path)]) == "dies":
        raise EngineError(f"llama.cpp: expected a library that this processor can run, got {version}, which ends the process: {path}")
    binding = Binding(path, version)
    if faults := layout_faults(binding):
        more = f" and {len(faults) - 2} more" if len(faults) > 2 else ""
        raise EngineError(
            f"llama.cpp: expected a library with the structs of commit {COMMIT}, got {version} with others: {'; '.join(faults[:2])}{more}; "
            f"{path}"
        )
    return binding


def main(path: str) -> int:
    """Load a library and call it, in a child process before the parent does so. Return the exit status."""
    binding = Binding(Path(path), "")
    layout_faults(binding)
    binding.llama_backend_init()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
