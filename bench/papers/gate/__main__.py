"""Which signals of a device's answer tell that the server's would be better? Record, then print tables.

make models
python -m bench.papers.gate run                 # records what is missing; may be stopped at any time, and goes on
python -m bench.papers.gate table               # the figures of bench/papers/gate/recorded.jsonl
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench.counted.selective import Pair
from bench.pairs import model_file
from bench.papers.gate.recording import RECORDED, record
from bench.papers.synera.results import read_package
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, or print what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--file", type=Path, default=RECORDED, help="of the recordings")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no question after so many (default: any number)")
    options = parser.parse_args(arguments)
    if options.action == "run":
        places = EngineOptions(threads=1, context_tokens=2048, max_sequences=1, held_sequences=5)
        with closing(Pair(*(LlamaEngine(model_file(name, "Q4_0"), places) for name in ("0.5B", "1.5B")))) as models:
            known = {task: {name: cells["server"].score for name, cells in found.items()} for task, found in read_package().items()}
            for count, answer in enumerate(record(options.file, models, known, ends=time.monotonic() + 60.0 * options.minutes), 1):
                sys.stderr.write(f"{count}: {answer.task}\n")
                sys.stderr.flush()


if __name__ == "__main__":
    main()
