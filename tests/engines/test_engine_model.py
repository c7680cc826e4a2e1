"""The engine on a real model: the answers are llama.cpp's, whatever else runs beside them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from tests.engines.fakes import complete, start

pytestmark = pytest.mark.model


def chat(engine: LlamaEngine, question: str) -> list[int]:
    return engine.tokenize(engine.apply_template([{"role": "user", "content": question}]), special=True)


def reference(model: LlamaModel, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding with nothing but llama_decode."""
    context = LlamaContext(model, cells=512, sequences=1, rows=512, threads=1)
    row = context.add_run(prompt, 0, 0, wants_logits=True)
    ids: list[int] = []
    for position in range(len(prompt), len(prompt) + count):
        assert context.decode() == 0
        ids.append(int(context.logits(row).argmax()))
        row = context.add(ids[-1], position, 0, wants_logits=True)
    context.close()
    return ids


def test_a_greedy_answer_is_what_plain_decoding_gives(engine: LlamaEngine) -> None:
    prompt = chat(engine, "What is the boiling point of water?")
    reader = complete(engine, prompt, max_tokens=24, ignore_eos=True)
    assert reader.ids == reference(engine._model, prompt, 24)
    assert reader.text.encode() == engine.detokenize(reader.ids)


def test_every_piece_is_what_its_ids_decode_to(engine: LlamaEngine) -> None:
    reader = complete(
        engine, chat(engine, "Answer with ten different emoji and Chinese characters: 🐈🐕🦊"), max_tokens=40, ignore_eos=True
    )
    for piece in reader.pieces[:-1]:
        assert piece.text.encode() == engine.detokenize(piece.ids)
    assert any(len(piece.ids) > 1 for piece in reader.pieces) or reader.text.isascii()


def test_the_same_seed_gives_the_same_answer(engine: LlamaEngine) -> None:
    prompt = chat(engine, "Tell me a story.")
    complete(engine, prompt, prefill_only=True)  # so that all three find the same cells
    answers = [complete(engine, prompt, temperature=1.0, seed=seed, max_tokens=16).ids for seed in (5, 5, 6)]
    assert answers[0] == answers[1] != answers[2]


def test_an_answer_ends_at_the_end_token(engine: LlamaEngine) -> None:
    reader = complete(engine, chat(engine, "Say only the word yes."), max_tokens=200)
    assert reader.end is not None
    assert reader.end.reason in {"stop", "length"}
    assert not set(reader.ids) & engine._model.end_ids


def test_a_second_turn_reuses_the_first(engine: LlamaEngine) -> None:
    first = [{"role": "user", "content": "Name a colour."}]
    prompt = engine.tokenize(engine.apply_template(first), special=True)
    answer = complete(engine, prompt, max_tokens=8)
    turns = [*first, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "Another."}]
    second = complete(engine, engine.tokenize(engine.apply_template(turns), special=True), max_tokens=4)
    assert second.end is not None
    assert second.end.timings.reused_tokens >= len(prompt)


def test_reuse_does_not_change_the_answer(engine: LlamaEngine) -> None:
    prompt = chat(engine, "Why is the sky blue?")
    fresh = reference(engine._model, prompt, 12)
    for _ in range(2):
        assert complete(engine, prompt, max_tokens=12, ignore_eos=True).ids == fresh


@pytest.mark.long
def test_several_answers_at_once_are_those_of_one_at_a_time() -> None:
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=256, exact=True))
    prompts = [chat(engine, f"What is {thing}?") for thing in ("rain", "a lighthouse", "bread", "the number nine")]
    alone = [complete(engine, prompt, max_tokens=10, ignore_eos=True).ids for prompt in prompts]
    runs = [start(engine, prompt, max_tokens=10, ignore_eos=True) for prompt in prompts]
    for generation, reader in runs:
        reader.read(generation)
    engine.close()
    assert [reader.ids for _, reader in runs] == alone


@pytest.mark.long
def test_a_cancelled_prefill_leaves_a_working_cache(engine: LlamaEngine) -> None:
    prompt = [1000 + 7 * index for index in range(400)]
    for _ in range(3):
        generation, reader = start(engine, prompt, max_tokens=4)
        generation.cancel()
        assert reader.read(generation).reason == "cancelled"
    assert complete(engine, prompt, max_tokens=4, ignore_eos=True).ids == reference(engine._model, prompt, 4)


