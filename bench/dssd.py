"""Would it pay to send the target's row down after a rejection, as DSSD does, and no rows of the draft up?

With sampling, a draft carries the row that each of its tokens was drawn from, and the verifier draws the correction (``rows up``). In
DSSD (arXiv 2507.12000) it carries the probability of each token alone. After a rejection the verifier sends its own row, and the device
draws the correction, because it knows what it drafted from (``row down``). Then the verifier learns the correction with the next draft. So
a draft that was sent ahead of a rejection can't begin before the device has said which token it drew. ``rows for nothing`` is the bound of
both: tokens alone go up, and the verifier draws the correction all the same.

Four parts: ids in the rows of a real draft (the packaged model's); bytes of a round, from the codec; times of a round by arithmetic, for a
device that drafts in turn with the verifier and for one that has always drafted by the time the verdict comes; and tokens a second of whole
answers in virtual time, where drafts are also sent ahead. Kind to DSSD everywhere: a probability takes 2 bytes, its row has no more ids
than a draft's, and a device that needs ids beyond that row has them. In truth a correction from the target's own distribution needs all of
them: 98,000 bytes for a vocabulary of 49,152. The device is fast and the server a GPU, because there bytes count most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from typing import Literal, cast

import simpy
from msgspec.structs import replace

from bench.report import Row, add_arguments, emit
from streamco import SpeculationOptions
from streamco.config import SamplingOptions
from streamco.core.speculation.events import CloseVerifier, ConnectVerifier, SendDraft, VerdictReceived, VerifierConnected
from streamco.core.speculation.options import SpeculationMachineOptions
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.policies.acceptance import Distribution, verify_sampled
from streamco.sim.driver import call_at
from streamco.sim.fleet.drafting_device import DraftingDevice
from streamco.sim.single.answer import SimulatedSpeculation, simulate_answer
from streamco.sim.single.faulty_verifier import FaultyLink, VerifyingServer
from streamco.sim.workload.token_models import FakeDistribution, TokenModel
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import Draft, VerdictFrame
from streamco.wire.verify.topk import TopK

__all__ = ["CONTENDERS", "VERIFY", "Cell", "Contender", "Link", "LinkedVerifier", "answer_speeds", "draft_bytes", "main", "models"]
__all__ += ["round_seconds", "verdict_bytes"]

BENCH = "dssd"
VOCABULARY = 151_936
HEADERS = 2 + 4 + 22 + 32 + 20  # WebSocket header and mask, TLS 1.3 record, TCP with timestamps, IPv4
PROBABILITY = 2  # bytes
WINDOWS = range(1, 9)
USUAL_ROW = 20  # SpeculationTuning.row_tokens
ROW_IDS = (5, USUAL_ROW, 64)
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
RATES = (0.1, 1.0, 10.0)  # Mbps, both ways
RTTS = (0.01, 0.03, 0.06, 0.12)  # seconds, as all times
DRAFT_STEP, VERIFY = 0.0065, 0.025
STEPS = tuple(DRAFT_STEP * each / 6.1 for each in (6.1, 13.8, 19.0, 22.6, 31.5, 35.5))  # by sequences that draft: bench/speculate_simulated
PROMPT_TIME = 0.1
READING = 0.004  # of a verification's time, for each token
TOKENS = 128
DRAFTED = 48  # tokens of each question whose rows are counted
QUESTIONS = ("Explain how tides work.", "Write a Python function that sorts a list.", "Name five animals.")
FILTERS: Mapping[str, SamplingOptions] = {
    "default filters": SamplingOptions(),
    "no filters": SamplingOptions(top_p=1.0, top_k=0, min_p=0.0),
}
NOISES = {"0.75": 1.0, "0.9": 0.35}  # of the draft model, by the share of verified tokens that is then accepted
SPREAD, SIZE = 4.0, 40  # of the models' logits, and their number of ids
SEED = 12

Contender = Literal["rows up", "row down", "rows for nothing"]
CONTENDERS: tuple[Contender, ...] = ("rows up", "row down", "rows for nothing")


@cache
def draft_bytes(contender: Contender, given: int, window: int, row_ids: int) -> int:
    """Bytes of a draft's frame, without headers."""
    ids = (0,) * (given + window)
    rows = tuple(_row(row_ids) for _ in range(window)) if contender == "rows up" else ()
    frame = len(VerifyCodec(VOCABULARY).encode(Draft(1, 200, 1200, given, ids, rows)))
    return frame + (PROBABILITY * window if contender == "row down" else 0)


