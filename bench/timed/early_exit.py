"""Would it pay to leave the small model before its last layers (Synera section 4.3, layer-wise early exit)?

The paper's rule: in the last quarter of the layers, put each layer's state through the head, and stop where the two best tokens are more
than 0.7 apart. It saves the layers after the exit. It costs a head at every candidate layer, and the keys and values of the layers that
were skipped, which later tokens will want. Here the states of real answers are read layer by layer, agreement with the last layer's choice
is counted, a layer and a head are timed in llama.cpp on one thread, and the balance is drawn up for the rule, for every single exit layer,
and for an oracle that leaves each token at the first layer that says what the last will say and knows it for nothing.

Keys and values of a skipped layer are counted as their two projections, the least there is (the state that left is taken for theirs).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.contexts import prefill, write
from bench.fetch_models import MODELS
from bench.pairs import load_questions, model_file
from bench.report import Row, add_arguments, emit, interleave, rows_from
from streamco._native import NodeTap
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.library import library_address
from streamco.engines.llamacpp.model import LlamaModel

__all__ = ["Balance", "Costs", "Reading", "balance", "main", "read_answers", "time_parts"]

SEED = 3
LAST_SHARE = 0.25  # of the layers, in which the paper lets a token leave
MARGINS = (0.5, 0.6, 0.7, 0.8, 0.9)  # between the two best probabilities; the paper's is 0.7
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reading:
    """What each candidate layer says of real tokens; shape (tokens, layers), the layers in order."""

    layers: tuple[int, ...]
    choices: NDArray[np.int64]
    margins: NDArray[np.float64]
    final: NDArray[np.int64]  # what the last layer says, shape (tokens,)


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of one thread's processor time."""

    layer: float
    head: float
    keys_and_values: float  # of one skipped layer

    def token(self, layers: int) -> float:
        """One token without exits."""
        return layers * self.layer + self.head


@dataclass(frozen=True, slots=True)
class Balance:
    """What a way of leaving comes to."""

    leaving: float  # share of tokens
    agreeing: float  # of those, with the last layer's choice
    heads: float  # that a token costs
    skipped: float  # layers that a token is spared
    saved: float  # share of a token's time; below 0: it takes longer


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--kinds", nargs="*", default=("Q2_K", "Q4_0"), help="of SmolLM2, or 0.5B, after make models (default: Q2_K Q4_0)")
    parser.add_argument("--questions", type=int, default=24)
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    rows: list[Row] = []
    for kind in options.kinds[:1] if quick else options.kinds:
        model = LlamaModel(model_file(kind))
        timed, costs = time_parts(model, kind, rounds=3 if quick else 9)
        rows += timed
        whole = model_file(kind, "F16") if kind in MODELS else model_file("F16")
        reading = read_answers(model, whole, 3 if quick else options.questions)
        count = model.info.layers
        ways = {f"after layer {layer + 1} only, margin 0.7": ([layer], 0.7) for layer in reading.layers}
        ways |= {f"the paper's rule, margin {margin:g}": (list(reading.layers), margin) for margin in MARGINS}
        found = {name: balance(reading, costs, count, layers, margin) for name, (layers, margin) in ways.items()}
        found["oracle, knows for nothing"] = balance(reading, costs, count, list(reading.layers), None)
        for name, sums in found.items():
            for metric, unit, value in (
                ("tokens that leave", "share", sums.leaving),
                ("of those, as the last layer", "share", sums.agreeing),
                ("heads a token", "heads", sums.heads),
                ("layers spared a token", "layers", sums.skipped),
                ("time saved", "share", sums.saved),
            ):
                rows.append(Row("early_exit", f"{_name(kind)}, {count} layers", name, metric, unit, value, value, value))
        model.close()
    emit(rows, options.json, against="the paper's rule, margin 0.7")


def _name(kind: str) -> str:
    return f"Qwen2.5-Coder {kind}" if kind in MODELS else f"SmolLM2 {kind}"


