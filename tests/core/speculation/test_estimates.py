"""What is known about a draft model and its verifier."""

from __future__ import annotations

import pytest

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import DraftToken
from streamco.core.speculation.prior import EstimatesPrior
from streamco.core.speculation.report import SpeculationReport
from streamco.errors import ConfigError
from streamco.policies.learned_window import Adaptive
from streamco.policies.mode_switch import Predicted
from streamco.policies.window import Confident, Dynamic, Stabiliser, Static
from streamco.profiles.row_costs import RowCosts


def prior(**changes: object) -> EstimatesPrior:
    return EstimatesPrior(**{"step_times": (0.02, 0.03), **changes})  # type: ignore[arg-type]


def test_a_budget_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError):
        SpeculationEstimates(1.5)


def test_only_a_whole_budget_is_lossless() -> None:
    assert SpeculationEstimates(1.0).is_lossless
    assert not SpeculationEstimates(0.9).is_lossless


def test_what_is_believed_at_first_is_the_prior() -> None:
    estimates = SpeculationEstimates(prior=prior(acceptance=0.6, wait=0.2, remote_step=0.07, hit_rate=0.4))
    conditions = estimates.conditions()
    assert estimates.acceptance == pytest.approx(0.6)
    assert (conditions.verify, conditions.remote_step, conditions.draft_step) == (0.2, 0.07, 0.02)
    assert conditions.hit_rate == pytest.approx(0.4)
    assert conditions.slowdown == pytest.approx(1.5)
    assert estimates.mean_confidence is None


def test_the_acceptance_rate_becomes_what_verdicts_show() -> None:
    estimates = SpeculationEstimates(prior=prior(acceptance=0.2))
    for _ in range(200):
        estimates.record_verdict([0.5] * 4, 4, is_hit=None)
    assert estimates.acceptance > 0.98


def test_tokens_behind_a_rejected_one_say_nothing() -> None:
    estimates = SpeculationEstimates(prior=prior(acceptance=0.5))
    for _ in range(400):
        estimates.record_verdict([0.5] * 8, 1, is_hit=None)
    assert estimates.acceptance == pytest.approx(0.5, abs=0.02), "one held and one not, each time"


def test_the_mean_confidence_is_measured() -> None:
    estimates = SpeculationEstimates()
    estimates.record_verdict([0.9], 1, is_hit=None)
    assert estimates.mean_confidence == pytest.approx(0.9)
    for _ in range(300):
        estimates.record_verdict([0.3], 1, is_hit=None)
    assert estimates.mean_confidence == pytest.approx(0.3, abs=0.01)


def test_hits_are_counted_where_there_were_branches() -> None:
    estimates = SpeculationEstimates(prior=prior(hit_rate=0.5))
    for _ in range(300):
        estimates.record_verdict([], 0, is_hit=None)
    assert estimates.conditions().hit_rate == pytest.approx(0.5)
    for _ in range(300):
        estimates.record_verdict([], 0, is_hit=True)
    assert estimates.conditions().hit_rate > 0.95


def test_one_measured_step_says_something_about_batches_of_other_sizes() -> None:
    estimates = SpeculationEstimates(prior=prior(step_times=(0.02, 0.03, 0.04)))
    for _ in range(100):
        estimates.record_draft(2, 10, 0.6)
    assert estimates.step_times == pytest.approx([0.04, 0.06, 0.08], rel=0.01), "the prior's proportions"
    for _ in range(100):
        estimates.record_draft(1, 10, 0.1)
    assert estimates.step_times == pytest.approx([0.01, 0.06, 0.11], rel=0.01), "a line"
    for _ in range(100):
        estimates.record_draft(3, 10, 0.7)
    assert estimates.step_times == pytest.approx([0.01, 0.06, 0.07], rel=0.01)
    before = list(estimates.step_times)
    estimates.record_draft(9, 10, 0.6)
    estimates.record_draft(1, 0, 0.6)
    assert estimates.step_times == before


