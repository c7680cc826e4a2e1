"""What vLLM and SGLang have in common, tried with both forms on scripted servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest

from streamco.config import Limits, SamplingOptions, Timeouts
from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.endpoints.base import Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.logprob import LogprobVerifier
from streamco.endpoints.verifiers.sglang import SGLangVerifier
from streamco.endpoints.verifiers.vllm import VLLMVerifier
from streamco.errors import (
    ConfigError,
    EndpointConnectError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamClosed,
    UsageError,
    VerifierError,
)
from streamco.policies.acceptance import Rule, RuleKind
from streamco.testing import Cut, FakeEngine, Reset, ScriptedResponse, Stall, json_answer
from streamco.wire.verify.topk import quantise
from tests.endpoints.helpers import read_all
from tests.endpoints.verifiers.support import DRAFTER, PROMPT, QUICK, TARGET, Talk, an_engine, greedy
from tests.support.leaks import holding_nothing_new, settled
from tests.support.logprob_servers import ScriptedSGLang, ScriptedVLLM

ANSWER = greedy(TARGET, PROMPT, 24)
Pair = tuple[type[ScriptedVLLM] | type[ScriptedSGLang], type[LogprobVerifier]]
BOTH: list[Pair] = [(ScriptedVLLM, VLLMVerifier), (ScriptedSGLang, SGLangVerifier)]


class Bench:
    """A scripted server, and a verifier that was started for a draft model that reads as it does."""

    def __init__(self, server: ScriptedVLLM | ScriptedSGLang, make: type[LogprobVerifier], engine: FakeEngine) -> None:
        self.server = server
        self.make = partial(make, server.url)
        self.engine = engine

    @asynccontextmanager
    async def verifier(self, **options: Any) -> AsyncIterator[LogprobVerifier]:
        options.setdefault("timeouts", QUICK)
        verifier = self.make(name="stock", **options)
        await verifier.start(self.engine)
        try:
            yield verifier
        finally:
            await verifier.aclose()


@pytest.fixture(params=BOTH, ids=["vllm", "sglang"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    serve, make = request.param
    engine = an_engine()
    async with holding_nothing_new(), serve(TARGET, engine.tokenize) as server:
        yield Bench(server, make, engine)


async def test_an_answer_by_greedy_rounds_is_the_targets_own(bench: Bench) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier)
        await talk.connect()
        assert await talk.write(len(ANSWER)) == ANSWER
        assert talk.session.rounds == bench.server.answered - 1, "one sample was scored before"
        assert any(verdict.accepted for verdict in talk.events if isinstance(verdict, VerdictReceived))
        assert talk.session.bytes_up > 100 * talk.session.rounds


async def test_each_round_brings_the_context_that_the_commands_make(bench: Bench) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:4])
        del talk.answer[2:]
        verdict = await talk.verify([9, 9], given=[1])
        assert [verdict.token] == greedy(TARGET, [*PROMPT, *ANSWER[:2], 1], 1)
        sent = bench.server.requests[-1].json()
        assert (sent.get("prompt") or sent.get("input_ids")) == [*PROMPT, *ANSWER[:2], 1, 9, 9]


async def test_a_round_with_nothing_to_judge_gives_the_next_token(bench: Bench) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier)
        await talk.connect()
        verdict = await talk.verify([], given=ANSWER[:2])
        assert (verdict.accepted, verdict.token) == (0, ANSWER[2])


async def test_rows_of_the_target_come_with_the_verdict(bench: Bench) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier, top_k=4)
        await talk.connect()
        verdict = await talk.verify(ANSWER[:2])
        assert [row[0][0] for row in verdict.rows] == ANSWER[:3]
        wanted = sorted(TARGET(PROMPT).values(), reverse=True)[:4]
        assert [share for _, share in verdict.rows[0]] == pytest.approx(wanted)


async def test_probing_tells_what_it_can(bench: Bench) -> None:
    async with bench.verifier(top_k=12) as verifier:
        assert (verifier.facts, verifier.rtt, verifier.model) == (None, None, None)
        facts = await verifier.probe()
        assert verifier.facts == facts
        assert (facts.model, facts.top_k, facts.context_tokens) == ("scripted", 12, 4096)
        assert not facts.holds_context
        assert facts.is_exact(Rule())
        assert facts.is_exact(Rule(RuleKind.SAMPLE, 0.7, top_k=12))
        assert not facts.is_exact(Rule(RuleKind.SAMPLE, 0.7, top_k=13))
        assert not facts.is_exact(Rule(RuleKind.SAMPLE, 0.7))
        assert verifier.model == "scripted"
        assert verifier.rtt is not None


async def test_another_vocabulary_is_refused(bench: Bench) -> None:
    verifier = bench.make(timeouts=QUICK)
    await verifier.start(FakeEngine(vocabulary=type(bench.engine.vocabulary)("others", 300), script="x"))
    bench.engine.tokenize("words that shift the ids of others")
    with pytest.raises(VerifierError, match="vocabulary"):
        await verifier.probe()
    talk = Talk(verifier)
    talk.session.run(ConnectVerifier(()))
    assert isinstance((await talk.next(VerifierFailed)).error, VerifierError)
    await verifier.aclose()


async def test_a_vocabulary_may_be_declared(bench: Bench) -> None:
    bench.server.route("/tokenize", json_answer({"detail": "Not Found"}, status=404))
    async with bench.verifier() as verifier:
        with pytest.raises(VerifierError, match="doesn't say"):
            await verifier.probe()
    async with bench.verifier(vocabulary=bench.engine.info.vocabulary) as verifier:
        await verifier.probe()


async def test_one_of_several_models_has_to_be_named(bench: Bench) -> None:
    bench.server.route("/v1/models", json_answer({"data": [{"id": "a"}, {"id": "b"}]}))
    async with bench.verifier() as verifier:
        with pytest.raises(VerifierError, match="one model or its name, got 2"):
            await verifier.probe()
    async with bench.verifier(model="b") as verifier:
        assert (await verifier.probe()).model == "b"


@pytest.mark.long
async def test_sampling_within_the_targets_top_k_keeps_its_distribution(bench: Bench) -> None:
    rule = Rule(RuleKind.SAMPLE, 0.8, top_k=4, seed=5)
    best = sorted(TARGET(PROMPT).items(), key=lambda pair: -pair[1])[:4]
    powers = {token: share ** (1 / 0.8) for token, share in best}
    wanted = {token: power / sum(powers.values()) for token, power in powers.items()}
    drafted = sorted(DRAFTER(PROMPT).items(), key=lambda pair: -pair[1])[:4]
    row = quantise([(token, share / sum(share for _, share in drafted)) for token, share in drafted], is_whole=True)
    rng, seen, rounds = Random(3), Counter[int](), 250
    async with bench.verifier() as verifier:
        talk = Talk(verifier, rule=rule)
        await talk.connect()
        for _ in range(rounds):
            talk.answer.clear()
            await talk.verify([row.distribution().draw(rng)], rows=[row])
            seen[talk.answer[0]] += 1
    assert set(seen) <= set(wanted)
    chi_square = sum((seen[token] - rounds * share) ** 2 / (rounds * share) for token, share in wanted.items())
    assert chi_square < 16.27, "0.1 % of fair samples exceed this with 3 degrees of freedom"


async def test_the_threshold_rule_looks_at_the_drafts_own_probability_however_unlikely(bench: Bench) -> None:
    order = [token for token, _ in sorted(TARGET(PROMPT).items(), key=lambda pair: -pair[1])]
    shares = TARGET(PROMPT)
    rank = 30
    share = shares[order[rank]] / shares[order[0]]
    async with bench.verifier() as verifier:
        for threshold, accepted in ((share * 0.99, 1), (share * 1.01, 0)):
            talk = Talk(verifier, rule=Rule(RuleKind.THRESHOLD, threshold=threshold))
            await talk.connect()
            verdict = await talk.verify([order[rank]])
            assert verdict.accepted == accepted


@pytest.mark.long
@pytest.mark.parametrize(
    "step", [ScriptedResponse(steps=[b'{"choi', Cut()]), ScriptedResponse(steps=[Reset()]), json_answer({}, status=500)]
)
async def test_a_round_that_is_lost_is_told_and_the_next_one_goes_on(bench: Bench, step: ScriptedResponse) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:2])
        bench.server.plan(step)
        talk.send(ANSWER[3:5])
        await talk.next(VerifierLost)
        talk.send(ANSWER[3:5])
        await talk.connect()
        assert await talk.write(10) == ANSWER[:10]


@pytest.mark.long
async def test_a_round_that_takes_too_long_is_lost(bench: Bench) -> None:
    async with bench.verifier(timeouts=Timeouts(connect=5, first_token=2, cancel=1)) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        bench.server.plan(ScriptedResponse(steps=[Stall()]))
        talk.send(ANSWER[:2])
        await talk.next(VerifierLost)
        bench.server.plan(ScriptedResponse(steps=[Stall()]))
        with pytest.raises(EndpointTimeoutError):
            await verifier.score([1, 2], 1, top=1)
        await settled(lambda: bench.server.answers_abandoned == 2)


async def test_a_round_that_was_given_up_has_the_server_asked_before_it_counts_as_connected(bench: Bench) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier)
        await talk.connect()
        bench.server.plan(ScriptedResponse(steps=[Stall()]))
        talk.send(ANSWER[:2])
        await bench.server.wait_for(lambda server: bench.server.answered == 2)
        asked = len(bench.server.requests)
        talk.session.run(ConnectVerifier(()))
        await talk.next(VerifierConnected)
        assert len(bench.server.requests) == asked + 1
        await talk.verify(ANSWER[:2])


@pytest.mark.long
@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_refuses_a_draft_and_says_when_to_come_back(bench: Bench, status: int) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier)
        await talk.connect()
        bench.server.plan(json_answer({"error": {"message": "busy"}}, status=status, headers={"Retry-After": "3"}))
        talk.send(ANSWER[:2])
        assert await talk.next(DraftRefused) == DraftRefused(0, 3.0)
        await talk.verify(ANSWER[:2])


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (json_answer({"error": {"message": "token id 999 is out of vocabulary"}}, status=400), EndpointStatusError),
        (json_answer({"error": {"message": "no such path"}}, status=404), EndpointStatusError),
        (json_answer({"anything": "else"}), VerifierError),
        (lambda body: [], VerifierError),
    ],
)
async def test_what_no_other_try_would_mend_is_a_failure(
    bench: Bench, step: ScriptedResponse | Callable[[Any], Any], kind: type[Exception]
) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier)
        await talk.connect()
        bench.server.plan(step)
        talk.send(ANSWER[:2])
        assert isinstance((await talk.next(VerifierFailed)).error, kind)
        talk.send(ANSWER[:2])
        await asyncio.sleep(0.05)
        assert not talk.has_emitted()


async def test_a_context_that_is_full_is_a_failure_and_is_not_sent(bench: Bench) -> None:
    bench.server.context_tokens = 20
    async with bench.verifier() as verifier:
        talk = Talk(verifier, range(17))
        await talk.connect()
        await talk.verify([1])
        asked = len(bench.server.requests)
        talk.send([1, 2])
        assert "less than 20 tokens" in str((await talk.next(VerifierFailed)).error)
        assert len(bench.server.requests) == asked


async def test_an_answer_beyond_the_limit_is_not_believed(bench: Bench) -> None:
    async with bench.verifier(limits=Limits(body_bytes=60_000)) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        bench.server.plan(lambda body: {**body, "more": "x" * 100_000})
        talk.send(ANSWER[:2])
        assert "less than 60000 bytes" in str((await talk.next(VerifierFailed)).error)


async def test_a_server_that_is_not_there_is_waited_for(bench: Bench) -> None:
    await bench.server.aclose()
    verifier = bench.make(timeouts=QUICK)
    await verifier.start(bench.engine)
    with pytest.raises(EndpointConnectError):
        await verifier.probe()
    talk = Talk(verifier)
    talk.session.run(ConnectVerifier(()))
    await asyncio.sleep(0.1)
    assert not talk.has_emitted()
    await talk.aclose()
    await verifier.aclose()


async def test_a_wrong_key_is_a_failure_and_the_right_one_is_not_told(bench: Bench) -> None:
    bench.server.key = "sesame"
    async with bench.verifier(api_key="open") as verifier:
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        assert isinstance((await talk.next(VerifierFailed)).error, EndpointStatusError)
    async with bench.verifier(api_key="sesame") as verifier:
        await verifier.probe()
        talk = Talk(verifier)
        await talk.connect()
        bench.server.plan(json_answer({"error": {"message": "sesame is a fine key"}}, status=400))
        talk.send(ANSWER[:2])
        failed = await talk.next(VerifierFailed)
        assert "sesame" not in str(failed.error) + repr(verifier)


async def test_the_same_server_goes_on_alone_behind_given_ids(bench: Bench) -> None:
    async with bench.verifier() as verifier:
        await verifier.probe()
        remote = verifier.remote
        assert isinstance(remote, OpenAIEndpoint)
        assert remote.capabilities.vocabulary == bench.engine.info.vocabulary
        request = Request(prompt_ids=[*PROMPT, *ANSWER[:3]], sampling=SamplingOptions(temperature=0, max_tokens=5))
        answered = await read_all(remote.open(request))
        ids = [token for chunk in answered.chunks for choice in chunk.choices for token in choice.token_ids or ()]
        assert ids == ANSWER[3:8]


async def test_closing_leaves_a_round_that_is_out(bench: Bench) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier)
        await talk.connect()
        bench.server.plan(ScriptedResponse(steps=[b"{", Stall()]))
        talk.send(ANSWER[:2])
        await bench.server.wait_for(lambda server: bench.server.answered == 2)
        talk.session.run(CloseVerifier())
        talk.session.run(SendDraft(9, 0, (), ()))
        await talk.session.aclose()
        await settled(lambda: bench.server.answers_abandoned == 1)
        assert not talk.has_emitted()


async def test_order_is_kept_to(bench: Bench) -> None:
    verifier = bench.make()
    with pytest.raises(UsageError, match="started"):
        verifier.open(PROMPT, lambda event: None, rule=Rule())
    with pytest.raises(UsageError, match="started"):
        await verifier.probe()
    assert verifier.remote is None
    await verifier.start(bench.engine)
    await verifier.start(bench.engine)
    with pytest.raises(UsageError, match="a different one"):
        await verifier.start(an_engine())
    with pytest.raises(UsageError, match="prompt"):
        verifier.open((), lambda event: None, rule=Rule())
    talk = Talk(verifier)
    with pytest.raises(UsageError, match="base"):
        talk.session.run(SendDraft(0, 5, (), ()))
    await verifier.aclose()
    with pytest.raises(StreamClosed):
        await verifier.start(bench.engine)
    with pytest.raises(ConfigError, match="top_k"):
        bench.make(top_k=0)


async def test_connecting_again_takes_the_answer_as_it_is_then(bench: Bench) -> None:
    async with bench.verifier() as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.answer = [8, 8, 8]
        talk.session.run(ConnectVerifier((8, 8, 8)))
        assert await talk.next(VerifierConnected) == VerifierConnected(3)
        verdict = await talk.verify([])
        assert [verdict.token] == greedy(TARGET, [*PROMPT, 8, 8, 8], 1)
