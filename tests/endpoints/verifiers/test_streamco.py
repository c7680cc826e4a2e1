from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest

from streamco.config import Timeouts
from streamco.core.speculation.events import (
    CloseVerifier,
    ConnectVerifier,
    DraftRefused,
    ExpectedVerdict,
    SendDraft,
    VerdictReceived,
    VerifierConnected,
    VerifierFailed,
    VerifierLost,
)
from streamco.endpoints.verifiers.base import continuation_seed
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import (
    ConfigError,
    EndpointConnectError,
    EndpointProtocolError,
    EndpointStatusError,
    EndpointTimeoutError,
    StreamClosed,
    UsageError,
)
from streamco.policies.acceptance import Rule, RuleKind
from streamco.testing import Crash, Cut, FaultProxy, Pause, Refuse, Reset, ScriptedServer, ScriptedVerifier, Send, Stall
from streamco.wire.verify.errors import (
    ContextFullError,
    EvictedError,
    MalformedFrameError,
    OverloadedError,
    RuleError,
    ShuttingDownError,
    StaleRoundError,
    UnauthorisedError,
    VerifierFailedError,
    VersionError,
    VocabularyError,
)
from streamco.wire.verify.frames import VerifyLimits
from streamco.wire.verify.topk import quantise
from tests.endpoints.verifiers.support import DRAFTER, PROMPT, QUICK, SIZE, TARGET, Talk, an_engine, greedy, verifier_at
from tests.support.certificates import client_context, server_context
from tests.support.leaks import holding_nothing_new, settled

ANSWER = greedy(TARGET, PROMPT, 24)
SAMPLE = Rule(RuleKind.SAMPLE, 1.0, top_k=6, seed=3)


def scripted(**options: object) -> ScriptedVerifier:
    info = an_engine().info
    return ScriptedVerifier(TARGET, vocabulary=info.vocabulary, vocabulary_size=SIZE, **options)  # type: ignore[arg-type]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedVerifier]:
    async with holding_nothing_new(), scripted() as server:
        yield server


async def test_an_answer_by_greedy_rounds_is_the_targets_own(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        assert await talk.write(len(ANSWER)) == ANSWER
        assert server.contexts == [[*PROMPT, *talk.answer]]
        assert talk.session.rounds == len(server.drafts) < len(ANSWER)
        assert any(verdict.accepted for verdict in talk.events if isinstance(verdict, VerdictReceived))


async def test_the_context_and_the_first_draft_take_one_round_trip_together(server: ScriptedVerifier) -> None:
    server.script_opens(Pause(0.2))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        verdict = await talk.judged(ANSWER[:3])
        assert (verdict.accepted, verdict.token) == (3, ANSWER[3])


async def test_given_tokens_are_part_of_the_context_and_not_judged(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        verdict = await talk.judged([], given=[1, 2, 3])
        assert (verdict.accepted, [verdict.token]) == (0, greedy(TARGET, [*PROMPT, 1, 2, 3], 1))
        assert server.contexts == [[*PROMPT, *talk.answer]]


async def test_a_draft_may_begin_before_the_end_of_the_context(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:4])
        del talk.answer[2:]
        verdict = await talk.judged([9, 9])
        assert (verdict.accepted, verdict.token) == (0, ANSWER[2])
        assert server.contexts == [[*PROMPT, *ANSWER[:3]]]


async def test_rows_of_the_target_come_with_the_verdict(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier, top_k=4)
        await talk.connect()
        verdict = await talk.judged(ANSWER[:2])
        assert [row[0][0] for row in verdict.rows] == ANSWER[:3]
        wanted = sorted(TARGET(PROMPT).values(), reverse=True)[:4]
        assert [share for _, share in verdict.rows[0]] == pytest.approx(wanted, abs=1e-4)


async def test_more_rows_than_the_server_gives_are_not_asked_for() -> None:
    async with scripted(limits=VerifyLimits(top_k=2)) as server, verifier_at(server.url) as verifier:
        talk = Talk(verifier, top_k=8)
        await talk.connect()
        verdict = await talk.judged(ANSWER[:1])
        assert [len(row) for row in verdict.rows] == [2, 2]


async def test_sampled_rounds_carry_what_was_drawn_from_and_greedy_ones_do_not(server: ScriptedVerifier) -> None:
    row = quantise([(ANSWER[0], 0.7), (3, 0.3)], is_whole=True)
    async with verifier_at(server.url) as verifier:
        for rule in (SAMPLE, Rule()):
            talk = Talk(verifier, rule=rule)
            await talk.connect()
            await talk.judged(ANSWER[:1], rows=[row])
            await talk.aclose()
    assert [draft.rows for draft in server.drafts] == [(row,), ()]


async def test_sampled_answers_have_the_targets_distribution(server: ScriptedVerifier) -> None:
    """The first token of 600 answers, against the target's own distribution; docs say that sampling is exact there."""
    rule = Rule(RuleKind.SAMPLE, 1.0, top_k=4)
    best = sorted(TARGET(PROMPT).items(), key=lambda pair: -pair[1])[:4]
    wanted = {token: share / sum(share for _, share in best) for token, share in best}
    drafted = sorted(DRAFTER(PROMPT).items(), key=lambda pair: -pair[1])[:4]
    row = quantise([(token, share / sum(share for _, share in drafted)) for token, share in drafted], is_whole=True)
    dice, seen, rounds = Random(11), Counter[int](), 600
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier, rule=rule)
        await talk.connect()
        for _ in range(rounds):
            talk.answer.clear()
            await talk.judged([row.distribution().draw(dice)], rows=[row])
            seen[talk.answer[0]] += 1
        assert verifier.facts is not None
        assert verifier.facts.is_exact(rule)
    assert set(seen) <= set(wanted)
    chi_square = sum((seen[token] - rounds * share) ** 2 / (rounds * share) for token, share in wanted.items())
    assert chi_square < 16.27, "0.1 % of fair samples exceed this with 3 degrees of freedom"


