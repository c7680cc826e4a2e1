"""Write a run of every bench below the line in bench/RESULTS.md: ``python -m bench.record [--quick] [name ...] [-- option ...]``.

A run is kept as bench/results/NAME.jsonl: a line about machine, date and commit, and then a line for each row. Its tables are made of that
file; ``--render`` makes them again and runs nothing. Options after ``--`` are the bench's own; the tables name them.

What stands above the line is written by hand and kept; tables of benches that were not run this time are kept too. Results must be of a
commit that others can check out, so it records none of a tree with changes, and none of a commit that the branch upstream doesn't have.
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.__main__ import BENCHES, ON_REQUEST
from bench.report import Row

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
RUNS = HERE / "results"
LINE = "<!-- everything below is written by bench/record.py -->"


def machine() -> str:
    """Processor, cores and Python, in a line."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        cpu = found.group(1).strip() if found else cpu
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def commit(root: Path = HERE.parent) -> str:
    """The checked-out commit, which others can check out, too.

    Args:
        root: the checkout.

    Raises:
        SystemExit: there is no commit, files were changed since, or the branch upstream doesn't have it, so that a rebase may still rename
            it. Without such a branch any commit will do.
    """

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=root, check=False, capture_output=True, text=True)

    short = git("rev-parse", "--short", "HEAD").stdout.strip()
    if not short:
        raise SystemExit(f"expected a git checkout, got none at {root}")
    found = [line[3:] for line in git("status", "--porcelain").stdout.splitlines()]
    changed = [path for path in found if path != "bench/RESULTS.md" and not path.startswith("bench/results/")]
    if changed:
        raise SystemExit(f"expected a tree without changes, got some in {', '.join(changed)}: commit them first")
    upstream = git("rev-parse", "--abbrev-ref", "@{upstream}")
    if not upstream.returncode and git("merge-base", "--is-ancestor", "HEAD", "@{upstream}").returncode:
        raise SystemExit(
            f"expected a commit that {upstream.stdout.strip()} has, got {short}: push it first, because a rebase would rename it"
        )
    return short


def run(name: str, *options: str) -> list[Row]:
    """One bench's rows."""
    command = [sys.executable, "-m", f"bench.{name}", "--json", *options]
    done = subprocess.run(command, cwd=HERE.parent, check=True, stdout=subprocess.PIPE, text=True)
    return [Row(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def figure(value: float) -> str:
    """Three significant digits, whole numbers whole, no exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or not value else f"{value:.6f}"


def keep(name: str, rows: Sequence[Row], *, options: Sequence[str] = (), at: str, folder: Path = RUNS) -> None:
    """Write the file of a run; ``at``: the commit that it is of."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    head = {"bench": name, "machine": machine(), "date": today, "commit": at, "options": list(options)}
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in (head, *map(asdict, rows))))


def section(name: str, folder: Path = RUNS) -> str:
    """Return the tables of a run that was kept, in Markdown."""
    head, *kept = map(json.loads, (folder / f"{name}.jsonl").read_text().splitlines())
    rows = [Row(**row) for row in kept]
    title = re.sub(r"\s+", " ", (HERE / f"{name}.py").read_text().split('"""')[1].split("\n\n")[0].strip())
    about = f"{head['machine']}; {head['date']}; commit {head['commit']}{'; ' * bool(head['options'])}{' '.join(head['options'])}."
    lines = [f"## {name}", "", title, "", about, ""]
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


def split_options(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words before ``--``, which are this command's, and those after it, which are the bench's."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def main() -> None:
    """Run, then rewrite the part below the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="these benches (default: all)")
    parser.add_argument("--quick", action="store_true", help="pass --quick to each bench")
    parser.add_argument("--render", action="store_true", help="make the tables of all kept runs again, and run nothing")
    words, options = split_options(sys.argv[1:])
    args = parser.parse_args(words)
    options = (*(["--quick"] if args.quick else []), *options)
    head, _, rest = RESULTS.read_text().partition(LINE) if RESULTS.exists() else ("# Results\n\n", "", "")
    kept = {text.split("\n", 1)[0].strip(): f"## {text.rstrip()}\n" for text in rest.split("\n## ")[1:]}
    if args.render:
        kept |= {path.stem: section(path.stem) for path in RUNS.glob("*.jsonl")}
        write(head, kept)
        return
    at = commit()
    for name in args.names or BENCHES:
        print(f"== {name}", file=sys.stderr)
        rows = run(name, *options)
        if commit() != at:
            raise SystemExit(f"{name}: expected commit {at} to stay while the bench ran, got {commit()}")
        keep(name, rows, options=options, at=at)
        kept[name] = section(name)
        write(head, kept)


def write(head: str, kept: Mapping[str, str]) -> None:
    """Write bench/RESULTS.md: what stands above the line, and the tables."""
    ordered = [kept[bench] for bench in (*BENCHES, *ON_REQUEST) if bench in kept]
    RESULTS.write_text(f"{head}{LINE}\n\n" + "\n".join(ordered))


if __name__ == "__main__":
    main()
