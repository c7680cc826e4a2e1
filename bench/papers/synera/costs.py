"""Times, costs and energy of a simulated experiment's contenders, in Markdown (Synera's Figures 11, 12 and 14, Table 5).

    streamco simulate bench/papers/synera_table4.yaml
    python -m bench.papers.synera.costs results/synera_table4

The cost of the server is the paper's, c = T W / Pf (section 6.1): T is the mean time between tokens, W the tokens that the server computes
for each token of an answer, and Pf the packing factor of its model. All contenders have the same server, so Pf cancels in the ratio to the
server alone, which is printed. Energy is the device's by its FLOPs (DiSCo, equations 9 and 11), for Qwen2.5-Coder 0.5B.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.tables import means_of, show_table
from streamco.policies.cost import device_costs
from streamco.profiles import ModelShape

__all__ = ["DEVICE", "cost_of", "main", "tables_of"]

DEVICE = ModelShape(layers=24, width=896, ffn_width=4864, vocabulary=151_936, heads=14)
FIGURES = ("tpot_mean", "agreement", "cloud_share", "drafted")
HEAD = ["contender", "ms a token", "agreement", "server's tokens", "cost, share of the server's alone", "J a token"]


def cost_of(seconds: float, server_tokens: float, packing_factor: float = 1.0) -> float:
    """Return c = T W / Pf.

    Args:
        seconds: T, mean time between tokens.
        server_tokens: W, tokens that the server computes for each token of an answer.
        packing_factor: Pf, models side by side; 1 for the largest.
    """
    return seconds * server_tokens / packing_factor


def tables_of(scenarios: Sequence[Mapping[str, Any]], column: str = "contender") -> dict[str, list[list[str]]]:
    """Return the lines of a table for each case of the other settings, the contender ``server`` among them.

    Raises:
        KeyError: there is no such setting, or a figure or the contender ``server`` is missing.
    """
    found = {figure: means_of(scenarios, column, figure) for figure in FIGURES}
    joules = device_costs(DEVICE).completion_joules
    tables = {}
    for case, seconds in found["tpot_mean"].items():
        agreement, shares, drafted = (found[figure][case] for figure in FIGURES[1:])
        whole = cost_of(seconds["server"], shares["server"])
        tables[", ".join(map(str, case))] = [
            [
                str(name),
                f"{1000 * seconds[name]:.1f}",
                f"{agreement[name]:.3f}",
                f"{shares[name]:.2f}",
                f"{cost_of(seconds[name], shares[name]) / whole:.2f}",
                f"{joules * drafted[name]:.2f}",
            ]
            for name in seconds
        ]
    return tables


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the results")
    options = parser.parse_args(arguments)
    for case, lines in tables_of(json.loads((options.folder / "results.json").read_text())["scenarios"]).items():
        show_table(f"**{case}**", HEAD, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
