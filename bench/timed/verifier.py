"""How long does a device wait for its verdict, as more devices draft (Synera, Figure 15)?

Two servers are asked. ``packaged`` is ``streamco serve`` with the packaged model on one thread: there a batch takes as long as all that is
in it. ``large`` is the same server over a scripted target that takes Llama-2-70B's time for each batch (four A100) and computes nothing:
what there is beside the model's own time is the server's and the scheduler's.

The devices are scripted: four tokens at a time at a phone's rate, the target's own text with errors mixed in, so that a given share is
accepted. A chunk is sent to be judged with the budget's probability, and given with the next one otherwise; between answers a device rests.
Each case has a server of its own: admission control remembers how many devices it could serve in time.

The latency of a verdict is what the device sees, from its draft to its verdict, over a link of 60 ms; those of first rounds, which wait
for the prompt to be read, are counted by themselves. ``x alone`` divides the 95th percentile by that of a single device with the same
budget. Refusals are admission control's "overloaded, retry after"; the device waits as long as it is told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product
from random import Random
from typing import Any, get_args

import aiohttp
import websockets

from bench.report import Row, add_arguments, emit
from streamco.cli.serving import serve_until_stopped
from streamco.emulation.profiles import load_step_times
from streamco.policies.acceptance import Rule
from streamco.server.app import ServeOptions
from streamco.server.app import serving as serving_app
from streamco.server.verify.options import VerifyOptions, VerifyPolicy
from streamco.server.verify.service import STATS_PATH
from streamco.testing.engine import FakeEngine, FakeVocabulary
from streamco.wire.verify.client import VerifyClient
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import PATH, SUBPROTOCOL, Opened, Refusal, ServerFrame, VerdictFrame, Welcome

BENCH = "verifier"
SEED = 15
WINDOW = 4  # tokens in a draft
RATE = 20.0  # tokens a second that a device drafts
ACCEPTANCE = 0.8  # probability that a drafted token is the target's
RTT = 0.06  # seconds
PAUSE = 1.0  # mean seconds between two answers of a device
SETTLING = 0.3  # share of a case's time that isn't counted: admission finds out what the load is
CONTEXT = 256  # tokens
PLACES = 64
LARGE = "llama2-70b-a100x4"
SCRIPTED = "--scripted"
QUESTIONS = (
    "Explain how tides work.",
    "Write a short story about a lighthouse keeper.",
    "What makes bread rise?",
    "Name five animals of the desert and say how each finds water.",
    "Describe a walk through an old town in winter.",
    "How does a bicycle stay upright?",
    "Give advice to somebody who learns to cook.",
    "Why is the sky blue?",
)


DEVICES = {  # by engine, and whether it is to be quick
    ("packaged", True): [1, 3],
    ("packaged", False): [1, 2, 4, 8, 16, 64],
    ("large", True): [1, 64],
    ("large", False): [1, 8, 16, 32, 64, 96, 128],
}

VOCABULARY = FakeVocabulary("scripted", 4096)


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what the target writes behind it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(slots=True)
class Seen:
    """What all devices of a case saw."""

    latencies: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)
    refused_drafts: int = 0
    refused_sessions: int = 0
    other_tokens: int = 0  # verdicts that differ from the text: near ties fall either way with the batch's shape

    def clear(self) -> None:
        """Forget all of it."""
        for samples in (self.latencies, self.firsts, self.queued, self.computed):
            samples.clear()
        self.refused_drafts = self.refused_sessions = self.other_tokens = 0


class Device:
    """One connection; answers for ever."""

    def __init__(
        self, socket: websockets.ClientConnection, client: VerifyClient, texts: Sequence[Text], budget: float, rng: Random
    ) -> None:
        self._socket = socket
        self._client = client
        self._texts = texts
        self._budget = budget
        self._rng = rng

    async def run(self, seen: Seen) -> None:
        """Write into ``seen`` until cancelled."""
        await self._ask(Welcome)
        await asyncio.sleep(self._rng.random() * PAUSE)
        while True:
            await self._answer(self._rng.choice(self._texts), seen)
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE))

    async def _answer(self, text: Text, seen: Seen) -> None:
        whole = (*text.prompt, *text.answer)
        while True:
            session = self._client.open(text.prompt, Rule(), reserve=len(whole))
            opened = await self._ask(Opened)
            if not isinstance(opened, Refusal):
                break
            seen.refused_sessions += 1
            await asyncio.sleep((opened.retry_after_ms or 0) / 1000)
        base = position = len(text.prompt)
        is_first = True
        while position + WINDOW + 1 < len(whole):
            await asyncio.sleep(WINDOW / RATE)
            if self._rng.random() >= self._budget:
                position += WINDOW
                continue
            draft = [token if self._rng.random() < ACCEPTANCE else (token + 1009) % 4096 for token in whole[position : position + WINDOW]]
            verdict, latency = await self._judge(session, base, [*whole[base:position], *draft], position - base, seen)
            (seen.firsts if is_first else seen.latencies).append(latency)
            if not is_first:
                seen.queued.append(verdict.queue_us / 1e6)
                seen.computed.append(verdict.compute_us / 1e6)
            is_first = False
            base = position + verdict.accepted
            if verdict.token == whole[base]:
                base += 1
            else:
                seen.other_tokens += 1
            position = base
        self._client.close(session)
        await self._send()

    async def _judge(self, session: int, base: int, ids: Sequence[int], given: int, seen: Seen) -> tuple[VerdictFrame, float]:
        while True:
            began = time.perf_counter()
            self._client.draft(session, base, ids, given=given)
            told = await self._ask(VerdictFrame)
            if isinstance(told, VerdictFrame):
                return told, time.perf_counter() - began
            assert isinstance(told, Refusal)
            if told.code != "overloaded":
                raise told.error()
            seen.refused_drafts += 1
            await asyncio.sleep((told.retry_after_ms or 0) / 1000)

    async def _send(self) -> None:
        for message in self._client.take_messages():
            await self._socket.send(message)

    async def _ask(self, kind: type[ServerFrame]) -> ServerFrame:
        """The answer, or its refusal, over the link."""
        await asyncio.sleep(RTT / 2)
        await self._send()
        while True:
            frame = self._client.receive(await self._socket.recv())
            if isinstance(frame, (kind, Refusal)):
                await asyncio.sleep(RTT / 2)
                return frame


class Server:
    """``streamco serve`` in a process of its own."""

    def __init__(self, address: str, model: dict[str, Any]) -> None:
        self.address = address
        self.model = model

    async def figures(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """Its counts."""
        async with session.get(f"{self.address}{STATS_PATH}") as response:
            return dict(await response.json())

    @contextlib.asynccontextmanager
    async def device(self, texts: Sequence[Text], budget: float, rng: Random) -> AsyncIterator[Device]:
        """One that is connected."""
        size = self.model["vocabulary_size"]
        client = VerifyClient(VerifyCodec(size), self.model["vocabulary"], agent="bench")
        url = f"{self.address.replace('http', 'ws', 1)}{PATH}"
        async with websockets.connect(url, subprotocols=[SUBPROTOCOL], compression=None) as socket:  # type: ignore[list-item]
            yield Device(socket, client, texts, budget, rng)


def follow(ids: Sequence[int]) -> dict[int, float]:
    """The scripted target."""
    digest = sha256(",".join(map(str, ids[-8:])).encode()).digest()
    return {int.from_bytes(digest[:4]) % VOCABULARY.size: 1.0}


def serve_scripted(policy: Any) -> None:
    """The scripted target's server, for ever."""
    times = load_step_times(LARGE)
    engine = FakeEngine(
        vocabulary=VOCABULARY, successor=follow, mode="thread", held_sequences=2 * PLACES, context_tokens=CONTEXT, step_time=times
    )
    engine.batch_tokens = 512
    options = ServeOptions(verify=VerifyOptions(policy=policy))
    asyncio.run(serve_until_stopped(serving_app(engine, options), None))


