"""The buffer of a smooth pace, called directly with now=: thirteen patterns of arrival, and any other."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.client.driver import SpeculatedChunk
from streamco.core.graphemes import is_boundary
from streamco.core.meter import FRAME
from streamco.core.pacer import Pacer
from streamco.core.pieces import weigh_chunk
from streamco.core.smooth_schedule import MAX_ADDED_DELAY, SmoothSchedule
from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    FunctionDelta,
    ToolCallDelta,
    further_fields,
    with_further,
)
from streamco.testing.endpoint import text_chunk

SPREAD = MAX_ADDED_DELAY - FRAME  # seconds over which a burst is spread
TINY = 1e-9
WORD = " word"

Arrival = tuple[float, Sequence[str]]
"""When chunks come, and their texts."""


class Shown(NamedTuple):
    """A piece that went out."""

    at: float
    text: str


def play(arrivals: Sequence[Arrival], *, late: Callable[[], float] = lambda: 0.0) -> list[Shown]:
    """Return the pieces of these arrivals, each at its time; a timer is late by ``late()`` seconds."""
    pacer, shown, now = Pacer("smooth"), list[Shown](), 0.0

    def release(at: float) -> None:
        nonlocal now
        now = max(now, at)
        shown.extend(Shown(now, chunk.choices[0].delta.content or "") for _, chunk in pacer.release(now=now))

    def wait_until(end: float) -> None:
        while (due := pacer.next_due()) is not None and (fires := due + late()) <= end:
            before = len(shown)
            release(fires)
            assert len(shown) > before, "a piece that is due goes out"

    for time, texts in arrivals:
        wait_until(time)
        pacer.feed("s", [text_chunk(text) for text in texts], now=time)
        release(time)
    wait_until(1e12)
    assert (pacer.buffered, pacer.next_due()) == (0, None)
    return shown


def delays(arrivals: Sequence[Arrival], shown: Sequence[Shown]) -> list[float]:
    """Return each character's delay, after checking that the text is whole and that each piece is there."""
    assert "".join(piece.text for piece in shown) == "".join(text for _, texts in arrivals for text in texts)
    assert all(piece.text for piece in shown)
    came = [time for time, texts in arrivals for text in texts for _ in text]
    went = [piece.at for piece in shown for _ in piece.text]
    return [after - before for before, after in zip(came, went, strict=True)]


def gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def largest_gap(arrivals: Sequence[Arrival]) -> float:
    return max(gaps([time for time, _ in arrivals]), default=0.0)


def check(arrivals: Sequence[Arrival], *, late: Callable[[], float] = lambda: 0.0) -> list[Shown]:
    """Return the pieces after checking what holds for any arrivals."""
    shown = play(arrivals, late=late)
    delayed = delays(arrivals, shown)
    assert all(0 <= delay <= MAX_ADDED_DELAY + TINY for delay in delayed)
    assert delayed[0] == 0, "the first piece goes at once"
    assert all(gap >= 0 for gap in gaps([piece.at for piece in shown]))
    return shown


def every(period: float, count: int, *texts: str, start: float = 0.0) -> list[Arrival]:
    return [(start + number * period, texts or (WORD,)) for number in range(count)]


def rounds(seed: int) -> list[Arrival]:
    """Fifty rounds of speculation, with 1 to 8 tokens each."""
    rng, time, found = random.Random(seed), 0.0, list[Arrival]()
    for _ in range(50):
        found.append((time, [WORD] * rng.randint(1, 8)))
        time += rng.uniform(0.1, 0.15)
    return found


# Patterns of arrival


@pytest.mark.parametrize("period", [0.02, 0.05, 0.2, 0.35, 1.0])
def test_text_that_comes_evenly_is_not_held(period: float) -> None:
    arrivals = every(period, 200)
    assert check(arrivals) == [Shown(time, WORD) for time, _ in arrivals]


