"""How sure a model was: geometric means of the beginning and of the most doubtful sentence."""

from __future__ import annotations

import pytest

from streamco.core.confidence import BEGINNING, ConfidenceMeter, ends_sentence
from streamco.events import TokenConfidence


def found(meter: ConfidenceMeter) -> list[float | None]:
    confidence = meter.confidence
    assert confidence is not None
    return [confidence.tokens, confidence.beginning, confidence.worst_sentence]


def test_nothing_is_known_before_the_first_token() -> None:
    assert ConfidenceMeter().confidence is None


def test_the_beginning_is_that_of_the_first_tokens_alone() -> None:
    meter = ConfidenceMeter()
    meter.record([TokenConfidence(0.9, False), TokenConfidence(0.4, False)])
    assert found(meter) == [2, pytest.approx(0.6), None]
    meter.record([TokenConfidence(0.6, False)] * (BEGINNING - 2))
    meter.record([TokenConfidence(0.01, False)] * 40)
    assert found(meter) == [BEGINNING + 40, pytest.approx(0.6), None]


def test_a_doubtful_sentence_is_seen_once_it_has_ended() -> None:
    meter = ConfidenceMeter()
    meter.record([TokenConfidence(0.9, False), TokenConfidence(0.9, True), TokenConfidence(0.2, False)])
    assert found(meter)[2] == pytest.approx(0.9)
    meter.record([TokenConfidence(0.2, True), TokenConfidence(0.99, True)])
    assert found(meter)[2] == pytest.approx(0.2)


def test_a_probability_of_nothing_is_a_small_one() -> None:
    meter = ConfidenceMeter()
    meter.record([TokenConfidence(0.0, True)])
    assert found(meter) == [1, pytest.approx(1e-6), pytest.approx(1e-6)]


@pytest.mark.parametrize(
    ("text", "is_end"), [(".", True), ("end. ", True), ("line\n  ", True), ("了。", True), ("3.5", False), (" and", False)]
)
def test_sentences_and_lines_end_where_they_end(text: str, is_end: bool) -> None:
    assert ends_sentence(text) is is_end
