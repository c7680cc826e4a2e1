"""One answer at several verifiers: it stays at one, and goes on at another with the same tokens."""

from __future__ import annotations

from contextlib import suppress

import pytest

from streamco.core.speculation.events import CloseVerifier, ConnectVerifier, VerifierConnected, VerifierFailed, VerifierLost
from streamco.endpoints.verifiers.pool import VerifierPool
from streamco.endpoints.verifiers.pool_session import PooledSession
from streamco.testing import Refuse, ScriptedVerifier
from streamco.wire.verify.errors import FaultLimitError, OverloadedError, RuleError
from tests.endpoints.verifiers.support import DRAFTER, PROMPT, TARGET, Talk, greedy
from tests.endpoints.verifiers.test_pool import probed


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.endpoints.verifiers.pool_session._GRACE", 0.02)
    monkeypatch.setattr("streamco.endpoints.verifiers.pool_session._STAY", 0.1)


async def a_round(talk: Talk) -> None:
    await talk.verify(greedy(DRAFTER, [*talk.prompt, *talk.answer], 3))


def session_of(talk: Talk) -> PooledSession:
    assert isinstance(talk.session, PooledSession)
    return talk.session


def at(pool: VerifierPool) -> list[int]:
    return [member.answers for member in pool.members]


async def test_an_answer_stays_where_its_context_is() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        talk = Talk(pool)
        await talk.connect()
        for _ in range(4):
            await a_round(talk)
        assert talk.answer == greedy(TARGET, PROMPT, len(talk.answer))
        assert ([len(each.drafts) for each in servers], at(pool)) == ([4, 0], [1, 0])
        assert session_of(talk).rounds == 4
        assert session_of(talk).bytes_up > 0 < session_of(talk).bytes_down
        await talk.session.aclose()
        await talk.session.aclose()
        assert at(pool) == [0, 0]


async def test_a_cut_connection_is_resumed_at_the_same_verifier() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        talk = Talk(pool)
        await talk.connect()
        await a_round(talk)
        servers[0].cut()
        await talk.next(VerifierLost)
        await talk.connect()
        await a_round(talk)
        assert not session_of(talk).assigned.moves
        assert [len(each.contexts) for each in servers] == [1, 0]
        await talk.session.aclose()


async def test_a_verifier_that_dies_leaves_its_answer_to_another_one() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        moved: list[tuple[str, str]] = []
        talk = Talk(pool)
        session_of(talk).assigned.on_move = lambda left: moved.append((left.name, session_of(talk).assigned.name))
        await talk.connect()
        await a_round(talk)
        before = len(talk.answer)
        await servers[0].aclose()
        await talk.next(VerifierLost)
        await talk.connect()
        for _ in range(3):
            await a_round(talk)
        assert talk.answer == greedy(TARGET, PROMPT, len(talk.answer))
        assigned = session_of(talk).assigned
        assert (assigned.served, moved, assigned.read_again) == (("a", "b"), [("a", "b")], len(PROMPT) + before)
        assert (list(pool.left_out), at(pool)) == (["a"], [0, 1])
        assert servers[1].contexts[0][: len(PROMPT) + before] == [*PROMPT, *talk.answer[:before]]
        assert session_of(talk).rounds == 4
        await talk.session.aclose()


async def test_a_refused_session_is_opened_elsewhere_at_once() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        servers[0].script_opens(Refuse(OverloadedError, retry_after=600.0))
        talk = Talk(pool)
        talk.session.run(ConnectVerifier(()))
        await talk.next(VerifierConnected)  # the context is used before the server has answered
        assert await talk.next(VerifierLost) == VerifierLost(), "the other one can be asked now"
        await talk.connect()
        await a_round(talk)
        assert (at(pool), pool.left_out) == ([0, 1], {})
        assert session_of(talk).assigned.moves[0].why == "it takes no session for 60 s"
        await talk.session.aclose()


