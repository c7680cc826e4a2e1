"""Building and installing: without a compiler the package works on the Python twins; a wheel holds what runs and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("Cython")
pytest.importorskip("setuptools")

ROOT = Path(__file__).parents[1]
BROKEN_COMPILER = "#!/bin/sh\necho 'ring.c:12:10: fatal error: Python.h: No such file or directory' >&2\nexit 1\n"
SHOW = "import streamco._native as native; print(native.HAS_NATIVE, native.__file__)"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as a clone has them, with nothing built."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy2(ROOT / name, folder / name)
    shutil.copytree(ROOT / "streamco", folder / "streamco", ignore=shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__"))
    return folder


@pytest.fixture(params=["no compiler", "a compiler without Python.h"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Variables of a machine that can't compile the leaves."""
    programs = tmp_path / "programs"
    programs.mkdir()
    if request.param != "no compiler":
        for name in ("gcc", "cc", "clang", "x86_64-linux-gnu-gcc"):
            (programs / name).write_text(BROKEN_COMPILER)
            (programs / name).chmod(0o755)
        (programs / "sh").symlink_to("/bin/sh")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("STREAMCO_") and key not in {"CC", "PYTHONPATH"}}
    return kept | {"PATH": str(programs)}


def build(sources: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", *words]
    return subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False, timeout=110)


def wheel_of(sources: Path, environment: dict[str, str], folder: Path) -> Path:
    run = build(sources, environment, "bdist_wheel", "--dist-dir", str(folder))
    assert run.returncode == 0, run.stdout + run.stderr
    return next(folder.glob("*.whl"))


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="PATH doesn't hide the compiler there")
def test_a_machine_that_can_not_compile_gets_the_python_twins(sources: Path, environment: dict[str, str], tmp_path: Path) -> None:
    wheel = wheel_of(sources, environment, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert "streamco/_native/ring_py.py" in names
    assert {f"streamco/proxy/page/{file}" for file in ("index.html", "page.css", "page.js", "icon.svg")} <= set(names)
    assert not [name for name in names if name.endswith((".so", ".c", ".h", ".pyx"))]
    run = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=tmp_path / "installed", env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    native, file = run.stdout.split()
    assert native == "False"
    assert Path(file).is_relative_to(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="PATH doesn't hide the compiler there")
def test_a_build_that_must_be_native_fails_there(sources: Path, environment: dict[str, str], tmp_path: Path) -> None:
    run = build(sources, environment | {"STREAMCO_BUILD_NATIVE": "yes"}, "build_ext", "--build-lib", str(tmp_path / "lib"))
    assert run.returncode != 0
    assert "gcc" in run.stdout + run.stderr


def test_an_index_page_has_no_link_that_only_works_in_a_clone(sources: Path, tmp_path: Path) -> None:
    wheel = wheel_of(sources, {**os.environ, "STREAMCO_BUILD_NATIVE": "no"}, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as archive:
        page = archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    assert "Description-Content-Type: text/markdown" in page
    assert "# streamco" in page
    assert "two_servers.py" in page
    assert not re.findall(r"\]\((?!https?:|#)[^)]*\)", page)
    assert "](https://github.com/streamco/streamco/blob/main/docs/proxy.md)" in page
    assert "](https://github.com/streamco/streamco/raw/main/docs/demo.svg)" in page


def test_an_unknown_way_to_build_is_refused(sources: Path) -> None:
    run = build(sources, {**os.environ, "STREAMCO_BUILD_NATIVE": "true"}, "--version")
    assert run.returncode != 0
    assert "STREAMCO_BUILD_NATIVE: expected one of auto, yes, no, got 'true'" in run.stderr


def test_the_demo_needs_few_packages_and_none_that_is_compiled() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    found = {re.split(r"[\[>=<; ]", each)[0] for name in ("prebuilt", "demo") for each in extras[name]}
    assert found == {"streamco", "xllamacpp", "llguidance", "jinja2", "rich", "prompt_toolkit"}
