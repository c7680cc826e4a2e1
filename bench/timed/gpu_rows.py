"""What does one more row cost on a GPU, and does the simulator know it?

Decoders of several models' sizes, with random weights in bfloat16 and a cache, are replayed from CUDA graphs. The timed passes are over 1
to 512 rows of one sequence, as a verifier reads a draft; over one and four rows of 1 to 64 sequences, as a server batches streams and
verifications; and over prompts. Beside each time stands the one that ``streamco.sim.hardware`` predicts, if it knows the model on this
GPU: with graphs, and with graphs but without the gaps that were fitted to machines of several GPUs. Passes that PyTorch launches one
kernel after the other stand beside the forecast without graphs.

It needs a CUDA GPU with memory for the models, PyTorch and a checkout. Only the forecasts need streamco itself. ``--save FILE`` writes the
measured rows on the GPU's machine. ``--keep FILE``, where streamco is installed, adds the forecasts and keeps the run as
bench/results/gpu_rows.jsonl.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from bench.report import Row, add_arguments, emit, summarise
from bench.runs import RUNS, save

__all__ = ["SHAPES", "DecoderShape", "Point", "compared", "forecasts", "kept", "main", "plan", "predicted"]

BENCH = "gpu_rows"
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (512, 2048)
WITHIN = 1.1  # times of one row that count as free
TIME, LAUNCHED = "time", "time, launched one by one"
Forecast = Literal["graphs", "graphs without gaps", "eager"]
FORECASTS: Mapping[Forecast, str] = {"graphs": TIME, "graphs without gaps": TIME, "eager": LAUNCHED}
"""Forecasts, and what each is compared with."""


class DecoderShape(NamedTuple):
    """The sizes of a model, as its configuration has them."""

    layers: int
    width: int
    feed_forward: int
    vocabulary: int
    heads: int
    kv_heads: int
    has_bias: bool = False  # of queries, keys and values
    is_tied: bool = False  # the head is the embedding


SHAPES: Mapping[str, DecoderShape] = {
    "qwen2.5-coder-0.5b": DecoderShape(24, 896, 4864, 151936, 14, 2, has_bias=True, is_tied=True),
    "qwen2.5-coder-1.5b": DecoderShape(28, 1536, 8960, 151936, 12, 2, has_bias=True, is_tied=True),
    "llama2-7b": DecoderShape(32, 4096, 11008, 32000, 32, 32),
    "llama3-8b": DecoderShape(32, 4096, 14336, 128256, 32, 8),
    "llama2-13b": DecoderShape(40, 5120, 13824, 32000, 40, 40),
}


class Point(NamedTuple):
    """A pass that is timed; see ``bench.timed.gpu_decoder.Pass``."""

    case: str
    contender: str
    sequences: int
    rows: int
    context: int
    is_prompt: bool = False


def plan(model: str, *, is_quick: bool = False) -> list[Point]:
    """Passes of a model, by case, the smallest first."""
    rows, sequences = (ROWS[::3], SEQUENCES[::3]) if is_quick else (ROWS, SEQUENCES)
    points = [Point(f"{model}, one sequence, context {context}", _rows(count), 1, count, context) for context in CONTEXTS for count in rows]
    points += [
        Point(f"{model}, {_rows(each)} of each sequence, context 512", _counted(count, "sequence"), count, each, 512)
        for each in (1, 4)
        for count in sequences
    ]
    return points + [Point(f"{model}, prompt", f"{count} tokens", 1, count, 0, is_prompt=True) for count in CONTEXTS]


def launched_plan(model: str) -> list[Point]:
    """Passes that are also launched one by one."""
    return [point for point in plan(model) if point.is_prompt or (point.context == 512 and max(point.sequences, point.rows) in {1, 8, 64})]


def _rows(count: int) -> str:
    return _counted(count, "row")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def compared(rows: Sequence[Row]) -> list[Row]:
    """Times over the time of one row or sequence, by case: each of them, the largest within a tenth of it, and where it has doubled.

    Args:
        rows: measured times, in each case the smallest pass first.
    """
    found: list[Row] = []
    for case in dict.fromkeys(row.case for row in rows):
        of_case = [row for row in rows if (row.case, row.metric) == (case, TIME)]
        noun = of_case[0].contender.split()[1]
        if noun == "tokens":
            continue
        counts = [int(row.contender.split()[0]) for row in of_case]
        shares = [row.median / of_case[0].median for row in of_case]
        one, metric = of_case[0].median, f"time over that of one {noun}"
        found += [Row(BENCH, case, row.contender, metric, "x", row.median / one, row.min / one, row.max / one) for row in of_case]
        most = max(count for count, share in zip(counts, shares, strict=True) if share <= WITHIN)
        found.append(_row(case, "largest", f"{noun}s within 10 % of one's time", f"{noun}s", most))
        if (doubled := _crossing(list(zip(counts, shares, strict=True)), 2.0)) is not None:
            found.append(_row(case, "interpolated", f"{noun}s in twice one's time", f"{noun}s", doubled))
    return found


def _crossing(points: Sequence[tuple[int, float]], level: float) -> float | None:
    """Return where the last rise through a level is, on lines between the points; None: it stays below."""
    if points[-1][1] < level:
        return None
    return next(
        low + (high - low) * (level - before) / (after - before)
        for (low, before), (high, after) in reversed(list(pairwise(points)))
        if before < level <= after
    )


def _row(case: str, contender: str, metric: str, unit: str, value: float) -> Row:
    return Row(BENCH, case, contender, metric, unit, value, value, value)


def predicted(model: str, gpu: str, point: Point, forecast: Forecast) -> float:
    """Return the milliseconds that the simulator predicts for a point.

    Raises:
        ConfigError: it doesn't know the model on this GPU.
    """
    from msgspec.structs import replace

    from streamco.sim.hardware.forward_pass_times import Hardware, gpus, predictor
    from streamco.sim.hardware.operators import MODELS, forward_pass

    engine: Literal["eager", "graphs"] = "eager" if forecast == "eager" else "graphs"
    seconds = predictor(Hardware(model=model, gpu=gpu, engine=engine))
    if forecast == "graphs without gaps":
        alone = replace(gpus()[gpu], gap=0.0)
        seconds = forward_pass(alone, MODELS[model], alone.layer_ms[model][1], 1, engine)
    context = point.sequences * point.context
    is_decode = point.rows == 1
    return 1e3 * (seconds(point.sequences, 0, context) if is_decode else seconds(0, point.sequences * point.rows, context, point.sequences))


def forecasts(rows: Sequence[Row], machine: str) -> list[Row]:
    """Predicted over measured times, and the mean error of each model and kind of pass; nothing for models or a GPU without a profile."""
    from streamco.sim.hardware.forward_pass_times import gpus

    gpu = next((name for name in gpus() if re.search(rf"\b{name}\b", machine, re.IGNORECASE)), None)
    if gpu is None:
        return []
    measured = {(row.case, row.contender, row.metric): row.median for row in rows}
    found: list[Row] = []
    for model in [name for name in SHAPES if name in gpus()[gpu].layer_ms]:
        for forecast, metric in FORECASTS.items():
            shares = {
                point: predicted(model, gpu, point, forecast) / measured[point.case, point.contender, metric]
                for point in plan(model)
                if (point.case, point.contender, metric) in measured
            }
            found += [_row(each.case, each.contender, f"forecast ({forecast}) over time", "x", share) for each, share in shares.items()]
            for case in dict.fromkeys(point.case for point in shares):
                off = [100 * abs(share - 1.0) for point, share in shares.items() if point.case == case]
                found.append(Row(BENCH, case, forecast, "mean absolute error of the forecast", "%", fmean(off), min(off), max(off)))
    return found


def measure(models: Sequence[str], *, is_quick: bool) -> Iterator[Row]:
    """Yield the measured rows of each model as soon as they are whole; its checks come first."""
    from bench.timed.gpu_decoder import Decoder, check, launched, speeds, times, torch

    for metric, value in speeds().items():
        name, unit = metric.removesuffix("]").split(" [")
        yield _row("the card", name, "rate", unit, value)
    for model in models:
        shape, points = SHAPES[model], plan(model, is_quick=is_quick)
        room = max(point.sequences * (point.context + point.rows + 16) for point in points)
        decoder = Decoder(shape, device="cuda", dtype=torch.bfloat16, cached_tokens=room)
        plain = launched(decoder, launched_plan(model), 3 if is_quick else 15)
        decoder.compile()
        print(f"{model}: {decoder.weight_bytes / 1e9:.2f} GB of weights, logits {check(decoder):.1g} apart", file=sys.stderr)
        found = times(decoder, points, 1 if is_quick else 5)
        rows = _summarised(TIME, found)
        yield from rows
        yield from _summarised(LAUNCHED, plain)
        rate = [decoder.weight_bytes / row.median / 1e9 for row in rows[:1]]
        yield _row(rows[0].case, rows[0].contender, "weights read", "TB/s", rate[0])
        yield from compared(rows)
        del decoder
        torch.cuda.empty_cache()


def _summarised(metric: str, samples: Mapping[Point, Sequence[float]]) -> list[Row]:
    return [
        summarise(values, bench=BENCH, case=point.case, contender=point.contender, metric=metric, unit="ms")
        for point, values in samples.items()
    ]


def gpu_machine() -> str:
    """GPU, PyTorch, CUDA and Python, in a line."""
    from bench.timed.gpu_decoder import torch

    return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"


def kept(lines: Iterable[str], *, at: str) -> tuple[dict[str, Any], list[Row]]:
    """Head and rows of a run, of the lines that ``--save`` wrote elsewhere: with this commit and the forecasts.

    Args:
        lines: the file's lines: first the head, then the rows.
        at: the commit that was measured.
    """
    head, *rows = map(json.loads, lines)
    measured = [Row(**row) for row in rows]
    return {**head, "commit": at}, [*measured, *forecasts(measured, head["machine"])]


def main() -> int:
    """Measure, or keep what was measured elsewhere."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=list(SHAPES), metavar="MODEL", help=", ".join(SHAPES))
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write the measured rows to this file")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="don't measure: keep what this commit saved, with forecasts")
    options = parser.parse_args()
    if options.keep is not None:
        from bench.checkout import commit

        head, rows = kept(options.keep.read_text(encoding="utf-8").splitlines(), at=commit())
        save(BENCH, rows, head)
        print(f"kept {len(rows)} rows in {RUNS / BENCH}.jsonl", file=sys.stderr)
        return 0
    if find_spec("torch") is None:
        parser.error("expected PyTorch, got no package torch")
    from bench.timed.gpu_decoder import torch

    if not torch.cuda.is_available():
        parser.error("expected a GPU that PyTorch can use by CUDA, got none")
    machine = gpu_machine()
    chosen = ["--quick"] if options.quick else []
    chosen += ["--models", *options.models] if options.models != list(SHAPES) else []
    head = {"bench": BENCH, "machine": machine, "date": dt.datetime.now(tz=dt.UTC).date().isoformat(), "options": chosen}
    rows = []
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        for row in measure(options.models, is_quick=options.quick):
            rows.append(row)
            if options.save is not None:
                options.save.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *map(asdict, rows))), encoding="utf-8")
    emit([*rows, *_forecasts_if_known(rows, machine)], options.json)
    return 0


def _forecasts_if_known(rows: Sequence[Row], machine: str) -> list[Row]:
    """Return the forecasts, if streamco is installed here."""
    try:
        return forecasts(rows, machine)
    except ModuleNotFoundError as missing:
        print(f"without forecasts, because {missing.name} is not installed", file=sys.stderr)
        return []


if __name__ == "__main__":
    sys.exit(main())
