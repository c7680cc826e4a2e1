"""The draft layer of a split model as a GGUF file (HAT, section 3.4): trained weights and the model's own output rows.

The weights are shipped as 8-bit numbers in the blocks of llama.cpp's Q8_0, so llama.cpp computes with exactly these numbers. Drafts are
chosen from the ids that answers use most. The rows of the output matrix for these ids come from the head part; they are not shipped.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from streamco.engines.llamacpp.cache_dir import cache_folder, replaced_file
from streamco.engines.llamacpp.model_parts import close_writer, copy_field, field_of, tensors_of
from streamco.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DraftMeta", "DraftWeights", "draft_layer_folder", "pack_matrix", "read_draft_meta", "read_draft_weights", "write_draft_model"]

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
VECTORS = ("attn_norm", "ffn_norm")
_BLOCK = 32  # numbers that share a scale
_SCALES = ".scales"


class DraftMeta(Struct, frozen=True):
    """The model for which weights were trained.

    Args:
        model: its name.
        vocabulary: fingerprint of its vocabulary.
        width: numbers in a state.
        input_layers: layers on the device.
    """

    model: str
    vocabulary: str
    width: int
    input_layers: int


class DraftWeights(Struct, frozen=True):
    """Weights of a draft layer.

    Args:
        meta: the model for which they were trained.
        rows: token ids that a draft may hold, ascending, shape (drafted vocabulary,).
        fuse: joins the deep state of the token before and the shallow state of this one, shape (width, 2 * width).
        matrices: the layer's matrices by name, in bytes of Q8_0.
        vectors: the layer's norms and biases, and ``norm``, the final one.
    """

    meta: DraftMeta
    rows: NDArray[np.int64]
    fuse: NDArray[np.float32]
    matrices: dict[str, NDArray[np.uint8]]
    vectors: dict[str, NDArray[np.float32]]


def pack_matrix(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Return a matrix as 8-bit numbers of the same shape, and a scale for every 32 numbers of a row.

    Args:
        matrix: shape (rows, columns); columns must be a multiple of 32.
    """
    import numpy as np

    blocks = matrix.reshape(len(matrix), -1, _BLOCK)
    scales = (np.abs(blocks).max(2) / 127).astype(np.float16)
    used = scales.astype(np.float32)[:, :, None]
    numbers = np.divide(blocks, used, out=np.zeros_like(blocks), where=used > 0)
    return np.rint(numbers).clip(-127, 127).astype(np.int8).reshape(matrix.shape), scales


def draft_layer_folder() -> Path:
    """Return the folder in the user's cache for draft layers: trained weights, and the models that llama.cpp loads."""
    return cache_folder("draft_layers")


def read_draft_meta(path: Path) -> DraftMeta:
    """Return the model for which a file's weights were trained.

    Raises:
        ConfigError: the file is missing or has no such weights.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as found:
            return msgspec.json.decode(found["meta"].tobytes(), type=DraftMeta)
    except (OSError, ValueError, KeyError, msgspec.MsgspecError, zipfile.BadZipFile) as error:
        raise ConfigError(f"draft layer {path}: expected weights as bench.data.train_draft writes them, got {error}") from error


def read_draft_weights(path: Path) -> DraftWeights:
    """Return the weights in a file that ``bench.data.train_draft`` has written.

    Raises:
        ConfigError: the file is missing or has no such weights.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as found:
            arrays: dict[str, NDArray[Any]] = {name: found[name] for name in found.files}
        meta = msgspec.json.decode(arrays.pop("meta").tobytes(), type=DraftMeta)
        packed = {name: _blocks(arrays[name], arrays[name + _SCALES]) for name in MATRICES}
        fuse = _plain(arrays["fuse"], arrays["fuse" + _SCALES])
        vectors = {name: arrays[name].astype(np.float32) for name in arrays if arrays[name].ndim == 1 and name != "rows"}
        weights = DraftWeights(meta, arrays["rows"].astype(np.int64), fuse, packed, vectors)
        _check(weights)
    except (OSError, ValueError, KeyError, msgspec.MsgspecError, zipfile.BadZipFile) as error:
        raise ConfigError(f"draft layer {path}: expected weights as bench.data.train_draft writes them, got {error}") from error
    return weights


