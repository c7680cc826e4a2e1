"""The packaged model is found by looking, not by importing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import EngineError


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


def test_no_package_names_the_extra() -> None:
    with pytest.raises(EngineError, match=r"pip install 'streamco\[demo\]'.*got no such package"):
        packaged_model("there_is_no_such_package")


@pytest.mark.parametrize("files", [(), ("a.gguf", "b.gguf")])
def test_none_or_several_files_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]) -> None:
    name = package(tmp_path, monkeypatch, *files)
    with pytest.raises(EngineError, match=f"expected one GGUF file .* got {len(files)} files"):
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