async def test_a_long_context_goes_in_pieces(server: ScriptedVerifier) -> None:
    prompt = [number % SIZE for number in range(10_000)]
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier, prompt)
        await talk.connect()
        verdict = await talk.judged([])
        assert [verdict.token] == greedy(TARGET, prompt, 1)
        assert server.contexts == [[*prompt, *talk.answer]]


async def test_all_answers_share_one_connection(server: ScriptedVerifier) -> None:
    prompts = [(number, number + 1) for number in range(20)]
    async with verifier_at(server.url) as verifier:
        talks = [Talk(verifier, prompt) for prompt in prompts]
        await asyncio.gather(*(talk.connect() for talk in talks))
        written = await asyncio.gather(*(talk.write(10) for talk in talks))
        assert written == [greedy(TARGET, prompt, 10) for prompt in prompts]
        for talk in talks:
            await talk.aclose()
        again = Talk(verifier)
        await again.connect()
        await again.write(4)
        await settled(lambda: len(server.contexts) == 1)
        assert server.connections_total == 1


async def test_bytes_and_rounds_are_counted(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:4])
        opened_up, opened_down = talk.session.bytes_up, talk.session.bytes_down
        await talk.judged(ANSWER[5:9])
        assert talk.session.rounds == 2
        assert 10 < talk.session.bytes_up - opened_up < 30
        assert 10 < talk.session.bytes_down - opened_down < 30


