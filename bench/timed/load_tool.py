"""What does a public load tool measure of a server asked directly, and of ``streamco proxy`` before it?

The tool is GuideLLM (``pip install guidellm`` in an environment of its own, ``--tool ENV/bin/guidellm``), with its own workers, clock and
statistics: nothing of streamco measures here. The upstream is a bare HTTP server in a process of its own that streams like a model: 50
tokens 20 ms apart, after 100 ms for the prompt. ``streamco proxy`` runs with the server alone, as in bench/timed/proxy.py. Both are asked
with the same settings, by turns.

With so many streams at once, a request begins as soon as another one has ended, so all of them begin together. With so many requests a
second, they arrive at random (Poisson). The first two seconds don't count. Requests that still run when the time is over are cut off by the
tool, and are neither answers nor errors.

``--reports`` keeps the tool's own reports, without single requests and with fewer percentiles. ``--page`` measures nothing: it writes the
kept run into docs/proxy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.report import add_arguments, emit, summarise
from bench.runs import RUNS, Run, figure, load
from bench.timed.proxy import running_proxy
from bench.timed.stream import server

__all__ = ["PAGE", "REPORTS", "case_of", "figures", "kept_version", "main", "page_with", "section", "trimmed"]

BENCH = "load_tool"
REPORTS = RUNS / BENCH
PAGE = Path(__file__).resolve().parents[2] / "docs" / "proxy.md"
UPSTREAM, OURS = "upstream", "streamco"
LOADS: Mapping[str, tuple[str, Sequence[int]]] = {"concurrent": ("streams", (1, 10, 50)), "poisson": ("rate", (10, 40))}
QUICK: Mapping[str, tuple[str, Sequence[int]]] = {"concurrent": ("streams", (1, 10))}
MODEL = "model-50"
WARMUP_S = 2
WORKERS = 2  # processes of the tool; more only take cores from what it measures
REPORT_VERSION = 2

FIGURES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("TTFT, median", "ms"): ("time_to_first_token_ms", "p50"),
    ("TTFT, 95th percentile", "ms"): ("time_to_first_token_ms", "p95"),
    ("ITL, median", "ms"): ("inter_token_latency_ms", "p50"),
    ("ITL, 95th percentile", "ms"): ("inter_token_latency_ms", "p95"),
    ("whole answer, median", "s"): ("request_latency", "p50"),
}
"""Rows by metric and unit, and where the report has them: the statistic, and its percentile over whole answers."""

COLUMNS = (
    *(("TTFT, median", "ms"), ("TTFT, 95th percentile", "ms"), ("ITL, median", "ms")),
    *(("whole answer, median", "s"), ("whole answers", "requests/s"), ("errors", "requests")),
)
"""Columns of the page's table, by metric and unit."""

KEPT_STATISTICS = ("request_latency", "time_to_first_token_ms", "inter_token_latency_ms", "output_tokens_per_second", "request_concurrency")
KEPT_FIELDS = ("mean", "std_dev", "min", "max", "count")
KEPT_PERCENTILES = ("p05", "p50", "p95", "p99")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or write the page's section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--tool", metavar="PROGRAM", default="guidellm", help="GuideLLM (default: the one on PATH)")
    parser.add_argument("--seconds", type=int, default=20, metavar="N", help="of each load (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=2, metavar="N", help="how often each is measured (default: %(default)s)")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="keep the tool's reports there, in a folder of its version")
    parser.add_argument("--page", action="store_true", help="write the kept run into docs/proxy.md, and measure nothing")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), section(load(BENCH), kept_version())), encoding="utf-8")
        return
    tool = shutil.which(options.tool)
    if not tool:
        parser.error(f"--tool: expected GuideLLM's program (pip install guidellm), got {options.tool}, which is not there")
    loads, seconds, turns = (QUICK, 4, 1) if options.quick else (LOADS, options.seconds, options.turns)
    samples: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    with ExitStack() as stack:
        port = stack.enter_context(server())
        _, url = stack.enter_context(running_proxy(f"http://127.0.0.1:{port}/v1"))
        targets = {UPSTREAM: f"http://127.0.0.1:{port}", OURS: url.removesuffix("/v1")}
        for name, kind, turn in _order(loads, turns):
            report = _report(tool, targets[name], kind, *loads[kind], seconds=seconds)
            for key, value in figures(report).items():
                samples.setdefault(key, {}).setdefault(name, []).append(value)
            if options.reports:
                _keep(report, options.reports, f"{name}-{kind}-{turn}.json")
    rows = [
        summarise(values, bench=BENCH, case=case, contender=name, metric=metric, unit=unit)
        for (case, metric, unit), found in samples.items()
        for name, values in found.items()
    ]
    emit(rows, options.json, against=UPSTREAM)


