"""Drafts of an engine's own answers: the same tokens in fewer batches where that pays, and hardly a batch more where it doesn't."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from streamco.config import SamplingOptions
from streamco.emulation.step_emulation import StepEmulator
from streamco.engines.answer_drafts import BatchDrafts, LookupSource, Proposal
from streamco.engines.base import EngineOptions, GenerationEnd, GenerationRequest
from streamco.engines.generation import RunningGeneration
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp import model_drafts
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import NO_KV_SLOT
from streamco.errors import ConfigError, EngineError
from tests.engines import fakes
from tests.engines.conftest import MakeEngine
from tests.engines.test_loop import Bench

FREE = {1: 1.0, 32: 1.0}  # seconds of a batch by rows
DEAR = {1: 1.0, 32: 64.0}
ROUND = b"abcdefgh"
NONE: Mapping[int, float] = {}


class Clock:
    """Time that passes when batches are computed, by a list of costs."""

    def __init__(self, costs: dict[int, float]) -> None:
        self.now = 0.0
        self._costs = costs

    def __call__(self) -> float:
        return self.now

    def compute(self, rows: int) -> None:
        (low, first), (high, last) = sorted(self._costs.items())
        self.now += first + (last - first) * (rows - low) / (high - low)


def in_circles(token: int) -> int:
    """What follows in a text that goes round and round."""
    return ROUND[(ROUND.index(token) + 1) % len(ROUND)]


def drafting(
    monkeypatch: pytest.MonkeyPatch, costs: dict[int, float] = FREE, answer: Callable[[int], int] = in_circles, **changes: Any
) -> Bench:
    monkeypatch.setattr(fakes.FakeContext, "answer", staticmethod(answer))
    bench = Bench(**changes)
    clock = Clock(costs)
    decode = bench.context.decode

    def timed() -> int:
        clock.compute(bench.context.count)
        return decode()

    monkeypatch.setattr(bench.context, "decode", timed)
    bench.loop.drafts = BatchDrafts(LookupSource(), costs, most=32, clock=clock)
    return bench


class Guesses:
    """A source whose tokens are right with a chance that the test sets, and take their time."""

    def __init__(self, clock: Clock, *, right: float, step: float = 0.0, is_free: bool = False) -> None:
        self.right, self._clock, self._step, self._rng = right, clock, step, Random(3)
        self.acceptance = None if is_free else right
        self.proposed = 0

    def step(self, answers: int) -> float:
        return self._step

    def propose(self, answers: Sequence[RunningGeneration], longest: int, token_seconds: float) -> list[Proposal]:
        self._clock.now += self._step * longest
        self.proposed += longest * len(answers)
        return [Proposal([0] * longest, [self.right ** (place + 1) for place in range(longest)], [1] * longest) for _ in answers]

    def record(self, answer: RunningGeneration, proposal: Proposal, right: int, *, is_wrong: bool) -> None:
        """Nothing is learned."""

    def forget(self, answer: RunningGeneration) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""


def write(drafts: BatchDrafts, clock: Clock, source: Guesses, batches: int, disturbed: Mapping[int, float] = NONE) -> tuple[int, int]:
    """Compute batches of one answer with what is chosen; return the tokens and the batches with drafts."""
    answer, tokens, drafted = written([1], 2), 0, 0
    for number in range(batches):
        (draft,) = drafts.choose([answer], 1)
        clock.compute(1 + len(draft))
        clock.now += disturbed.get(number, 0.0)
        accepted = next((place for place in range(len(draft)) if source._rng.random() > source.right), len(draft))
        drafts.record(answer, len(draft), accepted)
        drafts.end_batch(len(draft))
        tokens, drafted = tokens + accepted + 1, drafted + bool(draft)
    return tokens, drafted


@pytest.mark.parametrize("right", [0.5, 0.8])
@pytest.mark.parametrize("late", [5.0, 50.0])
def test_a_disturbed_batch_does_not_end_drafts(right: float, late: float) -> None:
    clock = Clock({1: 1.0, 32: 4.0})
    source = Guesses(clock, right=right, is_free=True)
    drafts = BatchDrafts(source, {1: 1.0, 32: 4.0}, most=32, clock=clock)
    write(drafts, clock, source, 500, {200: late})
    assert write(drafts, clock, source, 1000)[1] > 900


@pytest.mark.parametrize(("right", "step"), [(0.5, 0.3), (0.9, 0.9), (0.1, 0.05)])
def test_a_model_whose_drafts_do_not_pay_costs_next_to_nothing(right: float, step: float) -> None:
    costs = {1: 1.0, 32: 32.0}
    clock = Clock(costs)
    source = Guesses(clock, right=right, step=step)
    drafts = BatchDrafts(source, costs, most=32, clock=clock)
    tokens, _ = write(drafts, clock, source, 2000)
    assert clock.now < 1.03 * tokens


def test_a_model_that_gets_worse_is_left_soon_and_one_that_gets_better_is_found() -> None:
    costs = {1: 1.0, 32: 4.0}
    clock = Clock(costs)
    source = Guesses(clock, right=0.9, step=0.05)
    drafts = BatchDrafts(source, costs, most=32, clock=clock)
    tokens, _ = write(drafts, clock, source, 1000)
    assert clock.now < 0.5 * tokens
    source.right, began = 0.0, clock.now  # and it still says 0.9
    tokens, _ = write(drafts, clock, source, 2000)
    assert clock.now - began < 1.05 * tokens
    source.right = 0.9
    write(drafts, clock, source, 3000)
    assert write(drafts, clock, source, 100)[1] > 90


def test_padding_rows_have_their_place_in_the_batch() -> None:
    clock = Clock(FREE)
    source = Guesses(clock, right=0.9, is_free=True)
    drafts = BatchDrafts(source, FREE, most=8, padding=1, clock=clock)
    answers = [written([1], 2) for _ in range(3)]
    for _ in range(3):
        chosen = drafts.choose(answers, 3)
        assert 3 + sum(map(len, chosen)) + 3 <= 8
        drafts.end_batch(0)


def test_a_source_that_fails_ends_drafts_and_not_answers(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bench = drafting(monkeypatch)
    failed = []

    def fail(self: LookupSource, *_: object) -> list[Proposal]:
        failed.append(self)
        raise EngineError("the small model is broken")

    monkeypatch.setattr(LookupSource, "propose", fail)
    bench.generate(ROUND, 30)
    bench.loop.run()
    assert timings(bench).completion_tokens == 30
    assert len(failed) == 1
    assert "drafts of answers failed" in caplog.text


def timings(bench: Bench) -> Any:
    (end,) = bench.ends
    assert isinstance(end, GenerationEnd)
    return end.timings


def test_a_text_that_repeats_itself_takes_few_batches_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = drafting(monkeypatch)
    work = bench.generate(ROUND, 64)
    bench.loop.run()
    assert work.room == 0
    assert timings(bench).completion_tokens == 64
    assert timings(bench).accepted_tokens >= 48
    assert len(bench.batches()) < 16


def test_every_token_of_the_answer_is_given_in_its_order(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes.FakeContext, "answer", staticmethod(in_circles))
    engine = make_engine(step_time=lambda decoded, prefilled: 0.002, draft="lookup")
    reader = fakes.complete(engine, ROUND.decode(), max_tokens=100)
    assert bytes(reader.ids) == (ROUND * 13)[:100]
    assert reader.end is not None
    assert reader.end.timings.accepted_tokens > 50


def test_drafts_that_are_wrong_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows "ab" is c in the prompt, and d in the answer."""
    bench = drafting(monkeypatch, answer={97: 98, 98: 100, 100: 101, 101: 97}.__getitem__)
    bench.generate(b"abcabcabcab", 40)
    bench.loop.run()
    assert timings(bench).completion_tokens == 40
    held = [row for batch in bench.context.batches for row in batch]
    assert {row.sequence for row in held} == {0}
    assert bytes(bench.context.kv[0])[11:] == (b"deab" * 10)[:39]


