"""The scripted engine keeps the contract of engines, in each of its modes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.config import SamplingOptions
from streamco.engines.base import Engine, GenerationEnd, GenerationRequest, TextPiece
from streamco.errors import ConfigError, EngineError
from streamco.testing.engine import FakeEngine, FakeVocabulary


class Reader:
    def __init__(self) -> None:
        self.woken = threading.Event()
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1
        self.woken.set()


def request(engine: FakeEngine, text: str = "a prompt", max_tokens: int | None = None, **options: bool | int) -> GenerationRequest:
    return GenerationRequest(prompt_ids=engine.tokenize(text), sampling=SamplingOptions(max_tokens=max_tokens), **options)  # type: ignore[arg-type]


def read(engine: FakeEngine, wanted: GenerationRequest) -> tuple[list[TextPiece], GenerationEnd]:
    reader = Reader()
    generation = engine.submit(wanted, reader.wake)
    pieces: list[TextPiece] = []
    while True:
        assert reader.woken.wait(30)
        reader.woken.clear()
        taken, end = generation.take()
        pieces += taken
        if end is not None:
            return pieces, end


def text_of(pieces: list[TextPiece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_it_is_an_engine() -> None:
    engine: Engine = FakeEngine()
    assert engine.info.context_tokens == 2048


@pytest.mark.parametrize("mode", ["instant", "thread"])
def test_a_script_is_said_word_by_word(mode: Any) -> None:
    engine = FakeEngine("one two  three\n", mode=mode)
    pieces, end = read(engine, request(engine))
    assert [piece.text for piece in pieces] == ["one", " two", "  three", "\n"]
    assert engine.detokenize([token for piece in pieces for token in piece.ids]) == b"one two  three\n"
    assert (end.reason, end.timings.completion_tokens, end.timings.prompt_tokens) == ("stop", 4, 2)


def test_pieces_and_functions_are_scripts_too() -> None:
    engine = FakeEngine(["A", "é", ""])
    assert [piece.text for piece in read(engine, request(engine))[0]] == ["A", "é", ""]
    engine = FakeEngine(lambda wanted: [str(len(wanted.prompt_ids))])
    assert text_of(read(engine, request(engine, "one two three"))[0]) == "3"


def test_max_tokens_ends_with_length() -> None:
    engine = FakeEngine("one two three")
    pieces, end = read(engine, request(engine, max_tokens=2))
    assert (text_of(pieces), end.reason) == ("one two", "length")


def test_a_scripted_failure_comes_after_its_tokens() -> None:
    engine = FakeEngine("one two three", fail_after=2)
    pieces, end = read(engine, request(engine))
    assert (text_of(pieces), end.reason) == ("one two", "error")
    assert isinstance(end.error, EngineError)


def test_prefill_only_says_nothing() -> None:
    engine = FakeEngine("one two")
    pieces, end = read(engine, request(engine, prefill_only=True))
    assert (pieces, end.reason) == ([], "length")


@pytest.mark.parametrize("mode", ["instant", "thread"])
def test_a_prompt_that_was_only_read_is_found_again(mode: Any) -> None:
    engine = FakeEngine("one two", mode=mode, prefill_s=0.001, context_tokens=4)
    _, first = read(engine, request(engine, "a b c d", prefill_only=True))
    assert (first.timings.prompt_tokens, first.timings.reused_tokens, first.timings.completion_tokens) == (4, 0, 0)
    _, again = read(engine, request(engine, "a b c d", prefill_only=True))
    assert again.timings.reused_tokens == 3
    _, answer = read(engine, request(engine, "a b x", max_tokens=1))
    assert answer.timings.reused_tokens == 2
    assert answer.timings.prefill_s == pytest.approx(0.001)
    with pytest.raises(EngineError, match="at most 4 tokens"):
        engine.submit(request(engine, "a b c d e", prefill_only=True), lambda: None)


def test_a_cancelled_prefill_keeps_nothing() -> None:
    engine = FakeEngine(mode="manual")
    engine.submit(request(engine, prefill_only=True), lambda: None).cancel()
    assert engine.kept == []


def test_the_likeliest_token_is_the_scripted_one() -> None:
    engine = FakeEngine("one")
    pieces, _ = read(engine, request(engine, top=3))
    assert pieces[0].tops == (((pieces[0].ids[0], 1.0),),)


def test_manual_steps_write_when_asked_and_wake_once_a_burst() -> None:
    engine = FakeEngine("one two three", mode="manual")
    reader = Reader()
    generation = engine.submit(request(engine), reader.wake)
    assert generation.take() == ([], None)
    engine.step(2)
    assert reader.wakes == 1
    assert text_of(generation.take()[0]) == "one two"
    engine.step()
    pieces, end = generation.take()
    assert text_of(pieces) == " three"
    assert end is not None
    assert reader.wakes == 2


@pytest.mark.parametrize("mode", ["instant", "thread", "manual"])
def test_cancelling_ends_it(mode: Any) -> None:
    engine = FakeEngine("word " * 50, mode=mode, token_s=10.0, ring_tokens=4)
    reader = Reader()
    generation = engine.submit(request(engine), reader.wake)
    generation.cancel()
    generation.cancel()
    end = None
    while end is None:
        assert reader.woken.wait(30)
        reader.woken.clear()
        _, end = generation.take()
    assert end.reason == "cancelled"


@pytest.mark.parametrize("mode", ["instant", "thread"])
def test_a_full_ring_waits_for_the_reader(mode: Any) -> None:
    engine = FakeEngine("word " * 40, mode=mode, ring_tokens=3)
    reader = Reader()
    generation = engine.submit(request(engine), reader.wake)
    sizes = []
    end = None
    while end is None:
        assert reader.woken.wait(30)
        reader.woken.clear()
        pieces, end = generation.take()
        sizes.append(len(pieces))
    assert max(sizes) <= 3
    assert sum(sizes) == 41


def test_engines_share_their_words_unless_they_have_others() -> None:
    first, second = FakeEngine(), FakeEngine()
    assert second.detokenize(first.tokenize("same words here")) == b"same words here"
    assert first.info.vocabulary == second.info.vocabulary
    other = FakeEngine(vocabulary=FakeVocabulary("other"))
    assert other.info.vocabulary != first.info.vocabulary


@given(st.text(max_size=60))
def test_any_text_comes_back_from_its_words(text: str) -> None:
    vocabulary = FakeVocabulary()
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_a_vocabulary_is_finite_and_knows_its_ids() -> None:
    vocabulary = FakeVocabulary(size=2)
    vocabulary.encode("a b")
    with pytest.raises(EngineError, match="the limit is 2 different words"):
        vocabulary.encode("c")
    with pytest.raises(EngineError, match="expected ids below 2, got 5"):
        vocabulary.decode([1, 5])


def test_the_template_joins_messages_and_their_parts() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    assert FakeEngine().apply_template(messages) == "system: be kind\nuser: hi\nassistant:"
    assert FakeEngine().apply_template(messages, add_generation_prompt=False) == "system: be kind\nuser: hi\n"


def test_it_refuses_what_an_engine_refuses() -> None:
    engine = FakeEngine(context_tokens=3)
    with pytest.raises(EngineError, match="at least one token"):
        engine.submit(GenerationRequest(prompt_ids=[]), lambda: None)
    with pytest.raises(EngineError, match=r"expected at most 2 tokens \(the context is 3\), got 3"):
        engine.submit(request(engine, "one two three"), lambda: None)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.submit(request(engine), lambda: None)
    with pytest.raises(ConfigError, match="mode: expected instant, thread or manual"):
        FakeEngine(mode="later")  # type: ignore[arg-type]


def test_closing_cancels_what_runs() -> None:
    engine = FakeEngine("word " * 50, mode="thread", token_s=10.0)
    generation = engine.submit(request(engine), lambda: None)
    engine.close()
    engine.close()
    _, end = generation.take()
    assert end is not None
    assert end.reason == "cancelled"
