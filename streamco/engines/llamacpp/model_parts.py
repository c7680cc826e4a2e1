"""Parts of a model for split inference (HAT, section 3.1): the first layers, the middle layers, and the head, each in its own GGUF file.

llama.cpp loads each part as an ordinary model. Tensor bytes are copied, never quantised again, and layers are renumbered from 0.

- The input part holds the first layers, without a vocabulary: its rows come in as embeddings.
- The middle part holds the other layers, without a vocabulary. It is all that a server gets. It returns states before the final norm.
- The head part holds the final norm, the output matrix, the token embeddings and the tokenizer. llama.cpp has no model without layers, so
  the head has one with matrices of zeros, which passes a state on unchanged. Its architecture is always llama, because llama.cpp builds
  that graph with any number of heads.

Each file's metadata says which part of which model it is, and which layers it has. So parts of two models can't be mixed up.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from streamco.engines.llamacpp.cache_dir import replaced_file
from streamco.engines.llamacpp.gguf import content_mark
from streamco.engines.llamacpp.model import check_regular
from streamco.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "ARCHITECTURES",
    "EmbeddingTable",
    "PartFiles",
    "PartInfo",
    "PartKind",
    "check_same_model",
    "close_writer",
    "copy_field",
    "describe_part",
    "field_of",
    "is_part",
    "open_gguf",
    "read_part",
    "split_model",
    "tensors_of",
]

ARCHITECTURES = ("llama", "qwen2")
"""Architectures that were tested by comparing models with their parts."""

PartKind = Literal["input", "middle", "head"]
KINDS: tuple[PartKind, ...] = ("input", "middle", "head")

_HEADER = 1 << 20  # bytes, more than the metadata of a part without a tokenizer
_NO_VOCABULARY = 32  # rows of the embedding matrix that llama.cpp requires, in parts that take no tokens
_HEAD_WIDTH = 32  # of the matrices in the head's empty layer
_MAGIC = b"GGUF"
_KIND, _SOURCE, _FIRST, _TOTAL = "streamco.part", "streamco.source", "streamco.first_layer", "streamco.total_layers"


class PartFiles(Struct, frozen=True):
    """Paths of a model's three parts. The device needs ``input`` and ``head``, the server ``middle``."""

    input: Path
    middle: Path
    head: Path

    @property
    def stem(self) -> Path:
        """Common prefix of the paths, ``parts/NAME``, by which a device finds its parts."""
        return self.input.with_name(self.input.name.removesuffix(".input.gguf"))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of the input, middle and head files."""
        return self.input.stat().st_size, self.middle.stat().st_size, self.head.stat().st_size


class PartInfo(Struct, frozen=True):
    """What a part's file says about itself.

    Args:
        kind: which part it is.
        source: digest of the whole model's file; the same for all parts of one model.
        first_layer: number of the part's first layer in the whole model.
        layers: number of the model's layers in the part; 0 in the head.
        total_layers: number of layers of the whole model.
        width: numbers in a state.
        architecture: the whole model's architecture, but llama in the head.
    """

    kind: PartKind
    source: str
    first_layer: int
    layers: int
    total_layers: int
    width: int
    architecture: str


def split_model(source: str | Path, folder: str | Path, *, input_layers: int = 2) -> PartFiles:
    """Write the parts of a model: ``NAME.input.gguf``, ``NAME.middle.gguf`` and ``NAME.head.gguf``. Blocks while files are copied.

    Each file appears under its name when it is complete; an existing one is replaced.

    Args:
        source: the whole model's GGUF file.
        folder: where the parts go; created if it doesn't exist.
        input_layers: layers of the input part, at least 1 and fewer than the model has. More layers hide no more from a server that knows
            the model's weights.

    Raises:
        ConfigError: the package gguf is missing, or ``input_layers`` is out of range.
        OSError: the folder can't be created or written to.
        EngineError: the file isn't a GGUF file of a known architecture, or is itself a part.
    """
    source, folder = Path(source), Path(folder)
    reader = open_gguf(source)
    whole = _Whole(reader, source)
    if not 1 <= input_layers < whole.layers:
        raise ConfigError(f"input_layers: expected 1 to {whole.layers - 1} for {source.name}, got {input_layers}")
    files = PartFiles(*(folder / f"{source.stem}.{kind}.gguf" for kind in KINDS))
    folder.mkdir(parents=True, exist_ok=True)
    with replaced_file(files.input) as path:
        whole.write_layers(path, "input", 0, input_layers)
    with replaced_file(files.middle) as path:
        whole.write_layers(path, "middle", input_layers, whole.layers)
    with replaced_file(files.head) as path:
        whole.write_head(path)
    return files


def is_gguf(path: str | Path) -> bool:
    """Return True if the file begins like a GGUF file. Reads only its first bytes."""
    with Path(path).open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def is_part(path: str | Path) -> bool:
    """Return True if the file's metadata says that it is a part of a model. Reads only the file's beginning."""
    with Path(path).open("rb") as file:
        return _KIND.encode() in file.read(_HEADER)


def read_part(path: str | Path) -> PartInfo:
    """Return what a part's file says about itself.

    Raises:
        ConfigError: the package gguf is missing.
        EngineError: the file isn't a part of a model.
    """
    path = Path(path)
    return describe_part(open_gguf(path), path)


def describe_part(reader: Any, path: Path) -> PartInfo:
    """Return what a part's file says about itself, from its reader.

    Raises:
        EngineError: the file isn't a part of a model.
    """
    kind = field_of(reader, _KIND)
    if kind not in KINDS:
        raise EngineError(f"model {path}: expected a part of a model (streamco split writes them), got a whole model")
    architecture = str(field_of(reader, "general.architecture"))
    layers = 0 if kind == "head" else int(field_of(reader, f"{architecture}.block_count"))
    return PartInfo(
        kind=kind,
        source=str(field_of(reader, _SOURCE)),
        first_layer=int(field_of(reader, _FIRST)),
        layers=layers,
        total_layers=int(field_of(reader, _TOTAL)),
        width=int(field_of(reader, f"{architecture}.embedding_length")),
        architecture=architecture,
    )


def check_same_model(*parts: PartInfo) -> None:
    """Raise an error unless the parts belong to one model and follow one another without a gap.

    Raises:
        ConfigError: they don't.
    """
    sources = {part.source for part in parts}
    if len(sources) > 1:
        raise ConfigError(f"model parts: expected parts of one model, got {', '.join(f'{part.kind} of {part.source}' for part in parts)}")
    ends = {part.kind: part.first_layer + part.layers for part in parts}
    for part in parts:
        if part.kind == "middle" and ends.get("input", part.first_layer) != part.first_layer:
            raise ConfigError(f"model parts: expected a middle from layer {ends['input']} on, got one from layer {part.first_layer} on")


class EmbeddingTable:
    """The token embeddings of a head part, read from the file as they are needed.

    Args:
        path: the file.
        reader: its reader, which takes a while to make; None for a new one.

    Raises:
        EngineError: the file has none.
    """

    def __init__(self, path: Path, reader: Any = None) -> None:
        self._path = path
        self._tensor = tensors_of(reader or open_gguf(path)).get("token_embd.weight")
        if self._tensor is None:
            raise EngineError(f"model {path}: expected token embeddings, got none")
        self.size = int(self._tensor.shape[1])

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the embeddings of token ids, shape (ids, width).

        Raises:
            EngineError: an id is outside the vocabulary.
        """
        import gguf
        import numpy as np

        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.size:
            raise EngineError(f"tokens: expected ids from 0 to {self.size - 1}, got {int(ids.min())} to {int(ids.max())}")
        assert self._tensor is not None, "checked when it was read"
        rows = gguf.dequantize(self._tensor.data[ids], self._tensor.tensor_type)
        return np.ascontiguousarray(rows, dtype=np.float32)


