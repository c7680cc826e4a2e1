"""Held sequences of the scripted engine: the real bookkeeping, a function for a model."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from streamco.config import SamplingOptions
from streamco.engines.base import HoldingEngine
from streamco.errors import EngineError
from streamco.sim.workload.token_models import FakeDistribution
from streamco.testing.engine import FakeEngine, FakeVocabulary
from tests.engines.asking import accepted, asked, draft, extend, verify

SMALL = FakeVocabulary("small", size=12)
PLAIN = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def model(noise: float = 0.0, **options: object) -> FakeEngine:
    return FakeEngine(vocabulary=SMALL, successor=FakeDistribution(4, SMALL.size - 1, noise=noise), **options)  # type: ignore[arg-type]


def test_it_is_a_holding_engine() -> None:
    engine: HoldingEngine = FakeEngine()
    engine.hold().close()
    engine.close()


def test_without_a_model_the_script_is_said_from_where_it_stands() -> None:
    engine = FakeEngine("one two three")
    sequence = engine.hold()
    extend(sequence, engine.tokenize("a prompt"))
    written = draft(sequence, 2)
    assert engine.detokenize(written.tokens) == b"one two"
    rest = draft(sequence, 5)
    assert (engine.detokenize(rest.tokens), rest.reason, rest.tokens[-1]) == (b" three", "stop", engine.end_id)
    assert engine.info.end_ids == {engine.end_id}
    sequence.truncate(3)
    assert engine.detokenize(verify(sequence, engine.tokenize(" two four")).greedy[:3]) == b" two threeone"


def test_a_target_verifies_what_a_draft_model_writes() -> None:
    target, small = model(), model(noise=2.0)
    ours, theirs = small.hold(), target.hold()
    for sequence in (ours, theirs):
        extend(sequence, [1, 2])
    proposal = draft(ours, 200).tokens
    verdict = verify(theirs, proposal)
    agreeing = sum(token == greedy for token, greedy in zip(proposal, verdict.greedy, strict=False))
    assert 40 < agreeing < 180
    kept = accepted(proposal, verdict.greedy)
    theirs.truncate(2 + kept)
    assert draft(theirs, 1).tokens == [verdict.greedy[kept]]


def test_probabilities_are_those_of_the_distribution() -> None:
    engine = model()
    sequence = engine.hold()
    extend(sequence, [3, 1])
    (prediction,) = extend(sequence, [5], top=SMALL.size, sampling=PLAIN).predictions
    assert {token: share for token, share in prediction.drawable if share > 0} == pytest.approx(
        FakeDistribution(4, SMALL.size - 1)([3, 1, 5]), rel=1e-4
    )
    assert prediction.is_complete


def test_manual_sequences_move_when_asked() -> None:
    engine = model(mode="manual")
    sequence = engine.hold()
    sequence.extend([1, 2])
    task, answer = asked(sequence, "draft", 2)
    assert task.take() == ([], None)
    engine.step()
    engine.step()
    assert len(task.take()[0]) == 1
    engine.step()
    assert answer.read(task).reason == "done"
    assert engine.sequences.rounds == 3


def test_a_thread_writes_in_time_and_is_stopped() -> None:
    before = set(threading.enumerate())
    engine = model(mode="thread", token_s=0.001)
    sequence = engine.hold()
    extend(sequence, [1, 2])
    assert len(draft(sequence, 5).tokens) == 5
    engine_of_stone = model(mode="thread", token_s=1000.0)
    slow = engine_of_stone.hold()
    slow.extend([1, 2])
    task, answer = asked(slow, "draft", 2)
    task.cancel()
    assert answer.read(task).reason == "cancelled"
    task, answer = asked(slow, "draft", 2)
    engine_of_stone.close()
    assert answer.read(task).reason == "cancelled"
    engine.close()
    assert not {thread for thread in threading.enumerate() if thread.name == "streamco-fake-sequences"} - before


def test_what_a_model_does_not_say_is_shared_by_all_others() -> None:
    engine = FakeEngine(vocabulary=SMALL, successor=lambda ids: {3: 0.5, 4: 0.25, 5: 0.0})
    sequence = engine.hold()
    (prediction,) = extend(sequence, [1], top=SMALL.size, sampling=PLAIN).predictions
    found = dict(prediction.drawable)
    assert (found[3], found[4], found[5]) == pytest.approx((0.5, 0.25, 0.0))
    assert found[0] == pytest.approx(0.25 / (SMALL.size - 3))


def test_a_step_takes_what_its_drafts_and_the_tokens_in_front_of_them_take() -> None:
    steps: list[tuple[int, int]] = []

    def step_time(writing: int, reading: int) -> float:
        steps.append((writing, reading))
        return 0.0

    engine = model(mode="thread", step_time=step_time)
    with engine.together():
        trunk = engine.hold()
        trunk.extend([1, 2, 3, 4])
        task, answer = asked(trunk, "draft", 2)
    answer.read(task)
    assert steps == [(0, 3), (1, 0), (1, 0)]  # the last id of the prompt is read with the first draft
    steps.clear()
    with engine.together():
        branches = [trunk.fork(), trunk.fork(5)]
        tasks = [asked(branches[0], "draft", 1), asked(branches[1], "draft", 1, ids=[7, 8])]
    for task, answer in tasks:
        answer.read(task)
    assert steps == [(2, 1)]  # what was written last of each is read with what comes next, and one id more
    engine.close()


def test_what_is_computed_for_a_step_counts_into_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def pause(until: float, _batch: object) -> None:
        clock[0] = max(clock[0], until)

    def computed(ids: Sequence[int]) -> Mapping[int, float]:
        clock[0] += 8.0
        return {1: 1.0}

    monkeypatch.setattr("streamco.testing.sequences.monotonic", lambda: clock[0])
    engine = FakeEngine(vocabulary=SMALL, successor=computed, mode="thread", step_time=lambda writing, _reading: 60.0 * writing)
    monkeypatch.setattr(engine.sequences, "_pause", pause)
    sequence = engine.hold()
    task, answer = asked(sequence, "draft", 20, ids=[2])  # by then it is known
    answer.read(task)
    began = clock[0]
    task, answer = asked(sequence, "draft", 1, ids=[2])
    answer.read(task)
    assert clock[0] - began == pytest.approx(60.0)
    engine.close()


@pytest.mark.parametrize(("wait", "late"), [(0.001, 0.0), (0.25, 0.25)])
def test_a_step_that_begins_late_says_so(monkeypatch: pytest.MonkeyPatch, wait: float, late: float) -> None:
    clock = [0.0]

    def pause(until: float, _batch: object) -> None:
        clock[0] = max(clock[0], until) + wait

    monkeypatch.setattr("streamco.testing.sequences.monotonic", lambda: clock[0])
    engine = model(mode="thread", step_time=lambda writing, _reading: 60.0 * writing)
    monkeypatch.setattr(engine.sequences, "_pause", pause)
    found = draft(engine.hold(), 1, ids=[2])
    assert found.end is not None
    assert found.end.timings.late_s == pytest.approx(late)
    engine.close()


def test_a_place_is_lost_to_others_as_in_an_engine() -> None:
    engine = model(held_sequences=1)
    first, second = engine.hold(), engine.hold()
    extend(first, [1])
    extend(second, [2])
    assert verify(first, [3]).reason == "evicted"


def test_a_wake_up_may_cancel() -> None:
    engine = model()
    sequence = engine.hold()
    extend(sequence, [1])
    other = sequence.fork().draft(3, lambda: None)
    task = sequence.draft(3, other.cancel)
    assert task.take()[1] is not None
    assert other.take()[1] is not None


def test_a_closed_engine_holds_nothing() -> None:
    engine = model()
    sequence = engine.hold()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        sequence.extend([1])
    with pytest.raises(EngineError, match="closed"):
        engine.hold()
