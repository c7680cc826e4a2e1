"""Waking a consumer from the engine's thread."""

from __future__ import annotations

from streamco.engines.consumer import Consumer


def test_a_consumer_is_woken_each_time() -> None:
    calls: list[None] = []
    consumer = Consumer(lambda: calls.append(None))
    assert consumer.wake()
    assert consumer.wake()
    assert len(calls) == 2
    assert consumer.failure is None


def test_a_consumer_without_a_wake_needs_none() -> None:
    assert Consumer(None).wake()


def test_the_first_error_of_a_wake_is_kept() -> None:
    errors = [RuntimeError("first"), RuntimeError("second")]
    left = list(errors)

    def fail() -> None:
        raise left.pop(0)

    consumer = Consumer(fail)
    assert not consumer.wake()
    assert not consumer.wake()
    assert consumer.failure is errors[0]