@cache
def verdict_bytes(contender: Contender, row_ids: int, *, is_rejection: bool) -> int:
    """Bytes of a verdict's frame, without headers."""
    has_row = contender == "row down" and is_rejection
    frame = VerdictFrame(1, 200, 3, None if has_row else 77, 12, 350, 90_000, (_row(row_ids),) if has_row else ())
    return len(VerifyCodec(VOCABULARY).encode(frame))


def _row(count: int) -> TopK:
    return TopK(tuple(range(count)), (65535,) * count, 65535)


@dataclass(frozen=True, slots=True)
class Link:
    """A link of one rate in both directions."""

    mbps: float
    rtt: float

    def sending(self, payload: int) -> float:
        """Seconds that a frame with its headers occupies the link."""
        return 8 * (payload + HEADERS) / (self.mbps * 1e6)


def round_seconds(contender: Contender, window: int, row_ids: int, acceptance: float, link: Link, *, is_hidden: bool) -> float:
    """Mean seconds of a round. ``is_hidden``: its draft was written while the verdict before it was awaited."""
    rejected = 1.0 - acceptance**window
    after_rejection = int(contender == "row down")  # ids that a draft gives first, because the verifier does not know them
    up = rejected * link.sending(draft_bytes(contender, after_rejection, window, row_ids))
    up += (1.0 - rejected) * link.sending(draft_bytes(contender, 0, window, row_ids))
    down = rejected * link.sending(verdict_bytes(contender, row_ids, is_rejection=True))
    down += (1.0 - rejected) * link.sending(verdict_bytes(contender, row_ids, is_rejection=False))
    return (0.0 if is_hidden else window * DRAFT_STEP) + up + link.rtt + VERIFY * (1.0 + READING * window) + down


# Whole answers in virtual time


@dataclass(frozen=True, slots=True)
class Cell:
    """What answers are simulated with."""

    noise: float
    link: Link
    row_ids: int = USUAL_ROW
    max_ahead: int = 3


class LinkedVerifier:
    """A verifier session over a link whose upward frames queue; takes the place of ``FaultyVerifierSession``."""

    def __init__(
        self,
        env: simpy.Environment,
        model: TokenModel,
        cell: Cell,
        contender: Contender,
        *,
        emit_event: Callable[[VerifierConnected | VerdictReceived], None],
        rng: Random,
    ) -> None:
        self.ids: list[int] = []
        self.bytes_up = 0
        self.rounds = self.rejections = self.ahead_of_rejections = 0
        self.accepted = self.verified = 0
        self._env = env
        self._model = model
        self._link, self._row_ids = cell.link, cell.row_ids
        self._contender: Contender = contender
        self._emit = emit_event
        self._rng = rng
        self._is_free_at = self._is_read_at = 0.0
        self._window = 0  # of the round that is out
        self._ahead: list[tuple[SendDraft, float | None]] = []  # and when each arrives; None: when the device knows the verdict
        self._is_closed = False

    def run(self, command: ConnectVerifier | SendDraft | CloseVerifier) -> None:
        """Start what the command asks for."""
        match command:
            case ConnectVerifier(ids):
                self.ids = list(ids)
                connected = VerifierConnected(len(ids))
                self._is_read_at = self._env.now + 2 * self._link.rtt + PROMPT_TIME
                call_at(self._env, 2 * self._link.rtt + 1e-9, lambda: self._emit(connected))
            case SendDraft(if_verdict=None):
                self._begin(command, self._arrival(command, 0))
            case SendDraft(if_verdict=expected) if expected is not None:
                waits = self._contender == "row down" and expected.accepted < self._window
                self._ahead.append((command, None if waits else self._arrival(command, 0)))
            case CloseVerifier():
                self._is_closed = True

    def _arrival(self, command: SendDraft, more: int) -> float:
        """Send a draft with so many more given ids; return when it is at the verifier."""
        payload = draft_bytes(self._contender, len(command.given) + more, len(command.ids), self._row_ids)
        self.bytes_up += payload
        self._is_free_at = max(self._env.now, self._is_free_at) + self._link.sending(payload)
        return self._is_free_at + self._link.rtt / 2

    def _begin(self, command: SendDraft, arrived: float) -> None:
        self._window = len(command.ids)
        before = [*self.ids[: command.base], *command.given]
        rows = [_distribution(self._model([*before, *command.ids[:position]])) for position in range(self._window + 1)]
        drafted_from = [_distribution(cast(Mapping[int, float], row)) for row in command.rows]
        verdict = verify_sampled(command.ids, drafted_from, rows, self._rng)
        is_rejection = verdict.accepted < self._window
        self.rounds += 1
        self.rejections += is_rejection
        self.accepted += verdict.accepted
        self.verified += verdict.accepted + is_rejection
        compute = VERIFY * (1.0 + READING * (len(command.given) + self._window))
        decided = max(arrived, self._is_read_at) + compute
        event = VerdictReceived(
            round=command.round,
            accepted=verdict.accepted,
            token=verdict.token,
            queue_seconds=max(0.0, self._is_read_at - arrived),
            compute_seconds=compute,
        )
        context = [*before, *command.ids[: verdict.accepted], verdict.token]
        down = self._link.sending(verdict_bytes(self._contender, self._row_ids, is_rejection=is_rejection))

        def arrive() -> None:
            if self._is_closed:
                return
            self.ids = context
            ahead, self._ahead = self._ahead, []
            for draft, arrives in ahead:
                if draft.if_verdict == event.outcome:
                    self.ahead_of_rejections += is_rejection
                    self._begin(draft, max(decided, arrives) if arrives is not None else self._arrival(draft, 1))
                    break
            self._emit(event)

        call_at(self._env, decided + down + self._link.rtt / 2 - self._env.now, arrive)