def test_dear_rows_have_no_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = drafting(monkeypatch, DEAR)
    bench.generate(ROUND, 64)
    bench.loop.run()
    assert timings(bench).drafted_tokens == 0
    assert {len(batch) for batch in bench.batches()[1:]} == {1}


def test_where_batches_take_longer_than_the_list_says_drafts_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = drafting(monkeypatch, DEAR, max_sequences=1)
    assert bench.loop.drafts is not None
    clock = bench.loop.drafts.clock
    bench.loop.drafts = BatchDrafts(LookupSource(), FREE, most=32, clock=clock)
    answers = 20
    for _ in range(answers):
        bench.generate(ROUND, 100)
    bench.loop.run()
    drafted = [end.timings.drafted_tokens for end in bench.ends if isinstance(end, GenerationEnd)]
    assert drafted[0] > 20
    assert sum(map(bool, drafted)) < answers / 2
    assert clock() < 1.1 * answers * 100


def test_a_draft_is_not_longer_than_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = drafting(monkeypatch)
    bench.generate(ROUND * 4, 5)
    bench.loop.run()
    assert timings(bench).completion_tokens == 5
    assert len(bench.context.kv[0]) == 32 + 4, "the last token isn't decoded"


def test_an_answer_that_ends_inside_a_draft_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = drafting(monkeypatch, answer=lambda token: fakes.END if token == ord("e") else token + 1)
    bench.generate(b"abcdefgh abc", 64)
    bench.loop.run()
    (end,) = bench.ends
    assert (end.reason, timings(bench).completion_tokens) == ("stop", 2)


def test_a_full_memory_is_tried_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = drafting(monkeypatch)
    decode, failed = bench.context.decode, []

    def full() -> int:
        if bench.context.count > 1 and len(bench.context.batches) > 1:
            failed.append(bench.context.count)
            bench.context.count = 0
            return NO_KV_SLOT
        return decode()

    monkeypatch.setattr(bench.context, "decode", full)
    bench.generate(ROUND, 40)
    bench.loop.run()
    assert failed
    assert timings(bench).completion_tokens == 40


