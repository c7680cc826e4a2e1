"""How fast is a prebuilt llama.cpp beside one that was compiled for this processor?

Tokens a second of a prompt read in one batch, and of tokens written one after another, as ``streamco doctor`` measures them: bare
``llama_decode``, a thread a core. Each round loads the library and the model in a new process; the libraries take turns. Models: the
packaged 135M, and Qwen2.5-Coder 1.5B if ``make models`` has fetched it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from bench.fetch_models import fetched
from bench.report import add_arguments, emit, interleave, rows_from
from streamco.cli.doctor import measure_rates
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model import LlamaModel

BENCH = "libraries"
LIBRARIES = ("prebuilt", "compiled")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--child", metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads = os.cpu_count() or 1
    if options.child:
        print(json.dumps(measure_rates(LlamaModel(Path(options.child)), threads)))
        return
    large = fetched("1.5B")
    models = {"SmolLM2 135M, Q4_1": packaged_model()} | ({} if large is None or options.quick else {"Qwen2.5-Coder 1.5B, Q4_K_M": large})
    rows = []
    for name, path in models.items():
        rates: dict[str, list[tuple[float, float]]] = {library: [] for library in LIBRARIES}

        def run(library: str, path: Path = path, rates: dict[str, list[tuple[float, float]]] = rates) -> float:
            words = [sys.executable, "-m", "bench.timed.libraries", "--child", str(path)]
            environment = {**os.environ, "STREAMCO_LLAMA_LIBRARY": library}
            read, written = json.loads(subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout)
            rates[library].append((read, written))
            return float(written)

        interleave({library: partial(run, library) for library in LIBRARIES}, 2 if options.quick else 8)
        for place, metric in enumerate(("prompt read", "written")):
            found = {library: [pair[place] for pair in pairs] for library, pairs in rates.items()}
            rows += rows_from(BENCH, f"{name}, {threads} threads", metric, "tokens/s", found)
    emit(rows, options.json, against="compiled")


if __name__ == "__main__":
    main()