async def test_the_round_trip_is_measured_and_the_welcome_read(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        assert (verifier.facts, verifier.rtt) == (None, None)
        facts = await verifier.probe()
        assert verifier.facts == facts
        assert (facts.model, facts.rules, facts.draft_tokens, facts.top_k) == ("scripted", frozenset(RuleKind), 31, 64)
        assert facts.holds_context
        assert facts.is_exact(Rule())
        assert facts.is_exact(Rule(RuleKind.SAMPLE, 1.0))
        assert not facts.is_exact(Rule(RuleKind.THRESHOLD, threshold=0.3))
        await settled(lambda: verifier.rtt is not None)
        assert verifier.rtt is not None
        assert verifier.rtt > 0


async def test_nothing_is_told_from_inside_run_nor_after_the_end(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        assert not talk.events
        await talk.next(VerifierConnected)
        talk.send(ANSWER[:2])
        talk.session.run(CloseVerifier())
        talk.session.run(SendDraft(9, 0, (), (1,)))
        talk.session.run(ConnectVerifier(()))
        await settled(lambda: not server.contexts)
        assert not talk.has_told()


async def test_a_draft_sent_ahead_is_judged_without_being_sent_again(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.session.run(SendDraft(0, 0, (), tuple(ANSWER[:2])))
        talk.session.run(SendDraft(1, 2, (), (1,), (), ExpectedVerdict(0, 1, 99)))
        talk.session.run(SendDraft(2, 3, (), tuple(ANSWER[3:5]), (), ExpectedVerdict(0, 2, ANSWER[2])))
        first, second = await talk.next(VerdictReceived), await talk.next(VerdictReceived)
        assert (first.round, first.accepted, first.token) == (0, 2, ANSWER[2])
        assert (second.round, second.accepted, second.token) == (2, 2, ANSWER[5])
        assert [draft.ids for draft in server.drafts] == [tuple(ANSWER[:2]), tuple(ANSWER[3:5])]
        talk.session.run(SendDraft(3, 6, (), (ANSWER[6],)))
        assert (await talk.next(VerdictReceived)).accepted == 1
        await talk.aclose()


async def test_a_draft_ahead_of_a_verdict_that_is_here_already_is_sent_if_it_is_right(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:2])
        talk.session.run(SendDraft(7, 2, (), (1,), (), ExpectedVerdict(0, 1, 99)))
        talk.session.run(SendDraft(8, 3, (), tuple(ANSWER[3:5]), (), ExpectedVerdict(0, 2, ANSWER[2])))
        verdict = await talk.next(VerdictReceived)
        assert (verdict.round, verdict.accepted) == (8, 2)
        assert len(server.drafts) == 2
        await talk.aclose()


async def test_what_was_sent_ahead_is_gone_with_its_round_and_with_its_connection(server: ScriptedVerifier) -> None:
    server.script(Refuse(OverloadedError, retry_after=0.01), None, Reset())
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.session.run(SendDraft(0, 0, (), tuple(ANSWER[:2])))
        talk.session.run(SendDraft(1, 3, (), tuple(ANSWER[3:5]), (), ExpectedVerdict(0, 2, ANSWER[2])))
        assert (await talk.next(DraftRefused)).round == 0
        talk.session.run(SendDraft(2, 0, (), tuple(ANSWER[:2])))
        assert (await talk.next(VerdictReceived)).round == 2
        talk.session.run(SendDraft(3, 3, (), tuple(ANSWER[3:5])))
        talk.session.run(SendDraft(4, 6, (), (1,), (), ExpectedVerdict(3, 2, ANSWER[5])))
        await talk.next(VerifierLost)
        talk.answer = list(ANSWER[:3])
        await talk.connect()
        talk.session.run(SendDraft(5, 3, (), tuple(ANSWER[3:5])))
        assert (await talk.next(VerdictReceived)).accepted == 2
        assert not talk.has_told()
        await talk.aclose()


@pytest.mark.parametrize("fault", [Cut(), Reset()])
async def test_a_round_that_is_cut_off_is_told_and_the_session_is_resumed_where_it_was(
    server: ScriptedVerifier, fault: Cut | Reset
) -> None:
    server.script(None, None, fault)
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:3])
        await talk.judged([1])
        talk.send(ANSWER[5:8])
        await talk.next(VerifierLost)
        await talk.connect()
        assert await talk.write(len(ANSWER)) == ANSWER
        assert server.contexts == [[*PROMPT, *talk.answer]], "it is the same session"
        assert server.connections_total == 2


async def test_a_verdict_that_was_lost_on_the_way_is_asked_for_again(server: ScriptedVerifier) -> None:
    async with FaultProxy(server.port) as proxy, verifier_at(f"ws://127.0.0.1:{proxy.port}") as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:2])
        proxy.stall()
        server.script(None)
        talk.send(ANSWER[3:5])
        proxy.cut()
        await talk.next(VerifierLost)
        await talk.connect()
        assert await talk.write(len(ANSWER)) == ANSWER
        assert server.contexts == [[*PROMPT, *talk.answer]]


async def test_a_server_that_forgot_the_session_is_sent_what_the_answer_has(server: ScriptedVerifier) -> None:
    server.script(None, Crash())
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:3])
        talk.send(ANSWER[4:6])
        await talk.next(VerifierLost)
        await talk.connect()
        await settled(lambda: server.contexts == [[*PROMPT, *ANSWER[:4]]])
        assert await talk.write(len(ANSWER)) == ANSWER