def test_the_first_wait_is_taken_whole_and_later_ones_by_and_by() -> None:
    estimates = SpeculationEstimates(prior=prior(wait=0.5))
    estimates.record_wait(0.1, queue_depth=0.3, server_seconds=0.04)
    assert estimates.wait == pytest.approx(0.1)
    assert estimates.queue_depth == 0.3
    estimates.record_wait(0.2, queue_depth=0.0, server_seconds=0.04)
    assert 0.1 < estimates.wait < 0.2


def test_the_remote_step_follows_the_stream() -> None:
    estimates = SpeculationEstimates(prior=prior(remote_step=0.05))
    for _ in range(100):
        estimates.record_remote(2, 0.04)
    assert estimates.remote_step == pytest.approx(0.02, rel=0.01)
    estimates.record_remote(0, 1.0)
    assert estimates.remote_step == pytest.approx(0.02, rel=0.01)


def test_the_window_is_the_policys_made_steady() -> None:
    assert SpeculationEstimates(window=Static(6)).propose_window() == 6
    estimates = SpeculationEstimates(window=Dynamic(first=4), prior=prior(acceptance=0.95))
    assert [estimates.propose_window() for _ in range(3)] == [5, 6, 7]
    slow = SpeculationEstimates(window=Dynamic(first=4), stabiliser=Stabiliser(0.2), prior=prior(acceptance=0.95))
    assert [slow.propose_window() for _ in range(2)] == [5, 5]


def test_shares_of_nothing_are_not_known() -> None:
    report = SpeculationReport()
    assert report.acceptance is report.hit_rate is report.offloaded_share is None
    report = SpeculationReport(rounds=4, hits=2, verified=16, accepted=8, chunks=40, offloaded=16, drafted=50, device=24)
    assert (report.acceptance, report.hit_rate, report.offloaded_share, report.wasted) == (0.5, 0.5, 0.4, 18)


def test_an_expected_wait_holds_until_one_was_measured() -> None:
    estimates = SpeculationEstimates(prior=prior(wait=0.1))
    estimates.expect_rtt(0.02)
    assert estimates.wait == pytest.approx(0.02 + estimates.remote_step), "a step of the large model, and the link"
    assert estimates.conditions().verify == estimates.wait
    assert estimates.rtt == 0.02
    estimates.record_wait(0.3, queue_depth=0.0, server_seconds=0.1)
    estimates.expect_rtt(0.02)
    assert estimates.wait == 0.3
    assert estimates.rtt == pytest.approx(0.2)


def test_a_remote_step_is_looked_at_again_the_sooner_the_less_was_seen_of_it() -> None:
    estimates = SpeculationEstimates(prior=prior())
    estimates.record_remote(3, 1.5)
    waits: list[int] = []
    for _ in range(4):
        drafted = 0
        while not estimates.is_remote_step_stale:
            estimates.record_drafted(1)
            drafted += 1
        waits.append(drafted)
        for _ in range(15):
            estimates.record_remote(1, 0.05)
        assert not estimates.is_remote_step_stale
    assert waits == [192, 1152, 2048, 2048]
    assert estimates.remote_step == pytest.approx(0.05, rel=0.05), "what was wrong at first is right behind some looks"


def test_a_remote_step_that_was_told_is_looked_at_after_many_tokens() -> None:
    estimates = SpeculationEstimates(prior=EstimatesPrior(remote_step=0.05))
    estimates.record_drafted(2047)
    seen = [estimates.is_remote_step_stale]
    estimates.record_drafted(1)
    seen.append(estimates.is_remote_step_stale)
    estimates.record_remote(14, 0.7)
    seen.append(estimates.is_remote_step_stale)
    estimates.record_drafted(4)
    estimates.record_remote(1, 0.05)
    seen.append(estimates.is_remote_step_stale)
    assert seen == [False, True, True, False], "another answer may draft meanwhile"


