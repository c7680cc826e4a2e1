"""What do several rows of a verification cost with each format of the weights, on one thread?

The model is loaded as ``streamco serve`` loads it, with repacked weights where the CPU's kernels take them, and its engine measures its
rows, as it does the first time. Formats take turns. The default is the 1.5B of ``make models``; ``--model`` takes another file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.pairs import model_file
from bench.report import Row, add_arguments, emit, rows_from
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.gguf import derived

__all__ = ["main", "measured", "rows_of"]

FORMATS = ("Q4_K_M", "Q4_0", "Q8_0")
ROWS = (1, 2, 4, 8, 16)
TURNS = 3


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--model", type=Path, help="a GGUF file, from which the formats are derived (default: the 1.5B)")
    parser.add_argument("--formats", nargs="+", default=FORMATS, help=f"default: {' '.join(FORMATS)}; the first one is the file's own")
    options = parser.parse_args()
    source = options.model or model_file("1.5B")
    files = {name: derived(source, name) if at else source for at, name in enumerate(options.formats)}
    emit(rows_of(files, 1 if options.quick else TURNS), options.json)
    return 0


def rows_of(files: Mapping[str, Path], turns: int) -> Iterator[Row]:
    """Yield milliseconds of each number of rows by format, over several loads; the formats take turns."""
    costs = [(name, measured(path)) for _ in range(turns) for name, path in files.items()]
    for rows in ROWS:
        samples = {name: [1000.0 * each[rows] for other, each in costs if other == name] for name in files}
        yield from rows_from("row_formats", f"{rows} rows", "time", "ms", samples)


def measured(path: Path) -> Mapping[int, float]:
    """Return the seconds of a batch by its rows, as an engine on one thread measures them when it loads this file for the first time."""
    options = EngineOptions(threads=1, max_sequences=1, held_sequences=1, measure_rows=True)
    with _own_cache(), closing(LlamaEngine(path, options)) as engine:
        return engine.row_costs()


@contextmanager
def _own_cache() -> Iterator[None]:
    """Use an empty cache folder, so that an engine measures again."""
    name, before = "XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME")
    with TemporaryDirectory() as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


if __name__ == "__main__":
    sys.exit(main())
