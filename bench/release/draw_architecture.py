"""Draw docs/architecture.svg from the import graph: folders as boxes in their layers, arrows from each folder to what it imports.

    python -m bench.release.draw_architecture [--check]

Layers come from import-linter's contract in pyproject.toml. An arrow is left out if a chain of other arrows says the same (a transitive
reduction); its width grows with the number of importing modules. ``--check`` writes nothing and exits with 1 if the picture is out of date.
"""

from __future__ import annotations

import argparse
import ast
import html
import math
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs" / "architecture.svg"
PACKAGE = "streamco"

GROUND = "shared definitions"
"""Name of the box for the lowest layer, which is made of single modules."""

GATHERED = frozenset({"observers", "reports", "types", "verifiers"})
"""Modules that define nothing: they gather public names of other folders."""

SAYS: Mapping[str, str] = {
    "cli": "commands",
    "testing": "public fakes",
    "integrations": "a client for frameworks",
    "proxy": "OpenAI API over a client",
    "sim": "the machines in virtual time",
    "client": "the SDK",
    "server": "OpenAI API over an engine; verifier",
    "calibration": "measuring a pair of models",
    "machine_driver": "a machine on asyncio",
    "endpoints": "device and remote servers",
    "engines": "a thread that owns a model",
    "core": "state machines without IO",
    "wire": "bytes to objects and back",
    "policies": "pure decisions",
    "_native": "compiled leaves",
}


Edge = tuple[str, str]


class Box(NamedTuple):
    """A box in the picture, in pixels; x and y are its upper left corner."""

    x: float
    y: float
    width: float
    height: float


WIDTH, MARGIN, GAP = 1120, 24, 34
BOX_HEIGHT, ROW_GAP = 66, 46
INNER = 22
DARK = "#1d2733"
BOLD = ' font-weight="600"'
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
    'markerUnits="userSpaceOnUse"><path d="M0 0 8 4 0 8z" fill="#5b6b7f"/></marker></defs>'
)
FONT = "ui-sans-serif, system-ui, 'Helvetica Neue', Arial, sans-serif"


def layers() -> list[list[str]]:
    """Return the layers from top to bottom, each with its folders; the lowest is the one box of single modules."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    names = [[name.strip() for name in re.split(r"[|:]", row)] for row in rows]
    return [*names[:-1], [GROUND]]


def ground_modules() -> str:
    """Return the names of the lowest layer's modules, as one line."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return ", ".join(re.split(r"[ |:]+", next(contract["layers"] for contract in contracts if contract["type"] == "layers")[-1]))


def box_of(module: str, folders: frozenset[str]) -> str | None:
    """Return the box that a dotted module of the package belongs to, or None for the package itself and for what gathers names."""
    parts = module.split(".")
    if len(parts) < 2 or parts[1] in GATHERED:
        return None
    return parts[1] if parts[1] in folders else GROUND


def imported(path: Path) -> Iterator[str]:
    """Yield the package's modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == PACKAGE)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)


def arrows(folders: frozenset[str]) -> Counter[Edge]:
    """Return how many modules of one box import another box."""
    found: Counter[Edge] = Counter()
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        source = box_of(".".join(parts), folders)
        if source is None or parts[1] in {"__init__", "__main__"}:
            continue
        for target in {box_of(module, folders) for module in imported(path)} - {source, None}:
            found[source, str(target)] += 1
    return found


def reduce_transitively(edges: Mapping[Edge, int]) -> dict[Edge, int]:
    """Return the arrows that no chain of other arrows implies."""
    below: dict[str, set[str]] = {}
    for source, target in edges:
        below.setdefault(source, set()).add(target)

    def reaches(start: str, goal: str, skipped: Edge) -> bool:
        return any(target == goal or reaches(target, goal, skipped) for target in below.get(start, ()) if (start, target) != skipped)

    return {edge: count for edge, count in edges.items() if not reaches(*edge, edge)}


def inner_folders(box: str) -> list[str]:
    """Return the sub-folders of a box that hold modules."""
    folder = ROOT / PACKAGE / box
    return sorted(each.name for each in folder.iterdir() if (each / "__init__.py").is_file()) if folder.is_dir() else []


def place(rows: Sequence[Sequence[str]]) -> dict[str, Box]:
    """Return where each box stands: one row a layer, wider boxes for folders with sub-folders."""
    placed, y = {}, 64.0
    for row in rows:
        weights = [1.0 + 0.45 * len(inner_folders(box)) for box in row]
        usable = (WIDTH - 2 * MARGIN) * (0.55 if len(row) == 1 else 1.0) - GAP * (len(row) - 1)
        height = BOX_HEIGHT + (INNER + 8 if any(inner_folders(box) for box in row) else 0)
        x = MARGIN if len(row) > 1 else (WIDTH - usable) / 2
        for box, weight in zip(row, weights, strict=True):
            placed[box] = Box(x, y, usable * weight / sum(weights), height)
            x += placed[box].width + GAP
        y += height + ROW_GAP
    return placed


def shares(groups: Iterable[list[Edge]], order: Callable[[Edge], float]) -> dict[Edge, float]:
    """Return each arrow's position on its box, as a share of the box's width: the arrows of a group are spread evenly, in their order."""
    return {edge: rank / (len(group) + 1) for group in groups for rank, edge in enumerate(sorted(group, key=order), 1)}


def ports(edges: Iterable[Edge], placed: Mapping[str, Box]) -> dict[Edge, tuple[float, float]]:
    """Return the positions at which each arrow leaves and arrives, chosen so that the arrows of one box don't cross each other."""

    def middle(name: str) -> float:
        return placed[name].x + placed[name].width / 2

    leaving: dict[str, list[Edge]] = {}
    arriving: dict[str, list[Edge]] = {}
    for edge in edges:
        leaving.setdefault(edge[0], []).append(edge)
        arriving.setdefault(edge[1], []).append(edge)
    starts = shares(leaving.values(), lambda edge: middle(edge[1]))
    ends = shares(arriving.values(), lambda edge: middle(edge[0]))
    return {edge: (starts[edge], ends[edge]) for edge in starts}


