"""Which requests form a batch: each rule called with numbers."""

from __future__ import annotations

import math
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.serving.batching import (
    CHUNK,
    Alternating,
    Batch,
    BatchContext,
    BatchPolicy,
    FirstCome,
    LinearStep,
    Mixed,
    Portion,
    StrictPrefill,
    Waiting,
    fair_order,
    raised_counter,
)

STEP = LinearStep(setup=0.040, per_token=0.0002)
POLICIES: list[BatchPolicy] = [StrictPrefill(batch_tokens=64), Alternating(batch_tokens=64), FirstCome(batch_tokens=64), Mixed(room=64)]
_arrivals = count()


def prompt(session: str, tokens: int, *, device: str | None = None) -> Waiting:
    return Waiting(
        session=session,
        device=device or session,
        kind="prefill",
        tokens=tokens,
        verify_rows=0,
        context=0,
        since=float(next(_arrivals)),
        due=math.inf,
    )


def draft(session: str, tokens: int = 5, *, verify_rows: int = 5, device: str | None = None, due: float = 0.0) -> Waiting:
    return Waiting(
        session=session,
        device=device or session,
        kind="verify",
        tokens=tokens,
        verify_rows=verify_rows,
        context=100,
        since=float(next(_arrivals)),
        due=due,
    )


def state(*, now: float = 0.0, verified: int = 1, served: dict[str, float] | None = None) -> BatchContext:
    return BatchContext(now=now, served=served or {}, verified=verified, step=STEP)


def chosen(policy: BatchPolicy, *waiting: Waiting, **settings: float) -> tuple[str, dict[str, int]]:
    batch = policy.choose(waiting, state(**settings))  # type: ignore[arg-type]
    assert batch is not None
    return batch.kind, {portion.session: portion.tokens for portion in batch.portions}


# Algorithm 1


def test_a_device_that_was_absent_gets_no_credit_and_a_new_one_no_start() -> None:
    served = {"a": 5.0, "b": 9.0, "c": 1.0}
    assert raised_counter(served, {"a", "b"}, "c") == 9.0
    assert raised_counter(served, {"a", "b"}, "a") == 5.0
    assert raised_counter(served, {"a"}, "new") == 5.0
    assert raised_counter(served, set(), "b") == 9.0


def test_all_waiting_prompts_are_read_in_one_batch_before_anything_is_verified() -> None:
    assert chosen(StrictPrefill(), draft("a"), prompt("b", 100), prompt("c", 200)) == ("prefill", {"b": 100, "c": 200})


def test_without_prompts_all_waiting_verifications_are_one_batch_each_with_its_own_uncached_tokens() -> None:
    assert chosen(StrictPrefill(), draft("a", 5), draft("b", 9), draft("c", 31)) == ("verify", {"a": 5, "b": 9, "c": 31})


def test_a_prompt_longer_than_a_batch_goes_on_in_the_next_one() -> None:
    assert chosen(StrictPrefill(batch_tokens=64), prompt("a", 100)) == ("prefill", {"a": 64})


def test_strictly_a_verification_waits_as_long_as_prompts_come() -> None:
    late = draft("a", due=-100.0)
    assert all(chosen(StrictPrefill(), late, prompt(f"p{n}", 10), verified=9)[0] == "prefill" for n in range(20))


# Chunks


def test_a_long_verification_is_read_in_chunks_and_its_draft_in_the_last_one() -> None:
    assert chosen(StrictPrefill(), draft("a", 100)) == ("verify", {"a": CHUNK})
    assert chosen(StrictPrefill(), draft("a", 34, verify_rows=5)) == ("verify", {"a": 29})
    assert chosen(StrictPrefill(), draft("a", 32, verify_rows=5)) == ("verify", {"a": 32})


def test_a_draft_that_does_not_fit_any_more_waits_and_a_shorter_one_goes_along() -> None:
    policy = StrictPrefill(batch_tokens=40)
    assert chosen(policy, draft("a", 32), draft("b", 10, verify_rows=10), draft("c", 8)) == ("verify", {"a": 32, "c": 8})


# Alternating


def test_prompts_and_verifications_take_turns() -> None:
    policy = Alternating(turns=2)
    waiting = (prompt("p", 1000), draft("a"))
    assert [chosen(policy, *waiting, verified=verified)[0] for verified in (0, 1, 2)] == ["verify", "verify", "prefill"]


def test_a_prompt_goes_first_where_the_verification_is_in_time_all_the_same() -> None:
    policy = Alternating(turns=8)
    assert chosen(policy, prompt("p", 1000), draft("a", due=1.0))[0] == "prefill"
    assert chosen(policy, prompt("p", 1000), draft("a", due=0.09))[0] == "verify"
    assert chosen(policy, prompt("p", 1000), draft("a", due=1.0), verified=0)[0] == "verify"  # not two prefills in a row


def test_the_earliest_due_verification_decides() -> None:
    assert chosen(Alternating(), prompt("p", 1000), draft("a", due=9.0), draft("b", due=0.01))[0] == "verify"


def test_a_step_of_prefill_takes_little_longer_than_a_verification() -> None:
    kind, portions = chosen(Alternating(stretch=1.5), prompt("p", 1000))
    assert (kind, portions) == ("prefill", {"p": 128})  # 65.6 ms against 46.4 ms; 160 would take 72
    steep = LinearStep(setup=0.0, per_token=0.01)
    batch = Alternating().choose([prompt("p", 1000)], BatchContext(now=0.0, served={}, verified=0, step=steep))
    assert batch == Batch("prefill", (Portion("p", CHUNK),))


