"""The watchdog on a clock that is moved by hand: no test here waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from streamco.config import Timeouts
from streamco.endpoints.network.watchdog import Watchdog
from streamco.errors import EndpointTimeoutError
from tests.support.examples import examples


class Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """The part of an event loop the watchdog uses, its time moved by ``move_to``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []
        self.armed = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None], *args: Any) -> Timer:
        self.armed += 1
        timer = Timer(when, lambda: callback(*args))
        self.timers.append(timer)
        return timer

    def pending(self) -> list[float]:
        return sorted(timer.when for timer in self.timers if not timer.is_cancelled)

    def move_to(self, when: float) -> None:
        while due := [timer for timer in self.timers if not timer.is_cancelled and timer.when <= when]:
            timer = min(due, key=lambda timer: timer.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            timer.callback()
        self.now = when

    def stand_still_until(self, when: float) -> None:
        """Let no timer fire before this time, and then those that are due, as a loop does that some task has blocked."""
        self.now = when
        for timer in [timer for timer in self.timers if not timer.is_cancelled and timer.when <= when]:
            self.timers.remove(timer)
            timer.callback()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def expired() -> list[EndpointTimeoutError]:
    return []


def watch(clock: Clock, expired: list[EndpointTimeoutError], **limits: float | None) -> Watchdog:
    timeouts = Timeouts(**{"first_token": 10.0, "next_token": 5.0, "socket": 100.0, **limits})
    return Watchdog(cast(asyncio.AbstractEventLoop, clock), timeouts, expired.append)


def test_nothing_is_armed_before_somebody_waits(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watch(clock, expired)
    assert clock.pending() == []


def test_the_first_token_limit_ends_the_waiting_once(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watch(clock, expired).resume()
    clock.move_to(109.9)
    assert expired == []
    clock.move_to(130)
    assert [(error.phase, error.limit) for error in expired] == [("first_token", 10.0)]
    assert str(expired[0]) == "expected the first token within 10 s, got none"
    assert clock.pending() == []


def test_content_moves_on_to_the_next_token_limit(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    watchdog.resume()
    clock.move_to(109)
    watchdog.pause()
    watchdog.feed(has_content=True)
    watchdog.resume()
    clock.move_to(113.9)
    assert expired == []
    clock.move_to(114)
    assert [(error.phase, error.limit) for error in expired] == [("next_token", 5.0)]


def test_bytes_without_content_do_not_move_the_token_limit(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired, socket=4.0)
    watchdog.resume()
    for now in (103, 106, 109):
        clock.move_to(now)
        watchdog.pause()
        watchdog.feed(has_content=False)
        watchdog.resume()
    clock.move_to(110)
    assert [error.phase for error in expired] == ["first_token"]
    assert expired[0].limit == 10.0


def test_the_socket_limit_names_itself_and_the_phase_it_fell_in(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired, socket=3.0)
    watchdog.resume()
    clock.move_to(103)
    assert [(error.phase, error.limit) for error in expired] == [("first_token", 3.0)]
    assert "bytes of any kind" in str(expired[0])


def test_content_does_not_move_the_limit_on_the_whole_answer(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired, total=12.0)
    watchdog.resume()
    for now in (103, 106, 109, 111.9):
        clock.move_to(now)
        assert expired == []
        watchdog.pause()
        watchdog.feed(has_content=True)
        watchdog.resume()
    clock.move_to(112)
    assert [(error.phase, error.limit) for error in expired] == [("total", 12.0)]
    assert str(expired[0]) == "expected the whole answer within 12 s, got no end"
    clock.move_to(200)
    assert len(expired) == 1
    assert clock.pending() == []


def test_the_limit_on_the_whole_answer_counts_through_retries_and_not_while_nobody_waits(
    clock: Clock, expired: list[EndpointTimeoutError]
) -> None:
    watchdog = watch(clock, expired, total=12.0)
    watchdog.resume()
    clock.move_to(105)
    watchdog.suspend()
    clock.move_to(108)
    watchdog.restart()
    watchdog.pause()
    clock.move_to(150)
    watchdog.resume()
    clock.move_to(153.9)
    assert expired == []
    clock.move_to(154)
    assert [error.phase for error in expired] == ["total"]


def test_time_that_other_endpoints_used_counts_and_the_error_quotes_the_limit_that_was_given(
    clock: Clock, expired: list[EndpointTimeoutError]
) -> None:
    limits = Timeouts(connect=None, first_token=None, next_token=None, socket=None, total=12.0)
    watchdog = Watchdog(cast(asyncio.AbstractEventLoop, clock), limits, expired.append, 9.0)
    watchdog.resume()
    clock.move_to(102.9)
    assert expired == []
    clock.move_to(103)
    assert [(error.phase, error.limit) for error in expired] == [("total", 12.0)]


def test_the_time_that_no_task_waited_is_counted(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired, total=1000.0)
    assert watchdog.idle == 0.0
    clock.move_to(101)
    assert watchdog.idle == 1.0
    watchdog.resume()
    clock.move_to(110)
    assert watchdog.idle == 1.0
    watchdog.pause()
    clock.move_to(115)
    assert watchdog.idle == 6.0
    watchdog.stop()  # the answer has failed, and the reader comes for what it wrote before
    clock.move_to(117)
    assert watchdog.idle == 8.0
    assert expired == []


def test_the_limit_on_the_whole_answer_ends_the_wait_before_a_retry(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired, total=12.0)
    watchdog.resume()
    clock.move_to(105)
    watchdog.suspend()
    clock.move_to(112)
    assert [error.phase for error in expired] == ["total"]


def test_after_the_stop_no_limit_counts(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired, total=12.0)
    watchdog.resume()
    watchdog.stop()
    watchdog.resume()
    clock.move_to(500)
    assert expired == []


def test_time_without_a_waiter_does_not_count(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    watchdog.resume()
    clock.move_to(104)
    watchdog.pause()
    clock.move_to(1000)
    assert expired == []
    watchdog.resume()
    clock.move_to(1005.9)
    assert expired == []
    clock.move_to(1006)
    assert len(expired) == 1


def test_time_before_the_first_wait_does_not_count(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    clock.move_to(500)
    watchdog.resume()
    clock.move_to(509.9)
    assert expired == []
    clock.move_to(510)
    assert len(expired) == 1


def test_many_short_waits_add_up(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    for start in range(110, 310, 20):
        clock.move_to(start)
        watchdog.resume()
        clock.move_to(start + 0.99)
        watchdog.pause()
    clock.move_to(400)
    watchdog.resume()
    clock.move_to(400.05)
    assert expired == []
    clock.move_to(400.2)
    assert len(expired) == 1


def test_a_thousand_reads_arm_few_timers(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    watchdog.resume()
    for n in range(1000):
        clock.move_to(100 + n * 0.01)
        watchdog.pause()
        watchdog.feed(has_content=True)
        watchdog.resume()
    assert clock.armed <= 6
    assert expired == []
    assert len(clock.pending()) == 1
    clock.move_to(114.98)
    assert expired == []
    clock.move_to(115)
    assert len(expired) == 1


def test_nothing_is_expected_while_suspended(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    watchdog.resume()
    clock.move_to(105)
    watchdog.suspend()
    clock.move_to(200)
    assert expired == []
    watchdog.restart()
    clock.move_to(209.9)
    assert expired == []
    clock.move_to(210)
    assert len(expired) == 1


def test_a_restart_goes_back_to_the_first_token(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    watchdog.resume()
    watchdog.pause()
    watchdog.feed(has_content=True)
    watchdog.restart()
    watchdog.resume()
    clock.move_to(109)
    assert expired == []
    clock.move_to(110)
    assert expired[0].phase == "first_token"


def test_a_restart_while_nobody_waits_counts_from_the_next_wait(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    clock.move_to(200)
    watchdog.restart()
    clock.move_to(300)
    watchdog.resume()
    clock.move_to(309)
    assert expired == []
    clock.move_to(310)
    assert len(expired) == 1


def test_a_complete_answer_waits_shortly_for_its_formal_end(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    watchdog.resume()
    watchdog.pause()
    watchdog.feed(has_content=True)
    watchdog.expect_end(2.0)
    watchdog.resume()
    clock.move_to(102)
    assert len(expired) == 1


def test_a_whole_answer_has_time_until_a_further_try(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    watchdog.expect_whole(500.0)
    watchdog.resume()
    clock.move_to(599)
    assert expired == []
    watchdog.restart()
    clock.move_to(608.9)
    assert expired == []
    clock.move_to(609)
    assert (expired[0].phase, expired[0].limit) == ("first_token", 10)


def test_a_whole_answer_keeps_longer_limits_and_the_total(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired, first_token=None, socket=None, total=700)
    watchdog.expect_whole(500.0)
    watchdog.resume()
    clock.move_to(799)
    assert expired == []
    clock.move_to(800)
    assert expired[0].phase == "total"


def test_stopped_is_stopped(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    watchdog.resume()
    watchdog.stop()
    watchdog.stop()
    watchdog.pause()
    watchdog.resume()
    clock.move_to(1000)
    assert expired == []
    assert clock.pending() == []


def test_no_limits_arm_no_timer(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired, first_token=None, next_token=None, socket=None)
    watchdog.resume()
    watchdog.pause()
    watchdog.feed(has_content=True)
    watchdog.resume()
    assert clock.armed == 0


def test_a_timer_that_fires_early_is_armed_again(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    """uvloop rounds timers to milliseconds and may fire up to one early."""
    watch(clock, expired).resume()
    timer = clock.timers.pop()
    clock.now = 109.9995
    timer.callback()
    assert expired == []
    clock.move_to(110)
    assert len(expired) == 1


@pytest.mark.parametrize("limits", [{}, {"socket": 3.0}, {"total": 4.0}])
def test_content_that_lay_in_the_socket_while_the_loop_stood_still_counts(
    clock: Clock, expired: list[EndpointTimeoutError], limits: dict[str, float]
) -> None:
    watchdog = watch(clock, expired, **limits)
    watchdog.resume()
    clock.stand_still_until(300)
    assert expired == [], "the task that reads has not run yet"
    watchdog.pause()
    watchdog.feed(has_content=True)
    watchdog.resume()
    clock.move_to(302)
    assert [error.phase for error in expired] == (["total"] if "total" in limits else [])
    clock.move_to(306)
    assert len(expired) == 1, "and the limits go on as ever"


def test_a_server_that_was_silent_while_the_loop_stood_still_has_a_part_of_its_limit_more(
    clock: Clock, expired: list[EndpointTimeoutError]
) -> None:
    watch(clock, expired).resume()
    clock.stand_still_until(300)
    clock.move_to(300.9)
    assert expired == []
    clock.move_to(301)
    assert [(error.phase, error.limit) for error in expired] == [("first_token", 10.0)]


def test_a_keep_alive_does_not_shorten_the_second_look(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watchdog = watch(clock, expired)
    watchdog.resume()
    clock.stand_still_until(300)
    for _ in range(10):
        watchdog.pause()
        watchdog.feed(has_content=False)
        watchdog.resume()
        clock.stand_still_until(300)
    assert expired == []
    watchdog.pause()
    watchdog.feed(has_content=True)
    watchdog.resume()
    clock.move_to(304)
    assert expired == []


def test_a_loop_that_stands_still_again_and_again_still_ends(clock: Clock, expired: list[EndpointTimeoutError]) -> None:
    watch(clock, expired).resume()
    for number in range(10):
        clock.stand_still_until(300 + 60 * number)
    assert len(expired) == 1
    assert clock.pending() == []


STEPS = ("wait", "wait", "wait", "idle", "charge", "expect_end", "bytes", "content", "restart", "suspend")
LIMITS = {"first_token": 10.0, "next_token": 5.0, "socket": 8.0, "total": 30.0}


def test_each_limit_counts_just_the_time_that_it_is_for() -> None:
    for seed in range(examples(1000, thorough=50_000)):
        wait_until_expired(random.Random(seed))


def wait_until_expired(rng: random.Random) -> None:
    """Use a watchdog at random until a limit is exceeded, and check that this is the limit that should be, at the right time."""
    clock, expired = Clock(), list[EndpointTimeoutError]()
    watchdog = watch(clock, expired, **LIMITS)
    waited = {"content": 0.0, "bytes": 0.0, "total": 0.0}
    limit, phase, is_suspended, paused_at = LIMITS["first_token"], "first_token", False, clock.now
    while True:  # between two steps nobody waits
        seconds = rng.randint(1, 32) / 8  # so that sums are exact
        match rng.choice(STEPS):
            case "wait":
                left = {"total": LIMITS["total"] - waited["total"]}
                if not is_suspended:
                    left |= {"content": limit - waited["content"], "bytes": LIMITS["socket"] - waited["bytes"]}
                began, nearest = clock.now, min(left.values())
                watchdog.resume()
                clock.move_to(began + seconds)
                if nearest <= seconds:
                    assert [error.phase for error in expired] == ["total" if left["total"] <= nearest else phase]
                    return
                assert not expired
                waited = {name: before + seconds for name, before in waited.items()}
                watchdog.pause()
                paused_at = clock.now
            case "idle":
                clock.move_to(clock.now + seconds)
            case "charge" if waited["total"] + seconds < LIMITS["total"]:
                watchdog.charge(seconds)
                waited["total"] += seconds
            case "expect_end":
                watchdog.expect_end(seconds)
                waited["content"], limit = 0.0, min(limit, seconds)
            case "bytes":
                watchdog.feed(has_content=False)
                waited["bytes"] = 0.0
            case "content":
                watchdog.feed(has_content=True)
                waited |= {"content": 0.0, "bytes": 0.0}
                limit, phase = LIMITS["next_token"], "next_token"
            case "restart" if waited["total"] + clock.now - paused_at < LIMITS["total"]:
                watchdog.restart()
                waited = {"content": 0.0, "bytes": 0.0, "total": waited["total"] + clock.now - paused_at}  # a retry's time counts, too
                limit, phase, is_suspended, paused_at = LIMITS["first_token"], "first_token", False, clock.now
            case "suspend":
                watchdog.suspend()
                is_suspended = True
