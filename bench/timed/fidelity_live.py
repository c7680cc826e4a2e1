"""The live side of ``bench.timed.fidelity``: ``streamco serve`` with imposed step times over emulated links, and clients that draft for it.

Everything is what users run (clients, protocol, scheduler, llama.cpp), except the draft models of many devices, because two cores can't
compute them all. A scripted engine replays the recorded tokens of the draft model, in the time that the draft model takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

import streamco
from bench.timed.fidelity_figures import MeasuredAnswer, Run, Verdict
from bench.timed.fidelity_records import Record
from bench.timed.speculate import read_stats
from streamco.calibration.measure import calibrate_pair
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.verifier_binding import HELD_SEQUENCES
from streamco.config import SamplingOptions
from streamco.core.speculation.events import SendDraft, VerdictReceived
from streamco.endpoints.base import Request
from streamco.endpoints.verifiers.base import Emit, VerifierCommand, VerifierEvent, VerifierFacts
from streamco.endpoints.verifiers.session import RemoteVerifierSession
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.engines.base import Engine
from streamco.engines.llama import LlamaEngine
from streamco.policies.acceptance import Rule
from streamco.profiles import PairProfile
from streamco.testing import FakeEngine, LinkProxy
from streamco.testing.engine import FakeVocabulary
from streamco.testing.server_process import running_server

__all__ = ["CONTEXT", "CORE_LAW", "PLACES", "READING", "DeviceLaw", "LiveCell", "RecordedEngine", "calibrate", "run_live", "measure_answer"]

CONTEXT = 512  # tokens
PLACES = 16  # sessions, and answers, side by side
WARM_TOKENS = 16  # of an answer before it counts: connections, first batches
_KEY = 8  # tokens by which prompts differ


class DeviceLaw(Struct, frozen=True, kw_only=True):
    """Seconds that the draft model takes.

    Args:
        step_times: to write a token on each of 1, 2, ... sequences side by side.
        seconds_per_token: to read a token.
    """

    step_times: tuple[float, ...]
    seconds_per_token: float

    def __call__(self, writing: int, reading: int) -> float:
        """Of a step that writes in so many sequences, and reads so many tokens in front of that."""
        times = self.step_times
        return self.seconds_per_token * reading + (times[min(writing, len(times)) - 1] if writing else 0.0)

    def slower(self, times: float) -> DeviceLaw:
        """Of a device that takes so many times as long."""
        return DeviceLaw(step_times=tuple(times * each for each in self.step_times), seconds_per_token=times * self.seconds_per_token)


READING = 0.18  # of a step, for a token that the draft model reads: what ``bench.timed.fidelity`` measures
CORE = tuple(each / 6.1 for each in (6.1, 13.8, 19.0, 22.6, 31.5, 35.5))  # times of 1 to 6 sequences on a core, by that of one
CORE_LAW = DeviceLaw(step_times=tuple(0.0061 * each for each in CORE), seconds_per_token=READING * 0.0061)
"""Of SmolLM2 in 4 bits on one core of an AMD EPYC."""


class RecordedEngine(FakeEngine):
    """Says what a draft model was recorded to say, in the time of ``law``; the words are another engine's, which stays its owner's."""

    def __init__(self, words: Engine, records: Sequence[Record], law: DeviceLaw) -> None:
        self._words = words
        self._records = {tuple(record.prompt[:_KEY]): record for record in records}
        if len(self._records) < len(records):
            raise AssertionError(f"records: expected prompts that differ in their first {_KEY} tokens")
        super().__init__(
            mode="thread",
            vocabulary=FakeVocabulary("recorded", words.info.vocabulary_size),
            successor=self._likely,
            held_sequences=HELD_SEQUENCES,
            context_tokens=CONTEXT,
            step_time=law,
        )
        self.info = replace(words.info, name="recorded", context_tokens=CONTEXT)

    def _likely(self, ids: Sequence[int]) -> Mapping[int, float]:
        record = self._records[tuple(ids[:_KEY])]
        return record.likely(len(ids) - len(record.prompt))

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """See ``Engine.tokenize``."""
        return self._words.tokenize(text, special=special, bos=bos)

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """See ``Engine.detokenize``."""
        return self._words.detokenize(ids)

    def apply_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """See ``Engine.apply_template``."""
        return self._words.apply_template(messages, add_generation_prompt=add_generation_prompt)


class LiveCell(Struct, frozen=True, kw_only=True):
    """What is run.

    Args:
        target: the model that is served. is_exact: in the exact mode. step_times: name of the times that are imposed on it; None: none are.
        words: an engine with its vocabulary. law: of the devices; None: ``words`` drafts itself.
        rtt: of each device's link, seconds. devices: how many.
        speculation: how they draft; None: they don't, the target writes alone.
        work: records of each device, the first one before it counts. tokens: of each answer.
        rests: seconds of each device before each of its requests.
    """

    target: Path
    is_exact: bool
    step_times: str | None
    words: LlamaEngine
    law: DeviceLaw | None
    rtt: float
    speculation: Speculate | None
    work: Sequence[Sequence[Record]]
    tokens: int
    rests: Sequence[Sequence[float]]


async def run_live(cell: LiveCell) -> Run:
    """Start the server, say everything, stop it."""
    run = Run(answers=[], verdicts=[])
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_serving(cell))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        verdicts: list[Verdict] = []
        clients = [await stack.enter_async_context(_client(cell, url, records, verdicts.append)) for records in cell.work]

        async def talk(number: int, places: Sequence[int], tokens: int) -> list[MeasuredAnswer]:
            answers = []
            for position in places:
                await asyncio.sleep(cell.rests[number][position])
                answers.append(await measure_answer(clients[number], cell.work[number][position], tokens))
            return answers

        await asyncio.gather(*(talk(number, [0], WARM_TOKENS) for number in range(len(clients))))
        verdicts.clear()
        before = await read_stats(http, url)
        for measured in await asyncio.gather(
            *(talk(number, range(1, len(cell.work[number])), cell.tokens) for number in range(len(clients)))
        ):
            run.answers += measured
        after = await read_stats(http, url)
    run.verdicts = verdicts
    count = after["verdicts"] - before["verdicts"]
    run.late = (after["late_verdicts"] - before["late_verdicts"]) / count if count else 0.0
    run.refusals = sum(after["refused"].values()) - sum(before["refused"].values())
    return run


async def calibrate(cell: LiveCell, *, rounds: int) -> tuple[PairProfile, VerifierFacts]:
    """Return what ``streamco calibrate --pair`` finds for one device alone, and what the server says of itself."""
    records = cell.work[0]
    requests = [Request(messages=list(record.messages)) for record in records]
    async with _serving(cell) as url, LinkProxy(urlsplit(url).port or 0, rtt=cell.rtt) as proxy:
        device = streamco.DeviceEndpoint(_engine(cell, records))
        verifier = VerifierEndpoint(f"ws://127.0.0.1:{proxy.port}")
        try:
            profile = await calibrate_pair(device, verifier, requests, rounds=rounds, sequences=6, answer_tokens=cell.tokens)
            return profile, await verifier.probe()
        finally:
            await verifier.aclose()
            await device.aclose()
            _release(cell, device)


@asynccontextmanager
async def _serving(cell: LiveCell) -> AsyncIterator[str]:
    sizes = ("--context", str(CONTEXT), "--sequences", str(PLACES), "--verify-places", str(PLACES))
    model = ("--model", str(cell.target), "--model-name", "large", "--threads", "1")
    exact = ("--exact",) if cell.is_exact else ()
    imposed = () if cell.step_times is None else ("--step-times", cell.step_times)
    async with running_server(*model, *sizes, *exact, *imposed, "--port", "0") as url:
        yield url


def _engine(cell: LiveCell, records: Sequence[Record]) -> Engine:
    return cell.words if cell.law is None else RecordedEngine(cell.words, records, cell.law)


def _release(cell: LiveCell, device: streamco.DeviceEndpoint) -> None:
    if device.engine is not None and device.engine is not cell.words:
        device.engine.close()


@asynccontextmanager
async def _client(cell: LiveCell, url: str, records: Sequence[Record], emit: Callable[[Verdict], None]) -> AsyncIterator[streamco.Client]:
    """One device, behind a link of its own."""
    async with LinkProxy(urlsplit(url).port or 0, rtt=cell.rtt) as proxy:
        if cell.speculation is None:
            server = streamco.OpenAIEndpoint("large", base_url=f"http://127.0.0.1:{proxy.port}/v1", name="server")
            async with streamco.Client(server=server) as client:
                yield client
            return
        device = streamco.DeviceEndpoint(_engine(cell, records))
        verifier = _TimedVerifier(f"ws://127.0.0.1:{proxy.port}", emit)
        async with streamco.Client(device, mode=replace(cell.speculation, verifier=verifier), seed=1) as client:
            if client.unspeculated:
                raise SystemExit(f"expected a client that drafts, got: {client.unspeculated}")
            yield client
        _release(cell, device)


async def measure_answer(client: streamco.Client, record: Record, tokens: int) -> MeasuredAnswer:
    """One greedy answer."""
    sampling = SamplingOptions(temperature=0, max_tokens=tokens, seed=1)
    measured, ids = MeasuredAnswer(began=time.perf_counter(), deliveries=[]), []
    request = Request(messages=list(record.messages), sampling=sampling, extra={"return_token_ids": True})
    async with client.open_chat(request) as stream:
        async for chunk in stream:
            found = [token for choice in chunk.choices for token in choice.token_ids or ()]
            if not found:
                continue
            now = time.perf_counter()
            ids += found
            if measured.deliveries and now - measured.deliveries[-1][0] < 0.001:  # what came at one time is read one by one
                measured.deliveries[-1] = (measured.deliveries[-1][0], measured.deliveries[-1][1] + len(found))
            else:
                measured.deliveries.append((now, len(found)))
    measured.is_as_recorded = ids == record.answer[:tokens]
    figures = stream.report.speculation
    if figures is not None:
        measured.judged, measured.accepted = round(figures.accepted / figures.acceptance) if figures.acceptance else 0, figures.accepted
        measured.rounds, measured.hits = figures.rounds, round((figures.hit_rate or 0.0) * figures.rounds)
        measured.figures = figures
    return measured


class _TimedVerifier(VerifierEndpoint):
    """Tells how long verdicts take, each session's first one left out."""

    def __init__(self, url: str, emit: Callable[[Verdict], None]) -> None:
        super().__init__(url)
        self._emit = emit

    def open(self, prompt_ids: Sequence[int], emit: Emit, *, rule: Rule, top_k: int = 0, reserve: int = 0) -> RemoteVerifierSession:
        """See ``Verifier.open``."""
        sent: dict[int, float] = {}  # rounds that were not sent ahead

        def emit_timed(event: VerifierEvent) -> None:
            if isinstance(event, VerdictReceived) and event.round in sent and event.round != min(sent):
                self._emit(Verdict(time.perf_counter() - sent[event.round], event.queue_seconds, event.compute_seconds))
            emit(event)

        session = super().open(prompt_ids, emit_timed, rule=rule, top_k=top_k, reserve=reserve)
        run = session.run

        def timed(command: VerifierCommand) -> None:
            if isinstance(command, SendDraft) and command.if_verdict is None:
                sent[command.round] = time.perf_counter()
            run(command)

        session.run = timed  # type: ignore[method-assign]
        return session
