"""Drafts by lookup: when an answer leaves the stream for them, and that it loses nothing where they are wrong."""

from __future__ import annotations

from random import Random

import pytest

from streamco.client.modes.speculation.options import SpeculationOptions
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.profiles.row_costs import RowCosts
from tests.support.simulated_lookups import Link, look_up_answer

STEP = 0.05
LINKS = [
    Link(rtt=rtt, step=STEP, rows=rows, ahead=ahead)
    for rtt in (0.01, 0.06)
    for rows in (None, RowCosts({1: STEP, 16: 0.06}))
    for ahead in (0, 3)
]
PROSE = Random(7).choices(range(40), k=400)
"""Tokens that often repeat in pairs, and seldom go on as before."""


def new_estimates() -> SpeculationEstimates:
    return SpeculationOptions(drafter="lookup").estimates(1.0)


@pytest.mark.parametrize("link", LINKS)
async def test_a_text_that_stood_in_the_prompt_comes_faster_than_the_stream(link: Link) -> None:
    prompt = Random(3).sample(range(1000), 120)
    done = await look_up_answer(prompt, prompt[10:110], link, new_estimates())
    assert done.ids == prompt[10:110]
    assert done.seconds < 0.7 * 99 * STEP
    assert done.report.accepted > 50
    assert done.report.fallbacks == 0, "it never went back to the stream"


@pytest.mark.parametrize("link", LINKS)
async def test_a_text_whose_repeats_mislead_is_no_slower_than_the_stream_by_three_percent(link: Link) -> None:
    estimates = new_estimates()
    for begin in range(0, 300, 100):
        answer = PROSE[begin + 100 :] + PROSE[:begin]
        done = await look_up_answer(PROSE[begin : begin + 100], answer, link, estimates)
        assert done.ids == answer
        assert done.seconds <= 1.03 * (len(answer) - 1) * STEP


async def test_an_answer_with_nothing_to_look_up_is_the_plain_stream() -> None:
    answer = list(range(100, 160))
    done = await look_up_answer([1, 2, 3], answer, LINKS[0], new_estimates())
    assert done.seconds == pytest.approx(59 * STEP)
    assert (done.report.rounds, done.report.remote, done.report.drafted, done.report.fallbacks) == (0, 60, 0, 0)
    assert done.report.why_remote == "its speed was measured"


async def test_edits_go_back_to_the_stream_and_return() -> None:
    prompt = Random(5).sample(range(1000), 300)
    answer = [token if place % 60 < 50 else 1000 + place for place, token in enumerate(prompt)]
    done = await look_up_answer(prompt, answer, LINKS[1], new_estimates())
    assert done.ids == answer
    assert done.report.fallbacks >= 3
    assert done.seconds < 0.7 * 299 * STEP


async def test_drafts_always_ask_for_one_token_where_nothing_is_found() -> None:
    prompt = Random(3).sample(range(1000), 60)
    answer = [2000, 2001, *prompt[10:50], 3000]
    done = await look_up_answer(prompt, answer, LINKS[0], new_estimates(), is_adaptive=False)
    assert done.ids == answer
    assert (done.report.remote, done.report.fallbacks) == (0, 0)


async def test_without_a_stream_each_round_has_a_token_at_least() -> None:
    done = await look_up_answer(PROSE[:100], PROSE[100:160], LINKS[0], new_estimates(), has_remote=False)
    assert done.ids == PROSE[100:160]
    assert done.report.remote == 0


async def test_a_verifier_without_a_price_list_learns_from_the_stream_how_often_matches_are_right() -> None:
    estimates = new_estimates()
    before = estimates.acceptance
    await look_up_answer(PROSE[:100], PROSE[100:], LINKS[0], estimates)
    assert estimates.acceptance < before