def test_where_steps_cost_the_same_a_prompt_fills_the_batch() -> None:
    flat = LinearStep(setup=0.05, per_token=0.0)
    batch = Alternating(batch_tokens=500).choose([prompt("p", 1000)], BatchContext(now=0.0, served={}, verified=0, step=flat))
    assert batch == Batch("prefill", (Portion("p", 480),))


@pytest.mark.parametrize("wrong", [{"batch_tokens": 31}, {"turns": 0}, {"stretch": 0.9}], ids=["batch", "turns", "stretch"])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Alternating(**wrong)  # type: ignore[arg-type]


# First come


def test_the_order_of_arrival_is_kept() -> None:
    policy = FirstCome()
    assert chosen(policy, draft("a"), draft("b"), prompt("p", 9), draft("c")) == ("verify", {"a": 5, "b": 5})
    assert chosen(policy, prompt("p", 9), prompt("q", 9), draft("a"), prompt("r", 9)) == ("prefill", {"p": 9, "q": 9})


# Mixed


def test_verifications_go_first_and_a_prompt_gets_the_rest_of_the_room() -> None:
    policy = Mixed(room=128)
    assert chosen(policy, prompt("p", 1000), draft("a", 5), draft("b", 9)) == ("verify", {"a": 5, "b": 9, "p": 114})
    assert chosen(policy, prompt("p", 1000)) == ("prefill", {"p": 128})
    assert chosen(policy, draft("a", 5)) == ("verify", {"a": 5})


def test_verifications_never_take_the_rows_that_are_kept_for_a_waiting_prompt() -> None:
    policy = Mixed(room=64, prompt_room=16)
    crowd = [draft(f"v{number}", 10, verify_rows=10) for number in range(9)]
    assert chosen(policy, *crowd, prompt("p", 1000))[1] == {"v0": 10, "v1": 10, "v2": 10, "v3": 10, "p": 24}
    assert chosen(policy, *crowd, prompt("p", 2))[1]["p"] == 2
    assert len(chosen(policy, *crowd)[1]) == 6


def test_several_prompts_share_the_room_in_fair_order() -> None:
    work = (prompt("p", 20, device="x"), prompt("q", 200, device="y"), draft("a", 4))
    assert chosen(Mixed(room=100), *work, served={"x": 50.0, "y": 0.0}) == ("verify", {"a": 4, "q": 96})  # type: ignore[arg-type]
    assert chosen(Mixed(room=100), *work) == ("verify", {"a": 4, "p": 20, "q": 76})


@pytest.mark.parametrize("wrong", [{"room": 40}, {"prompt_room": 0}, {"room": 100, "prompt_room": 80}])
def test_a_room_without_place_for_a_verification_beside_a_prompt_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="mixed"):
        Mixed(**wrong)


# Fairness


def names(ordered: list[Waiting]) -> list[str]:
    return [work.session for work in ordered]


def test_who_was_served_least_comes_first() -> None:
    assert names(fair_order([draft("a"), draft("b"), draft("c")], {"a": 30.0, "b": 10.0, "c": 20.0})) == ["b", "c", "a"]


def test_a_device_with_many_sessions_has_no_more_turns_than_one_with_a_single_one() -> None:
    crowd = [draft(f"a{n}", device="a") for n in range(4)]
    assert names(fair_order([*crowd, draft("b")], {"a": 0.0, "b": 0.0})) == ["a0", "b", "a1", "a2", "a3"]


def test_among_equals_who_waits_longest_comes_first() -> None:
    first, second = draft("z"), draft("a")
    assert names(fair_order([second, first], {})) == ["z", "a"]


# All of them


works = st.lists(
    st.tuples(st.booleans(), st.integers(1, 200), st.integers(0, 3), st.integers(1, 32), st.floats(-1, 1)), min_size=1, max_size=30
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@given(works=works, verified=st.integers(0, 10))
def test_a_batch_fits_has_one_kind_unless_mixed_and_takes_each_session_once(
    policy: BatchPolicy, works: list[tuple[bool, int, int, int, float]], verified: int
) -> None:
    waiting = [
        prompt(f"s{n}", tokens, device=f"d{device}")
        if is_prompt
        else draft(f"s{n}", max(tokens, verify_rows), verify_rows=verify_rows, device=f"d{device}", due=due)
        for n, (is_prompt, tokens, device, verify_rows, due) in enumerate(works)
    ]
    batch = policy.choose(waiting, state(verified=verified))
    by_name = {work.session: work for work in waiting}
    assert batch is not None
    assert batch.portions
    assert sum(portion.tokens for portion in batch.portions) <= policy.batch_tokens
    assert len({portion.session for portion in batch.portions}) == len(batch.portions)
    for portion in batch.portions:
        work = by_name[portion.session]
        assert work.kind == batch.kind or isinstance(policy, Mixed)
        assert 0 < portion.tokens <= work.tokens
        if work.kind == "verify":
            assert portion.tokens <= CHUNK
            assert portion.tokens == work.tokens or work.tokens - portion.tokens >= work.verify_rows


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_without_anything_that_waits_there_is_no_batch(policy: BatchPolicy) -> None:
    assert policy.choose([], state()) is None


def test_where_time_grows_with_tokens_few_are_verified_at_once_and_where_it_does_not_all_are() -> None:
    drafts = [draft(f"v{number}", 10, verify_rows=10) for number in range(20)]
    for step, most in ((LinearStep(setup=0.01, per_token=0.003), 3), (LinearStep(setup=0.05, per_token=0.0001), 20)):
        batch = Alternating().choose(drafts, BatchContext(now=0.0, served={}, verified=1, step=step))
        assert batch is not None
        assert len(batch.portions) == most
