"""How fast is the engine when other programs want the cores as well?

llama.cpp's threads meet after each node of the graph, and a thread that is early spins. Contenders differ in how long it spins, which an
environment variable of libgomp sets: libgomp's default, streamco's value, and none. Each generation is a process of its own with as many
threads as there are cores. Beside it runs no other process, or one for each core that counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from bench.report import Row, add_arguments, emit, interleave, rows_from
from bench.timed.engine import generate
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model

__all__ = ["main"]

BENCH = "busy"
CONTENDERS: dict[str, dict[str, str]] = {
    "streamco": {},
    "libgomp's own": {"GOMP_SPINCOUNT": "300000"},  # gomp/env.c: where neither this nor a policy is set
    "asleep at once": {"OMP_WAIT_POLICY": "passive"},
}
TOKENS = 24
PROMPT = "Tell me a story about a small boat on a large lake."


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_generate()))
        return 0
    rows: list[Row] = []
    for case, others in (("cores free", 0), ("cores busy", os.cpu_count() or 1)):
        firsts: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        with _counting(others):
            later = interleave({name: partial(_measure, name, firsts[name]) for name in CONTENDERS}, 2 if options.quick else 7)
        rows += rows_from(BENCH, case, "time to first token", "ms", firsts) + rows_from(BENCH, case, "a token", "ms", later)
    emit(rows, options.json)
    return 0


def _measure(name: str, firsts: list[float]) -> float:
    """Milliseconds of a token; until the first one goes into ``firsts``."""
    first, each = _run(name)
    firsts.append(1000.0 * first)
    return 1000.0 * each


def _run(name: str) -> tuple[float, float]:
    environment = {each: value for each, value in os.environ.items() if each not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}}
    command = [sys.executable, "-m", "bench.timed.busy", "--child"]
    told = subprocess.run(command, env=environment | CONTENDERS[name], check=True, capture_output=True, text=True)
    first, each = json.loads(told.stdout)
    return first, each


def _generate() -> tuple[float, float]:
    """Seconds until the first token, and of each one behind it; an answer before that doesn't count."""
    options = EngineOptions(threads=os.cpu_count(), context_tokens=512)
    with closing(LlamaEngine(packaged_model(), options)) as engine:
        prompt = engine.tokenize(PROMPT)
        _answer(engine, engine.tokenize("Hello."), 2)
        return _answer(engine, prompt, TOKENS)


def _answer(engine: LlamaEngine, prompt: list[int], tokens: int) -> tuple[float, float]:
    began, firsts = time.perf_counter(), list[float]()
    generate(engine, prompt, tokens, lambda: firsts.append(time.perf_counter()))
    return firsts[0] - began, (time.perf_counter() - firsts[0]) / (tokens - 1)


@contextmanager
def _counting(processes: int) -> Iterator[None]:
    """So many other programs that want a core each."""
    others = [multiprocessing.Process(target=_count, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.terminate()
            other.join()


def _count() -> None:
    number = 0
    while True:
        number += 1


if __name__ == "__main__":
    sys.exit(main())
