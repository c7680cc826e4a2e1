"""The pacing buffer, called directly with now=."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.core.pacer import Pacer, split_chunk, weigh_chunk
from streamco.openai_types import (
    ChatCompletionChunk,
    ChoiceDelta,
    ChoiceLogprobs,
    ChunkChoice,
    CompletionUsage,
    ToolCallDelta,
    further_fields,
    with_further,
)
from streamco.testing.endpoint import text_chunk


def words(count: int) -> list[ChatCompletionChunk]:
    return [text_chunk(f" w{index}") for index in range(count)]


def release_times(pacer: Pacer, until: float = 1e9) -> list[float]:
    times = []
    while (due := pacer.next_due()) is not None and due <= until:
        times += [due] * len(pacer.release(now=due))
    return times


def test_the_first_token_is_never_held_back() -> None:
    pacer = Pacer(1.0)
    pacer.feed("s", words(1), now=7.0)
    assert pacer.next_due() == 7.0
    assert len(pacer.release(now=7.0)) == 1


def test_token_n_is_due_n_periods_after_the_first_without_drift() -> None:
    pacer = Pacer(4.8)
    pacer.feed("s", words(10_000), now=3.0)
    times = release_times(pacer)
    assert times[9_999] == pytest.approx(3.0 + 9_999 / 4.8, abs=1e-9)
    assert times == pytest.approx([3.0 + n / 4.8 for n in range(10_000)])


def test_being_called_late_does_not_shift_the_timeline() -> None:
    pacer = Pacer(10.0)
    pacer.feed("s", words(4), now=0.0)
    pacer.release(now=0.0)
    assert len(pacer.release(now=0.15)) == 1
    assert pacer.next_due() == pytest.approx(0.2)


def test_a_token_that_arrives_late_goes_out_on_arrival_and_the_burst_behind_it_is_smoothed() -> None:
    pacer = Pacer(10.0, catch_up=2.0)
    pacer.feed("s", words(1), now=0.0)
    pacer.release(now=0.0)
    pacer.feed("s", words(30), now=1.0)
    times = release_times(pacer)
    assert times[0] == pytest.approx(1.0)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert min(gaps) >= 0.05 - 1e-9
    assert times[-1] == pytest.approx(3.0), "token 30 is back on the timeline"
    assert gaps[-1] == pytest.approx(0.1)


def test_chunks_without_content_keep_their_place_and_wait_for_nothing() -> None:
    pacer = Pacer(1.0)
    empty = ChatCompletionChunk(id="usage")
    pacer.feed("s", [empty, *words(2), empty], now=0.0)
    assert [chunk.id for _, chunk in pacer.release(now=0.0)] == ["usage", "chatcmpl-scripted"]
    assert [chunk.id for _, chunk in pacer.release(now=1.0)] == ["chatcmpl-scripted", "usage"]
    assert pacer.next_due() is None


def test_flush_gives_the_rest_in_order() -> None:
    pacer = Pacer(1.0)
    pacer.feed("a", words(2), now=0.0)
    pacer.feed("b", words(1), now=0.0)
    assert [source for source, _ in pacer.flush()] == ["a", "a", "b"]
    assert pacer.buffered == 0
    assert pacer.next_due() is None


def test_a_chunk_that_holds_many_tokens_is_cut_at_word_ends() -> None:
    chunk = text_chunk("The quick brown fox  jumps over\nthe lazy dog. ", finish_reason="stop")
    chunk.usage = CompletionUsage(1, 9, 10)
    chunk.choices[0].delta.role = "assistant"
    pieces = split_chunk(chunk)
    assert len(pieces) == 9
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * 8 + ["stop"]
    assert [piece.usage for piece in pieces] == [None] * 8 + [chunk.usage]
    assert pieces[0].choices[0].delta.role == "assistant"
    assert all(piece.id == chunk.id and piece.model == chunk.model for piece in pieces)


def test_languages_without_spaces_are_cut_between_characters() -> None:
    pieces = split_chunk(text_chunk("彼は毎朝、公園を散歩するのが好きです。"))
    assert len(pieces) > 10


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thinking_text_is_cut_under_the_name_the_server_gave_it(name: str) -> None:
    delta = ChoiceDelta()
    setattr(delta, name, "let me think about this one")
    pieces = split_chunk(ChatCompletionChunk(choices=[ChunkChoice(delta=delta)]))
    assert "".join(getattr(piece.choices[0].delta, name) for piece in pieces) == "let me think about this one"
    assert all(piece.choices[0].delta.content is None for piece in pieces)


def test_chunks_whose_text_belongs_to_other_data_stay_whole() -> None:
    with_ids = text_chunk("one two three four five", ids=[1, 2, 3, 4, 5])
    with_tools = text_chunk("one two three four five")
    with_tools.choices[0].delta.tool_calls = [ToolCallDelta(index=0)]
    with_logprobs = text_chunk("one two three four five")
    with_logprobs.choices[0].logprobs = ChoiceLogprobs(content=[])
    for chunk in (with_ids, with_tools, with_logprobs, ChatCompletionChunk(), text_chunk("short")):
        assert split_chunk(chunk) == [chunk]
    assert weigh_chunk(with_ids) == 5


def test_a_servers_own_fields_come_once_and_its_end_last() -> None:
    chunk = text_chunk("one two three four five", finish_reason="stop")
    chunk.provider, chunk.obfuscation = "Azure", "xx"
    choice = chunk.choices[0]
    choice.native_finish_reason, choice.content_filter_results = "end", {"hate": {"filtered": False}}
    choice.delta.reasoning_details = [{"index": 0}]
    choice.delta = with_further(choice.delta, {"channel": "final"})
    chunk.choices = [with_further(choice, {"seed": 5})]
    pieces: list[Any] = split_chunk(with_further(chunk, {"citations": ["a"]}))
    assert len(pieces) == 5
    assert {piece.provider for piece in pieces} == {"Azure"}
    assert [further_fields(piece) for piece in pieces] == [{"citations": ["a"]}, {}, {}, {}, {}]
    assert [further_fields(piece.choices[0]) for piece in pieces] == [{"seed": 5}, {}, {}, {}, {}]
    assert [further_fields(piece.choices[0].delta) for piece in pieces] == [{"channel": "final"}, {}, {}, {}, {}]
    assert [piece.choices[0].delta.reasoning_details for piece in pieces] == [[{"index": 0}], None, None, None, None]
    assert [piece.choices[0].native_finish_reason for piece in pieces] == [None, None, None, None, "end"]
    assert [piece.choices[0].finish_reason for piece in pieces] == [None, None, None, None, "stop"]


@given(st.text(max_size=200))
def test_the_pieces_together_are_the_text(text: str) -> None:
    pieces = split_chunk(text_chunk(text))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text


def test_a_chunk_of_a_megabyte_is_cut_into_a_thousand_pieces_and_keeps_its_time() -> None:
    text = "word " * 200_000
    pieces = split_chunk(text_chunk(text))
    assert len(pieces) <= 1024
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text
    assert sum(map(weigh_chunk, pieces)) == pytest.approx(250_000, rel=0.01)


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_early_lost_or_reordered_whatever_the_arrivals(seed: int) -> None:
    rng = random.Random(seed)
    rate = rng.uniform(1, 50)
    pacer = Pacer(rate, catch_up=rng.choice([1.0, 2.0, 5.0]))
    closest = 1 / rate / 5
    fed: list[str] = []
    out: list[tuple[float, str]] = []
    now, first = 0.0, None
    for index in range(300):
        now += rng.expovariate(rate * rng.choice([0.3, 1, 20]))
        while (due := pacer.next_due()) is not None and due <= now:
            out += [(due, chunk.choices[0].delta.content or "") for _, chunk in pacer.release(now=due)]
        word = f" {index}"
        first = now if first is None else first
        pacer.feed("s", [text_chunk(word)], now=now)
        fed.append(word)
    while (due := pacer.next_due()) is not None:
        out += [(max(due, now), chunk.choices[0].delta.content or "") for _, chunk in pacer.release(now=due)]
    assert [word for _, word in out] == fed, f"seed {seed}"
    assert first is not None
    for index, (time, _) in enumerate(out):
        assert time >= first + index / rate - 1e-9, f"seed {seed}: token {index} is early"
    assert all(after - before >= closest - 1e-9 for (before, _), (after, _) in itertools.pairwise(out) if after > before)
