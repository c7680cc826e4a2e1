"""``streamco doctor``: what it says of this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamco.cli import doctor
from streamco.cli.main import main
from streamco.engines.llamacpp import library, prebuilt
from streamco.errors import EngineError


@pytest.mark.model
def test_it_names_the_library_and_measures_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("streamco   ")
    assert re.search(r"^llama.cpp  0\.3\.\d+, llama-cpp-python", said, re.MULTILINE)
    assert re.search(r"reads \d+ tokens/s, writes \d+ tokens/s with 1 thread,", said)


@pytest.mark.model
def test_of_a_prebuilt_library_it_says_what_it_lacks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if prebuilt.find_prebuilt() is None:
        pytest.skip("not installed: xllamacpp")
    monkeypatch.setattr(library, "_library", None)
    monkeypatch.setenv(library.VARIABLE, "prebuilt")
    monkeypatch.setattr(doctor, "_processor_flags", lambda: {"avx512f", "fpu"})
    monkeypatch.setattr(doctor, "_speed", lambda path, threads: f"{threads} threads")
    assert main(["doctor", "--threads", "3"]) == 0
    said = capsys.readouterr().out
    assert f"llama.cpp  xllamacpp {prebuilt.VERSION}, compiled by others: " in said
    assert "it lacks llama_model_quantize, llama_model_quantize_default_params" in said
    assert "this processor also has avx512f: pip install 'streamco[llama]'" in said
    assert "model      3 threads" in said


def test_without_a_library_it_fails_and_says_how_to_get_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise EngineError("pip install 'streamco[prebuilt]' brings one")

    monkeypatch.setattr(library, "load_library", absent)
    assert main(["doctor"]) == 1
    assert "llama.cpp  none: pip install 'streamco[prebuilt]' brings one" in capsys.readouterr().out


def test_a_model_that_cannot_be_decoded_is_a_failure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    assert main(["doctor", "--device", str(tmp_path / "broken.gguf")]) == 1
    assert "model      broken.gguf: " in capsys.readouterr().out


def test_extras_that_are_missing_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", {"no_such_module": ("cli", "the chat"), "sys": ("x", "y")})
    monkeypatch.setattr(doctor, "_tell_llama", lambda _args: True)
    assert main(["doctor"]) == 0
    assert "extras     not installed: [cli] for the chat" in capsys.readouterr().out
