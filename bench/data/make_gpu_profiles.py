"""Make the packaged GPU profiles from measured operators and whole passes.

    python -m bench.data.make_gpu_profiles [--out DIR]

Reads ``$STREAMCO_DATA`` (by default ``../shared/data``) and writes small tables of derived figures, never the rows themselves:

* VIDUR (MIT): medians of each linear operator by tokens in the batch, on A40, A100 and H100. Their sum of a layer becomes a line through
  15 points, the one with the least squared relative error; a GPU's tiles make the measured times jump by up to a quarter beside it.
* splitwise-sim (MIT): whole prompts and steps of Llama-2-70B. The constants that no operator has are fitted to three of its six machines
  (``bench.counted.hardware.FITTED``): the absolute relative error of prefill and decode, each in the mean, is as small as it gets.

GPUs and pairs of model and GPU without measurements are scaled from measured ones; each note says how.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from bench.counted.hardware import FITTED, MODEL, Measured, measured, operator_times, seconds_of
from streamco.sim.hardware.operators import MODELS, Gpu, forward_pass

ROOT = Path(__file__).resolve().parents[2]
VIDUR = "github.com/microsoft/vidur, data/profiling/compute, commit 7d475133"
SPLITWISE = "github.com/Mutinifni/splitwise-sim, data/perf_model.csv, commit 8f99e7dc"
POINTS = (1, 8, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
MESSAGES = (2.0**25, 2.0**26)  # bytes; Splitwise's machines lose half of the link between the two: 2048 and 4096 tokens of 8192 values

Tables = dict[str, dict[int, list[float]]]  # milliseconds of a layer at POINTS, by model and tensor parallelism


class Card(Struct, frozen=True, kw_only=True):
    """What its maker publishes of a GPU: bytes, bytes/s, bytes/s each way, dense half-precision FLOP/s of the tensor cores."""

    title: str
    memory: float
    bandwidth: float
    link: float
    flops: float


NVLINK_2, NVLINK_3, NVLINK_4, PCIE_4 = 150e9, 300e9, 450e9, 31.5e9
CARDS = {
    "a100": Card(title="NVIDIA A100 SXM 80 GB", memory=80e9, bandwidth=2039e9, link=NVLINK_3, flops=312e12),
    "h100": Card(title="NVIDIA H100 SXM 80 GB", memory=80e9, bandwidth=3350e9, link=NVLINK_4, flops=989e12),
    "a40": Card(title="NVIDIA A40 48 GB", memory=48e9, bandwidth=696e9, link=PCIE_4, flops=149.7e12),
    "a6000": Card(title="NVIDIA RTX A6000 48 GB", memory=48e9, bandwidth=768e9, link=PCIE_4, flops=154.8e12),
    "v100": Card(title="NVIDIA V100 SXM2 32 GB", memory=32e9, bandwidth=900e9, link=NVLINK_2, flops=125e12),
}
FEWER = "llama3-8b: the A100's times by the ratio of llama2-7b on both"
ASSUMED = "nobody measured whole passes: gaps, host and share of the link as of the A100's machine, link PCIe 4"
SCALED = "operators: the A40's by published bandwidth where weights are read, by published FLOP/s where tokens are computed"
NOTES = {
    "a100": "operators measured; constants fitted to whole passes of llama2-70b on 2 and 8 GPUs (vLLM of 2023)",
    "h100": f"operators measured; {FEWER}; constants fitted to whole passes of llama2-70b on 4 GPUs (vLLM of 2023)",
    "a40": f"operators measured; {FEWER}; {ASSUMED}",
    "a6000": f"{SCALED}; {FEWER}; {ASSUMED}",
    "v100": f"{SCALED}; {FEWER}; {ASSUMED.replace('PCIe 4', 'NVLink 2')}",
}


class Constants(Struct, frozen=True, kw_only=True):
    """What is fitted: seconds a layer, shares of the link for messages up to and above ``MESSAGES``, seconds a sequence."""

    gap: float = 1.2e-4
    share: float = 0.35
    share_of_large: float = 0.15
    host_decode_a100: float = 5.5e-4
    host_decode_h100: float = 3.7e-4
    host_prefill_a100: float = 8e-4
    host_prefill_h100: float = 6e-4
    host_row: float = 3.5e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "streamco" / "sim" / "profiles")
    out = parser.parse_args().out
    tables = all_tables()
    constants = fit(tables)
    for name, value in msgspec.structs.asdict(constants).items():
        print(f"{name:20} {value:.4g}")
    for name in CARDS:
        path = out / f"{name}.json"
        path.write_text(render(msgspec.to_builtins(make_gpu(name, tables[name], constants), str_keys=True)), encoding="utf-8")
        print(f"{path.name:20} {path.stat().st_size:6} bytes")


def render(profile: Mapping[str, Any]) -> str:
    """One field a line, one table a line."""
    *fields, (_, models) = profile.items()
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields]
    tables = []
    for model, rows in models.items():
        inner = ",\n".join(f"      {json.dumps(ways)}: {json.dumps(row)}" for ways, row in rows.items())
        tables.append(f"    {json.dumps(model)}: {{\n{inner}\n    }}")
    return "{\n" + ",\n".join(lines) + ',\n  "layer_ms": {\n' + ",\n".join(tables) + "\n  }\n}\n"


# Tables


def line_through(points: Sequence[tuple[int, float]]) -> list[float]:
    """Milliseconds at ``POINTS``: least squared relative error, never falling."""
    tokens, ms = np.array(points, dtype=np.float64).T
    hats = np.stack([np.interp(tokens, POINTS, unit) for unit in np.eye(len(POINTS))], axis=1)
    fitted = np.linalg.lstsq(hats / ms[:, None], np.ones(len(ms)), rcond=None)[0]
    return ascending(fitted)


def ascending(values: Iterable[float]) -> list[float]:
    """Rounded to four digits; a value below the one before it is noise, and the larger of the two stands."""
    return [float(f"{value:.4g}") for value in accumulate(values, max)]


def all_tables() -> dict[str, Tables]:
    """Of every GPU: measured, and scaled for those that weren't."""
    tables: dict[str, Tables] = {name: {} for name in CARDS}
    for (gpu, model, ways), points in sorted(operator_times().items()):
        tables[gpu].setdefault(model, {})[ways] = line_through(points)
    for gpu in ("h100", "a40"):
        known, here = tables["a100"], tables[gpu]
        here["llama3-8b"] = {
            ways: ascending(np.array(row) * here["llama2-7b"][ways] / known["llama2-7b"][ways]) for ways, row in known["llama3-8b"].items()
        }
    for gpu in ("a6000", "v100"):
        tables[gpu] = {
            model: {ways: rescaled(model, row, CARDS["a40"], CARDS[gpu]) for ways, row in rows.items()}
            for model, rows in tables["a40"].items()
        }
    return tables


