"""How far predicted forward passes are from measured ones: Llama-2-70B on A100 and H100 machines, and the packaged tables from operators.

The measurements are Splitwise's (vLLM of 2023, five repeats a point, medians). Constants were fitted on three of the six machines
(``FITTED``); the others test them. Every prompt of 128 to 8192 tokens is here, alone or in batches of 512 each, with 128 tokens generated;
longer answers repeat the point of one row. Batches that the engine cut because memory ran out are left out: there the whole time isn't that
of the prompt and the tokens. The form of the model was found with all six machines in view.

The paper's predictor, VIDUR, is 7.4 % off for prefill and 5.2 % for decode (DSD section 5.1; prompts of GSM8K, which are short). It counts
kernels alone; ``kernels`` shows what that gives here.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import fmean, median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from bench.report import Row, add_arguments, emit, interleave, per_call, rows_from
from bench.traces import data_folder
from streamco.sim.hardware.forward_pass_times import ForwardPassShape, Hardware, Op, gpus, predict, predictor
from streamco.sim.hardware.operators import MODELS, PassSeconds, forward_pass

__all__ = ["FITTED", "MODEL", "MOST", "Measured", "errors", "kernels", "measured", "operator_times", "packaged", "seconds_of"]

MODEL = "llama2-70b"
NAMES = {"meta-llama/Llama-2-70b-hf": "llama2-70b", "Qwen/Qwen-72B": "qwen-72b", "meta-llama/Llama-2-7b-hf": "llama2-7b"}
NAMES |= {"meta-llama/Meta-Llama-3-8B": "llama3-8b", "microsoft/phi-2": "phi-2"}
MOST = 4096  # tokens of a batch that all models were timed with
FITTED = {("a100", 2), ("a100", 8), ("h100", 4)}  # each GPU and each number of GPUs once at least, no machine that judges
GENERATED = 128
SHORT = 2048  # tokens in a prefill; beyond that engines read in chunks


class Measured(Struct, frozen=True, kw_only=True):
    """The median of one point.

    Args:
        gpu: its name.
        ways: tensor parallelism.
        op: which phase.
        batch: sequences.
        prompt: tokens of each.
        seconds: of the whole prefill, or of a step that decodes a token of each sequence.
    """

    gpu: str
    ways: int
    op: Op
    batch: int
    prompt: int
    seconds: float

    @property
    def shape(self) -> ForwardPassShape:
        """As the model is asked; a decode's caches hold the prompt and half of what is generated."""
        if self.op == "prefill":
            return ForwardPassShape(tokens=self.batch * self.prompt, sequences=self.batch)
        return ForwardPassShape(tokens=self.batch, sequences=self.batch, context=self.batch * (self.prompt + GENERATED // 2))


def measured() -> list[Measured]:
    """All points of the model, but for batches that ran in parts."""
    times: dict[tuple[str, int, int, int], list[tuple[float, float, float]]] = defaultdict(list)
    with gzip.open(data_folder() / "gpu_profiles" / "splitwise_prompt_token_times.csv.gz", "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["model"] == MODEL and int(row["token_size"]) == GENERATED and not row["hardware"].endswith("pcap"):
                key = (row["hardware"].split("-")[0], int(row["tensor_parallel"]), int(row["batch_size"]), int(row["prompt_size"]))
                times[key].append((float(row["prompt_time"]), float(row["token_time"]), float(row["e2e_time"])))
    found: list[Measured] = []
    for (gpu, ways, batch, prompt), repeats in sorted(times.items()):
        whole, step, all_of_it = (median(values) / 1000.0 for values in zip(*repeats, strict=True))
        if abs(all_of_it - whole - (GENERATED - 1) * step) < 0.05 * all_of_it:
            known = partial(Measured, gpu=gpu, ways=ways, batch=batch, prompt=prompt)
            found += [known(op="prefill", seconds=whole), known(op="decode", seconds=step)]
    return found


def operator_times() -> dict[tuple[str, str, int], list[tuple[int, float]]]:
    """(tokens, milliseconds of a layer's linear operators) by GPU, model and tensor parallelism; the embedding spread over the layers."""
    found: dict[tuple[str, str, int], list[tuple[int, float]]] = defaultdict(list)
    with gzip.open(data_folder() / "gpu_profiles" / "vidur_linear_ops_median_ms.csv.gz", "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            gpu, model, ways, tokens = row.pop("gpu"), NAMES[row.pop("model")], int(row.pop("tensor_parallel")), int(row.pop("num_tokens"))
            embedding = float(row.pop("emb"))
            layer = sum(float(value or 0.0) for value in row.values())  # phi-2 has one norm
            if tokens <= MOST:
                found[gpu, model, ways].append((tokens, layer + embedding / MODELS[model].layers))
    return found


def seconds_of(model: PassSeconds, point: Measured) -> float:
    """What a predictor says of a point."""
    shape = point.shape
    return model(shape.tokens, 0, shape.context) if point.op == "decode" else model(0, shape.tokens, 0, shape.sequences)


def errors(points: Sequence[Measured], model: Callable[[str, int], PassSeconds]) -> list[float]:
    """Of each point, in percent, with its sign; ``model`` is asked for the predictor of a GPU and a number of them."""
    return [100.0 * (seconds_of(model(point.gpu, point.ways), point) / point.seconds - 1.0) for point in points]


def main() -> None:
    """Errors by machine, distance of the tables from their source, a whole run of another engine, and the time of a call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    args = parser.parse_args()
    emit([*machine_rows(measured()), *graph_rows(), *table_rows(), *call_rows(3 if args.quick else 9)], args.json)


def machine_rows(points: Sequence[Measured]) -> list[Row]:
    """Absolute error of each machine, and of all that were fitted or held out: mean, least and largest of the points."""
    machines = sorted({(point.gpu, point.ways) for point in points})
    groups = {f"{gpu} x {ways} ({'fitted' if (gpu, ways) in FITTED else 'held out'})": {(gpu, ways)} for gpu, ways in machines}
    groups |= {"all fitted": FITTED, "all held out": {*machines} - FITTED}
    rows = []
    for op in ("prefill", "decode"):
        for case, members in groups.items():
            chosen = [point for point in points if point.op == op and (point.gpu, point.ways) in members]
            rows += _error_rows(f"{op}, {case}", chosen)
            if op == "prefill":
                rows += _error_rows(f"{op} of up to {SHORT} tokens, {case}", [each for each in chosen if each.shape.tokens <= SHORT])
    return rows


def _error_rows(case: str, points: Sequence[Measured]) -> list[Row]:
    rows = []
    for contender, model in (("streamco", packaged), ("kernels", kernels)):
        off = [abs(error) for error in errors(points, model)]
        rows.append(Row("hardware", case, contender, "mean absolute error", "%", fmean(off), min(off), max(off)))
    return rows


def packaged(gpu: str, ways: int) -> PassSeconds:
    """As everybody gets it."""
    return predictor(Hardware(model=MODEL, gpu=gpu, tensor_parallel=ways))


@cache
def kernels(gpu: str, ways: int) -> PassSeconds:
    """Without all-reduce, gaps and host."""
    alone = replace(gpus()[gpu], gap=0.0, link=math.inf)
    return forward_pass(alone, MODELS[MODEL], alone.layer_ms[MODEL][ways], ways, "graphs")


def graph_rows() -> list[Row]:
    """64 prompts of 256 tokens and 256 tokens for each, on four A100 with CUDA graphs: vLLM of December 2023 (its pull request 2192)."""
    hardware = Hardware(model=MODEL, gpu="a100", tensor_parallel=4, engine="graphs")
    whole = predict("prefill", ForwardPassShape(tokens=64 * 256, sequences=64), hardware)
    whole += sum(
        predict("decode", ForwardPassShape(tokens=64, sequences=64, context=64 * (256 + made)), hardware) for made in range(1, 256)
    )
    times = {"streamco": whole, "vLLM, NCCL": 16.37, "vLLM, its own all-reduce": 14.57}
    return rows_from("hardware", "64 x (256 + 256 tokens), a100 x 4, graphs", "time", "s", {name: [value] for name, value in times.items()})


def table_rows() -> list[Row]:
    """How far the lines through 15 points are from the measured operators, by GPU."""
    off: dict[str, list[float]] = defaultdict(list)
    for (name, model, ways), points in operator_times().items():
        gpu = gpus()[name]
        line = np.interp([tokens for tokens, _ in points], gpu.tokens, gpu.layer_ms[model][ways])
        off[name] += [abs(100.0 * (there / ms - 1.0)) for there, (_, ms) in zip(line, points, strict=True)]
    return [
        Row("hardware", "tables against operators", name, "mean absolute error", "%", fmean(values), min(values), max(values))
        for name, values in off.items()
    ]


def call_rows(rounds: int) -> list[Row]:
    """Microseconds of a call: 16 rows that decode beside a chunk of 512 tokens."""
    hardware = Hardware(model=MODEL, gpu="a100", tensor_parallel=4)
    fast, shape = predictor(hardware), ForwardPassShape(tokens=512, context=9000)
    contenders = {
        "predictor": per_call(lambda: fast(16, 512, 9000), 5000, scale=1e6),
        "predict": per_call(lambda: predict("prefill", shape, hardware), 5000, scale=1e6),
    }
    return rows_from("hardware", "one call", "time", "us", interleave(contenders, rounds))


if __name__ == "__main__":
    main()
