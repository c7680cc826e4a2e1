"""A model of one layer with random weights, made in milliseconds, whose file says whatever a test wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.engines.llamacpp.vocabularies import add_vocabulary

WIDTH = 32


def write_model(path: Path, metadata: dict[str, Any] | None = None, *, context_tokens: int = 256, has_vocabulary: bool = True) -> Path:
    """Write the model.

    Args:
        path: the file.
        metadata: further keys; booleans, whole numbers and texts.
        context_tokens: what it was trained for.
        has_vocabulary: False: ``tokenizer.ggml.model`` is "none".
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    if "general.name" not in (metadata or {}):
        writer.add_name("small")
    writer.add_context_length(context_tokens)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    if has_vocabulary:
        size = add_vocabulary(writer)
    else:
        size = 32
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(size)
    for key, value in (metadata or {}).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case _:
                writer.add_string(key, value)
    rng = np.random.default_rng(1)
    shapes = {"token_embd": (size, WIDTH), "output_norm": (WIDTH,), "blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,)}
    squares = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes |= {f"blk.0.{name}": (WIDTH, WIDTH) for name in squares}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