@contextlib.asynccontextmanager
async def serving(engine: str, policy: str, imposed: Sequence[str]) -> AsyncIterator[Server]:
    """A server in a process of its own."""
    if engine == "large":
        command = [sys.executable, "-m", "bench.timed.verifier", SCRIPTED, "--policies", policy]
    else:
        command = [
            sys.executable,
            "-m",
            "streamco",
            "serve",
            "--port",
            "0",
            "--threads",
            "1",
            "--context",
            str(CONTEXT),
            "--sequences",
            "4",
        ]
        command += ["--verify-places", str(PLACES), "--verify-separate", "--verify-policy", policy, *imposed]
    process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        address = line.removeprefix("listening on ").strip()
        async with aiohttp.ClientSession() as session, session.get(f"{address}/v1/models") as response:
            yield Server(address, (await response.json())["data"][0])
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


def script_texts(count: int, tokens: int) -> list[Text]:
    """Some of the scripted target's answers."""
    rng, texts = Random(SEED), []
    for _ in range(count):
        prompt = tuple(rng.randrange(VOCABULARY.size) for _ in range(rng.randrange(20, 80)))
        whole = list(prompt)
        for _ in range(tokens):
            whole += follow(whole)
        texts.append(Text(prompt, tuple(whole[len(prompt) :])))
    return texts


async def write_texts(server: Server, count: int, tokens: int) -> list[Text]:
    """Some of the target's own greedy answers."""

    async def write(session: aiohttp.ClientSession, question: str) -> Text:
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens, "temperature": 0}
        body |= {"return_token_ids": True, "ignore_eos": True}
        async with session.post(f"{server.address}/v1/chat/completions", json=body) as response:
            choice = (await response.json())["choices"][0]
        return Text(tuple(choice["prompt_token_ids"]), tuple(choice["token_ids"]))

    async with aiohttp.ClientSession() as session:
        return list(await asyncio.gather(*(write(session, question) for question in QUESTIONS[:count])))


