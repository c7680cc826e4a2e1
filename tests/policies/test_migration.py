"""DiSCo equations 4 to 6, against figures worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.policies.migration import (
    HEADROOM,
    SLACK,
    BarredMove,
    Terms,
    are_known,
    barred_moves,
    buffer_needed,
    keeps_up,
    net_saving,
    pre_copy_pays,
    tokens_until_buffered,
    tokens_until_covered,
)

prices = st.floats(0.0, 1e-4)
counts = st.floats(0.0, 10_000.0)
terms = st.builds(
    lambda prompt, completion, cached, pre_copy: Terms(prompt=prompt, completion=completion, cached_prompt=cached, pre_copy=pre_copy),
    prices,
    prices,
    st.none() | prices,
    st.sampled_from(["append", "warm", "none"]),
)
pairs = st.tuples(terms, terms)
to_cheaper = pairs.map(lambda pair: sorted(pair, key=lambda one: one.completion, reverse=True))
to_dearer = pairs.map(lambda pair: sorted(pair, key=lambda one: one.completion))

DEAR = Terms(prompt=3e-6, completion=15e-6)
CHEAP = Terms(prompt=1e-6, completion=5e-6)


# Time


def test_a_target_takes_its_setup_and_the_time_of_each_token_it_has_to_read() -> None:
    target = Terms(prompt=0.0, completion=0.0, setup=0.2, per_token=0.01)
    assert target.seconds_to_first_token(30) == pytest.approx(0.5)
    assert target.seconds_to_first_token(0) == pytest.approx(0.2)
    assert target.seconds_to_first_token(-5) == pytest.approx(0.2)


def test_nobody_knows_how_long_a_target_takes_that_was_never_measured() -> None:
    assert Terms(prompt=0.0, completion=0.0, per_token=0.01).seconds_to_first_token(30) is None


@pytest.mark.parametrize(
    ("seconds", "rate", "tokens"),
    [
        (1.0, 5.0, 6),  # 5 x 1.1 = 5.5
        (0.3, 5.0, 2),  # 5 x 0.4 is a whole number
        (0.2, 10.0, 3),  # 10 x 0.3 is one too, though not in floats
        (0.0, 4.0, 1),  # the slack alone: 0.4
        (2.0, 0.0, 0),  # nobody reads
    ],
)
def test_the_buffer_of_equation_6_is_what_is_read_in_the_time_of_the_change_and_the_slack(seconds: float, rate: float, tokens: int) -> None:
    assert buffer_needed(seconds, rate) == tokens


@given(st.floats(0.0, 100.0), st.floats(0.1, 100.0))
def test_what_covers_is_enough_and_one_token_less_is_not(seconds: float, rate: float) -> None:
    tokens = buffer_needed(seconds, rate)
    assert tokens / rate >= seconds + SLACK - 1e-8
    assert (tokens - 1) / rate < seconds + SLACK


@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.floats(0.1, 100.0))
def test_a_longer_change_never_needs_a_smaller_buffer(seconds: float, more: float, rate: float) -> None:
    assert buffer_needed(seconds + more, rate) >= buffer_needed(seconds, rate)


def test_a_target_must_write_faster_than_the_reader_reads() -> None:
    rates = {10.9: False, 11.1: True, 10.0: False, 100.0: True}
    for rate, does in rates.items():
        assert keeps_up(Terms(prompt=0.0, completion=0.0, rate=rate), 10.0) is does
    assert keeps_up(Terms(prompt=0.0, completion=0.0, rate=HEADROOM * 10.0), 10.0)
    assert keeps_up(Terms(prompt=0.0, completion=0.0), 1e9)


def test_while_the_buffer_fills_the_source_also_makes_what_is_read_meanwhile() -> None:
    assert tokens_until_buffered(12, 20.0, 5.0) == pytest.approx(16.0)  # 12 more at 15 a second take 0.8 s, in which it makes 16
    assert tokens_until_buffered(0, 20.0, 5.0) == 0.0
    assert tokens_until_buffered(-3, 20.0, 5.0) == 0.0


def test_the_buffer_of_a_source_that_is_no_faster_than_the_reader_never_fills() -> None:
    assert tokens_until_buffered(1, 5.0, 5.0) == math.inf
    assert tokens_until_buffered(1, 4.0, 5.0) == math.inf
    assert tokens_until_buffered(0, 4.0, 5.0) == 0.0


@given(st.floats(0.1, 1000.0), st.floats(0.1, 100.0), st.floats(0.1, 100.0))
def test_in_the_time_of_the_lag_just_what_was_missing_is_left_over(missing: float, faster: float, reader: float) -> None:
    made = tokens_until_buffered(missing, reader + faster, reader)
    assert made - reader * made / (reader + faster) == pytest.approx(missing)


def test_what_the_source_makes_meanwhile_the_target_has_to_read_too() -> None:
    """6 more at 60 a second: of those the reader takes 5 and the reading of them 15 again, so 40 a second are gained."""
    assert tokens_until_buffered(6, 60.0, 5.0, 0.05) == pytest.approx(9.0)
    assert tokens_until_buffered(1, 6.0, 5.0, 0.05) == math.inf


def test_a_target_that_reads_meanwhile_needs_what_the_reader_takes_and_no_more() -> None:
    """8 are missing for 2 s; each token made meanwhile is read in 40 ms, in which a fifth of one goes out."""
    assert tokens_until_covered(8, 5.0, 0.04) == pytest.approx(10.0)
    assert tokens_until_covered(8, 5.0, 0.0) == 8.0
    assert tokens_until_covered(0, 5.0, 0.04) == 0.0
    assert tokens_until_covered(1, 5.0, 0.2) == math.inf


@given(st.floats(0.1, 100.0), st.floats(0.1, 100.0), st.floats(0.1, 20.0), st.floats(0.0, 0.1))
def test_reading_meanwhile_never_takes_more_of_the_source(missing: float, faster: float, reader: float, per_token: float) -> None:
    assert tokens_until_covered(missing, reader, per_token) <= tokens_until_buffered(missing, reader + faster, reader, per_token) * (
        1 + 1e-9
    )


# Money


def test_what_the_source_makes_behind_the_change_is_paid_twice() -> None:
    assert net_saving(DEAR, CHEAP, remaining=200, until_change=20, length=300, overrun=9) == pytest.approx(
        180 * 10e-6 - 320 * 1e-6 - 9 * 15e-6
    )
    at_its_end = net_saving(DEAR, CHEAP, remaining=25, until_change=20, length=0, overrun=9)
    assert at_its_end == pytest.approx(5 * 10e-6 - 20 * 1e-6 - 5 * 15e-6)


def test_equation_4_by_hand() -> None:
    """200 tokens are to come, 20 of them before the change: 180 are 10e-6 cheaper; the target reads 300 and those 20 at 1e-6."""
    assert net_saving(DEAR, CHEAP, remaining=200, until_change=20, length=300) == pytest.approx(180 * 10e-6 - 320 * 1e-6)


def test_what_the_target_has_read_is_not_read_again() -> None:
    append = Terms(prompt=1e-6, completion=5e-6, pre_copy="append")
    assert net_saving(DEAR, append, remaining=200, until_change=20, length=300, kept=290) == pytest.approx(180 * 10e-6 - 30 * 1e-6)


def test_what_is_in_a_warmed_cache_is_read_again_at_the_cached_price() -> None:
    warm = Terms(prompt=1e-6, completion=5e-6, cached_prompt=1e-7, pre_copy="warm")
    assert net_saving(DEAR, warm, remaining=200, until_change=20, length=300, kept=290) == pytest.approx(
        180 * 10e-6 - 30 * 1e-6 - 290 * 1e-7
    )
    unknown = Terms(prompt=1e-6, completion=5e-6, pre_copy="warm")
    assert net_saving(DEAR, unknown, remaining=200, until_change=20, length=300, kept=290) == pytest.approx(180 * 10e-6 - 320 * 1e-6)


def test_a_change_that_comes_after_the_answers_end_saves_nothing() -> None:
    assert net_saving(DEAR, CHEAP, remaining=10, until_change=20, length=300) == pytest.approx(-310 * 1e-6)
    assert net_saving(DEAR, CHEAP, remaining=10, until_change=math.inf, length=300) == pytest.approx(-310 * 1e-6)


@pytest.mark.parametrize(("remaining", "pays"), [(32, False), (33, True)])
def test_moving_pays_from_the_token_on_whose_price_exceeds_the_reading(remaining: int, pays: bool) -> None:
    """Reading 322 tokens costs as much as 32.2 tokens save."""
    assert (net_saving(DEAR, CHEAP, remaining=remaining, until_change=0, length=322) > 0) is pays


@given(to_cheaper, counts, counts, counts, counts)
def test_the_longer_an_answer_still_is_the_more_moving_to_a_cheaper_endpoint_saves(
    pair: list[Terms], remaining: float, more: float, until_change: float, length: float
) -> None:
    remaining += until_change
    less = net_saving(*pair, remaining=remaining, until_change=until_change, length=length)
    assert net_saving(*pair, remaining=remaining + more, until_change=until_change, length=length) >= less - 1e-12


@given(pairs, counts, counts, counts, counts)
def test_what_saves_for_a_short_answer_saves_for_a_longer_one(
    pair: tuple[Terms, Terms], remaining: float, more: float, until_change: float, length: float
) -> None:
    if net_saving(*pair, remaining=remaining, until_change=until_change, length=length) > 0:
        assert net_saving(*pair, remaining=remaining + more, until_change=until_change, length=length) > 0


@given(to_cheaper, counts, counts, counts, counts)
def test_a_change_that_comes_later_never_saves_more(
    pair: list[Terms], remaining: float, until_change: float, later: float, length: float
) -> None:
    soon = net_saving(*pair, remaining=remaining, until_change=until_change, length=length)
    assert net_saving(*pair, remaining=remaining, until_change=until_change + later, length=length) <= soon + 1e-12


@given(to_dearer, counts, counts, counts)
def test_nobody_moves_to_where_tokens_cost_as_much_or_more(pair: list[Terms], remaining: float, until_change: float, length: float) -> None:
    assert net_saving(*pair, remaining=remaining, until_change=until_change, length=length) <= 0


# Reading ahead


def test_reading_ahead_costs_nothing_where_it_is_kept() -> None:
    append = Terms(prompt=1.0, completion=0.0, pre_copy="append")
    assert pre_copy_pays(DEAR, append, length=10_000, saved=1.0, saving=0.0, is_possible_without=True)
    assert not pre_copy_pays(DEAR, append, length=10_000, saved=0.5, saving=0.0, is_possible_without=True)  # not a token earlier
    assert not pre_copy_pays(DEAR, append, length=10_000, saved=0.0, saving=1.0, is_possible_without=False)


def test_reading_ahead_is_of_no_use_where_nothing_is_kept() -> None:
    for is_possible_without in (True, False):
        assert not pre_copy_pays(DEAR, CHEAP, length=10, saved=1e6, saving=1.0, is_possible_without=is_possible_without)


@pytest.mark.parametrize(("saved", "pays"), [(3, False), (4, True)])
def test_a_cache_is_warmed_when_the_tokens_that_saves_are_worth_more_than_reading_twice(saved: int, pays: bool) -> None:
    """300 cached tokens cost 300e-7 and the one it must make 5e-6, together what 3.5 tokens save."""
    warm = Terms(prompt=1e-6, completion=5e-6, cached_prompt=1e-7, pre_copy="warm")
    assert pre_copy_pays(DEAR, warm, length=300, saved=saved, saving=1.0, is_possible_without=True) is pays


def test_a_cache_whose_price_is_not_known_costs_what_the_prompt_does() -> None:
    warm = Terms(prompt=1e-6, completion=5e-6, pre_copy="warm")
    assert not pre_copy_pays(DEAR, warm, length=300, saved=30, saving=1.0, is_possible_without=True)  # 300e-6 + 5e-6 against 300e-6
    assert pre_copy_pays(DEAR, warm, length=300, saved=31, saving=1.0, is_possible_without=True)


@pytest.mark.parametrize(("saving", "pays"), [(34e-6, False), (36e-6, True)])
def test_where_nothing_else_covers_the_change_a_cache_is_warmed_when_moving_still_saves_then(saving: float, pays: bool) -> None:
    warm = Terms(prompt=1e-6, completion=5e-6, cached_prompt=1e-7, pre_copy="warm")
    assert pre_copy_pays(DEAR, warm, length=300, saved=0.0, saving=saving, is_possible_without=False) is pays


# Quality

MOVES = [("server", "device"), ("server", "spare"), ("spare", "device")]
QUALITY = {"server": 0.8, "spare": 0.8, "device": 0.2}
SHARES = st.floats(0.0, 1.0)
NAMES = st.sampled_from(["a", "b", "c"])
QUALITIES = st.dictionaries(NAMES, st.floats(0.0, 10.0))
MOVE_LISTS = st.lists(st.tuples(NAMES, NAMES))


def test_without_a_setting_no_move_goes_to_a_model_that_is_known_to_be_worse() -> None:
    barred = barred_moves(MOVES, QUALITY, None)
    assert [(move.source, move.target, move.is_asked) for move in barred] == [("server", "device", False), ("spare", "device", False)]
    assert barred[0].reason == "device has a quality of 0.2 and server of 0.8 (MigrationOptions(min_quality=...) allows it)"


def test_without_a_setting_moves_go_on_where_they_are_trusted_or_known_to_be_good() -> None:
    assert barred_moves(MOVES, {}, None, trusted=MOVES) == []
    found = barred_moves([("server", "device"), ("spare", "device")], {"server": 0.8}, None, trusted=[("server", "device")])
    reason = "whether the model of device is as good is not known (MigrationOptions(min_quality=0) allows it)"
    assert found == [BarredMove("spare", "device", reason, is_asked=True)]
    assert [move.source for move in barred_moves(MOVES, QUALITY, None, trusted=MOVES)] == ["server", "spare"], "known to be worse"


def test_a_setting_is_the_share_of_the_sources_quality_that_the_target_needs() -> None:
    assert barred_moves(MOVES, QUALITY, 0.25) == []
    assert [(move.source, move.target, move.is_asked) for move in barred_moves(MOVES, QUALITY, 0.26)] == [
        ("server", "device", True),
        ("spare", "device", True),
    ]
    assert barred_moves([("device", "server")], QUALITY, 1.0) == []


def test_with_a_setting_an_unknown_quality_bars_the_move() -> None:
    found = barred_moves(MOVES, {"server": 0.8, "spare": 0.8}, 0.9)
    reason = "the quality of device is not known (min_quality=0.9)"
    assert found == [BarredMove("server", "device", reason, False), BarredMove("spare", "device", reason, False)]
    assert "server and device" in barred_moves(MOVES[:1], {}, 0.9)[0].reason


@given(MOVE_LISTS, QUALITIES)
def test_a_share_of_zero_allows_every_move(moves: list[tuple[str, str]], quality: dict[str, float]) -> None:
    assert barred_moves(moves, quality, 0.0) == []


@given(MOVE_LISTS, QUALITIES, SHARES, SHARES)
def test_a_smaller_share_bars_no_more_moves(moves: list[tuple[str, str]], quality: dict[str, float], one: float, other: float) -> None:
    less, more = sorted((one, other))
    barred = {(move.source, move.target) for move in barred_moves(moves, quality, more)}
    assert {(move.source, move.target) for move in barred_moves(moves, quality, less)} <= barred <= set(moves)


def test_qualities_are_known_if_all_are() -> None:
    assert are_known(["server", "device"], QUALITY)
    assert not are_known(["server", "other"], QUALITY)
    assert are_known([], {})
