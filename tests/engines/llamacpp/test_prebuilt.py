"""Which llama.cpp is loaded, and what a library has to pass before it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamco.engines.llamacpp import library, prebuilt, trials
from streamco.engines.llamacpp.binding import Binding
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.errors import EngineError
from tests.engines.llamacpp.test_binding import compiled


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_library", None)


def known() -> Path:
    """The library of the known package; skips without it."""
    path = prebuilt.find_prebuilt()
    if path is None:
        pytest.skip(f"not installed: {prebuilt.PACKAGE}")
    return path


def test_the_known_package_is_taken_and_nothing_of_it_imported() -> None:
    known()
    found = prebuilt.open_prebuilt()
    assert isinstance(found, Binding)
    assert found.__version__ == f"{prebuilt.PACKAGE} {prebuilt.VERSION}"
    assert prebuilt.PACKAGE not in sys.modules


def test_another_file_under_the_known_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = compiled(tmp_path)
    monkeypatch.setattr(prebuilt, "find_prebuilt", lambda: other)
    with pytest.raises(EngineError, match=r"got a file that isn't known, with SHA-256 [0-9a-f]{64}"):
        prebuilt.open_prebuilt()


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuilt, "find_prebuilt", lambda: None)
    with pytest.raises(EngineError, match=r"pip install 'streamco\[prebuilt\]'"):
        prebuilt.open_prebuilt()


def test_a_named_library_with_another_layout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, str(compiled(tmp_path, context_flags=9)))
    with pytest.raises(
        EngineError, match=r"expected a library with the structs of commit 0c1e57098, got libstub.so with others: llama_con"
    ):
        library.load_library()


def test_a_named_library_that_ends_its_process_is_refused_and_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compiled(tmp_path)
    commands: list[object] = []

    def dies(command: object) -> int:
        commands.append(command)
        return -4

    monkeypatch.setattr(trials, "_run", dies)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"expected a library that this processor can run, got libstub.so, which ends the process"):
            prebuilt.open_named(path)
    assert len(commands) == 1


def test_the_child_loads_and_calls_the_library(tmp_path: Path) -> None:
    assert prebuilt.main(str(compiled(tmp_path))) == 0


def test_a_name_that_is_no_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "/nowhere/libllama.so")
    with pytest.raises(EngineError, match=r"expected a shared library in STREAMCO_LLAMA_LIBRARY, or compiled or prebuilt, got '/nowhere/"):
        library.load_library()


def test_compiled_is_an_error_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "compiled")
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(EngineError, match=r"expected llama.cpp, got .*pip install 'streamco\[prebuilt\]'"):
        library.load_library()


ANSWER = """
import asyncio, sys, streamco

sys.modules["llama_cpp"] = None  # as if it weren't installed
client = streamco.Client(device=streamco.packaged_model())

async def main() -> None:
    async with client:
        stream = client.stream([{"role": "user", "content": "Count from one to five."}], temperature=0, max_tokens=24)
        print("".join([token.text async for token in stream]))

asyncio.run(main())
"""


@pytest.mark.model
def test_the_prebuilt_library_answers_as_the_compiled_one_does_where_that_is_missing(tmp_path: Path) -> None:
    known()
    packaged_model()
    environment = {name: value for name, value in os.environ.items() if name != library.VARIABLE} | {"XDG_CACHE_HOME": str(tmp_path)}
    texts = []
    for code in (ANSWER, ANSWER.replace('sys.modules["llama_cpp"] = None', "pass")):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120)
        texts.append(done.stdout)
    assert texts[0] == texts[1] != "\n"


@pytest.mark.model
def test_a_model_that_ends_the_child_is_not_decoded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamco.engines.llamacpp import amx_probe

    known()
    monkeypatch.setattr(amx_probe, "outcome", lambda *_arguments: "dies")
    path = packaged_model()
    with pytest.raises(EngineError, match=r"expected a llama.cpp that decodes it on this processor, got xllamacpp"):
        amx_probe.check_decoding(path, prebuilt.open_prebuilt(), False)


@pytest.mark.long
def test_the_next_version_of_the_package_is_refused_under_its_name_and_as_a_named_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, and crashes with a grammar."""
    target = tmp_path / "next"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), "xllamacpp==2026.10.11549"]
    if subprocess.run(command, capture_output=True, check=False, timeout=300).returncode:
        pytest.skip("no package index at hand")
    path = next((target / "xllamacpp").glob("*.so"))
    monkeypatch.setattr(prebuilt, "find_prebuilt", lambda: path)
    with pytest.raises(EngineError, match="a file that isn't known"):
        prebuilt.open_prebuilt()
    with pytest.raises(EngineError, match="with others: llama_context_default_params"):
        prebuilt.open_named(path)
