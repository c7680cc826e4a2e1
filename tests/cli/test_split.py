from __future__ import annotations

from pathlib import Path

import pytest

from streamco.cli.main import main
from streamco.engines.llamacpp.model_parts import read_part
from tests.engines.llamacpp.test_model_parts import write_model


def test_the_parts_and_their_sizes_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m.gguf")
    assert main(["split", str(model), "--input-layers", "1", "--output", str(tmp_path / "parts")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in lines] == ["for the device", "for the server", "for the device"]
    assert all(" MB  " in line for line in lines)
    assert read_part(tmp_path / "parts" / "m.middle.gguf").first_layer == 1


def test_another_architecture_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m.gguf", "gemma")
    assert main(["split", str(model), "--output", str(tmp_path)]) == 1
    assert "expected one of the architectures llama, qwen2, got gemma" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["file", "file/folder"])
def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    model = write_model(tmp_path / "m.gguf")
    (tmp_path / "file").touch()
    assert main(["split", str(model), "--input-layers", "1", "--output", str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert f"--output: can't write the parts to {tmp_path / place}: " in error