async def test_a_session_that_is_opened_anew_throws_other_dice(server: ScriptedVerifier) -> None:
    server.script(None, Crash())
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier, rule=Rule(seed=3))
        await talk.connect()
        await talk.judged(ANSWER[:3])
        assert [rule.seed for rule in server.rules] == [3]
        talk.send(ANSWER[4:6])
        await talk.next(VerifierLost)
        await talk.connect()
        await talk.judged(ANSWER[4:6])
        assert [rule.seed for rule in server.rules] == [continuation_seed(3, 4)]


@pytest.mark.parametrize("seed", [0, 3, (1 << 32) - 1])
def test_seeds_differ_by_the_length_of_the_answer_and_fit_their_place(seed: int) -> None:
    seeds = [continuation_seed(seed, tokens) for tokens in range(5000)]
    assert seeds[0] == seed
    assert len(set(seeds)) == len(seeds)
    assert all(found is not None and 0 <= found < 1 << 32 for found in seeds)
    assert continuation_seed(None, 5) is None
    assert continuation_seed(-1, 0) == -1


async def test_a_resume_that_is_never_answered_is_given_up_for_a_new_session(server: ScriptedVerifier) -> None:
    timeouts = Timeouts(connect=5, first_token=1, next_token=5, socket=5, cancel=1)
    async with verifier_at(server.url, timeouts=timeouts) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:3])
        server.script(Reset())
        server.script_opens(Stall())
        talk.send(ANSWER[4:6])
        await talk.next(VerifierLost)
        await talk.connect()
        assert await talk.write(8) == ANSWER[:8]
        assert len(server.contexts) == 2


async def test_an_open_that_is_never_answered_leaves_no_session_at_the_server(server: ScriptedVerifier) -> None:
    server.script_opens(Refuse(OverloadedError), Stall(), Pause(0.1))
    timeouts = Timeouts(connect=5, first_token=0.5, next_token=5, socket=5, cancel=1)
    async with verifier_at(server.url, timeouts=timeouts) as verifier:
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        await talk.next(VerifierConnected)
        await talk.next(VerifierLost)
        server.lose_sessions()  # the refused one
        await talk.connect()
        assert await talk.write(6) == ANSWER[:6]
        assert server.contexts == [[*PROMPT, *talk.answer]]
        assert server.connections_total == 1


async def test_a_session_that_holds_other_tokens_is_not_gone_on_with(server: ScriptedVerifier) -> None:
    """The device went on by itself while the connection was away: the server's session has another end."""
    server.script(None, Reset())
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:3])
        talk.send(ANSWER[4:6])
        await talk.next(VerifierLost)
        talk.answer = [8, 8, 8, 8, 8, 8]
        await talk.connect()
        verdict = await talk.judged([])
        assert [verdict.token] == greedy(TARGET, [*PROMPT, 8, 8, 8, 8, 8, 8], 1)
        assert server.contexts[-1] == [*PROMPT, *talk.answer]


async def test_an_evicted_session_is_resumed_on_the_same_connection(server: ScriptedVerifier) -> None:
    server.script(None, Refuse(EvictedError, is_about_round=False))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:3])
        talk.send(ANSWER[4:6])
        await talk.next(VerifierLost)
        await talk.connect()
        assert await talk.write(len(ANSWER)) == ANSWER
        assert (len(server.contexts), server.connections_total) == (1, 1)


async def test_a_server_that_was_killed_and_started_again_goes_on() -> None:
    async with scripted() as server, verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:3])
        server.lose_sessions()
        await server.aclose()
        await talk.next(VerifierLost)
        talk.session.run(ConnectVerifier(tuple(talk.answer)))
        await asyncio.sleep(0.3)  # some tries meet a closed port
        assert not talk.has_told()
        await server.start()
        await talk.next(VerifierConnected)
        assert await talk.write(len(ANSWER)) == ANSWER


async def test_a_server_that_is_not_there_yet_is_tried_again() -> None:
    server = scripted()
    async with server:
        port = server.port
    async with verifier_at(f"ws://127.0.0.1:{port}") as verifier:
        with pytest.raises(EndpointConnectError):
            await verifier.probe()
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        await asyncio.sleep(0.1)
        await server.start()
        try:
            await talk.next(VerifierConnected)
            await talk.judged(ANSWER[:2])
        finally:
            await verifier.aclose()
            await server.aclose()


