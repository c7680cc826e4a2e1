"""What do Synera's decisions cost, beside the models (Synera, Table 5 and Figure 18)?

On the device: both filters with their steering, and the importance of a chunk from its rows of attention, for each drafted token. At the
server: the scheduler's own time for each verification, by the budget, which says how many tokens that the device kept come with a draft;
beside it the time of a batch of one such verification by Llama-2-70B on four A100. All are processor time of one thread, so that other
processes matter little. Memory is what one open session holds in the scheduler, without the model's cache.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import numpy as np

from bench.report import Row, add_arguments, emit, interleave, rows_from, summarise
from streamco.core.verifier.events import BatchFinished, DraftReceived, DraftVerdict, RunBatch, SessionOpened
from streamco.core.verifier.options import SchedulerOptions
from streamco.core.verifier.scheduler import VerificationScheduler
from streamco.emulation.profiles import load_step_times
from streamco.policies.importance import draft_importance
from streamco.policies.offload import OffloadRule, OffloadSteering
from streamco.policies.serving.batching import LinearStep

__all__ = ["Server", "decide_chunks", "main"]

BENCH = "scheduling_overhead"
SEED = 6
CHUNK = 4  # tokens
RULES: tuple[OffloadRule, ...] = ("combined", "confidence", "importance", "random")
BUDGETS = (0.2, 0.5, 0.9)
PROMPT = 200  # tokens
SESSIONS = 16
LARGE = "llama2-70b-a100x4"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    rounds, chunks = (3, 200) if options.quick else (9, 2000)
    emit([*_device(rounds, chunks), *_scheduler(rounds, chunks), *_memory()], options.json, against="combined")


def _device(rounds: int, chunks: int) -> list[Row]:
    deciding = {str(rule): _timed(partial(decide_chunks, rule, chunks), chunks * CHUNK) for rule in RULES}
    rows = [np.full((4, row + 1), 0.1, dtype=np.float32) for row in range(CHUNK - 1)]
    reading = {"importance": _timed(lambda: [draft_importance(rows) for _ in range(chunks)], chunks * CHUNK)}
    case = f"device, budget 0.2, chunks of {CHUNK}"
    return [
        *rows_from(BENCH, case, "P_conf, P_imp and steering, a drafted token", "us", interleave(deciding, rounds)),
        *rows_from(BENCH, case, "importance of a chunk from its rows, a drafted token", "us", interleave(reading, rounds)),
    ]


def decide_chunks(rule: OffloadRule, chunks: int) -> OffloadSteering:
    """Decide so many chunks of random confidence and importance at a budget of 0.2; the steering, after all."""
    rng, steering = Random(SEED), OffloadSteering(0.2, rule=rule)
    for _ in range(chunks):
        steering.decide(rng.random(), rng.random(), CHUNK, rng)
    return steering


def _timed(call: Callable[[], object], parts: int) -> Callable[[], float]:
    """Microseconds of this thread's processor time for each part."""

    def measure() -> float:
        start = time.thread_time()
        call()
        return (time.thread_time() - start) / parts * 1e6

    return measure


class Server:
    """A scheduler whose batches end at once, with sessions that draft in turns.

    Args:
        sessions: how many are open.
        budget: share of the drafts that are sent; the others come as tokens that the device kept.

    Attributes:
        verified: number of verdicts so far.
    """

    def __init__(self, sessions: int, budget: float) -> None:
        options = SchedulerOptions(kv_tokens=1 << 24, places=sessions, context_tokens=1 << 16, sessions=sessions)
        self.verified = 0
        self._given = round(CHUNK * (1.0 / budget - 1.0))
        self._scheduler = VerificationScheduler(options, LinearStep(setup=0.04, per_token=0.0002))
        self._lengths = {f"s{number}": PROMPT for number in range(sessions)}
        self._now, self._round = 0.0, 0
        self._scheduler.start(now=0.0)
        for session, tokens in self._lengths.items():
            self._scheduler.receive(SessionOpened(session, session, tuple(range(tokens))), now=0.0)
        self._run()
        self.verified = 0

    def run_round(self) -> None:
        """Every session sends a draft with what it kept, of which half is accepted."""
        self._round += 1
        for session, length in self._lengths.items():
            given, draft = tuple(range(self._given)), tuple(range(CHUNK))
            event = DraftReceived(session=session, round=self._round, base=length, given=given, draft=draft)
            self._scheduler.receive(event, now=self._now)
        self._run()
        for session, length in self._lengths.items():
            self._lengths[session] = length + self._given + CHUNK // 2 + 1

    def _run(self) -> None:
        while batch := next((each for each in self._scheduler.take_commands() if isinstance(each, RunBatch)), None):
            self._now += 0.05
            judged = [part.session for part in batch.parts if part.verify_rows]
            verdicts = tuple(DraftVerdict(session, CHUNK // 2, 7) for session in judged)
            self.verified += len(verdicts)
            self._scheduler.receive(BatchFinished(batch.number, verdicts, 0.05), now=self._now)


def _scheduler(rounds: int, chunks: int) -> list[Row]:
    found, forward = [], load_step_times(LARGE)
    for budget in BUDGETS:
        turns = max(2, chunks // 40)

        def measure(budget: float = budget, turns: int = turns) -> float:
            server = Server(SESSIONS, budget)
            start = time.thread_time()
            for _ in range(turns):
                server.run_round()
            return (time.thread_time() - start) / server.verified * 1e6

        case = f"server, budget {budget:g}, {SESSIONS} sessions"
        samples = [measure() for _ in range(rounds)]
        found.append(summarise(samples, bench=BENCH, case=case, contender="scheduler", metric="time of a verification", unit="us"))
        model = [forward(0, round(CHUNK / budget)) * 1e6]
        found.append(summarise(model, bench=BENCH, case=case, contender=f"{LARGE}, alone", metric="time of a verification", unit="us"))
    return found


def _memory() -> list[Row]:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    server = Server(SESSIONS, 0.2)
    server.run_round()
    held = (tracemalloc.get_traced_memory()[0] - before) / SESSIONS / 1024
    tracemalloc.stop()
    return [
        summarise([held], bench=BENCH, case=f"server, {SESSIONS} sessions", contender="scheduler", metric="memory of a session", unit="KiB")
    ]


if __name__ == "__main__":
    main()