class _Whole:
    """A whole model's file, from which parts are copied."""

    def __init__(self, reader: Any, path: Path) -> None:
        self._reader = reader
        self._path = path
        self._tensors = tensors_of(reader)
        if field_of(reader, _KIND):
            raise EngineError(f"model {path}: expected a whole model, got its {field_of(reader, _KIND)} part")
        self.architecture = str(field_of(reader, "general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise EngineError(f"model {path}: expected one of the architectures {', '.join(ARCHITECTURES)}, got {self.architecture}")
        if int(field_of(reader, "split.count") or 1) > 1:
            raise EngineError(f"model {path}: expected a model in one file, got one in {field_of(reader, 'split.count')}")
        if int(field_of(reader, self._key("expert_count")) or 0):
            raise EngineError(f"model {path}: expected a dense model, got a mixture of experts")
        self.layers = int(field_of(reader, self._key("block_count")))
        self.width = int(field_of(reader, self._key("embedding_length")))
        self._source = content_mark(path)[:16]

    def write_layers(self, path: Path, kind: PartKind, first: int, stop: int) -> None:
        """Write the layers ``first`` to ``stop`` as a model without a vocabulary."""
        import numpy as np

        writer = self._writer(path, kind, first, self.architecture)
        left_out = {self._key("block_count"), self._key("vocab_size"), "general.name", "general.architecture"}
        for field in self._reader.fields.values():
            if field.name not in left_out and not field.name.startswith(("GGUF.", "tokenizer.")):
                copy_field(writer, field)
        writer.add_uint32(self._key("block_count"), stop - first)
        writer.add_uint32(self._key("vocab_size"), _NO_VOCABULARY)
        writer.add_string("tokenizer.ggml.model", "no_vocab")
        writer.add_tensor("token_embd.weight", np.zeros((_NO_VOCABULARY, self.width), np.float16))
        self._copy_tensor(writer, "output_norm.weight")
        if "rope_freqs.weight" in self._tensors:
            self._copy_tensor(writer, "rope_freqs.weight")
        for layer in range(first, stop):
            for name in self._tensors:
                if name.startswith(f"blk.{layer}."):
                    self._copy_tensor(writer, name, name.replace(f"blk.{layer}.", f"blk.{layer - first}.", 1))
        close_writer(writer)

    def write_head(self, path: Path) -> None:
        """Write the final norm, the output matrix, the embeddings and the tokenizer, with one layer that changes nothing."""
        import numpy as np

        writer = self._writer(path, "head", self.layers, "llama")
        for field in self._reader.fields.values():
            if field.name.startswith("tokenizer."):
                copy_field(writer, field)
        writer.add_uint32("llama.block_count", 1)
        writer.add_uint32("llama.context_length", int(field_of(self._reader, self._key("context_length"))))
        writer.add_uint32("llama.embedding_length", self.width)
        writer.add_uint32("llama.feed_forward_length", _HEAD_WIDTH)
        writer.add_uint32("llama.attention.head_count", 1)
        writer.add_uint32("llama.attention.head_count_kv", 1)
        writer.add_uint32("llama.attention.key_length", _HEAD_WIDTH)
        writer.add_uint32("llama.attention.value_length", _HEAD_WIDTH)
        writer.add_uint32("llama.rope.dimension_count", _HEAD_WIDTH)
        epsilon = "attention.layer_norm_rms_epsilon"
        writer.add_float32(f"llama.{epsilon}", float(field_of(self._reader, self._key(epsilon))))
        writer.add_uint32("llama.vocab_size", int(self._tensors["token_embd.weight"].shape[1]))
        for name in ("token_embd.weight", "output.weight", "output_norm.weight"):
            if name in self._tensors:  # without output.weight the embeddings are the output matrix, too
                self._copy_tensor(writer, name)
        for name, shape in _empty_layer(self.width):
            writer.add_tensor(name, np.zeros(shape, np.float32))
        close_writer(writer)

    def _writer(self, path: Path, kind: PartKind, first: int, architecture: str) -> Any:
        import gguf

        writer = gguf.GGUFWriter(path, architecture)
        writer.add_string("general.name", f"{field_of(self._reader, 'general.name') or self._path.stem} ({kind})")
        writer.add_string(_KIND, kind)
        writer.add_string(_SOURCE, self._source)
        writer.add_uint32(_FIRST, first)
        writer.add_uint32(_TOTAL, self.layers)
        return writer

    def _key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def _copy_tensor(self, writer: Any, name: str, new_name: str | None = None) -> None:
        import gguf

        tensor = self._tensors[name]
        plain = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        writer.add_tensor(new_name or name, tensor.data, raw_dtype=None if tensor.tensor_type in plain else tensor.tensor_type)


def _empty_layer(width: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of the tensors of a layer that adds nothing to a state if all of them are zero."""
    shapes: dict[str, tuple[int, ...]] = {"attn_norm": (width,), "ffn_norm": (width,)}
    shapes |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"), (_HEAD_WIDTH, width))
    shapes |= dict.fromkeys(("attn_output", "ffn_down"), (width, _HEAD_WIDTH))
    return [(f"blk.0.{name}.weight", shape) for name, shape in shapes.items()]


def open_gguf(path: Path) -> Any:
    """Return the reader of a GGUF file.

    Raises:
        ConfigError: the package gguf is missing.
        EngineError: the file isn't a GGUF file.
    """
    try:
        import gguf
    except ImportError as exc:
        raise ConfigError("model parts: needs the package gguf: pip install 'streamco[split]'") from exc
    check_regular(path)
    try:
        return gguf.GGUFReader(path)
    except OSError as exc:
        raise EngineError(f"model {path}: expected a GGUF file, got {(exc.strerror or str(exc)).lower()}") from exc
    except (ValueError, IndexError, KeyError) as exc:
        raise EngineError(f"model {path}: expected a GGUF file, got {_damage(path, exc)}") from exc


def _damage(path: Path, error: Exception) -> str:
    """Return what is wrong with a file that the reader refused."""
    if not is_gguf(path):
        return f"one that doesn't begin with {_MAGIC.decode()}"
    return f"one of {path.stat().st_size} bytes that is cut short or damaged ({error})"


def tensors_of(reader: Any) -> dict[str, Any]:
    """Return the tensors of a GGUF file by name."""
    return {tensor.name: tensor for tensor in reader.tensors}


def field_of(reader: Any, name: str) -> Any:
    """Return the value of a metadata field, or None if there is none."""
    field = reader.fields.get(name)
    return None if field is None else field.contents()


def copy_field(writer: Any, field: Any) -> None:
    """Copy a metadata field of another file unchanged."""
    import gguf

    kind = field.types[0]
    writer.add_key_value(field.name, field.contents(), kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)


def close_writer(writer: Any) -> None:
    """Write everything that was added, and close the file."""
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
