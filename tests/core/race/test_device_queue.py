"""How long a new answer waits at a device that has others: called directly with now=."""

from __future__ import annotations

import pytest

from streamco.core.race.device_queue import DeviceQueue


def measured(places: int | None = 4, *, token_s: float = 0.01, answer_s: float = 8.0) -> DeviceQueue:
    queue = DeviceQueue(places)
    queue.begin("first", 100, now=0.0)
    queue.record_first_token("first", now=100 * token_s)
    queue.end("first", now=100 * token_s + answer_s, is_complete=True)
    return queue


def test_an_idle_device_is_never_late() -> None:
    queue = DeviceQueue(1)
    assert (len(queue), queue.delay(10_000, now=0.0)) == (0, 0.0)


def test_the_prompts_before_it_are_read_first() -> None:
    queue = measured()
    queue.begin("a", 200, now=100.0)
    assert queue.device_wait(50, now=100.0) == pytest.approx(2.5)
    queue.record_first_token("a", now=102.0)
    assert queue.device_wait(50, now=102.0) == pytest.approx(0.5), "one that writes takes nothing of a free place's time"


def test_without_a_free_place_others_have_to_end() -> None:
    queue = measured(places=2)
    for key in "ab":
        queue.begin(key, 1, now=-0.01)
        queue.record_first_token(key, now=0.0)
    assert queue.device_wait(1, now=0.0) == pytest.approx(0.01 + 8.0 / 2)
    queue.begin("c", 1, now=0.0)
    assert queue.device_wait(1, now=0.0) == pytest.approx(0.02 + 2 * 8.0 / 2)
    queue.end("a", now=1.0, is_complete=False)
    queue.end("c", now=1.0, is_complete=False)
    assert queue.device_wait(1, now=1.0) == pytest.approx(0.01)


def test_at_a_device_of_unknown_size_the_oldest_that_waits_tells() -> None:
    queue = measured(places=None)
    queue.begin("a", 10, now=0.0)
    assert queue.device_wait(10, now=0.0) == pytest.approx(0.2)
    assert queue.device_wait(10, now=7.0) == pytest.approx(7.0)


def test_times_are_learned_from_answers_that_were_alone_and_written_to_the_end() -> None:
    queue = measured()
    queue.begin("a", 100, now=0.0)
    queue.begin("b", 100, now=0.0)
    queue.record_first_token("b", now=50.0)
    queue.end("b", now=51.0, is_complete=False)
    queue.end("a", now=51.0, is_complete=False)
    queue.begin("c", 1, now=60.0)
    assert queue.device_wait(99, now=60.0) == pytest.approx(1.0)


def test_it_is_late_by_the_difference_to_the_server() -> None:
    queue = measured(places=1)
    queue.begin("a", 100, now=0.0)
    assert queue.delay(100, now=0.0) == pytest.approx(2.0 + 8.0 - 1.0), "a second, before any server was measured"
    for seconds in (0.3, 0.5, 9.0):
        queue.record_server(seconds)
    assert queue.delay(100, now=0.0) == pytest.approx(2.0 + 8.0 - 0.5)


def test_an_answer_that_is_not_there_changes_nothing() -> None:
    queue = DeviceQueue(1)
    queue.record_first_token("a", now=1.0)
    queue.end("a", now=1.0, is_complete=True)
    assert len(queue) == 0
