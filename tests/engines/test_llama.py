"""The engine's thread on a fake context: what is decoded when, who is stopped, and what everybody hears."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamco.config import SamplingOptions
from streamco.engines.base import Engine, EngineOptions, GenerationRequest
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.context import ABORTED, NO_KV_SLOT
from streamco.engines.rapl import EnergyMeter
from streamco.engines.sampling import Sampler
from streamco.engines.tasks import ExtensionTask
from streamco.engines.threads import ThreadBudget
from streamco.errors import ConfigError, EngineError, UsageError
from tests.engines.conftest import MakeEngine
from tests.engines.fakes import FakeContext, FakeModel, complete, start


def test_it_offers_what_an_engine_offers(make_engine: MakeEngine) -> None:
    engine: Engine = make_engine()
    assert engine.info.context_tokens == 256


def test_a_prompt_is_continued_token_by_token(make_engine: MakeEngine) -> None:
    reader = complete(make_engine(), "abc", max_tokens=5)
    assert reader.text == "defgh"
    assert reader.ids == list(b"defgh")
    assert reader.end is not None
    assert reader.end.reason == "length"
    assert (reader.end.timings.prompt_tokens, reader.end.timings.completion_tokens) == (3, 5)


def test_an_end_token_stops_and_is_not_shown(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeContext, "answer", staticmethod(lambda token: 0 if token == ord("e") else token + 1))
    reader = complete(make_engine(), "abc")
    assert reader.end is not None
    assert (reader.text, reader.end.reason, reader.end.timings.completion_tokens) == ("de", "stop", 2)


def test_ignore_eos_takes_the_next_best_token(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeContext, "answer", staticmethod(lambda _token: 0))
    reader = complete(make_engine(), "abc", max_tokens=3, ignore_eos=True)
    assert reader.ids == [1, 1, 1]


def test_the_context_ends_an_answer_that_would_not_end(make_engine: MakeEngine) -> None:
    reader = complete(make_engine(context_tokens=20), "abc")
    assert reader.end is not None
    assert (reader.end.reason, reader.end.timings.completion_tokens) == ("length", 17)


@pytest.mark.parametrize("has_gpu", [False, True])
def test_energy_is_measured_unless_a_gpu_may_do_the_work(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, has_gpu: bool) -> None:
    monkeypatch.setattr(FakeModel, "library", SimpleNamespace(llama_supports_gpu_offload=lambda: has_gpu))
    monkeypatch.setattr("streamco.engines.llama.machine_meter", lambda: EnergyMeter(()))
    reader = complete(make_engine(), "abc", max_tokens=5)
    assert reader.end is not None
    assert reader.end.timings.joules == (None if has_gpu else 0.0)


def test_no_tokens_wanted_means_no_tokens_made(make_engine: MakeEngine) -> None:
    reader = complete(make_engine(), "abc", max_tokens=0)
    assert reader.end is not None
    assert (reader.ids, reader.end.reason) == ([], "length")


def test_a_stop_string_over_several_tokens_never_shows(make_engine: MakeEngine) -> None:
    reader = complete(make_engine(), "abc", stop=("hij",))
    assert reader.end is not None
    assert (reader.text, reader.end.reason, reader.end.timings.completion_tokens) == ("defg", "stop", 7)


def test_the_likeliest_tokens_come_with_each_piece_when_asked_for(make_engine: MakeEngine) -> None:
    reader = complete(make_engine(), "abc", max_tokens=2, top=3)
    tops = reader.pieces[0].tops
    assert tops is not None
    (top,) = tops
    assert top[0][0] == ord("d")
    assert top[0][1] > 0.98
    assert top[1][1] == top[2][1] < 0.01
    assert complete(make_engine(), "abc", max_tokens=1).pieces[0].tops is None


def test_a_token_that_is_not_among_the_likeliest_has_its_own_probability(make_engine: MakeEngine) -> None:
    reader = complete(make_engine(), "abc", max_tokens=2, top=3, logit_bias=((ord("z"), 100.0),))
    assert reader.text == "zz"
    for piece in reader.pieces:
        ((*_, (token, probability)),) = piece.tops or ()
        assert token == ord("z")
        assert 0 < probability < 0.01


def test_prefill_only_leaves_the_prompt_in_the_cache(make_engine: MakeEngine) -> None:
    engine = make_engine()
    reader = complete(engine, "abcdef", prefill_only=True)
    assert reader.end is not None
    assert (reader.ids, reader.end.reason) == ([], "length")
    again = complete(engine, "abcdefg", max_tokens=1).end
    assert again is not None
    assert again.timings.reused_tokens == 6


def test_a_prompt_is_decoded_in_chunks_and_asks_for_logits_once(make_engine: MakeEngine) -> None:
    complete(make_engine(prefill_chunk=4), "abcdefghij", max_tokens=1)
    batches = FakeContext.last.batches
    assert ["".join(chr(row.token) for row in batch) for batch in batches] == ["abcd", "efgh", "ij"]
    assert [row.wants_logits for batch in batches for row in batch] == [False] * 9 + [True]


def test_the_next_turn_of_a_chat_decodes_only_what_is_new(make_engine: MakeEngine) -> None:
    engine = make_engine()
    first = complete(engine, "abc", max_tokens=4)
    FakeContext.last.batches.clear()
    turn = complete(engine, "abc" + first.text + "XY", max_tokens=1)
    assert turn.end is not None
    assert turn.end.timings.reused_tokens == 6  # all but the last token, which was shown and never decoded
    assert [chr(row.token) for row in FakeContext.last.batches[0]] == ["g", "X", "Y"]


def test_a_memory_that_cannot_be_cut_is_filled_again(make_engine: MakeEngine) -> None:
    engine = make_engine(max_sequences=1)
    complete(engine, "abcdef", max_tokens=1)
    FakeContext.last.removable = False
    end = complete(engine, "abcX", max_tokens=1).end
    assert end is not None
    assert end.timings.reused_tokens == 0


def test_sequences_are_decoded_together(make_engine: MakeEngine) -> None:
    engine = make_engine()
    context = FakeContext.last
    context.hold()
    runs = [start(engine, prompt, max_tokens=4) for prompt in ("abc", "lmn", "tuv")]
    context.let_go()
    assert [reader.read(generation).reason for generation, reader in runs] == ["length"] * 3
    assert [reader.text for _, reader in runs] == ["defg", "opqr", "wxyz"]
    assert max(len({row.sequence for row in batch}) for batch in context.batches) == 3


def test_a_long_prompt_takes_turns_with_those_who_write(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=64)
    context = FakeContext.last
    context.hold()
    writer, writer_reader = start(engine, "a", max_tokens=20)
    assert context.entered.acquire(timeout=10)
    long_prompt = [1 + index % 200 for index in range(150)]
    other, other_reader = start(engine, long_prompt, max_tokens=1)
    context.let_go()
    writer_reader.read(writer)
    other_reader.read(other)
    shapes = [len(batch) for batch in context.batches]
    assert shapes[:11] == [1, 1, 32, 1, 32, 1, 32, 1, 32, 1, 22]  # chunks of 32 while somebody waits for the next word


def test_a_prefill_batch_holds_one_sequence_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=4)
    context = FakeContext.last
    context.hold()
    runs = [start(engine, prompt * 5, max_tokens=3) for prompt in ("abc", "lmn", "tuv")]
    context.let_go()
    for generation, reader in runs:
        reader.read(generation)
    prefills = [batch for batch in context.batches if any(row.position < 15 for row in batch)]
    assert all(len({row.sequence for row in batch}) == 1 for batch in prefills)
    assert [batch[0].sequence for batch in prefills[:3]] != [prefills[0][0].sequence] * 3  # and the prompts take turns


def test_more_requests_than_places_wait_their_turn(make_engine: MakeEngine) -> None:
    engine = make_engine(max_sequences=2)
    runs = [start(engine, [65 + index], max_tokens=3) for index in range(7)]
    for index, (generation, reader) in enumerate(runs):
        assert reader.read(generation).reason == "length"
        assert reader.ids == [66 + index, 67 + index, 68 + index]
    assert max(row.sequence for batch in FakeContext.last.batches for row in batch) <= 1


def test_a_reader_that_stops_reading_is_parked_and_the_others_go_on(make_engine: MakeEngine) -> None:
    engine = make_engine(ring_tokens=4)
    slow, slow_reader = start(engine, "abc", max_tokens=40)
    assert slow_reader.woken.wait(10)
    quick = complete(engine, "lmn", max_tokens=30)
    assert quick.end is not None
    assert quick.end.reason == "length"
    pieces, end = slow.take()
    assert (len(pieces), end) == (4, None)  # the ring's size: it was not decoded beyond
    slow_reader.pieces += pieces
    assert slow_reader.read(slow).reason == "length"
    assert slow_reader.ids == [(ord("d") + index) % 256 for index in range(40)]


def test_one_wake_up_a_burst(make_engine: MakeEngine) -> None:
    engine = make_engine()
    lazy, lazy_reader = start(engine, "abc", max_tokens=50)
    complete(engine, "lmn", max_tokens=100)  # longer: the lazy one has ended by now
    assert lazy_reader.wakes == 1
    pieces, end = lazy.take()
    assert len(pieces) == 50
    assert end is not None
    assert lazy.take() == ([], end)


def test_cancelling_a_prefill_that_is_alone_aborts_the_decode(make_engine: MakeEngine) -> None:
    engine = make_engine()
    context = FakeContext.last
    context.hold()
    generation, reader = start(engine, "abcdefghij" * 5, max_tokens=5)
    assert context.entered.acquire(timeout=10)
    generation.cancel()
    assert reader.read(generation).reason == "cancelled"
    assert context.abort.times_set == 1
    assert not context.abort.is_set
    assert len(context.batches) == 1


def test_what_was_decoded_before_an_abort_is_reused(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=4)
    context = FakeContext.last
    context.hold()
    generation, reader = start(engine, "abcdefghij", max_tokens=5)
    assert context.entered.acquire(timeout=10)
    context.allow(2)
    assert context.entered.acquire(timeout=10)
    assert context.entered.acquire(timeout=10)
    generation.cancel()
    reader.read(generation)
    context.let_go()
    end = complete(engine, "abcdefghijk", max_tokens=1).end
    assert end is not None
    assert end.timings.reused_tokens == 8


def test_cancelling_one_of_two_writers_does_not_abort_the_other(make_engine: MakeEngine) -> None:
    engine = make_engine()
    context = FakeContext.last
    context.hold()
    loser, loser_reader = start(engine, "abc", max_tokens=20)
    winner, winner_reader = start(engine, "lmn", max_tokens=20)
    assert context.entered.acquire(timeout=10)
    while len({row.sequence for row in context.batches[-1]}) < 2:
        context.allow()
        assert context.entered.acquire(timeout=10)
    loser.cancel()
    context.let_go()
    assert loser_reader.read(loser).reason == "cancelled"
    assert winner_reader.read(winner).reason == "length"
    assert context.abort.times_set == 0


def test_cancelling_somebody_who_waits_needs_no_decode(make_engine: MakeEngine) -> None:
    engine = make_engine(max_sequences=1)
    context = FakeContext.last
    context.hold()
    first, first_reader = start(engine, "abc", max_tokens=2)
    assert context.entered.acquire(timeout=10)
    second, second_reader = start(engine, "xyz", max_tokens=2)
    second.cancel()
    second.cancel()
    context.let_go()
    assert second_reader.read(second).reason == "cancelled"
    assert first_reader.read(first).reason == "length"
    assert context.abort.times_set == 0
    assert all(row.token != ord("x") for batch in context.batches for row in batch)


def test_a_parked_sequence_can_be_cancelled(make_engine: MakeEngine) -> None:
    engine = make_engine(ring_tokens=2)
    generation, reader = start(engine, "abc", max_tokens=50)
    assert reader.woken.wait(10)
    generation.cancel()
    assert reader.read(generation).reason == "cancelled"


def test_a_failed_decode_ends_those_in_the_batch_and_nobody_else(make_engine: MakeEngine) -> None:
    engine = make_engine()
    FakeContext.last.statuses.extend([0, -3])
    reader = complete(engine, "abc", max_tokens=5)
    assert reader.end is not None
    assert reader.end.reason == "error"
    assert "got -3" in str(reader.end.error)
    assert complete(engine, "abc", max_tokens=2).text == "de"


def test_a_full_cache_forgets_idle_sequences_and_tries_again(make_engine: MakeEngine) -> None:
    engine = make_engine()
    complete(engine, "lmnop", max_tokens=2)
    FakeContext.last.statuses.append(NO_KV_SLOT)
    assert complete(engine, "abc", max_tokens=3).text == "def"
    assert FakeContext.last.kv[0] == [] or FakeContext.last.kv[1] == []


def test_a_cache_that_stays_full_is_an_error(make_engine: MakeEngine) -> None:
    engine = make_engine()
    FakeContext.last.statuses.append(NO_KV_SLOT)
    reader = complete(engine, "abc", max_tokens=3)
    assert reader.end is not None
    assert "the KV cache is full" in str(reader.end.error)


def test_a_stray_abort_is_tried_again(make_engine: MakeEngine) -> None:
    engine = make_engine()
    FakeContext.last.statuses.append(ABORTED)
    assert complete(engine, "abc", max_tokens=3).text == "def"


def test_the_thread_dying_ends_everybody_with_the_error(make_engine: MakeEngine) -> None:
    engine = make_engine(max_sequences=2)
    context = FakeContext.last
    context.hold()
    runs = [start(engine, prompt, max_tokens=9) for prompt in ("abc", "lmn", "tuv")]
    assert context.entered.acquire(timeout=10)
    context.statuses.append(MemoryError("no more"))
    context.let_go()
    for generation, reader in runs:
        end = reader.read(generation)
        assert end.reason == "error"
        assert isinstance(end.error, EngineError)
        assert "MemoryError: no more" in str(end.error)
    with pytest.raises(EngineError, match="failed: no more"):
        start(engine, "abc")
    engine.close()
    assert context.is_closed


def test_a_consumer_whose_wake_up_fails_loses_only_its_own_answer(make_engine: MakeEngine) -> None:
    engine = make_engine()

    def wake() -> None:
        raise RuntimeError("loop closed")

    ids = engine.tokenize("abc")
    generation = engine.submit(GenerationRequest(prompt_ids=ids, sampling=SamplingOptions(temperature=0, max_tokens=50)), wake)
    assert complete(engine, "lmn", max_tokens=60).text.startswith("opq")
    _, end = generation.take()
    assert end is not None
    assert end.reason == "cancelled"
    assert "loop closed" in str(end.error)


def test_closing_ends_what_runs_and_refuses_what_comes(make_engine: MakeEngine) -> None:
    engine = make_engine(max_sequences=1)
    context = FakeContext.last
    context.hold()
    runs = [start(engine, prompt, max_tokens=9) for prompt in ("abc", "lmn")]
    assert context.entered.acquire(timeout=10)
    engine.close()
    assert [reader.read(generation).reason for generation, reader in runs] == ["cancelled"] * 2
    assert context.is_closed
    with pytest.raises(EngineError, match="closed"):
        start(engine, "abc")
    engine.close()


def test_closing_from_a_wake_up_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    seen: list[BaseException] = []
    done = threading.Event()

    def wake() -> None:
        try:
            engine.close()
        except UsageError as exc:
            seen.append(exc)
        done.set()

    engine.submit(GenerationRequest(prompt_ids=[5], sampling=SamplingOptions(temperature=0, max_tokens=1)), wake)
    assert done.wait(10)
    assert "inside a wake-up" in str(seen[0])


def test_exact_mode_never_decodes_a_single_row(make_engine: MakeEngine) -> None:
    engine = make_engine(exact=True, prefill_chunk=4, max_sequences=2)
    reader = complete(engine, "abcde", max_tokens=4)
    assert reader.text == "fghi"
    assert [len(batch) for batch in FakeContext.last.batches] == [4, 2, 2, 2, 2]
    assert [row.sequence for row in FakeContext.last.batches[-1]] == [0, 1]
    assert FakeContext.last.kv[1] == []
    assert (FakeContext.last.sequences, FakeContext.last.unified) == (4, False)


def test_exact_mode_reads_prompts_in_small_chunks(make_engine: MakeEngine) -> None:
    complete(make_engine(exact=True, prefill_chunk=128), "x" * 100, max_tokens=1)
    assert [len(batch) for batch in FakeContext.last.batches] == [32, 32, 32, 4]


def test_in_exact_mode_every_sequence_has_a_neighbour_of_its_own(make_engine: MakeEngine) -> None:
    engine = make_engine(exact=True, max_sequences=3)
    context = FakeContext.last
    context.hold()
    runs = [start(engine, text, max_tokens=3) for text in ("ab", "mn", "tu")]
    context.let_go()
    assert [reader.read(generation).reason for generation, reader in runs] == ["length"] * 3
    assert {row.sequence for batch in context.batches for row in batch} == {0, 1, 2, 3, 4, 5}
    for batch in context.batches:
        assert len(batch) > 1
        if any(row.sequence % 2 for row in batch):
            assert [row.sequence + 1 for row in batch if not row.sequence % 2] == [row.sequence for row in batch if row.sequence % 2]
    assert all(not context.kv[sequence] for sequence in (1, 3, 5))


def test_it_follows_its_share_of_the_threads(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.engines.llama.budget", ThreadBudget(6))
    first = make_engine(threads=None)
    context = FakeContext.last
    complete(first, "abc", max_tokens=1)
    assert context.threads == 6
    second = make_engine(threads=None)
    complete(first, "abcd", max_tokens=1)
    assert context.threads == 3
    second.close()
    complete(first, "abcde", max_tokens=1)
    assert context.threads == 6


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "expected at least one token"),
        ([1, 256], "expected ids from 0 to 255, got 1 to 256"),
        ([-1], "expected ids from 0 to 255"),
        ([1] * 256, "expected at most 255 tokens .the context is 256., got 256"),
    ],
)
def test_prompts_that_cannot_be_are_refused_with_numbers(make_engine: MakeEngine, prompt: list[int], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        start(make_engine(), prompt)


def test_sampling_options_out_of_range_are_the_callers_fault(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="temperature: expected None or a number at least 0, got -1"):
        start(make_engine(), "abc", temperature=-1.0)


@pytest.mark.parametrize("name", ["context_tokens", "max_sequences", "prefill_chunk", "ring_tokens", "threads"])
def test_engine_options_out_of_range_are_refused(make_engine: MakeEngine, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected"):
        make_engine(**{name: 0})


def test_a_first_decode_that_fails_is_an_error_of_loading(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeContext, "decode", lambda _self: -1)
    with pytest.raises(EngineError, match=r"bytes.gguf: can't run: llama_decode: expected 0 from the first token, got -1"):
        make_engine()


def test_the_log_says_how_long_a_model_took_to_load(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks = iter((100.0, 101.5, 102.0))
    monkeypatch.setattr("streamco.engines.llama.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    with caplog.at_level(logging.INFO, "streamco.engine"):
        engine = make_engine()
    assert engine.load_seconds == 1.5
    assert caplog.messages == [f"{engine.info.name}: loaded in 1.50 s, ready after 2.00 s"]


def test_a_missing_library_names_the_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMCO_LLAMA_LIBRARY", raising=False)
    monkeypatch.setattr("streamco.engines.llamacpp.library._library", None)
    monkeypatch.setattr("streamco.engines.llamacpp.library.find_prebuilt", lambda: None)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(EngineError, match=r"pip install 'streamco\[prebuilt\]' .* pip install 'streamco\[llama\]'"):
        LlamaEngine("model.gguf")


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    with pytest.raises(EngineError, match=r"nowhere.gguf: expected a file that can be read, got No such file"):
        LlamaEngine(tmp_path / "nowhere.gguf", EngineOptions(threads=1))


def test_an_unexpected_error_of_one_request_ends_that_request_alone(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(max_sequences=2)
    draw = Sampler.draw

    def overflow(self: Sampler, logits: Any) -> int:
        if not self.is_greedy:
            raise OverflowError("too large")
        return draw(self, logits)

    monkeypatch.setattr(Sampler, "draw", overflow)
    context = FakeContext.last
    context.hold()
    bad, bad_reader = start(engine, "abc", max_tokens=9, temperature=1.0)
    good, good_reader = start(engine, "lmn", max_tokens=9)
    context.let_go()
    end = bad_reader.read(bad)
    assert isinstance(end.error, EngineError)
    assert "OverflowError: too large" in str(end.error)
    good_reader.read(good)
    assert good_reader.text == "opqrstuvw"
    assert complete(engine, "abc", max_tokens=3).text == "def"
    assert [record.name for record in caplog.records] == ["streamco.engine"]


def test_an_unexpected_error_of_one_task_ends_that_task_alone(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(held_sequences=1)

    def fail(_self: ExtensionTask, _context: int) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(ExtensionTask, "plan", fail)
    sequence = engine.hold()
    ended = threading.Event()
    task = sequence.extend([97], ended.set)
    assert ended.wait(10)
    _, end = task.take()
    assert end is not None
    assert "OverflowError" in str(end.error)
    assert complete(engine, "abc", max_tokens=3).text == "def"


@pytest.mark.parametrize("value", [1 << 31, 1 << 63, -2])
def test_a_top_k_that_no_leaf_can_take_is_refused_at_the_request(make_engine: MakeEngine, value: int) -> None:
    engine = make_engine()
    with pytest.raises(ConfigError, match="top_k: expected None or a number from -1"):
        start(engine, "abc", temperature=1.0, top_k=value)
    assert complete(engine, "abc", max_tokens=3).text == "def"


def test_a_ping_goes_through_the_engines_thread(make_engine: MakeEngine) -> None:
    engine = make_engine()
    threads: list[threading.Thread] = []
    pinged = threading.Event()

    def wake() -> None:
        threads.append(threading.current_thread())
        pinged.set()

    engine.ping(wake)
    assert pinged.wait(10)
    assert threads[0].name.startswith("streamco-")


def test_the_death_of_the_thread_is_logged_and_named_in_every_later_call(make_engine: MakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine()
    FakeContext.last.statuses.append(MemoryError("no more"))
    assert complete(engine, "abc").end.reason == "error"  # type: ignore[union-attr]
    with pytest.raises(EngineError, match="failed: no more"):
        engine.ping(lambda: None)
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


def test_imposed_times_are_the_row_costs_and_nothing_is_measured(make_engine: MakeEngine) -> None:
    engine = make_engine(lambda rows, prefill: 0.01 + 0.001 * (rows + prefill), held_sequences=2, measure_rows=True)
    assert engine.row_costs()[1] == pytest.approx(0.011)
    assert engine.row_costs()[32] == pytest.approx(0.042)
    assert len(engine.row_costs()) == 32


def test_row_costs_are_measured_only_if_they_are_asked_for(make_engine: MakeEngine) -> None:
    assert make_engine(held_sequences=2).row_costs() == {}
