"""Reasoning is told from content wherever tokens cut the tags, and nothing of an answer is lost on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from streamco.engines.base import EngineOptions, TextPiece
from streamco.engines.llamacpp.reasoning import ReasoningSplitter, closed_prompt, has_reasoning, opens_reasoning, splits_reasoning
from streamco.errors import ConfigError
from streamco.testing.engine import FakeEngine
from tests.engines.llamacpp.small_models import write_model
from tests.engines.llamacpp.vocabularies import CONTROL

CASES = [  # open by the prompt, what the model writes, reasoning, content
    (False, "<think>\nSo.\n</think>\n\nYes.", "So.", "Yes."),
    (False, " \n<think>a  b</think>c </think> d", "a  b", "c </think> d"),
    (False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    (False, "<think></think>", "", ""),
    (False, "Yes, <think> is a tag </think>.", "", "Yes, <think> is a tag </think>."),
    (False, "  Yes.\n", "", "  Yes.\n"),
    (False, "<thin air>", "", "<thin air>"),
    (False, "<thi", "", "<thi"),
    (False, " \n", "", " \n"),
    (False, "<think>it </ends\n", "it </ends\n", ""),
    (False, "<think>it </thin", "it </thin", ""),
    (False, "<think>a</thing></think>b", "a</thing>", "b"),
    (True, "\nSo. \n </think>\nYes.", "So.", "Yes."),
    (True, "<think>\nSo.</think>Yes. ", "So.", "Yes. "),
    (True, "</think>Yes.", "", "Yes."),
    (True, "<so it goes", "<so it goes", ""),
    (True, "So <think> on</think>", "So <think> on", ""),
]


def pieces_of(text: str, cuts: Sequence[int]) -> list[TextPiece]:
    ends = [0, *cuts, len(text)]
    return [TextPiece(text[start:end], (number,)) for number, (start, end) in enumerate(pairwise(ends))]


def split(pieces: Sequence[TextPiece], *, is_open: bool) -> list[TextPiece]:
    """The pieces of one answer, each given by itself."""
    splitter = ReasoningSplitter(is_open=is_open)
    return [each for piece in pieces for each in splitter.split([piece])] + splitter.flush()


def texts(pieces: Sequence[TextPiece]) -> tuple[str, str]:
    return tuple("".join(piece.text for piece in pieces if piece.is_reasoning is kind) for kind in (True, False))  # type: ignore[return-value]


@pytest.mark.parametrize(("is_open", "text", "reasoning", "content"), CASES)
def test_every_cut_gives_the_same_parts(is_open: bool, text: str, reasoning: str, content: str) -> None:
    places = range(1, len(text))
    every = [(), tuple(places), *((place,) for place in places), *combinations(places, 2)]
    for cuts in every:
        pieces = pieces_of(text, cuts)
        made = split(pieces, is_open=is_open)
        assert texts(made) == (reasoning, content), cuts
        assert [token for piece in made for token in piece.ids] == list(range(len(pieces))), "each id once, and in order"
        at_once = ReasoningSplitter(is_open=is_open)
        assert texts(at_once.split(pieces) + at_once.flush()) == (reasoning, content)


def test_ids_of_content_decode_to_its_text_or_are_none() -> None:
    rng = random.Random(8)
    for _ in range(3000):
        is_open, text, _, content = rng.choice(CASES)
        pieces = pieces_of(text, sorted(rng.sample(range(1, len(text)), rng.randrange(len(text)))))
        for piece in split(pieces, is_open=is_open):
            if not piece.is_reasoning and piece.ids:
                assert piece.text == "".join(pieces[token].text for token in piece.ids)
        assert content in text


def test_text_is_held_back_only_while_it_may_be_a_tag() -> None:
    splitter = ReasoningSplitter(is_open=False)
    seen = [[each.text for each in splitter.split([TextPiece(text, (1,))])] for text in ("<think>", "\nI", " see", " <", "3")]
    assert seen == [[""], ["", "I"], [" see"], [], [" <", "3"]]
    plain = ReasoningSplitter(is_open=False)
    assert [piece.text for piece in plain.split([TextPiece("Yes", (1,)), TextPiece(" <think>", (2,))])] == ["Yes", " <think>"]


def test_probabilities_and_cuts_by_stop_strings_stay_with_their_pieces() -> None:
    top = ((7, -0.5),)
    given = [
        TextPiece("<think>", (1,), (top,)),
        TextPiece("a", (2,), (top,)),
        TextPiece("</think>b", (3,), (top,)),
        TextPiece("c", (4,), (top,), is_cut=True),
    ]
    made = split(given, is_open=False)
    assert [(each.text, each.ids, each.tops, each.is_cut) for each in made] == [
        ("", (1,), (top,), False),
        ("a", (2,), (top,), False),
        ("", (3,), (top,), False),
        ("b", (), None, False),
        ("c", (4,), (top,), True),
    ]
    (last,) = split([TextPiece("so", (1,), is_cut=True)], is_open=True)
    assert (last.is_cut, last.is_reasoning) == (True, True)


@pytest.mark.parametrize(
    ("name", "template", "expected"),
    [
        ("SmolLM2 135M Instruct", "{{ messages }}", False),
        ("Qwen3 0.6B", "{% set content = content.split('</think>')[-1] %}", True),
        ("DeepSeek R1 Distill Qwen 1.5B", "{{ messages }}", True),
        ("deepseek-r1", "", True),
        ("QwQ 32B", "", True),
        ("SmolLM3-3B-Thinking", "", True),
        ("some_reasoning_model", "", True),
        ("Unthinkable 1B", "", False),
        ("Rethinker", "", False),
        ("", "", False),
    ],
)
def test_the_template_or_the_name_says_that_a_model_thinks(name: str, template: str, expected: bool) -> None:
    assert has_reasoning(name, template) is expected
    assert [splits_reasoning(form, has_reasoning=expected) for form in ("auto", "none", "deepseek")] == [expected, False, True]


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"reasoning_format: expected auto, none or deepseek, got 'no'"):
        EngineOptions(reasoning_format="no")  # type: ignore[arg-type]


def test_a_prompt_that_opens_reasoning_is_closed_for_content() -> None:
    engine = FakeEngine()
    open_ids, plain_ids = engine.tokenize("user: Hi assistant: <think>\n"), engine.tokenize("user: <think> assistant:")
    assert not opens_reasoning(engine, open_ids), "of a model that doesn't think"
    engine.info = replace(engine.info, has_reasoning=True)
    assert opens_reasoning(engine, open_ids)
    assert not opens_reasoning(engine, plain_ids)
    closed = closed_prompt(engine, open_ids)
    assert engine.detokenize(closed) == b"user: Hi assistant: <think>\n\n</think>\n\n"
    assert closed_prompt(engine, closed) == closed
    assert closed_prompt(engine, plain_ids) == plain_ids


def test_a_tag_before_a_control_token_is_one_that_the_user_wrote() -> None:
    engine = FakeEngine()
    engine.info = replace(engine.info, has_reasoning=True)
    said = engine.tokenize("user: What does this mean: <think>")
    assert opens_reasoning(engine, said)
    assert not opens_reasoning(engine, [*said, engine.end_id])
    assert not opens_reasoning(engine, [*said, engine.end_id, *engine.tokenize("\n"), engine.end_id])
    assert opens_reasoning(engine, [*said, engine.end_id, *engine.tokenize("<think>\n")])


# Model files

THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{# </think> #}"
    "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
)
Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path) -> Any:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    from streamco.engines.llamacpp.model import LlamaModel

    loaded: list[Any] = []

    def load(metadata: dict[str, Any] | None = None) -> Any:
        loaded.append(LlamaModel(write_model(tmp_path / f"model{len(loaded)}.gguf", metadata), repack=False))
        return loaded[-1]

    yield load
    for model in loaded:
        model.close()


def test_a_model_file_says_whether_it_thinks(load: Load) -> None:
    assert load({"tokenizer.chat_template": THINKING}).info.has_reasoning
    assert load({"general.name": "small R1: deepseek-r1"}).info.has_reasoning
    assert not load({"tokenizer.chat_template": "{{ messages[0].content }}"}).info.has_reasoning


def test_tags_that_a_file_calls_control_tokens_are_text(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().token_bytes(303) == b""
    monkeypatch.setattr("streamco.engines.llamacpp.model.TAGS", (CONTROL, "</think>"))
    model = load()
    assert model.detokenize([*b"a", 303, 304, *b"b"]) == b"a" + CONTROL.encode() + b"b"
    assert model.tokenize(CONTROL, special=True) == [303]


@pytest.mark.parametrize(("form", "expected"), [("auto", True), ("none", False), ("deepseek", True)])
def test_the_engines_option_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any, expected: bool) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    from streamco.engines.llama import LlamaEngine

    monkeypatch.setattr("streamco.engines.llamacpp.model.choose_repacking", lambda path, library: False)
    path = write_model(tmp_path / "model.gguf", {"tokenizer.chat_template": THINKING})
    engine = LlamaEngine(path, EngineOptions(context_tokens=128, threads=1, reasoning_format=form))
    try:
        assert engine.info.has_reasoning is expected
        ids = engine.tokenize(engine.apply_template([{"role": "user", "content": "Hi"}]), special=True)
        assert opens_reasoning(engine, ids) is expected
    finally:
        engine.close()
