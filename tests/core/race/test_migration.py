"""Planned migration: the controller called directly; each arrow of its diagram."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.race.attempt import Attempt, AttemptPlan, AttemptState, ReadAhead
from streamco.core.race.migration import MigrationController, MigrationPlan, MigrationState, Prepare, Release, Switch
from streamco.policies.migration import Terms
from streamco.profiles import RemainingLength

DEAR = Terms(prompt=1e-9, completion=1e-6, setup=0.1, rate=50.0)
CHEAP = Terms(prompt=1e-9, completion=1e-8, setup=0.1, rate=50.0)
DEVICE = Terms(prompt=1e-9, completion=1e-8, setup=0.1, per_token=0.01, rate=50.0, pre_copy="append")
SLOW_DEVICE = Terms(prompt=1e-9, completion=1e-8, setup=0.1, per_token=0.05, rate=50.0, pre_copy="append")
STEADY = Terms(prompt=1e-9, completion=1e-6, setup=0.1, rate=8.0)
WARM = Terms(prompt=1e-9, cached_prompt=1e-10, completion=1e-8, setup=0.1, per_token=0.01, rate=50.0, pre_copy="warm")
UNKNOWN = Terms(prompt=1e-9, completion=1e-8, pre_copy="append")


class World:
    """A controller and the attempts that it is shown.

    Args:
        targets: beside the source; all of them stand by.
    """

    def __init__(self, source: Terms = DEAR, *, prompt_tokens: int = 100, length: int = 400, **settings: Any) -> None:
        targets = {name: settings.pop(name) for name in list(settings) if isinstance(settings[name], Terms)}
        terms = {"source": source, **targets}
        plan = {"reader_rate": 5.0, "capacity": 64, "lengths": RemainingLength((length,), (0.0,)), **settings}
        self.controller = MigrationController(MigrationPlan(terms=terms, prompt_tokens=prompt_tokens, **plan))
        self.attempts = {name: Attempt(AttemptPlan(name, None, continues=True)) for name in terms}
        self.attempts["source"].state = AttemptState.WON

    def look(self, position: int, buffered: float = 0.0, now: float = 1.0, *, source: str = "source") -> Prepare | Release | Switch | None:
        return self.controller.consider(MigrationState(self.attempts[source], self.attempts, position, buffered, now))

    def read(self, target: str, position: int, *, now: float = 1.0) -> None:
        """The target begins to read ahead."""
        unread = self.controller.unread(self.attempts[target], position)
        self.attempts[target] = self.attempts[target].prepare(now, ReadAhead(position, unread))

    def has_read(self, target: str, seconds: float = 0.5) -> None:
        read = self.attempts[target].finish_reading()
        self.controller.record_copied(target, kept=read.position, seconds=seconds, tokens=read.unread)


# Looking


def test_the_target_that_saves_most_is_chosen() -> None:
    dear_to_read = Terms(prompt=1e-6, completion=0.0, setup=0.1)
    world = World(one=dear_to_read, two=CHEAP, three=Terms(prompt=1e-9, completion=1e-7, setup=0.1))
    assert world.look(10, 9) == Switch("two")


@pytest.mark.parametrize(
    "target",
    [
        Terms(prompt=0.0, completion=2e-6, setup=0.1),
        Terms(prompt=1e-5, completion=0.0, setup=0.1),
        Terms(prompt=0.0, completion=0.0, setup=0.1, rate=5.4),
        Terms(prompt=0.0, completion=0.0),
        Terms(prompt=0.0, completion=0.0, pre_copy="warm"),
    ],
    ids=["dearer", "dear to read", "too slow", "never measured", "never measured, warm"],
)
def test_nobody_is_chosen_who_saves_nothing_is_too_slow_or_takes_who_knows_how_long(target: Terms) -> None:
    world = World(target=target)
    assert [world.look(position, 60) for position in range(1, 200)] == [None] * 199


def test_a_barred_target_is_not_chosen_and_the_next_best_is() -> None:
    cheapest = Terms(prompt=1e-9, completion=1e-9, setup=0.1)
    world = World(one=cheapest, two=CHEAP, barred=frozenset({("source", "one")}))
    assert world.look(10, 9) == Switch("two")
    world = World(one=cheapest, barred=frozenset({("source", "one")}))
    assert [world.look(position, 60) for position in range(1, 200)] == [None] * 199


def test_a_move_that_is_barred_for_an_earlier_writer_is_barred_for_a_later_one() -> None:
    cheapest = Terms(prompt=1e-9, completion=1e-9, setup=0.1)
    world = World(one=CHEAP, two=cheapest, barred=frozenset({("source", "two")}), max_migrations=3)
    assert world.look(10, 9) == Switch("one")
    world.controller.record_migration()
    world.attempts["one"].state = AttemptState.WON
    assert [world.look(position, 60, source="one") for position in range(11, 200)] == [None] * 189
    free = World(one=CHEAP, two=cheapest, max_migrations=3)
    assert free.look(10, 9) == Switch("two")


def test_a_move_that_is_barred_for_a_writer_that_failed_is_barred_for_its_successor() -> None:
    """The writer that failed had no price, or wrote what can't be handed over, so the controller was never asked about it."""
    world = World(one=CHEAP, barred=frozenset({("failed", "one")}))
    world.controller.record_failover("failed")
    assert [world.look(position, 60) for position in range(1, 200)] == [None] * 199
    unpriced = World(one=CHEAP, barred=frozenset({("unpriced", "one")}))
    unpriced.attempts["unpriced"] = Attempt(AttemptPlan("unpriced", None, continues=True))
    assert unpriced.look(10, 9, source="unpriced") is None
    assert [unpriced.look(position, 60) for position in range(11, 200)] == [None] * 189