def rescaled(model: str, row: Sequence[float], known: Card, wanted: Card) -> list[float]:
    """The times of one GPU on another: between the ratios of bandwidth and of FLOP/s, by what of a roofline is arithmetic."""
    weights = MODELS[model].layer_weights
    reading = 2.0 * weights / known.bandwidth
    scaled = []
    for tokens, ms in zip(POINTS, row, strict=True):
        computing = 2.0 * weights * tokens / known.flops
        ratio = (reading * known.bandwidth / wanted.bandwidth + computing * known.flops / wanted.flops) / (reading + computing)
        scaled.append(float(f"{ms * ratio:.4g}"))
    return scaled


# Constants


def make_gpu(name: str, tables: Tables, constants: Constants) -> Gpu:
    """A profile; machines that nobody measured are taken to be like the A100's."""
    card, machine = CARDS[name], "h100" if name == "h100" else "a100"
    digits = {key: float(f"{value:.4g}") for key, value in msgspec.structs.asdict(constants).items()}
    return Gpu(
        name=name,
        title=card.title,
        source=f"{VIDUR}; {SPLITWISE}",
        license="MIT",
        note=NOTES[name],
        memory=card.memory,
        bandwidth=card.bandwidth,
        link=card.link,
        gap=digits["gap"],
        all_reduce=tuple(zip(MESSAGES, (digits["share"], digits["share_of_large"]), strict=True)),
        host_decode=digits[f"host_decode_{machine}"],
        host_prefill=digits[f"host_prefill_{machine}"],
        host_row=digits["host_row"],
        tokens=POINTS,
        layer_ms={model: {ways: tuple(row) for ways, row in rows.items()} for model, rows in tables.items()},
    )


def fit(tables: Mapping[str, Tables]) -> Constants:
    """Turn one constant after the other, by ever smaller factors, as long as that makes the error smaller."""
    points = [point for point in measured() if (point.gpu, point.ways) in FITTED]
    best = Constants()
    least = error(best, tables, points)
    factors = dict.fromkeys(Constants.__struct_fields__, 1.3)
    while max(factors.values()) > 1.001:
        is_better = False
        for name, factor in factors.items():
            for turn in (factor, 1.0 / factor):
                tried = msgspec.structs.replace(best, **{name: getattr(best, name) * turn})
                if (found := error(tried, tables, points)) < least - 1e-9:
                    best, least, is_better = tried, found, True
                    break
        if not is_better:
            factors = {name: math.sqrt(factor) for name, factor in factors.items()}
    return best


def error(constants: Constants, tables: Mapping[str, Tables], points: Sequence[Measured]) -> float:
    """Mean absolute logarithm of predicted over measured, of prefill and of decode, added."""
    models = {}
    for name, ways in {(point.gpu, point.ways) for point in points}:
        gpu = make_gpu(name, tables[name], constants)
        models[name, ways] = forward_pass(gpu, MODELS[MODEL], gpu.layer_ms[MODEL][ways], ways)
    return sum(
        fmean(abs(math.log(seconds_of(models[point.gpu, point.ways], point) / point.seconds)) for point in points if point.op == op)
        for op in ("prefill", "decode")
    )


if __name__ == "__main__":
    main()