@pytest.mark.parametrize("seed", range(20))
def test_text_that_comes_nearly_evenly_is_not_held_for_a_frame_on_average(seed: int) -> None:
    rng = random.Random(seed)
    arrivals: list[Arrival] = [(number * 0.03 + rng.uniform(0, 0.01), [WORD]) for number in range(300)]
    delayed = delays(arrivals, check(arrivals))
    assert sum(delayed) / len(delayed) < FRAME


def test_bursts_of_ten_every_second_are_spread_over_the_time_that_is_allowed() -> None:
    shown = check(every(1.0, 10, *[WORD] * 10))
    between = gaps([piece.at for piece in shown])
    assert max(between) <= 1.0 - SPREAD + TINY, "not a second: nothing closes this gap further, because no token may be later"
    assert sum(gap > SPREAD / 9 + TINY for gap in between) == 9, "all other gaps are a ninth of the spread"


def test_one_chunk_at_the_end_is_cut_and_spread() -> None:
    shown = check([(7.0, [WORD * 60])])
    assert len(shown) == 20
    assert shown[0].at == 7.0
    assert max(gaps([piece.at for piece in shown])) <= SPREAD / 19 + FRAME + TINY
    assert shown[-1].at <= 7.0 + MAX_ADDED_DELAY


def test_slow_then_fast_text_has_no_longer_gap_and_is_not_held_in_the_end() -> None:
    slow, fast = every(0.2, 20), every(0.02, 200, start=4.0)
    shown = check([*slow, *fast])
    assert max(gaps([piece.at for piece in shown])) <= 0.2 + TINY
    assert delays([*slow, *fast], shown)[-100 * len(WORD) :] == [0.0] * 100 * len(WORD)


def test_fast_then_slow_text_is_not_held() -> None:
    arrivals = [*every(0.02, 200), *every(0.3, 20, start=4.0)]
    assert set(delays(arrivals, check(arrivals))) == {0.0}


def test_a_long_stall_delays_nothing_after_it() -> None:
    arrivals = [*every(0.02, 100), *every(0.02, 100, start=9.0)]
    assert set(delays(arrivals, check(arrivals))) == {0.0}


def test_what_had_stalled_and_comes_as_one_burst_is_spread() -> None:
    arrivals: list[Arrival] = [*every(0.02, 100), (5.0, [WORD] * 50), *every(0.02, 100, start=5.02)]
    shown = check(arrivals)
    assert max(gaps([piece.at for piece in shown if piece.at >= 5.0])) <= 2 * FRAME
    assert delays(arrivals, shown)[-1] == 0


def test_eight_tokens_every_200_ms_become_one_every_25_ms() -> None:
    between = gaps([piece.at for piece in check(every(0.2, 40, *[WORD] * 8))])
    assert max(between) <= SPREAD / 7 + TINY, "at first the rate is not known"
    assert between[-80:] == pytest.approx([0.025] * 80, abs=0.002)


@pytest.mark.parametrize("apart", [0.0, 0.0003, 0.0015])
def test_a_burst_may_come_chunk_by_chunk(apart: float) -> None:
    fast = [(number * 0.2 + index * apart, [WORD]) for number in range(40) for index in range(8)]
    between = gaps([piece.at for piece in check(fast)])
    assert max(between) <= SPREAD / 6
    assert max(between[-80:]) <= 2 * 0.025 + TINY
    slow = [(float(number) + index * apart, [WORD]) for number in range(10) for index in range(10)]
    assert max(gaps([piece.at for piece in check(slow)])) <= 1.0 - SPREAD + TINY


def test_much_text_after_a_first_token_is_not_taken_for_a_rate() -> None:
    shown = check([(0.0, [WORD]), (0.1, [WORD] * 30)])
    assert max(gaps([piece.at for piece in shown[1:]])) <= 2 * FRAME
    assert shown[-1].at >= 0.1 + SPREAD - 2 * FRAME


