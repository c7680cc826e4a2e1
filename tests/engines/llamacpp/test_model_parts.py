"""Parts of a model: what is copied, what each part holds, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import EmbeddingTable, PartFiles, PartInfo, check_same_model, read_part, split_model
from streamco.errors import ConfigError, EngineError

gguf = pytest.importorskip("gguf")

WIDTH, VOCABULARY, LAYERS = 64, 10, 3


def write_model(
    path: Path,
    architecture: str = "llama",
    *,
    has_output: bool = False,
    fields: dict[str, int] | None = None,
    width: int = WIDTH,
    vocabulary: int = VOCABULARY,
    rope_base: float = 10_000.0,
) -> Path:
    """Write a GGUF file with random weights that is complete enough to be cut into parts."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in {"block_count": LAYERS, "embedding_length": width, "context_length": 128, **(fields or {})}.items():
        writer.add_uint32(name if "." in name else f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", rope_base)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", [f"t{number}" for number in range(vocabulary)])
    names = ["token_embd.weight", *(["output.weight"] if has_output else [])]
    for name in names:
        writer.add_tensor(name, rng.standard_normal((vocabulary, width)).astype(np.float16))
    writer.add_tensor("output_norm.weight", rng.standard_normal(width).astype(np.float32))
    for layer in range(LAYERS):
        weights = rng.standard_normal((width, width)).astype(np.float32)
        quantised = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"blk.{layer}.attn_q.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", rng.standard_normal(width).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.gguf", has_output=True)


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> PartFiles:
    return split_model(whole, tmp_path / "parts", input_layers=1)


def test_each_part_is_named_after_the_model(parts: PartFiles) -> None:
    assert [path.name for path in (parts.input, parts.middle, parts.head)] == ["m.input.gguf", "m.middle.gguf", "m.head.gguf"]
    assert all(size > 0 for size in parts.sizes)
    assert sorted(path.name for path in parts.input.parent.iterdir()) == ["m.head.gguf", "m.input.gguf", "m.middle.gguf"]
    assert parts.stem == parts.input.parent / "m"


def test_the_bytes_of_weights_are_copied_and_layers_renumbered(whole: Path, parts: PartFiles) -> None:
    source = tensors(whole)
    for path, first, count in ((parts.input, 0, 1), (parts.middle, 1, 2)):
        copied = tensors(path)
        for layer in range(count):
            for name in ("attn_q.weight", "attn_norm.weight"):
                old, new = source[f"blk.{first + layer}.{name}"], copied[f"blk.{layer}.{name}"]
                assert new.tensor_type == old.tensor_type
                assert bytes(new.data.tobytes()) == bytes(old.data.tobytes())
        assert f"blk.{count}.attn_q.weight" not in copied
    for name in ("token_embd.weight", "output.weight", "output_norm.weight"):
        assert tensors(parts.head)[name].data.tobytes() == source[name].data.tobytes()


def test_parts_with_layers_have_no_vocabulary(parts: PartFiles) -> None:
    for path in (parts.input, parts.middle):
        fields = gguf.GGUFReader(path).fields
        assert [name for name in fields if name.startswith("tokenizer.")] == ["tokenizer.ggml.model"]
        assert fields["tokenizer.ggml.model"].contents() == "no_vocab"
        assert not tensors(path)["token_embd.weight"].data.any()
        assert "output.weight" not in tensors(path)


def test_the_layer_of_the_head_adds_nothing(parts: PartFiles) -> None:
    added = [tensor for name, tensor in tensors(parts.head).items() if name.startswith("blk.")]
    assert len(added) == 9
    assert not any(tensor.data.any() for tensor in added)


def test_a_part_says_what_it_is(parts: PartFiles) -> None:
    found = [read_part(path) for path in (parts.input, parts.middle, parts.head)]
    assert [(part.kind, part.first_layer, part.layers, part.total_layers) for part in found] == [
        ("input", 0, 1, LAYERS),
        ("middle", 1, 2, LAYERS),
        ("head", LAYERS, 0, LAYERS),
    ]
    assert {(part.width, part.source) for part in found} == {(WIDTH, found[0].source)}
    check_same_model(*found)


def test_parts_of_two_models_are_refused(parts: PartFiles, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf")
    middle = read_part(split_model(other, tmp_path / "others").middle)
    with pytest.raises(ConfigError, match=r"expected parts of one model, got input of .*, middle of"):
        check_same_model(read_part(parts.input), middle)


def test_parts_with_a_gap_are_refused(parts: PartFiles, whole: Path, tmp_path: Path) -> None:
    middle = read_part(split_model(whole, tmp_path / "two", input_layers=2).middle)
    with pytest.raises(ConfigError, match="expected a middle from layer 1 on, got one from layer 2 on"):
        check_same_model(read_part(parts.input), middle)


def test_the_embeddings_of_a_head_are_those_of_the_model(parts: PartFiles, whole: Path) -> None:
    table = EmbeddingTable(parts.head)
    ids = np.array([3, 0, 9], np.int64)
    assert table.size == VOCABULARY
    assert np.array_equal(table.rows(ids), tensors(whole)["token_embd.weight"].data[ids].astype(np.float32))
    assert table.rows(np.array([], np.int64)).shape == (0, WIDTH)


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_ids_outside_of_the_vocabulary_are_refused(parts: PartFiles, token: int) -> None:
    with pytest.raises(EngineError, match="expected ids from 0 to 9"):
        EmbeddingTable(parts.head).rows(np.array([token], np.int64))


@pytest.mark.parametrize("layers", [0, -1, LAYERS])
def test_a_part_without_layers_is_refused(whole: Path, tmp_path: Path, layers: int) -> None:
    with pytest.raises(ConfigError, match="input_layers: expected 1 to 2"):
        split_model(whole, tmp_path, input_layers=layers)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected one of the architectures llama, qwen2, got gemma"):
        split_model(write_model(tmp_path / "m.gguf", "gemma"), tmp_path)


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected a dense model, got a mixture of experts"):
        split_model(write_model(tmp_path / "m.gguf", fields={"expert_count": 8}), tmp_path)


def test_a_model_in_several_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected a model in one file, got one in 2"):
        split_model(write_model(tmp_path / "m.gguf", fields={"split.count": 2}), tmp_path)


def test_a_part_is_not_cut_again(parts: PartFiles, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected a whole model, got its middle part"):
        split_model(parts.middle, tmp_path)


def test_a_whole_model_is_no_part(whole: Path) -> None:
    with pytest.raises(EngineError, match="expected a part of a model"):
        read_part(whole)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model at all, but long enough to be read as one"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(EngineError, match="expected a GGUF file"):
        split_model(path, tmp_path)


def test_a_file_that_is_cut_short_is_said_to_be_that(whole: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(EngineError, match=rf"got one of {short.stat().st_size} bytes that is cut short or damaged"):
        split_model(short, tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected a GGUF file"):
        read_part(tmp_path / "m.gguf")


def test_a_failure_leaves_no_file(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fail)
    with pytest.raises(OSError, match="disk full"):
        split_model(whole, tmp_path / "parts")
    assert list((tmp_path / "parts").iterdir()) == []


@pytest.mark.long
def test_the_packaged_model_can_be_cut(tmp_path: Path) -> None:
    try:
        model = packaged_model()
    except EngineError as exc:
        pytest.skip(str(exc))
    files = split_model(model, tmp_path)
    assert isinstance(read_part(files.head), PartInfo)
    assert [round(size / 1e6) for size in files.sizes] == [4, 62, 32]
