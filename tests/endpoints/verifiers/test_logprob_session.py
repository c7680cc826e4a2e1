"""One answer's session at a server that gives log-probabilities: its context, its errors, and its verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from streamco.core.speculation.events import (
    ConnectVerifier,
    DraftRefused,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.endpoints.verifiers.base import VerifierEvent, VerifierFacts
from streamco.endpoints.verifiers.logprob_session import LogprobSession, verify_logprobs
from streamco.errors import EndpointConnectError, EndpointError, EndpointStatusError, UsageError
from streamco.policies.acceptance import Rule, RuleKind
from streamco.wire.prompt_logprobs import PositionLogprobs, PromptLogprobs
from streamco.wire.verify.topk import quantise

PROMPT = (1, 2)
GREEDY = Rule()


class FakeScorer:
    """A server that gives each id its successor with certainty, or fails with a set error."""

    name = "scorer"
    rtt = 0.0

    def __init__(self) -> None:
        self.facts: VerifierFacts | None = VerifierFacts(model="m", rules=frozenset(RuleKind), draft_tokens=8, top_k=10)
        self.error: EndpointError | None = None
        self.asked: list[tuple[list[int], int]] = []
        self.checks = 0

    async def probe(self) -> VerifierFacts:
        raise AssertionError("it has facts already")

    async def check(self) -> None:
        self.checks += 1

    async def score(self, ids: Sequence[int], pending: int, *, top: int) -> tuple[PromptLogprobs, int, int]:
        self.asked.append((list(ids), top))
        if self.error is not None:
            raise self.error
        before = ids[len(ids) - pending - 1 :]
        return PromptLogprobs(tuple(PositionLogprobs(each + 1, (each + 1,), (0.0,)) for each in before)), 30, 40


class Fixture:
    """A session that is connected, and its events."""

    def __init__(self, *, rule: Rule = GREEDY, top_k: int = 0) -> None:
        self.scorer = FakeScorer()
        self.events: asyncio.Queue[VerifierEvent] = asyncio.Queue()
        self.session = LogprobSession(self.scorer, PROMPT, self.events.put_nowait, rule=rule, top_k=top_k, rng=Random(1))

    async def connect(self) -> VerifierEvent:
        self.session.run(ConnectVerifier(()))
        return await self.events.get()

    async def verify(self, draft: tuple[int, ...], *, base: int = 0) -> VerifierEvent:
        rows = tuple(quantise([(token, 1.0)], is_whole=True) for token in draft)
        self.session.run(SendDraft(7, base, (), draft, rows))
        return await self.events.get()


async def test_a_verdict_makes_the_context_of_the_next_round() -> None:
    fixture = Fixture()
    assert await fixture.connect() == VerifierConnected(0)
    verdict = await fixture.verify((3, 9))
    assert isinstance(verdict, VerdictReceived)
    assert (verdict.round, verdict.accepted, verdict.token) == (7, 1, 4)
    await fixture.verify((5,), base=2)
    assert [ids for ids, _ in fixture.scorer.asked] == [[1, 2, 3, 9], [1, 2, 3, 4, 5]]
    assert (fixture.session.rounds, fixture.session.bytes_up, fixture.session.bytes_down) == (2, 60, 80)


async def test_a_draft_after_the_end_of_the_context_is_an_error() -> None:
    fixture = Fixture()
    await fixture.connect()
    with pytest.raises(UsageError, match="expected a base of at most 0, got 1"):
        fixture.session.run(SendDraft(7, 1, (), (3,), ()))


@pytest.mark.parametrize(
    ("rule", "top_k", "wanted"),
    [
        (Rule(), 0, 1),
        (Rule(), 4, 4),
        (Rule(), 40, 10),
        (Rule(RuleKind.SAMPLE, 1.0, top_k=6), 4, 6),
        (Rule(RuleKind.SAMPLE, 1.0), 4, 10),
    ],
)
async def test_a_row_has_the_ids_that_verdict_and_draw_need(rule: Rule, top_k: int, wanted: int) -> None:
    fixture = Fixture(rule=rule, top_k=top_k)
    await fixture.connect()
    await fixture.verify((3,))
    assert fixture.scorer.asked[0][1] == wanted


async def test_a_busy_server_refuses_the_draft_alone() -> None:
    fixture = Fixture()
    await fixture.connect()
    fixture.scorer.error = EndpointStatusError("busy", status=429, body="", retry_after=2.0)
    assert await fixture.verify((3,)) == DraftRefused(7, 2.0)
    fixture.scorer.error = None
    assert isinstance(await fixture.verify((3,)), VerdictReceived)


async def test_a_lost_server_is_asked_before_it_counts_as_connected() -> None:
    fixture = Fixture()
    await fixture.connect()
    assert fixture.scorer.checks == 0
    fixture.scorer.error = EndpointConnectError("gone")
    assert isinstance(await fixture.verify((3,)), VerifierLost)
    assert await fixture.connect() == VerifierConnected(0)
    assert fixture.scorer.checks == 1


async def test_a_refusal_for_good_ends_the_session() -> None:
    fixture = Fixture()
    await fixture.connect()
    fixture.scorer.error = EndpointStatusError("no such field", status=400, body="")
    assert isinstance(await fixture.verify((3,)), VerifierFailed)
    assert fixture.session.is_over


def test_what_is_impossible_is_never_accepted_but_by_the_greedy_rule() -> None:
    scores = PromptLogprobs((PositionLogprobs(3, (3, 4), (0.0, float("-inf"))), PositionLogprobs(5, (5,), (-0.1,))))
    row = quantise([(4, 1.0)], is_whole=True)
    rng = Random(1)
    assert verify_logprobs(Rule(RuleKind.SAMPLE, 1.0), [4], [row], scores, rng).token == 3
    assert verify_logprobs(Rule(RuleKind.THRESHOLD, threshold=0.0001), [4], [], scores, rng).token == 3
    assert verify_logprobs(Rule(), [4], [], scores, rng).token == 3
    assert verify_logprobs(Rule(), [3], [], scores, rng).token == 5


def test_filters_are_those_of_the_target() -> None:
    """Temperature first, then top_k, top_p and min_p, over the ids that the server reported."""
    position = PositionLogprobs(1, (1, 2, 3), (-0.5, -1.5, -2.5))
    row = quantise([(9, 1.0)], is_whole=True)
    for rule, possible in (
        (Rule(RuleKind.SAMPLE, 1.0, top_k=1), {1}),
        (Rule(RuleKind.SAMPLE, 1.0, top_p=0.6), {1}),
        (Rule(RuleKind.SAMPLE, 1.0, min_p=0.3), {1, 2}),
        (Rule(RuleKind.SAMPLE, 5.0), {1, 2, 3}),
    ):
        scores = PromptLogprobs((position, position))
        seen = {verify_logprobs(rule, [9], [row], scores, Random(seed)).token for seed in range(80)}
        assert seen == possible
