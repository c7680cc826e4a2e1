"""One answer, added up by hand: U-shape, chunks, drafts, parallel drafting and trees."""

from __future__ import annotations

import pytest

from streamco.policies.chunking import chunk_size
from streamco.policies.serving.batching import Mixed
from streamco.profiles.row_costs import RowCosts
from streamco.sim.split.split_device import wire_bytes
from tests.sim.split.worlds import STATE, SmallSplit, batch_seconds, request

UP, DOWN, HALF = 1 / 8e6, 1 / 16e6, 0.005  # seconds a byte, and of half a round trip
INPUT, HEAD, DRAFT, ROW = 0.004, 0.001, 0.0005, 0.0001


def trip(rows: int, back: int) -> float:
    """From sending rows to their deep states."""
    return wire_bytes(rows * STATE) * UP + HALF + batch_seconds(rows, 0, 1) + wire_bytes(back * STATE) * DOWN + HALF


def test_a_u_shape_takes_as_long_as_by_hand() -> None:
    (outcome,) = SmallSplit().run(request(prompt=100, tokens=6))
    first = INPUT + 99 * ROW + trip(100, 100) + HEAD
    assert outcome.first == pytest.approx(first)
    assert outcome.ended == pytest.approx(first + 5 * (INPUT + trip(1, 1) + HEAD))
    assert (outcome.tokens, outcome.rounds, outcome.rows, outcome.chunks) == (6, 5, 105, [100])
    assert outcome.bytes_up == wire_bytes(100 * STATE) + 5 * wire_bytes(STATE)
    assert outcome.bytes_down == wire_bytes(100 * STATE) + 5 * wire_bytes(STATE)


def test_only_the_last_row_comes_back_if_no_other_is_wanted() -> None:
    (outcome,) = SmallSplit().run(request(prompt=100, tokens=1), prompt_rows="last")
    assert outcome.first == pytest.approx(INPUT + 99 * ROW + trip(100, 1) + HEAD)
    assert outcome.bytes_down == wire_bytes(STATE)


def test_chunks_are_on_the_way_while_the_server_computes_the_ones_before() -> None:
    (outcome,) = SmallSplit().run(request(prompt=100, tokens=1), chunking=50, prompt_rows="last")
    chunk = wire_bytes(50 * STATE) * UP  # 50 ms, and the server needs 25 ms for one: the link never rests
    assert outcome.chunks == [50, 50]
    first = INPUT + 49 * ROW + 2 * chunk + HALF + batch_seconds(50, 0, 1) + wire_bytes(STATE) * DOWN + HALF + HEAD
    assert outcome.first == pytest.approx(first)


def test_a_limit_of_chunks_in_flight_waits_for_an_answer() -> None:
    one, two = (SmallSplit().run(request(prompt=100, tokens=1), chunking=25, chunks_in_flight=limit)[0] for limit in (1, 2))
    assert one.first == pytest.approx(INPUT + 24 * ROW + 4 * trip(25, 25) + HEAD), "the next chunk is computed while one is on its way"
    assert two.first < one.first


def test_enough_chunks_in_flight_are_as_soon_as_any_number_and_two_may_not_be() -> None:
    two, covering, any_number = (
        SmallSplit(stages=4).run(request(prompt=1000, tokens=1), chunking=16, chunks_in_flight=limit, prompt_rows="last")[0]
        for limit in (2, "covering", None)
    )
    assert covering.first == pytest.approx(any_number.first)
    assert two.first > 1.4 * covering.first


def test_the_size_of_chunks_is_that_of_the_live_policy() -> None:
    world = SmallSplit()
    (outcome,) = world.run(request(prompt=600, tokens=1), chunking="balanced")
    costs = RowCosts({rows: batch_seconds(rows, 0, 1) for rows in (1, 64, 2048)})
    plan = chunk_size(600, costs=costs, row_bytes=STATE, upload_rate=8e6)
    assert plan.is_balanced
    assert {*outcome.chunks[:-1]} == {plan.size}


def test_a_draft_takes_its_steps_and_gives_what_is_accepted_and_one_more() -> None:
    answer = request(prompt=100, tokens=5, accepted="11011", confidences=(0.9, 0.9, 0.3, 0.9, 0.9))
    (outcome,) = SmallSplit().run(answer, drafting="threshold")
    step = INPUT + DRAFT + HEAD
    # the first token is the prompt's; a draft of 2 gives the second token and the correction of the third; a draft of 1 gives the rest
    rounds = 2 * step + INPUT + trip(3, 3) + HEAD + 2 * ROW + step + INPUT + trip(2, 2) + HEAD + ROW
    assert outcome.ended - outcome.first == pytest.approx(rounds)
    assert (outcome.rounds, outcome.judged, outcome.accepted, outcome.tokens, outcome.rows) == (2, 3, 2, 5, 105)


def test_a_draft_begun_before_the_verdict_saves_its_steps() -> None:
    answer = request(prompt=100, tokens=5, accepted="11011", ranks="00100", confidences=(0.9, 0.9, 0.3, 0.9, 0.9))
    alone, ahead = (SmallSplit().run(answer, drafting="threshold", branches=branches)[0] for branches in (0, 2))
    assert (alone.hits, ahead.hits) == (0, 1)
    assert alone.ended - ahead.ended == pytest.approx(INPUT + DRAFT + HEAD)
    assert (alone.rows, alone.tokens) == (ahead.rows, ahead.tokens)


def test_branches_end_before_the_verdict_comes_and_delay_nothing() -> None:
    answer = request(prompt=100, tokens=30, accepted="0" * 30, ranks="3" * 30)
    alone, ahead = (SmallSplit().run(answer, drafting="threshold", max_draft=2, branches=branches)[0] for branches in (0, 3))
    assert ahead.hits == 0
    assert ahead.ended == pytest.approx(alone.ended)


def test_a_tree_takes_its_rows_and_gives_by_its_law() -> None:
    (outcome,) = SmallSplit().run(request(prompt=100, tokens=6), drafting="tree", tree_accept=5.0)
    seconds = 0.003 + INPUT + 7 * ROW + trip(8, 8) + HEAD + 7 * ROW
    assert outcome.rounds == 1
    assert outcome.ended - outcome.first == pytest.approx(seconds)


def test_answers_that_share_a_device_wait_for_each_other_and_others_do_not() -> None:
    shared, apart = (
        SmallSplit(is_shared=is_shared, batching=Mixed(room=1 << 20)).run(request(number=1), request(number=2))
        for is_shared in (True, False)
    )
    assert apart[1].first - apart[0].first == pytest.approx(batch_seconds(100, 0, 1)), "they wait for each other's batches alone"
    upload = wire_bytes(100 * STATE) * UP
    assert shared[1].first - shared[0].first == pytest.approx(upload)


@pytest.mark.parametrize("drafting", ["none", "threshold", "tree"])
def test_the_server_computes_each_row_that_was_sent_once(drafting: str) -> None:
    world = SmallSplit(batching=Mixed(room=96), stages=3, is_shared=False)
    answers = [request(number=number, prompt=40 * number, tokens=30, accepted="110" * 10) for number in range(1, 6)]
    outcomes = world.run(*answers, drafting=drafting, chunking=32)
    assert len(outcomes) == 5
    assert sum(world.batches) == world.server.rows == sum(outcome.rows for outcome in outcomes)
    assert all(outcome.tokens == 30 for outcome in outcomes)