# The tool, and its report


def _order(loads: Mapping[str, object], turns: int) -> Iterator[tuple[str, str, int]]:
    """Contender, load and turn of each run: the contenders change places from one turn to the next."""
    for turn in range(turns):
        for kind in loads:
            for name in (UPSTREAM, OURS) if turn % 2 == 0 else (OURS, UPSTREAM):
                yield name, kind, turn + 1


def _report(tool: str, target: str, kind: str, key: str, values: Sequence[int], *, seconds: int) -> dict[str, Any]:
    """Run the tool once, with the network's hub of models out of reach, and return its report."""
    with tempfile.TemporaryDirectory() as folder:
        texts = "".join(
            f"{json.dumps({'prompt': f'Say something about the number {number}.'})}\n" for number in range(2 * max(values) * seconds)
        )
        (Path(folder) / "prompts.jsonl").write_text(texts)
        words = [
            *(str(Path(tool).absolute()), "run", "--disable-console"),
            *("--backend", json.dumps({"kind": "openai_http", "target": target, "model": MODEL})),
            *("--profile", json.dumps({"kind": kind, key: list(values), "warmup": {"value": WARMUP_S}})),
            *("--constraint", f"kind=max_duration,seconds={seconds}"),
            *("--data", "kind=json_file,path=prompts.jsonl"),
            *("--output", "kind=json,path=report.json"),
        ]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": str(WORKERS)}
        done = subprocess.run(words, cwd=folder, env=environment, check=False, capture_output=True, text=True)
        path = Path(folder) / "report.json"
        if done.returncode or not path.exists():
            raise SystemExit(f"{tool}: expected a report, got exit status {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def figures(report: Mapping[str, Any]) -> dict[tuple[str, str, str], float]:
    """Return the figures of a report by case, metric and unit.

    Args:
        report: the tool's report, whole or trimmed.

    Raises:
        SystemExit: the report is of another version of the format.
    """
    version = report["metadata"]["version"]
    if version != REPORT_VERSION:
        raise SystemExit(f"guidellm: expected version {REPORT_VERSION} of its report (guidellm 0.8), got {version}")
    found: dict[tuple[str, str, str], float] = {}
    for each in report["benchmarks"]:
        case, metrics = case_of(each["config"]["strategy"]), each["metrics"]
        for (metric, unit), (name, percentile) in FIGURES.items():
            found[case, metric, unit] = metrics[name]["successful"]["percentiles"][percentile]
        found[case, "whole answers", "requests/s"] = metrics["requests_per_second"]["successful"]["mean"]
        found[case, "whole answers", "requests"] = float(metrics["request_totals"]["successful"])
        found[case, "errors", "requests"] = float(metrics["request_totals"]["errored"])
    return found


def case_of(strategy: Mapping[str, Any]) -> str:
    """Return the name of a load.

    Args:
        strategy: the load as the report has it.

    Raises:
        SystemExit: this bench doesn't use such a load.
    """
    match strategy["type_"]:
        case "concurrent":
            streams = strategy["streams"]
            return f"{streams} stream{'s' * (streams != 1)} at once"
        case "poisson":
            return f"{strategy['rate']:g} requests a second"
        case other:
            raise SystemExit(f"guidellm: expected the strategy concurrent or poisson in its report, got {other}")


def trimmed(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a report, under the tool's own names.

    Single requests, the scheduler's state, the statistics of errors and unfinished requests, and most percentiles are left out.

    Args:
        report: the tool's report.
    """
    spec = report["config"]["spec"]
    backend = {key: spec["backend"][key] for key in ("kind", "model", "request_format", "stream")}
    return {
        "metadata": {key: report["metadata"][key] for key in ("version", "guidellm_version", "python_version")},
        "config": {"spec": {"backend": backend, "profile": spec["profile"], "constraints": spec["constraints"]}},
        "benchmarks": [_trimmed(each) for each in report["benchmarks"]],
    }


def _trimmed(benchmark: Mapping[str, Any]) -> dict[str, Any]:
    metrics = benchmark["metrics"]
    kept: dict[str, Any] = {"request_totals": metrics["request_totals"]}
    kept["requests_per_second"] = {"successful": {"mean": metrics["requests_per_second"]["successful"]["mean"]}}
    for name in KEPT_STATISTICS:
        whole = metrics[name]["successful"]
        percentiles = {key: whole["percentiles"][key] for key in KEPT_PERCENTILES}
        kept[name] = {"successful": {**{key: whole[key] for key in KEPT_FIELDS}, "percentiles": percentiles}}
    return {
        "config": {"strategy": benchmark["config"]["strategy"]},
        "metrics": kept,
        **{key: benchmark[key] for key in ("warnings", "duration", "warmup_duration")},
    }


def _keep(report: Mapping[str, Any], folder: Path, name: str) -> None:
    place = folder / f"guidellm-{report['metadata']['guidellm_version']}"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(f"{json.dumps(trimmed(report), indent=1)}\n", encoding="utf-8")


# The page's section


def section(run: Run, version: str) -> str:
    """Return docs/proxy.md's section about a kept run.

    Args:
        run: the run.
        version: the tool's.
    """
    cases = dict.fromkeys(case for case, _, _ in run.rows)
    lines = [["direct / through the proxy", *(f"{metric}, {unit}" for metric, unit in COLUMNS)]]
    lines += [[case, *(_pair(run, case, f"{metric} [{unit}]") for metric, unit in COLUMNS)] for case in cases]
    head, *rows = [f"| {' | '.join(cells)} |" for cells in lines]
    table = "\n".join([head, f"|---|{'--:|' * len(COLUMNS)}", *rows])
    return TEXT.format(version=version, table=table, about=run.about)


def kept_version(folder: Path = REPORTS) -> str:
    """Return the version of the tool whose reports are kept, the last one if there are several.

    Args:
        folder: where they are kept.
    """
    return max(path.name for path in folder.glob("guidellm-*")).partition("-")[2]


def _pair(run: Run, case: str, metric: str) -> str:
    return " / ".join(figure(run.value(case, metric, name)) for name in (UPSTREAM, OURS))


def page_with(page: str, text: str) -> str:
    """Return a page with a section in place of the one with the same heading.

    Args:
        page: the page.
        text: the section, which begins with its heading.

    Raises:
        SystemExit: the page has no such section.
    """
    heading = text.splitlines()[0]
    changed, count = re.subn(
        rf"^{re.escape(heading)}\n.*?(?=^## |\Z)", lambda _: f"{text.rstrip()}\n\n", page, flags=re.DOTALL | re.MULTILINE
    )
    if count != 1:
        raise SystemExit(f"expected one section {heading!r} in the page, got {count}")
    return f"{changed.rstrip()}\n"


TEXT = """## Under a load tool

[GuideLLM](https://github.com/vllm-project/guidellm) {version}, a public load tool, asked a server directly and through the
proxy, with its own clock and statistics. The server streams as a model does: 50 tokens, 20 ms apart, the first after 120 ms. This
server is the proxy's only endpoint.
*{about}.*

{table}

- TTFT is the time to the first token. ITL is the mean gap between the tokens of an answer.
- With 10 streams at once, each new request begins when an answer ends. So all ten begin and end together, each first token waits for those
  before it, and the number of whole answers in a run changes in steps of 10.
- The 10 requests a second arrive at random, with the same seed in each run.
- The tool, the server and the proxy share the cores. Errors are answers that failed, were refused or broke.

The tool's own reports, without the individual requests, are in [bench/results](../bench/results/load_tool/guidellm-{version}).
To measure again:

```
$ python -m venv guidellm && guidellm/bin/pip install guidellm
$ python -m bench load_tool --tool guidellm/bin/guidellm
```

The [benchmarks](benchmarks.md) compare an event's cost with other proxies'.
"""

if __name__ == "__main__":
    main()
