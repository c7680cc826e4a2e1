"""Measures a draft model and its verifier together: every draft is verified, and no branch is pre-drafted (Synera section 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

from streamco.calibration.fit import VerifiedRound, fit_pair
from streamco.config import SamplingOptions
from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    DeviceFailed,
    DraftRefused,
    DraftToken,
    DraftTokens,
    SendDraft,
    TokensDrafted,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.endpoints.base import Endpoint, Request
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.device_drafter import DeviceDrafter, DrafterEvent
from streamco.endpoints.verifiers.base import Verifier, VerifierEvent, VerifierSession
from streamco.engines.base import HoldingEngine, SequenceTask, TokenSequence
from streamco.errors import ConfigError, EndpointError, EngineError, VerifierError
from streamco.events import TokensReceived
from streamco.policies.acceptance import Rule
from streamco.profiles import PairProfile

__all__ = ["GREEDY", "calibrate_pair", "measure_remote_step", "measure_rounds", "measure_step_times", "measure_verify_times"]

GREEDY = SamplingOptions(temperature=0)

_TURNS = 3  # repetitions of every measured time, of which the median is used
_SIZES = (1, 2, 4, 8, 16)  # lengths in tokens of the drafts that are timed
_MAX_LOSSES = 5  # losses or refusals in a row that one answer tolerates
_RETRY = 0.05  # seconds before a retry, if the refusal doesn't say how many

E = TypeVar("E")


async def calibrate_pair(
    device: DeviceEndpoint,
    verifier: Verifier,
    requests: Sequence[Request],
    *,
    rounds: int = 120,
    window: int = 4,
    sequences: int = 6,
    answer_tokens: int = 64,
    on_progress: Callable[[int, int], None] | None = None,
) -> PairProfile:
    """Measure a pair and return its profile.

    Args:
        device: the device that drafts; its engine must hold ``sequences`` + 1 sequences.
        verifier: the verifier; this function starts it, and the caller closes it.
        requests: prompts like the ones that your application sends; they are answered in turn, by greedy decoding.
        rounds: number of drafts to verify.
        window: number of tokens in a draft (gamma).
        sequences: the largest number of sequences for which step times are measured.
        answer_tokens: maximum number of tokens in one answer.
        on_progress: called with the number of finished rounds and ``rounds``.

    Raises:
        ConfigError: there are no requests, or a number is below 1.
        EndpointError: the device or the verifier can't be reached, or has failed.
        VerifierError: the verifier refuses this pair.
    """
    if not requests or min(rounds, window, sequences, answer_tokens) < 1:
        raise ConfigError(f"calibration: expected a prompt and numbers above 0, got {len(requests)}, {rounds}, {window} and {sequences}")
    await device.start()
    engine = device.engine
    if engine is None or not hasattr(engine, "hold"):
        raise EngineError(f"{device.name}: expected an engine that holds sequences")
    await verifier.start(engine)
    facts = await verifier.probe()
    verified: list[VerifiedRound] = []
    for number in range(rounds):  # an answer gives at least one round, or the device's context is full
        if len(verified) >= rounds or (number >= len(requests) and not verified):
            break
        request = requests[number % len(requests)]
        before = len(verified)
        verified += await measure_rounds(
            device,
            verifier,
            request,
            window=min(window, facts.draft_tokens),
            rounds=rounds - before,
            answer_tokens=answer_tokens,
            on_round=_counted_from(before, rounds, on_progress),
        )
    ids = device.prompt_ids(engine, requests[0])
    holding: HoldingEngine = engine  # type: ignore[assignment]
    notes: list[str] = []
    return fit_pair(
        verified,
        window=min(window, facts.draft_tokens),
        step_times=await measure_step_times(holding, ids, sequences=sequences),
        rtt=verifier.rtt,
        verify_times=await measure_verify_times(verifier, ids, verified, max_drafted=facts.draft_tokens),
        remote_step=await _try_remote(verifier.remote, ids, notes),
        draft=engine.info.name,
        target=facts.model,
        note="; ".join(notes),
    )


def _counted_from(before: int, rounds: int, on_progress: Callable[[int, int], None] | None) -> Callable[[int], None] | None:
    if on_progress is None:
        return None
    return lambda done: on_progress(before + done, rounds)


async def measure_rounds(
    device: DeviceEndpoint,
    verifier: Verifier,
    request: Request,
    *,
    window: int = 4,
    rounds: int = 16,
    answer_tokens: int = 64,
    on_round: Callable[[int], None] | None = None,
) -> list[VerifiedRound]:
    """Make one answer, or its first ``rounds`` rounds, and return its rounds; each draft waits for the verdict on the one before.

    The device computes its own token after a draft while it waits for the verdict. The first round has no time, because the verifier
    reads the prompt in it.

    Raises:
        EndpointError: the device or the verifier failed.
        VerifierError: the verifier no longer verifies.
    """
    session = _CalibrationSession(verifier)
    drafter = await device.drafter(_greedy(request), emit=session.record_device_event)
    try:
        await session.open(drafter.prompt_ids, reserve=len(drafter.prompt_ids) + answer_tokens + window + 1)
        return await _answer(session, drafter, window=window, rounds=rounds, max_tokens=answer_tokens, on_round=on_round)
    finally:
        await drafter.aclose()
        await session.aclose()


async def _answer(
    session: _CalibrationSession,
    drafter: DeviceDrafter,
    *,
    window: int,
    rounds: int,
    max_tokens: int,
    on_round: Callable[[int], None] | None = None,
) -> list[VerifiedRound]:
    verified: list[VerifiedRound] = []
    text: list[int] = []
    given: tuple[int, ...] = ()
    while len(verified) < rounds and len(text) < max_tokens:
        version = 2 * len(verified) + 1
        drafter.run(DraftTokens(version, len(text) - len(given), given, window))
        tokens, importance = await session.drafted(version)
        if not tokens:
            break  # the device's context is full
        ends = tokens[-1].id in drafter.end_ids
        if not ends:
            drafter.run(DraftTokens(version + 1, len(text) + len(tokens), (), 1))
        verdict, wait = await session.verify(text, [token.id for token in tokens])
        following = [] if ends else (await session.drafted(version + 1))[0]
        verified.append(
            VerifiedRound(
                ids=tuple(token.id for token in tokens),
                confidences=tuple(token.confidence for token in tokens),
                alternatives=tuple(token.alternatives for token in tokens),
                next_id=following[0].id if following else None,
                importance=importance,
                accepted=verdict.accepted,
                token=verdict.token,
                wait=wait if verified else None,
                server=verdict.queue_seconds + verdict.compute_seconds if verified else None,
            )
        )
        if on_round is not None:
            on_round(len(verified))
        text += [token.id for token in tokens[: verdict.accepted]]
        if verdict.token is None or (ends and verdict.accepted == len(tokens)):
            break
        given = (verdict.token,)
        text += given
        if verdict.token in drafter.end_ids:
            break
    return verified


async def measure_step_times(
    engine: HoldingEngine, prompt_ids: Sequence[int], *, sequences: int = 6, tokens: int = 8, turns: int = _TURNS
) -> tuple[float, ...]:
    """Measure how many seconds the draft model takes for a step that adds a token to each of 1, 2, ... sequences after one prompt.

    The sequence counts take turns, so that other load on the machine affects all of them. The result is the median for each count.

    Raises:
        EngineError: the engine failed, or can't hold that many sequences.
    """
    trunk = engine.hold("calibration")
    try:
        await _finish(trunk, lambda wake: trunk.extend(prompt_ids, wake))
        times: list[list[float]] = [[] for _ in range(sequences)]
        for _ in range(turns):
            for count in range(1, sequences + 1):
                times[count - 1].append(await _step(engine, trunk, count, tokens))
        return tuple(median(each) for each in times)
    finally:
        trunk.close()


async def _step(engine: HoldingEngine, trunk: TokenSequence, count: int, tokens: int) -> float:
    with engine.together():
        branches = [trunk.fork() for _ in range(count)]
        runs = [_Run() for _ in branches]
        for branch, run in zip(branches, runs, strict=True):
            run.task = branch.draft(tokens, run.wake, sampling=GREEDY)
    try:
        steps = [await run.finish() for run in runs]
    finally:
        for branch in branches:
            branch.close()
    return max(seconds for seconds, _ in steps) / max(count for _, count in steps)


async def measure_verify_times(
    verifier: Verifier, prompt_ids: Sequence[int], verified: Sequence[VerifiedRound], *, max_drafted: int, turns: int = _TURNS
) -> tuple[tuple[int, float], ...]:
    """Return (drafted tokens, seconds) of the verifier's batches for drafts of several lengths, or () if it doesn't report its times.

    Args:
        verifier: the verifier, after ``probe``.
        prompt_ids: the context before the drafts.
        verified: rounds whose ids are used for the drafts.
        max_drafted: maximum number of tokens in a draft.
        turns: number of drafts of each length; the result has their median time.

    Raises:
        EndpointError: the verifier failed.
        VerifierError: the verifier no longer verifies.
    """
    text = [token for each in verified for token in each.ids][: max(_SIZES)]
    sizes = [size for size in _SIZES if size <= min(max_drafted, len(text))]
    session = _CalibrationSession(verifier)
    try:
        await session.open(prompt_ids, reserve=len(prompt_ids) + max(_SIZES) + 1)
        await session.verify([], text[:1])  # reads the prompt
        found: list[tuple[int, float]] = []
        for size in sizes:
            verdicts = [(await session.verify([], text[:size]))[0] for _ in range(turns)]
            found.append((size, median(verdict.compute_seconds for verdict in verdicts)))
        return tuple(found) if all(seconds > 0.0 for _, seconds in found) else ()
    finally:
        await session.aclose()


async def measure_remote_step(remote: Endpoint, prompt_ids: Sequence[int], *, tokens: int = 24) -> float | None:
    """Return the seconds between two tokens of the remote stream, or None if fewer than two events with tokens arrived.

    Raises:
        EndpointError: the server failed, or can't generate without drafts.
    """
    loop = asyncio.get_running_loop()
    sampling = SamplingOptions(temperature=0, max_tokens=tokens)
    stream = remote.open(Request(prompt_ids=list(prompt_ids), sampling=sampling, extra={"ignore_eos": True}))
    arrivals: list[tuple[float, int]] = []
    try:
        while isinstance(event := await stream.receive(), TokensReceived):
            if event.tokens:
                arrivals.append((loop.time(), event.tokens))
    finally:
        await stream.cancel()
    later = sum(count for _, count in arrivals[1:])
    return (arrivals[-1][0] - arrivals[0][0]) / later if later else None


async def _try_remote(remote: Endpoint | None, prompt_ids: Sequence[int], notes: list[str]) -> float | None:
    if remote is None:
        return None
    try:
        return await measure_remote_step(remote, prompt_ids)
    except EndpointError as error:
        notes.append(f"the server does not generate alone: {error}")
        return None


class _CalibrationSession:
    """A verifier's session whose replies can be awaited, and the drafts that it verifies."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._session: VerifierSession | None = None
        self._events: asyncio.Queue[VerifierEvent] = asyncio.Queue()
        self._drafts: asyncio.Queue[DrafterEvent] = asyncio.Queue()
        self._round = -1

    def record_device_event(self, event: DrafterEvent) -> None:
        """Record an event of the drafter."""
        self._drafts.put_nowait(event)

    async def open(self, prompt_ids: Sequence[int], *, reserve: int) -> None:
        """Begin a session, and wait until it is connected."""
        self._session = self._verifier.open(prompt_ids, self._events.put_nowait, rule=Rule(), reserve=reserve)
        await self._connect([])

    async def _connect(self, text: Sequence[int]) -> None:
        for _ in range(_MAX_LOSSES):
            self._connected.run(ConnectVerifier(tuple(text)))
            match await self._events.get():
                case VerifierConnected():
                    return
                case VerifierFailed(error=error):
                    raise error
        raise VerifierError(f"{self._verifier.name}: expected a session that stays, got {_MAX_LOSSES} that were lost")

    async def drafted(self, version: int) -> tuple[list[DraftToken], float | None]:
        """Wait until the whole draft with this version has arrived, and return it and its importance."""
        tokens: list[DraftToken] = []
        importance = None
        while True:
            match await self._drafts.get():
                case DeviceFailed(error=error):
                    raise error
                case TokensDrafted() as event if event.version == version:
                    tokens += event.tokens
                    importance = importance if event.importance is None else event.importance
                    if event.is_finished:
                        return tokens, importance

    async def verify(self, text: Sequence[int], ids: Sequence[int]) -> tuple[VerdictReceived, float]:
        """Send the verifier the draft ``ids`` after ``text``; return the verdict and the seconds until it arrived."""
        loop = asyncio.get_running_loop()
        for _ in range(_MAX_LOSSES):
            self._round += 1
            sent = loop.time()
            self._connected.run(SendDraft(self._round, len(text), (), tuple(ids)))
            match await self._events.get():
                case VerdictReceived() as verdict:
                    return verdict, loop.time() - sent
                case DraftRefused(retry_after=seconds):
                    await asyncio.sleep(_RETRY if seconds is None else seconds)
                case VerifierLost():
                    await self._connect(text)
                case VerifierFailed(error=error):
                    raise error
        raise VerifierError(f"{self._verifier.name}: expected a verdict, got {_MAX_LOSSES} refusals or losses")

    async def aclose(self) -> None:
        """End the verifier's session."""
        if self._session is not None:
            self._session.run(CloseVerifier())
            await self._session.aclose()

    @property
    def _connected(self) -> VerifierSession:
        if self._session is None:
            raise AssertionError("a session is opened before it is used")
        return self._session


class _Run:
    """A task of the engine that is awaited on the event loop."""

    def __init__(self) -> None:
        self.task: SequenceTask | None = None
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Wake the waiting ``finish``; called by the engine's thread."""
        self._loop.call_soon_threadsafe(self._woken.set)

    async def finish(self) -> tuple[float, int]:
        """Wait for the task to end. Return its compute time in seconds and the number of predictions that it made.

        Raises:
            EngineError: the task failed or was cancelled.
        """
        if self.task is None:
            raise AssertionError("a task is submitted before it is awaited")
        made = 0
        while True:
            predictions, end = self.task.take()
            made += len(predictions)
            if end is not None:
                break
            await self._woken.wait()
            self._woken.clear()
        if end.reason not in {"done", "stop"}:
            raise EngineError(f"engine: expected drafts, got {end.error or end.reason}")
        return end.timings.compute_s, made


async def _finish(sequence: TokenSequence, ask: Callable[[Callable[[], None]], SequenceTask]) -> None:
    run = _Run()
    run.task = ask(run.wake)
    await run.finish()


def _greedy(request: Request) -> Request:
    from msgspec.structs import replace

    return replace(request, sampling=GREEDY)
