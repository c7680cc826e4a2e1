"""A session at a verifier that speaks streamco's protocol: rounds, refusals, losses, resuming."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

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
from streamco.endpoints.verifiers.session import _as_chain
from streamco.policies.acceptance import Rule, RuleKind
from streamco.testing import Crash, Cut, FaultProxy, Pause, Refuse, Reset, ScriptedVerifier, Stall
from streamco.wire.verify.errors import (
    ContextFullError,
    EvictedError,
    MalformedFrameError,
    OverloadedError,
    RuleError,
    StaleRoundError,
    VerifierFailedError,
)
from streamco.wire.verify.frames import VerifyLimits
from streamco.wire.verify.topk import quantise
from tests.endpoints.verifiers.support import (
    ANSWER,
    DRAFTER,
    PROMPT,
    SAMPLE,
    SIZE,
    TARGET,
    Talk,
    greedy,
    scripted,
    verifier_at,
)
from tests.support.leaks import settled


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
        verdict = await talk.verify(ANSWER[:3])
        assert (verdict.accepted, verdict.token) == (3, ANSWER[3])


async def test_given_tokens_are_part_of_the_context_and_not_judged(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        verdict = await talk.verify([], given=[1, 2, 3])
        assert (verdict.accepted, [verdict.token]) == (0, greedy(TARGET, [*PROMPT, 1, 2, 3], 1))
        assert server.contexts == [[*PROMPT, *talk.answer]]


async def test_a_draft_may_begin_before_the_end_of_the_context(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:4])
        del talk.answer[2:]
        verdict = await talk.verify([9, 9])
        assert (verdict.accepted, verdict.token) == (0, ANSWER[2])
        assert server.contexts == [[*PROMPT, *ANSWER[:3]]]


async def test_rows_of_the_target_come_with_the_verdict(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier, top_k=4)
        await talk.connect()
        verdict = await talk.verify(ANSWER[:2])
        assert [row[0][0] for row in verdict.rows] == ANSWER[:3]
        wanted = sorted(TARGET(PROMPT).values(), reverse=True)[:4]
        assert [share for _, share in verdict.rows[0]] == pytest.approx(wanted, abs=1e-4)


async def test_more_rows_than_the_server_gives_are_not_asked_for() -> None:
    async with scripted(limits=VerifyLimits(top_k=2)) as server, verifier_at(server.url) as verifier:
        talk = Talk(verifier, top_k=8)
        await talk.connect()
        verdict = await talk.verify(ANSWER[:1])
        assert [len(row) for row in verdict.rows] == [2, 2]


async def test_sampled_rounds_carry_what_was_drawn_from_and_greedy_ones_do_not(server: ScriptedVerifier) -> None:
    row = quantise([(ANSWER[0], 0.7), (3, 0.3)], is_whole=True)
    async with verifier_at(server.url) as verifier:
        for rule in (SAMPLE, Rule()):
            talk = Talk(verifier, rule=rule)
            await talk.connect()
            await talk.verify(ANSWER[:1], rows=[row])
            await talk.aclose()
    assert [draft.rows for draft in server.drafts] == [(row,), ()]


@pytest.mark.long
async def test_sampled_answers_have_the_targets_distribution(server: ScriptedVerifier) -> None:
    """The first token of 600 answers, against the target's own distribution; docs say that sampling is exact there."""
    rule = Rule(RuleKind.SAMPLE, 1.0, top_k=4)
    best = sorted(TARGET(PROMPT).items(), key=lambda pair: -pair[1])[:4]
    wanted = {token: share / sum(share for _, share in best) for token, share in best}
    drafted = sorted(DRAFTER(PROMPT).items(), key=lambda pair: -pair[1])[:4]
    row = quantise([(token, share / sum(share for _, share in drafted)) for token, share in drafted], is_whole=True)
    rng, seen, rounds = Random(11), Counter[int](), 600
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier, rule=rule)
        await talk.connect()
        for _ in range(rounds):
            talk.answer.clear()
            await talk.verify([row.distribution().draw(rng)], rows=[row])
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
        verdict = await talk.verify([])
        assert [verdict.token] == greedy(TARGET, prompt, 1)
        assert server.contexts == [[*prompt, *talk.answer]]


async def test_bytes_and_rounds_are_counted(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:4])
        opened_up, opened_down = talk.session.bytes_up, talk.session.bytes_down
        await talk.verify(ANSWER[5:9])
        assert talk.session.rounds == 2
        assert 10 < talk.session.bytes_up - opened_up < 30
        assert 10 < talk.session.bytes_down - opened_down < 30


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
        assert not talk.has_emitted()


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


