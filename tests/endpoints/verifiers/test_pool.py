"""Several verifiers as one: which one an answer goes to, and which ones are left out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from streamco.core.verifier.events import FULL_QUEUE
from streamco.endpoints.verifiers.base import VerifierFacts
from streamco.endpoints.verifiers.pool import VerifierPool, _common, _covers
from streamco.endpoints.verifiers.pool_member import PoolMember
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import ConfigError, EndpointError, VerifierError
from streamco.policies.acceptance import RuleKind
from streamco.testing import ScriptedVerifier
from streamco.wire.verify.frames import VerifyLimits
from tests.endpoints.verifiers.support import QUICK, SIZE, TARGET, an_engine
from tests.support.leaks import settled


def scripted(**options: Any) -> ScriptedVerifier:
    return ScriptedVerifier(TARGET, vocabulary=an_engine().info.vocabulary, vocabulary_size=SIZE, **options)


def pool_of(*servers: ScriptedVerifier, **options: Any) -> VerifierPool:
    names = "abcdef"
    options.setdefault("rng", Random(1))
    return VerifierPool(
        [VerifierEndpoint(each.url, name=name, timeouts=QUICK) for each, name in zip(servers, names, strict=False)], **options
    )


@asynccontextmanager
async def probed(count: int, **options: Any) -> AsyncIterator[tuple[list[ScriptedVerifier], VerifierPool]]:
    """So many scripted verifiers that run, and a pool that has probed them."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted()) for _ in range(count)]
        pool = pool_of(*servers, **options)
        stack.push_async_callback(pool.aclose)
        await pool.start(an_engine())
        await pool.probe()
        yield servers, pool