def balance(reading: Reading, costs: Costs, layers: int, exits: Sequence[int], margin: float | None) -> Balance:
    """Draw up what leaving behind these layers gives.

    Args:
        reading: of real tokens.
        costs: of the model at hand.
        layers: it has.
        exits: layers that are looked at, in order.
        margin: a token leaves where its two best are further apart; None: where its best is what the last layer will say, without a head.
    """
    columns = [reading.layers.index(layer) for layer in exits]
    agrees = reading.choices[:, columns] == reading.final[:, None]
    wants = agrees if margin is None else reading.margins[:, columns] > margin
    leaves = wants.any(axis=1)
    first = wants.argmax(axis=1)
    skipped = np.where(leaves, layers - 1 - np.array(exits)[first], 0)
    heads = np.where(leaves, first + 1, len(exits) + 1) if margin is not None else np.ones(len(first))
    spent = (layers - skipped) * costs.layer + heads * costs.head + skipped * costs.keys_and_values
    agreeing = agrees[np.arange(len(first)), first][leaves]
    return Balance(
        leaving=float(leaves.mean()),
        agreeing=float(agreeing.mean()) if agreeing.size else 1.0,
        heads=float(heads.mean()),
        skipped=float(skipped.mean()),
        saved=1.0 - float(spent.mean()) / costs.token(layers),
    )


# Time


def time_parts(model: LlamaModel, kind: str, rounds: int, tokens: int = 24) -> tuple[list[Row], Costs]:
    """A row with the head, and one without: llama.cpp leaves out the head of rows whose logits nobody wants."""
    context = LlamaContext(model, cells=1024, sequences=1, rows=64, threads=1)

    def a_token(*, wants_logits: bool) -> float:
        context.clear()
        prefill(context, list(range(1000, 1064)), 0)
        start = time.thread_time()  # one thread computes: what others take of the machine doesn't count
        for step in range(tokens):
            context.add(2000 + step, 64 + step, 0, wants_logits=wants_logits)
            if context.decode():
                raise RuntimeError("llama_decode failed")
        return (time.thread_time() - start) / tokens * 1e3

    samples = interleave({"whole token": lambda: a_token(wants_logits=True), "without head": lambda: a_token(wants_logits=False)}, rounds)
    context.close()
    bare, info = float(np.min(samples["without head"])), model.info
    layer = bare / info.layers
    samples["one layer"] = [value / info.layers for value in samples["without head"]]
    samples["head"] = [whole - without for whole, without in zip(samples["whole token"], samples["without head"], strict=True)]
    # of a layer's weights, the keys' and values' projections are this share; as many bytes are read for them
    share = _share_of_keys_and_values(model)
    costs = Costs(layer=layer, head=float(np.min(samples["whole token"])) - bare, keys_and_values=share * layer)
    return rows_from("early_exit", f"{_name(kind)}, one thread", "processor time", "ms", samples), costs


def _share_of_keys_and_values(model: LlamaModel) -> float:
    info, library = model.info, model.library
    narrow = info.width // info.heads * int(library.llama_model_n_head_kv(model.handle))
    keys_and_values = 2 * info.width * narrow
    return keys_and_values / (keys_and_values + 2 * info.width**2 + 3 * info.width * info.ffn_width)


# States


def read_answers(model: LlamaModel, whole: Path, questions: int, tokens: int = 48) -> Reading:
    """What the last quarter of the layers say of the model's own greedy answers; ``whole`` is the model in F16, for its head."""
    count = model.info.layers
    layers = tuple(range(int(count * (1.0 - LAST_SHARE)), count - 1))
    states = _States(model, layers)
    norm, head = _read_head(whole)
    context = LlamaContext(model, cells=1024, sequences=1, rows=128, threads=1)
    parts: list[tuple[NDArray[np.int64], NDArray[np.float64], list[int]]] = []
    for question in load_questions("alpaca", questions, SEED, tokens):
        ids = model.tokenize(model.apply_template([{"role": "user", "content": question.text}]), special=True)
        context.clear()
        prefill(context, ids[:-1], 0)
        answer = write(context, {0: (0, len(ids) - 1, ids[-1:])}, tokens, end_ids=model.end_ids)[0]
        choices, margins = _look(states.read(ids + answer[:-1])[:, len(ids) - 1 :], norm, head)
        parts.append((choices, margins, answer))
    context.close()
    states.close()
    final = [token for _, _, answer in parts for token in answer]
    return Reading(layers, np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]), np.array(final))