def test_the_first_measured_remote_step_counts_whole() -> None:
    estimates = SpeculationEstimates(prior=prior())
    known = [estimates.has_remote_step]
    estimates.record_remote(4, 0.4)
    known.append(estimates.has_remote_step)
    assert known == [False, True]
    assert estimates.remote_step == pytest.approx(0.1)


def test_what_a_session_behind_a_stream_takes_to_open_is_learned() -> None:
    estimates = SpeculationEstimates()
    assert (estimates.opening_share, estimates.prompt_time) == (1.0, 0.0), "at first: as long as the prompt took"
    for _ in range(8):
        estimates.record_opening(0.0)
        estimates.record_prompt(0.3)
    assert estimates.opening_share < 0.01
    assert estimates.prompt_time == pytest.approx(0.3)


# Drafts that end before their window


def confident() -> SpeculationEstimates:
    estimates = SpeculationEstimates(window=Confident(worth=2.0), prior=prior(acceptance=0.7, wait=0.08, step_times=(0.01, 0.011)))
    estimates.propose_window()
    return estimates


def test_a_draft_is_enough_when_it_will_hardly_be_accepted_whole() -> None:
    estimates = confident()
    assert estimates.window == 10
    assert not estimates.should_end([0.9])
    assert not estimates.should_end([0.9, 0.9])
    assert estimates.should_end([0.9, 0.9, 0.1, 0.1])


def test_a_static_draft_is_never_enough_before_its_window() -> None:
    estimates = SpeculationEstimates(window=Static(4))
    estimates.propose_window()
    assert not estimates.should_end([0.0] * 3)
    assert estimates.usual_window == 4


def test_a_draft_ahead_waits_for_another_token_while_that_costs_no_time_or_less_than_it_gives() -> None:
    estimates = SpeculationEstimates(prior=EstimatesPrior(acceptance=0.8, remote_step=0.05, step_times=(0.02,)))
    assert estimates.should_draft_more([0.9], lateness=-0.03), "it would wait at the verifier"
    assert estimates.should_draft_more([0.9], lateness=0.1)
    assert not estimates.should_draft_more([0.1] * 8, lateness=0.1)
    assert estimates.should_draft_more([0.1] * 8, lateness=-0.03)


def test_drafts_sent_ahead_count_by_how_many_of_them_were_right() -> None:
    estimates = SpeculationEstimates(prior=EstimatesPrior())
    estimates.expect_rtt(0.08)
    assert estimates.conditions().ahead == 0.0
    estimates.expect_rounds(branches=6, ahead=3)
    assert estimates.conditions().ahead == pytest.approx(0.08 * 0.4)
    for is_won in (True, True, False, True):
        estimates.record_ahead(is_won)
    assert estimates.conditions().ahead == pytest.approx(0.08 * (3 + 4 * 0.4) / 8, rel=0.05)


def test_without_branches_no_round_begins_with_one() -> None:
    estimates = SpeculationEstimates(prior=EstimatesPrior(hit_rate=0.4))
    assert estimates.conditions().hit_rate == pytest.approx(0.4)
    estimates.expect_rounds(branches=0, ahead=3)
    assert estimates.conditions().hit_rate == estimates.conditions().ahead == 0.0


def test_the_usual_window_is_what_drafts_had_or_would_have_had() -> None:
    estimates = confident()
    for _ in range(40):
        estimates.record_verdict([0.95] * 6, 6, is_hit=None)
        estimates.propose_window()
    assert estimates.usual_window == 6
    for _ in range(40):
        estimates.record_verdict([0.1, 0.1, 0.1, 0.1], 0, is_hit=None)
        estimates.propose_window()
    assert estimates.usual_window == 1, "an overheard draft counts as far as it would have gone"
    assert estimates.conditions().window == 1


def test_what_rounds_give_is_measured() -> None:
    estimates = SpeculationEstimates(window=Static(4), prior=prior(acceptance=0.5))
    assert estimates.conditions().round_tokens == pytest.approx(1.9375), "E(0.5, 4)"
    for _ in range(300):
        estimates.record_verdict([0.5] * 4, 3, is_hit=None)
    assert estimates.conditions().round_tokens == pytest.approx(4.0, abs=0.1)


