"""The remote stream, and the account of what drafting cost against it."""

from __future__ import annotations

from itertools import count

import pytest

from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import CloseRemote, OpenRemote, SpeculationCommand
from streamco.core.speculation.fallback_stream import RemoteStream, TimeAccount
from streamco.core.speculation.prior import EstimatesPrior
from streamco.errors import EndpointConnectError


def test_a_stream_goes_on_behind_the_settled_tokens_and_is_closed_once() -> None:
    emitted: list[SpeculationCommand] = []
    remote = RemoteStream(True, emitted.append, count(5).__next__)
    remote.open([1, 2], 7)
    assert remote.version == 5
    remote.close()
    remote.close()
    assert emitted == [OpenRemote(5, (1, 2), 7), CloseRemote(5)]
    assert remote.version is None


def test_a_remote_side_that_is_not_there_or_failed_is_not_able() -> None:
    assert not RemoteStream(False, list[SpeculationCommand]().append, count().__next__).is_usable
    remote = RemoteStream(True, list[SpeculationCommand]().append, count().__next__)
    assert remote.is_usable
    remote.failure = EndpointConnectError("expected a connection, got none")
    assert not remote.is_usable


def time_account(**prior: float) -> tuple[TimeAccount, SpeculationEstimates]:
    estimates = SpeculationEstimates(prior=EstimatesPrior(step_times=(0.01,), wait=0.1, remote_step=0.05, **prior))
    written = TimeAccount(estimates)
    written.start(now=10.0)
    return written, estimates


def test_the_first_round_costs_what_a_round_does_whatever_the_prompt_took() -> None:
    account, estimates = time_account()
    account.record_round(1, now=15.0)
    assert estimates.switch.seconds == pytest.approx(4 * 0.01 + 0.1)
    assert estimates.switch.lost_seconds == pytest.approx(0.14 - 0.05)
    assert account.has_begun


def test_later_rounds_cost_all_their_time() -> None:
    account, estimates = time_account()
    account.record_round(1, now=10.1)
    account.record_round(2, now=10.6)
    assert estimates.switch.seconds == pytest.approx(0.6)
    assert estimates.switch.lost_seconds == pytest.approx(0.6 - 3 * 0.05)


def test_what_a_change_to_the_stream_takes_is_draftings_loss() -> None:
    account, estimates = time_account()
    account.record_round(1, now=10.1)
    account.record_stream(1, is_first=True, now=10.5)
    assert estimates.switch.seconds == pytest.approx(0.5)
    assert estimates.switch.lost_seconds == pytest.approx(0.05 + 0.35)
    assert estimates.remote_step == 0.05, "a first token says nothing about the others"


def test_a_round_that_was_given_up_is_a_stall_and_the_way_back_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    account, estimates = time_account()
    account.record_round(1, now=10.1)
    recorded: list[tuple[float, bool]] = []

    def record(mode: str, *, seconds: float, tokens: int, remote_step: float, is_return: bool = False) -> None:
        if mode == "speculate":
            recorded.append((seconds, is_return))

    monkeypatch.setattr(estimates.switch, "record", record)
    account.record_opened(now=17.1)
    account.record_stream(1, is_first=True, now=17.55)
    assert [seconds for seconds, _ in recorded] == pytest.approx([7.0, 0.4])
    assert [is_return for _, is_return in recorded] == [False, True]


def test_an_answer_that_begins_with_the_stream_has_lost_nothing() -> None:
    account, estimates = time_account()
    account.record_stream(1, is_first=True, now=12.0)
    account.record_stream(2, is_first=False, now=12.1)
    assert estimates.switch.lost_seconds == 0.0
    assert estimates.switch.seconds == pytest.approx(0.15)


def test_a_stream_that_failed_and_rounds_that_had_to_be_are_not_draftings_loss() -> None:
    account, estimates = time_account()
    account.record_stream(1, is_first=True, now=10.1)
    account.skip(now=40.0)
    account.record_forced_round(now=45.0)
    account.record_round(2, now=45.1)
    assert estimates.switch.lost_seconds == pytest.approx(0.0)
    assert estimates.switch.seconds == pytest.approx(0.05 + 0.1)


def test_a_few_tokens_in_one_piece_say_nothing_of_the_remote_sides_pace() -> None:
    estimates = SpeculationEstimates(prior=EstimatesPrior(step_times=(0.01,), wait=0.1))
    account = TimeAccount(estimates)
    account.record_opened(now=10.0)
    account.record_ended(7, now=13.0)
    assert not estimates.has_remote_step
    account.record_ended(8, now=14.0)
    assert estimates.remote_step == pytest.approx(0.5)


def test_answers_in_one_piece_renew_an_old_pace() -> None:
    account, estimates = time_account()
    estimates.record_drafted(2048)
    stale = [estimates.is_remote_step_stale]
    account.record_opened(now=10.0)
    account.record_stream(20, is_first=True, now=14.0)
    account.record_ended(20, now=14.0)
    stale.append(estimates.is_remote_step_stale)
    assert stale == [True, False]
    assert estimates.remote_step == pytest.approx(0.05), "the rest was for the prompt"
    estimates.record_drafted(2048)
    account.record_opened(now=20.0)
    account.record_stream(25, is_first=True, now=20.5)
    account.record_ended(25, now=20.5)
    assert estimates.remote_step == pytest.approx((15 * 0.05 + 25 * 0.02 - 8 * 0.05) / 32)


def test_a_pace_that_was_seen_token_by_token_is_not_measured_again_at_the_end() -> None:
    account, estimates = time_account()
    estimates.record_drafted(2048)
    account.record_opened(now=10.0)
    for place in range(8):
        account.record_stream(1, is_first=not place, now=13.0 + 0.05 * place)
    account.record_ended(8, now=13.4)
    assert estimates.remote_step == pytest.approx(0.05)


def test_the_stream_says_how_long_its_tokens_take() -> None:
    account, estimates = time_account()
    for place in range(60):
        account.record_stream(1, is_first=not place, now=10.0 + 0.2 * place)
    assert estimates.remote_step == pytest.approx(0.2, rel=0.01)


def test_a_change_back_is_part_of_the_round_that_follows() -> None:
    account, estimates = time_account()
    account.record_stream(1, is_first=True, now=11.0)
    account.record_round(3, now=11.5)
    assert estimates.switch.lost_seconds == pytest.approx(0.5 - 3 * 0.05)


def test_what_the_device_settles_alone_is_no_loss() -> None:
    account, estimates = time_account()
    account.record_device(now=10.5)
    assert estimates.switch.lost_seconds == 0.0
    assert account.has_begun
    account.record_round(1, now=10.6)
    assert estimates.switch.lost_seconds == pytest.approx(0.05)


def test_what_the_first_token_takes_is_the_prompts_time_but_for_the_link() -> None:
    account, estimates = time_account()
    estimates.expect_rtt(0.2)
    account.record_opened(now=12.0)
    account.record_stream(1, is_first=True, now=12.75)
    assert account.prompt_time == pytest.approx(0.5)
    assert estimates.prompt_time == pytest.approx(0.5)