@pytest.mark.parametrize("state", [AttemptState.FAILED, AttemptState.ENDED])
def test_nobody_is_chosen_who_cannot_take_over(state: AttemptState) -> None:
    world = World(target=CHEAP)
    world.attempts["target"].state = state
    assert world.look(10, 60) is None


def test_a_source_that_the_plan_does_not_know_is_not_left() -> None:
    world = World(one=CHEAP, two=CHEAP)
    world.attempts["stranger"] = Attempt(AttemptPlan("stranger", 0.0))
    assert world.look(10, 60, source="stranger") is None


def test_an_answer_that_need_not_move_is_looked_at_again_when_it_is_an_eighth_longer() -> None:
    world = World(target=CHEAP)
    world.attempts["target"].state = AttemptState.FAILED
    assert world.look(80, 60) is None
    world.attempts["target"].state = AttemptState.SPARED
    assert world.look(89, 60) is None
    assert world.look(90, 60) == Switch("target")


def test_what_the_source_still_makes_until_the_buffer_is_full_saves_nothing() -> None:
    """Full at B = 5 x (1.9 + 0.1) = 10: at 10 tokens a second the source makes 20 until then. 30 are to come, reading costs 10 tokens."""
    slow = Terms(prompt=1e-7, completion=0.0, setup=1.9)
    source = Terms(prompt=0.0, completion=1e-6, rate=10.0)
    assert World(source, target=slow, prompt_tokens=69, length=41).look(11, 0) is None
    world = World(source, target=slow, prompt_tokens=68, length=43)
    assert world.look(11, 0) is None  # chosen, and now the buffer is waited for
    assert world.look(12, 10) == Switch("target")


def test_the_limit_of_the_answer_is_its_length_at_most() -> None:
    assert World(target=CHEAP, max_tokens=10).look(10, 60) is None
    assert World(target=CHEAP, max_tokens=20).look(10, 60) == Switch("target")


def test_a_source_that_is_no_faster_than_the_reader_never_fills_the_buffer() -> None:
    source = Terms(prompt=0.0, completion=1e-6, rate=5.0)
    assert World(source, target=CHEAP).look(10, 0) is None
    assert World(source, target=DEVICE).look(10, 0) is None
    leg_is_faster = World(source, target=DEVICE)
    for token in range(8):
        leg_is_faster.attempts["source"].count(1, token * 0.125)
    assert leg_is_faster.look(10, 0) == Prepare("target")  # measured now, it does


