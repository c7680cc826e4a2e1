"""Write a run of every bench below the line in bench/RESULTS.md: ``python -m bench.record [--quick] [name ...]``.

What stands above the line is written by hand and kept; tables of benches that were not run this time are kept too.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from bench.__main__ import BENCHES, ON_REQUEST
from bench.report import Row

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
LINE = "<!-- everything below is written by bench/record.py -->"


def machine() -> str:
    """Processor, cores and Python, in a line."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        cpu = found.group(1).strip() if found else cpu
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def commit() -> str:
    """The checked-out commit, marked when there is more than that."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" and changes" if git("status", "--porcelain", "--", "streamco") else "")


def run(name: str, *, quick: bool) -> list[Row]:
    """One bench's rows."""
    command = [sys.executable, "-m", f"bench.{name}", "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=HERE.parent, check=True, stdout=subprocess.PIPE, text=True)
    return [Row(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def figure(value: float) -> str:
    """Three significant digits, whole numbers whole, no exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or not value else f"{value:.6f}"


def section(name: str, rows: list[Row], *, quick: bool) -> str:
    """A bench's tables in Markdown."""
    title = re.sub(r"\s+", " ", (HERE / f"{name}.py").read_text().split('"""')[1].split("\n\n")[0].strip())
    today = dt.datetime.now(tz=dt.UTC).date()
    lines = [f"## {name}", "", title, "", f"{machine()}; {today}; commit {commit()}{'; --quick' if quick else ''}.", ""]
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.case, row.metric, row.unit), []).append(row)
    lines += ["| case | metric | contender | median | min | max | times streamco's |", "| --- | --- | --- | ---: | ---: | ---: | ---: |"]
    for (case, metric, unit), group in groups.items():
        ours = next((row.median for row in group if row.contender == "streamco"), None)
        for row in group:
            ratio = f"{row.median / ours:.2f}" if ours else ""
            cells = (
                case,
                f"{metric} [{unit}]" if unit else metric,
                row.contender,
                figure(row.median),
                figure(row.min),
                figure(row.max),
                ratio,
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, then rewrite the part below the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="these benches (default: all)")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    head, _, rest = RESULTS.read_text().partition(LINE) if RESULTS.exists() else ("# Results\n\n", "", "")
    kept = {text.split("\n", 1)[0].strip(): f"## {text.rstrip()}\n" for text in rest.split("\n## ")[1:]}
    for name in args.names or BENCHES:
        print(f"== {name}", file=sys.stderr)
        kept[name] = section(name, run(name, quick=args.quick), quick=args.quick)
        ordered = [kept[bench] for bench in (*BENCHES, *ON_REQUEST) if bench in kept]
        RESULTS.write_text(f"{head}{LINE}\n\n" + "\n".join(ordered))


if __name__ == "__main__":
    main()
