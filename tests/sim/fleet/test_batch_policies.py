"""Batches as other systems form them, and what every policy promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.errors import ConfigError
from streamco.policies.serving.batching import (
    CHUNK,
    Alternating,
    BatchContext,
    BatchPolicy,
    LinearStep,
    MayWait,
    Portion,
    StrictPrefill,
    Waiting,
)
from streamco.policies.serving.length_aware import LengthAware
from streamco.sim.fleet.batch_policies import BATCHING, ChunkedPrefill, Continuous, Windowed, batch_policy, padded_tokens

STEP = LinearStep(setup=0.040, per_token=0.0002)
SMALL: dict[str, dict[str, object]] = {
    "windowed": {"requests": 3, "window": 0.1},
    "length-aware": {"requests": 4},
    "chunked": {"chunk": 40},
}


def small(name: str) -> BatchPolicy:
    return batch_policy(name, **{"room" if name == "mixed" else "batch_tokens": 64}, **SMALL.get(name, {}))


def prompt(session: str, tokens: int, *, since: float = 0.0, context: int = 0) -> Waiting:
    return Waiting(
        session=session, device=session, kind="prefill", tokens=tokens, verify_rows=0, context=context, since=since, due=math.inf
    )


def draft(session: str, tokens: int = 5, *, verify_rows: int = 5, since: float = 0.0, context: int = 100) -> Waiting:
    return Waiting(
        session=session,
        device=session,
        kind="verify",
        tokens=tokens,
        verify_rows=verify_rows,
        context=context,
        since=since,
        due=since + 0.1,
    )


def state(now: float = 0.0, *, verified: int = 1) -> BatchContext:
    return BatchContext(now=now, served={}, verified=verified, step=STEP)


def chosen(policy: BatchPolicy, *waiting: Waiting, now: float = 0.0, verified: int = 1) -> tuple[str, dict[str, int]]:
    batch = policy.choose(waiting, state(now, verified=verified))
    assert batch is not None
    return batch.kind, {portion.session: portion.tokens for portion in batch.portions}


# Length-aware


def test_with_the_head_goes_who_is_about_as_long() -> None:
    policy = LengthAware(tolerance=0.25)
    assert chosen(policy, draft("a", 8), draft("b", 6), draft("c", 5), draft("d", 10), draft("e", 11)) == (
        "verify",
        {"a": 8, "b": 6, "d": 10},
    )


def test_who_is_of_the_other_kind_never_goes_along_however_long() -> None:
    assert chosen(LengthAware(), prompt("p", 20), draft("a", 20), prompt("q", 21)) == ("prefill", {"p": 20, "q": 21})


def test_with_no_tolerance_only_equals_go_and_with_endless_tolerance_everybody() -> None:
    waiting = [draft("a", 5), draft("b", 6), draft("c", 5), draft("d", 30)]
    assert chosen(LengthAware(tolerance=0.0), *waiting)[1].keys() == {"a", "c"}
    assert chosen(LengthAware(tolerance=math.inf), *waiting)[1].keys() == {"a", "b", "c", "d"}


def test_a_batch_has_so_many_requests_at_most() -> None:
    assert list(chosen(LengthAware(requests=2), *(draft(f"s{n}") for n in range(5)))[1]) == ["s0", "s1"]


def test_lengths_may_count_what_is_in_the_cache() -> None:
    waiting = [draft("a", 5, context=100), draft("b", 9, context=110), draft("c", 5, context=900)]
    assert chosen(LengthAware(measure="tokens"), *waiting)[1].keys() == {"a", "c"}
    assert chosen(LengthAware(measure="sequence"), *waiting)[1].keys() == {"a", "b"}


def test_only_the_first_prompt_is_cut_and_those_that_do_not_fit_wait() -> None:
    policy = LengthAware(tolerance=1.0, batch_tokens=100)
    assert chosen(policy, prompt("p", 300), prompt("q", 300)) == ("prefill", {"p": 100})
    assert chosen(policy, prompt("p", 60), prompt("q", 50), prompt("r", 40)) == ("prefill", {"p": 60, "r": 40})


def test_like_lengths_cost_less_padding_than_the_order_of_arrival() -> None:
    lengths = [5, 31, 6, 30, 5, 29, 6, 31]
    padding = {}
    for name in ("fifo", "length-aware"):
        waiting, computed = [draft(f"s{n}", length, verify_rows=1) for n, length in enumerate(lengths)], 0
        while waiting:
            batch = batch_policy(name).choose(waiting, state())
            assert batch is not None
            computed += padded_tokens(batch.portions)
            waiting = [work for work in waiting if work.session not in {portion.session for portion in batch.portions}]
        padding[name] = computed - sum(lengths)
    assert padding == {"fifo": 105, "length-aware": 5}


def test_what_is_padded_counts_as_the_longest() -> None:
    assert padded_tokens([Portion("a", 5), Portion("b", 30), Portion("c", 1)]) == 90
    assert padded_tokens([]) == 0


# Continuous


def test_all_that_waits_of_the_kind_of_the_head_goes_at_once() -> None:
    waiting = [draft("a"), prompt("p", 500), draft("b", 20), prompt("q", 70)]
    assert chosen(Continuous(), *waiting) == ("verify", {"a": 5, "b": 20})
    assert chosen(Continuous(), *waiting[1:]) == ("prefill", {"p": 500, "q": 70})


def test_prompts_go_whole_and_who_waits_behind_one_waits_for_all_of_it() -> None:
    policy = Continuous(batch_tokens=1000)
    assert chosen(policy, prompt("p", 900), prompt("q", 200), prompt("r", 100)) == ("prefill", {"p": 900, "r": 100})
    assert chosen(policy, prompt("p", 2500), draft("a")) == ("prefill", {"p": 1000})
    assert chosen(policy, prompt("p", 1500, context=1000), draft("a"), verified=0) == ("prefill", {"p": 1000})


# Chunked


def test_between_two_chunks_of_a_prompt_all_verifications_go() -> None:
    policy, waiting = ChunkedPrefill(chunk=128), (prompt("p", 1000), draft("a"), draft("b"))
    assert chosen(policy, *waiting, verified=1) == ("prefill", {"p": 128})
    assert chosen(policy, *waiting, verified=0) == ("verify", {"a": 5, "b": 5})


def test_without_verifications_chunks_follow_one_another_and_the_next_prompt_has_what_is_left_of_one() -> None:
    assert chosen(ChunkedPrefill(chunk=128), prompt("p", 28), prompt("q", 500), verified=0) == ("prefill", {"p": 28, "q": 100})


# Windowed


def test_a_batch_goes_when_it_is_full() -> None:
    policy = Windowed(requests=2, window=1.0)
    assert policy.choose([draft("a", since=5.0)], state(5.5)) is None
    assert chosen(policy, draft("a", since=5.0), draft("b", since=5.5), draft("c", since=5.5), now=5.5) == ("verify", {"a": 5, "b": 5})


def test_a_batch_goes_when_its_first_has_waited_for_the_window_and_ready_at_says_when_that_is() -> None:
    policy, waiting = Windowed(requests=8, window=1.0), [draft("a", since=5.0), prompt("p", 30, since=5.2), draft("b", since=5.9)]
    assert policy.ready_at(waiting, state(5.9)) == 6.0
    assert policy.choose(waiting, state(5.99)) is None
    assert chosen(policy, *waiting, now=6.0) == ("verify", {"a": 5, "b": 5})
    assert policy.ready_at([], state()) is None


def test_each_kind_has_a_line_of_its_own_and_the_older_of_two_that_are_ready_goes() -> None:
    policy = Windowed(requests=2, window=1.0)
    waiting = [prompt("p", 30, since=5.0), draft("a", since=5.1), draft("b", since=5.2)]
    assert chosen(policy, *waiting, now=5.2) == ("verify", {"a": 5, "b": 5})
    assert chosen(policy, *waiting, now=6.0) == ("prefill", {"p": 30})


def test_without_a_window_nobody_waits_and_batches_still_have_a_size() -> None:
    assert list(chosen(Windowed(requests=2, window=0.0), draft("a"), draft("b"), draft("c"))[1]) == ["a", "b"]


# All of them

works = st.lists(st.tuples(st.booleans(), st.integers(1, 200), st.integers(1, CHUNK)), min_size=1, max_size=20)


def arrived(drawn: Sequence[tuple[bool, int, int]], since: float, names: count[int]) -> list[Waiting]:
    return [
        prompt(f"s{next(names)}", tokens, since=since)
        if is_prompt
        else draft(f"s{next(names)}", max(tokens, verify_rows), verify_rows=verify_rows, since=since)
        for is_prompt, tokens, verify_rows in drawn
    ]


@pytest.mark.parametrize("name", BATCHING)
@given(drawn=works, verified=st.integers(0, 6), late=st.floats(0, 1))
def test_a_batch_is_of_one_kind_fits_and_splits_nothing_that_is_judged(
    name: str, drawn: list[tuple[bool, int, int]], verified: int, late: float
) -> None:
    policy, waiting = small(name), arrived(drawn, 0.0, count())
    batch = policy.choose(waiting, state(late, verified=verified))
    if batch is None:
        assert isinstance(policy, MayWait)
        ready_at = policy.ready_at(waiting, state(late))
        assert ready_at is not None
        assert ready_at > late
        batch = policy.choose(waiting, state(ready_at, verified=verified))
    assert batch is not None
    by_name = {work.session: work for work in waiting}
    assert batch.portions
    assert len({portion.session for portion in batch.portions}) == len(batch.portions)
    assert sum(portion.tokens for portion in batch.portions) <= policy.batch_tokens
    for portion in batch.portions:
        work = by_name[portion.session]
        assert work.kind == batch.kind or name == "mixed"
        assert 0 < portion.tokens <= work.tokens
        assert work.kind == "prefill" or portion.tokens == work.tokens or work.tokens - portion.tokens >= work.verify_rows


@pytest.mark.parametrize("name", BATCHING)
def test_without_anything_that_waits_there_is_no_batch(name: str) -> None:
    assert small(name).choose([], state()) is None


def batches_until_read(policy: BatchPolicy, waiting: list[Waiting], stream: Sequence[Waiting], *, most: int) -> int:
    """Until the last of what waits has been read, while as many as the stream has come with every batch."""
    target, names = waiting[-1].session, count()
    now, verified = 0.0, 0
    for number in range(1, most + 1):
        batch = policy.choose(waiting, state(now, verified=verified))
        if batch is None:
            assert isinstance(policy, MayWait)
            now = policy.ready_at(waiting, state(now)) or now
            batch = policy.choose(waiting, state(now, verified=verified))
        assert batch is not None
        read = {portion.session: portion.tokens for portion in batch.portions}
        verified = 0 if batch.kind == "prefill" else verified + 1
        now += STEP(sum(read.values()), 0)
        left = [replace(work, tokens=work.tokens - read.get(work.session, 0)) for work in waiting]
        waiting = [work for work in left if work.tokens]
        if target not in {work.session for work in waiting}:
            return number
        waiting += [replace(work, session=f"late{next(names)}", since=now) for work in stream]
    raise AssertionError(f"expected {target} to be read within {most} batches")


@pytest.mark.parametrize("name", ["fifo", "windowed", "length-aware", "continuous", "chunked"])
@given(drawn=works, stream=works)
def test_nobody_starves_however_many_others_come(
    name: str, drawn: list[tuple[bool, int, int]], stream: list[tuple[bool, int, int]]
) -> None:
    waiting = arrived(drawn, 0.0, count())
    steps = sum(-(-work.tokens // CHUNK) + 1 for work in waiting)  # one after the other, in the smallest pieces
    batches_until_read(small(name), waiting, arrived(stream[:6], 0.0, count(1000)), most=2 * steps + 10)


def test_under_algorithm_1_a_verification_starves_while_prompts_come_and_the_default_lets_it_through() -> None:
    waiting, stream = [prompt("p", 10), draft("a")], [prompt("q", 40)]
    with pytest.raises(AssertionError, match="expected a to be read"):
        batches_until_read(StrictPrefill(batch_tokens=64), list(waiting), stream, most=500)
    assert batches_until_read(Alternating(batch_tokens=64), list(waiting), stream, most=2) == 1


# By name


def test_a_policy_has_the_settings_it_is_given() -> None:
    assert batch_policy("length-aware", tolerance=0.5, requests=4) == LengthAware(tolerance=0.5, requests=4)
    assert batch_policy("algorithm-1") == StrictPrefill()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "lab",
            {},
            "batching: expected one of fifo, windowed, length-aware, continuous, chunked, algorithm-1, alternating, mixed, got 'lab'",
        ),
        ("fifo", {"chunk": 9}, "batching: fifo: expected one of batch_tokens, got 'chunk'"),
        ("fifo", {"batch_tokens": "many"}, "batching: fifo: Expected `int`, got `str`"),
        ("fifo", {"batch_tokens": 31}, "batching: fifo: batch_tokens: expected at least 32, got 31"),
        ("continuous", {"batch_tokens": 31}, "batching: continuous: batch_tokens: expected at least 32, got 31"),
        ("chunked", {"chunk": 8}, "batching: chunked: chunk: expected at least 32, got 8"),
        ("chunked", {"chunk": 99, "batch_tokens": 98}, "batching: chunked: batch_tokens: expected at least 99, a chunk, got 98"),
        ("length-aware", {"tolerance": -0.1}, "length-aware: expected tolerance >= 0 and requests >= 1, got -0.1 and 32"),
        ("length-aware", {"measure": "words"}, "batching: length-aware: Invalid enum value 'words'"),
        ("windowed", {"requests": 0}, "windowed: expected requests >= 1 and window >= 0 seconds, got 0 and 0.005"),
        ("windowed", {"window": math.inf}, "windowed: expected requests >= 1 and window >= 0 seconds, got 8 and inf"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        batch_policy(name, **options)
    assert message in str(caught.value)
