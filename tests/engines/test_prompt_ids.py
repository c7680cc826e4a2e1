"""What stands before an answer: the begin token once, an answer's beginning with its own tokens, code points that are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.prompt_ids import answer_ids, pending_bytes, prompt_ids
from streamco.testing import FakeEngine


class Bytes(FakeEngine):
    """A vocabulary of bytes, with 256 as begin token, as "<s>" and as a control token without text.

    Args:
        dummy: begin every text with a space, as SentencePiece does.
    """

    def __init__(self, *, dummy: bool = False) -> None:
        super().__init__()
        self.dummy = dummy

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        shown = f" {text}" if self.dummy and text else text
        parts = shown.split("<s>") if special else [shown]
        ids = [256] if bos else []
        for number, part in enumerate(parts):
            ids += [256] * (number > 0) + list(part.encode("utf-8", "surrogatepass"))
        return ids

    def detokenize(self, ids: object) -> bytes:
        assert isinstance(ids, list)
        return bytes(each for each in ids if each < 256)


def test_a_begin_token_comes_once() -> None:
    engine = Bytes()
    assert prompt_ids(engine, "A", special=True) == [256, 65]
    assert prompt_ids(engine, "<s>A", special=True) == [256, 65]
    plain = FakeEngine()
    assert prompt_ids(plain, "Hello", special=True) == plain.tokenize("Hello")


def test_a_plain_text_has_no_control_tokens() -> None:
    assert prompt_ids(Bytes(), "<s>A") == [256, *b"<s>A"]


@pytest.mark.parametrize("dummy", [False, True])
@pytest.mark.parametrize("text", ["Hello", " Hello", "", "\n", "\nx", "  x ", "é🐈"])
def test_the_tokens_of_a_beginning_are_its_text_and_no_more(text: str, dummy: bool) -> None:
    engine = Bytes(dummy=dummy)
    assert engine.detokenize(answer_ids(engine, text)) == text.encode()


def test_control_tokens_in_an_answer_are_text_unless_they_are_wanted() -> None:
    engine = Bytes()
    assert answer_ids(engine, "<s>a") == list(b"<s>a")
    assert answer_ids(engine, "<s>a", special=True) == [256, 97]


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b"", b""),
        (b"a", b""),
        ("é".encode(), b""),
        ("é".encode()[:1], b"\xc3"),
        (b"a" + "€".encode()[:1], b"\xe2"),
        (b"a" + "€".encode()[:2], b"\xe2\x82"),
        (b"a" + "€".encode(), b""),
        ("🐈".encode()[:3], b"\xf0\x9f\x90"),
        ("🐈".encode(), b""),
        (b"\x80\x80\x80\x80", b""),
        (b"\xff\x80", b"\xff\x80"),
    ],
)
def test_the_beginning_of_a_code_point_is_found_at_the_end(data: bytes, left: bytes) -> None:
    assert pending_bytes(Bytes(), list(data)) == left
    assert pending_bytes(Bytes(), [256, *data]) == left


@given(st.text(max_size=12), st.integers(0, 50))
def test_what_is_found_and_what_is_left_are_whole_together(text: str, place: int) -> None:
    data = text.encode()
    cut = place % (len(data) + 1)
    left = pending_bytes(Bytes(), list(data[:cut]))
    assert (left + data[cut:]).decode()[:1] == text[len(data[: cut - len(left)].decode()) :][:1]
    data[: cut - len(left)].decode()  # raises where it isn't whole


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    engine = LlamaEngine(packaged_model(), EngineOptions(threads=1, context_tokens=128, max_sequences=1))
    yield engine
    engine.close()


@pytest.mark.model
@pytest.mark.parametrize("text", ["Hello", " Hello", "\n\nHello", "日本語 🐈‍⬛", "a  b", "<|im_end|>", "e\u0301"])
def test_a_real_vocabulary_gives_the_text_back(engine: LlamaEngine, text: str) -> None:
    assert engine.detokenize(answer_ids(engine, text)).decode() == text


@pytest.mark.model
def test_a_real_code_point_is_cut_between_its_tokens(engine: LlamaEngine) -> None:
    ids = engine.tokenize("🦎")
    assert len(ids) > 1
    for cut in range(1, len(ids)):
        assert pending_bytes(engine, ids[:cut]) == engine.detokenize(ids[:cut])
    assert pending_bytes(engine, ids) == b""
