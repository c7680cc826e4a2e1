"""One generation's two sides, without a thread between them: what is shown, held and counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamco.config import SamplingOptions
from streamco.engines.base import GenerationRequest
from streamco.engines.consumer import Consumer, EngineSignals
from streamco.engines.generation import RunningGeneration
from streamco.engines.kv_slots import Slot
from streamco.engines.llamacpp.json_schema import schema_grammar
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.rapl import EnergyMeter, PackageCounter
from streamco.errors import ConfigError
from tests.engines.fakes import FakeModel
from tests.engines.llamacpp.schemas import is_valid, schemas
from tests.engines.llamacpp.vocabularies import SmallVocabulary


@dataclass
class Bench:
    """A generation, its consumer and its engine."""

    buffered: int = 8
    limit: int = 100
    stop: tuple[str, ...] = ()
    pending_bytes: bytes = b""
    wakes: int = 0
    notices: int = 0
    interrupts: list[object] = field(default_factory=list)
    meter: EnergyMeter | None = None

    def __post_init__(self) -> None:
        request = GenerationRequest(
            prompt_ids=[1, 2, 3], sampling=SamplingOptions(temperature=0, stop=self.stop), pending_bytes=self.pending_bytes
        )
        self.generation = RunningGeneration(
            request,
            cast(LlamaModel, FakeModel(Path("bytes.gguf"))),
            limit=self.limit,
            buffered=self.buffered,
            wake=self.wake,
            engine=self,
            meter=self.meter,
        )

    def wake(self) -> None:
        self.wakes += 1

    def notify(self) -> None:
        self.notices += 1

    def interrupt(self, work: object) -> None:
        self.interrupts.append(work)

    def write(self, text: str | bytes) -> None:
        for token in text.encode() if isinstance(text, str) else text:
            logits = np.zeros(256, dtype=np.float32)
            logits[token] = 9.0
            self.generation.accept(logits)

    def taken(self) -> str:
        return "".join(piece.text for piece in self.generation.take()[0])


def test_pieces_are_taken_once() -> None:
    bench = Bench()
    bench.write("ab")
    assert bench.taken() == "ab"
    assert bench.taken() == ""


def test_a_burst_wakes_once_and_the_next_one_again() -> None:
    bench = Bench()
    bench.write("abc")
    assert bench.wakes == 1
    bench.taken()
    bench.write("de")
    assert bench.wakes == 2


def test_an_open_code_point_wakes_nobody() -> None:
    bench = Bench()
    bench.write("é".encode()[:1])
    assert bench.wakes == 0
    bench.write("é".encode()[1:])
    assert bench.taken() == "é"


def test_a_full_ring_parks_and_a_drained_one_notifies_the_engine() -> None:
    bench = Bench(buffered=4)
    bench.write("abcd")
    assert bench.generation.is_parked
    bench.generation.unpark()
    assert bench.generation.is_parked  # nothing was drained yet
    assert bench.taken() == "abcd"
    assert bench.notices == 1
    bench.generation.unpark()
    assert not bench.generation.is_parked


def test_a_paused_generation_is_parked_until_it_is_resumed_however_much_is_taken() -> None:
    bench = Bench(buffered=8)
    bench.generation.pause()
    bench.write("a")
    assert bench.generation.is_parked
    assert bench.taken() == "a"
    bench.generation.unpark()
    assert bench.generation.is_parked
    notices = bench.notices
    bench.generation.resume()
    assert bench.notices == notices + 1
    bench.generation.unpark()
    bench.write("b")
    assert (bench.taken(), bench.generation.is_parked) == ("b", False)


def test_a_paused_generation_can_be_cancelled() -> None:
    bench = Bench()
    bench.generation.pause()
    bench.write("a")
    bench.generation.cancel()
    bench.generation.finish("cancelled")
    pieces, end = bench.generation.take()
    assert end is not None
    assert (end.reason, [piece.text for piece in pieces]) == ("cancelled", ["a"])


def test_energy_of_a_pause_is_not_counted() -> None:
    bench, counter = measuring()
    bench.generation.admit(Slot(0))
    bench.generation.pause()
    bench.write("a")
    counter.readings += 100
    bench.taken()
    bench.generation.resume()
    bench.generation.unpark()
    bench.generation.finish("stop")
    assert joules_of(bench) == pytest.approx(2.0)


class SteppingCounter:
    """A counter that is a joule further at each reading."""

    def __init__(self) -> None:
        self.readings = 0

    def read(self) -> int:
        self.readings += 1
        return self.readings * 1_000_000

    def used(self, before: int, after: int, seconds: float) -> float:
        return (after - before) / 1e6


def measuring(**options: Any) -> tuple[Bench, SteppingCounter]:
    counter = SteppingCounter()
    return Bench(meter=EnergyMeter([cast(PackageCounter, counter)]), **options), counter


def joules_of(bench: Bench) -> float | None:
    _, end = bench.generation.take()
    assert end is not None
    return end.timings.joules


def test_energy_is_counted_from_the_slot_to_the_end_without_the_times_in_which_it_was_parked() -> None:
    bench, counter = measuring(buffered=4)
    bench.generation.admit(Slot(0))
    bench.write("abcd")
    assert bench.generation.is_parked
    assert counter.readings == 2
    counter.readings += 100
    bench.taken()
    bench.generation.unpark()
    bench.write("e")
    bench.generation.finish("stop")
    bench.generation.unpark()
    assert counter.readings == 104, "read once at each beginning, pause and end"
    assert joules_of(bench) == pytest.approx(2.0)


def test_energy_is_not_known_of_a_generation_that_never_began_or_that_nothing_measures() -> None:
    bench, counter = measuring()
    bench.generation.finish("cancelled")
    assert joules_of(bench) is None
    assert not counter.readings
    unmeasured = Bench()
    unmeasured.generation.admit(Slot(0))
    unmeasured.generation.finish("cancelled")
    assert joules_of(unmeasured) is None


def test_energy_of_a_generation_that_ends_parked_is_counted_once() -> None:
    bench, counter = measuring(buffered=2)
    bench.generation.admit(Slot(0))
    bench.write("ab")
    bench.generation.finish("cancelled")
    bench.generation.take()
    bench.generation.unpark()
    assert counter.readings == 2
    assert joules_of(bench) == pytest.approx(1.0)


def test_pieces_released_together_beyond_the_room_wait_for_it() -> None:
    bench = Bench(buffered=2, stop=("abcdX",))
    bench.write("abcd")  # all may be the stop string
    assert bench.taken() == ""
    bench.write("!")
    assert bench.generation.is_parked
    assert bench.taken() == "ab"
    bench.generation.unpark()
    assert bench.taken() == "cd"
    bench.generation.unpark()
    assert bench.taken() == "!"
    bench.generation.unpark()
    assert not bench.generation.is_parked


def test_the_end_brings_everything_whatever_the_room() -> None:
    bench = Bench(buffered=2, stop=("abcdX",))
    bench.write("abcd!")
    bench.generation.finish("length")
    pieces, end = bench.generation.take()
    assert "".join(piece.text for piece in pieces) == "abcd!"
    assert end is not None
    assert end.reason == "length"
    assert bench.generation.take() == ([], end)


def test_only_the_first_end_counts() -> None:
    bench = Bench()
    bench.generation.finish("stop")
    bench.generation.finish("error", error=ValueError("late"))
    _, end = bench.generation.take()
    assert end is not None
    assert (end.reason, end.error) == ("stop", None)


def test_the_end_wakes_a_consumer_that_has_taken_everything() -> None:
    bench = Bench()
    bench.write("a")
    bench.taken()
    bench.generation.finish("stop")
    assert bench.wakes == 2


def test_an_end_without_anything_before_it_wakes_too() -> None:
    bench = Bench()
    bench.generation.finish("cancelled")
    assert bench.wakes == 1


def test_an_open_code_point_at_the_end_is_replaced() -> None:
    bench = Bench(limit=2)
    bench.write(b"a\xf0")
    pieces, end = bench.generation.take()
    assert [(piece.text, piece.ids) for piece in pieces] == [("a", (97,)), ("\ufffd", (0xF0,))]
    assert end is not None
    assert end.reason == "length"


def test_a_replacement_character_can_complete_a_stop_string() -> None:
    bench = Bench(limit=2, stop=("a\ufffd",))
    bench.write(b"a\xf0")
    assert bench.taken() == ""


def test_cancelling_interrupts_and_notices_once() -> None:
    bench = Bench()
    bench.generation.cancel()
    bench.generation.cancel()
    assert bench.generation.is_cancelled
    assert bench.interrupts == [bench.generation]
    assert bench.notices == 1


def test_timings_count_what_happened() -> None:
    bench = Bench()
    slot = Slot(0)
    slot.ids = [1, 2]
    bench.generation.admit(slot)
    assert bench.generation.missing == 1
    bench.write("abc")
    bench.generation.finish("stop")
    _, end = bench.generation.take()
    assert end is not None
    timings = end.timings
    assert (timings.prompt_tokens, timings.reused_tokens, timings.completion_tokens) == (3, 2, 3)
    assert timings.prefill_s >= 0 <= timings.decode_s
    assert timings.queued_s >= 0


def test_a_generation_that_never_began_has_only_waited() -> None:
    bench = Bench()
    bench.generation.finish("cancelled")
    _, end = bench.generation.take()
    assert end is not None
    assert (end.timings.prefill_s, end.timings.decode_s) == (0.0, 0.0)


@pytest.mark.parametrize("times", [1, 3])
def test_a_wake_up_that_raises_cancels_and_comes_with_the_end(times: int) -> None:
    bench = Bench()
    calls: list[Any] = []

    def fail() -> None:
        calls.append(None)
        raise RuntimeError(f"call {len(calls)}")

    bench.generation._consumer = Consumer(fail)
    for _ in range(times):
        bench.write("a")
        bench.taken()
    assert bench.generation.is_cancelled
    bench.generation.finish("cancelled")
    _, end = bench.generation.take()
    assert end is not None
    assert str(end.error) == "call 1"


@given(st.lists(st.one_of(st.text("abX", min_size=1, max_size=5), st.none()), max_size=30), st.integers(1, 5))
def test_whatever_the_rhythm_every_token_arrives_once_and_in_order(steps: list[str | None], room: int) -> None:
    bench = Bench(buffered=room, limit=1000, stop=("ababab",))
    written = shown = ""
    for step in steps:
        if step is None:
            shown += bench.taken()
            bench.generation.unpark()
        elif not bench.generation.is_parked and not bench.generation.is_done:
            written += step[0]
            bench.write(step[0])
    bench.generation.finish("length")
    pieces, _ = bench.generation.take()
    shown += "".join(piece.text for piece in pieces)
    assert shown == written.split("ababab")[0]


def test_tokens_are_counted_and_not_pieces() -> None:
    bench, parked = Bench(buffered=8), list[bool]()
    for data in ("🐈".encode(), "🐈".encode(), b"abcd", "🐈".encode()[:3], "🐈".encode()[3:]):
        bench.write(data)
        parked.append(bench.generation.is_parked)
        if len(parked) == 2:
            assert bench.taken() == "🐈🐈"
            bench.generation.unpark()
    assert parked == [False, True, False, False, True], "eight tokens in two pieces, then in five"
    assert bench.notices == 1


def test_tokens_without_text_park_no_sequence_alone_because_nothing_can_be_taken() -> None:
    bench = Bench(buffered=2, stop=("abcdX",))
    bench.write("abcd")
    alone = bench.generation.is_parked
    bench.write("abcd!")
    assert (alone, bench.generation.is_parked) == (False, True)


def test_a_sequence_that_is_emptied_while_it_parks_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(buffered=8)
    bench.write("🐈🐈"[:1])
    ring = bench.generation._ring

    class Emptied:
        """The ring as a consumer leaves it between two looks."""

        capacity = 8
        looks = 0

        def __len__(self) -> int:
            self.looks += 1
            if self.looks == 2:
                bench.taken()
            return len(ring)

        def __getattr__(self, name: str) -> Any:
            return getattr(ring, name)

    monkeypatch.setattr(bench.generation, "_ring", Emptied())
    bench.write("abcd")
    assert not bench.generation.is_parked


@given(st.lists(st.sampled_from(["a", "X", "é", "猫", "🐈", "take"]), max_size=60), st.integers(1, 12))
def test_no_more_tokens_wait_than_may_unless_there_was_nothing_to_take(steps: list[str], room: int) -> None:
    bench = Bench(buffered=room, limit=1000, stop=("aaX",))
    generation, taken, shown = bench.generation, 0, ""

    def take() -> None:
        nonlocal taken, shown
        notices, was_parked = bench.notices, generation.is_parked
        pieces, _ = generation.take()
        taken += sum(len(piece.ids) for piece in pieces)
        shown += "".join(piece.text for piece in pieces)
        assert bench.notices == notices + was_parked
        generation.unpark()

    text = "".join(step for step in steps if step != "take").split("aaX")[0]
    for step in steps:
        if step == "take":
            take()
            continue
        for byte in step.encode():
            while generation.is_parked:
                assert len(generation._ring), "there is something to take, so the consumer comes"
                take()
            if not generation.is_done:
                was_empty = not len(generation._ring)
                bench.write(bytes([byte]))
                assert generation._made - taken <= room or was_empty
    generation.finish("length")
    shown += bench.taken()
    assert shown == text


@pytest.mark.parametrize("reason", ["cancelled", "error"])
def test_a_broken_answer_shows_no_half_code_point_and_no_half_stop_string(reason: str) -> None:
    bench = Bench(stop=("cd!",))
    bench.write("abc")
    bench.write("é".encode()[:1])
    bench.generation.finish(reason)
    assert bench.taken() == "ab"


@pytest.mark.parametrize(("stop", "reason", "named"), [(("X", "cd"), "stop", "cd"), (("cd!",), "length", None), ((), "length", None)])
def test_the_end_names_the_stop_string(stop: tuple[str, ...], reason: str, named: str | None) -> None:
    bench = Bench(stop=stop)
    bench.write("abcd")
    bench.generation.finish("length")
    _, end = bench.generation.take()
    assert end is not None
    assert (end.reason, end.stop) == (reason, named)


def test_a_code_point_that_the_prompt_opens_is_shown_whole() -> None:
    bench = Bench(pending_bytes="🐈".encode()[:3])
    bench.write("🐈".encode()[3:])
    bench.write("!")
    assert bench.taken() == "🐈!"


class GrammarBench:
    """A generation that keeps to a grammar, without an engine."""

    def __init__(self, vocabulary: SmallVocabulary, grammar: str, *, limit: int = 200, **sampling: Any) -> None:
        request = GenerationRequest(prompt_ids=[1], sampling=SamplingOptions(**sampling), grammar=grammar)
        model = cast(LlamaModel, vocabulary)
        self.generation = RunningGeneration(request, model, limit=limit, buffered=1000, wake=Mock(), engine=cast(EngineSignals, Mock()))

    def run(self, rows: Callable[[], NDArray[np.float32]]) -> tuple[str, str]:
        """Return the text and the reason of its end."""
        while not self.generation.is_done:
            self.generation.accept(rows())
        pieces, end = self.generation.take()
        assert end is not None
        return "".join(piece.text for piece in pieces), end.reason


@given(schemas(), st.integers(0, 2**32), st.sampled_from([0.0, 1.0]))
def test_an_answer_with_a_schema_parses_if_it_stops_whatever_the_logits(
    vocabulary: SmallVocabulary, schema: dict[str, Any], seed: int, temperature: float
) -> None:
    rng = np.random.default_rng(seed)
    liked = rng.normal(0, 4, vocabulary.vocabulary_size)
    liked[[vocabulary.id_of(piece) for piece in (b'"', b"}", b"]")]] += rng.uniform(0, 12)

    def logits() -> NDArray[np.float32]:
        return np.asarray(liked + rng.normal(0, 3, len(liked)), np.float32)

    bench = GrammarBench(vocabulary, schema_grammar(schema), temperature=temperature, seed=seed)
    text, reason = bench.run(logits)
    assert reason in {"stop", "length"}
    assert reason == "length" or is_valid(json.loads(text), schema), text


def test_an_answer_stops_with_its_last_token_and_needs_no_end_token(vocabulary: SmallVocabulary) -> None:
    bench = GrammarBench(vocabulary, '{"const": ""}', limit=2, temperature=0)
    assert bench.run(lambda: np.zeros(vocabulary.vocabulary_size, np.float32)) == ('""', "stop")
    assert bench.generation.made == 2


def test_an_answer_that_is_cut_short_of_its_end_says_so(vocabulary: SmallVocabulary) -> None:
    bench = GrammarBench(vocabulary, '{"const": ""}', limit=1, temperature=0)
    assert bench.run(lambda: np.zeros(vocabulary.vocabulary_size, np.float32)) == ('"', "length")


def test_a_grammar_and_ignore_eos_contradict_each_other(vocabulary: SmallVocabulary) -> None:
    request = GenerationRequest(prompt_ids=[1], grammar='{"const": ""}', ignore_eos=True)
    with pytest.raises(ConfigError, match="ignore_eos: expected false with a response_format"):
        RunningGeneration(request, cast(LlamaModel, vocabulary), limit=5, buffered=5, wake=Mock(), engine=cast(EngineSignals, Mock()))
