"""What rows cost on the wire and in time, and answers whose rejections the device resolves itself."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import simpy

from bench.counted.dssd import (
    CONTENDERS,
    VERIFY,
    Cell,
    Contender,
    Link,
    LinkedVerifier,
    answer_speeds,
    draft_bytes,
    models,
    round_seconds,
    verdict_bytes,
)
from streamco.core.speculation.events import ConnectVerifier, ExpectedVerdict, SendDraft, VerdictReceived, VerifierConnected
from streamco.wire.verify.topk import row_size

BITS = 18
ENDLESS = Link(1e9, 0.03)


@pytest.mark.parametrize(("window", "row_ids"), list(product((1, 4, 8), (5, 20, 64))))
def test_a_draft_has_a_row_for_each_token_or_two_bytes(window: int, row_ids: int) -> None:
    plain = draft_bytes("rows for nothing", 0, window, row_ids)
    assert draft_bytes("row down", 0, window, row_ids) == plain + 2 * window
    rows = window * row_size(row_ids, BITS)
    assert plain + rows < draft_bytes("rows up", 0, window, row_ids) <= plain + rows + 4


def test_only_a_rejection_has_a_row_and_no_token() -> None:
    for contender in CONTENDERS:
        accepted, rejected = (verdict_bytes(contender, 20, is_rejection=is_rejection) for is_rejection in (False, True))
        assert (rejected > accepted) == (contender == "row down")
    assert verdict_bytes("row down", 20, is_rejection=True) > row_size(20, BITS)


def test_rounds_differ_by_the_bytes_alone() -> None:
    for window, is_hidden in product((1, 4), (False, True)):
        times = {each: round_seconds(each, window, 20, 0.8, ENDLESS, is_hidden=is_hidden) for each in CONTENDERS}
        assert times["row down"] == pytest.approx(times["rows up"], abs=1e-6)
    slow = Link(0.1, 0.03)
    up, down, bound = (round_seconds(each, 4, 20, 0.8, slow, is_hidden=True) for each in CONTENDERS)
    assert bound < down < up
    assert round_seconds("row down", 1, 64, 0.0, slow, is_hidden=True) > round_seconds("rows up", 1, 64, 0.0, slow, is_hidden=True), (
        "each round is rejected and has one token: its row goes down and not up"
    )


def test_without_drafts_sent_ahead_an_endless_link_makes_all_alike() -> None:
    cell = Cell(1.0, ENDLESS, max_ahead=0)
    speeds = [answer_speeds(contender, cell, 1)[0] for contender in CONTENDERS]
    assert speeds[0] == pytest.approx(speeds[1], rel=1e-4)
    assert speeds[0] == pytest.approx(speeds[2], rel=1e-4)


@pytest.mark.parametrize("contender", CONTENDERS)
def test_a_draft_sent_ahead_of_a_rejection_waits_for_the_device_if_it_draws_the_correction(contender: Contender) -> None:
    env, cell = simpy.Environment(), Cell(1.0, ENDLESS)
    times: list[float] = []

    def take(event: VerifierConnected | VerdictReceived) -> None:
        if isinstance(event, VerdictReceived):
            assert event.token == 1
            times.append(env.now)

    session = LinkedVerifier(env, lambda _: {1: 1.0}, cell, contender, emit_event=take, rng=Random(1))
    session.run(ConnectVerifier((5,)))
    env.run(1.0)
    session.run(SendDraft(1, 1, (), (2,), ({2: 1.0},), None))
    session.run(SendDraft(2, 2, (), (1,), ({1: 1.0},), ExpectedVerdict(1, 0, 1)))
    env.run(2.0)
    assert session.ids == [5, 1, 1, 1]
    waited = ENDLESS.rtt if contender == "row down" else 0.0
    assert times[1] - times[0] == pytest.approx(waited + VERIFY, rel=0.02)
    assert (session.rounds, session.rejections, session.ahead_of_rejections) == (2, 1, 1)


def test_more_noise_lowers_acceptance() -> None:
    accepted = []
    for noise in (0.35, 1.0):
        _, (session,) = answer_speeds("rows up", Cell(noise, Link(10.0, 0.03)), 1)
        accepted.append(session.accepted / session.verified)
    assert accepted[0] > accepted[1] > 0.5
    target, draft = models(0.0, 1)
    assert target([3, 4]) == draft([3, 4])