def _distribution(model: Mapping[int, float]) -> Distribution:
    return Distribution(list(model), list(model.values()))


@cache
def models(noise: float, seed: int) -> tuple[TokenModel, TokenModel]:
    """A target, and a model that drafts for it."""
    target, draft = FakeDistribution(seed, SIZE, spread=SPREAD), FakeDistribution(seed, SIZE, noise=noise, spread=SPREAD)
    of_target, of_draft = cache(target), cache(draft)
    return lambda ids: of_target(tuple(ids[-2:])), lambda ids: of_draft(tuple(ids[-2:]))


def answer_speeds(contender: Contender, cell: Cell, answers: int) -> tuple[list[float], list[LinkedVerifier]]:
    """Tokens a second of each answer after the first of its client, and the sessions."""
    speeds, sessions = [], []
    options = SpeculationMachineOptions(max_tokens=TOKENS, max_ahead=cell.max_ahead, is_adaptive=False)
    pair = SpeculationOptions().estimates(1.0)
    pair.expect_rtt(cell.link.rtt)
    for number in range(answers + 1):
        target, draft = models(cell.noise, SEED + number)
        device = DraftingDevice(model=draft, step_times=STEPS, read_time=0.9 * DRAFT_STEP, is_sampled=True)
        server = VerifyingServer(model=target, step=VERIFY, is_sampled=True)

        def begin(env: simpy.Environment, run: SimulatedSpeculation, *, target: TokenModel = target, number: int = number) -> None:
            session = LinkedVerifier(env, target, cell, contender, emit_event=run.receive, rng=Random(f"{SEED} {number}"))
            run.session = session  # type: ignore[assignment]
            sessions.append(session)

        outcome = simulate_answer(pair, options, device, server, FaultyLink(rtt=cell.link.rtt), seed=SEED + number, before=begin)
        if outcome is None or len(outcome.ids) != TOKENS:
            raise AssertionError(f"{cell}: expected an answer of {TOKENS} tokens, got {outcome}")
        speeds.append(outcome.tokens_per_s)
    return speeds[1:], sessions[1:]


# Rows


def length_rows() -> Iterator[Row]:
    """Ids in the rows that the packaged model draws its drafts from."""
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=256, max_sequences=1, held_sequences=1))
    try:
        for temperature, (name, filters) in product((0.7, 1.0), FILTERS.items()):
            sampling = replace(filters, temperature=temperature, seed=SEED)
            counts = [float(count) for question in QUESTIONS for count in row_lengths(engine, question, sampling)]
            mean = statistics.fmean(counts)
            case = f"rows of at most {USUAL_ROW} ids, temperature {temperature:g}, {len(counts)} tokens"
            yield Row(BENCH, case, name, "ids in a row, mean", "", mean, min(counts), max(counts))
    finally:
        engine.close()


def row_lengths(engine: LlamaEngine, question: str, sampling: SamplingOptions) -> list[int]:
    """Ids in the row of each token of a draft."""
    ids = engine.tokenize(engine.apply_template([{"role": "user", "content": question}]), special=True)
    sequence, woken = engine.hold(), threading.Event()
    task = sequence.draft(DRAFTED, woken.set, ids=ids, row_ids=USUAL_ROW, sampling=sampling)
    lengths: list[int] = []
    end = None
    while end is None:
        woken.wait()
        woken.clear()
        predictions, end = task.take()
        lengths += [len(each.row.ids) for each in predictions if each.row is not None]
    sequence.close()
    return lengths


