"""What does a reader get when the network fails?

Random faults at a TCP proxy (``streamco.testing.FaultPlan``), the same ones for every contender: streamco over two servers, the second of
which is struck one time in five, and OpenAI's package over the first server alone, with its retries. Answers are of 60 numbered words at
200 a second; limits on silence are 0.3 s, a hundredth of streamco's default. Half of streamco's answers are paced at ten times the reading
speed. The gap is the longest time between two words of an answer that was handed over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import openai

from bench.report import Row, add_arguments, emit
from streamco import Client, OpenAIEndpoint, RetryPolicy, Timeouts
from streamco.config import READING
from streamco.endpoints.base import Capabilities
from streamco.errors import AllEndpointsFailed, EndpointError
from streamco.testing import FaultPlan, FaultProxy, Faults, RecordedRequest, ScriptedResponse, ScriptedServer, stream_answer
from streamco.testing.faults import FAULT_KINDS, draw_faults

WORDS = 60
ANSWER = " ".join(f"word{number}" for number in range(WORDS))
STEP = 0.005  # seconds between two words
PACE = 10 * READING
SILENCE = 0.3  # seconds
TIMEOUTS = Timeouts(connect=SILENCE, first_token=SILENCE, next_token=SILENCE, socket=SILENCE, cancel=SILENCE)
RETRIES = RetryPolicy(backoff=0.02, longest_wait=SILENCE)
AT_ONCE = 8
SEED = 4
HANGS = 60.0  # seconds
CALM = "no fault"
MESSAGES: Any = [{"role": "user", "content": "?"}]

Ending = Literal["whole", "handed over", "error", "cut short without an error"]
ENDINGS: tuple[Ending, ...] = ("whole", "handed over", "error", "cut short without an error")


@dataclass(slots=True)
class Reading:
    """What a reader got of one answer."""

    words: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    partial: str | None = None  # what the error says that was read
    is_error: bool = False
    has_moved: bool = False
    connections_left: int = 0

    def take(self, text: str) -> None:
        """The next piece."""
        self.words.append(text)
        self.times.append(time.monotonic())

    @property
    def text(self) -> str:
        """Everything."""
        return "".join(self.words)

    @property
    def ending(self) -> Ending:
        """How it came out."""
        if self.is_error:
            return "error"
        if self.text != ANSWER:
            return "cut short without an error"
        return "handed over" if self.has_moved else "whole"

    @property
    def wrong_words(self) -> int:
        """Words lost or repeated in what was read, and by the error's account of it."""
        found = [int(number) for number in re.findall(r"word(\d+)\b", self.text)]
        wrong = len(set(range(max(found, default=-1) + 1)) ^ set(found)) + len(found) - len(set(found))
        return max(wrong, not ANSWER.startswith(self.text), self.partial is not None and self.partial != self.text)

    @property
    def gap(self) -> float:
        """The longest time between two pieces, in milliseconds."""
        return max((later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)), default=0.0) * 1000


@dataclass(frozen=True, slots=True)
class Trial:
    """What happens to one answer: drawn from its number."""

    number: int
    kind: str

    @property
    def pace(self) -> float | None:
        """At what rate streamco gives it out."""
        return PACE if self.number % 2 else None

    def faults(self) -> Faults:
        """Of the first server."""
        return Faults() if self.kind == CALM else draw_faults(self.kind, random.Random(f"{SEED}/{self.number}"), events=WORDS)

    def second(self) -> FaultPlan:
        """Of the second server."""
        return FaultPlan(f"{SEED}/{self.number}/second", faultless=0.8, events=WORDS)


def respond(request: RecordedRequest) -> ScriptedResponse:
    """The answer, or what comes behind the beginning that was sent."""
    last = request.json()["messages"][-1]
    beginning = last["content"] if last["role"] == "assistant" else ""
    rest = ANSWER[len(beginning) :] if ANSWER.startswith(beginning) else "wrong beginning"
    return stream_answer(re.findall(r"\s*\S+", rest), gap=STEP)


Read = Callable[[list[FaultProxy], Trial], Awaitable[Reading]]


async def read_streamco(proxies: list[FaultProxy], trial: Trial) -> Reading:
    """Through a client of two servers."""
    able = Capabilities(continuation="continue_final_message")
    servers = [
        OpenAIEndpoint("m", base_url=proxy.url, name=f"server {number}", timeouts=TIMEOUTS, retry=RETRIES, capabilities=able)
        for number, proxy in enumerate(proxies)
    ]
    reading = Reading()
    async with Client(server=servers, pace=trial.pace, seed=trial.number) as client:
        stream = client.stream(MESSAGES)
        try:
            async for token in stream:
                reading.take(token.text)
        except (EndpointError, AllEndpointsFailed) as error:
            reading.is_error, reading.partial = True, error.partial
        reading.has_moved = bool(stream.report.hand_overs)
    for _ in range(100):
        reading.connections_left = sum(proxy.connections_open for proxy in proxies)
        if not reading.connections_left:
            break
        await asyncio.sleep(0.005)
    return reading


