"""Models of the real pair are found, derived once, or the test that asks for them is skipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.fetch_models import MODELS
from streamco.engines.llamacpp.bundled_model import packaged_model
from tests.support.data import ROOT
from tests.support.pair import pair_model

DERIVE = """
from streamco.engines.llamacpp import gguf
from tests.support.pair import pair_model
real = gguf.quantize
def counted(source, target, kind, layers):
    with open("derived", "a") as file:
        file.write("once\\n")
    return real(source, target, kind, layers)
gguf.quantize = counted
print(pair_model("0.5B", "Q2_K"))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of this user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "streamco" / "models"
    folder.mkdir(parents=True)
    return folder


def test_a_test_without_the_pair_is_skipped_with_the_command_that_fetches_it(cache: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"{MODELS['1.5B'].file} is not in {cache}: `make models` fetches it"):
        pair_model("1.5B", "Q4_0")
    assert list(cache.iterdir()) == []


@pytest.mark.model
def test_two_processes_derive_a_model_once(cache: Path, tmp_path: Path) -> None:
    (cache / MODELS["0.5B"].file).symlink_to(packaged_model())
    words = [sys.executable, "-c", DERIVE]
    environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    started = [subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=100)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert said[0] == said[1]
    assert Path(said[0].strip()).is_file()
    assert (tmp_path / "derived").read_text() == "once\n"
