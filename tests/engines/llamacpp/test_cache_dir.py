"""The cache folder follows the platform's rules, and files are replaced whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamco.engines.llamacpp.cache_dir import cache_folder, machine_key, replaced_file, write_whole


def test_the_variable_says_where_and_the_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("models", "small") == tmp_path / "streamco" / "models" / "small"
    assert cache_folder("models", "small").is_dir()


@pytest.mark.parametrize("value", ["", "relative/path"])
@pytest.mark.parametrize(("platform", "place"), [("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")])
def test_without_a_usable_variable_the_platforms_own_place_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, platform: str, place: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == tmp_path / place / "streamco"


def test_windows_own_variable_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(sys, "platform", "win32")
    assert cache_folder() == tmp_path / "local" / "streamco"


def test_a_file_in_the_way_is_the_callers_to_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streamco").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(OSError, match="streamco"):
        cache_folder("models")


def test_a_key_depends_on_the_machine_the_build_the_file_and_what_is_added(tmp_path: Path) -> None:
    library = SimpleNamespace(__file__=str(tmp_path / "llama_cpp" / "__init__.py"), __version__="1")
    (tmp_path / "llama_cpp" / "lib").mkdir(parents=True)
    build = tmp_path / "llama_cpp" / "lib" / "libggml.so"
    build.write_bytes(b"one")
    model, cpu = tmp_path / "model.gguf", tmp_path / "cpuinfo"
    model.write_bytes(b"GGUF")
    cpu.write_text("model name: one\n")
    keys = [machine_key(model, library, 1, cpuinfo=cpu), machine_key(model, library, 2, cpuinfo=cpu)]
    cpu.write_text("model name: other\n")
    keys.append(machine_key(model, library, 1, cpuinfo=cpu))
    model.write_bytes(b"GGUF2")
    keys.append(machine_key(model, library, 1, cpuinfo=cpu))
    build.write_bytes(b"another")
    keys.append(machine_key(model, library, 1, cpuinfo=cpu))
    assert len(set(keys)) == len(keys)
    assert machine_key(model, library, 1, cpuinfo=cpu) == keys[-1]
    assert machine_key(model, library, cpuinfo=tmp_path / "nothing")


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    target = tmp_path / "one.json"
    write_whole(target, b"first")
    write_whole(target, b"second", is_synced=True)
    assert (target.read_bytes(), names(tmp_path)) == (b"second", ["one.json"])


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "one.json"
    write_whole(target, b"old")

    def fail() -> None:
        with replaced_file(target) as temporary:
            temporary.write_bytes(b"ne")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (target.read_bytes(), names(tmp_path)) == (b"old", ["one.json"])


def test_a_block_that_writes_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replaced_file(tmp_path / "one.json"):
        pass


def test_two_writers_of_a_file_have_files_of_their_own(tmp_path: Path) -> None:
    target = tmp_path / "one.json"
    with replaced_file(target) as one, replaced_file(target) as other:
        assert one != other
        one.write_bytes(b"one")
        other.write_bytes(b"other")
    assert (target.read_bytes(), names(tmp_path)) == (b"one", ["one.json"])


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "one.json"
    write_whole(target, b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(target, b"new", is_synced=True)
    assert (target.read_bytes(), names(tmp_path)) == (b"old", ["one.json"])


@pytest.mark.skipif(sys.platform == "win32", reason="no file modes")
def test_only_the_owner_may_read_a_private_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "mine", b"secret", is_private=True)
    assert (tmp_path / "mine").stat().st_mode & 0o077 == 0