def test_a_reader_who_is_behind_gets_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = drafting(monkeypatch)
    seen: list[int] = []
    request = GenerationRequest(prompt_ids=list(ROUND), sampling=SamplingOptions(temperature=0))

    def look() -> None:
        seen.append(work.made)
        _, end = work.take()
        if end is not None:
            bench.loop.close()

    work = RunningGeneration(request, bench.model, limit=64, buffered=4, wake=look, engine=bench.loop)  # type: ignore[arg-type]
    bench.loop.put(work)
    bench.loop.run()
    assert work.made == 64
    assert max(later - earlier for earlier, later in pairwise(seen)) <= 5


def test_a_small_model_drafts_and_its_places_keep_what_their_owners_wrote(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes.install(monkeypatch)
    monkeypatch.setattr(model_drafts, "LlamaModel", fakes.FakeModel)
    monkeypatch.setattr(model_drafts, "LlamaContext", fakes.FakeContext)
    monkeypatch.setattr(fakes.FakeContext, "answer", staticmethod(in_circles))
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    options = fakes.options(max_sequences=2, draft=str(file))
    engine = LlamaEngine("bytes.gguf", options, pace=StepEmulator(lambda decoded, prefilled: 0.002))
    small = fakes.FakeContext.last
    try:
        reread = []
        for owner in ("one", "one", "two"):
            before = sum(map(len, small.batches))
            reader = fakes.complete(engine, (ROUND * 8).decode(), max_tokens=40, owner=owner)
            assert bytes(reader.ids) == ROUND * 5
            assert reader.end is not None
            assert reader.end.timings.accepted_tokens > 20
            reread.append(sum(map(len, small.batches)) - before)
    finally:
        engine.close()
    assert reread[1] < 64 <= min(reread[0], reread[2])
    assert small.is_closed


def test_lookups_learn_what_was_right_also_when_nothing_was_drafted() -> None:
    source = LookupSource()
    answer = written([1, 2, 3, 4, 1], 2)
    (first,) = source.propose([answer], 15, 1.0)
    assert list(first.tokens) == [3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1]
    for _ in range(30):
        source.record(answer, first, 0, is_wrong=True)
    (later,) = source.propose([written([1, 2, 3, 4, 1], 2)], 15, 1.0)
    assert later.chances[0] < 0.1 < first.chances[0]
    source.forget(answer)


def test_a_text_that_is_proposed_for_twice_is_the_same() -> None:
    source, answer = LookupSource(), written([1, 2, 3, 4, 1], 2)
    assert source.propose([answer], 15, 1.0) == source.propose([answer], 15, 1.0)


def test_a_long_prompt_is_looked_through_in_pieces_and_a_proposal_is_no_longer_than_asked() -> None:
    source, answer = LookupSource(), written([*range(2000), 0], 1)
    first, second = source.propose([answer], 4, 1.0) + source.propose([answer], 4, 1.0)
    assert (list(first.tokens), list(second.tokens)) == ([], [2, 3, 4, 5])


def written(ids: Sequence[int], next_token: int) -> RunningGeneration:
    """An answer of which memory holds these ids, and the token after them is drawn."""
    return cast(RunningGeneration, _Answer(ids, next_token))


class _Answer:
    """What sources and the bookkeeping read of an answer."""

    room = 1000
    is_done = is_parked = False

    def __init__(self, ids: Sequence[int], next_token: int) -> None:
        self.slot = type("Slot", (), {"ids": list(ids)})()
        self.next_token = next_token


@pytest.mark.long("after the first case")
@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_in_exact_mode_answers_with_drafts_are_those_without_bit_by_bit(packaged: Path, temperature: float) -> None:
    prompt, texts, drafted = "Repeat this sentence: the quick brown fox jumps over the lazy dog.\n" * 2, [], 0
    for draft in ("", "lookup", str(packaged)):
        options = EngineOptions(exact=True, context_tokens=256, max_sequences=1, threads=1, draft=draft)
        engine = LlamaEngine(packaged, options, pace=StepEmulator(lambda decoded, prefilled: 0.001))  # no time is measured
        try:
            reader = fakes.complete(engine, prompt, max_tokens=48, temperature=temperature, seed=5)
        finally:
            engine.close()
        texts.append(reader.text)
        assert reader.end is not None
        drafted += reader.end.timings.drafted_tokens
    assert texts[0] == texts[1] == texts[2]
    assert drafted


@pytest.mark.model
def test_a_model_that_is_not_there_is_an_error_at_the_start(packaged: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"missing\.gguf"):
        LlamaEngine(packaged, EngineOptions(threads=1, draft=str(tmp_path / "missing.gguf")))


def test_a_memory_that_cannot_be_cut_has_no_drafts(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes.FakeModel, "can_share_prefixes", False)
    with pytest.raises(ConfigError, match="draft: expected a model without recurrent states"):
        make_engine(draft="lookup")


@pytest.fixture(scope="module")
def packaged() -> Path:
    """The packaged model's file; skips where it isn't installed."""
    pytest.importorskip("llama_cpp")
    try:
        return packaged_model()
    except EngineError as exc:
        pytest.skip(str(exc))