async def test_a_verifier_that_goes_on_refusing_is_left() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        talk = Talk(pool)
        await talk.connect()
        await a_round(talk)
        servers[0].cut()
        await talk.next(VerifierLost)
        servers[0].script_opens(*[Refuse(OverloadedError, retry_after=600.0)] * 3)
        await talk.connect()
        await a_round(talk)
        assert session_of(talk).assigned.moves[0].why == "a took no session"
        assert (at(pool), pool.left_out) == ([0, 1], {})
        await talk.session.aclose()


async def test_an_error_that_lasts_moves_the_answer_and_is_the_answer_s_only_at_the_last_one() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        talk = Talk(pool)
        await talk.connect()
        await a_round(talk)
        fail(servers[0])
        talk.send(greedy(DRAFTER, [*talk.prompt, *talk.answer], 3))
        await talk.next(VerifierLost)
        await talk.connect()
        await a_round(talk)
        assert session_of(talk).assigned.served == ("a", "b")
        fail(servers[1])
        talk.send(greedy(DRAFTER, [*talk.prompt, *talk.answer], 3))
        await talk.next(VerifierFailed)
        assert at(pool) == [0, 0], "it is over"
        assert not pool.left_out, "other answers can be verified there"
        await talk.session.aclose()


async def test_a_verifier_that_refuses_this_client_is_left_out() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        talk = Talk(pool)
        await talk.connect()
        await a_round(talk)
        servers[0].script(Refuse(FaultLimitError))
        talk.send(greedy(DRAFTER, [*talk.prompt, *talk.answer], 3))
        await talk.next(VerifierLost)
        await talk.connect()
        await a_round(talk)
        assert list(pool.left_out) == ["a"]
        await talk.session.aclose()


async def test_an_answer_leaves_a_verifier_that_comes_back_with_another_model() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        talk = Talk(pool)
        await talk.connect()
        await a_round(talk)
        servers[0]._model = "larger"
        servers[0].lose_sessions()
        servers[0].cut()
        await talk.next(VerifierLost)
        await talk.connect()
        await a_round(talk)
        assert talk.answer == greedy(TARGET, PROMPT, len(talk.answer))
        assert session_of(talk).assigned.moves[0].why == "a: expected the model of the others, scripted, got larger"
        assert (list(pool.left_out), at(pool)) == (["a"], [0, 1])
        await talk.session.aclose()


async def test_an_answer_whose_model_is_gone_everywhere_fails_rather_than_mix_two() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        talk = Talk(pool)
        await talk.connect()
        await a_round(talk)
        await servers[1].aclose()
        pool.record_failure(pool.members[1], "down")
        servers[0]._model = "larger"
        servers[0].cut()
        await talk.next(VerifierLost)
        talk.session.run(ConnectVerifier(tuple(talk.answer)))
        failed = await talk.next(VerifierFailed)
        assert "got larger" in str(failed.error)
        assert at(pool) == [0, 0]
        await talk.session.aclose()


def fail(server: ScriptedVerifier) -> None:
    server.script(Refuse(RuleError, is_about_round=False))


async def test_a_verifier_that_fails_while_it_is_asked_is_replaced_without_a_word() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        await servers[0].aclose()
        talk = Talk(pool)
        await talk.connect()
        await a_round(talk)
        assert session_of(talk).assigned.served == ("a", "b")
        await talk.session.aclose()


async def test_nothing_follows_the_end_of_a_session() -> None:
    async with probed(2, routing="in-order") as (servers, pool):
        talk = Talk(pool)
        await servers[0].aclose()
        talk.session.run(ConnectVerifier(()))
        talk.session.run(CloseVerifier())
        talk.session.run(ConnectVerifier(()))
        await talk.session.aclose()
        with suppress(TimeoutError):
            raise AssertionError(await talk.emitted(limit=0.1))
        assert at(pool) == [0, 0]
