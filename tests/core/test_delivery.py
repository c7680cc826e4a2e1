"""What goes to the reader and when: the two ways of delivering, called directly with now=."""

from __future__ import annotations

import pytest

from streamco.core.delivery import Delivery
from streamco.core.race.commands import DeliverTokens
from streamco.openai_types import ChatCompletionChunk
from streamco.testing.endpoint import text_chunk


def chunks(*texts: str) -> list[ChatCompletionChunk]:
    return [text_chunk(text) for text in texts]


def texts(deliveries: list[DeliverTokens]) -> list[tuple[str, str]]:
    return [(given.source, "".join(chunk.choices[0].delta.content or "" for chunk in given.chunks)) for given in deliveries]


def test_without_a_pace_everything_goes_out_at_once_and_is_measured() -> None:
    delivery = Delivery(None, 5.0)
    batch = chunks("a", "b")
    (given,) = delivery.take("server", batch, 2, now=1.0)
    assert given.chunks is batch
    assert (delivery.meter.tokens, delivery.buffered, delivery.is_empty, delivery.next_due()) == (2, 0, True, None)
    assert not delivery.is_paced
    assert (delivery.release(now=9.0), delivery.flush(now=9.0), delivery.drop()) == ([], [], 0)


def test_the_virtual_reader_takes_what_was_delivered_at_its_rate() -> None:
    delivery = Delivery(None, 5.0)
    assert delivery.ahead(now=0.0) == 0
    delivery.take("server", chunks(*"abcdefghij"), 10, now=1.0)
    assert delivery.ahead(now=2.0) == pytest.approx(5.0)
    assert delivery.ahead(now=60.0) == 0


def test_at_a_pace_the_first_token_goes_out_and_the_others_wait() -> None:
    delivery = Delivery(5.0, 5.0)
    assert texts(delivery.take("server", chunks("a", "b", "c"), 3, now=1.0)) == [("server", "a")]
    assert (delivery.buffered, delivery.ahead(now=1.0), delivery.is_empty) == (2, 2, False)
    assert delivery.next_due() == pytest.approx(1.2)
    assert delivery.release(now=1.1) == []
    assert texts(delivery.release(now=1.45)) == [("server", "bc")]
    assert delivery.is_empty
    assert delivery.meter.tokens == 3


def test_what_two_endpoints_made_is_delivered_apart() -> None:
    delivery = Delivery(1.0, 1.0)
    delivery.take("server", chunks("a", "b"), 2, now=0.0)
    delivery.take("device", chunks("c", "d"), 2, now=0.5)
    assert texts(delivery.release(now=60.0)) == [("server", "b"), ("device", "cd")]


def test_an_end_without_text_is_held_behind_the_text() -> None:
    delivery = Delivery(1.0, 1.0)
    delivery.take("server", [*chunks("a", "b"), text_chunk("", finish_reason="stop")], 2, now=0.0)
    assert not delivery.is_empty
    (given,) = delivery.release(now=1.0)
    assert [chunk.choices[0].finish_reason for chunk in given.chunks] == [None, "stop"]
    assert delivery.is_empty


def test_a_failure_gives_all_that_is_held_and_a_reader_who_left_none() -> None:
    failed, left = Delivery(1.0, 1.0), Delivery(1.0, 1.0)
    for delivery in (failed, left):
        delivery.take("server", chunks("a", "b", "c"), 3, now=0.0)
    assert texts(failed.flush(now=0.1)) == [("server", "bc")]
    assert failed.meter.tokens == 3
    assert left.drop() == 2
    assert (left.meter.tokens, left.is_empty) == (1, True)


def test_at_a_smooth_pace_a_burst_is_spread_and_what_is_held_counts_as_ahead() -> None:
    delivery = Delivery("smooth", 5.0)
    assert texts(delivery.take("server", chunks("a", "b", "c"), 3, now=1.0)) == [("server", "a")]
    assert (delivery.is_paced, delivery.buffered, delivery.is_empty) == (True, 2, False)
    assert delivery.ahead(now=1.0) == 3, "the virtual reader has reached none"
    assert texts(delivery.release(now=1.2)) == [("server", "b")]
    assert texts(delivery.release(now=1.4)) == [("server", "c")]
    assert delivery.is_empty
    assert delivery.meter.tokens == 3
    assert delivery.ahead(now=1.4) == pytest.approx(1.0)


def test_at_a_smooth_pace_a_failure_gives_all_that_is_held_and_a_reader_who_left_none() -> None:
    failed, left = Delivery("smooth", 1.0), Delivery("smooth", 1.0)
    for delivery in (failed, left):
        delivery.take("server", chunks("a", "b", "c"), 3, now=0.0)
    assert texts(failed.flush(now=0.1)) == [("server", "bc")]
    assert left.drop() == 2
    assert (left.meter.tokens, left.is_empty) == (1, True)
