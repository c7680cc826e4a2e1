from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.llamacpp.grammar import MaskTokenizer, TokenGrammar
from streamco.engines.llamacpp.json_schema import grammar_of, schema_grammar
from streamco.errors import EngineError
from tests.engines.llamacpp.schemas import is_valid, schemas
from tests.engines.llamacpp.vocabularies import SmallVocabulary

OBJECT = str(grammar_of({"type": "json_object"}))
ENDINGS = (b'"', b"}", b"]", b'",', b"0", b"1")


def accept_all(vocabulary: SmallVocabulary, grammar: TokenGrammar, text: str) -> None:
    for token in vocabulary.ids_of(text):
        grammar.accept(token)


def write(vocabulary: SmallVocabulary, grammar: TokenGrammar, rng: Random, most: int) -> str | None:
    """Return what an adversary writes, which takes any token that is allowed, the rare ones too; None: it didn't come to an end."""
    data = b""
    for step in range(most):
        allowed = grammar.allowed()
        assert len(allowed), data
        if vocabulary.end in allowed and (rng.random() < 0.3 or len(allowed) == 1):
            return data.decode()
        tokens = [token for token in map(int, allowed) if token != vocabulary.end]
        closing = [token for token in tokens if vocabulary.token_bytes(token) in ENDINGS]
        token = rng.choice(closing if closing and rng.random() < step / most + 0.2 else tokens)
        grammar.accept(token)
        data += vocabulary.token_bytes(token)
    return None


@given(schemas(), st.integers(0, 2**32))
def test_what_is_written_to_its_end_parses_and_is_of_the_schema(vocabulary: SmallVocabulary, schema: dict[str, Any], seed: int) -> None:
    text = write(vocabulary, vocabulary.grammar(schema_grammar(schema)), Random(seed), 120)
    if text is not None:
        assert is_valid(json.loads(text), schema), text


@given(st.integers(0, 2**32))
def test_a_json_object_parses(vocabulary: SmallVocabulary, seed: int) -> None:
    text = write(vocabulary, vocabulary.grammar(OBJECT), Random(seed), 120)
    assert text is None or isinstance(json.loads(text), dict)


def test_control_tokens_and_bytes_that_are_no_text_never_fit(vocabulary: SmallVocabulary) -> None:
    grammar = vocabulary.grammar(OBJECT)
    accept_all(vocabulary, grammar, '{"a')
    wrong = [b'\xc3"', b'\xa9"', b"\xff", b"\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"a\x00", b"\n", b"\x7f", "€".encode()[1:]]
    tokens = [vocabulary.control, *map(vocabulary.id_of, wrong)]
    assert not grammar.fits(tokens).any()
    assert grammar.fits([vocabulary.id_of(b"a\xc3"), vocabulary.id_of("😀".encode()[:3]), vocabulary.id_of("é".encode())]).all()


def test_a_cut_character_is_ended_before_anything_else_comes(vocabulary: SmallVocabulary) -> None:
    grammar = vocabulary.grammar(OBJECT)
    accept_all(vocabulary, grammar, '{"')
    grammar.accept(vocabulary.id_of("€".encode()[:2]))
    allowed = [vocabulary.token_bytes(token) for token in grammar.allowed()]
    assert sorted(allowed) == sorted([*(bytes([byte]) for byte in range(0x80, 0xC0)), b'\xa9"'])
    assert not grammar.fits([vocabulary.id_of(b'"'), vocabulary.end]).any()
    grammar.accept(vocabulary.id_of(b"\xac"))
    assert grammar.fits([vocabulary.id_of(b'"')])[0]


def test_at_the_end_only_the_end_token_fits(vocabulary: SmallVocabulary) -> None:
    grammar = vocabulary.grammar(OBJECT)
    for token in vocabulary.ids_of('{"a": {}'):
        assert not grammar.fits([vocabulary.end])[0]
        assert not grammar.is_over
        grammar.accept(token)
    grammar.accept(vocabulary.id_of(b"}"))
    assert grammar.is_over
    assert grammar.allowed().tolist() == [vocabulary.end]


def test_a_number_may_end_but_is_not_over(vocabulary: SmallVocabulary) -> None:
    grammar = vocabulary.grammar(schema_grammar({"type": "integer"}))
    accept_all(vocabulary, grammar, "12")
    assert grammar.fits([vocabulary.end])[0]
    assert not grammar.is_over


def test_an_answer_goes_on_after_its_beginning(vocabulary: SmallVocabulary) -> None:
    grammar = vocabulary.grammar(OBJECT, '{"é": [1, "x'.encode())
    assert grammar.fits([vocabulary.id_of(b'"')])[0]
    with pytest.raises(EngineError, match="expected an answer that begins as asked for, got 'H' at its byte 1"):
        vocabulary.grammar(OBJECT, b"Here")


def test_a_token_that_does_not_fit_ends_an_answer_and_not_the_process(vocabulary: SmallVocabulary) -> None:
    grammar = vocabulary.grammar(OBJECT)
    with pytest.raises(AssertionError, match="was not checked"):
        grammar.accept(vocabulary.id_of(b"}"))
    with pytest.raises(AssertionError, match="was not checked"):
        grammar.accept(vocabulary.end)


def test_the_bytes_of_a_vocabulary_are_read_once(vocabulary: SmallVocabulary) -> None:
    found = [MaskTokenizer.of(vocabulary.library, vocabulary.vocab, vocabulary) for _ in range(2)]
    assert found[0] is found[1]