async def test_an_overloaded_server_refuses_a_draft_and_says_when_to_come_back(server: ScriptedVerifier) -> None:
    server.script(Refuse(OverloadedError, retry_after=0.25), None)
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        assert await talk.next(DraftRefused) == DraftRefused(0, 0.25)
        verdict = await talk.judged(ANSWER[:2])
        assert verdict.round == 1
        assert server.contexts == [[*PROMPT, *ANSWER[:3]]]


async def test_a_session_that_is_refused_for_a_while_is_opened_when_there_is_room(server: ScriptedVerifier) -> None:
    server.script_opens(Refuse(OverloadedError, retry_after=0.05), Refuse(OverloadedError, retry_after=0.05))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        told = await talk.next(VerifierConnected)
        assert told == VerifierConnected(0), "it is used before the answer to the open is there"
        assert await talk.next(VerifierLost) == VerifierLost(0.05)
        await talk.connect()
        assert await talk.write(6) == ANSWER[:6]


@pytest.mark.parametrize("kind", [StaleRoundError, ContextFullError, MalformedFrameError])
async def test_a_round_that_can_not_be_judged_ends_the_verifying(server: ScriptedVerifier, kind: type[StaleRoundError]) -> None:
    server.script(Refuse(kind))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        assert isinstance((await talk.next(VerifierFailed)).error, kind)


async def test_a_target_that_fails_is_asked_again_and_given_up_in_the_end(server: ScriptedVerifier) -> None:
    failed = Refuse(VerifierFailedError)
    server.script(failed, None, failed, failed, failed)
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        assert await talk.next(DraftRefused) == DraftRefused(0, None)
        await talk.judged(ANSWER[:2])
        for turn in (2, 3):
            talk.send([1])
            assert await talk.next(DraftRefused) == DraftRefused(turn, None)
        talk.send([1])
        assert isinstance((await talk.next(VerifierFailed)).error, VerifierFailedError)


async def test_a_rule_the_server_does_not_know_is_a_failure(server: ScriptedVerifier) -> None:
    server.script_opens(Refuse(RuleError))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        await talk.next(VerifierConnected)
        assert isinstance((await talk.next(VerifierFailed)).error, RuleError)


@pytest.mark.parametrize("kind", [UnauthorisedError, VocabularyError, VersionError])
async def test_a_server_that_does_not_want_us_ends_every_session(server: ScriptedVerifier, kind: type[UnauthorisedError]) -> None:
    async with verifier_at(server.url) as verifier:
        talks = [Talk(verifier), Talk(verifier)]
        for talk in talks:
            await talk.connect()
        server.script(Refuse(kind))
        talks[0].send(ANSWER[:2])
        for talk in talks:
            assert isinstance((await talk.next(VerifierFailed)).error, kind)


async def test_a_good_bye_is_a_loss_and_the_next_connection_is_better(server: ScriptedVerifier) -> None:
    server.script(Refuse(ShuttingDownError))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        await talk.next(VerifierLost)
        await talk.connect()
        assert await talk.write(6) == ANSWER[:6]


async def test_a_wrong_token_is_refused_and_the_right_one_is_not_told() -> None:
    async with scripted(token="sesame") as server:
        for token in (None, "open"):
            async with verifier_at(server.url, token=token) as verifier:
                with pytest.raises(UnauthorisedError):
                    await verifier.probe()
                talk = Talk(verifier)
                talk.session.run(ConnectVerifier(()))
                assert isinstance((await talk.next(VerifierFailed)).error, UnauthorisedError)
        async with verifier_at(server.url, token="sesame") as verifier:
            await verifier.probe()
            assert "sesame" not in repr(verifier)


async def test_neither_token_nor_prompt_are_written_into_a_log_that_takes_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with scripted(token="sesame") as server:
        caplog.clear()
        async with verifier_at(server.url, token="sesame") as verifier:
            talk = Talk(verifier)
            await talk.connect()
            await talk.judged(ANSWER[:2])
    ours = [record.getMessage() for record in caplog.records if record.name != "websockets.server"]  # the scripted server's own
    assert "sesame" not in "".join(ours)
    assert not [record for record in caplog.records if record.name.startswith(("websockets.client", "streamco.websockets"))]