@pytest.mark.parametrize("seed", range(60))
def test_rounds_of_speculation_are_evened_out(seed: int) -> None:
    arrivals = rounds(seed)
    between = gaps([piece.at for piece in check(arrivals)])
    assert max(between) <= largest_gap(arrivals) + TINY
    long = sum(gap > 0.1 for gap in between)
    assert long <= len(arrivals) // 6, "without smoothing each round has a gap of more than 0.1 seconds before it"


def test_a_small_burst_among_large_ones_is_spread_over_the_time_of_one() -> None:
    sizes = [8] * 12 + [2] + [8] * 3
    arrivals: list[Arrival] = [(number * 0.2, [WORD] * size) for number, size in enumerate(sizes)]
    times = [piece.at for piece in check(arrivals)]
    assert max(gaps([time for time in times if time >= 2.0])) <= 0.105, "at the rate of the others it would be 0.175"


def test_rounds_of_speculation_have_shorter_longest_gaps_in_most_answers() -> None:
    shorter = [max(gaps([piece.at for piece in check(rounds(seed))])) < 0.9 * largest_gap(rounds(seed)) for seed in range(60)]
    assert sum(shorter) > 30


def test_text_without_spaces_is_shown_evenly() -> None:
    sentence = "彼は毎朝公園を散歩するのが好きです。" * 2
    shown = check(every(0.3, 10, sentence))
    assert len(shown) == 90, "a character is a quarter of a token in the estimate"
    assert max(gaps([piece.at for piece in shown])) <= SPREAD / 8 + TINY


def test_an_address_of_two_thousand_characters_is_shown_evenly() -> None:
    shown = check([(0.0, ["see"]), (0.02, [" https://example.com/" + "a" * 1980])])
    assert max(len(piece.text) for piece in shown) <= ceil(2001 / 20) + 1
    assert max(gaps([piece.at for piece in shown])) <= SPREAD / 19 + FRAME + TINY


@pytest.mark.parametrize("period", [0.002, 0.005, 0.015])
def test_single_characters_at_hundreds_a_second_are_not_held_after_the_first_frame(period: float) -> None:
    arrivals = every(period, 2000, "x")
    delayed = delays(arrivals, check(arrivals))
    first = sum(time <= FRAME for time, _ in arrivals)
    assert max(delayed[:first]) <= FRAME + TINY, "until it is known that more than one burst comes"
    assert set(delayed[first:]) == {0.0}


def test_emoji_and_combining_marks_are_never_cut() -> None:
    text = "👨‍👩‍👧‍👦e\u0301🇫🇷👍🏽\u0915\u094d\u0937\u093f" * 12
    position, shown = 0, check(every(0.3, 5, text))
    whole = text * 5
    for piece in shown[:-1]:
        position += len(piece.text)
        assert is_boundary(whole, position) or position % len(text) == 0
    assert max(gaps([piece.at for piece in shown])) < 0.1


def test_ten_kilobytes_in_one_chunk_are_out_in_time_and_in_few_pieces() -> None:
    shown = check([(0.0, ["word " * 2000])])
    assert len(shown) == 20
    assert max(gaps([piece.at for piece in shown])) <= SPREAD / 19 + FRAME + TINY


TEXTS = st.lists(
    st.one_of(st.sampled_from(["a", WORD, WORD * 9, "彼は毎朝", "e\u0301"]), st.text(min_size=1, max_size=60)), min_size=1, max_size=12
)
WAITS = st.one_of(st.just(0.0), st.floats(0.0, 0.05), st.floats(0.0, 2.0))


@given(st.lists(st.tuples(WAITS, TEXTS), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_nothing_is_lost_early_or_too_late_whatever_the_arrivals(steps: list[tuple[float, list[str]]], rng: random.Random) -> None:
    times = itertools.accumulate(wait for wait, _ in steps)
    check([(time, texts) for time, (_, texts) in zip(times, steps, strict=True)], late=lambda: rng.uniform(0, FRAME))


# What is held, and what is not


def tool_call() -> ChatCompletionChunk:
    calls = [ToolCallDelta(index=0, function=FunctionDelta(arguments='{"city": "Paris", "unit": "celsius"}'))]
    return ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(tool_calls=calls))])


