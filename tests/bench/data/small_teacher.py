"""A teacher with small random weights, and texts that it writes. PyTorch is needed for training alone."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

torch.set_num_threads(1)  # two threads of so small products wait for each other
module = import_module("bench.data.draft_teacher")  # PyTorch has no types where it isn't
Layer, ModelSizes, Rope, Teacher = (getattr(module, name) for name in ("Layer", "ModelSizes", "Rope", "Teacher"))

SIZES = ModelSizes("llama", 3, 32, 4, 2, 10_000.0, 1e-5)


def small_teacher() -> Any:
    """A teacher of three layers with random weights."""
    generator = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    teacher = Teacher.__new__(Teacher)
    teacher.sizes, teacher.rope = SIZES, Rope(SIZES)
    teacher.embeddings = teacher.output = matrix(50, 32).bfloat16()
    teacher.norm = torch.ones(32)
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
    teacher.layers = [
        Layer(
            {name: matrix(*shape).bfloat16() for name, shape in shapes.items()} | {"attn_norm": torch.ones(32), "ffn_norm": torch.ones(32)},
            SIZES,
            teacher.rope,
        )
        for _ in range(3)
    ]
    return teacher


def texts(teacher: Any, count: int = 4) -> list[Any]:
    made: list[Any] = teacher.write([[1, 2, 3, 4 + row] for row in range(count)], most=12, ends=[0], temperature=0.7, seed=3)
    return made