async def test_a_server_that_repeats_the_token_is_quoted_without_it() -> None:
    async with scripted(token="another") as server, verifier_at(server.url, token="sesame") as verifier:
        server.status = 403
        server.reason = "sesame is no key of ours"
        with pytest.raises(EndpointStatusError) as caught:
            await verifier.probe()
        assert "sesame" not in str(caught.value) + caught.value.body
        assert "is no key of ours" in caught.value.body


async def test_another_vocabulary_is_refused(server: ScriptedVerifier) -> None:
    verifier = VerifierEndpoint(server.url, timeouts=QUICK)
    await verifier.start(an_engine(SIZE + 1))
    with pytest.raises(VocabularyError, match=str(SIZE)):
        await verifier.probe()
    await verifier.aclose()


@pytest.mark.parametrize(("status", "is_tried_again"), [(401, False), (404, False), (429, True), (503, True)])
async def test_a_server_behind_a_refusing_gateway(server: ScriptedVerifier, status: int, is_tried_again: bool) -> None:
    server.status = status
    async with verifier_at(server.url) as verifier:
        with pytest.raises(EndpointStatusError) as caught:
            await verifier.probe()
        assert caught.value.status == status
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        if is_tried_again:
            server.status = None
            await talk.next(VerifierConnected)
        else:
            assert isinstance((await talk.next(VerifierFailed)).error, EndpointStatusError)


async def test_a_server_that_speaks_http_only_is_no_verifier() -> None:
    async with ScriptedServer() as server, verifier_at(f"ws://127.0.0.1:{server.port}") as verifier:
        with pytest.raises(EndpointStatusError, match="200"):
            await verifier.probe()


async def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(ignore, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with verifier_at(f"ws://127.0.0.1:{port}", timeouts=Timeouts(connect=0.1, cancel=1)) as verifier:
        with pytest.raises(EndpointTimeoutError) as caught:
            await verifier.probe()
        assert caught.value.phase == "connect"
    listener.close()
    await listener.wait_closed()


async def test_a_verdict_that_does_not_come_loses_the_session_alone(server: ScriptedVerifier) -> None:
    timeouts = Timeouts(connect=5, first_token=5, next_token=1, socket=5, cancel=1)
    async with verifier_at(server.url, timeouts=timeouts) as verifier:
        other, talk = Talk(verifier), Talk(verifier)
        await other.connect()
        await talk.connect()
        await talk.judged(ANSWER[:2])
        server.script(Stall())
        talk.send(ANSWER[3:5])
        await talk.next(VerifierLost)
        await talk.connect()
        assert await talk.write(8) == ANSWER[:8]
        assert await other.write(8) == ANSWER[:8]
        assert server.connections_total == 1


async def test_a_connection_that_answers_no_ping_is_lost_for_all(server: ScriptedVerifier) -> None:
    timeouts = Timeouts(connect=5, first_token=5, next_token=1, socket=1, cancel=1)
    async with FaultProxy(server.port) as proxy, verifier_at(f"ws://127.0.0.1:{proxy.port}", timeouts=timeouts) as verifier:
        talk, other = Talk(verifier), Talk(verifier)
        await talk.connect()
        await other.connect()
        await talk.judged(ANSWER[:2])
        await other.judged(ANSWER[:2])
        proxy.stall()
        talk.send(ANSWER[3:5])
        await talk.next(VerifierLost)
        talk.session.run(ConnectVerifier(tuple(talk.answer)))
        await other.next(VerifierLost)
        await talk.next(VerifierConnected)
        await other.connect()
        proxy.resume()
        assert await talk.write(8) == ANSWER[:8]
        assert await other.write(8) == ANSWER[:8]
        assert proxy.connections_total == 2


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\x98\x12\x00\x00\x09\x01\x00\x00\x00", b"\x94\x11\x00\xc4\x02ab\x00"])
async def test_a_server_that_says_what_makes_no_sense_is_not_believed_any_more(server: ScriptedVerifier, data: bytes) -> None:
    server.script(Send(data))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        assert isinstance((await talk.next(VerifierFailed)).error, MalformedFrameError)
        await settled(lambda: not server.connections_open)


async def test_a_draft_beyond_the_servers_limits_is_a_failure_of_ours() -> None:
    async with scripted(limits=VerifyLimits(draft_tokens=2)) as server, verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:3])
        assert "at most 2" in str((await talk.next(VerifierFailed)).error)