def through_openai(client: openai.AsyncOpenAI) -> Read:
    """Through OpenAI's package, the first server alone. One client for all: making one loads certificates for 40 ms."""

    async def read(proxies: list[FaultProxy], trial: Trial) -> Reading:
        reading = Reading()
        ask = client.with_options(base_url=proxies[0].url).chat.completions.create
        try:
            async for chunk in await ask(model="m", messages=MESSAGES, stream=True):
                if chunk.choices and chunk.choices[0].delta.content:
                    reading.take(chunk.choices[0].delta.content)
        except Exception:  # noqa: BLE001  many kinds come out of it: its own, httpx's, JSON's
            reading.is_error = True
        return reading

    return read


@contextlib.asynccontextmanager
async def between(trial: Trial, ports: list[int]) -> AsyncIterator[list[FaultProxy]]:
    """The proxies of one answer, their faults drawn anew for each contender."""
    async with FaultProxy(ports[0], trial.faults()) as first, FaultProxy(ports[1], trial.second()) as second:
        yield [first, second]


class Tally:
    """What came of all trials."""

    def __init__(self, contenders: dict[str, Read]) -> None:
        self._contenders = contenders
        self.endings: dict[tuple[str, str], Counter[Ending]] = defaultdict(Counter)
        self.gaps: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.wrong: Counter[str] = Counter()
        self.left = 0

    async def attempt(self, trial: Trial, ports: list[int]) -> None:
        """One trial with every contender in turn."""
        names = list(self._contenders)
        for name in names if trial.number % 4 < 2 else names[::-1]:
            async with between(trial, ports) as proxies, asyncio.timeout(HANGS):
                reading = await self._contenders[name](proxies, trial)
            self.note(name, trial, reading)

    def note(self, name: str, trial: Trial, reading: Reading) -> None:
        """Count it."""
        self.endings[trial.kind, name][reading.ending] += 1
        self.wrong[name] += reading.wrong_words
        self.left += reading.connections_left
        if reading.wrong_words:
            print(f"trial {trial.number}, {trial.kind}, {name}: got {reading.text!r}, partial {reading.partial!r}", file=sys.stderr)
        if reading.ending == "handed over" or (trial.kind == CALM and name == "streamco"):
            self.gaps[trial.kind, "unpaced" if trial.pace is None else "paced"].append(reading.gap)

    def rows(self) -> list[Row]:
        """Totals, then each kind of fault."""
        rows: list[Row] = []
        for name in self._contenders:
            total = sum((counts for (_, contender), counts in self.endings.items() if contender == name), Counter[Ending]())
            rows += [one("all", name, ending, "answers", total[ending]) for ending in ENDINGS]
            rows.append(one("all", name, "lost or repeated words", "words", self.wrong[name]))
        rows.append(one("all", "streamco", "connections left behind", "connections", self.left))
        for (kind, name), counts in sorted(self.endings.items(), key=lambda item: kinds().index(item[0][0])):
            rows += [one(kind, name, ending, "answers", counts[ending]) for ending in ENDINGS if counts[ending]]
        for (kind, way), gaps in sorted(self.gaps.items(), key=lambda item: (kinds().index(item[0][0]), item[0][1])):
            ordered = sorted(gaps)
            for metric, share in (("gap p50", 0.5), ("gap p99", 0.99)):
                value = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
                rows.append(Row("failover", f"{kind}, {way}", "streamco", metric, "ms", value, ordered[0], ordered[-1]))
        return rows


def one(case: str, contender: str, metric: str, unit: str, value: float) -> Row:
    """A count."""
    return Row("failover", case, contender, metric, unit, value, value, value)


def kinds() -> tuple[str, ...]:
    """No fault, and every kind of them."""
    return (CALM, *FAULT_KINDS)


async def run(count: int) -> Tally:
    """So many trials, some at once; each kind of fault as often as the others, paced and unpaced."""
    turns = iter(range(count))
    async with (
        ScriptedServer(respond) as first,
        ScriptedServer(respond) as second,
        openai.AsyncOpenAI(base_url=first.url, api_key="none", timeout=SILENCE) as client,
    ):
        contenders: dict[str, Read] = {"streamco": read_streamco, "openai": through_openai(client)}
        await Tally(contenders).attempt(Trial(0, CALM), [first.port, second.port])  # what is loaded at the first use is loaded then
        tally = Tally(contenders)

        async def work() -> None:
            for number in turns:
                await tally.attempt(Trial(number, kinds()[number // 2 % len(kinds())]), [first.port, second.port])

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--runs", type=int, default=1000, help="answers for each contender (default: 1000)")
    args = parser.parse_args()
    tally = asyncio.run(run(80 if args.quick else args.runs))
    emit(tally.rows(), args.json)
    return int(bool(tally.wrong["streamco"] or tally.left))


if __name__ == "__main__":
    sys.exit(main())
