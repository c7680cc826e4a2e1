"""How long a new answer waits at a device that has others: called directly with now=."""

from __future__ import annotations

import pytest

from streamco.core.race.device_queue import DeviceQueue


def measured(places: int | None = 4, *, token_s: float = 0.01, short_s: float = 0.2, answer_s: float = 8.0) -> DeviceQueue:
    """A queue that has seen a long prompt, a short one, and a server that takes no time."""
    queue, now = DeviceQueue(places), 0.0
    for tokens, seconds in ((100, 100 * token_s), (10, short_s)):
        queue.begin("first", tokens, now=now)
        queue.record_first_token("first", now=now + seconds)
        now += seconds + answer_s
        queue.end("first", now=now, is_complete=True)
    queue.record_server(0.0)
    return queue


def test_an_idle_device_is_never_late() -> None:
    queue = DeviceQueue(1)
    assert (len(queue), queue.delay(10_000, now=0.0)) == (0, 0.0)


def test_the_prompts_before_it_are_read_first() -> None:
    queue = measured()
    queue.begin("a", 200, now=100.0)
    assert queue.delay(50, now=100.0) == pytest.approx(2.0)
    queue.begin("b", 10, now=100.0)
    assert queue.delay(5000, now=100.0) == pytest.approx(2.2), "its own prompt is no fault of the others"


def test_one_that_writes_takes_nothing_of_a_free_place() -> None:
    queue = measured()
    queue.begin("a", 200, now=100.0)
    queue.record_first_token("a", now=102.0)
    assert queue.delay(5000, now=102.0) == 0.0


def test_without_a_free_place_others_have_to_end() -> None:
    queue = measured(places=2)
    for key in "ab":
        queue.begin(key, 1, now=0.0, is_whole=False)
        queue.record_first_token(key, now=0.0)
    assert queue.delay(1, now=0.0) == pytest.approx(8.0 / 2)
    queue.begin("c", 1, now=0.0)
    assert queue.delay(1, now=0.0) == pytest.approx(0.2 + 2 * 8.0 / 2)
    queue.end("a", now=1.0, is_complete=False)
    queue.end("c", now=1.0, is_complete=False)
    assert queue.delay(1, now=1.0) == 0.0


def test_at_a_device_of_unknown_size_the_oldest_that_waits_tells() -> None:
    queue = measured(places=None)
    queue.begin("a", 10, now=0.0)
    assert queue.delay(10, now=0.0) == pytest.approx(0.2)
    assert queue.delay(10, now=7.0) == pytest.approx(7.0)


@pytest.mark.parametrize("why", ["not alone", "the rest of another's answer", "asked again"])
def test_times_that_say_nothing_are_not_learned(why: str) -> None:
    queue = measured()
    if why == "not alone":
        queue.begin("other", 1, now=0.0)
    queue.begin("a", 100, now=0.0, is_whole=why != "the rest of another's answer")
    if why == "asked again":
        queue.begin_again("a", now=40.0)
    queue.record_first_token("a", now=50.0)
    queue.end("a", now=51.0, is_complete=False)
    queue.end("other", now=51.0, is_complete=False)
    queue.begin("b", 100, now=60.0)
    assert queue.delay(100, now=60.0) == pytest.approx(1.0)


def test_an_answer_that_begins_no_later_than_the_servers_is_not_late() -> None:
    queue = measured(places=1)
    queue.begin("a", 100, now=0.0)
    for _ in range(3):
        queue.record_server(9.5)
    assert queue.delay(100, now=0.0) == pytest.approx(1.0 + 8.0 + 1.0 - 9.5)
    assert DeviceQueue().delay(10, now=0.0) <= 0.0


def test_an_answer_that_is_not_there_changes_nothing() -> None:
    queue = DeviceQueue(1)
    queue.record_first_token("a", now=1.0)
    queue.begin_again("a", now=1.0)
    queue.end("a", now=1.0, is_complete=True)
    assert len(queue) == 0
