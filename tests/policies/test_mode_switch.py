"""When drafting pays: rounds by hand, DSD's equation 2, and links and models on which it must never cost a twentieth."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.errors import ConfigError
from streamco.policies.acceptance import expected_tokens, solve_acceptance
from streamco.policies.mode_switch import ModeSwitch, Predicted, RoundConditions, best_window, predict_rates, round_seconds
from streamco.policies.window import Static, WindowPolicy, WindowState
from tests.support.examples import examples

LARGE = RoundConditions(acceptance=0.75, window=4, draft_step=0.02, remote_step=0.06, verify=0.06, rtt=0.03)
conditions = st.builds(
    RoundConditions,
    acceptance=st.floats(0.0, 1.0),
    window=st.integers(1, 12),
    draft_step=st.floats(0.001, 0.1),
    remote_step=st.floats(0.005, 0.2),
    verify=st.floats(0.005, 0.5),
    verify_token=st.floats(0.0, 0.01),
    rtt=st.floats(0.0, 0.5),
    hit_rate=st.floats(0.0, 1.0),
    slowdown=st.floats(1.0, 4.0),
    adopted=st.none() | st.floats(0.0, 12.0),
    budget=st.floats(0.05, 1.0),
)

# Rates


def test_a_round_that_waits_takes_its_draft_and_its_verdict() -> None:
    assert round_seconds(LARGE, is_parallel=False) == pytest.approx(4 * 0.02 + 0.03 + 0.06)
    rates = predict_rates(LARGE)
    assert rates.device == 50.0
    assert rates.remote == pytest.approx(1 / 0.06)
    assert rates.waiting == pytest.approx(expected_tokens(0.75, 4) / 0.17)


def test_a_pre_drafted_branch_saves_the_steps_that_fit_into_the_wait() -> None:
    half = replace(LARGE, hit_rate=0.5)
    assert round_seconds(half, is_parallel=True) == pytest.approx(0.17 - 0.5 * 4 * 0.02)  # 4.5 steps fit, 4 are needed
    slow = replace(half, slowdown=1.5)
    assert round_seconds(slow, is_parallel=True) == pytest.approx(0.17 - 0.5 * 3 * 0.02)
    assert round_seconds(replace(LARGE, hit_rate=1.0), is_parallel=True) == pytest.approx(0.09)
    assert round_seconds(replace(slow, adopted=2.5), is_parallel=True) == pytest.approx(0.17 - 0.5 * 2.5 * 0.02)  # measured
    assert round_seconds(replace(slow, adopted=9.0), is_parallel=True) == pytest.approx(0.17 - 0.5 * 4 * 0.02)
    assert best_window(replace(half, adopted=1.0), is_parallel=True) == best_window(half, is_parallel=True)


def test_drafts_that_are_sent_ahead_make_rounds_shorter_where_drafting_goes_on_in_parallel() -> None:
    ahead = replace(LARGE, ahead=0.02)
    assert round_seconds(ahead, is_parallel=True) == pytest.approx(round_seconds(LARGE, is_parallel=True) - 0.02)
    assert round_seconds(ahead, is_parallel=False) == round_seconds(LARGE, is_parallel=False)


def test_bytes_take_their_time_on_a_thin_link() -> None:
    thin = replace(LARGE, round_transfer=0.008, token_transfer=0.001, verify_token=0.002)
    assert thin.wait == pytest.approx(0.03 + 0.06 + 0.008 + 4 * 0.003)


@pytest.mark.parametrize(("alpha", "window", "ratio"), [(0.7, 4, 0.1), (0.9, 8, 0.05), (0.3, 2, 0.5), (0.0, 3, 0.2)])
def test_without_a_link_the_speedup_is_equation_2_of_dsd(alpha: float, window: int, ratio: float) -> None:
    local = RoundConditions(acceptance=alpha, window=window, draft_step=ratio * 0.05, remote_step=0.05, verify=0.05)
    rates = predict_rates(local)
    assert rates.waiting / rates.remote == pytest.approx((1 - alpha ** (window + 1)) / ((1 - alpha) * (ratio * window + 1)))


def test_local_chunks_cost_their_draft_alone() -> None:
    selective = replace(LARGE, budget=0.2)
    tokens = 0.2 * expected_tokens(0.75, 4) + 0.8 * 4
    assert predict_rates(selective).waiting == pytest.approx(tokens / (0.2 * 0.17 + 0.8 * 0.08))


def test_without_a_link_only_the_device_is_left() -> None:
    rates = predict_rates(replace(LARGE, rtt=math.inf))
    assert (rates.device, rates.remote, rates.waiting, rates.parallel, rates.speculative) == (50.0, 0.0, 0.0, 0.0, 0.0)
    assert math.isinf(round_seconds(replace(LARGE, rtt=math.inf), is_parallel=True))


@given(conditions, st.floats(0.0, 1.0), st.floats(0.0, 0.5))
def test_more_acceptance_is_never_slower_and_a_longer_link_never_faster(state: RoundConditions, acceptance: float, rtt: float) -> None:
    better, longer = replace(state, acceptance=max(acceptance, state.acceptance)), replace(state, rtt=state.rtt + rtt)
    assert predict_rates(better).waiting >= predict_rates(state).waiting - 1e-9
    assert predict_rates(longer).waiting <= predict_rates(state).waiting + 1e-9
    assert predict_rates(state).parallel >= predict_rates(state).waiting - 1e-9
    assert predict_rates(longer).remote == predict_rates(state).remote


def test_what_a_drafted_token_costs_in_energy_counts_as_time() -> None:
    dear = replace(LARGE, energy=0.01)
    assert predict_rates(dear).remote == predict_rates(LARGE).remote
    assert predict_rates(dear).device == pytest.approx(1.0 / 0.03)
    assert 1.0 / predict_rates(dear).waiting - 1.0 / predict_rates(LARGE).waiting == pytest.approx(4 * 0.01 / expected_tokens(0.75, 4))
    branches = predict_rates(replace(dear, drafted=12.0))
    assert branches.waiting == predict_rates(dear).waiting
    assert branches.parallel < predict_rates(dear).parallel
    assert round_seconds(dear, is_parallel=True) == round_seconds(LARGE, is_parallel=True)
    assert best_window(replace(LARGE, energy=0.1), is_parallel=True) < best_window(LARGE, is_parallel=True)


@given(conditions, st.booleans())
def test_no_window_beats_the_best_one(state: RoundConditions, is_parallel: bool) -> None:
    def rate(window: int) -> float:
        rates = predict_rates(replace(state, window=window, adopted=None))
        return rates.parallel if is_parallel else rates.waiting

    best = best_window(state, is_parallel=is_parallel)
    assert rate(best) == max(rate(window) for window in range(1, 13))


def test_the_best_window_is_longer_on_a_longer_link_and_at_a_higher_acceptance() -> None:
    assert best_window(LARGE, is_parallel=False) < best_window(replace(LARGE, rtt=0.3), is_parallel=False)
    assert best_window(replace(LARGE, acceptance=0.3), is_parallel=False) < best_window(replace(LARGE, acceptance=0.95), is_parallel=False)


def test_conditions_without_a_round_are_refused() -> None:
    for changes in ({"window": 0}, {"draft_step": 0.0}, {"remote_step": 0.0}, {"budget": 0.0}, {"slowdown": 0.0}):
        with pytest.raises(ConfigError, match="conditions: expected a window >= 1"):
            replace(LARGE, **changes)


# The switch

HOPELESS = replace(LARGE, acceptance=0.05)


def test_drafting_begins_where_it_pays_and_does_not_where_it_does_not() -> None:
    assert ModeSwitch(is_lossless=True).choose(LARGE) == "speculate"
    assert ModeSwitch(is_lossless=True).choose(HOPELESS) == "remote"


def test_it_takes_two_rounds_in_a_row_to_change_the_mode() -> None:
    switch = ModeSwitch(is_lossless=True)
    assert [switch.choose(state) for state in (LARGE, HOPELESS, LARGE, HOPELESS, HOPELESS)] == [
        "speculate", "speculate", "speculate", "speculate", "remote",
    ]  # fmt: skip
    assert [switch.choose(state) for state in (LARGE, LARGE)] == ["remote", "speculate"]


def test_a_forecast_a_little_below_the_stream_does_not_end_drafting_and_does_not_begin_it() -> None:
    near = next(state for share in range(100) if 0.93 < ratio(state := replace(LARGE, acceptance=share / 100)) < 0.99)
    far = next(state for share in range(100) if 0.8 < ratio(state := replace(LARGE, acceptance=share / 100)) < 0.89)
    switch = ModeSwitch(is_lossless=True)
    assert [switch.choose(state) for state in (LARGE, near, near, near)] == ["speculate"] * 4
    assert [switch.choose(state) for state in (far, far)] == ["speculate", "remote"]
    assert [switch.choose(state) for state in (near, near, near)] == ["remote"] * 3
    assert ModeSwitch(is_lossless=True).choose(near) == "remote"


def ratio(state: RoundConditions) -> float:
    rates = predict_rates(state)
    return rates.speculative / rates.remote


def test_a_window_of_1_asks_for_fused_mode() -> None:
    switch = ModeSwitch(is_lossless=True)
    assert [switch.choose(LARGE, window=window) for window in (4, 1, 1, 4, 4)] == [
        "speculate",
        "speculate",
        "remote",
        "remote",
        "speculate",
    ]


def test_a_policy_that_has_weighed_fused_mode_is_believed() -> None:
    switch = ModeSwitch(is_lossless=True)
    assert [switch.choose(HOPELESS, window=4.0, policy_decides=weighed) for weighed in (True, True, False, False)] == [
        "speculate",
        "speculate",
        "speculate",
        "remote",
    ]
    assert [switch.choose(LARGE, window=0.0, policy_decides=True) for _ in range(2)] == ["remote", "remote"]


def test_nobody_is_believed_who_would_draft_over_a_lost_link() -> None:
    assert ModeSwitch(is_lossless=True).choose(replace(LARGE, rtt=math.inf), window=4.0, policy_decides=True) == "remote"


def test_a_lost_link_changes_the_mode_at_once() -> None:
    lost = replace(LARGE, rtt=math.inf)
    lossless, selective = ModeSwitch(is_lossless=True), ModeSwitch(is_lossless=False)
    assert [lossless.choose(LARGE), lossless.choose(lost)] == ["speculate", "remote"]
    assert [selective.choose(LARGE), selective.choose(lost)] == ["speculate", "device"]
    assert [selective.choose(LARGE), selective.choose(LARGE)] == ["device", "speculate"]


def test_a_selective_answer_may_be_slower_than_the_device_but_not_than_its_reader() -> None:
    slow = replace(LARGE, budget=0.5, rtt=0.5)
    assert 4.8 < predict_rates(slow).speculative < predict_rates(slow).device
    assert ModeSwitch(is_lossless=False).choose(slow) == "speculate"
    assert ModeSwitch(is_lossless=False).choose(replace(slow, rtt=3.0)) == "device"
    assert ModeSwitch(is_lossless=False, min_rate=40.0).choose(slow) == "device"


def test_a_device_slower_than_the_reader_is_no_way_out() -> None:
    crawling = replace(LARGE, draft_step=1.0, rtt=0.2, acceptance=0.99)
    assert 1.0 < predict_rates(crawling).speculative < 4.8
    assert ModeSwitch(is_lossless=False).choose(crawling) == "speculate"


def test_rounds_that_give_nothing_are_stopped_by_the_ledger_whatever_the_forecast_says() -> None:
    switch, tried = ModeSwitch(is_lossless=True), 0
    for _ in range(4):
        assert switch.mode == "speculate"
        if switch.choose(LARGE) == "speculate":
            switch.record("speculate", seconds=0.17, tokens=1, remote_step=0.06)
            tried += 1
    assert tried == 3
    assert switch.lost_seconds == pytest.approx(3 * (0.17 - 0.06))
    assert switch.choose(LARGE) == "remote"


def test_where_a_round_takes_many_steps_only_one_may_fail_for_a_start() -> None:
    long_round = replace(LARGE, rtt=0.3)
    switch = ModeSwitch(is_lossless=True)
    seconds = round_seconds(long_round, is_parallel=False)
    assert switch.choose(replace(long_round, acceptance=0.99, window=12)) == "speculate"
    switch.record("speculate", seconds=seconds, tokens=1, remote_step=long_round.remote_step)
    assert switch.choose(replace(long_round, acceptance=0.99, window=12)) == "remote"


def test_against_the_forecast_a_round_is_tried_when_it_costs_a_hundredth_of_the_time() -> None:
    switch = ModeSwitch(is_lossless=True)
    modes = []
    for _ in range(600):
        modes.append(switch.choose(HOPELESS))
        if modes[-1] == "speculate":
            switch.record("speculate", seconds=0.17, tokens=1, remote_step=0.06)
        else:
            switch.record("remote", seconds=0.24, tokens=4, remote_step=0.06)
    assert switch.probes == modes.count("speculate") > 5
    assert switch.lost_seconds <= 0.01 * switch.seconds
    assert modes.index("speculate") * 0.24 * 0.01 == pytest.approx(0.11, abs=0.003)


class World:
    """A pair, a link and a verifier as they are; what is known about them is learned from the rounds."""

    def __init__(self, truth: RoundConditions, believed: float, seed: int) -> None:
        self.truth = truth
        self.known = replace(truth, acceptance=believed)
        self.rng = Random(seed)
        self.rounds: list[tuple[int, int]] = []
        self.seconds, self.tokens = 0.0, 0

    def run(self, switch: ModeSwitch, seconds: float) -> float:
        """Rounds for so long; gives tokens per second as a share of plain remote."""
        self.seconds, self.tokens = 0.0, 0
        while self.seconds < seconds:
            mode = switch.choose(self.known)
            if mode == "speculate":
                window = self.truth.window
                given = 1 + next((place for place in range(window) if self.rng.random() >= self.truth.acceptance), window)
                took = round_seconds(self.truth, is_parallel=False)
                if self.rng.random() < self.truth.hit_rate:
                    took = round_seconds(replace(self.truth, hit_rate=1.0), is_parallel=True)
                self.rounds = [*self.rounds[-31:], (window, given)]
                if len(self.rounds) >= 4:
                    self.known = replace(self.known, acceptance=solve_acceptance(self.rounds) or 0.0)
            else:
                given, took = 4, 4 * self.truth.remote_step
            switch.record(mode, seconds=took, tokens=given, remote_step=self.truth.remote_step)
            self.seconds += took
            self.tokens += given
        return self.tokens / self.seconds * self.truth.remote_step


GRID = list(product((0.0, 0.01, 0.03, 0.06, 0.12), (0.05, 0.3, 0.5, 0.75, 0.95), ((0.02, 0.03), (0.02, 0.06), (0.01, 0.12), (0.03, 0.01))))


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("believed", [0.0, 0.7, 1.0])
def test_the_rate_is_never_below_19_twentieths_of_plain_remote(believed: float) -> None:
    """Every RTT x acceptance x step time, whatever was believed at first."""
    worst = 1.0
    for place, (rtt, acceptance, (draft_step, remote_step)) in enumerate(GRID):
        truth = RoundConditions(acceptance=acceptance, window=4, draft_step=draft_step, remote_step=remote_step, verify=remote_step,
        rtt=rtt,
                           hit_rate=0.4)  # fmt: skip
        worst = min(worst, World(truth, believed, place).run(ModeSwitch(is_lossless=True), 60.0))
    assert worst >= 0.95


@settings(max_examples=examples(10, thorough=30))
@example(RoundConditions(acceptance=0.0, window=4, draft_step=1 / 32, remote_step=3 / 16, verify=1 / 32, rtt=1 / 16), 1.0, 0, False)
@example(RoundConditions(acceptance=0.0, window=4, draft_step=1 / 32, remote_step=3 / 16, verify=1 / 32, rtt=1 / 16), 0.0, 0, True)
@given(conditions, st.floats(0.0, 1.0), st.integers(0, 1000), st.booleans())
def test_a_lying_forecast_cannot_break_the_floor(truth: RoundConditions, believed: float, seed: int, policy_decides: bool) -> None:
    truth = replace(truth, budget=1.0)
    world = World(truth, believed, seed)
    switch = ModeSwitch(is_lossless=True)
    lost = 0.0
    for _ in range(400):
        mode = switch.choose(replace(truth, acceptance=believed), policy_decides=policy_decides)
        took, given = (round_seconds(truth, is_parallel=False), 1) if mode == "speculate" else (truth.remote_step * 4, 4)
        switch.record(mode, seconds=took, tokens=given, remote_step=truth.remote_step)
        lost += took - given * truth.remote_step
        world.seconds += took
        worst = max(0.0, round_seconds(truth, is_parallel=False) - truth.remote_step)
        assert lost <= 0.02 * world.seconds + max(worst, min(3 * worst, 8 * truth.remote_step)) + 1e-9


def test_where_drafting_pays_nearly_all_of_its_gain_is_had() -> None:
    truth = replace(LARGE, remote_step=0.1, verify=0.1, acceptance=0.85, hit_rate=0.5)
    promised = predict_rates(truth).parallel * truth.remote_step
    assert promised > 1.5
    assert World(truth, 0.85, 1).run(ModeSwitch(is_lossless=True), 60.0) > 0.95 * promised
    assert World(truth, 0.0, 1).run(ModeSwitch(is_lossless=True), 60.0) > 0.5 * promised  # believed hopeless, found out by probes


def test_a_pair_that_turns_good_is_found_again_and_one_that_turns_bad_is_left() -> None:
    good = replace(LARGE, remote_step=0.1, verify=0.1, acceptance=0.85)
    world, switch = World(replace(good, acceptance=0.1), 0.1, 2), ModeSwitch(is_lossless=True)
    assert world.run(switch, 60.0) >= 0.97
    world.truth = good
    world.run(switch, 120.0)
    assert world.run(switch, 60.0) > 1.3
    world.truth = replace(good, acceptance=0.1)
    world.run(switch, 10.0)
    assert world.run(switch, 60.0) >= 0.95
    assert switch.mode == "remote"


def test_a_session_that_is_dear_to_open_is_opened_when_there_is_time_for_it() -> None:
    for seconds, opening, mode in ((1.0, 0.0, "speculate"), (1.0, 0.4, "remote"), (60.0, 0.4, "speculate")):
        switch = ModeSwitch(is_lossless=True)
        switch.record("remote", seconds=seconds, tokens=1, remote_step=0.06)
        assert switch.choose(LARGE, opening=opening) == mode


def test_savings_are_not_spent_on_rounds_against_the_forecast() -> None:
    switch = ModeSwitch(is_lossless=True)
    for _ in range(200):  # drafting saves a second
        assert switch.choose(LARGE) == "speculate"
        switch.record("speculate", seconds=0.1, tokens=3, remote_step=0.06)
    assert switch.lost_seconds < -0.9
    bad = replace(LARGE, acceptance=0.1)
    tried = 0
    for _ in range(10):
        if switch.choose(bad) == "speculate":
            tried += 1
            switch.record("speculate", seconds=0.17, tokens=1, remote_step=0.06)
    assert tried <= 3, "two until the mode changes, and what fits into 1 % of the time"


def test_what_went_well_for_an_hour_does_not_pay_for_what_goes_badly() -> None:
    lost = []
    for good in (0, 36000):
        switch = ModeSwitch(is_lossless=True)
        for _ in range(good):
            switch.choose(LARGE)
            switch.record("speculate", seconds=0.1, tokens=3, remote_step=0.06)
        before, began = switch.lost_seconds, switch.seconds
        while switch.seconds < began + 60.0:  # the model speaks for rounds that lose a tenth
            mode = switch.choose(LARGE)
            switch.record(mode, seconds=0.2, tokens=3, remote_step=0.06)
        lost.append(switch.lost_seconds - before)
    worst = round_seconds(LARGE, is_parallel=False) - LARGE.remote_step
    assert lost[0] <= 0.02 * 60.0 + 3 * worst
    assert lost[1] - lost[0] <= 10 * worst + 0.02, "ten rounds are paid for in advance"


def test_drafting_that_saved_time_begins_again_at_once_when_the_model_speaks_for_it_again() -> None:
    far = replace(LARGE, draft_step=0.014, remote_step=0.043, verify=0.09, rtt=0.06, window=3, acceptance=0.9, hit_rate=0.9, ahead=0.05)
    doubtful = replace(far, acceptance=0.3)
    switch = ModeSwitch(is_lossless=True)
    for _ in range(100):
        assert switch.choose(far) == "speculate"
        switch.record("speculate", seconds=0.13, tokens=4, remote_step=0.043)
    for _ in range(3):
        if switch.choose(doubtful) == "speculate":
            switch.record("speculate", seconds=0.19, tokens=1, remote_step=0.043)
    assert switch.mode == "remote"
    switch.record("remote", seconds=0.172, tokens=4, remote_step=0.043)
    assert [switch.choose(far) for _ in range(2)] == ["remote", "speculate"], "two proposals in a row, and no longer"


def streams_until_it_drafts(switch: ModeSwitch) -> float:
    """Seconds of the stream until drafting begins again."""
    began = switch.seconds
    while switch.choose(LARGE) == "remote":
        switch.record("remote", seconds=0.24, tokens=4, remote_step=0.06)
    return switch.seconds - began


WORST = round_seconds(LARGE, is_parallel=False) - LARGE.remote_step


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_connection_that_stalled_does_not_end_drafting_for_minutes(tokens: int) -> None:
    switch = ModeSwitch(is_lossless=True)
    switch.choose(LARGE)
    switch.record("speculate", seconds=30.0, tokens=tokens, remote_step=0.06)
    assert switch.lost_seconds == pytest.approx(30.0 - tokens * 0.06)
    assert 0.0 < streams_until_it_drafts(switch) <= 10 * WORST / 0.02


def test_a_long_way_back_to_the_stream_counts_whole() -> None:
    switch = ModeSwitch(is_lossless=True)
    switch.choose(LARGE)
    switch.record("speculate", seconds=5.0, tokens=0, remote_step=0.06, is_return=True)
    assert streams_until_it_drafts(switch) >= (5.0 - 3 * WORST) / 0.02


def test_a_long_way_to_a_verifier_counts_as_what_was_paid_for_it() -> None:
    switch = ModeSwitch(is_lossless=True)
    switch.choose(LARGE, opening=5.0)
    switch.record("remote", seconds=600.0, tokens=10000, remote_step=0.06)
    assert switch.choose(LARGE, opening=5.0) == "speculate"
    switch.record("speculate", seconds=5.0 + 0.17, tokens=1, remote_step=0.06)
    assert switch.choose(LARGE, opening=5.0) == "remote"
    switch.record("remote", seconds=200.0, tokens=3333, remote_step=0.06)
    assert switch.choose(LARGE, opening=5.0) == "remote", "four of the five seconds are paid again"


def test_a_round_against_the_forecast_costs_the_way_back_too() -> None:
    for return_time, mode in ((0.0, "speculate"), (2.0, "remote")):
        switch = ModeSwitch(is_lossless=True)
        switch.record("remote", seconds=60.0, tokens=1000, remote_step=0.06)
        assert switch.choose(HOPELESS, return_time=return_time) == mode


def test_who_goes_back_to_drafting_must_be_able_to_stay_for_a_while() -> None:
    switch = ModeSwitch(is_lossless=True)
    assert switch.choose(LARGE) == "speculate"
    for seconds in (0.17, 0.17, 0.17):
        switch.record("speculate", seconds=seconds, tokens=1, remote_step=0.06)
        last = switch.choose(LARGE)
    assert last == "remote"
    left_at = switch.lost_seconds
    while switch.choose(LARGE) == "remote":
        switch.record("remote", seconds=0.24, tokens=4, remote_step=0.06)
    switch.record("speculate", seconds=0.10, tokens=1, remote_step=0.06)
    assert switch.lost_seconds > left_at
    assert switch.choose(LARGE) == "speculate", "a weak round doesn't end it at once"


# The window that the arithmetic speaks for


KNOWN = WindowState(previous=4, acceptance=0.75, tpot=0.05, draft_step=0.01, wait=0.1, hit_rate=0.5, slowdown=1.2)


def rate(state: WindowState, window: int) -> float:
    assert state.acceptance is not None
    conditions = RoundConditions(
        acceptance=state.acceptance,
        window=window,
        draft_step=state.draft_step,
        remote_step=state.tpot,
        verify=state.wait,
        hit_rate=state.hit_rate,
        slowdown=state.slowdown,
    )
    return predict_rates(conditions).parallel


@given(st.floats(0.0, 1.0), st.floats(0.001, 0.1), st.floats(0.01, 0.5), st.floats(0.0, 1.0), st.floats(1.0, 4.0))
def test_no_window_of_the_range_is_predicted_to_be_faster(
    acceptance: float, draft_step: float, wait: float, hit_rate: float, slowdown: float
) -> None:
    state = replace(KNOWN, acceptance=acceptance, draft_step=draft_step, wait=wait, hit_rate=hit_rate, slowdown=slowdown)
    window = int(Predicted(min_window=1).propose(state))
    assert rate(state, window) == pytest.approx(max(rate(state, other) for other in range(1, 13)))


def test_surer_drafts_and_longer_links_get_longer_windows() -> None:
    policy = Predicted()
    usual = policy.propose(KNOWN)
    assert policy.propose(replace(KNOWN, acceptance=0.95)) > usual > policy.propose(replace(KNOWN, acceptance=0.4))
    assert policy.propose(replace(KNOWN, wait=0.5)) > usual
    assert policy.propose(replace(KNOWN, draft_step=0.04)) < usual


@pytest.mark.parametrize("missing", [{"acceptance": None}, {"draft_step": 0.0}, {"wait": 0.0}, {"tpot": 0.0}])
def test_what_is_not_known_leaves_the_first_window(missing: dict[str, float | None]) -> None:
    assert Predicted(first=5).propose(replace(KNOWN, **missing)) == 5.0


def test_it_leaves_fused_mode_to_others() -> None:
    assert Predicted().propose(replace(KNOWN, acceptance=0.0)) == 2.0


def test_it_is_a_window_policy_as_the_others() -> None:
    policies: list[WindowPolicy] = [Predicted(), Static()]
    assert [policy.name for policy in policies] == ["predicted", "static"]
    assert policies[0].first == 4


@pytest.mark.parametrize("bounds", [(0, 4, 12), (5, 4, 12), (2, 4, 3)])
def test_bounds_that_exclude_each_other_are_refused(bounds: tuple[int, int, int]) -> None:
    min_window, first, max_window = bounds
    with pytest.raises(ConfigError):
        Predicted(first=first, min_window=min_window, max_window=max_window)


def test_conditions_of_the_very_draft_need_no_second_proposal() -> None:
    switch = ModeSwitch(is_lossless=True)
    good = RoundConditions(acceptance=0.9, window=8, draft_step=1e-4, remote_step=0.05, verify=0.08, round_tokens=6.0)
    bad = replace(good, round_tokens=1.2)
    assert switch.choose(good, at_once=True) == "speculate"
    assert switch.choose(bad, at_once=True) == "remote"
    assert switch.choose(good, at_once=True) == "speculate"
    assert switch.choose(bad) == "speculate", "without it the first other proposal is waited out"
