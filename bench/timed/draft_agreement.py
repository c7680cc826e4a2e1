"""Do PyTorch, which trains a draft layer, and llama.cpp, which runs it, guess the same tokens?

Both have the same weights, those of the package's file, and the same states, those of answers that the split model wrote. Needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bench.data.draft_network import Batch, DraftNetwork
from bench.data.draft_teacher import Teacher
from bench.timed.draft_answer import Answer
from streamco.engines.llamacpp.draft_model import MATRICES

__all__ = ["torch_drafts"]

_BLOCK = 32


def torch_drafts(weights: Path, model: Path, answers: Sequence[Answer]) -> list[list[int]]:
    """Return the token that PyTorch guesses after each token of the answers except the last.

    Args:
        weights: a shipped draft layer.
        model: the whole model's file.
        answers: answers.
    """
    torch.set_num_threads(1)
    teacher = Teacher(model, [Teacher(model, []).sizes.layers - 1])
    with np.load(weights) as found:
        network = DraftNetwork(teacher, "deep", len(found["ffn_up"]))
        network.set_arrays({name: _plain(found, name) for name in network.weights})
        rows = torch.from_numpy(found["rows"].astype(np.int64))
    head = teacher.output[rows].float()
    drafts = []
    for answer in answers:
        batch = Batch(*(torch.from_numpy(np.asarray(each))[None] for each in (answer.ids[:-1], answer.shallow, answer.deep, [])))
        with torch.no_grad():
            made = network(batch, 1)[0][0, answer.prompt :]
            drafts.append(rows[(made @ head.T).argmax(-1)].tolist())
    return drafts


def _plain(found: np.lib.npyio.NpzFile, name: str) -> NDArray[np.float32]:
    numbers = found[name].astype(np.float32)
    if name not in (*MATRICES, "fuse"):
        return numbers
    scales = found[f"{name}.scales"].astype(np.float32)[:, :, None]
    plain: NDArray[np.float32] = (numbers.reshape(len(numbers), -1, _BLOCK) * scales).reshape(numbers.shape)
    return plain
