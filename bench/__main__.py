"""Every bench, one after the other: ``python -m bench [--quick] [--json] [name ...]``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

BENCHES: tuple[str, ...] = ("stream", "wire", "handoff", "tokenpack", "topk", "verify_wire", "pacing", "dispatch", "failover", "cost")
BENCHES += ("moves", "gate", "engine", "migration", "hand_over_bytes", "lossless", "speculate", "speculate_simulated")
BENCHES += (
    "importance",
    "selective",
    "early_exit",
    "observing",
    "proxy",
    "packing",
    "verifier",
    "aborted_batches",
    "scheduling_overhead",
    "dssd",
    "windows_recorded",
    "windows_simulated",
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
)
ON_REQUEST = (  # need an environment of their own, models or a GPU
    "lossless_vllm",
    "pair",
    "row_costs",
    "row_formats",
    "load_tool",
    "gpu_rows",
)


def main() -> int:
    """Run them in processes of their own; a failing one fails the whole, after the others have run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, *ON_REQUEST, []], help="these benches (default: all)")
    parser.add_argument("--quick", action="store_true", help="under 40 s each")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    flags = [flag for flag in ("--quick", "--json") if getattr(args, flag[2:])]
    failed = []
    for name in args.names or BENCHES:
        assert find_spec(f"bench.{name}") is not None, f"no bench {name}"
        print(f"== {name}", file=sys.stderr)
        done = subprocess.run([sys.executable, "-m", f"bench.{name}", *flags], cwd=Path(__file__).resolve().parents[1], check=False)
        if done.returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
