"""Held sequences on a fake context: which rows are decoded when, who has a place, and what becomes of tasks that are stopped."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from streamco.engines.base import Generation, HoldingEngine, Prediction
from streamco.engines.llama import MIN_COPY_TOKENS, SIDE_SEQUENCES, LlamaEngine
from streamco.engines.llamacpp.context import NO_KV_SLOT
from streamco.errors import ConfigError, EngineError, UsageError
from tests.engines.asking import Answer, asked, draft, extend, verify
from tests.engines.conftest import MakeEngine
from tests.engines.fakes import FakeContext, Reader, complete, start


def batches() -> list[str]:
    """What was decoded since the last call; rows that wanted logits in capitals."""
    made = ["".join(chr(row.token - 32 * row.wants_logits) for row in batch) for batch in FakeContext.last.batches]
    FakeContext.last.batches.clear()
    return made


def hold_next(engine: LlamaEngine, prompt: str | list[int]) -> tuple[Generation, Reader]:
    """A generation whose first decode waits for ``let_go``: what is asked meanwhile is there when it is over."""
    context = FakeContext.last
    while context.entered.acquire(blocking=False):
        pass
    context.hold()
    run = start(engine, prompt, max_tokens=2)
    assert context.entered.acquire(timeout=10)
    return run


def test_it_offers_what_a_holding_engine_offers(make_engine: MakeEngine) -> None:
    engine: HoldingEngine = make_engine(held_sequences=1)
    engine.hold().close()


def test_a_round_of_speculation_is_one_decode(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    assert extend(sequence, b"abc").predictions == []
    assert batches() == ["ab"]  # the last id is decoded with what comes next
    verdict = verify(sequence, b"dxf")
    assert batches() == ["CDXF"]
    assert verdict.greedy == list(b"deyg")
    assert [prediction.token for prediction in verdict.predictions] == [*b"dxf", None]
    assert [prediction.position for prediction in verdict.predictions] == [3, 4, 5, 6]
    sequence.truncate(4)
    sequence.extend(b"e")
    assert verify(sequence, b"fg").greedy == list(b"fgh")
    assert batches() == ["EFG"]
    assert FakeContext.last.kv[0] == list(b"abcdefg")


def test_a_draft_goes_on_behind_what_was_accepted(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    assert draft(sequence, 3).tokens == list(b"def")
    assert batches() == ["ab", "C", "D", "E"]
    sequence.truncate(4)
    sequence.extend(b"x")
    assert draft(sequence, 2).tokens == list(b"yz")
    assert batches() == ["X", "Y"]


def test_what_is_given_to_a_draft_is_decoded_in_one_batch_with_what_was_not_decoded_before(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    draft(sequence, 2)
    batches()
    answer = draft(sequence, 2, ids=b"xm")
    assert batches() == ["exM", "N"]
    assert (answer.tokens, [prediction.position for prediction in answer.predictions]) == (list(b"no"), [7, 8])
    sequence.truncate(6)
    assert draft(sequence, 1, ids=b"k").tokens == list(b"l")
    assert FakeContext.last.kv[0] == list(b"abcdexk")


def test_a_draft_that_is_cancelled_before_its_first_token_leaves_what_it_was_given_out(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=1)
    sequence = engine.hold()
    extend(sequence, b"ab")
    generation, reader = hold_next(engine, "zz")
    task, answer = asked(sequence, "draft", 2, ids=b"xyz")
    task.cancel()
    FakeContext.last.let_go()
    assert answer.read(task).reason == "cancelled"
    reader.read(generation)
    assert draft(sequence, 1).tokens == list(b"c")


def test_an_empty_sequence_may_be_drafted_from_what_is_given(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=1)
    assert draft(engine.hold(), 2, ids=b"a" * 40).tokens == list(b"bc")
    with pytest.raises(EngineError, match="ids: expected ids from 0 to 255"):
        draft(engine.hold(), 2, ids=[256])


def test_what_was_drafted_and_not_decoded_is_decoded_by_the_verification(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"a")
    draft(sequence, 2)
    batches()
    assert verify(sequence, b"").greedy == [ord("d")]
    assert batches() == ["C"]
    assert verify(sequence, b"").greedy == [ord("d")]  # again: the row is decoded again
    assert batches() == ["C"]


def test_an_extension_tells_what_follows_when_asked(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    (prediction,) = extend(sequence, b"abc", top=2).predictions
    assert (prediction.position, prediction.greedy, prediction.token) == (3, ord("d"), None)
    assert prediction.likeliest[0][0] == ord("d")
    assert batches() == ["abC"]
    assert extend(sequence, b"", top=1).predictions[0].greedy == ord("d")
    assert batches() == ["C"]


def test_an_extension_is_read_in_chunks_of_32_and_a_long_draft_verified_so(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1, prefill_chunk=64).hold()
    extend(sequence, b"a" * 70)
    assert [len(batch) for batch in batches()] == [32, 32, 5]
    answer = verify(sequence, b"b" * 33)
    assert batches() == ["A" + "B" * 31, "BB"]
    assert answer.greedy == [*b"b", *b"c" * 33]
    assert answer.end is not None
    assert answer.end.timings.rows == 34


def test_verifications_go_together_and_no_prompt_into_their_batch(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=3)
    sequences = [engine.hold() for _ in range(3)]
    for sequence, text in zip(sequences, (b"ab", b"lm", b"tu"), strict=True):
        extend(sequence, text)
    batches()
    generation, reader = hold_next(engine, "n" * 40)
    runs = [asked(sequence, "verify", text) for sequence, text in zip(sequences, (b"c", b"no", b"v"), strict=True)]
    FakeContext.last.let_go()
    assert [answer.read(task).reason for task, answer in runs] == ["done"] * 3
    reader.read(generation)
    assert [answer.greedy for _, answer in runs] == [list(b"cd"), list(b"nop"), list(b"vw")]
    assert "BCMNOUV" in batches()


@pytest.mark.parametrize("exact", [True, False])
def test_a_verification_of_nothing_goes_with_the_others(make_engine: MakeEngine, exact: bool) -> None:
    engine = make_engine(held_sequences=3, max_sequences=1, exact=exact)
    sequences = [engine.hold() for _ in range(3)]
    for sequence, text in zip(sequences, (b"ab", b"lm", b"tu"), strict=True):
        extend(sequence, text)
    FakeContext.last.batches.clear()
    answers = [Answer() for _ in sequences]
    with engine.together():
        tasks = [each.verify(ids, answer.wake) for each, ids, answer in zip(sequences, (b"c", b"", b""), answers, strict=True)]
    assert [answer.read(task).reason for task, answer in zip(tasks, answers, strict=True)] == ["done"] * 3
    assert [answer.greedy for answer in answers] == [list(b"cd"), list(b"n"), list(b"v")]
    assert [len(batch) for batch in FakeContext.last.batches] == [6 if exact else 4]


def test_verifications_beyond_the_room_of_a_batch_come_next(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=4)
    sequences = [engine.hold() for _ in range(4)]
    for sequence in sequences:
        extend(sequence, b"a")
    generation, reader = hold_next(engine, "n")
    runs = [asked(sequence, "verify", b"b" * 14) for sequence in sequences]
    FakeContext.last.let_go()
    reader.read(generation)
    assert [answer.read(task).reason for task, answer in runs] == ["done"] * 4
    assert max(len(batch) for batch in FakeContext.last.batches) == 30  # of 32


def test_drafts_and_generations_are_decoded_together(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequences = [engine.hold(), engine.hold()]
    for sequence, text in zip(sequences, (b"A", b"L"), strict=True):
        extend(sequence, text)
    context = FakeContext.last
    context.hold()
    generation, reader = start(engine, "t", max_tokens=12)
    runs = [asked(sequence, "draft", 5) for sequence in sequences]
    context.let_go()
    reader.read(generation)
    assert [bytes(answer.tokens) for task, answer in runs if answer.read(task)] == [b"BCDEF", b"MNOPQ"]
    assert max(len({row.sequence for row in batch}) for batch in context.batches) == 3


def test_branches_share_the_prefix_and_take_places_of_their_own(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=3)
    sequence = engine.hold("one device")
    extend(sequence, b"abcdef")
    batches()
    branch, other = sequence.fork(4), sequence.fork()
    branch.extend(b"x")
    assert draft(branch, 2).tokens == list(b"yz")
    assert draft(other, 2).tokens == list(b"gh")
    assert batches() == ["X", "Y", "F", "G"]  # nothing of what they have in common
    assert draft(sequence, 1).tokens == list(b"g")


def test_a_fork_is_taken_after_what_was_asked_before_and_not_after_what_was_asked_later(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    context = FakeContext.last
    context.hold()
    sequence.extend(b"abc")
    branch = sequence.fork()
    task, answer = asked(branch, "draft", 2)
    sequence.extend(b"xyz")
    context.let_go()
    answer.read(task)
    assert answer.tokens == list(b"de")
    assert verify(sequence, b"").greedy == list(b"{")


def test_an_end_token_ends_a_draft_and_stays_in_it(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeContext, "answer", staticmethod(lambda token: 0 if token == ord("e") else token + 1))
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    answer = draft(sequence, 9)
    assert (answer.tokens, answer.reason) == ([*b"de", 0], "stop")


def test_a_draft_ends_where_the_context_does(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1, context_tokens=10).hold()
    extend(sequence, b"abcdefg")
    answer = draft(sequence, 9)
    assert (bytes(answer.tokens), answer.reason) == (b"hij", "done")
    again = draft(sequence, 1)
    assert again.reason == "error"
    assert "draft: expected a sequence shorter than the context of 10 tokens, got 10" in again.error


@pytest.mark.parametrize(("what", "argument"), [("verify", b"b"), ("draft", 1), ("extend", b"")])
def test_an_empty_sequence_predicts_nothing(make_engine: MakeEngine, what: str, argument: bytes | int) -> None:
    task, answer = asked(make_engine(held_sequences=1).hold(), what, argument)
    assert answer.read(task).reason == "error"
    assert "expected" in answer.error
    assert "at least one id" in answer.error


def test_more_than_the_context_is_an_error_that_leaves_the_sequence_as_it_was(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1, context_tokens=8).hold()
    extend(sequence, b"abcdef")
    for answer in (extend(sequence, b"ghi"), verify(sequence, b"ghi")):
        assert answer.reason == "error"
        assert "expected at most 8 tokens (the context), got 9" in answer.error
    assert verify(sequence, b"gh").greedy == list(b"ghi")


def test_a_length_that_is_not_there_is_what_the_next_task_ends_with(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    sequence.truncate(4)
    sequence.extend(b"x")
    answer = verify(sequence, b"d")
    assert answer.reason == "error"
    assert "truncate: expected a length from 0 to 3, got 4" in answer.error
    assert verify(sequence, b"d").greedy == list(b"de")  # its end was taken: a new beginning


def test_a_fork_of_a_failure_fails(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=2).hold()
    extend(sequence, b"abc")
    branch = sequence.fork(9)
    assert "fork: expected a length from 0 to 3, got 9" in draft(branch, 1).error
    branch.close()


def test_a_cancelled_verification_leaves_the_sequence_as_it_was(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    context = FakeContext.last
    while context.entered.acquire(blocking=False):
        pass
    context.hold()
    task, answer = asked(sequence, "verify", b"de")
    assert context.entered.acquire(timeout=10)
    task.cancel()
    task.cancel()
    assert answer.read(task).reason == "cancelled"
    context.let_go()
    assert context.abort.times_set == 1
    assert verify(sequence, b"x").greedy == list(b"dy")


def test_a_cancelled_extension_is_as_if_it_had_not_been_asked_for(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    context = FakeContext.last
    while context.entered.acquire(blocking=False):
        pass
    context.hold()
    task, answer = asked(sequence, "extend", b"n" * 60)
    assert context.entered.acquire(timeout=10)
    context.allow()
    assert context.entered.acquire(timeout=10)
    task.cancel()
    assert answer.read(task).reason == "cancelled"
    context.let_go()
    assert verify(sequence, b"d").greedy == list(b"de")
    assert context.kv[0] == list(b"abcd")


def test_a_cancelled_draft_leaves_what_it_told(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    context = FakeContext.last
    while context.entered.acquire(blocking=False):
        pass
    context.hold()
    task, answer = asked(sequence, "draft", 50)
    for _ in range(4):
        assert context.entered.acquire(timeout=10)
        context.allow()
    task.cancel()
    assert answer.read(task).reason == "cancelled"
    context.let_go()
    count = len(answer.tokens)
    assert bytes(answer.tokens) == b"defghij"[:count]
    assert verify(sequence, b"").predictions[0].position == 3 + count


def test_what_is_asked_behind_a_cancelled_task_is_cancelled_too(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    context = FakeContext.last
    context.hold()
    first, first_answer = asked(sequence, "extend", b"abc")
    second, second_answer = asked(sequence, "verify", b"d")
    branch = sequence.fork()
    on_branch, branch_answer = asked(branch, "draft", 2)
    third, third_answer = asked(sequence, "draft", 2)
    second.cancel()
    context.let_go()
    assert second_answer.read(second).reason == "cancelled"
    assert [third_answer.read(third).reason, branch_answer.read(on_branch).reason] == ["cancelled", "cancelled"]
    assert first_answer.read(first).reason == "done"
    assert draft(sequence, 1).tokens == list(b"d")


def test_the_sequence_idle_longest_is_evicted_and_can_come_back(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    first, second, third = (engine.hold() for _ in range(3))
    extend(first, b"abc")
    extend(second, b"lmn")
    verify(first, b"d")
    extend(third, b"tuv")  # the second has waited longest
    answer = verify(second, b"o")
    assert answer.reason == "evicted"
    assert "sequence: its 3 tokens were evicted" in answer.error
    assert verify(first, b"e").greedy == list(b"ef")
    second.close()
    first.close()
    again = engine.hold()
    batches()
    extend(again, b"lmnopq")
    assert batches() == ["nop"]  # what nobody has written over is found again
    assert verify(third, b"w").greedy == list(b"wx")


def test_nobody_at_work_is_evicted_and_a_source_not_for_its_own_fork(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=1)
    sequence = engine.hold()
    extend(sequence, b"abc")
    branch = sequence.fork()
    answer = draft(branch, 1)
    assert answer.reason == "error"
    assert "expected an idle place among 1, got all busy" in answer.error
    context = FakeContext.last
    context.hold()
    task, working = asked(sequence, "draft", 3)
    other_task, other = asked(engine.hold(), "extend", b"lmn")
    context.let_go()
    assert other.read(other_task).reason == "error"
    assert working.read(task).reason == "done"
    assert verify(sequence, b"g").greedy == list(b"gh")


def test_generations_and_held_sequences_have_places_of_their_own(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2, max_sequences=1)
    sequences = [engine.hold(), engine.hold()]
    for sequence in sequences:
        extend(sequence, b"abc")
    runs = [start(engine, "lmn", max_tokens=3) for _ in range(3)]
    assert [reader.read(generation).reason for generation, reader in runs] == ["length"] * 3
    assert [verify(sequence, b"d").greedy for sequence in sequences] == [list(b"de")] * 2
    assert FakeContext.last.sequences == 4 + SIDE_SEQUENCES


def test_a_prompt_that_another_sequence_has_is_shared(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    extend(engine.hold(), b"system prompt")
    batches()
    extend(engine.hold(), b"system prompt, other question")
    assert "".join(batches()) == "t, other questio"


def test_in_private_mode_only_the_same_label_finds_what_was_read(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=4, private=True, max_sequences=1)
    first = engine.hold("first")
    extend(first, b"secret plan")
    batches()
    extend(engine.hold("second"), b"secret plan")
    assert "".join(batches()) == "secret pla"
    complete(engine, "secret plan", max_tokens=1)
    assert "".join(batches()) == "secret plaN"
    assert draft(first.fork(), 1).tokens == list(b"o")
    batches()
    first.close()
    extend(engine.hold("first"), b"secret plan is")
    assert "".join(batches()) == " i"


def test_a_label_without_a_hash_is_refused_before_the_engines_thread_sees_it(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2, private=True)
    label: Any = ["first"]
    with pytest.raises(UsageError, match="label: expected a value with a hash, got list"):
        engine.hold(label)


def test_a_text_that_is_given_in_pieces_is_found_piece_by_piece(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=1)
    text = bytes(range(1, 100))
    complete(engine, list(text), max_tokens=1)
    batches()
    sequence = engine.hold()
    rows = 0
    for first in range(0, len(text), 33):
        answer = Answer()
        rows += answer.read(sequence.read(text[first : first + 33], answer.wake)).timings.rows
    assert (rows, batches()) == (0, [])
    assert draft(sequence, 1).tokens == [100]


@pytest.mark.parametrize("memory", [{}, {"separate": True}, {"exact": True}])
def test_a_prompt_that_a_generation_and_a_sequence_read_at_once_is_read_once(make_engine: MakeEngine, memory: dict[str, bool]) -> None:
    engine = make_engine(held_sequences=1, max_sequences=1, **memory)
    text = bytes(range(1, 200))
    generation, reader = hold_next(engine, list(text))
    sequence = engine.hold()
    answer = Answer()
    task = sequence.read(text, answer.wake)
    FakeContext.last.let_go()
    end, timings = reader.read(generation), answer.read(task).timings
    assert end.timings.reused_tokens + timings.rows + 1 >= len(text) > end.timings.reused_tokens
    read = [row.position for batch in FakeContext.last.batches for row in batch if row.position < len(text) and row.token]
    assert sorted(set(read)) == list(range(len(text)))
    assert len(read) <= len(text) + (MIN_COPY_TOKENS if memory else 1)  # fewer are not worth a copy
    assert draft(sequence, 1).tokens == [200]


def test_in_private_mode_a_prompt_that_two_read_at_once_is_read_twice(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=1, max_sequences=1, private=True)
    text = bytes(range(1, 100))
    generation, reader = hold_next(engine, list(text))
    answer = Answer()
    task = engine.hold("own").read(text, answer.wake)
    FakeContext.last.let_go()
    assert reader.read(generation).timings.reused_tokens == 0
    assert answer.read(task).timings.rows == len(text)


def test_a_memory_that_cannot_be_cut_is_read_again(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    verify(sequence, b"de")
    FakeContext.last.removable = False
    sequence.truncate(4)
    batches()
    answer = verify(sequence, b"e")
    assert answer.greedy == list(b"ef")
    assert batches() == ["abcDE"]
    assert answer.end is not None
    assert answer.end.timings.rows == 5


def test_a_full_cache_takes_the_memory_of_an_idle_sequence(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    idle, busy = engine.hold(), engine.hold()
    extend(idle, b"lmn")
    extend(busy, b"abc")
    FakeContext.last.statuses.append(NO_KV_SLOT)
    assert verify(busy, b"d").greedy == list(b"de")
    assert verify(idle, b"o").reason == "evicted"
    FakeContext.last.statuses.append(NO_KV_SLOT)
    assert "the KV cache is full" in verify(busy, b"e").error


def test_a_failed_decode_ends_its_tasks_and_leaves_their_sequences(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    FakeContext.last.statuses.append(-3)
    assert "got -3" in verify(sequence, b"de").error
    assert verify(sequence, b"d").greedy == list(b"de")


def test_a_consumer_whose_wake_up_fails_loses_only_its_own_task(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence, other = engine.hold(), engine.hold()
    extend(sequence, b"abc")
    extend(other, b"lmn")

    def wake() -> None:
        raise RuntimeError("loop closed")

    task = sequence.draft(100, wake)
    assert draft(other, 3).tokens == list(b"opq")
    while task.take()[1] is None:
        complete(engine, "x", max_tokens=1)
    _, end = task.take()
    assert end is not None
    assert end.reason == "cancelled"
    assert "loop closed" in str(end.error)


def test_closing_a_sequence_cancels_what_it_was_asked(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    sequence = engine.hold()
    context = FakeContext.last
    context.hold()
    runs = [asked(sequence, "extend", b"a" * 100), asked(sequence, "draft", 3)]
    branch = sequence.fork()
    runs.append(asked(branch, "draft", 3))
    assert context.entered.acquire(timeout=10)
    branch.close()
    sequence.close()
    sequence.close()
    context.let_go()
    assert [answer.read(task).reason for task, answer in runs] == ["cancelled"] * 3
    with pytest.raises(UsageError, match="sequence: already closed"):
        sequence.extend(b"a")
    for _ in range(3):  # their places are free
        extend(engine.hold(), b"xyz")


def test_closing_the_engine_ends_what_was_asked_and_refuses_what_comes(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=1)
    sequence = engine.hold()
    context = FakeContext.last
    context.hold()
    runs = [asked(sequence, "extend", b"abc"), asked(sequence, "draft", 3)]
    branch = sequence.fork()
    runs.append(asked(branch, "draft", 1))
    assert context.entered.acquire(timeout=10)
    engine.close()
    assert [answer.read(task).reason for task, answer in runs] == ["cancelled"] * 3
    with pytest.raises(EngineError, match="closed"):
        sequence.extend(b"d")
    sequence.close()


def test_the_thread_dying_ends_every_task_with_the_error(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=1)
    sequence = engine.hold()
    context = FakeContext.last
    context.hold()
    runs = [asked(sequence, "extend", b"abc"), asked(sequence, "draft", 3)]
    assert context.entered.acquire(timeout=10)
    context.statuses.append(MemoryError("no more"))
    context.let_go()
    assert [answer.read(task).reason for task, answer in runs] == ["error"] * 2
    assert all("MemoryError: no more" in answer.error for _, answer in runs)


def test_nobody_has_to_wait_for_an_extension(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    task = sequence.extend(b"abc")
    assert draft(sequence, 1).tokens == list(b"d")
    _, end = task.take()
    assert end is not None
    assert (end.reason, end.timings.rows) == ("done", 2)


def test_one_wake_up_a_burst(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"abc")
    task, answer = asked(sequence, "draft", 20)
    late, late_answer = asked(sequence, "draft", 1)
    late_answer.read(late)
    assert answer.wakes == 1
    predictions, end = task.take()
    assert (len(predictions), end and end.reason) == (20, "done")
    assert task.take() == ([], end)


def test_exact_mode_verifies_two_rows_or_more_and_gives_a_single_one_its_neighbour(make_engine: MakeEngine) -> None:
    engine = make_engine(exact=True, held_sequences=2, max_sequences=1)
    assert (FakeContext.last.sequences, FakeContext.last.unified) == (6, False)
    sequence = engine.hold()
    extend(sequence, b"abc")
    FakeContext.last.batches.clear()
    verify(sequence, b"de")
    verify(sequence, b"")
    draft(sequence, 2)
    assert [len(batch) for batch in FakeContext.last.batches] == [3, 2, 2, 2]
    assert all(not tokens for number, tokens in FakeContext.last.kv.items() if number % 2)
    branch = sequence.fork(4)
    FakeContext.last.batches.clear()
    assert draft(branch, 1).tokens == list(b"e")
    assert [len(batch) for batch in FakeContext.last.batches] == [2]  # copied, not read again


def test_exact_mode_gives_a_single_row_its_neighbour_beside_longer_runs_too(make_engine: MakeEngine) -> None:
    engine = make_engine(exact=True, held_sequences=3, max_sequences=1)
    sequences = [engine.hold() for _ in range(3)]
    FakeContext.last.batches.clear()
    with engine.together():
        answers = [Answer() for _ in sequences]
        tasks = [each.read(ids, answer.wake) for each, ids, answer in zip(sequences, (b"a", b"bc", b"d" * 25), answers, strict=True)]
    assert [answer.read(task).reason for task, answer in zip(tasks, answers, strict=True)] == ["done"] * 3
    (batch,) = FakeContext.last.batches
    slots = [row.sequence for row in batch]
    assert sorted(slots.count(slot) for slot in set(slots)) == [1, 1, 2, 25]
    assert slots[-1] == slots[0] + 1  # behind the others: two rows are decoded by themselves where no run stands next to it
    assert all(not tokens for number, tokens in FakeContext.last.kv.items() if number % 2)


def test_exact_mode_keeps_room_for_the_neighbours_of_single_rows(make_engine: MakeEngine) -> None:
    engine = make_engine(exact=True, held_sequences=3, max_sequences=1)
    sequences = [engine.hold() for _ in range(3)]
    FakeContext.last.batches.clear()
    with engine.together():
        answers = [Answer() for _ in sequences]
        tasks = [each.read(ids, answer.wake) for each, ids, answer in zip(sequences, (b"a" * 30, b"b", b"c"), answers, strict=True)]
    assert [answer.read(task).reason for task, answer in zip(tasks, answers, strict=True)] == ["done"] * 3
    assert [len(batch) for batch in FakeContext.last.batches] == [32, 2]  # of 32: 31 rows and one neighbour, then one with its own


def test_a_verification_is_a_step_of_its_own(make_engine: MakeEngine) -> None:
    steps: list[tuple[int, int]] = []

    def step_time(rows: int, tokens: int) -> float:
        steps.append((rows, tokens))
        return 0.0

    engine = make_engine(step_time=step_time, held_sequences=1)
    sequence = engine.hold()
    extend(sequence, b"abcde")
    verify(sequence, b"fgh")
    draft(sequence, 2)
    assert steps == [(0, 4), (0, 4), (1, 0), (1, 0)]


@pytest.mark.parametrize(("ids", "message"), [([256], "expected ids from 0 to 255, got 256 to 256"), ([-1, 3], "got -1 to 3")])
def test_ids_that_are_not_in_the_vocabulary_are_refused_at_once(make_engine: MakeEngine, ids: list[int], message: str) -> None:
    sequence = make_engine(held_sequences=1).hold()
    for what in ("extend", "verify"):
        with pytest.raises(EngineError, match=message):
            asked(sequence, what, ids)


def test_options_out_of_range_are_the_callers_fault(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    with pytest.raises(ConfigError, match="count: expected at least 1 token, got 0"):
        asked(sequence, "draft", 0)
    with pytest.raises(ConfigError, match="top: expected 0 to 1024, got 1025"):
        asked(sequence, "verify", b"a", top=1025)
    with pytest.raises(ConfigError, match="held_sequences: expected at least 0, got -1"):
        make_engine(held_sequences=-1)
    with pytest.raises(ConfigError, match="expected at most 255 together, got 304"):
        make_engine(held_sequences=300)
    with pytest.raises(EngineError, match=r"hold: expected an engine with EngineOptions\(held_sequences=...\) above 0"):
        make_engine().hold()


def test_many_consumers_ask_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=8)

    def consume(letter: int) -> None:
        sequence = engine.hold()
        extend(sequence, [letter])
        for turn in range(20):
            answer = verify(sequence, [letter + turn + 1, 7])
            assert answer.greedy[:2] == [letter + turn + 1, letter + turn + 2]
            sequence.truncate(turn + 2)
        sequence.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(consume, range(20, 180, 20)))


# What a verifier asks


def test_given_ids_are_read_with_the_draft_and_not_judged(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    verdict = verify(sequence, b"fg", given=b"abcde")
    assert batches() == ["abcdEFG"]
    assert verdict.greedy == list(b"fgh")
    assert [prediction.position for prediction in verdict.predictions] == [5, 6, 7]


def test_what_is_only_read_is_decoded_to_its_last_id_in_one_batch_with_verifications(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2)
    first, second = engine.hold(), engine.hold()
    with engine.together():
        reading, told = Answer(), Answer()
        ends = [(reading, first.read(b"abc", reading.wake)), (told, second.verify(b"r", told.wake, given=b"pq"))]
    for answer, task in ends:
        assert answer.read(task).reason == "done"
    assert batches() == ["abcpQR"]
    assert (reading.predictions, told.greedy) == ([], list(b"rs"))
    assert verify(first, b"e", given=b"d").greedy == list(b"ef")
    assert batches() == ["DE"]


def test_a_reader_sees_each_row_in_turn_and_makes_the_predictions(make_engine: MakeEngine) -> None:
    class Odd:
        def read_row(self, logits: np.typing.NDArray[np.float32], position: int, token: int | None, /) -> Prediction:
            if token == ord("y"):
                raise EngineError("expected no y")
            return Prediction(position=position, greedy=int(logits.argmax()) + 1, token=token)

    sequence = make_engine(held_sequences=1).hold()
    assert verify(sequence, b"x", given=b"ab", reader=Odd()).greedy == list(b"dz")
    answer = verify(sequence, b"y", reader=Odd())
    assert (answer.reason, answer.error) == ("error", "expected no y")
    assert extend(sequence, b"z").reason == "done"


def test_a_draft_tells_the_attention_to_its_own_tokens(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1, attention_layers=(0,)).hold()
    extend(sequence, b"ab")
    told = [prediction.importance for prediction in draft(sequence, 4).predictions]
    assert told[0] is None  # nothing of it has been decoded yet
    assert told[1:] == pytest.approx([0.8, (0.9 + 0.7) / 2, (1.0 + 0.8 + 0.6) / 3])


def test_without_layers_nothing_is_told_of_attention(make_engine: MakeEngine) -> None:
    sequence = make_engine(held_sequences=1).hold()
    extend(sequence, b"ab")
    assert {prediction.importance for prediction in draft(sequence, 3).predictions} == {None}
    assert not FakeContext.last.attention_layers


def test_separate_sequences_have_a_whole_context_each_and_share_no_short_prefix(make_engine: MakeEngine) -> None:
    engine = make_engine(held_sequences=2, held_tokens=9, max_sequences=1, separate=True, context_tokens=100)
    context = FakeContext.last
    assert (context.unified, context.sequences, context.cells - context.rows, engine.held_tokens) == (False, 4, 400, 200)
    first, second = engine.hold(), engine.hold()
    for sequence in (first, second):
        assert verify(sequence, b"d", given=b"abc").greedy == list(b"de")
    assert batches() == ["abCD", "abCD"]