async def run_case(server: Server, texts: Sequence[Text], budget: float, devices: int, seconds: float) -> tuple[Seen, dict[str, Any]]:
    """So many devices for so long; what they saw, and what the server counted meanwhile."""
    seen = Seen()
    async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:
        rng = [Random(f"{SEED}/{budget}/{number}") for number in range(devices)]
        each = [await stack.enter_async_context(server.device(texts, budget, own)) for own in rng]
        tasks = [asyncio.create_task(device.run(seen)) for device in each]
        await asyncio.wait(tasks, timeout=SETTLING * seconds, return_when=asyncio.FIRST_EXCEPTION)
        seen.clear()
        before = await server.figures(session)
        done, running = await asyncio.wait(tasks, timeout=(1 - SETTLING) * seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in done:
            task.result()  # only by an error
        after = await server.figures(session)
    counts = {name: after[name] - before[name] for name in ("verdicts", "late_verdicts", "failed_batches")}
    return seen, {**counts, "session_limit": after["session_limit"]}


def percentile(samples: Sequence[float], share: float) -> float:
    """Of the samples, the one below which so many lie; nan of none."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def case_rows(case: str, contender: str, seen: Seen, *, rate: float, alone: float) -> list[Row]:
    """One figure a row."""
    p50, p95 = percentile(seen.latencies, 0.5), percentile(seen.latencies, 0.95)
    figures = [
        ("verdict p50", "ms", 1000 * p50),
        ("verdict p95", "ms", 1000 * p95),
        ("verdict p95, x alone", "", p95 / alone),
        ("queued p95", "ms", 1000 * percentile(seen.queued, 0.95)),
        ("computed p95", "ms", 1000 * percentile(seen.computed, 0.95)),
        ("first verdict p95", "ms", 1000 * percentile(seen.firsts, 0.95)),
        ("verdicts", "1/s", rate),
        ("refused drafts", "", seen.refused_drafts),
        ("refused sessions", "", seen.refused_sessions),
        ("verdicts other than the text", "", seen.other_tokens),
    ]
    return [Row(BENCH, case, contender, metric, unit, value, value, value) for metric, unit, value in figures]


async def measure(args: argparse.Namespace) -> list[Row]:
    """Every case."""
    rows: list[Row] = []
    texts: dict[str, list[Text]] = {}
    imposed = ["--step-times", args.step_times] if args.step_times else []
    count, tokens = (4, 64) if args.quick else (len(QUESTIONS), 96)
    for engine, policy, budget in product(args.engines, args.policies, args.budgets):
        alone, devices = float("nan"), args.devices or DEVICES[engine, bool(args.quick)]
        for number in devices:
            async with serving(engine, policy, imposed) as server:
                if engine not in texts:
                    texts[engine] = await write_texts(server, count, tokens) if engine == "packaged" else script_texts(count, tokens)
                seen, counts = await run_case(server, texts[engine], budget, number, args.seconds)
            if number == devices[0]:
                alone = percentile(seen.latencies, 0.95)
            rate = counts["verdicts"] / ((1 - SETTLING) * args.seconds)
            case, contender = f"{engine}, {policy}, budget {budget}", f"{number} devices"
            rows += case_rows(case, contender, seen, rate=rate, alone=alone)
            if counts["session_limit"] is not None:
                limit = counts["session_limit"]
                rows.append(Row(BENCH, case, contender, "sessions admitted at a time, at the end", "", limit, limit, limit))
            if imposed:
                late = counts["late_verdicts"] / max(1, counts["verdicts"])
                rows.append(Row(BENCH, case, contender, "verdicts that took longer than imposed", "share", late, late, late))
            print(f"{case}, {contender}: {len(seen.latencies)} verdicts", file=sys.stderr)
    return rows


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--engines", nargs="+", default=["packaged", "large"], choices=["packaged", "large"])
    parser.add_argument("--policies", nargs="+", default=None, choices=get_args(VerifyPolicy))
    parser.add_argument("--budgets", nargs="+", type=float, default=None)
    parser.add_argument("--devices", nargs="+", type=int, default=None, help="the first is what the others are compared with")
    parser.add_argument("--seconds", type=float, default=None, help="of each case")
    parser.add_argument("--step-times", metavar="PROFILE", help="a large model's, imposed on the packaged one; what took longer is counted")
    parser.add_argument(SCRIPTED, action="store_true", help=argparse.SUPPRESS)  # this process is the large server
    args = parser.parse_args()
    args.policies = args.policies or (["alternating"] if args.quick else ["alternating", "strict"])
    if args.scripted:
        serve_scripted(args.policies[0])
        return
    args.budgets = args.budgets or ([0.6] if args.quick else [0.3, 0.6, 0.9])
    args.seconds = args.seconds or (5.0 if args.quick else 30.0)
    emit(asyncio.run(measure(args)), args.json, against="1 devices")


if __name__ == "__main__":
    main()
