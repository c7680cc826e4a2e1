"""The budget rule holds for what really happens: in total from the 500th request on, and in every window of 500."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamco.errors import ConfigError, UsageError
from streamco.policies.budget_control import BudgetSteering, Reservation, steer
from streamco.policies.dispatch import Decision, Side
from tests.policies.worlds import realised

EDGE = 1e-9  # rounding of the test's own sums


def run(steering: BudgetSteering, lengths: Sequence[int], wants: Callable[[int], bool] = lambda _: True) -> list[bool]:
    """One request after another; whoever may start does."""
    started = []
    for length in lengths:
        reservation = steering.reserve(length, wanted=wants(length))
        steering.settle(reservation, started=reservation.is_allowed)
        started.append(reservation.is_allowed)
    return started


def run_overlapping(
    steering: BudgetSteering, lengths: Sequence[int], seed: int, *, at_once: int, exempt: float
) -> tuple[list[int], list[bool]]:
    """Up to ``at_once`` requests together, settled in any order, some exempt; those that count, in the order of arrival."""
    rng = Random(seed)
    arrived: list[tuple[int, Reservation]] = []
    outcome: dict[int, bool | None] = {}
    open_requests: list[int] = []
    for index, length in enumerate(lengths):
        arrived.append((length, steering.reserve(length)))
        open_requests.append(index)
        while len(open_requests) >= at_once or (open_requests and rng.random() < 0.4):
            done = open_requests.pop(rng.randrange(len(open_requests)))
            started = arrived[done][1].is_allowed and rng.random() < 0.9
            is_exempt = rng.random() < exempt
            steering.settle(arrived[done][1], started=started, exempt=is_exempt)
            outcome[done] = None if is_exempt else started
    for index in open_requests:
        steering.settle(arrived[index][1], started=False)
        outcome[index] = False
    counted = [index for index in range(len(lengths)) if outcome[index] is not None]
    return [lengths[index] for index in counted], [bool(outcome[index]) for index in counted]


def heavy_tailed(seed: int, size: int = 3000) -> list[int]:
    return [max(1, int(length)) for length in np.random.default_rng(seed).lognormal(3.0, 2.0, size)]


# The rule


@settings(max_examples=25)
@given(
    st.lists(st.one_of(st.integers(1, 50), st.integers(1, 1_000_000)), min_size=20, max_size=200),
    st.sampled_from([0.02, 0.1, 0.3, 0.7, 0.93]),
    st.randoms(use_true_random=False),
)
def test_the_total_rule_holds_for_any_lengths(pattern: list[int], budget: float, rng: Random) -> None:
    lengths = [rng.choice(pattern) for _ in range(400)] + pattern * 6
    lengths = lengths[:1600]
    lengths += [1] * max(0, 600 - len(lengths))
    total, _ = realised(lengths, run(BudgetSteering(budget), lengths))
    assert total <= budget + 0.01 + EDGE


@settings(max_examples=25)
@given(
    st.lists(st.one_of(st.just(1), st.integers(1, 50), st.integers(1, 1_000_000)), min_size=20, max_size=200),
    st.sampled_from([0.02, 0.1, 0.3, 0.7, 0.93]),
)
def test_with_a_floor_both_rules_hold_for_any_lengths(pattern: list[int], budget: float) -> None:
    lengths = (pattern * 80)[:1600]
    total, window = realised(lengths, run(BudgetSteering(budget, floor=1), lengths))
    assert total <= budget + 0.01 + EDGE
    assert window <= budget + 0.05 + EDGE


@settings(max_examples=25)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.sampled_from([0.05, 0.3, 0.8]), st.integers(0, 10**6))
def test_steady_traffic_keeps_the_window_rule_without_a_floor(pattern: list[int], budget: float, seed: int) -> None:
    """Lengths drawn from any distribution, with a few single prompts ten thousand times the longest."""
    rng = Random(seed)
    lengths = [rng.choice(pattern) for _ in range(1500)]
    for _ in range(4):
        lengths[rng.randrange(1500)] = 4_000_000
    total, window = realised(lengths, run(BudgetSteering(budget), lengths))
    assert total <= budget + 0.01 + EDGE
    assert window <= budget + 0.05 + EDGE


@pytest.mark.parametrize("budget", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_heavy_tails_keep_both_rules(budget: float, seed: int) -> None:
    lengths = heavy_tailed(seed)
    wishes: list[Callable[[int], bool]] = [lambda _: True, lambda length: length > 50, lambda length: length < 50]
    for wants in wishes:
        total, window = realised(lengths, run(BudgetSteering(budget), lengths, wants))
        assert total <= budget + 0.01 + EDGE
        assert window <= budget + 0.05 + EDGE


@pytest.mark.parametrize("budget", [0.05, 0.3, 0.8])
def test_traffic_that_grows_short_keeps_both_rules(budget: float) -> None:
    for pattern in ([200] * 1500 + [20] * 1500, [20] * 1500 + [200] * 1500, ([150] * 250 + [40] * 250) * 6):
        total, window = realised(pattern, run(BudgetSteering(budget), pattern))
        assert total <= budget + 0.01 + EDGE
        assert window <= budget + 0.05 + EDGE


@settings(max_examples=20)
@given(
    st.lists(st.one_of(st.integers(1, 60), st.integers(1, 20_000)), min_size=10, max_size=60),
    st.sampled_from([0.05, 0.3, 0.8]),
    st.integers(0, 10**6),
    st.integers(2, 40),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_overlapping_requests_keep_both_rules(pattern: list[int], budget: float, seed: int, at_once: int, exempt: float) -> None:
    lengths = (pattern * 150)[:1400]
    steering = BudgetSteering(budget, floor=1)
    counted, started = run_overlapping(steering, lengths, seed, at_once=at_once, exempt=exempt)
    assert steering.requests == len(counted)
    assert steering.tokens == sum(counted)
    assert steering.spent_tokens == sum(length for length, was in zip(counted, started, strict=True) if was)
    assert steering.exempt_requests == len(lengths) - len(counted)
    if len(counted) >= 500:
        total, window = realised(counted, started)
        assert total <= budget + 0.01 + EDGE
        assert window <= budget + 0.05 + EDGE


@pytest.mark.parametrize("seed", [5, 6])
def test_overlapping_steady_traffic_keeps_both_rules_without_a_floor(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(5, 60, 2500).tolist()
    counted, started = run_overlapping(BudgetSteering(0.3), lengths, seed, at_once=16, exempt=0.1)
    total, window = realised(counted, started)
    assert total <= 0.31 + EDGE
    assert window <= 0.35 + EDGE


def test_other_windows_keep_the_rule_too() -> None:
    lengths = np.random.default_rng(7).integers(1, 100, 1200).tolist()
    total, window = realised(lengths, run(BudgetSteering(0.2, window=100), lengths), window=100)
    assert total <= 0.21 + EDGE
    assert window <= 0.25 + EDGE


# It doesn't starve either


@pytest.mark.parametrize("budget", [0.05, 0.3, 0.8])
def test_the_budget_can_be_spent(budget: float) -> None:
    cases = ([100] * 3000, 0.0), (np.random.default_rng(8).integers(1, 40, 3000).tolist(), 0.0), (heavy_tailed(9), 0.15)
    for lengths, short in cases:
        steering = BudgetSteering(budget)
        run(steering, lengths)
        assert steering.share >= budget - short  # where a few prompts hold half the tokens, caution costs some


def test_rare_long_prompts_are_not_shut_out() -> None:
    """One in twenty prompts holds nearly all tokens, and the plan wants just those."""
    rng = np.random.default_rng(10)
    lengths = np.where(rng.random(4000) < 0.05, 10_000, 10).tolist()
    steering = BudgetSteering(0.3)
    total, window = realised(lengths, run(steering, lengths, lambda length: length > 100))
    assert steering.share > 0.25
    assert total <= 0.31 + EDGE
    assert window <= 0.35 + EDGE


@pytest.mark.parametrize(("budget", "started"), [(0.1, 2), (0.3, 4), (0.5, 6), (0.8, 9)])
def test_the_budget_is_a_cap_from_the_first_answer_on_and_one_prompt_more(budget: float, started: int) -> None:
    steering = BudgetSteering(budget)
    shares = []
    for tokens in [20] * 10:
        run(steering, [tokens])
        shares.append(steering.share)
    assert shares[0] == 1.0
    assert all(share <= budget + 0.01 + 1 / answers + EDGE for answers, share in enumerate(shares, 1))
    assert round(10 * shares[-1]) == started


@settings(max_examples=50)
@given(
    st.lists(st.one_of(st.integers(1, 50), st.integers(1, 1_000_000)), min_size=1, max_size=120),
    st.sampled_from([0.02, 0.1, 0.3, 0.7, 0.93]),
    st.booleans(),
)
def test_no_start_takes_the_share_past_the_budget_by_more_than_a_mean_prompt(lengths: list[int], budget: float, has_floor: bool) -> None:
    started = run(BudgetSteering(budget, floor=1 if has_floor else None), lengths)
    tokens, spent = np.cumsum(lengths), np.cumsum(np.where(started, lengths, 0))
    for answers, was_started in enumerate(started, 1):
        if was_started:
            assert spent[answers - 1] <= (budget + 0.01 + 1 / answers) * tokens[answers - 1] + EDGE


def test_a_first_prompt_longer_than_what_later_ones_surely_bring_waits() -> None:
    steering = BudgetSteering(0.3)
    assert steering.allows(100)
    assert not steering.allows(300)  # 499 prompts of one token might follow


def test_no_budget_never_and_a_whole_budget_always() -> None:
    assert run(BudgetSteering(0.0), [5] * 700) == [False] * 700
    assert run(BudgetSteering(1.0), [5, 10**9] * 350) == [True] * 700


def test_a_policy_that_spends_less_is_never_denied() -> None:
    steering = BudgetSteering(0.3)
    run(steering, [30, 20, 25, 25] * 500, lambda length: length == 30)
    assert steering.denied_requests == 0
    assert steering.share == pytest.approx(0.3)


# The account


def test_what_is_reserved_counts_until_it_is_settled() -> None:
    steering = BudgetSteering(0.3)
    held = [steering.reserve(50) for _ in range(10)]
    assert [reservation.is_allowed for reservation in held].count(True) == 1  # nothing has been settled yet, so one prompt
    assert not steering.allows(50)
    for reservation in held:
        steering.settle(reservation, started=False)
    assert steering.allows(50)
    assert steering.share == 0.0
    assert steering.denied_requests == 9


def test_asking_reserves_nothing() -> None:
    steering = BudgetSteering(0.3)
    assert all(steering.allows(100) for _ in range(50))
    assert steering.requests == 0


def test_exempt_requests_are_left_out_and_reported_apart() -> None:
    steering = BudgetSteering(0.3)
    for _ in range(20):
        steering.settle(steering.reserve(1000, wanted=False), started=True, exempt=True)
    steering.settle(steering.reserve(10, wanted=False), started=False, exempt=True)
    assert (steering.requests, steering.tokens, steering.spent_tokens) == (0, 0, 0)
    assert (steering.exempt_requests, steering.exempt_tokens, steering.exempt_spent_tokens) == (21, 20_010, 20_000)
    assert steering.allows(50)


def test_a_request_taken_out_leaves_the_others_as_they_were() -> None:
    """With exempt requests in between, allowed or not, every other decision is the same as without them."""
    lengths = np.random.default_rng(12).integers(1, 80, 2500).tolist()
    plain, mixed = BudgetSteering(0.3, floor=2), BudgetSteering(0.3, floor=2)
    rng = Random(12)
    for length in lengths:
        if rng.random() < 0.3:
            extra = mixed.reserve(rng.randrange(1, 200), wanted=rng.random() < 0.5)
            mixed.settle(extra, started=rng.random() < 0.5, exempt=True)
        one, other = plain.reserve(length), mixed.reserve(length)
        assert one.is_allowed == other.is_allowed
        plain.settle(one, started=one.is_allowed)
        mixed.settle(other, started=other.is_allowed)
    assert plain.share == mixed.share


def test_a_request_may_stay_open_for_thousands_of_others() -> None:
    for is_exempt in (False, True):
        steering = BudgetSteering(0.3, floor=1)
        slow = steering.reserve(100)
        assert slow.is_allowed
        lengths = np.random.default_rng(13).integers(1, 80, 6000).tolist()
        started = run(steering, lengths)
        steering.settle(slow, started=True, exempt=is_exempt)
        lengths_after = lengths[:1500]
        started += run(steering, lengths_after)
        total, window = realised(lengths + lengths_after, started)
        assert total <= 0.31 + EDGE
        assert window <= 0.35 + EDGE
        assert steering.requests == 7500 + (not is_exempt)


def test_a_start_without_leave_is_counted_as_it_happened() -> None:
    steering = BudgetSteering(0.3)
    steering.settle(steering.reserve(1000, wanted=False), started=True)
    assert steering.share == 1.0
    assert not steering.allows(10)


def test_a_reservation_is_settled_once() -> None:
    steering = BudgetSteering(0.3)
    reservation = steering.reserve(10)
    steering.settle(reservation, started=True)
    with pytest.raises(UsageError, match="reservation: already settled"):
        steering.settle(reservation, started=True)


def test_a_prompt_of_unknown_length_counts_one_token() -> None:
    steering = BudgetSteering(0.3)
    steering.settle(steering.reserve(0), started=True)
    assert steering.tokens == 1


@pytest.mark.parametrize(("budget", "window", "floor"), [(1.2, 500, None), (-0.1, 500, None), (0.3, 0, None), (0.3, 500, 0.5)])
def test_settings_out_of_range_are_refused(budget: float, window: int, floor: float | None) -> None:
    with pytest.raises(ConfigError, match="expected"):
        BudgetSteering(budget, window=window, floor=floor)


# Turning decisions


@pytest.mark.parametrize(("constrained", "waits"), [("device", (None, 0.0)), ("server", (0.0, None))])
def test_a_denied_side_is_left_out(constrained: Side, waits: tuple[float | None, float | None]) -> None:
    decision = Decision(0.0, 0.0, "optimal", "both", explore=True)
    assert steer(decision, constrained, is_allowed=True) is decision
    denied = steer(decision, constrained, is_allowed=False)
    assert (denied.device_wait, denied.server_wait) == waits
    assert denied.reason == f"no room in the budget: {constrained} not started"
    assert denied.policy == "optimal"
    assert not denied.explore


def test_a_decision_without_the_constrained_side_needs_no_leave() -> None:
    alone = Decision(0.0, None, "server-constrained", "short prompt, device alone")
    assert steer(alone, "server", is_allowed=False) is alone


def test_the_only_side_is_taken_from_a_decision_for_it_alone() -> None:
    alone = Decision(None, 0.0, "server-only", "server alone")
    assert steer(alone, "server", is_allowed=False).device_wait == 0.0


# Credit


def run_on_credit(steering: BudgetSteering, lengths: Sequence[int], is_worth: Callable[[int], bool]) -> list[tuple[bool, bool]]:
    """One request after another; whoever may start does; whether it did, and whether that was borrowed."""
    outcome = []
    for index, length in enumerate(lengths):
        reservation = steering.reserve(length, on_credit=is_worth(index))
        steering.settle(reservation, started=reservation.is_allowed)
        outcome.append((reservation.is_allowed, reservation.is_borrowed))
    return outcome


@settings(max_examples=25)
@given(
    st.lists(st.one_of(st.integers(1, 50), st.integers(1, 5_000)), min_size=1, max_size=100),
    st.sampled_from([0.02, 0.1, 0.3, 0.7]),
    st.sampled_from([1, 300, 4096, 100_000]),
    st.sampled_from([0.05, 0.5, 1.0]),
    st.integers(0, 1000),
)
def test_no_more_than_the_burst_is_ever_owed(pattern: list[int], budget: float, burst: int, busy: float, seed: int) -> None:
    rng = Random(seed)
    lengths = [rng.choice(pattern) for _ in range(1600)]
    outcome = run_on_credit(BudgetSteering(budget, burst=burst), lengths, lambda _: rng.random() < busy)
    spent = np.cumsum([length if started else 0 for length, (started, _) in zip(lengths, outcome, strict=True)])
    seen = np.cumsum(lengths)
    assert np.all(spent[499:] - (budget + 0.01) * seen[499:] <= burst + EDGE), "in total, from the 500th on"
    for start in range(0, len(lengths) - 500, 7):
        window = spent[start + 499] - (spent[start - 1] if start else 0), seen[start + 499] - (seen[start - 1] if start else 0)
        assert window[0] <= (budget + 0.05) * window[1] + burst + EDGE, "in any 500"


@settings(max_examples=25)
@given(
    st.lists(st.one_of(st.integers(1, 50), st.integers(1, 5_000)), min_size=1, max_size=100),
    st.sampled_from([0.02, 0.1, 0.3, 0.7]),
    st.sampled_from([300, 4096, 100_000]),
    st.integers(0, 1000),
)
def test_only_what_was_borrowed_is_owed_and_each_answer_without_credit_pays_back(
    pattern: list[int], budget: float, burst: int, seed: int
) -> None:
    """From the 500th answer on the share is at most budget + 0.01, but for a debt, which only credit makes larger."""
    rng = Random(seed)
    lengths = [rng.choice(pattern) for _ in range(2400)]
    busy = [rng.random() < 0.05 for _ in range(24)]
    outcome = run_on_credit(BudgetSteering(budget, burst=burst), lengths, lambda index: busy[index // 100])
    owed, is_indebted = 0.0, False
    for index, (length, (started, is_borrowed)) in enumerate(zip(lengths, outcome, strict=True)):
        before, owed = owed, owed + length * (started - budget - 0.01)
        is_indebted = is_borrowed or (is_indebted and owed > EDGE)
        if index >= 500:
            assert owed <= EDGE or is_indebted
            assert is_borrowed or owed <= max(before, EDGE)


@pytest.mark.parametrize("busy", [12, 40])
def test_what_was_borrowed_is_paid_back(busy: int) -> None:
    lengths = [250] * 1000
    outcome = run_on_credit(BudgetSteering(0.3, burst=4096), lengths, lambda index: 0 < index < busy)
    borrowed = [index for index, (_, is_borrowed) in enumerate(outcome) if is_borrowed]
    assert borrowed, "the first ones are late, and the budget is spent"
    assert max(borrowed) < busy
    assert sum(started for started, _ in outcome[:200]) / 200 <= 0.31
    assert 0.29 <= sum(started for started, _ in outcome) / 1000 <= 0.31, "the budget is used as before in the end"


def test_under_lasting_load_the_budget_wins() -> None:
    outcome = run_on_credit(BudgetSteering(0.3, burst=4096), [250] * 3000, lambda _: True)
    assert sum(started for started, _ in outcome[2000:]) / 1000 <= 0.32
    assert sum(is_borrowed for _, is_borrowed in outcome) * 250 >= 4000


def test_a_lasting_crowd_of_short_prompts_borrows_no_more_than_32_of_them() -> None:
    lengths = [17] * 2000
    outcome = run_on_credit(BudgetSteering(0.3, burst=4096), lengths, lambda _: True)
    assert sum(started for started, _ in outcome) <= 0.31 * 2000 + 32
    assert [is_borrowed for _, is_borrowed in outcome[:60]].count(True) > 12


def test_without_credit_or_a_burst_the_rules_are_the_old_ones() -> None:
    rng = Random(3)
    lengths = [rng.randrange(1, 900) for _ in range(1500)]
    plain = run(BudgetSteering(0.3), lengths)
    assert run(BudgetSteering(0.3, burst=4096), lengths) == plain
    assert [started for started, _ in run_on_credit(BudgetSteering(0.3), lengths, lambda _: True)] == plain


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_a_budget_of_nothing_or_everything_borrows_nothing(budget: float) -> None:
    outcome = run_on_credit(BudgetSteering(budget, burst=4096), [10] * 700, lambda _: True)
    assert outcome == [(budget == 1.0, False)] * 700


def test_what_is_borrowed_and_not_used_is_owed_no_more() -> None:
    steering = BudgetSteering(0.3, burst=1000)
    reservations = [steering.reserve(300, on_credit=True) for _ in range(8)]
    assert 1 <= [each.is_borrowed for each in reservations].count(True) <= 4
    for each in reservations:
        steering.settle(each, started=False)
    assert steering.reserve(300).is_allowed


@pytest.mark.parametrize("burst", [-1, 1.5, True, None])
def test_a_burst_is_a_number_of_tokens(burst: object) -> None:
    with pytest.raises(ConfigError, match=r"^burst: expected a number of tokens of 0 or more, got"):
        BudgetSteering(0.3, burst=burst)  # type: ignore[arg-type]