def size_rows() -> Iterator[Row]:
    """Bytes of a round."""
    for row_ids, window in product(ROW_IDS, (1, 2, 4, 8)):
        case = f"rows of {row_ids} ids, window {window}, vocabulary of {VOCABULARY}"
        for contender in CONTENDERS:
            up = draft_bytes(contender, int(contender == "row down"), window, row_ids)
            down = verdict_bytes(contender, row_ids, is_rejection=True)
            yield Row(BENCH, case, contender, "draft after a rejection, up", "bytes", up, up, up)
            yield Row(BENCH, case, contender, "verdict with a rejection, down", "bytes", down, down, down)


def round_rows() -> Iterator[Row]:
    """Rounds a second of the others, over those of ``rows up``: over all windows, acceptances and round trips."""
    for mbps, row_ids, is_hidden in product(RATES, ROW_IDS, (False, True)):
        case = f"arithmetic, {mbps:g} Mbps, rows of {row_ids} ids, {'draft written meanwhile' if is_hidden else 'draft, then wait'}"
        for contender in CONTENDERS[1:]:
            ratios = [
                round_seconds("rows up", window, row_ids, acceptance, Link(mbps, rtt), is_hidden=is_hidden)
                / round_seconds(contender, window, row_ids, acceptance, Link(mbps, rtt), is_hidden=is_hidden)
                for window, acceptance, rtt in product(WINDOWS, ACCEPTANCES, RTTS)
            ]
            yield Row(BENCH, case, contender, "rounds a second, rows up = 1", "times", statistics.median(ratios), min(ratios), max(ratios))


def answer_rows(rates: Sequence[float], answers: int) -> Iterator[Row]:
    """Tokens a second of whole answers, over those of ``rows up``, with a 95 % interval in the place of lowest and highest."""
    for mbps in rates:
        ratios: dict[Contender, list[tuple[float, float]]] = {contender: [] for contender in CONTENDERS[1:]}
        for (name, noise), rtt in product(NOISES.items(), RTTS):
            cell = Cell(noise, Link(mbps, rtt))
            found = {contender: answer_speeds(contender, cell, answers) for contender in CONTENDERS}
            case = f"virtual time, {mbps:g} Mbps, rows of {cell.row_ids} ids, acceptance about {name}, RTT {1000 * rtt:g} ms"
            case += f", {answers} answers"
            for contender, pooled in ratios.items():
                pooled.append(ratio_of(found[contender][0], found["rows up"][0]))
                yield ratio_row(case, contender, *pooled[-1])
            yield from share_rows(case, found["rows up"][1])
        case = f"virtual time, {mbps:g} Mbps, rows of {USUAL_ROW} ids, all acceptances and RTTs, {answers} answers each"
        for contender, pooled in ratios.items():
            mean, error = statistics.fmean(ratio for ratio, _ in pooled), sum(error**2 for _, error in pooled) ** 0.5 / len(pooled)
            yield ratio_row(case, contender, mean, error)


def ratio_of(speeds: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Return the ratio of two means, and its standard error."""
    ratio = statistics.fmean(speeds) / statistics.fmean(base)
    errors = [statistics.stdev(each) / statistics.fmean(each) / len(each) ** 0.5 for each in (speeds, base)]
    return ratio, ratio * (errors[0] ** 2 + errors[1] ** 2) ** 0.5


def ratio_row(case: str, contender: str, ratio: float, error: float) -> Row:
    """A ratio with its interval."""
    return Row(BENCH, case, contender, "tokens a second, rows up = 1", "times", ratio, ratio - 1.96 * error, ratio + 1.96 * error)


def share_rows(case: str, sessions: Sequence[LinkedVerifier]) -> Iterator[Row]:
    """What became of the rounds of ``rows up``."""
    rounds = sum(session.rounds for session in sessions)
    for metric, count, of in (
        ("accepted of verified tokens", sum(session.accepted for session in sessions), sum(session.verified for session in sessions)),
        ("rounds with a rejection", sum(session.rejections for session in sessions), rounds),
        ("rounds sent ahead of a rejection", sum(session.ahead_of_rejections for session in sessions), rounds),
    ):
        yield Row(BENCH, case, "rows up", metric, "share", count / of, count / of, count / of)


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--answers", type=int, default=None, help="of each cell (default: 24; with --quick 4, at 1 Mbps alone)")
    args = parser.parse_args()
    rates = (1.0,) if args.quick else RATES
    answers = answer_rows(rates, args.answers or (4 if args.quick else 24))
    emit([*length_rows(), *size_rows(), *round_rows(), *answers], args.json, against="rows up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