async def test_a_draft_ahead_of_a_verdict_on_a_sibling_that_the_server_doesn_t_take_is_left_out(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.session.run(SendDraft(0, 0, (), (ANSWER[0], 9), parents=(0, 0)))
        talk.session.run(SendDraft(1, 2, (), (1,), (), ExpectedVerdict(0, 2, 99)))
        talk.session.run(SendDraft(2, 2, (), (ANSWER[2],), (), ExpectedVerdict(0, 1, ANSWER[1])))
        first, second = await talk.next(VerdictReceived), await talk.next(VerdictReceived)
        assert (first.round, first.accepted, first.token) == (0, 1, ANSWER[1])
        assert (second.round, second.accepted) == (2, 1)
        assert [draft.ids for draft in server.drafts] == [(ANSWER[0],), (ANSWER[2],)]
        await talk.aclose()


async def test_a_draft_ahead_of_a_verdict_that_is_here_already_is_sent_if_it_is_right(server: ScriptedVerifier) -> None:
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:2])
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
        assert not talk.has_emitted()
        await talk.aclose()


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("fault", [Cut(), Reset()])
async def test_a_round_that_is_cut_off_is_told_and_the_session_is_resumed_where_it_was(
    server: ScriptedVerifier, fault: Cut | Reset
) -> None:
    server.script(None, None, fault)
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:3])
        await talk.verify([1])
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
        await talk.verify(ANSWER[:2])
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
        await talk.verify(ANSWER[:3])
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
        await talk.verify(ANSWER[:3])
        assert [rule.seed for rule in server.rules] == [3]
        talk.send(ANSWER[4:6])
        await talk.next(VerifierLost)
        await talk.connect()
        await talk.verify(ANSWER[4:6])
        assert [rule.seed for rule in server.rules] == [continuation_seed(3, 4)]


async def test_a_resume_that_is_never_answered_is_given_up_for_a_new_session(server: ScriptedVerifier) -> None:
    timeouts = Timeouts(connect=5, first_token=1, next_token=5, socket=5, cancel=1)
    async with verifier_at(server.url, timeouts=timeouts) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:3])
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
        await talk.verify(ANSWER[:3])
        talk.send(ANSWER[4:6])
        await talk.next(VerifierLost)
        talk.answer = [8, 8, 8, 8, 8, 8]
        await talk.connect()
        verdict = await talk.verify([])
        assert [verdict.token] == greedy(TARGET, [*PROMPT, 8, 8, 8, 8, 8, 8], 1)
        assert server.contexts[-1] == [*PROMPT, *talk.answer]


async def test_an_evicted_session_is_resumed_on_the_same_connection(server: ScriptedVerifier) -> None:
    server.script(None, Refuse(EvictedError, is_about_round=False))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        await talk.verify(ANSWER[:3])
        talk.send(ANSWER[4:6])
        await talk.next(VerifierLost)
        await talk.connect()
        assert await talk.write(len(ANSWER)) == ANSWER
        assert (len(server.contexts), server.connections_total) == (1, 1)


async def test_an_overloaded_server_refuses_a_draft_and_says_when_to_come_back(server: ScriptedVerifier) -> None:
    server.script(Refuse(OverloadedError, retry_after=0.25), None)
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        await talk.connect()
        talk.send(ANSWER[:2])
        assert await talk.next(DraftRefused) == DraftRefused(0, 0.25)
        verdict = await talk.verify(ANSWER[:2])
        assert verdict.round == 1
        assert server.contexts == [[*PROMPT, *ANSWER[:3]]]


async def test_a_session_that_is_refused_for_a_while_is_opened_when_there_is_room(server: ScriptedVerifier) -> None:
    server.script_opens(Refuse(OverloadedError, retry_after=0.05), Refuse(OverloadedError, retry_after=0.05))
    async with verifier_at(server.url) as verifier:
        talk = Talk(verifier)
        talk.session.run(ConnectVerifier(()))
        emitted = await talk.next(VerifierConnected)
        assert emitted == VerifierConnected(0), "it is used before the answer to the open is there"
        assert await talk.next(VerifierLost) == VerifierLost(0.05)
        await talk.connect()
        assert await talk.write(6) == ANSWER[:6]


@pytest.mark.long("after the first case")
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
        await talk.verify(ANSWER[:2])
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


async def test_a_verdict_that_does_not_come_loses_the_session_alone(server: ScriptedVerifier) -> None:
    timeouts = Timeouts(connect=5, first_token=5, next_token=1, socket=5, cancel=1)
    async with verifier_at(server.url, timeouts=timeouts) as verifier:
        other, talk = Talk(verifier), Talk(verifier)
        await other.connect()
        await talk.connect()
        await talk.verify(ANSWER[:2])
        server.script(Stall())
        talk.send(ANSWER[3:5])
        await talk.next(VerifierLost)
        await talk.connect()
        assert await talk.write(8) == ANSWER[:8]
        assert await other.write(8) == ANSWER[:8]
        assert server.connections_total == 1


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
        await talk.verify(ANSWER[:2])
        talk.send(ANSWER[3:5])
        await talk.connect()
        assert await talk.write(8) == ANSWER[:8]
        assert server.contexts == [[*PROMPT, *talk.answer]]
        assert not talk.has_emitted()


def test_a_tree_for_a_server_of_chains_loses_its_siblings_and_nothing_else() -> None:
    tree = SendDraft(1, 3, (7,), (10, 11, 12, 20, 21), ("a", "b", "c", None, None), parents=(0, 1, 2, 0, 1))
    assert _as_chain(tree) == SendDraft(1, 3, (7,), (10, 11, 12), ("a", "b", "c"))
    assert _as_chain(replace(tree, ids=(10, 11), rows=(), parents=(0, 1))) == SendDraft(1, 3, (7,), (10, 11))