def test_a_paused_answer_stands_still_and_goes_on_as_if_nothing_had_been(engine: LlamaEngine) -> None:
    prompt = chat(engine, "Why is the sea salty?")
    whole = complete(engine, prompt, max_tokens=24, ignore_eos=True).ids
    generation, reader = start(engine, prompt, max_tokens=24, ignore_eos=True)
    assert reader.woken.wait(30)
    generation.pause()
    complete(engine, chat(engine, "Say yes."), max_tokens=4)  # the engine has had time for a token of each, and works for others
    pieces, end = generation.take()
    before = sum(len(piece.ids) for piece in pieces)
    assert end is None
    complete(engine, chat(engine, "Say no."), max_tokens=8)
    assert generation.take() == ([], None)
    assert before < 24
    generation.resume()
    reader.pieces += pieces
    reader.read(generation)
    assert reader.ids == whole


def test_a_paused_answer_goes_on_if_another_one_waits_for_its_place() -> None:
    engine = LlamaEngine(packaged_model(), EngineOptions(context_tokens=256, threads=1, max_sequences=1))
    try:
        prompt = chat(engine, "Why is the sea salty?")
        whole = complete(engine, prompt, max_tokens=24, ignore_eos=True).ids
        generation, reader = start(engine, prompt, max_tokens=24, ignore_eos=True)
        assert reader.woken.wait(30)
        generation.pause()
        assert len(complete(engine, chat(engine, "Say yes."), max_tokens=2, ignore_eos=True).ids) == 2
        reader.read(generation)
        assert reader.ids == whole
    finally:
        engine.close()


def test_the_likeliest_tokens_have_probabilities_in_order(engine: LlamaEngine) -> None:
    reader = complete(engine, chat(engine, "Count to five."), max_tokens=5, top=8)
    for piece in reader.pieces:
        for token, top in zip(piece.ids, piece.tops or (), strict=True):
            assert top[0][0] == token  # greedy
            assert all(first[1] >= second[1] for first, second in pairwise(top))
            assert 0 < sum(share for _, share in top) <= 1.0 + 1e-6


def test_each_token_of_a_character_has_its_own_probability_also_at_the_end(engine: LlamaEngine) -> None:
    begun = [*chat(engine, "Draw a fox: 🦊"), *engine.tokenize("🦊🦊🦊🦊🦊🦊🦊🦊")]
    for max_tokens in (1, 2, 3, 6):
        reader = complete(engine, begun, max_tokens=max_tokens, top=3)
        tables = [(token, top) for piece in reader.pieces for token, top in zip(piece.ids, piece.tops or (), strict=True)]
        assert len(tables) == len(reader.ids) == max_tokens
        assert all(top[0][0] == token for token, top in tables), "greedy"
    assert any(len(piece.ids) > 1 for piece in reader.pieces)


def test_nothing_is_printed(engine: LlamaEngine, capfd: pytest.CaptureFixture[str]) -> None:
    complete(engine, chat(engine, "Hello"), max_tokens=3)
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_in_exact_mode_nothing_that_ran_before_or_runs_beside_changes_a_bit() -> None:
    """Prefilled or decoded, alone or not, behind what others left in the cache: the same ids have the same probabilities."""
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=256, max_sequences=2, exact=True))
    prompt = chat(engine, "Tell me about lighthouses. " * 12)
    assert len(prompt) > 64  # from where llama.cpp would prefill by another kernel
    whole = complete(engine, prompt, max_tokens=12, top=20, ignore_eos=True)
    for cut, noise in ((1, 5), (6, 90), (11, 170)):
        complete(engine, chat(engine, "Noise. " * noise)[:200], max_tokens=3)
        beside, reader = start(engine, chat(engine, f"Beside {noise}."), max_tokens=9, ignore_eos=True)
        rest = complete(engine, [*prompt, *whole.ids[:cut]], max_tokens=12 - cut, top=20, ignore_eos=True)
        reader.read(beside)
        assert rest.ids == whole.ids[cut:]
        assert [piece.tops for piece in rest.pieces][-1] == [piece.tops for piece in whole.pieces][-1]
    engine.close()
