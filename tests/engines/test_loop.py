"""The engine's loop, run in the test's own thread: the order of batches, and what ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from streamco.config import SamplingOptions
from streamco.engines.base import GenerationEnd, GenerationRequest, TaskEnd
from streamco.engines.generation import RunningGeneration
from streamco.engines.kv_slots import SlotTable
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.loop import EngineLoop
from streamco.engines.sequence import HeldSequence
from streamco.engines.threads import ThreadBudget
from streamco.errors import EngineError
from tests.engines import fakes
from tests.engines.asking import GREEDY


class Bench:
    """A loop that closes itself when all of its work has ended."""

    def __init__(self, **changes: Any) -> None:
        options = fakes.options(**changes)
        self.model = fakes.FakeModel(Path("bytes.gguf"))
        places = options.max_sequences + options.held_sequences
        self.context = fakes.FakeContext(self.model, cells=4096, sequences=places + 1, rows=64, threads=1)
        context = cast(LlamaContext, self.context)
        slots = SlotTable(context, places, max_idle_tokens=256)
        self.loop = EngineLoop(context, slots, options, ThreadBudget(1).claim(1), None, tokens=256)
        self.pending = 0
        self.ends: list[GenerationEnd | TaskEnd] = []

    def generate(self, prompt: bytes, tokens: int) -> RunningGeneration:
        self.pending += 1
        request = GenerationRequest(prompt_ids=list(prompt), sampling=SamplingOptions(temperature=0))
        model = cast(LlamaModel, self.model)
        work = RunningGeneration(request, model, limit=tokens, buffered=64, wake=lambda: self.look(work), engine=self.loop)
        self.loop.put(work)
        return work

    def verify(self, ids: bytes, draft: bytes) -> None:
        self.pending += 1
        sequence = HeldSequence(self.loop, self.model)
        sequence.extend(list(ids))
        work = sequence.verify(list(draft), lambda: self.look(work), sampling=GREEDY)

    def look(self, work: Any) -> None:
        _, end = work.take()
        if end is not None:
            self.ends.append(end)
            self.pending -= 1
            if not self.pending:
                self.loop.close()

    def batches(self) -> list[list[int]]:
        """The sequence ids of the rows of each batch."""
        return [[row.sequence for row in batch] for batch in self.context.batches]


def test_a_round_is_a_decode_of_the_writers_then_verifications_then_one_chunk_of_one_prompt() -> None:
    bench = Bench(held_sequences=1, prefill_chunk=16)
    bench.generate(b"a", 8)
    bench.generate(b"n" * 80, 1)
    bench.verify(b"xy", b"cd")
    bench.loop.run()
    writer, prompt, verification = [0], [1] * 16, [2] * 3
    batches = bench.batches()
    index = batches.index(verification)
    assert batches[index - 1 : index + 2] == [writer, verification, prompt]
    assert all(len(set(batch)) == 1 for batch in batches)
    assert [end.reason for end in bench.ends] == ["done", "length", "length"]


def test_a_prompt_s_chunks_take_turns_with_a_writer() -> None:
    bench = Bench(prefill_chunk=8)
    bench.generate(b"a", 6)
    bench.generate(b"n" * 32, 1)
    bench.loop.run()
    shapes = [len(batch) for batch in bench.batches()]
    assert shapes[:7] == [1, 1, 8, 1, 8, 1, 8]


def test_writers_are_decoded_together() -> None:
    bench = Bench()
    for prompt in (b"a", b"b", b"c"):
        bench.generate(prompt, 5)
    bench.loop.run()
    assert max(len(set(batch)) for batch in bench.batches()) == 3
    assert [end.reason for end in bench.ends] == ["length"] * 3


def test_work_that_was_cancelled_before_it_began_is_not_decoded() -> None:
    bench = Bench()
    bench.generate(b"a", 5).cancel()
    bench.loop.run()
    assert bench.batches() == []
    assert [end.reason for end in bench.ends] == ["cancelled"]


def test_a_closed_loop_refuses_work_and_runs_no_round() -> None:
    bench = Bench()
    bench.generate(b"a", 5)
    bench.loop.close()
    bench.loop.run()
    bench.loop.end(None)
    assert bench.batches() == []
    assert [end.reason for end in bench.ends] == ["cancelled"]
    with pytest.raises(EngineError, match="engine: already closed"):
        bench.generate(b"b", 1)


def test_a_failure_ends_all_work_with_its_reason() -> None:
    bench = Bench(held_sequences=1)
    bench.generate(b"a", 5)
    bench.verify(b"ab", b"c")
    bench.loop.end(ValueError("broken"))
    assert [end.reason for end in bench.ends] == ["error", "error"]
    assert all("got ValueError: broken" in str(end.error) for end in bench.ends)
    with pytest.raises(EngineError, match="engine: has failed: broken"):
        bench.generate(b"b", 1)
