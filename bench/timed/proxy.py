"""What does ``streamco proxy`` add to a stream, and how many streams does a core carry?

The upstream is a bare HTTP server in a process of its own. Contenders, each a process of its own: ``streamco proxy`` with the server alone
(``policy = "server-only"``, its metrics on, as by default), a bare aiohttp relay that passes bytes on, and litellm's proxy if it is
installed (``pip install "litellm[proxy]"``, in an environment of its own: ``--litellm ENV/bin/litellm``). They take turns.

With one stream at a time: the time to the first content, beside the upstream asked directly. With 100 and 1,000 streams at once, each of
five events a second at times of its own: processor time of the contender's process for an event, from eight seconds in which all streams
are running; for an answer apart from its events, from short answers; streams that a core carries if each has 20 events a second and answers
of 200 events; the first content; and streams that did not end whole. Ratios are medians over the rounds.
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
from typing import NamedTuple

import aiohttp

from bench.report import Row, add_arguments, emit, summarise
from bench.timed.stream import server

BENCH = "proxy"
COUNTS = (100, 1000)
SHORT, LONG = 20, 60  # events of answers, with a fifth of a second after each
STARTS, SETTLED, WINDOW = 2.0, 3.0, 8.0  # seconds: in which streams start, until all are running, and in which long answers are measured
ROUNDS = 7
GAP, GOLDEN = 0.2, 0.618034  # seconds between two events of a stream; the golden ratio spreads their times evenly
FURTHER = 3  # events of each answer without content
RATE, ANSWER = 20.0, 200.0  # events a second and events of an answer, for the streams that a core carries
BODY = {"messages": [{"role": "user", "content": "Say something."}], "stream": True}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, help="streams at once (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="rounds of each number of streams, after one to warm up (default: %(default)s)"
    )
    parser.add_argument("--litellm", metavar="PROGRAM", default=shutil.which("litellm"), help="litellm's proxy (default: the one on PATH)")
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a stream takes two descriptors in a proxy, which inherits this
    rounds, counts = (1, [20]) if options.quick else (options.rounds, list(options.counts))
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
    """So many streams at once, by turns. If there are several rounds, one before them opens the connections and doesn't count."""
    found: dict[str, list[_Load]] = {name: [] for name in running}
    for turn in range(rounds if rounds == 1 else rounds + 1):
        for name, (pid, url) in running.items():
            load = await _load(http, pid, url, count)
            if turn or rounds == 1:
                found[name].append(load)
    rows, case = [], f"{count} streams at once"
    for name, loads in found.items():
        share = {"bench": BENCH, "case": case, "contender": name}
        rows += [
            summarise([load.event for load in loads], metric="CPU an event", unit="us", **share),
            summarise([load.answer for load in loads], metric="CPU an answer", unit="us", **share),
            summarise([load.a_core for load in loads], metric="streams a core", unit="streams", **share),
            summarise([load.first for load in loads], metric="first content, median", unit="ms", **share),
            summarise([float(sum(load.broken for load in loads))], metric="streams that did not end whole", unit="streams", **share),
        ]
        if name == "streamco":
            for other in (each for each in found if each != name):
                pairs = list(zip(loads, found[other], strict=True))
                events, a_core = [us.event / its.event for us, its in pairs], [us.a_core / its.a_core for us, its in pairs]
                rows.append(summarise(events, metric=f"CPU an event, {other} = 1", unit="x", **share))
                rows.append(summarise(a_core, metric=f"streams a core, {other} = 1", unit="x", **share))
    return rows


class _Load(NamedTuple):
    """One round of one contender: microseconds of processor time for an event and an answer, ms to the first content, answers cut short."""

    event: float
    answer: float
    first: float
    broken: int

    @property
    def a_core(self) -> float:
        """Streams that a core carries."""
        return 1e6 / (RATE * (self.event + self.answer / ANSWER))


async def _load(http: aiohttp.ClientSession, pid: int, url: str, count: int) -> _Load:
    """Read short answers, then long ones, and measure the long ones while all of them are running."""
    events, before = [0], _cpu(pid)
    waits = [STARTS * number / count + GAP * (number * GOLDEN % 1) for number in range(count)]
    short = await asyncio.gather(*(_read_later(wait, http, url, f"slow-{SHORT}") for wait in waits), return_exceptions=True)
    spent = 1e6 * (_cpu(pid) - before) / count
    reading = [asyncio.ensure_future(_read_later(wait, http, url, f"slow-{LONG}", events)) for wait in waits]
    await asyncio.sleep(SETTLED)
    began, read = _cpu(pid), events[0]
    await asyncio.sleep(WINDOW)
    event = 1e6 * (_cpu(pid) - began) / (events[0] - read)
    long = await asyncio.gather(*reading, return_exceptions=True)
    expected = [(each, SHORT) for each in short] + [(each, LONG) for each in long]
    whole = [each for each, length in expected if not isinstance(each, BaseException) and each[1] == length]
    firsts = [first for first, _ in whole if first is not None]
    return _Load(
        event, spent - event * (SHORT + FURTHER), 1e3 * statistics.median(firsts) if firsts else float("inf"), 2 * count - len(whole)
    )


async def _read_later(
    wait: float, http: aiohttp.ClientSession, url: str, model: str, seen: list[int] | None = None
) -> tuple[float | None, int]:
    await asyncio.sleep(wait)
    return await _read(http, url, model, seen)


async def _read(http: aiohttp.ClientSession, url: str, model: str, seen: list[int] | None = None) -> tuple[float | None, int]:
    """Read a stream: seconds to its first content, and the number of events with content, which ``seen`` adds up, too."""
    began, first, events, rest = time.perf_counter(), None, 0, b""
    async with http.post(f"{url}/chat/completions", json={**BODY, "model": model}) as response:
        response.raise_for_status()
        async for data in response.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if b'"content":"' in line and b'"content":""' not in line:
                    events += 1
                    if seen is not None:
                        seen[0] += 1
                    if first is None:
                        first = time.perf_counter() - began
    return first, events


if __name__ == "__main__":
    main()