def test_the_forecast_is_learned_or_the_papers() -> None:
    learned, paper = (
        SpeculationEstimates(prior=prior(acceptance=0.7)),
        SpeculationEstimates(prior=prior(acceptance=0.7), forecast="geometric"),
    )
    for estimates in (learned, paper):
        for _ in range(100):
            estimates.record_verdict([0.9, 0.25], 1, is_hit=None)
    assert learned.forecast([0.9, 0.25]).rejections[1] > 0.9
    assert paper.forecast([0.9, 0.25]).rejections[1] < 0.7


def test_only_a_policy_that_may_fuse_has_weighed_fused_mode() -> None:
    policies = (Adaptive(), Adaptive(may_fuse=False), Static(), Predicted())
    assert [SpeculationEstimates(window=policy).policy_decides for policy in policies] == [True, False, False, False]


def test_with_the_learned_window_sure_drafts_go_on_and_doubtful_ones_end() -> None:
    estimates = SpeculationEstimates(window=Adaptive(may_fuse=False), prior=prior(acceptance=0.7, remote_step=0.05, wait=0.08))
    first = estimates.propose_window()
    assert not estimates.should_end([0.1]), "nobody knows yet what that means"
    for _ in range(60):
        estimates.record_verdict([0.95, 0.95, 0.3], 2, is_hit=None)
        estimates.propose_window()
    assert estimates.window > first
    assert estimates.should_end([0.95, 0.3])
    assert not estimates.should_end([0.95] * (estimates.usual_window + 1))


@pytest.mark.parametrize("acceptance", [0.7, 0.95])
def test_where_everything_is_accepted_drafts_keep_their_length(acceptance: float) -> None:
    estimates = SpeculationEstimates(window=Adaptive(may_fuse=False), prior=prior(acceptance=acceptance, remote_step=0.05, wait=0.08))
    lengths = []
    for _ in range(80):
        window, draft = estimates.propose_window(), [0.97]
        while len(draft) < window and not estimates.should_end(draft):
            draft.append(0.97)
        estimates.record_verdict(draft, len(draft), is_hit=True)
        lengths.append(len(draft))
    assert min(lengths[20:]) >= 6
    assert estimates.usual_window >= 6


def test_a_draft_that_was_cut_short_says_nothing_of_how_long_drafts_are() -> None:
    estimates = SpeculationEstimates(window=Confident(), prior=prior(acceptance=0.9, remote_step=0.05, wait=0.08))
    for _ in range(20):
        estimates.propose_window()
        estimates.record_verdict([0.99] * 6, 6, is_hit=None)
    usual = estimates.usual_window
    for _ in range(20):
        estimates.propose_window()
        estimates.record_verdict([0.99] * 2, 2, is_hit=None)
    assert estimates.usual_window >= usual > 2


def test_what_a_round_gives_is_forecast_for_the_present_window() -> None:
    estimates = SpeculationEstimates(window=Confident(), prior=prior(acceptance=0.9, remote_step=0.05, wait=0.08))
    for _ in range(40):
        estimates.propose_window()
        estimates.record_verdict([0.99] * 4, 4, is_hit=None)
    assert (long := estimates.conditions().round_tokens) is not None
    assert long > 4.0
    for _ in range(12):
        estimates.propose_window()
        estimates.record_verdict([0.2], 0, is_hit=None)
    known = estimates.conditions()
    assert known.window == 1
    assert known.round_tokens is not None
    assert known.round_tokens <= 2.0, "a draft of one token gives at most two, whatever longer ones gave"


def test_no_round_is_expected_to_give_more_than_its_window_and_one() -> None:
    estimates = SpeculationEstimates(window=Static(4), prior=prior(acceptance=0.2))
    for _ in range(20):
        estimates.record_verdict([0.5] * 8, 0, is_hit=None)
    for _ in range(20):
        estimates.record_verdict([0.9] * 8, 8, is_hit=None)
        known = estimates.conditions()
        assert known.round_tokens is not None
        assert known.round_tokens <= known.window + 1


