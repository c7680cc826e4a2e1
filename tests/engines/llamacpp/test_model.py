"""A real model's vocabulary and facts, and files that are not models."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.context import AbortFlag
from streamco.engines.llamacpp.library import collected_errors, load_library
from streamco.engines.llamacpp.model import LlamaModel
from streamco.errors import EngineError

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(engine: LlamaEngine) -> LlamaModel:
    return engine._model


def test_the_facts_are_the_models(engine: LlamaEngine) -> None:
    info = engine.info
    assert info.vocabulary_size == 49_152
    assert info.vocabulary.startswith("49152:")
    assert set(engine.tokenize("<|im_end|>", special=True)) <= info.end_ids
    assert (info.layers, info.width, info.heads, info.ffn_width) == (30, 576, 9, 1536)
    assert info.context_tokens == 512  # what it was opened with
    assert engine._model.info.context_tokens == 8192  # what it was trained for
    assert info.has_chat_template
    assert 130e6 < info.parameters < 140e6


@pytest.mark.long
def test_the_fingerprint_is_the_vocabularys_alone(model: LlamaModel) -> None:
    again = LlamaModel(model.path, repack=True)
    assert again.info.vocabulary == model.info.vocabulary
    again.close()


# this vocabulary lacks some control characters and the first bytes of rare planes
@given(st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=("Cc", "Cs")), max_size=80))
def test_text_comes_back_from_its_tokens(model: LlamaModel, text: str) -> None:
    assert model.detokenize(model.tokenize(text)) == text.encode("utf-8", "surrogatepass")


def test_control_tokens_are_read_only_when_asked_for_and_have_no_bytes(model: LlamaModel) -> None:
    marked = model.tokenize("<|im_start|>hi", special=True)
    assert len(marked) == 2
    assert model.token_bytes(marked[0]) == b""
    assert len(model.tokenize("<|im_start|>hi")) > 2
    assert marked[0] not in model.tokenize("<|im_start|>hi")


def test_ids_beyond_the_vocabulary_have_no_bytes(model: LlamaModel) -> None:
    assert model.detokenize([-1, 49_152, 10**9]) == b""


def test_the_template_is_the_files_own(model: LlamaModel) -> None:
    prompt = model.apply_template([{"role": "user", "content": "hi"}])
    assert prompt.startswith("<|im_start|>system\n")  # this template brings its own system message
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert model.tokenize("<|im_end|>", special=True)[0] in model.end_ids


def test_its_prefixes_can_be_shared(model: LlamaModel) -> None:
    assert model.can_share_prefixes


def test_progress_runs_from_nothing_to_all(model: LlamaModel) -> None:
    seen: list[float] = []
    loaded = LlamaModel(model.path, on_progress=seen.append, repack=False)
    loaded.close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_progress_that_raises_stops_the_loading(model: LlamaModel) -> None:
    def stop(_share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LlamaModel(model.path, on_progress=stop, repack=False)


def test_a_closed_model_answers_with_an_error(model: LlamaModel) -> None:
    loaded = LlamaModel(model.path, repack=False)
    loaded.close()
    loaded.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        loaded.tokenize("hi")
    with pytest.raises(EngineError, match="the engine is closed"):
        loaded.token_bytes(5)


def test_tokenising_from_several_threads_gives_the_same(model: LlamaModel) -> None:
    text = "The quick brown fox. " * 50
    expected = model.tokenize(text)
    answers: list[list[int]] = []
    threads = [threading.Thread(target=lambda: answers.append(model.tokenize(text))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 8


@pytest.mark.parametrize("data", [b"", b"GG", b"<!DOCTYPE html>", b"PK\x03\x04rest"])
def test_a_file_that_is_not_gguf_says_what_it_begins_with(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(EngineError, match="expected a GGUF file"):
        LlamaModel(path)


def test_a_file_cut_short_says_why_it_cannot_be_loaded(model: LlamaModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.gguf"
    with model.path.open("rb") as file:
        path.write_bytes(file.read(5_000_000))
    with pytest.raises(EngineError, match=r"short.gguf: expected a GGUF file that llama.cpp can load, got .*(corrupt|bounds|fail)"):
        LlamaModel(path)
    assert capfd.readouterr() == ("", "")


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected a file that can be read, got Is a directory"):
        LlamaModel(tmp_path)


def test_errors_are_collected_and_silence_returns(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    library = load_library()
    with collected_errors(library) as errors:
        assert not library.llama_model_load_from_file(str(tmp_path / "nothing").encode(), library.llama_model_default_params())
    assert any("nothing" in line for line in errors)
    assert not library.llama_model_load_from_file(str(tmp_path / "nothing").encode(), library.llama_model_default_params())
    assert capfd.readouterr() == ("", "")


def test_the_abort_flag_is_what_llama_cpp_will_read() -> None:
    flag = AbortFlag()
    answers = [flag.is_set]
    for change in (flag.set, flag.set, flag.clear):
        change()
        answers.append(flag.is_set)
    assert answers == [False, True, True, False]


def test_importing_streamco_does_not_import_llama_cpp() -> None:
    import subprocess

    code = "import sys, json, streamco.engines.llama; print(json.dumps([m for m in ('llama_cpp', 'numpy', 'jinja2') if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []


def test_one_long_text_holds_up_no_other_and_closing_waits_for_it(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = LlamaModel(model.path, repack=False)
    real, entered, go_on = opened.library.llama_tokenize, threading.Event(), threading.Event()

    class Library:
        def __getattr__(self, name: str) -> object:
            return getattr(model.library, name)

        def llama_tokenize(self, vocab: object, data: bytes, *rest: object) -> int:
            if data == b"long":
                entered.set()
                assert go_on.wait(10)
            return int(real(vocab, data, *rest))

    monkeypatch.setattr(opened, "library", Library())
    results: list[list[int]] = []
    long = threading.Thread(target=lambda: results.append(opened.tokenize("long")))
    long.start()
    assert entered.wait(10)
    assert opened.tokenize("short") == model.tokenize("short")
    closing = threading.Thread(target=opened.close)
    closing.start()
    go_on.set()
    closing.join()
    long.join()
    assert results == [model.tokenize("long")]
    with pytest.raises(EngineError, match="the engine is closed"):
        opened.tokenize("short")
