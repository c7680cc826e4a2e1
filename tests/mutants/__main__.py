"""``python -m tests.mutants --count 1000000``: mutants read by the parsers of ``wire`` and compared with the oracle.

``--tcp`` reads them over TCP instead: through the SDK, through the proxy, and with a second server that continues what breaks off.

Each seed is one mutant, the same one every time. One in twenty is made of a recorded stream, if there are any. Ctrl-C ends the run early,
and says with which seed to go on. The exit status is 1 if anything differed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache
from os import cpu_count

from tests.mutants.decoding import find_differences
from tests.mutants.mutant import Mutant, make_mutant
from tests.mutants.recorded import load_recorded
from tests.mutants.stream import Stream
from tests.mutants.streams import SMALL
from tests.mutants.tcp.run import find_differences_over_tcp
from tests.support.data import data_path

_BATCH = 500
_RECORDED = 20  # each such seed is of a recorded stream
_MOST_BYTES = 60_000  # of a recorded stream
_SHOWN = 20


@cache
def recorded_streams() -> Sequence[Stream]:
    """Return the recorded streams that are not too large; none if there are no recordings."""
    folder = data_path("sse")
    return load_recorded(folder, most_bytes=_MOST_BYTES) if (folder / "index.jsonl").exists() else ()


def mutant_of(seed: int) -> Mutant:
    """Return the mutant of a seed."""
    streams = recorded_streams() if seed % _RECORDED == 0 else ()
    return make_mutant(seed, streams or SMALL)


def read_batch(start: int, end: int) -> list[str]:
    """Read the mutants of some seeds, and return what differed."""
    found = []
    for seed in range(start, end):
        mutant = mutant_of(seed)
        try:
            differing = find_differences(mutant)
        except Exception as error:  # noqa: BLE001  no bytes may make a parser raise, and the others go on
            differing = [f"raised {type(error).__name__}: {error}"]
        if differing:
            found.append(f"{mutant}\n    " + "\n    ".join(differing))
    return found


def read_batch_over_tcp(start: int, end: int) -> list[str]:
    """Read the mutants of some seeds over TCP, and return what differed."""
    logging.disable(logging.CRITICAL)  # each broken answer is logged
    return asyncio.run(find_differences_over_tcp([mutant_of(seed) for seed in range(start, end)]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print what differs and a summary, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="start", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--count", type=int, default=1_000_000, help="number of mutants (default a million)")
    parser.add_argument("--tcp", action="store_true", help="over TCP, through SDK and proxy")
    parser.add_argument("--processes", type=int, default=cpu_count() or 1, help="default: one a core")
    options = parser.parse_args(arguments)
    read = read_batch_over_tcp if options.tcp else read_batch
    began, done, found = time.monotonic(), 0, 0
    starts = iter(range(options.start, options.start + options.count, _BATCH))
    end = options.start + options.count
    running: dict[Future[list[str]], int] = {}
    next_start = options.start
    with ProcessPoolExecutor(options.processes) as pool:
        try:
            while True:
                while len(running) < 2 * options.processes and (next_start := next(starts, end)) < end:
                    running[pool.submit(read, next_start, min(end, next_start + _BATCH))] = next_start
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    start = running.pop(future)
                    done += min(end, start + _BATCH) - start
                    for each in future.result():
                        found += 1
                        if found <= _SHOWN:
                            print(each)
                seconds = time.monotonic() - began
                print(f"\r{done:,} mutants, {found} differ, {seconds:,.0f} s, {done / seconds:,.0f} a second", end="", file=sys.stderr)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print(f"\nbroken off; go on with --from {min(running.values(), default=next_start)}", file=sys.stderr)
    how, seconds = "over TCP" if options.tcp else "in three ways", time.monotonic() - began
    print(f"\n{done:,} mutants read {how}, {found} differ from the oracle, {seconds:,.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
