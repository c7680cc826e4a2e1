"""Run benches: ``python -m bench [--quick] [--json] [NAME ...]``, or one with options of its own, ``python -m bench NAME OPTION ...``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

BENCHES: tuple[str, ...] = (
    "first",
    "stream",
    "wire",
    "handoff",
    "tokenpack",
    "topk",
    "verify_wire",
    "pacing",
    "dispatch",
    "failover",
    "cost",
)
BENCHES += ("crowd", "arrivals", "refusals", "moves", "gate", "engine", "migration", "hand_over_bytes", "lossless", "speculate")
BENCHES += (
    "selective",
    "observing",
    "told",
    "proxy",
    "packing",
    "verifier",
    "aborted_batches",
    "scheduling_overhead",
)
BENCHES += (
    "busy",
    "hardware",
    "simulator",
    "fidelity",
    "split",
    "split_live",
    "split_ablation",
    "split_texts",
    "split_ttft",
    "trees",
    "imposed",
    "inversion",
    "draft_layer",
    "server_drafts",
    "lookup_drafts",
)
ON_REQUEST = (  # need an environment of their own, models or a GPU
    "lossless_vllm",
    "pair",
    "pair_tasks",
    "row_costs",
    "row_formats",
    "load_tool",
    "servers",
    "libraries",
)


SETTLED = ("dssd", "early_exit", "gpu_rows", "importance", "speculate_simulated", "windows_recorded", "windows_simulated")
"""Benches whose question has its answer: their runs are kept, and the benches are in the history, at the runs' commits."""

ROOMS = ("timed", "counted")


def module_of(name: str) -> str:
    """Return the module of a bench.

    Raises:
        ValueError: there is no bench of this name.
    """
    for room in ROOMS:
        if find_spec(found := f"bench.{room}.{name}"):
            return found
    raise ValueError(f"bench: expected one of {', '.join((*BENCHES, *ON_REQUEST))}, got {name}")


def split_words(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words up to the last leading name, which are this command's, and the options after them, which are a bench's."""
    names = [place for place, word in enumerate(words) if not word.startswith("-")]
    if not names:
        return words, ()
    end = next((place for place in range(names[0], len(words)) if words[place].startswith("-")), len(words))
    return words[:end], words[end:]


def main() -> int:
    """Run them in processes of their own; a failing one fails the whole, after the others have run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, *ON_REQUEST, []], metavar="NAME", help="these benches (default: all)")
    parser.add_argument("--quick", action="store_true", help="under 40 s each")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    words, options = split_words(sys.argv[1:])
    args = parser.parse_args(words)
    if len(args.names) > 1 and not {*options} <= {"--quick", "--json"}:
        parser.error(f"expected one bench with the options {' '.join(options)}, got {len(args.names)}")
    flags = [flag for flag in ("--quick", "--json") if getattr(args, flag[2:])]
    failed = []
    for name in args.names or BENCHES:
        print(f"== {name}", file=sys.stderr)
        command = [sys.executable, "-m", module_of(name), *flags, *options]
        if subprocess.run(command, cwd=Path(__file__).resolve().parents[1], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