def of_choice(index: int) -> ChatCompletionChunk:
    return ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(content="the text of another choice"), index=index)])


@pytest.mark.parametrize(
    "chunk",
    [
        tool_call(),
        ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning_content="let me think about this one"))]),
        ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(reasoning="let me think about this one"))]),
        ChatCompletionChunk(choices=[ChunkChoice(delta=ChoiceDelta(refusal="I can't help you with this one"))]),
        of_choice(1),
        ChatCompletionChunk(choices=[of_choice(0).choices[0], of_choice(1).choices[0]]),
    ],
    ids=["tool call", "reasoning_content", "reasoning", "refusal", "another choice", "two choices"],
)
def test_what_is_no_content_of_the_first_choice_waits_for_nothing_and_passes_whole(chunk: ChatCompletionChunk) -> None:
    pacer = Pacer("smooth")
    pacer.feed("s", [text_chunk(WORD), text_chunk(WORD)], now=0.0)
    assert len(pacer.release(now=0.0)) == 1
    pacer.feed("s", [chunk], now=0.1)
    given = [each for _, each in pacer.release(now=0.1)]
    assert given[0].choices[0].delta.content == WORD, "the text before it goes first"
    assert given[1:] == [chunk]
    assert given[1] is chunk
    pacer.feed("s", [text_chunk("a"), text_chunk("b"), text_chunk("c"), chunk, text_chunk("d"), text_chunk("e")], now=1.0)
    given = [each for _, each in pacer.release(now=1.0)]
    assert [each.choices[0].delta.content for each in given[:3]] == ["a", "b", "c"]
    assert given[3:] == [chunk]
    assert pacer.buffered == 2, "the text after it has a pace again"
    assert [each.choices[0].delta.content for _, each in pacer.release(now=1.0 + SPREAD)] == ["d", "e"]


def test_chunks_with_nothing_to_read_follow_the_text_before_them() -> None:
    pacer = Pacer("smooth")
    role, end, usage = text_chunk(""), text_chunk("", finish_reason="stop"), ChatCompletionChunk(usage=CompletionUsage(1, 2, 3))
    pacer.feed("s", [role, text_chunk("a"), text_chunk("b"), end, usage], now=0.0)
    assert [chunk.choices[0].delta.content for _, chunk in pacer.release(now=0.0)] == [None, "a"]
    due = pacer.next_due()
    assert due == pytest.approx(SPREAD)
    assert [chunk for _, chunk in pacer.release(now=due or 0.0)][1:] == [end, usage]
    pacer.feed("s", [usage], now=1.0)
    assert pacer.next_due() == 1.0
    assert pacer.release(now=1.0) == [("s", usage)]


@pytest.mark.parametrize(
    "chunk",
    [
        text_chunk("one two three four five", ids=[1, 2, 3, 4, 5]),
        ChatCompletionChunk(choices=[ChunkChoice(ChoiceDelta("one two three four five"), logprobs=ChoiceLogprobs(content=[]))]),
    ],
    ids=["token ids", "logprobs"],
)
def test_a_chunk_with_ids_or_log_probabilities_is_held_whole(chunk: ChatCompletionChunk) -> None:
    pacer = Pacer("smooth")
    pacer.feed("s", [text_chunk("a"), chunk], now=0.0)
    assert len(pacer.release(now=0.0)) == 1
    assert pacer.buffered == weigh_chunk(chunk) > 4
    (given,) = pacer.release(now=SPREAD)
    assert given[1] is chunk


