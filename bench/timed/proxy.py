"""What does ``streamco proxy`` add to a stream, and how many streams does a core carry?

The upstream is a bare HTTP server in a process of its own. Contenders, each a process of its own: ``streamco proxy`` with the server alone
(``policy = "server-only"``, its metrics on, as by default), a bare aiohttp relay that passes bytes on, and litellm's proxy if it is
installed (``pip install "litellm[proxy]"``, in an environment of its own: ``--litellm ENV/bin/litellm``). They take turns.

With one stream at a time: the time to the first content, beside the upstream asked directly. With 1, 100 and 1,000 streams at once, each of
five events a second, once with short and once with longer answers: processor time of the contender's process for each event (by the
difference), for an answer apart from its events, streams that a core carries if each has 20 events a second and answers of 200 events, the
first content, and streams that did not end whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp

from bench.report import Row, add_arguments, emit, summarise
from bench.timed.stream import server

BENCH = "proxy"
COUNTS = (1, 100, 1000)
LENGTHS = (20, 80)  # events of short and of longer answers
FURTHER = 3  # events of each answer without content
RATE, ANSWER = 20.0, 200.0  # events a second and events of an answer, for the streams that a core carries
BODY = {"messages": [{"role": "user", "content": "Say something."}], "stream": True}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, help="streams at once (default: %(default)s)")
    parser.add_argument("--litellm", metavar="PROGRAM", default=shutil.which("litellm"), help="litellm's proxy (default: the one on PATH)")
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a stream takes two descriptors in a proxy, which inherits this
    rounds, counts = (1, [20]) if options.quick else (5, list(options.counts))
    with ExitStack() as stack:
        port = stack.enter_context(server())
        upstream = f"http://127.0.0.1:{port}/v1"
        running: dict[str, tuple[int, str]] = {"streamco": stack.enter_context(running_proxy(upstream))}
        running["aiohttp relay"] = stack.enter_context(_relay(upstream))
        if options.litellm:
            running["litellm"] = stack.enter_context(_litellm(options.litellm, upstream))
        emit(asyncio.run(_measure(upstream, running, rounds, counts, answers=20 if options.quick else 200)), options.json)


# Contenders: the process's id, and the base URL


@contextmanager
def _process(words: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def running_proxy(upstream: str) -> Iterator[tuple[int, str]]:
    """Run ``streamco proxy`` with the server alone: its process's id, and its base URL."""
    words = (sys.executable, "-m", "streamco", "proxy", "--no-device", "--server", "bench", "--base-url", upstream)
    with _process((*words, "--policy", "server-only", "--port", "0", "--max-streams", "2000")) as process:
        assert process.stdout is not None
        yield process.pid, f"{process.stdout.readline().split()[-1]}/v1"


@contextmanager
def _relay(upstream: str) -> Iterator[tuple[int, str]]:
    with _process((sys.executable, "-m", "bench.timed.relay", upstream)) as process:
        assert process.stdout is not None
        yield process.pid, f"http://127.0.0.1:{int(process.stdout.readline())}/v1"


@contextmanager
def _litellm(program: str, upstream: str) -> Iterator[tuple[int, str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "litellm.yaml"
        parameters = {"model": "openai/*", "api_base": upstream, "api_key": "none"}
        path.write_text(json.dumps({"model_list": [{"model_name": "*", "litellm_params": parameters}]}))
        words = (program, "--config", str(path), "--host", "127.0.0.1", "--port", "4107", "--num_workers", "1", "--telemetry", "False")
        with _process(
            words, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR", LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY="true"
        ) as process:
            _wait_for("http://127.0.0.1:4107/health/liveliness", process)
            yield process.pid, "http://127.0.0.1:4107/v1"


def _wait_for(url: str, process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    import urllib.request

    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"expected an answer of {url} within {seconds:g} s, got none")


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has taken, with all threads that it has."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


# Measuring


async def _measure(upstream: str, running: Mapping[str, tuple[int, str]], rounds: int, counts: Sequence[int], *, answers: int) -> list[Row]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http:
        rows = await _first_contents(http, {"upstream": upstream} | {name: url for name, (_, url) in running.items()}, answers)
        for count in counts:
            rows += await _loads(http, running, count, rounds)
    return rows


async def _first_contents(http: aiohttp.ClientSession, urls: Mapping[str, str], answers: int) -> list[Row]:
    """Milliseconds to the first content, one stream at a time, over warm connections."""
    samples: dict[str, list[float]] = {name: [] for name in urls}
    for turn in range(answers + 5):
        for name, url in urls.items():
            first, _ = await _read(http, url, "bulk-5")
            if turn >= 5 and first is not None:
                samples[name].append(1e3 * first)
    direct = statistics.median(samples["upstream"])
    rows = []
    for name, values in samples.items():
        rows.append(summarise(values, bench=BENCH, case="one stream at a time", contender=name, metric="first content", unit="ms"))
        if name != "upstream":
            added = [value - direct for value in values]
            rows.append(
                summarise(added, bench=BENCH, case="one stream at a time", contender=name, metric="added to the first content", unit="ms")
            )
    return rows


async def _loads(http: aiohttp.ClientSession, running: Mapping[str, tuple[int, str]], count: int, rounds: int) -> list[Row]:
    """So many streams at once, by turns."""
    cpu: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
    firsts: dict[str, list[float]] = {name: [] for name in running}
    broken = dict.fromkeys(running, 0)
    for turn in range(rounds + 1):
        for name, (pid, url) in running.items():
            spent = []
            for length in LENGTHS if turn else LENGTHS[:1]:
                before = _cpu(pid)
                found = await asyncio.gather(*(_read(http, url, f"slow-{length}") for _ in range(count)), return_exceptions=True)
                spent.append(1e6 * (_cpu(pid) - before) / count)
                whole = [each for each in found if not isinstance(each, BaseException) and each[1] == length]
                if turn:  # connections are opened in the first one
                    broken[name] += count - len(whole)
                    firsts[name].append(
                        1e3 * statistics.median(first for first, _ in whole if first is not None) if whole else float("inf")
                    )
            if turn:
                event = (spent[1] - spent[0]) / (LENGTHS[1] - LENGTHS[0])
                cpu[name].append((event, spent[0] - event * (LENGTHS[0] + FURTHER)))
    rows, case = [], f"{count} streams at once"
    for name in running:
        share = {"bench": BENCH, "case": case, "contender": name}
        rows += [
            summarise([event for event, _ in cpu[name]], metric="CPU an event", unit="us", **share),
            summarise([answer for _, answer in cpu[name]], metric="CPU an answer", unit="us", **share),
            summarise(
                [1e6 / max(0.01, RATE * (event + answer / ANSWER)) for event, answer in cpu[name]],
                metric="streams a core",
                unit="streams",
                **share,
            ),
            summarise(firsts[name], metric="first content, median", unit="ms", **share),
            summarise([float(broken[name])], metric="streams that did not end whole", unit="streams", **share),
        ]
    return rows


async def _read(http: aiohttp.ClientSession, url: str, model: str) -> tuple[float | None, int]:
    """Read a stream: seconds to its first content, and the number of events with content."""
    began, first, events, rest = time.perf_counter(), None, 0, b""
    async with http.post(f"{url}/chat/completions", json={**BODY, "model": model}) as response:
        response.raise_for_status()
        async for data in response.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if b'"content":"' in line and b'"content":""' not in line:
                    events += 1
                    if first is None:
                        first = time.perf_counter() - began
    return first, events


if __name__ == "__main__":
    main()