async def test_another_connect_gives_up_what_there_was(server: ScriptedVerifier) -> None:
    server.script(None, Stall())
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:2])
        talk.send(ANSWER[3:5])
        await talk.connect()
        assert await talk.write(8) == ANSWER[:8]
        assert server.contexts == [[*PROMPT, *talk.answer]]
        assert not talk.has_told()


async def test_tls_is_used_and_its_certificate_looked_at() -> None:
    async with scripted(tls=server_context()) as server:
        async with verifier_at(server.url, tls=client_context()) as verifier:
            talk = Talk(verifier)
            await talk.connect()
            assert await talk.write(5) == ANSWER[:5]
        async with verifier_at(server.url) as verifier:
            talk = Talk(verifier)
            talk.session.run(ConnectVerifier(()))
            failed = await talk.next(VerifierFailed)
            assert isinstance(failed.error, EndpointConnectError)
            assert isinstance(failed.error.__cause__, ssl.SSLCertVerificationError)


async def test_closing_ends_everything_at_once(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk, waiting = Talk(verifier), Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        waiting.session.run(ConnectVerifier(()))
        await verifier.aclose()
        await verifier.aclose()
        assert not server.contexts or not talk.events[1:]
        with pytest.raises(UsageError):
            verifier.open(PROMPT, lambda event: None, rule=Rule())
        with pytest.raises(StreamClosed):
            await verifier.start(an_engine())


async def test_closing_does_not_wait_for_a_server_that_reads_nothing(server: ScriptedVerifier) -> None:
    async with FaultProxy(server.port) as proxy, verifier_at(f"ws://127.0.0.1:{proxy.port}") as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.judged(ANSWER[:2])
        proxy.stall()
        long = Talk(verifier, [1] * 100_000)
        talks = [Talk(verifier, long.prompt) for _ in range(40)]
        for waiting in talks:
            waiting.session.run(ConnectVerifier(()))
        await settled(lambda: all(waiting.events for waiting in talks))


async def test_it_must_be_started_first_and_for_one_vocabulary(server: ScriptedVerifier) -> None:
    verifier = VerifierEndpoint(server.url)
    with pytest.raises(UsageError, match="started"):
        verifier.open(PROMPT, lambda event: None, rule=Rule())
    with pytest.raises(UsageError, match="started"):
        await verifier.probe()
    await verifier.start(an_engine())
    with pytest.raises(UsageError, match="vocabulary"):
        await verifier.start(an_engine(SIZE + 1))
    await verifier.aclose()


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("ws://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/verify"),
        ("http://localhost:8000/v1/", "ws://localhost:8000/v1/verify"),
        ("https://host/proxy", "wss://host/proxy/v1/verify"),
        ("wss://host/v1/verify", "wss://host/v1/verify"),
    ],
)
def test_the_path_is_added_where_there_is_none(url: str, wanted: str) -> None:
    assert wanted in repr(VerifierEndpoint(url))


@pytest.mark.parametrize("url", ["", "host:80", "ftp://host", "ws://", "wss://user:secret@host", "wss://host:99999", "ws://example.com"])
def test_a_url_that_is_none_is_refused_without_telling_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        VerifierEndpoint(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ws://10.0.0.3:8000", "ws://127.0.0.1.example.com", "http://127.example.com", "ws://api.localhost"])
def test_plain_text_beyond_this_machine_has_to_be_meant(url: str) -> None:
    with pytest.raises(ConfigError, match="is_plain"):
        VerifierEndpoint(url, token="secret")


def test_plain_text_that_is_meant_is_allowed() -> None:
    assert "10.0.0.3" in VerifierEndpoint("ws://10.0.0.3:8000", is_plain=True).name


@pytest.mark.parametrize("token", ["", " a", "a\n", "é", "x" * 4097])
def test_a_token_that_is_none_is_refused_without_telling_it(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        VerifierEndpoint("ws://127.0.0.1:1", token=token)


async def test_a_connection_that_is_no_verifiers_is_a_protocol_error() -> None:
    from websockets.asyncio.server import serve

    async with serve(lambda socket: socket.wait_closed(), "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with verifier_at(f"ws://127.0.0.1:{port}") as verifier:
            with pytest.raises(EndpointProtocolError, match="subprotocol"):
                await verifier.probe()