def _look(states: Floats, norm: Floats, head: Floats) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Choices and margins of states (layers, tokens, width), shape (tokens, layers)."""
    scaled = states / np.sqrt((states**2).mean(axis=-1, keepdims=True) + 1e-5) * norm
    choices, margins = [], []
    for layer in scaled:
        logits = layer @ head.T
        best = np.partition(logits, -2, axis=1)[:, -2:]
        total = np.exp(logits - best[:, 1:]).sum(axis=1, dtype=np.float64)
        choices.append(logits.argmax(axis=1))
        margins.append((1.0 - np.exp(best[:, 0].astype(np.float64) - best[:, 1])) / total)
    return np.stack(choices, axis=1), np.stack(margins, axis=1)


class _States:
    """Reads ``l_out-<layer>``: what each layer hands on."""

    def __init__(self, model: LlamaModel, layers: Sequence[int]) -> None:
        library = self._library = model.library
        names = [f"l_out-{layer}".encode() for layer in layers]
        name_of, read = library_address(library, "ggml_get_name"), library_address(library, "ggml_backend_tensor_get")
        self._tap = NodeTap(name_of, read, b"-", names)
        parameters = library.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = 1024
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.cb_eval = ctypes.cast(self._tap.callback, library.llama_cpp.ggml_backend_sched_eval_callback)
        parameters.cb_eval_user_data = self._tap.state
        self._handle = library.llama_init_from_model(model.handle, parameters)
        self._width = model.info.width

    def read(self, ids: Sequence[int]) -> Floats:
        """Shape (layers, tokens, width)."""
        library = self._library
        library.llama_memory_clear(library.llama_get_memory(self._handle), False)
        self._tap.arm(True)
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        if library.llama_decode(self._handle, library.llama_batch_get_one(tokens, len(ids))):
            raise RuntimeError("llama_decode failed")
        copies = sorted(self._tap.copies())
        self._tap.arm(False)
        return np.stack([np.frombuffer(data, dtype=np.float32).reshape(-1, self._width) for _, _, data in copies])

    def close(self) -> None:
        """Free the context."""
        self._library.llama_free(self._handle)


class _Options(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _read_head(path: Path) -> tuple[Floats, Floats]:
    """The final norm's weights and the head (vocabulary, width), tied or not, of an F16 file, found by ggml's own reader."""
    from streamco.engines.llamacpp.library import load_library

    library: Any = load_library().llama_cpp._lib
    for name, result in (("gguf_init_from_file", ctypes.c_void_p), ("gguf_get_data_offset", ctypes.c_size_t)):
        getattr(library, name).restype = result
    library.gguf_find_tensor.restype = ctypes.c_int64
    library.gguf_get_tensor_offset.restype = library.gguf_get_tensor_size.restype = ctypes.c_size_t
    file = ctypes.c_void_p(library.gguf_init_from_file(os.fsencode(path), _Options(True, None)))
    start = library.gguf_get_data_offset(file)

    def tensor(name: bytes, kind: type[np.floating[Any]]) -> Floats:
        number = ctypes.c_int64(library.gguf_find_tensor(file, name))
        size = library.gguf_get_tensor_size(file, number) // np.dtype(kind).itemsize
        values = np.fromfile(path, dtype=kind, count=size, offset=start + library.gguf_get_tensor_offset(file, number))
        return values.astype(np.float32)

    is_tied = library.gguf_find_tensor(file, b"output.weight") < 0
    norm, head = tensor(b"output_norm.weight", np.float32), tensor(b"token_embd.weight" if is_tied else b"output.weight", np.float16)
    library.gguf_free(file)
    return norm, head.reshape(-1, norm.size)


if __name__ == "__main__":
    main()