def _check(weights: DraftWeights) -> None:
    width = weights.meta.width
    if weights.fuse.shape != (width, 2 * width) or any(weights.vectors[name].shape != (width,) for name in (*VECTORS, "norm")):
        raise ValueError(f"shapes that don't fit a width of {width}")
    if weights.rows.ndim != 1 or not len(weights.rows) or (weights.rows[1:] <= weights.rows[:-1]).any():
        raise ValueError("token ids that don't ascend")


def _blocks(numbers: NDArray[np.int8], scales: NDArray[np.float16]) -> NDArray[np.uint8]:
    """Return a matrix in bytes of Q8_0: for every 32 numbers, their scale and then the numbers."""
    import numpy as np

    blocks = numbers.astype(np.int8, copy=False).reshape(len(numbers), -1, _BLOCK)
    joined = np.concatenate([np.ascontiguousarray(scales.astype("<f2"))[:, :, None].view(np.int8), blocks], axis=2)
    return joined.reshape(len(numbers), -1).view(np.uint8)


def _plain(numbers: NDArray[np.int8], scales: NDArray[np.float16]) -> NDArray[np.float32]:
    import numpy as np

    blocks = numbers.reshape(len(numbers), -1, _BLOCK).astype(np.float32) * scales.astype(np.float32)[:, :, None]
    return np.ascontiguousarray(blocks.reshape(numbers.shape))


def write_draft_model(weights: DraftWeights, *, input_part: Any, head_part: Any, target: Path) -> None:
    """Write the draft layer as a model without a tokenizer. Its vocabulary consists of the ids that drafts may hold.

    Args:
        weights: the trained weights.
        input_part: reader of the input part, which gives the architecture and its sizes.
        head_part: reader of the head part, which gives the rows of the output matrix.
        target: the file; it appears when it is complete.

    Raises:
        ConfigError: the weights are for a different width or vocabulary.
    """
    import gguf
    import numpy as np

    architecture = str(field_of(input_part, "general.architecture"))
    tensors = tensors_of(head_part)
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    if output.shape[0] != weights.meta.width or weights.rows[-1] >= output.shape[1]:
        raise ConfigError(
            f"draft layer: expected weights for states of {output.shape[0]} numbers and {output.shape[1]} tokens, got some for "
            f"{weights.meta.width} and at least {weights.rows[-1] + 1}"
        )
    with replaced_file(target) as path:
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_string("general.name", f"{weights.meta.model} (draft layer)")
        own = {"block_count": 1, "vocab_size": len(weights.rows), "feed_forward_length": len(weights.matrices["ffn_up"])}
        left_out = {*(f"{architecture}.{name}" for name in own), "general.name", "general.architecture"}
        for field in input_part.fields.values():
            if field.name not in left_out and not field.name.startswith(("GGUF.", "tokenizer.", "streamco.")):
                copy_field(writer, field)
        for name, value in own.items():
            writer.add_uint32(f"{architecture}.{name}", value)
        writer.add_string("tokenizer.ggml.model", "no_vocab")
        plain = output.tensor_type in {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16}
        rows = np.ascontiguousarray(output.data[weights.rows])
        writer.add_tensor("token_embd.weight", rows, raw_dtype=None if plain else output.tensor_type)
        writer.add_tensor("output_norm.weight", weights.vectors["norm"])
        for name, matrix in weights.matrices.items():
            writer.add_tensor(f"blk.0.{name}.weight", matrix, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        for name, vector in weights.vectors.items():
            if name in VECTORS:
                writer.add_tensor(f"blk.0.{name}.weight", vector)
            elif name.endswith("_bias"):
                writer.add_tensor(f"blk.0.{name.removesuffix('_bias')}.bias", vector)
        close_writer(writer)
