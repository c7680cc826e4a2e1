"""Held sequences on a real model: a verified draft is what the model writes by itself, bit by bit, wherever the sequence sits.

``STREAMCO_VERIFY_ROUNDS`` sets how many random prompts are tried (default 2; 50 take ten minutes: set --timeout too), and
``STREAMCO_VERIFY_KINDS`` on which quantisations of the packaged model (default Q8_0, whose sums depend most on how many rows a batch has).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from streamco.config import SamplingOptions
from streamco.engines.base import EngineOptions, SequenceTask, TokenSequence
from streamco.engines.llama import MIN_COPY_TOKENS, LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import ABORTED
from streamco.engines.llamacpp.gguf import derived
from streamco.engines.llamacpp.row_costs import ROW_SIZES
from streamco.errors import EngineError
from tests.engines.asking import Answer, accepted, asked, draft, extend, verify
from tests.engines.fakes import complete, start

pytestmark = pytest.mark.model

ROUNDS = int(os.environ.get("STREAMCO_VERIFY_ROUNDS", "2"))
KINDS = os.environ.get("STREAMCO_VERIFY_KINDS", "Q8_0").split(",")
TOKENS = 16
SUBJECTS = ("rain", "a lighthouse", "bread", "the number nine", "tides", "an old clock", "Python generators", "winter", "trust", "maps")


def load(kind: str | None = None, **changes: object) -> LlamaEngine:
    pytest.importorskip("llama_cpp")
    try:
        path = packaged_model() if kind is None else derived(packaged_model(), kind)
    except EngineError as exc:
        pytest.skip(str(exc))
    options = {"threads": 1, "context_tokens": 384, "max_sequences": 2, "held_sequences": 5} | changes
    return LlamaEngine(path, EngineOptions(**options))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=KINDS)
def exact(request: pytest.FixtureRequest) -> Iterator[LlamaEngine]:
    engine = load(request.param, exact=True)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def fast() -> Iterator[LlamaEngine]:
    engine = load()
    yield engine
    engine.close()


def chat(engine: LlamaEngine, question: str) -> list[int]:
    return engine.tokenize(engine.apply_template([{"role": "user", "content": question}]), special=True)


def random_prompt(engine: LlamaEngine, dice: Random) -> list[int]:
    """A question, or ids that make no sense: there, near ties are frequent."""
    if dice.random() < 0.3:
        return [dice.randrange(1000, 40000) for _ in range(dice.randrange(1, 90))]
    return chat(
        engine, f"Tell me {dice.choice(['about', 'a story about', 'three facts of'])} {dice.choice(SUBJECTS)}. " * dice.randrange(1, 9)
    )


def spoil(ids: list[int], rate: float, dice: Random) -> list[int]:
    """A draft that is wrong here and there."""
    return [dice.randrange(1000, 40000) if dice.random() < rate else token for token in ids]


def speculate(sequence: TokenSequence, written: list[int], seed: int) -> list[int]:
    """Write as many tokens from verified drafts, which are ``written`` with errors."""
    dice = Random(seed)
    base = None
    output: list[int] = []
    while len(output) < len(written):
        proposal = spoil(written[len(output) :][: dice.randrange(0, 13)], dice.choice([0.0, 0.2, 0.6]), dice)
        verdict = verify(sequence, proposal)
        assert verdict.reason == "done"
        if base is None:
            base = verdict.predictions[0].position
        kept = accepted(proposal, verdict.greedy)
        output += [*proposal[:kept], verdict.greedy[kept]]
        sequence.truncate(base + len(output) - 1)
        sequence.extend(output[-1:])
    return output[: len(written)]


@pytest.mark.long
def test_a_verified_draft_of_any_length_has_the_bits_of_token_by_token_decoding(exact: LlamaEngine) -> None:
    print("seed 1")
    dice = Random(1)
    for _ in range(ROUNDS):
        prompt = random_prompt(exact, dice)
        alone = complete(exact, prompt, max_tokens=TOKENS).ids
        sequence = exact.hold()
        assert extend(sequence, prompt).reason == "done"
        own = draft(sequence, TOKENS, top=8).predictions
        tokens = [prediction.greedy for prediction in own]
        assert tokens[: len(alone)] == alone
        for length in (0, 1, dice.randrange(len(own)), len(own) - 1):
            sequence.truncate(len(prompt))
            verdict = verify(sequence, tokens[:length], top=8)
            assert [(each.likeliest, each.logits) for each in verdict.predictions] == [
                (each.likeliest, each.logits) for each in own[: length + 1]
            ]
        sequence.close()


@pytest.mark.long
def test_sessions_beside_each_other_and_beside_generations_write_what_each_writes_alone(exact: LlamaEngine) -> None:
    print("seed 2")
    dice = Random(2)
    for turn in range(max(1, ROUNDS // 2)):
        prompts = [random_prompt(exact, dice) for _ in range(4)]
        alone = [complete(exact, prompt, max_tokens=TOKENS).ids for prompt in prompts]
        beside, reader = start(exact, random_prompt(exact, dice), max_tokens=40, ignore_eos=True)
        results: dict[int, list[int]] = {}

        def run(
            index: int,
            seed: int,
            prompts: list[list[int]] = prompts,
            alone: list[list[int]] = alone,
            results: dict[int, list[int]] = results,
        ) -> None:
            sequence = exact.hold()
            extend(sequence, prompts[index])
            results[index] = speculate(sequence, alone[index], seed)
            sequence.close()

        threads = [threading.Thread(target=run, args=(index, 100 * turn + index)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reader.read(beside)
        assert [results[index] for index in range(4)] == alone


@pytest.mark.long
def test_what_is_read_beside_a_longer_run_has_the_bits_of_what_is_read_alone(exact: LlamaEngine) -> None:
    print("seed 3")
    dice = Random(3)
    longer, shorter = ([dice.randrange(1000, 40000) for _ in range(count)] for count in (31, 9))
    sequences = [exact.hold() for _ in range(4)]  # all open until the end, so that none finds what another has read
    answers = [Answer() for _ in sequences]
    for sequence in sequences[:2]:
        extend(sequence, shorter)  # all but the last id are read
    for index, ids in ((0, []), (2, longer)):
        assert answers[index].read(sequences[index].read(ids, answers[index].wake)).reason == "done"
    with exact.together():
        tasks = {index: sequences[index].read(ids, answers[index].wake) for index, ids in ((1, []), (3, longer))}
    assert [answers[index].read(task).reason for index, task in tasks.items()] == ["done"] * 2
    told = []
    for sequence in sequences:
        drafted = draft(sequence, 1, ids=longer[:1], top=8).predictions
        told.append([(each.likeliest, each.logits) for each in drafted])
        sequence.close()
    assert told[0] == told[1]
    assert told[2] == told[3]


@pytest.mark.long
def test_what_was_read_in_turns_with_a_generation_has_the_bits_of_what_is_read_alone(exact: LlamaEngine) -> None:
    print("seed 4")
    dice = Random(4)
    ids = [dice.randrange(1000, 40000) for _ in range(200)]
    alone = exact.hold()
    extend(alone, ids)
    wanted = verify(alone, ids[:3], top=8).predictions
    alone.truncate(0)
    extend(alone, ids[:1:-1])  # in its place, so that it is not found
    sequence = exact.hold()
    with exact.together():
        generation, reader = start(exact, ids, max_tokens=2, top=5)
        task, answer = asked(sequence, "verify", ids[:3], given=ids, top=8)
    rows = answer.read(task).timings.rows
    found = reader.read(generation).timings.reused_tokens
    assert 0 < found < len(ids)
    assert len(ids) <= len(ids) - found + rows <= len(ids) + len(ids[:3]) + MIN_COPY_TOKENS
    assert [(each.likeliest, each.logits) for each in answer.predictions] == [(each.likeliest, each.logits) for each in wanted]
    for each in (alone, sequence):
        each.close()


@pytest.mark.long
def test_a_long_draft_is_verified_in_chunks_with_the_same_bits(exact: LlamaEngine) -> None:
    prompt = chat(exact, "Tell me about lighthouses.")
    own = complete(exact, prompt, max_tokens=42).ids
    sequence = exact.hold()
    extend(sequence, prompt)
    for length in (31, 32, 41):
        assert verify(sequence, own[:length]).greedy == own[: length + 1]
        sequence.truncate(len(prompt))
    sequence.close()


@pytest.mark.long
def test_branches_in_exact_mode_are_copies_with_the_same_bits(exact: LlamaEngine) -> None:
    prompt = chat(exact, "Tell me about the sea.")
    own = complete(exact, prompt, max_tokens=20).ids
    sequence = exact.hold()
    extend(sequence, prompt)
    verify(sequence, own[:12])
    branches = [sequence.fork(len(prompt) + length) for length in (0, 5, 12)]
    runs = [asked(branch, "draft", 6) for branch in branches]
    beside = draft(sequence, 4)
    for task, answer in runs:
        assert answer.read(task).reason == "done"
    assert [answer.tokens for _, answer in runs] == [own[0:6], own[5:11], own[12:18]]
    assert beside.tokens == own[12:16]
    for each in (sequence, *branches):
        each.close()


class Stopper:
    """In place of a context's decode: has everybody cancelled, so many seconds after the sixth batch from ``start`` on has begun."""

    def __init__(self, engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tasks: list[SequenceTask] = []
        self.rows = 0  # of that batch
        self.status = 0
        self._context = engine._context
        self._decode = engine._context.decode
        self._countdown = 0
        self._delay = 0.0
        monkeypatch.setattr(self._context, "decode", self.decode)

    def start(self, tasks: list[SequenceTask], delay: float) -> None:
        self.tasks, self._countdown, self._delay = tasks, 6, delay

    def decode(self) -> int:
        self._countdown -= 1
        if self._countdown:
            return self._decode()
        self.rows = self._context.count
        timer = threading.Timer(self._delay, self.cancel)
        timer.start()
        if not self._delay:
            timer.join()
        self.status = self._decode()
        timer.join()
        return self.status

    def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()


def draft_stop_and_draft_again(engine: LlamaEngine, stopper: Stopper, *, rows: int) -> tuple[list[list[Answer]], list[Answer]]:
    """A trunk and two branches drafted together; stopped at several moments of a batch of so many rows, and drafted again each time.

    Returns:
        Each time's answers, of the three, and the trunk's alone before and behind it all.
    """
    prompt = chat(engine, "Tell me about the sea.")
    trunk = engine.hold()
    extend(trunk, prompt)
    alone = [draft(trunk, 8, top=8)]
    branches = [trunk.fork(len(prompt) + 2) for _ in range(2)]

    def run(delay: float | None = None) -> list[Answer]:
        with engine.together():
            runs = []
            for sequence, length, ids in ((trunk, 0, []), (branches[0], 2, [1000]), (branches[1], 2, [2000])):
                sequence.truncate(len(prompt) + length)
                runs.append(asked(sequence, "draft", 8, ids=ids, top=8))
            if delay is not None:
                stopper.start([task for task, _ in runs], delay)
        assert [answer.read(task).reason for task, answer in runs] == ["done" if delay is None else "cancelled"] * 3
        return [answer for _, answer in runs]

    times = [run()]
    for delay in (0.0, 0.005, 0.01, 0.02):
        stopped = run(delay)
        assert stopper.rows == rows
        assert stopper.status == ABORTED or delay  # later than at once, it may have been over
        assert all(part.tokens == whole.tokens[: len(part.tokens)] for part, whole in zip(stopped, times[0], strict=True))
        times.append(run())
    trunk.truncate(len(prompt))
    alone.append(draft(trunk, 8, top=8))
    for each in (trunk, *branches):
        each.close()
    return times, alone


@pytest.mark.long
def test_branches_stopped_in_the_middle_of_a_batch_leave_everybody_what_they_had(
    fast: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, alone = draft_stop_and_draft_again(fast, Stopper(fast, monkeypatch), rows=3)
    told = [[answer.tokens for answer in each] for each in times]
    assert told == told[:1] * len(told)
    assert alone[0].tokens == alone[1].tokens


@pytest.mark.long
def test_branches_stopped_in_exact_mode_leave_everybody_the_same_bits(exact: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    times, alone = draft_stop_and_draft_again(exact, Stopper(exact, monkeypatch), rows=6)  # with a neighbour for each
    told = [[(each.token, each.likeliest, each.logits) for answer in each_time for each in answer.predictions] for each_time in times]
    assert told == told[:1] * len(told)
    before, behind = ([(each.token, each.logits) for each in answer.predictions] for answer in alone)
    assert before == behind == [(each.token, each.logits) for each in times[0][0].predictions]


def test_a_draft_is_what_a_generation_writes(fast: LlamaEngine) -> None:
    prompt = chat(fast, "Name three rivers.")
    sequence = fast.hold()
    extend(sequence, prompt)
    answer = draft(sequence, 10, top=3)
    assert answer.tokens == complete(fast, prompt, max_tokens=10).ids
    for prediction in answer.predictions:
        assert prediction.token == prediction.greedy == prediction.likeliest[0][0]
        assert 0 < prediction.confidence <= 1
        assert prediction.margin > 0
        assert len(prediction.likeliest) == len(prediction.logits) == 3
    sequence.close()


def test_branches_share_their_prefix_and_are_drafted_together(fast: LlamaEngine) -> None:
    prompt = chat(fast, "Tell me a story about an old clock.")
    sequence = fast.hold()
    extend(sequence, prompt)
    first = draft(sequence, 1, top=3).predictions[0]
    branches = [sequence.fork(len(prompt)) for _ in range(3)]
    for branch, (token, _) in zip(branches, first.likeliest, strict=True):
        branch.extend([token])
    runs = [asked(branch, "draft", 6) for branch in branches]
    ends = [answer.read(task) for task, answer in runs]
    assert all(end.timings.rows == 6 for end in ends)  # the alternative and five drafted: of the prompt nothing is decoded again
    for (token, _), (_, answer) in zip(first.likeliest, runs, strict=True):
        assert answer.tokens == complete(fast, [*prompt, token], max_tokens=6).ids
    for each in (sequence, *branches):
        each.close()


def test_sampled_drafts_tell_the_distribution_they_were_drawn_from(fast: LlamaEngine) -> None:
    sequence = fast.hold()
    prompt = chat(fast, "Tell me a story.")
    extend(sequence, prompt)
    sampling = SamplingOptions(temperature=1.0, top_k=8, top_p=1.0, min_p=0.0, seed=5)
    written = draft(sequence, 12, top=8, sampling=sampling)
    for prediction in written.predictions:
        assert prediction.is_complete
        assert prediction.probability == dict(prediction.drawable)[prediction.token or 0]
        assert sum(share for _, share in prediction.drawable) == pytest.approx(1.0)
    sequence.truncate(len(prompt))
    verdict = verify(sequence, written.tokens, top=8, sampling=sampling)
    for ours, theirs in zip(written.predictions, verdict.predictions, strict=False):
        assert dict(theirs.drawable) == pytest.approx(dict(ours.drawable), abs=1e-2)  # several rows at once: not the same bits
    sequence.close()


def test_what_a_closed_sequence_held_is_found_again(fast: LlamaEngine) -> None:
    prompt = chat(fast, "Tell me about winter. " * 8)
    sequence = fast.hold()
    extend(sequence, prompt)
    sequence.close()
    again = fast.hold()
    end = extend(again, prompt).end
    assert end is not None
    assert end.timings.rows == 0
    again.close()


@pytest.mark.long
def test_row_costs_are_measured_at_load_kept_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in (("_STEADY", 1e9), ("_CPU_SHARE", 0.0), ("_SECONDS", 1e9)):  # this machine may be busy
        monkeypatch.setattr(f"streamco.engines.llamacpp.row_costs.{name}", value)
    engine = load(measure_rows=True)
    costs = dict(engine.row_costs())
    reader = complete(engine, "Once upon a time", max_tokens=4)
    engine.close()
    assert set(ROW_SIZES) <= set(costs)
    assert min(costs.values()) > 0
    assert costs[32] > costs[1]
    assert len(reader.ids) == 4, "its memory is as before"
    (file,) = (tmp_path / "streamco" / "rows").iterdir()
    kept = json.loads(file.read_bytes())
    kept["seconds"] = {rows: 0.001 * int(rows) for rows in kept["seconds"]}
    file.write_text(json.dumps(kept))
    again = load(measure_rows=True)
    assert again.row_costs()[2] == 0.002
    again.close()
    file.write_bytes(b"damaged")
    measured = load(measure_rows=True)
    assert measured.row_costs()[1] != 0.001
    measured.close()
    assert "is damaged" in caplog.text


@pytest.mark.long
def test_row_costs_of_an_exact_engine_have_no_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = load(measure_rows=True, exact=True, max_sequences=1, held_sequences=1)
    costs = engine.row_costs()
    engine.close()
    assert costs[1] == costs[2]


@pytest.mark.long
def test_padding_changes_no_token_of_a_real_model(fast: LlamaEngine) -> None:
    prompt = chat(fast, "Describe the rain.")
    reader = complete(fast, prompt, max_tokens=12)
    padded = load()
    padded._loop.pad_batches({1: 0.01, 2: 0.02, 3: 0.03, 4: 0.015, 5: 0.05, 8: 0.02})
    sequence = padded.hold()
    extend(sequence, prompt)
    written: list[int] = []
    for size in (2, 4, 1, 2):
        answer = verify(sequence, reader.ids[len(written) : len(written) + size])
        written += [prediction.greedy for prediction in answer.predictions[:size]]
    padded.close()
    assert written == reader.ids[:9]