def test_a_move_does_not_start_the_side_that_the_budget_limits() -> None:
    world = World(target=CHEAP, constrained=frozenset({"target"}))
    assert world.look(10, 60) is None
    world.attempts["target"].opened = 0.2  # it was in the race
    assert world.look(12, 60) == Switch("target")


def test_within_the_side_that_the_budget_limits_an_answer_may_move() -> None:
    world = World(target=CHEAP, constrained=frozenset({"source", "target"}))
    world.attempts["source"].opened = 0.0
    assert world.look(10, 60) == Switch("target")


def test_a_move_that_would_hardly_pay_is_left() -> None:
    """31 tokens to come at 1e-6 are worth 31e-6, reading 100 and those before at 2.5e-7 takes 27e-6; two thirds of 31e-6 do not do."""
    target = Terms(prompt=2.5e-7, completion=0.0, setup=0.1)
    assert World(target=target, length=41).look(10, 60) is None
    assert World(target=target, length=53).look(10, 60) == Switch("target")


# Reading ahead


def test_a_target_that_keeps_what_it_reads_reads_ahead_first() -> None:
    world = World(STEADY, target=DEVICE)
    assert world.look(1) == Prepare("target")


def test_by_the_full_buffer_rule_nobody_reads_ahead() -> None:
    world = World(target=DEVICE, rule="full-buffer")
    assert world.look(1) is None
    assert world.look(20, 6) is None  # 5 x (0.1 + 1.2 + 0.1) = 7
    assert world.look(20, 7) == Switch("target")


def test_while_it_reads_the_source_goes_on() -> None:
    world = World(STEADY, target=DEVICE)
    world.look(1, now=1.0)
    world.read("target", 1)
    assert [world.look(position, 1, now=1.0 + position / 50) for position in range(2, 60)] == [None] * 58


def test_the_source_is_stopped_while_the_target_still_reads_where_the_buffer_covers_the_rest_of_that() -> None:
    """101 tokens take 1.11 s, of which 0.61 s are left, and four more 0.14 s: with the slack 0.85 s, five tokens."""
    world = World(STEADY, target=DEVICE)
    world.look(1, now=1.0)
    world.read("target", 1)
    assert world.look(5, 4, now=1.5) is None
    assert world.look(5, 5, now=1.5) == Switch("target", waits=True)


def test_it_is_not_stopped_for_a_reading_that_is_late_or_is_being_cancelled() -> None:
    world = World(STEADY, target=DEVICE)
    world.look(1, now=1.0)
    world.read("target", 1)
    assert world.look(5, 5, now=2.2) is None
    world.attempts["target"].is_stopping = True
    assert world.look(5, 5, now=1.5) is None


def test_then_it_reads_what_came_meanwhile_and_again_until_only_few_are_left() -> None:
    world = World(STEADY, target=SLOW_DEVICE)
    world.look(1)
    world.read("target", 1)
    world.has_read("target")
    assert world.look(60, 2) == Prepare("target")  # 59 to be read: 3.05 s, sixteen tokens
    world.read("target", 60)
    world.has_read("target")
    assert world.look(64, 2) == Switch("target")  # 4 to be read: 0.3 s and the slack, two tokens


def test_no_further_round_is_begun_while_the_buffer_would_not_do_for_the_shortest_change() -> None:
    world = World(STEADY, target=SLOW_DEVICE)
    world.look(1)
    world.read("target", 1)
    world.has_read("target")
    assert world.look(60, 1) is None
    assert world.look(60, 2) == Prepare("target")


def test_after_eight_rounds_what_is_left_is_taken_as_it_is() -> None:
    world = World(STEADY, target=SLOW_DEVICE, length=4000)
    rounds = 0
    position = 1
    while world.look(position, 2) == Prepare("target"):
        rounds += 1
        world.read("target", position)
        world.has_read("target")
        position += 60
    assert rounds == 8
    assert world.look(position, 15) is None
    assert world.look(position, 16) == Switch("target")


def test_who_was_never_measured_is_measured_by_its_first_reading() -> None:
    world = World(STEADY, target=UNKNOWN)
    assert world.look(1) == Prepare("target")
    world.read("target", 1)
    world.has_read("target", seconds=1.01)  # 101 tokens: 0.01 s each, taken as 0.015, and 0.15 s of setup
    assert world.look(31, 2) == Prepare("target")  # 30 to be read: 0.6 s, 3.5 tokens
    assert world.look(31, 4) == Switch("target")


