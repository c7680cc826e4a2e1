"""Derived models: complete or not there, and made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp import gguf
from streamco.engines.llamacpp.gguf import KINDS, derived, quantize, tensor_types
from streamco.engines.llamacpp.model import LlamaModel
from streamco.errors import ConfigError, EngineError


def test_kinds_are_llama_cpps_own() -> None:
    library = pytest.importorskip("llama_cpp")
    for name, number in KINDS.items():
        constant = f"LLAMA_FTYPE_ALL_{name}" if name == "F32" else f"LLAMA_FTYPE_MOSTLY_{name}"
        assert getattr(library, constant) == number


@pytest.mark.parametrize("kind", ["", "Q9", "q4"])
def test_an_unknown_kind_lists_the_known_ones(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match="kind: expected one of F32, F16, Q4_0"):
        quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", kind)


def test_a_negative_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prune_layers: expected layers from 0, got -1"):
        quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "F16", [3, -1])


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="target: expected a file other than the source"):
        quantize(tmp_path / "a.gguf", tmp_path / "x" / ".." / "a.gguf", "F16")


def test_a_missing_source_says_so(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    with pytest.raises(EngineError, match=r"a.gguf: expected a GGUF file, got no such file"):
        quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "F16")
    with pytest.raises(EngineError, match="expected a file and a cache folder"):
        derived(tmp_path / "a.gguf", "F16")


@pytest.mark.usefixtures("quantising")
def test_a_source_that_is_no_model_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"not a model")
    with pytest.raises(EngineError, match=r"expected llama.cpp to derive .*b.gguf.*, got status"):
        quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "F16")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


@pytest.mark.long
@pytest.mark.model
@pytest.mark.usefixtures("quantising")
def test_a_smaller_kind_with_fewer_layers_runs(engine: LlamaEngine, tmp_path: Path) -> None:
    target = quantize(engine.path, tmp_path / "small.gguf", "q2_k", prune_layers=[24, 25, 26])
    assert target.stat().st_size < engine.path.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]
    model = LlamaModel(target, repack=False)
    assert model.info.layers == engine.info.layers - 3
    assert model.info.vocabulary == engine.info.vocabulary
    model.close()


def test_a_derived_model_is_made_once_for_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "a.gguf"
    source.write_bytes(b"GGUF")
    made: list[Path] = []

    def fake(source: Path, target: Path, kind: str, layers: list[int]) -> Path:
        made.append(target)
        target.write_bytes(b"GGUF")
        return target

    monkeypatch.setattr(gguf, "quantize", fake)
    assert derived(source, "Q2_K") == derived(source, "q2_k") == made[0]
    assert made[0].parent == tmp_path / "cache" / "streamco" / "models"
    assert derived(source, "Q2_K", [1]) == made[1]
    source.write_bytes(b"GGUF another")
    assert derived(source, "Q2_K") == made[2]
    assert len(set(made)) == 3


def test_copies_of_a_model_share_what_is_derived_and_other_models_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf, "quantize", lambda _source, target, *_: target)
    content = bytes(range(256)) * 4000
    paths = [tmp_path / name / "a.gguf" for name in ("one", "two", "other")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(content)
    paths[2].write_bytes(content[:-1] + b"x")
    one, two, other = (derived(path, "Q2_K") for path in paths)
    assert one == two
    assert one != other


@pytest.mark.model
def test_the_types_of_a_files_weights_are_read(engine: LlamaEngine, tmp_path: Path) -> None:
    library = engine._model.library
    types = tensor_types(derived(engine.path, "Q4_0"), library)
    assert types["blk.0.attn_q.weight"] == 2
    assert types["blk.0.attn_norm.weight"] == 0
    (tmp_path / "none.gguf").write_bytes(b"GGUF")
    assert tensor_types(tmp_path / "none.gguf", library) == {}
    assert tensor_types(tmp_path / "missing.gguf", library) == {}
