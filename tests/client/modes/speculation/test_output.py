"""A speculated answer at its reader: chunks, pace and measure."""

from __future__ import annotations

import itertools

import pytest

from streamco.client.driver import Batch, SpeculatedChunk
from streamco.client.modes.speculation.incremental_text import IncrementalText
from streamco.client.modes.speculation.output import SpeculativeOutput
from streamco.config import ReaderPace
from streamco.core.delivery import Delivery
from streamco.core.speculation.events import CommitIds, DeliverIds, RetractIds
from streamco.events import Origin

NAMES: dict[Origin, str] = {"draft": "small", "accepted": "small", "device": "small"}
NAMES |= {"corrected": "large", "bonus": "large", "remote": "large"}


def presentation(*, pace: ReaderPace = None, stops: tuple[str, ...] = ()) -> SpeculativeOutput:
    wording = IncrementalText(lambda token: f"w{token} ".encode(), stops)
    return SpeculativeOutput(wording, Delivery(pace, 10.0), NAMES, number="7", model="large-model")


def texts(batches: list[Batch]) -> list[tuple[str, str]]:
    return [(source, choice.delta.content or "") for source, chunks, _ in batches for chunk in chunks for choice in chunk.choices]


def test_each_token_comes_from_who_vouches_for_it_behind_one_role() -> None:
    shown = presentation()
    batches = shown.show(DeliverIds((1, 2), "accepted"), now=1.0) + shown.show(DeliverIds((3,), "corrected"), now=1.5)
    assert texts(batches) == [("small", ""), ("small", "w1 "), ("small", "w2 "), ("large", "w3 ")]
    first = batches[0][1][0]
    assert (first.id, first.model, first.choices[0].delta.role) == ("7", "large-model", "assistant")
    assert [chunk.origin for _, chunks, _ in batches for chunk in chunks if isinstance(chunk, SpeculatedChunk)] == [
        None,
        "accepted",
        "accepted",
        "corrected",
    ]
    assert shown.first == 1.0
    assert shown.text == "w1 w2 w3 "
    assert shown.delivery.meter.tokens == 3


def test_quality_counts_what_stayed_at_the_time_it_was_first_shown() -> None:
    shown = presentation()
    shown.show(DeliverIds((1, 2, 3), "draft"), now=1.0)
    assert shown.delivery.meter.tokens == 0
    assert shown.first == 1.0
    shown.show(CommitIds(2, "accepted"), now=2.0)
    shown.show(RetractIds(1), now=2.0)
    shown.show(DeliverIds((9,), "corrected"), now=2.0)
    meter = shown.delivery.meter
    assert (meter.tokens, meter.first, meter.last) == (3, 1.0, 2.0)
    assert shown.text == "w1 w2 w9 "


def test_retractions_and_settlements_are_chunks_without_choices() -> None:
    shown = presentation()
    shown.show(DeliverIds((1, 2), "draft"), now=1.0)
    batches = [*shown.show(CommitIds(1, "accepted"), now=1.0), *shown.show(RetractIds(1), now=1.0)]
    chunks = [chunk for _, chunks, _ in batches for chunk in chunks]
    assert all(isinstance(chunk, SpeculatedChunk) and not chunk.choices for chunk in chunks)
    assert [(chunk.settled, chunk.retracted) for chunk in chunks if isinstance(chunk, SpeculatedChunk)] == [(3, 0), (0, 3)]


def test_the_end_has_its_reason_and_a_failure_has_none() -> None:
    shown = presentation()
    shown.show(DeliverIds((1,), "accepted"), now=1.0)
    batches = shown.finish("length", now=2.0)
    assert batches[-1][1][-1].choices[0].finish_reason == "length"
    failed = presentation()
    assert failed.finish(None, now=1.0) == []


@pytest.mark.parametrize("origin", ["accepted", "draft"])
def test_a_stop_string_makes_it_a_stop(origin: Origin) -> None:
    shown = presentation(stops=("w2",))
    shown.show(DeliverIds((1, 2), origin), now=1.0)
    if origin == "draft":
        assert not shown.is_stopped, "nobody has judged it"
        shown.show(CommitIds(2, "accepted"), now=1.0)
    assert shown.is_stopped
    assert shown.finish("length", now=1.0)[-1][1][-1].choices[0].finish_reason == "stop"
    assert shown.text == "w1 "


def test_a_pace_holds_text_back_and_the_end_behind_it() -> None:
    shown = presentation(pace=10.0)
    batches = shown.show(DeliverIds((1, 2, 3), "accepted"), now=0.0) + shown.finish("stop", now=0.0)
    assert [text for _, text in texts(batches)] == ["", "w1 "]
    assert shown.delivery.next_due() == pytest.approx(0.1)
    assert [text for _, text in texts(shown.release(now=0.1))] == ["w2 "]
    assert not shown.delivery.is_empty
    assert [text for _, text in texts(shown.flush(now=0.15))] == ["w3 ", ""]
    assert shown.delivery.is_empty


def test_a_smooth_pace_spreads_the_tokens_of_a_round_and_keeps_them_whole() -> None:
    shown = presentation(pace="smooth")
    batches, times, rounds = [], [], [(1, 2, 3, 4, 5), (6,), (7, 8, 9, 10, 11, 12)]
    for number, ids in enumerate(rounds):
        now = number * 0.12
        while (due := shown.delivery.next_due()) is not None and due <= now:
            batches += shown.release(now=due)
        batches += shown.show(DeliverIds(ids, "accepted"), now=now)
    batches += shown.finish("stop", now=0.24)
    while (due := shown.delivery.next_due()) is not None:
        batches += shown.release(now=due)
    times = [now for _, chunks, now in batches for chunk in chunks if chunk.choices[0].token_ids]
    assert times[0] == 0.0
    assert times[-1] <= 0.24 + 0.4
    assert max(after - before for before, after in itertools.pairwise(times)) < 0.12
    assert [chunk.choices[0].token_ids for _, chunks, _ in batches for chunk in chunks if chunk.choices[0].token_ids] == [
        [token] for ids in rounds for token in ids
    ]
    assert batches[-1][1][-1].choices[0].finish_reason == "stop"
    assert shown.delivery.meter.tokens == 12