def test_who_was_measured_keeps_its_figures() -> None:
    world = World(target=DEVICE)
    world.look(1)
    world.read("target", 1)
    world.has_read("target", seconds=100.0)
    assert world.look(10, 2) == Switch("target")


def test_a_cache_is_warmed_once_and_only_where_that_pays() -> None:
    world = World(target=WARM, capacity=5)  # unread, six tokens would have to be ahead
    assert world.look(1) == Prepare("target")
    world.read("target", 1)
    world.has_read("target")
    assert world.look(60, 3) is None  # 0.69 s: four tokens, and a cache is not warmed twice
    assert world.look(60, 4) == Switch("target")
    assert World(target=Terms(prompt=1e-8, completion=1e-8, setup=0.1, per_token=0.01, pre_copy="warm")).look(1) == Prepare("target")
    assert World(target=Terms(prompt=1e-7, completion=1e-8, setup=0.1, per_token=0.01, pre_copy="warm")).look(1) is None


def test_a_cache_is_not_warmed_for_a_change_that_would_not_even_then_be_covered() -> None:
    slow = Terms(prompt=1e-8, completion=1e-8, setup=20.0, per_token=0.0, pre_copy="warm")
    world = World(target=slow, capacity=64)
    assert [world.look(position, 64) for position in range(1, 100)] == [None] * 99


# Back


def test_a_target_that_fails_is_given_up_and_another_one_looked_for() -> None:
    world = World(STEADY, one=DEVICE, two=Terms(prompt=1e-9, completion=5e-7, setup=0.1))
    assert world.look(8) == Prepare("one")
    world.read("one", 8)
    world.attempts["one"].state = AttemptState.FAILED
    assert world.look(9, 60) is None
    assert not world.controller.is_done
    assert world.look(10, 60) == Switch("two")


def test_when_nobody_is_left_no_move_will_come() -> None:
    world = World(target=DEVICE)
    world.look(8)
    world.read("target", 8)
    world.attempts["target"].state = AttemptState.FAILED
    world.look(9)
    assert world.controller.is_done
    assert world.look(100, 60) is None


@pytest.mark.parametrize("move", ["read on", "switch"])
def test_when_moving_does_not_pay_any_more_it_is_left(move: str) -> None:
    """The answer has come to its limit meanwhile."""
    world = World(STEADY, target=SLOW_DEVICE, max_tokens=61, length=4000)
    assert world.look(1) == Prepare("target")
    world.read("target", 1)
    world.has_read("target")
    assert world.look(61, 2 if move == "read on" else 60) is None
    assert world.look(200, 60) is None


def test_at_the_switch_the_source_makes_nothing_more_however_long_the_reading_would_have_taken() -> None:
    """Read ahead, 212 tokens would take 2.2 s in which the source makes 110; but the buffer covers reading them at once, and 10 remain."""
    assert World(target=DEVICE, max_tokens=22).look(12, 7) == Switch("target")


# Waiting, overdue


def test_a_target_that_still_is_cancelled_from_the_race_is_waited_for() -> None:
    world = World(target=CHEAP)
    world.attempts["target"].state, world.attempts["target"].is_stopping = AttemptState.LOST, True
    assert [world.look(10 + step, 60, now=100.0 * step) for step in range(5)] == [None] * 5
    world.attempts["target"].state, world.attempts["target"].is_stopping = AttemptState.CANCELLED, False
    assert world.look(16, 60) == Switch("target")


def test_a_target_that_explores_is_wanted_more_as_a_target() -> None:
    world = World(target=CHEAP)
    world.attempts["target"].state = AttemptState.LOST
    assert world.look(10, 60) == Release("target")
    world.attempts["target"].is_stopping = True
    assert world.look(11, 60) is None
    world.attempts["target"].state, world.attempts["target"].is_stopping = AttemptState.CANCELLED, False
    assert world.look(12, 60) == Switch("target")