def test_adopted_branches_say_how_much_of_a_draft_is_written_during_the_wait() -> None:
    estimates = SpeculationEstimates(prior=prior())
    assert estimates.conditions().adopted is None
    estimates.record_adopted(4)
    estimates.record_adopted(1)
    assert estimates.conditions().adopted == pytest.approx((0.9 * 4 + 1) / 1.9)


def test_a_price_list_reaches_the_policy_and_the_mode_switch() -> None:
    estimates = SpeculationEstimates(window=Predicted(), prior=prior(acceptance=0.85))
    estimates.expect_rtt(0.001)
    estimates.expect_row_costs(RowCosts({1: 0.04, 3: 0.08, 4: 0.08, 5: 0.5, 16: 2.0}))
    estimates.record_draft(1, 10, 0.1)
    known = estimates.conditions()
    assert known.row_costs is not None
    assert known.verify == 0.001
    assert known.wait == pytest.approx(0.001 + known.row_costs.seconds(known.window + 1))
    assert estimates.propose_window() == 3
    estimates.record_wait(0.17, queue_depth=0.0, server_seconds=0.16, computed=(4, 0.16))
    assert estimates.conditions().row_costs is not None
    assert estimates.wait == pytest.approx(0.17)
    estimates.expect_row_costs(None)
    assert estimates.conditions().row_costs is None


def test_each_of_several_verifiers_has_times_of_its_own() -> None:
    estimates = SpeculationEstimates(prior=prior(wait=0.3))
    slow, fast = estimates.at("slow"), estimates.at("fast")
    slow.record_wait(0.5, queue_depth=0.5, server_seconds=0.4)
    fast.expect_row_costs(RowCosts({1: 0.01}))
    fast.record_wait(0.02, queue_depth=0.0, server_seconds=0.01)
    assert (slow.wait, slow.queue_depth, slow.conditions().row_costs) == (0.5, 0.5, None)
    assert fast.wait == pytest.approx(0.02)
    assert fast.queue_depth == 0.0
    assert estimates.wait == 0.3
    later = estimates.at("fast")
    assert later.wait == fast.wait
    later.move_to("slow")
    assert later.wait == 0.5
    assert fast.wait == pytest.approx(0.02)


def test_what_a_draft_shows_counts_at_every_verifier() -> None:
    estimates = SpeculationEstimates(prior=prior())
    one, other = estimates.at("one"), estimates.at("other")
    one.record_streamed(5)
    other.record_streamed(3)
    assert estimates.tokens_since_verdict == one.tokens_since_verdict == 8
    before = estimates.acceptance
    one.record_verdict([0.9] * 4, 0, is_hit=None)
    assert estimates.acceptance == other.acceptance < before
    assert other.tokens_since_verdict == 0
    other.record_remote(10, 0.5)
    assert estimates.remote_step == one.remote_step == pytest.approx(0.05)


def test_drafts_are_cut_by_prices_only_if_everything_is_verified() -> None:
    costs = RowCosts({1: 0.04, 4: 0.08, 5: 0.9, 16: 2.0})
    for budget, cut in ((1.0, 3), (0.5, 5)):
        estimates = SpeculationEstimates(budget, window=Confident(), prior=prior(acceptance=0.85))
        estimates.expect_rtt(0.001)
        estimates.expect_row_costs(costs)
        estimates.record_draft(1, 10, 0.1)
        estimates.propose_window()
        assert estimates.useful_length([DraftToken(1, confidence=0.9)] * 5) == cut
        drawn = [DraftToken(1, confidence=0.9, row=object())] * 5
        assert estimates.useful_length(drawn) == (1 if cut < 5 else 5), "the policy would not have drafted a second token"
        assert estimates.should_end([0.9] * 5), "the stair ended two tokens before"