def chosen(pool: VerifierPool, count: int) -> str:
    """Names of the verifiers of so many answers that stay open."""
    names = []
    for _ in range(count):
        member = pool.choose_first()
        member.answers += 1
        names.append(member.name)
    return "".join(names)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (([],), r"expected a list of one verifier or more, got \[\]"),
        (("ws://127.0.0.1:1",), "expected a list of one verifier or more"),
        ((["ws://127.0.0.1:1", "ws://127.0.0.1:1"],), "different names, got 127.0.0.1:1, 127.0.0.1:1"),
        ((["nonsense"],), "url: expected a URL"),
    ],
)
def test_a_pool_needs_verifiers_that_can_be_told_apart(arguments: tuple[Any, ...], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        VerifierPool(*arguments)


@pytest.mark.parametrize("options", [{"routing": "fastest"}, {"retry_after": 0.0}])
def test_settings_that_can_t_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        VerifierPool(["ws://127.0.0.1:1"], **options)


async def test_answers_are_spread_by_the_routing() -> None:
    async with probed(3, routing="round-robin") as (_, pool):
        assert chosen(pool, 6) == "abcabc"
    async with probed(3, routing="in-order") as (_, pool):
        assert chosen(pool, 3) == "aaa"
    async with probed(3, routing="random") as (_, pool):
        assert set(chosen(pool, 60)) == set("abc")
    async with probed(3) as (_, pool):
        assert sorted(chosen(pool, 6)) == sorted("aabbcc")


async def test_the_shortest_queue_counts_what_others_wait_for_as_long_as_that_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("streamco.endpoints.verifiers.pool.monotonic", lambda: now)
    async with probed(2) as (_, pool):
        first, second = pool.members
        first.record_queue(4 / FULL_QUEUE, now=now)
        assert (first.load(now=now), second.load(now=now)) == (4, 0)
        assert chosen(pool, 4) == "bbbb"
        now += 10.0
        assert (first.load(now=now), second.load(now=now)) == (0, 4), "what was said ten seconds ago says nothing"
        assert chosen(pool, 3) == "aaa"


async def test_a_verifier_that_takes_no_session_is_passed_over_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("streamco.endpoints.verifiers.pool.monotonic", lambda: now)
    async with probed(2, routing="in-order") as (_, pool):
        first, second = pool.members
        first.record_busy(now=now)
        assert chosen(pool, 1) == "b"
        second.record_busy(now=now)
        assert pool.choose() is None
        assert pool.choose_first() is first, "a new answer goes somewhere"
        now += 6.0
        assert pool.choose() is first


async def test_a_verifier_that_is_down_is_left_out_and_comes_back() -> None:
    async with scripted() as here, scripted() as away:
        pool = pool_of(away, here, routing="in-order", retry_after=0.02)
        await away.aclose()
        await pool.start(an_engine())
        facts = await pool.probe()
        assert facts.model == "scripted"
        assert list(pool.left_out) == ["a"]
        assert chosen(pool, 2) == "bb"
        await away.start()
        await settled(lambda: not pool.left_out)
        assert chosen(pool, 1) == "a"
        await pool.aclose()


async def test_a_host_that_swallows_packets_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.endpoints.verifiers.pool._LATE_SECONDS", 0.05)
    silent = socket.create_server(("127.0.0.1", 0))  # the system connects, and nothing answers
    with silent:
        async with scripted() as here:
            port = silent.getsockname()[1]
            mute = VerifierEndpoint(f"ws://127.0.0.1:{port}", name="mute", timeouts=QUICK)
            pool = VerifierPool([mute, VerifierEndpoint(here.url, name="here", timeouts=QUICK)])
            await pool.start(an_engine())
            assert (await pool.probe()).model == "scripted"
            assert "within 0.05 s of another verifier's, got none" in pool.left_out["mute"]
            assert pool.choose_first().name == "here"
            await pool.aclose()


async def test_if_all_are_down_the_first_error_is_that_of_the_pool() -> None:
    pool = VerifierPool(["ws://127.0.0.1:9", "ws://127.0.0.2:9"])
    await pool.start(an_engine())
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:9"):
        await pool.probe()
    assert pool.choose() is None
    assert (pool.facts, pool.rtt, pool.remote) == (None, None, None)
    await pool.aclose()


async def test_a_verifier_of_another_model_or_vocabulary_is_left_out() -> None:
    other = ScriptedVerifier(TARGET, vocabulary="another", vocabulary_size=SIZE)
    async with scripted() as good, scripted(model="larger") as larger, other:
        pool = pool_of(good, larger, other)
        await pool.start(an_engine())
        await pool.probe()
        assert pool.left_out["b"] == "b: expected the model of the others, scripted, got larger"
        assert "another" in pool.left_out["c"]
        assert chosen(pool, 3) == "aaa"
        assert await pool.trouble_of(pool.members[0], within=5.0) == ""
        assert "larger" in await pool.trouble_of(pool.members[1], within=5.0)
        await pool.aclose()


async def test_the_first_verifier_in_the_list_gives_the_model_however_fast_the_others_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted() as first, scripted(model="larger") as second:
        pool = pool_of(first, second)
        await pool.start(an_engine())
        slow, is_there = pool.members[0].verifier, asyncio.Event()
        probe = slow.probe

        async def probe_late() -> VerifierFacts:
            await is_there.wait()
            return await probe()

        monkeypatch.setattr(slow, "probe", probe_late)
        probing = asyncio.create_task(pool.probe())
        await settled(lambda: pool.members[1].verifier.facts is not None)
        is_there.set()
        assert (await probing).model == "scripted"
        assert list(pool.left_out) == ["b"]
        await pool.aclose()


async def test_a_new_answer_never_goes_to_a_verifier_of_another_model() -> None:
    async with scripted() as good, scripted(model="larger") as larger:
        pool = pool_of(good, larger)
        await pool.start(an_engine())
        await pool.probe()
        pool.members[0].answers = 3
        pool.record_failure(pool.members[0], "down")
        assert pool.choose() is None
        assert pool.choose_first() is pool.members[0], "it may be back; the other one would write another text"
        await pool.aclose()


async def test_a_verifier_that_was_never_reached_comes_last() -> None:
    async with scripted() as here, scripted() as away:
        pool = pool_of(away, here)
        await away.aclose()
        await pool.start(an_engine())
        await pool.probe()
        pool.members[1].answers = 3
        pool.record_failure(pool.members[1], "down")
        assert pool.choose_first() is pool.members[1]
        await pool.aclose()


async def start_with(model: str, server: ScriptedVerifier, member: PoolMember) -> None:
    """Start a server again with another model, and wait until its verifier has noticed."""
    server._model = model
    server.cut()
    await settled(lambda: bool(not server.connections_open))
    while member.verifier.facts is None or member.verifier.facts.model != model:
        with suppress(EndpointError):
            await member.verifier.probe()


async def test_verifiers_that_come_back_with_another_model_are_left_out_until_all_have_it() -> None:
    async with probed(2, routing="in-order", retry_after=0.02) as (servers, pool):
        await start_with("larger", servers[0], pool.members[0])
        assert chosen(pool, 2) == "bb"
        assert pool.left_out == {"a": "a: expected the model of the others, scripted, got larger"}
        assert pool.facts is not None
        assert pool.facts.model == "scripted"
        await start_with("larger", servers[1], pool.members[1])
        assert pool.facts.model == "larger"
        await settled(lambda: not pool.left_out)
        assert chosen(pool, 1) == "a"


async def test_an_answer_is_planned_with_what_holds_at_every_verifier() -> None:
    async with scripted(limits=VerifyLimits(draft_tokens=8, top_k=40)) as small, scripted() as large:
        pool = pool_of(large, small)
        await pool.start(an_engine())
        facts = await pool.probe()
        assert (facts.draft_tokens, facts.top_k) == (8, 40)
        assert pool.choose(needed=facts) is not None
        assert pool.choose(needed=large_facts(pool), without=pool.members[:1]) is None, "a smaller one can't go on with larger drafts"
        await pool.aclose()


def large_facts(pool: VerifierPool) -> VerifierFacts:
    facts = pool.members[0].verifier.facts
    assert facts is not None
    return facts


def test_what_holds_at_two_verifiers_is_the_less_of_each() -> None:
    one = VerifierFacts(model="m", rules=frozenset({RuleKind.GREEDY, RuleKind.SAMPLE}), draft_tokens=8, top_k=9, samples_exactly=True)
    other = VerifierFacts(
        model="m", rules=frozenset({RuleKind.GREEDY}), draft_tokens=9, top_k=8, context_tokens=100, max_ahead=4, max_paths=8
    )
    both = _common(one, other)
    assert both == VerifierFacts(model="m", rules=frozenset({RuleKind.GREEDY}), draft_tokens=8, top_k=8, context_tokens=100)
    assert _common(other, replace(other, max_paths=4)).max_paths == 4
    assert _covers(one, None)
    assert not _covers(None, None)
    assert not _covers(replace(one, context_tokens=50), both), "its context ends sooner"
    assert _covers(other, both)


def test_an_answer_whose_drafts_are_trees_can_move_to_a_verifier_that_takes_them_too() -> None:
    one = VerifierFacts(model="m", rules=frozenset({RuleKind.GREEDY}), draft_tokens=8, top_k=9, max_paths=8)
    assert _covers(replace(one, max_ahead=4), one)
    fewer = replace(one, max_paths=3)
    assert _common(one, fewer) == _common(fewer, one) == fewer
    assert not _covers(fewer, one)


async def test_a_wrong_vocabulary_everywhere_is_a_verifier_s_error() -> None:
    async with ScriptedVerifier(TARGET, vocabulary="another", vocabulary_size=SIZE) as server:
        pool = pool_of(server)
        await pool.start(an_engine())
        with pytest.raises(VerifierError, match="another"):
            await pool.probe()
        await pool.aclose()
