"""A contender in a process of its own: its figures come back, and its death is an answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from bench.timed.child import ChildContender, NotOnThisProcessor


def doubling(offset: int) -> Callable[[int], int]:
    return lambda number: 2 * number + offset


def dying(number: int) -> Callable[[int], None]:
    return lambda _turn: os.kill(os.getpid(), number)


def dying_at_once(number: int) -> None:
    os.kill(os.getpid(), number)


def leaving(status: int) -> Callable[[], None]:
    return lambda: os._exit(status)


def test_figures_come_back_from_the_child() -> None:
    with ChildContender(doubling, 1) as contender:
        assert [contender(number) for number in (1, 2, 3)] == [3, 5, 7]
    contender.close()


@pytest.mark.parametrize("make", [dying, dying_at_once])
@pytest.mark.parametrize("number", [signal.SIGILL, signal.SIGSEGV, signal.SIGBUS])
def test_a_signal_says_that_the_contender_does_not_run_here(make: Callable[[int], Callable[..., object]], number: signal.Signals) -> None:
    with ChildContender(make, int(number)) as contender:
        for _ in range(2):
            with pytest.raises(NotOnThisProcessor, match=rf"^not on this processor \({number.name}\)$"):
                contender(1)


def test_any_other_end_is_a_failure() -> None:
    with ChildContender(leaving, 3) as contender, pytest.raises(RuntimeError, match="got exit status 3"):
        contender()
