"""What stream parsers share: limits, failures with the text so far, and an end after which nothing counts."""

from __future__ import annotations

from streamco.config import Limits
from streamco.errors import EndpointProtocolError
from streamco.openai_types import ChatCompletionChunk
from streamco.wire.answer_parser import AnswerParser


class Letters(AnswerParser):
    """Each byte is a chunk; "!" is a failure, "." the end."""

    def _take(self, data: bytes, chunks: list[ChatCompletionChunk]) -> None:
        for letter in data.decode():
            if letter == "!":
                raise EndpointProtocolError("expected a letter, got !")
            self.is_done = letter == "."
            self._text.append(letter)
            chunks.append(ChatCompletionChunk())


def test_a_failure_keeps_the_chunks_and_the_text_before_it_and_nothing_comes_after() -> None:
    parser = Letters(endpoint="it", limits=Limits())
    assert len(parser.feed(b"ab!c")) == 2
    assert parser.error is not None
    assert (parser.error.endpoint, parser.error.partial) == ("it", "ab")
    assert parser.feed(b"d") == []
    assert parser.partial_text() == "ab"


def test_bytes_after_the_end_mean_nothing() -> None:
    parser = Letters(endpoint="", limits=Limits())
    assert len(parser.feed(b"a.")) == 2
    assert parser.feed(b"!") == []
    assert parser.error is None


def test_a_longer_answer_than_allowed_fails_without_being_read() -> None:
    parser = Letters(endpoint="", limits=Limits(answer_bytes=3))
    assert len(parser.feed(b"abc")) == 3
    assert parser.feed(b"d") == []
    assert "expected an answer of at most 3 bytes, got more" in str(parser.error)