def arrow(source: Box, target: Box, leaves: float, arrives: float, modules: int) -> str:
    """Return one arrow from the lower edge of a box to the upper edge of another."""
    x1, y1 = source.x + source.width * leaves, source.y + source.height
    x2, y2 = target.x + target.width * arrives, target.y
    bend = (y2 - y1) * 0.5
    line = f"M{x1:.1f} {y1:.1f} C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    style = f'fill="none" stroke="#5b6b7f" stroke-width="{1 + math.log2(modules) * 0.35:.1f}" opacity="0.8"'
    return f'<path d="{line}" {style} marker-end="url(#tip)"/>'


def text(x: float, y: float, words: str, *, size: int = 12, color: str = "#41505f", more: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}"{more}>{html.escape(words)}</text>'


def draw_box(name: str, box: Box) -> str:
    """Return a box with its name, what it is, and its sub-folders."""
    title = f"{name}/" if (ROOT / PACKAGE / name).is_dir() else name
    parts = [
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8" fill="#eef3f8" stroke="#8fa3b8"/>',
        text(box.x + 12, box.y + 24, title, size=15, color=DARK, more=BOLD),
        text(box.x + 12, box.y + 44, SAYS.get(name) or ground_modules()),
    ]
    x = box.x + 12
    for inner in inner_folders(name):
        width = 7.2 * len(inner) + 16
        size = f'width="{width:.1f}" height="{INNER}"'
        parts.append(f'<rect x="{x:.1f}" y="{box.y + 58:.1f}" {size} rx="5" fill="#ffffff" stroke="#b6c4d2"/>')
        parts.append(text(x + 8, box.y + 73, inner))
        x += width + 8
    return "\n".join(parts)


def draw() -> str:
    """Return the picture as SVG text."""
    rows = layers()
    folders = frozenset(box for row in rows for box in row) - {GROUND}
    placed = place(rows)
    height = max(box.y + box.height for box in placed.values()) + MARGIN
    edges = reduce_transitively(arrows(folders))
    ends = ports(edges, placed)
    note = "an arrow is left out if a chain of other arrows implies it; thicker: more modules"
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">',
        "<title>streamco: folders and what they import</title>",
        TIP,
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
        text(MARGIN, 36, "streamco: imports point down", size=18, color=DARK, more=BOLD),
        text(WIDTH - MARGIN, 36, note, more=' text-anchor="end"'),
    ]
    parts += [arrow(placed[edge[0]], placed[edge[1]], *ends[edge], count) for edge, count in sorted(edges.items())]
    parts += [draw_box(name, box) for name, box in placed.items()]
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Write the picture, or check that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the picture is out of date")
    picture = draw()
    if not parser.parse_args().check:
        TARGET.write_text(picture)
    elif not TARGET.is_file() or TARGET.read_text() != picture:
        sys.exit(f"{TARGET.relative_to(ROOT)}: expected the picture of today's imports; run `make picture`")


if __name__ == "__main__":
    main()