def test_a_reading_that_takes_three_times_as_long_is_given_up_for_the_change() -> None:
    """101 tokens take 1.11 s; unread, 2 more in the answer, the change needs seven tokens."""
    world = World(STEADY, target=DEVICE)
    world.look(1, now=1.0)
    world.read("target", 1)
    assert world.look(3, 7, now=1.0 + 3.32) is None
    assert world.look(3, 6, now=1.0 + 3.34) is None
    assert world.look(3, 7, now=1.0 + 3.34) == Switch("target")


def test_a_reading_of_which_nobody_knows_how_long_it_takes_is_never_late() -> None:
    world = World(target=UNKNOWN)
    world.look(1, now=1.0)
    world.read("target", 1)
    assert world.look(300, 299, now=1e6) is None


# Moves


def test_after_a_move_the_next_one_is_looked_for_if_it_may_come() -> None:
    for most, done in ((1, True), (2, False)):
        world = World(
            one=Terms(prompt=0.0, completion=1e-7, setup=0.1), two=Terms(prompt=1e-6, completion=0.0, setup=0.1), max_migrations=most
        )
        assert world.look(10, 9) == Switch("one")
        world.controller.record_migration()
        assert world.controller.is_done is done


def test_after_a_change_that_was_not_planned_a_target_is_looked_for_anew() -> None:
    world = World(one=Terms(prompt=1e-9, completion=1e-7, setup=0.1), two=CHEAP)
    assert world.look(8, 0) is None
    world.controller.reset()
    world.attempts["source"].state = AttemptState.FAILED
    world.attempts["two"].state = AttemptState.WON
    assert world.look(20, 60, source="two") is None  # no endpoint is cheaper
    assert not world.controller.is_done


def test_the_tokens_a_target_has_to_read_are_those_behind_what_it_kept() -> None:
    world = World(target=DEVICE)
    attempt = world.attempts["target"]
    assert world.controller.unread(attempt, 7) == 107
    attempt.kept = 7
    assert world.controller.unread(attempt, 7) == 0
    assert world.controller.unread(attempt, 10) == 3


terms = st.builds(
    Terms,
    prompt=st.sampled_from([0.0, 1e-9, 1e-7]),
    completion=st.sampled_from([0.0, 1e-7, 1e-6]),
    cached_prompt=st.sampled_from([None, 1e-10]),
    setup=st.sampled_from([None, 0.0, 0.3, 5.0]),
    per_token=st.sampled_from([0.0, 0.001, 0.05]),
    rate=st.sampled_from([None, 3.0, 50.0]),
    pre_copy=st.sampled_from(["append", "warm", "none"]),
)


@given(st.data(), terms, st.dictionaries(st.sampled_from(["a", "b", "c"]), terms, min_size=1), st.sampled_from(["pre-copy", "full-buffer"]))
def test_only_who_is_free_and_able_is_ever_asked(data: st.DataObject, source: Terms, targets: dict[str, Terms], rule: str) -> None:
    settings: dict[str, Any] = {"rule": rule, **targets}
    world = World(source, **settings)
    position, now = 0, 0.0
    states = st.sampled_from([AttemptState.SPARED, AttemptState.LOST, AttemptState.CANCELLED, AttemptState.FAILED, AttemptState.PREPARED])
    for name in targets:
        world.attempts[name].state = data.draw(states)
    for _ in range(12):
        position += data.draw(st.integers(1, 30))
        now += data.draw(st.sampled_from([0.01, 1.0, 30.0]))
        step = world.look(position, data.draw(st.integers(0, position)), now)
        if step is None:
            reading = [name for name in targets if world.attempts[name].state is AttemptState.PREPARING]
            if len(reading) == 1 and data.draw(st.booleans()):
                world.has_read(reading[0], seconds=0.2)
            continue
        attempt = world.attempts[step.target]
        assert attempt.can_take_over
        assert step.target != "source"
        if isinstance(step, Release):
            assert attempt.is_exploring
            attempt.is_stopping = True
            continue
        if isinstance(step, Switch):
            assert attempt.state is AttemptState.PREPARING or not attempt.is_live
            return
        assert not attempt.is_live
        assert targets[step.target].pre_copy != "none"
        assert rule == "pre-copy"
        world.read(step.target, position, now=now)