def test_the_pieces_have_the_chunks_metadata_and_its_end_comes_last() -> None:
    chunk = text_chunk("The quick brown fox jumps over the lazy dog", finish_reason="stop")
    chunk.usage, chunk.choices[0].delta.role = CompletionUsage(1, 9, 10), "assistant"
    pacer = Pacer("smooth")
    pacer.feed("s", [with_further(chunk, {"citations": ["a"]})], now=0.0)
    pieces = [each for _, each in pacer.flush()]
    assert len(pieces) > 5
    assert {(each.id, each.model) for each in pieces} == {(chunk.id, chunk.model)}
    assert [each.choices[0].finish_reason for each in pieces] == [None] * (len(pieces) - 1) + ["stop"]
    assert [each.usage for each in pieces] == [None] * (len(pieces) - 1) + [chunk.usage]
    assert [each.choices[0].delta.role for each in pieces] == ["assistant"] + [None] * (len(pieces) - 1)
    assert [further_fields(each) for each in pieces] == [{"citations": ["a"]}] + [{}] * (len(pieces) - 1)


def test_the_pieces_of_a_speculated_chunk_keep_its_origin() -> None:
    choice = ChunkChoice(delta=ChoiceDelta(content="one two three four five"))
    pacer = Pacer("smooth")
    pacer.feed("s", [SpeculatedChunk(choices=[choice], origin="accepted")], now=0.0)
    pieces: list[Any] = [each for _, each in pacer.flush()]
    assert len(pieces) > 3
    assert {each.origin for each in pieces} == {"accepted"}


@given(st.lists(st.text(max_size=80), max_size=20))
def test_the_tokens_held_are_those_of_the_chunks(texts: list[str]) -> None:
    pacer, chunks = Pacer("smooth"), [text_chunk(text) for text in texts]
    pacer.feed("s", chunks, now=0.0)
    assert pacer.buffered == sum(map(weigh_chunk, chunks))
    while (due := pacer.next_due()) is not None:
        pacer.release(now=due)
    assert pacer.buffered == 0


def test_after_a_blocked_loop_all_that_is_overdue_goes_at_once() -> None:
    pacer = Pacer("smooth")
    pacer.feed("s", [text_chunk(text) for text in "abcd"], now=0.0)
    pacer.release(now=0.0)
    pacer.feed("s", [text_chunk(text) for text in "efgh"], now=1.0)
    assert "".join(each.choices[0].delta.content or "" for _, each in pacer.release(now=1.0)) == "bcd"
    assert pacer.buffered == 4, "the new text has a pace"
    assert len(pacer.release(now=1.0 + SPREAD)) == 4


def test_a_large_chunk_that_was_not_cut_holds_nothing_back_after_a_pause() -> None:
    pacer = Pacer("smooth")
    for time, chunk in ((0.0, text_chunk("a")), (0.2, text_chunk("b")), (0.35, text_chunk("so many words", ids=list(range(40))))):
        pacer.feed("s", [chunk], now=time)
        assert len(pacer.release(now=time + SPREAD)) == 1
    pacer.feed("s", [text_chunk("c")], now=1.0)
    assert len(pacer.release(now=1.0)) == 1


def test_all_of_it_is_given_at_once_and_the_next_text_has_a_pace_again() -> None:
    pacer = Pacer("smooth")
    pacer.feed("a", [text_chunk(WORD)] * 2, now=0.0)
    pacer.feed("b", [text_chunk(WORD)], now=0.0)
    assert [source for source, _ in pacer.flush()] == ["a", "a", "b"]
    assert (pacer.buffered, pacer.next_due(), pacer.flush()) == (0, None, [])
    pacer.feed("b", [text_chunk(WORD)] * 3, now=3.0)
    assert len(pacer.release(now=3.0)) == 1


def test_bursts_are_forgotten_once_they_are_out_and_never_extended_then() -> None:
    schedule = SmoothSchedule()
    for time, texts in [(0.0, [WORD]), (0.01, [WORD] * 8), (0.02, [WORD])]:
        schedule.feed("s", [text_chunk(text) for text in texts], now=time)
        schedule.ring.release(time)
    assert [burst.latest for burst in schedule._bursts] == [0.01 + SPREAD], "the first is out, and the third is part of the second"
    for number in range(1, 1000):
        schedule.feed("s", [text_chunk(WORD), text_chunk("")], now=number)
        schedule.ring.release(number)
    assert len(schedule._bursts) <= 2
