"""Batches of alike lengths, and what the policies that ``streamco serve`` offers promise: room, turns, and an end to every wait."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.errors import ConfigError
from streamco.policies.serving.batching import CHUNK, Alternating, BatchContext, BatchPolicy, LinearStep, Mixed, Waiting
from streamco.policies.serving.length_aware import LengthAware

STEP = LinearStep(setup=0.040, per_token=0.0002)
LIVE: tuple[BatchPolicy, ...] = (Alternating(batch_tokens=64), LengthAware(batch_tokens=64, is_fair=True), Mixed(room=64))


def work(session: str, device: str, tokens: int, *, is_prompt: bool = False) -> Waiting:
    rows = 0 if is_prompt else min(tokens, 5)
    kind = "prefill" if is_prompt else "verify"
    return Waiting(session=session, device=device, kind=kind, tokens=tokens, verify_rows=rows, context=100, since=0.0, due=math.inf)  # type: ignore[arg-type]


class Queue:
    """Requests that wait, and the tokens that each device was served, counted as the scheduler does."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.served: dict[str, float] = defaultdict(float)
        self.done: list[str] = []
        self._policy = policy
        self._verified = 0

    def add(self, *works: Waiting) -> None:
        self.waiting |= {each.session: each for each in works}

    def step(self) -> None:
        waiting = [*self.waiting.values()]
        state = BatchContext(now=0.0, served=dict(self.served), verified=self._verified, step=STEP)
        batch = self._policy.choose(waiting, state)
        assert batch is not None
        assert 0 < sum(portion.tokens for portion in batch.portions) <= self._policy.batch_tokens
        self._verified = 0 if batch.kind == "prefill" else self._verified + 1
        for portion in batch.portions:
            each = self.waiting[portion.session]
            self.served[each.device] += portion.tokens
            if portion.tokens == each.tokens:
                self.done.append(self.waiting.pop(portion.session).session)
            else:
                self.waiting[portion.session] = replace(each, tokens=each.tokens - portion.tokens)


def test_only_a_fair_one_lets_devices_take_turns() -> None:
    waiting = [work("a1", "a", 10), work("b1", "b", 30)]
    state = BatchContext(now=0.0, served={"a": 50.0, "b": 0.0}, verified=0, step=STEP)
    for is_fair, first in ((False, "a1"), (True, "b1")):
        batch = LengthAware(is_fair=is_fair).choose(waiting, state)
        assert batch is not None
        assert [portion.session for portion in batch.portions] == [first]


@pytest.mark.parametrize("options", [{"tolerance": -0.1}, {"requests": 0}, {"batch_tokens": CHUNK - 1}])
def test_settings_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        LengthAware(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", LIVE, ids=lambda policy: type(policy).__name__)
@given(lengths=st.lists(st.integers(1, CHUNK), min_size=1, max_size=6), tokens=st.integers(1, 150), is_prompt=st.booleans())
def test_a_request_is_served_however_many_come_from_another_device(
    policy: BatchPolicy, lengths: list[int], tokens: int, is_prompt: bool
) -> None:
    queue = Queue(policy)
    """At the latest, when the other device has got as many tokens; with alike lengths only, that may be one a batch."""
    queue.add(work("one", "quiet", tokens, is_prompt=is_prompt))
    limit = 60 + 2 * tokens
    for turn in range(limit):
        queue.add(*(work(f"{turn}.{index}", "busy", length, is_prompt=index % 3 == 2) for index, length in enumerate(lengths)))
        queue.step()
        if "one" in queue.done:
            return
    raise AssertionError(f"expected it to be served within {limit} batches, got {queue.waiting['one']}")


@pytest.mark.parametrize("policy", LIVE, ids=lambda policy: type(policy).__name__)
@given(many=st.integers(2, 8), length=st.integers(2, CHUNK))
def test_a_device_with_many_sessions_is_served_no_more_than_one_with_a_single_one_that_always_has_work(
    policy: BatchPolicy, many: int, length: int
) -> None:
    queue = Queue(policy)
    for turn in range(40):
        queue.add(*(work(f"busy{index}", "busy", length) for index in range(many)), work("quiet", "quiet", length))
        queue.step()
        assert "quiet" in queue.done[-policy.batch_tokens :], f"batch {turn}"


@pytest.mark.parametrize("policy", LIVE, ids=lambda policy: type(policy).__name__)
@given(first=st.lists(st.integers(1, 40), min_size=1, max_size=5), second=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_everything_that_waits_ends(policy: BatchPolicy, first: list[int], second: list[int]) -> None:
    queue = Queue(policy)
    queue.add(*(work(f"a{index}", "a", tokens, is_prompt=True) for index, tokens in enumerate(first)))
    queue.add(*(work(f"b{index}", "b", tokens) for index, tokens in enumerate(second)))
    batches = 0
    while queue.waiting:
        queue.step()
        batches += 1
        assert batches <= 4 * (len(first) + len(second))
